package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/catchment-dev/edge"
)

// rest is the last step of a drain: the VIPs of a prefix that has been withdrawn by
// an operator's order are taken off this box, once nothing comes for them any
// more. The way back is the other way round: the VIPs first, then the probes,
// then the announcement.
type rest struct {
	// since is since when each prefix is drained and off the air without a break.
	since map[netip.Prefix]time.Time
	// resting are the prefixes that are not served, and since when.
	resting map[netip.Prefix]time.Time
	// woken are those that are served again, and since when, until their VIPs have
	// answered.
	woken map[netip.Prefix]time.Time
	// serves says why a prefix is served still that is drained and withdrawn.
	serves map[netip.Prefix]edge.Reason
	// err is why those that are to be served again are not.
	err error
	// layoutIs is made of the configuration layoutOf: see layout.
	layoutOf *edge.Config
	layoutIs layout
	// recalled says that what an earlier process knew of departures was read, and
	// told what is on its way to the disk: see departures.
	recalled bool
	told     []keptDeparture
}

// followRest begins and ends the rest of each prefix. It comes before the tables are
// applied.
func (d *daemon) followRest(now time.Time, members []edge.MemberState) {
	r := &d.rest
	if r.resting == nil {
		r.resting, r.woken = map[netip.Prefix]time.Time{}, map[netip.Prefix]time.Time{}
	}
	r.serves = map[netip.Prefix]edge.Reason{}
	var lies, wakes []netip.Prefix
	maps.DeleteFunc(r.woken, func(p netip.Prefix, _ time.Time) bool { return d.loop.onAir[p] })
	d.noteDrained(now)
	for _, p := range d.config().Fleet.Prefixes {
		_, resting := r.resting[p.Net]
		_, drained := r.since[p.Net]
		switch {
		case resting && (!drained || d.attracted(p.Net) != ""):
			wakes = append(wakes, p.Net)
		case !resting && drained && len(d.servicesOf(p.Net)) > 0:
			if why := d.mustServe(p.Net, now, members); why != "" {
				r.serves[p.Net] = why
			} else {
				lies = append(lies, p.Net)
			}
		}
	}
	for p := range r.resting {
		if !has(d.config().Fleet.Prefixes, p) {
			delete(r.resting, p)
		}
	}
	if len(lies) > 0 {
		d.lie(now, lies)
	}
	if len(wakes) > 0 {
		d.wake(now, wakes)
	}
	if len(d.drains.all()) > 0 || len(r.resting) > 0 || len(*d.off.Load()) > 0 {
		d.offDuty()
	}
}

// noteDrained notes since when each prefix is drained and off the air. An undrain
// in between counts as a new beginning: the other nodes may have sent packets.
func (d *daemon) noteDrained(now time.Time) {
	since := map[netip.Prefix]time.Time{}
	for _, p := range d.config().Fleet.Prefixes {
		if !d.resting(p.Net) {
			continue
		}
		since[p.Net] = now
		if at, ok := d.rest.since[p.Net]; ok {
			since[p.Net] = at
		}
	}
	d.rest.since = since
}

// resting says whether an operator's order has taken p off the air.
func (d *daemon) resting(p netip.Prefix) bool {
	if !d.loop.adopted || has(d.leaving.prefixes, p) || d.drainOf(p) == nil {
		return false
	}
	rung := d.loop.last[p].Rung
	return rung == edge.Withdrawn || rung == edge.Withheld
}

// mustServe says why a prefix that is drained and withdrawn is to be served still;
// empty: it need not be.
func (d *daemon) mustServe(p netip.Prefix, now time.Time, members []edge.MemberState) edge.Reason {
	if d.goneFor(p, now) < settleTime {
		return edge.Reason(fmt.Sprintf("it has been off the air for less than %s", settleTime))
	}
	if why := d.attracted(p); why != "" {
		return why
	}
	if !d.meter.still(p, now) {
		return "packets still come for it"
	}
	if len(d.layout().local[p]) > 0 {
		return d.used(p, now, members)
	}
	return ""
}

// goneFor is how long p is off the air, and drained if it is.
func (d *daemon) goneFor(p netip.Prefix, now time.Time) time.Duration {
	off := d.loop.offSince(p, now)
	if at, ok := d.rest.since[p]; ok {
		off = min(off, now.Sub(at))
	}
	return off
}

// attracted says which prefix around p attracts packets to its VIPs, or may in a
// moment: one that comes on the air must find them served.
func (d *daemon) attracted(p netip.Prefix) edge.Reason {
	for _, o := range d.layout().around[p] {
		_, elsewhere := o.AnnouncedAt(d.config().Self().Site)
		if d.loop.onAir[o.Net] || elsewhere == "" && d.drainOf(o.Net) == nil {
			return edge.Reason(fmt.Sprintf("%s, which attracts its packets too, is not drained", o.Net))
		}
	}
	return ""
}

// used says which other nodes may still send packets of p here. What one has said
// before p left counts for nothing: it may be of an earlier drain.
func (d *daemon) used(p netip.Prefix, now time.Time, members []edge.MemberState) edge.Reason {
	self, gone := d.config().Self(), d.goneFor(p, now)
	var who []string
	for _, m := range members {
		if m.Site != self.Site && !d.layout().shared[p] {
			continue
		}
		// A node that has not got the prefix has no table for it.
		knows := slices.ContainsFunc(m.Report.Says, func(c edge.Claim) bool { return c.Prefix == p })
		spares := m.Age <= gone && slices.Contains(m.Report.Spared, edge.Spared{Node: self.ID, Prefix: p})
		if m.Age < 0 || knows && !spares {
			who = append(who, string(m.Node))
		}
	}
	if len(who) == 0 {
		return ""
	}
	return edge.Reason(fmt.Sprintf("%s may still send packets here, which ends with the drain_timeout of its services", strings.Join(who, ", ")))
}

// lie stops serving: the addresses go now, the tables with the turn that this is
// part of. Nothing comes that could tell the difference.
func (d *daemon) lie(now time.Time, prefixes []netip.Prefix) {
	before := d.served(d.config())
	for _, p := range prefixes {
		d.rest.resting[p] = now
		delete(d.rest.woken, p)
		d.noteOrder("drain", p.String(), "served", "unserved", "it is drained, and nothing comes for it any more")
	}
	d.hostErr = tidyHost(before, d.served(d.config()), d.guards()...)
}

// wake serves again. A prefix whose addresses are not there goes on resting: it
// is tried again with the next turn.
func (d *daemon) wake(now time.Time, prefixes []netip.Prefix) {
	var errs []error
	for _, p := range prefixes {
		if err := d.addVIPs(p); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(d.rest.resting, p)
		d.rest.woken[p] = now
		d.noteOrder("drain", p.String(), "unserved", "served", "it is drained no more, or attracted by another prefix")
	}
	d.rest.err = errors.Join(errs...)
	_ = filter(d.served(d.config()), d.guards()) // apply tries again, and tells
}

// addVIPs puts what lie has taken away back on lo. Nothing else is touched: an
// uplink that is missing is no reason not to serve by the others.
func (d *daemon) addVIPs(p netip.Prefix) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	var errs []error
	for _, s := range d.layout().local[p] {
		errs = append(errs, addAddress(lo, s.VIP.Addr()))
	}
	return errors.Join(errs...)
}

// served is c without the services that rest.
func (d *daemon) served(c *edge.Config) *edge.Config {
	if len(d.rest.resting) == 0 {
		return c
	}
	out := *c
	out.Fleet.Services = slices.DeleteFunc(slices.Clone(c.Fleet.Services), func(s edge.Service) bool {
		p, _ := c.Fleet.PrefixOf(s.VIP.Addr())
		_, resting := d.rest.resting[p.Net]
		return resting
	})
	return &out
}

// unserved says why p cannot be announced again yet: the VIPs that it attracts
// packets to are put back first, and each probe of one of them has to judge anew.
func (d *daemon) unserved(statuses []edge.Status) func(netip.Prefix) edge.Reason {
	inTable := d.inTable()
	return func(p netip.Prefix) edge.Reason {
		for _, o := range d.layout().within[p] {
			if why := d.notServed(o, inTable, statuses); why != "" {
				return why
			}
		}
		return ""
	}
}

func (d *daemon) notServed(p netip.Prefix, inTable func(netip.Prefix) bool, statuses []edge.Status) edge.Reason {
	if _, resting := d.rest.resting[p]; resting {
		return edge.Reason(fmt.Sprintf("the VIPs of %s are not served yet: %v", p, cmp.Or(d.rest.err, errResting)))
	}
	if !inTable(p) {
		return edge.Reason(fmt.Sprintf("the forwarder has not got the services of %s yet", p))
	}
	since, woken := d.rest.woken[p]
	if !woken {
		return ""
	}
	for _, s := range d.servicesOf(p) {
		for _, pr := range d.config().Fleet.Health.Probes {
			if pr.Kind == edge.ProbeVIP && pr.Service == s.ID && !judged(statuses, pr.ID, since) {
				return edge.Reason(fmt.Sprintf("the VIPs of %s are served again since %s, and %s has not passed since", p, since.UTC().Format(time.TimeOnly), pr.ID))
			}
		}
	}
	return ""
}

var errResting = errors.New("it was drained a moment ago")

// judged says whether the last run of a probe was after since, and good. One that
// is down and has failed since is a matter of the needs: if it is a soft one, the
// prefix was announced before the drain with it.
func judged(statuses []edge.Status, id edge.ProbeID, since time.Time) bool {
	return slices.ContainsFunc(statuses, func(s edge.Status) bool {
		good := s.State.Alive() && s.LastErrAt.Before(s.LastRun)
		return s.Probe == id && s.LastRun.After(since) && (good || s.State == edge.Down)
	})
}

// offDuty tells the probes which services are not served.
func (d *daemon) offDuty() {
	off, inTable := map[edge.ServiceID]bool{}, d.inTable()
	for _, s := range d.config().Fleet.Services {
		p, _ := d.config().Fleet.PrefixOf(s.VIP.Addr())
		_, resting := d.rest.resting[p.Net]
		_, drained := d.rest.since[p.Net]
		_, woken := d.rest.woken[p.Net] // its table comes with this turn
		if resting || drained && d.attracted(p.Net) == "" || woken && !inTable(p.Net) {
			off[s.ID] = true
		}
	}
	d.off.Store(&off)
}

// standing are the decisions as an operator reads them: of a prefix that is
// drained and withdrawn they say whether it is served still, and why.
func (d *daemon) standing() []edge.Decision {
	out := d.loop.decisions()
	for i := range out {
		dec := &out[i]
		_, resting := d.rest.resting[dec.Prefix]
		dec.Unserved = resting || !dec.Rung.OnAir() && len(d.servicesOf(dec.Prefix)) == 0
		if resting {
			dec.Reason += "; its VIPs are not served any more"
		} else if why := d.rest.serves[dec.Prefix]; why != "" {
			dec.Reason += "; its VIPs are still served: " + why
		}
	}
	return out
}

// claims are what this node says of each prefix.
func (d *daemon) claims() []edge.Claim {
	out, inTable := d.loop.claims(d.config()), d.inTable()
	for i := range out {
		c := &out[i]
		_, resting := d.rest.resting[c.Prefix]
		c.Unserved, c.Drained = resting || !inTable(c.Prefix), d.drainOf(c.Prefix) != nil
	}
	return out
}

// inTable says whether the forwarder has any of the services of a prefix that are
// served here. After a restart it has those of the process before, which may have
// rested; if it cannot be read, nothing is said against it.
func (d *daemon) inTable() func(netip.Prefix) bool {
	in, known := map[edge.ServiceID]bool{}, true
	for _, s := range d.applied.Services {
		in[s.ID] = true
	}
	if len(d.applied.Trusted) == 0 { // none has been applied by this process
		st, err := d.fwd.Stats()
		known = err == nil
		for _, s := range st.Services {
			in[s.Service] = true
		}
	}
	return func(p netip.Prefix) bool {
		local := d.layout().local[p]
		return !known || len(local) == 0 || slices.ContainsFunc(local, func(s edge.Service) bool { return in[s.ID] })
	}
}
