package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard"
	"github.com/catchment-dev/edge/health"
)

// beat is how often the control loop looks when nothing has signalled, renew
// how often the lease at edgebgp is renewed when nothing has changed.
const (
	beat  = 250 * time.Millisecond
	renew = time.Second
)

// unstick is how long a withdrawal that has failed is not tried again. A router
// that takes nothing any more loses its session within the hold time; until then
// each attempt would be a flap for all others.
const unstick = 15 * time.Second

// announcer is edgebgp.
type announcer interface {
	Set(context.Context, edge.Intent) (edge.SpeakerState, error)
	State(context.Context) (edge.SpeakerState, error)
}

// guardian is the guard, as far as leaving is concerned.
type guardian interface {
	Wish(netip.Prefix, guard.Wish)
	Permit(netip.Prefix) edge.Permit
	Leave(context.Context, netip.Prefix, func(context.Context) error) error
}

// loop is the state of the control loop. Only its goroutine touches it.
type loop struct {
	speaker announcer
	guard   guardian
	// adopted says that edgebgp has told what it announces. Before, nothing is
	// decided: this process may have been restarted while the prefixes are on
	// the air.
	adopted bool
	// onAir are the prefixes that edgebgp shall announce. It changes by a
	// decision to announce, and by a withdrawal that the guard permitted.
	onAir map[netip.Prefix]bool
	// sentDegraded are those that edgebgp announced degraded when adopted.
	// sentShutdown those with GRACEFUL_SHUTDOWN because of a drain.
	sentDegraded, sentShutdown map[netip.Prefix]bool
	last                       map[netip.Prefix]edge.Decision
	// flaps are the withdrawals for sickness; keepFlaps, if not nil, is told of
	// each change, so that a restart forgets none.
	flaps     flaps
	keepFlaps func(flaps)
	flapped   bool // not kept yet
	// changed, if not nil, is told of each change of a prefix's rung.
	changed func(from, to edge.Decision)
	tracker health.Tracker
	// stuck is when a withdrawal has failed last: see unstick.
	stuck map[netip.Prefix]time.Time
	// graphIs is made of graphOf: see graph.
	graphOf, graphIs *edge.Config
	conditions       map[netip.Prefix]edge.Condition
	state            edge.SpeakerState
	stateAt          time.Time // when it was asked for
	speakerErr       error
	// bgp are the settings in force; bgpWaits says why those of the
	// configuration are not.
	bgp      edge.Speaker
	bgpWaits string
	sent     edge.Intent
	sentAt   time.Time
}

func newLoop(s announcer, g guardian) *loop {
	return &loop{
		speaker: s, guard: g,
		onAir: map[netip.Prefix]bool{}, sentDegraded: map[netip.Prefix]bool{}, sentShutdown: map[netip.Prefix]bool{}, last: map[netip.Prefix]edge.Decision{},
		flaps: flaps{}, stuck: map[netip.Prefix]time.Time{},
	}
}

// flaps are the withdrawals for sickness of each prefix.
type flaps map[netip.Prefix]edge.Flaps

// inputs are what the loop decides from.
type inputs struct {
	now        time.Time
	config     *edge.Config
	generation uint64
	statuses   []edge.Status
	settled    bool
	drain      func(netip.Prefix) *edge.Drain
	// others counts the other sites that announce a prefix; -1: not known yet.
	others func(netip.Prefix) int
	// notReady says why nothing new may be announced; empty: it may.
	notReady edge.Reason
	// sharedBy says how the other sites see a shared dependency; nil: not known.
	sharedBy func(edge.ProbeID) health.Others
	// unserved says why a prefix cannot be announced yet that was drained: its VIPs
	// are not served here, or not known to be; empty: they are; nil: all are.
	unserved func(netip.Prefix) edge.Reason
	// quiet says whether the traffic of a prefix that drains has gone; nil: never.
	quiet func(netip.Prefix) bool
	// prefers are the orders to move traffic that are in force, resting says that
	// the whole node is drained.
	prefers []edge.Preference
	resting bool
	// suspect says at how many sites a check fails; nil: that is not asked. worse finds
	// the site for which one comes back that is off the air and so sick; nil: none.
	suspect func(edge.Cause) edge.Suspect
	worse   func(p netip.Prefix, severity int) edge.Worse
}

// step looks at everything once and acts on it. adopt comes first.
func (l *loop) step(ctx context.Context, in inputs) {
	l.conditions = l.tracker.Update(in.now, health.Evaluate(l.graph(in.config), in.statuses, in.view(in.now)))
	l.settings(ctx, in.config)
	for _, p := range in.config.Fleet.Prefixes {
		l.decide(ctx, p, in)
	}
	// Once a turn: on a bad day a thousand prefixes change in one.
	if l.flapped && l.keepFlaps != nil {
		l.keepFlaps(l.flaps)
	}
	l.flapped = false
	l.announce(ctx, in)
}

// graph is the configuration as the health is evaluated from it.
func (l *loop) graph(c *edge.Config) *edge.Config {
	if l.graphOf != c {
		l.graphOf, l.graphIs = c, withBackends(c)
	}
	return l.graphIs
}

// adopt learns from edgebgp what is on the air.
func (l *loop) adopt(ctx context.Context) bool {
	if l.speakerErr = l.read(ctx); l.speakerErr != nil {
		return false
	}
	for _, a := range l.state.Announcements {
		l.onAir[a.Net] = true
		l.sentDegraded[a.Net], l.sentShutdown[a.Net] = a.Degrade, a.Shutdown
	}
	if l.state.Speaker != nil {
		l.bgp = *l.state.Speaker
	}
	l.adopted = true
	return true
}

// wasOff gives the prefixes that the process before had off the air the place
// of withdrawn ones, so that a restart is no way around the hold.
func (l *loop) wasOff(c *edge.Config, now time.Time) {
	if l.state.Speaker == nil {
		return // edgebgp is new as well
	}
	for _, p := range c.Fleet.Prefixes {
		if !l.onAir[p.Net] {
			l.last[p.Net] = edge.Decision{Prefix: p.Net, Rung: edge.Withdrawn, Since: now, Reason: "it was not announced when edged started"}
		}
	}
}

// settings takes over the BGP settings of the configuration, unless that would
// end a session that a prefix on the air needs: see edge.DropsRoutes. Then those in
// force stay until the prefixes have been drained.
func (l *loop) settings(ctx context.Context, c *edge.Config) {
	want := ordered(c.Local.Speaker)
	l.bgpWaits = ""
	if l.bgp.ASN != 0 { // else none are in force
		// Not a matter of the sessions.
		l.bgp.Lease, l.bgp.RPKI, l.bgp.Watch = want.Lease, want.RPKI, want.Watch
		l.bgp.Own, l.bgp.Resting = nil, false
		l.bgpWaits = l.mayChange(ctx, want)
	}
	if l.bgpWaits == "" {
		l.bgp = want
	}
}

// mayChange says why the settings in force cannot give way to others; empty:
// they can. It judges by what the peers hold now, not a second ago: a session
// may just have come up.
func (l *loop) mayChange(ctx context.Context, want edge.Speaker) string {
	if reflect.DeepEqual(l.bgp, want) {
		return ""
	}
	if err := l.read(ctx); err != nil {
		return fmt.Sprintf("edgebgp does not say what the peers hold: %v", err)
	}
	return edge.DropsRoutes(l.bgp, want, l.state)
}

func (l *loop) decide(ctx context.Context, prefix edge.Prefix, in inputs) {
	p := prefix.Net
	d := l.rung(prefix, in)
	l.guard.Wish(p, l.wish(d))
	if d.Rung.WantsOut() && l.guard.Permit(p).OK && in.now.Sub(l.stuck[p]) >= unstick {
		if err := l.guard.Leave(ctx, p, func(ctx context.Context) error { return l.withdraw(ctx, p, in) }); err == nil {
			before := l.last[p].Rung
			worsened := before.OnAir() && before != edge.Announced && d.Severity >= edge.SeveritySick
			l.setFlaps(p, l.flaps[p].Withdraw(in.now, in.config.Fleet.Health.HoldHalfLife, worsened))
			d = l.rung(prefix, in)
			l.guard.Wish(p, guard.Wish{})
		}
	}
	if d.Rung.OnAir() {
		l.onAir[p] = true
	}
	was := l.last[p]
	if was.Rung == edge.Announced && d.Rung.OnAir() && d.Rung != edge.Announced && d.Severity != edge.SeverityDrain {
		l.setFlaps(p, l.flaps[p].Worsen(in.now, in.config.Fleet.Health.HoldHalfLife))
	}
	if was.Rung != d.Rung && l.changed != nil {
		l.changed(was, d)
	}
	l.last[p] = d
}

func (l *loop) setFlaps(p netip.Prefix, f edge.Flaps) {
	l.flaps[p], l.flapped = f, true
}

func (l *loop) rung(prefix edge.Prefix, in inputs) edge.Decision {
	return edge.Decide(prefix.Net, l.facts(prefix, in))
}

// facts are all that the decision about one prefix depends on.
func (l *loop) facts(prefix edge.Prefix, in inputs) edge.Facts {
	p, fleet := prefix.Net, &in.config.Fleet
	here, elsewhere := prefix.AnnouncedAt(in.config.Self().Site)
	notReady := in.notReady
	if notReady == "" && in.unserved != nil {
		notReady = in.unserved(p)
	}
	worse := edge.Worse{}
	if last := l.last[p]; in.worse != nil && last.Rung == edge.Withdrawn && !l.onAir[p] {
		worse = in.worse(p, last.Severity)
	}
	return edge.Facts{
		Now: in.now, Last: l.last[p], Settled: in.settled,
		OnAir: l.onAir[p], SentDegraded: l.sentDegraded[p],
		Condition: l.conditions[p], Drain: in.drain(p),
		Permit: l.guard.Permit(p), NotReady: notReady, Worse: worse,
		Floor: prefix.MinSites, Others: in.others(p),
		Hold:      l.flaps[p].Hold(fleet.Health),
		TooOften:  l.flaps[p].TooOften(in.now, fleet.Guard.MaxCycles),
		Restless:  l.flaps[p].Restless(in.now, fleet.Guard.MaxCycles),
		DrainTime: fleet.Guard.DrainTime, SickDrainTime: fleet.Guard.SickDrainTime, Quiet: in.quiet != nil && in.quiet(p),
		WhenFull: prefix.WhenFull, Unconditional: here, Elsewhere: elsewhere,
	}
}

// read asks edgebgp what it holds.
func (l *loop) read(ctx context.Context) error {
	at := time.Now()
	st, err := l.speaker.State(ctx)
	if err != nil {
		return err
	}
	l.state, l.stateAt = st, at
	return nil
}

// withdraw takes p off the air and reads back that no peer holds it. It runs
// under the guard's permit and ends with it, or sooner: while it waits nobody
// renews the lease of the other prefixes.
func (l *loop) withdraw(ctx context.Context, p netip.Prefix, in inputs) error {
	ctx, cancel := context.WithTimeout(ctx, in.config.Local.Speaker.Lease/2)
	defer cancel()
	until, _ := ctx.Deadline()
	l.onAir[p] = false
	err := l.send(ctx, in, edge.Withdrawal{Net: p, Until: until, UntilBoot: onBootClock(until)})
	for err == nil && l.state.Holders(p) > 0 {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(20 * time.Millisecond):
			err = l.read(ctx)
		}
	}
	if err != nil {
		// It is not known to be gone, so it stays: the next intent says so.
		l.onAir[p], l.stuck[p] = true, in.now
		return fmt.Errorf("withdraw %s: %w", p, err)
	}
	return nil
}

// onBootClock is t by CLOCK_BOOTTIME, which is the same for edgebgp; 0 if it cannot be
// read, which leaves the wall clock.
func onBootClock(t time.Time) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano()) + time.Until(t)
}

// announce tells edgebgp, if anything is new or the lease is to be renewed.
func (l *loop) announce(ctx context.Context, in inputs) {
	intent := l.intent(in)
	if sameIntent(intent, l.sent) && in.now.Sub(l.sentAt) < renew && l.speakerErr == nil {
		return
	}
	l.speakerErr = l.send(ctx, in)
}

func (l *loop) send(ctx context.Context, in inputs, leave ...edge.Withdrawal) error {
	intent, at := l.intent(in), time.Now()
	intent.Withdraw = leave
	st, err := l.speaker.Set(ctx, intent)
	if err != nil {
		if refused(err) && l.state.Speaker != nil {
			l.bgp = *l.state.Speaker // what is in force: settings looks again
		}
		return fmt.Errorf("tell edgebgp: %w", err)
	}
	l.state, l.stateAt, l.sent, l.sentAt = st, at, intent, in.now
	return nil
}

// intent is all that edgebgp shall do. A prefix of an earlier configuration
// that has not been permitted to leave is still in in.config: see carryOver.
func (l *loop) intent(in inputs) edge.Intent {
	out := edge.Intent{Generation: in.generation, Speaker: l.bgp, Announcements: []edge.Announcement{}}
	out.Speaker.Own = ownPrefixes(in.config)
	self := in.config.Self()
	out.Speaker.Resting = in.resting && !slices.ContainsFunc(in.config.Fleet.Prefixes, func(p edge.Prefix) bool { return l.onAir[p.Net] })
	for _, p := range in.config.Fleet.Prefixes {
		if !l.onAir[p.Net] {
			continue
		}
		d := l.last[p.Net]
		more, why := edge.Preferred(in.now, in.prefers, self.Site, p.Net)
		if d.Reason == "" {
			d.Reason = why
		}
		out.Announcements = append(out.Announcements, edge.Announcement{
			Net: p.Net, NextHop: self.Addr(p.Net.Addr()), Normal: p.Announce, Degraded: p.Degraded, More: more,
			Degrade: d.Rung != edge.Announced, Shutdown: d.Severity > 0 || !in.settled && l.sentShutdown[p.Net],
			Reason: d.Reason,
		})
	}
	return out
}

// ownPrefixes are all that this node may announce: those of the file, and those
// that it has dropped and that have not left yet.
func ownPrefixes(c *edge.Config) []netip.Prefix {
	out := make([]netip.Prefix, len(c.Fleet.Prefixes))
	for i, p := range c.Fleet.Prefixes {
		out[i] = p.Net
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

func sameIntent(a, b edge.Intent) bool {
	return a.Generation == b.Generation && reflect.DeepEqual(a.Speaker, b.Speaker) && reflect.DeepEqual(a.Announcements, b.Announcements)
}

// claims are what this node says of itself to the fleet. Announcing is what
// the peers really hold, not what was intended.
func (l *loop) claims(c *edge.Config) []edge.Claim {
	var out []edge.Claim
	fresh := time.Since(l.stateAt) < readBackLimit
	for _, p := range c.Fleet.Prefixes {
		d := l.last[p.Net]
		out = append(out, edge.Claim{
			Prefix: p.Net, Announcing: fresh && l.state.Holders(p.Net) > 0, Rung: d.Rung,
			Health: l.conditions[p.Net].Health, Since: d.Since, Reason: d.Reason,
			Severity: d.Severity, Blocked: d.Rung.WantsOut() && !l.guard.Permit(p.Net).BlockedSince.IsZero(),
		})
	}
	return out
}

// offSince is how long p has been off the air; 0: it is on it.
func (l *loop) offSince(p netip.Prefix, now time.Time) time.Duration {
	if d := l.last[p]; d.Rung == edge.Withdrawn || d.Rung == edge.Withheld {
		return max(0, now.Sub(d.Since))
	}
	return 0
}

func (l *loop) decisions() []edge.Decision {
	return slices.SortedFunc(maps.Values(l.last), func(a, b edge.Decision) int { return a.Prefix.Compare(b.Prefix) })
}

// forget drops what concerns prefixes that are configured no more.
func (l *loop) forget(c *edge.Config) {
	gone := func(p netip.Prefix) bool {
		return !slices.ContainsFunc(c.Fleet.Prefixes, func(o edge.Prefix) bool { return o.Net == p })
	}
	for p := range l.last {
		if gone(p) {
			delete(l.last, p)
			delete(l.onAir, p)
			delete(l.sentDegraded, p)
			delete(l.sentShutdown, p)
			delete(l.stuck, p)
		}
	}
	// A prefix that is taken out and put back is no way around the limit.
	for p, f := range l.flaps {
		if gone(p) && time.Since(f.At) > 24*time.Hour {
			delete(l.flaps, p)
		}
	}
}

// errBusy is the answer to a command that the loop did not take in time.
var errBusy = errors.New("edged is busy; the order may still be carried out: see edgectl status")
