package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

const (
	forcedFile = "forced.json"
	keptForced = "what was forced off the air"
)

// forcing is what is known of withdrawals without a permit: those of this node within
// the hour, which it tells the others, and theirs.
type forcing struct {
	own []edge.Forced
	// seen is when this node first heard of one of another.
	seen map[forcedAt]time.Time
}

type forcedAt struct {
	node   edge.NodeID
	prefix netip.Prefix
	at     int64 // Unix nanoseconds
}

// openForced recalls what the process before has forced out.
func (d *daemon) openForced(dir string) error {
	err := readState(dir, forcedFile, keptForced, &d.forced.own)
	d.guard.Recall(d.forced.own)
	return err
}

// followForced hears of what other nodes have forced out, each once, and forgets what
// is old.
func (d *daemon) followForced(now time.Time, members []edge.MemberState) {
	f := &d.forced
	old := func(o edge.Forced) bool { return now.Sub(o.At) >= edge.ForcedFor }
	if slices.ContainsFunc(f.own, old) {
		f.own = slices.DeleteFunc(slices.Clone(f.own), old)
		d.keeper.keep(forcedFile, keptForced, f.own)
	}
	for _, m := range members {
		if m.Age < 0 || m.Age >= edge.ForcedFor || m.Node == d.config().Local.ID {
			continue
		}
		for _, o := range m.Report.Forced {
			at := forcedAt{m.Node, o.Prefix, o.At.UnixNano()}
			if _, ok := f.seen[at]; ok {
				continue
			}
			if f.seen == nil {
				f.seen = map[forcedAt]time.Time{}
			}
			f.seen[at] = now
			d.noteOrder("force", fmt.Sprintf("%s at %s", o.Prefix, m.Node), "announced", "withdrawn without a permit", o.Reason)
		}
	}
	for at, since := range f.seen {
		if now.Sub(since) >= 2*edge.ForcedFor { // who tells it longer has a clock that is not ours
			delete(f.seen, at)
		}
	}
}

// alarms are what was forced within the hour, anywhere.
func (f *forcing) alarms(now time.Time, self edge.NodeID) []string {
	var out []string
	for _, o := range f.own {
		out = append(out, fmt.Sprintf("%s was forced off the air at %s without a permit, at %s: %s", o.Prefix, self, clock(o.At), o.Reason))
	}
	for at, since := range f.seen {
		if now.Sub(since) < edge.ForcedFor {
			out = append(out, fmt.Sprintf("%s was forced off the air at %s without a permit, at %s", at.prefix, at.node, clock(time.Unix(0, at.at))))
		}
	}
	slices.Sort(out)
	return out
}

// mayForce refuses an order to force that could not be carried out: before it is kept.
func (d *daemon) mayForce(o edge.Drain) error {
	switch {
	case strings.TrimSpace(o.Reason) == "" || o.Reason == noReason:
		return errors.New("to force a prefix off the air needs a reason: every box logs it")
	case !d.loop.adopted:
		return errors.New("edgebgp has not yet said what it announces: there is nothing to force off the air")
	}
	return nil
}

// forceOut withdraws without a permit what an order to drain concerns and is on the
// air. It goes on after an error: an operator who forces wants all gone.
func (d *daemon) forceOut(ctx context.Context, o edge.Drain) error {
	now, members := time.Now(), d.guard.Members()
	d.follow(now, members) // puts the order in force, so that nothing comes back
	in := d.inputs(d.sees(now, members))
	whole := o.Service == "" && o.Prefix == netip.Prefix{}
	vipOf := func(id edge.ServiceID) netip.Addr {
		s, _ := d.service(id)
		return s.VIP.Addr()
	}
	var errs []error
	for _, p := range d.config().Fleet.Prefixes {
		concerned := whole || o.Prefix == p.Net || o.Service != "" && p.Net.Contains(vipOf(o.Service))
		if !concerned || !d.loop.onAir[p.Net] {
			continue
		}
		was := d.loop.last[p.Net].Rung
		f := edge.Forced{Prefix: p.Net, At: now.UTC(), Reason: o.Reason}
		broken, err := d.guard.Force(ctx, p.Net, o.Reason, func(ctx context.Context) error {
			d.recordForced(f) // a process that is killed amid it must not be forgotten to have begun
			return d.loop.withdraw(ctx, p.Net, in)
		})
		f.Broken = broken
		if err != nil {
			f.Reason = "not all routers let go of it: " + o.Reason
		}
		d.amendForced(f)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		d.loop.forcedOff(p.Net, in)
		why := o.Reason
		if len(broken) > 0 {
			why += fmt.Sprintf("; it had promised %v to stay", broken)
		}
		d.noteOrder("force", p.Net.String(), string(was), "withdrawn without a permit", why)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the drain is in force, but not all is off the air: %w", err)
	}
	return nil
}

// recordForced keeps that a prefix is about to be forced off the air.
func (d *daemon) recordForced(f edge.Forced) {
	d.forced.own = append(slices.Clone(d.forced.own), f)
	d.keeper.keep(forcedFile, keptForced, d.forced.own)
}

// amendForced has the record of f, if there is one, say what has come of it.
func (d *daemon) amendForced(f edge.Forced) {
	i := slices.IndexFunc(d.forced.own, func(o edge.Forced) bool { return o.Prefix == f.Prefix && o.At.Equal(f.At) })
	if i < 0 {
		return // refused before anything was done
	}
	d.forced.own = slices.Clone(d.forced.own)
	d.forced.own[i] = f
	d.keeper.keep(forcedFile, keptForced, d.forced.own)
}

// forcedOff notes that p has been withdrawn without a permit: as after any withdrawal
// it does not come back before its hold is over.
func (l *loop) forcedOff(p netip.Prefix, in inputs) {
	was := l.last[p]
	d := edge.Decision{Prefix: p, Rung: edge.Withdrawn, Since: in.now, Reason: "forced off the air by an operator's order", Severity: was.Severity}
	l.setFlaps(p, l.flaps[p].Withdraw(in.now, in.config.Fleet.Health.HoldHalfLife, false))
	if l.changed != nil {
		l.changed(was, d)
	}
	l.last[p] = d
}
