package promise

import (
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// What must never be, by the letters:
//
//	a  a site leaves, and fewer than K others stay
//	b  a node leaves without the promises that it needs, of its current round
//	c  a node leaves that has promised to stay, also after a restart
//	s  a site has left, and within the lease one leaves that was to stay for it
//	d  an isolated site leaves
//	e  a side of a partition falls below K by a round of its own
//	f  who does not want out has a permit, or leaves; who announces again is not believed
//	k  a prefix that is degraded is taken off the air, or one that is sick is not degraded at once
//	r  who is well is kept off the air
//	g  the terms of the policy do not hold at a withdrawal
//	j  a promise that its sender cannot give: it has left, or is about to
//	o  an order is promised for while somebody leaves for sickness
//	l  who may leave never gets to it

// sites is how sites stay, by number.
type sites struct{ in, well [maxSites]bool }

// checkLeave is what must be true while a node leaves: at the decision, and when
// the routers lose the route.
func (w *world) checkLeave(b *box, net int, o *order) {
	c, was := &w.Confs[o.now.conf], &w.Confs[o.needs.conf]
	own := w.siteOf(c, b.n)
	var promised sites
	for _, x := range w.boxes {
		if p := &x.spots[net].owes[b.n]; w.stands(b, x, net, o) {
			// A node that has changed its site is not counted for either.
			if site := w.siteOf(c, x.n); site >= 0 && site == w.siteOf(was, x.n) {
				promised.in[site] = true
				promised.well[site] = promised.well[site] || p.well
			}
		}
		if p := &b.spots[net].owes[x.n]; b.clock(w.now).Before(p.until) {
			w.fail("c", "%s leaves %s, though bound to %s", b.id, simNets[net], x.id)
		}
	}
	if own >= 0 && promised.in[own] {
		w.meet(bySibling)
		return // a node of the same site stays: the site does
	}
	w.checkAtATime(b, net, o)
	for _, n := range [2]need{o.needs, o.now} {
		if got := promised.count(own); got < n.floor {
			w.fail("b", "%s leaves %s with %d live promises of other sites, floor %d", b.id, simNets[net], got, n.floor)
		} else if lack := w.lacks(n, &promised, own, w.now == o.begun); lack != "" {
			w.fail("g", "%s leaves %s: %s", b.id, simNets[net], lack)
		}
	}
}

func (s *sites) count(but int) (n int) {
	for i, in := range s.in {
		if in && i != but {
			n++
		}
	}
	return n
}

// lacks is what the terms want and those that stay are not; it is not made of
// the code that it checks.
func (w *world) lacks(n need, stay *sites, own int, demand bool) string {
	c := &w.Confs[n.conf]
	if n.floor == 0 {
		return ""
	}
	count, well, region, capacity := 0, 0, 0, 0.0
	for i := range w.Sites {
		if !stay.in[i] || i == own {
			continue
		}
		count++
		capacity += capacityOf(i)
		if inRegion(i) {
			region++
		}
		if stay.well[i] {
			well++
		}
	}
	total := map[int]bool{}
	for i := range w.Nodes {
		if site := w.siteOf(c, i); site >= 0 {
			total[site] = true
		}
	}
	switch {
	case count < n.floor+c.Spare:
		return "not the floor and the spare"
	case float64(count) < c.Fraction*float64(len(total))-1e-6:
		return "not the share of the roster"
	case well < c.Healthy:
		return "too few that are healthy"
	case capacity < c.Capacity:
		return "too little capacity"
	case region < c.Region:
		return "too few of the region"
	case demand && c.Demand && (!w.loadKnown || capacity < w.load):
		return "not the demand"
	}
	return ""
}

// checkGone is the promise of the product, at the instant at which the routers
// lose the route: counted by what is announced there, not by what was promised.
// Who is dark or dead by a fault counts as one that stays.
func (w *world) checkGone(b *box, net int, o *order) {
	c := &w.Confs[o.now.conf]
	own := w.siteOf(c, b.n)
	var all, side sites
	for _, x := range w.boxes {
		s := &x.spots[net]
		site := w.siteOf(c, x.n)
		if x == b || site < 0 || !s.onAir && w.now >= s.excused {
			continue
		}
		all.in[site] = true
		if w.parts[x.n] == w.parts[b.n] {
			side.in[site] = true
		}
	}
	floor := max(o.needs.floor, o.now.floor)
	if n := all.count(own); n < floor && (own < 0 || !all.in[own]) { // if it is, the site stays
		w.fail("a", "%s leaves %s and only %d other sites stay, floor %d", b.id, simNets[net], n, floor)
	}
	if floor == 0 || own >= 0 && all.in[own] {
		return
	}
	if w.isolated(b, own, c, o) {
		w.fail("d", "%s leaves %s, cut off from all other sites since before it asked", b.id, simNets[net])
	}
	if w.cut == 0 || o.at <= w.cutAt {
		return
	}
	w.meet(leftInPart)
	if n := side.count(own); n < floor {
		w.fail("e", "%s leaves %s, and in its part of the cut %d other sites stay, floor %d", b.id, simNets[net], n, floor)
	}
}

// inForce is how long the routers may take until a route that they were sent is in
// force.
const inForce = time.Second

// checkPromise is what must be true of a node that promises to stay.
func (w *world) checkPromise(b *box, m *Message) {
	net := netOf(m.Prefix)
	s := &b.spots[net]
	switch {
	case s.leaving:
		w.fail("j", "%s promises %s to stay with %s, and is leaving", b.id, m.To, m.Prefix)
	case !w.announces(b, net) && w.now-s.lostAt > stale:
		w.fail("j", "%s promises %s to stay with %s, and does not announce it", b.id, m.To, m.Prefix)
	case !s.onAir:
		w.fail("j", "%s promises %s to stay with %s, and has left it", b.id, m.To, m.Prefix)
	case w.now-s.backAt < inForce: // not after a session that was lost for so short that nobody saw it
		w.fail("j", "%s promises %s to stay with %s, which its routers have not in force yet", b.id, m.To, m.Prefix)
	case m.Well && !s.wish.Well:
		w.fail("j", "%s promises %s to stay with %s in good health, and is not", b.id, m.To, m.Prefix)
	}
}

// checkOrders: as far as this process knows, nobody who asks by an order goes
// while another site leaves for sickness, and not more at a time than may.
func (w *world) checkOrders(b *box, m *Message) {
	if !w.planned() {
		return
	}
	c := &w.Confs[b.conf]
	site := w.siteOf(c, numberOf(m.To))
	orders := sites{}
	for net := range b.spots {
		for x := range w.Nodes {
			p := &b.spots[net].owes[x]
			if p.life != b.life || !b.clock(w.now).Before(p.until) || w.siteOf(c, x) == site {
				continue
			}
			if other := w.siteOf(c, x); other >= 0 {
				orders.in[other] = true
			}
			if !p.planned {
				w.fail("o", "%s promises %s, that asks by an order, while it is bound to %s, that is sick", b.id, m.To, simIDs[x])
			}
		}
	}
	if n := orders.count(-1); c.Planned > 0 && n >= c.Planned {
		w.fail("o", "%s promises %s, that asks by an order, while it is bound to %d sites that do", b.id, m.To, n)
	}
}

// checkAtATime: where everybody is heard, nobody leaves by an order while a permit
// for sickness is open that was so before the order was asked for, and no more sites
// at a time than may.
func (w *world) checkAtATime(b *box, net int, o *order) {
	c := &w.Confs[b.conf]
	if w.now != o.begun || !o.planned || b.spots[net].wish.Severity > edge.SeverityDrain { // it has fallen sick since it asked
		return
	}
	for net := range b.spots {
		for x, p := range b.spots[net].owes {
			if p.life == b.life && !p.planned && b.clock(w.now).Before(p.until) && w.siteOf(c, x) != w.siteOf(c, b.n) {
				w.fail("o", "%s leaves by an order, and has promised %s to stay, which is sick", b.id, simIDs[x])
			}
		}
	}
	if !w.clean() {
		return
	}
	var leaving sites
	for _, x := range w.boxes {
		for net := range x.spots {
			seat := x.node.seats[simNets[net]]
			r := seat.round
			switch {
			case r != nil && seat.granted && len(r.asked) > 0 && x.node.tally(x.clock(w.now), seat).ok:
			case seat.failed != nil && len(seat.failed.asked) > 0:
				r = seat.failed
			default:
				continue
			}
			if r.order() {
				leaving.in[w.siteOf(c, x.n)] = true
			} else if g := &x.spots[net].grants; w.siteOf(c, x.n) != w.siteOf(c, b.n) && g.round == r.id && g.at < o.at {
				w.fail("o", "%s leaves by an order, and %s has a permit for sickness", b.id, x.id)
			}
		}
	}
	if n := leaving.count(-1); c.Planned > 0 && n > c.Planned {
		w.fail("o", "%d sites leave by an order, and %d may at a time", n, c.Planned)
	}
}

// clean says whether every question is answered in time.
func (p *plan) clean() bool {
	return p.Loss == 0 && p.Twice == 0 && p.Late == 0 && len(p.Confs) == 1 && 2*p.DelayMax < p.Confs[0].Ask &&
		!slices.ContainsFunc(p.Faults, func(f fault) bool {
			return f.Kind != faultSick && f.Kind != faultDrain && f.Kind != faultUnfit && f.Kind != faultDemand
		})
}

// checkLiveness: long after all faults but sickness are over, whoever could leave
// has done so.
func (w *world) checkLiveness() {
	last := len(w.Confs) - 1
	c := &w.Confs[last]
	patience := 14_000_000_000 + 2*w.longestLease()
	stuck := false
	for _, severity := range []int{edge.SeveritySick, edge.SeverityDrain} {
		for net := range w.Nets {
			for _, b := range w.boxes {
				s := &b.spots[net]
				own := w.siteOf(c, b.n)
				if !s.wish.Want || !s.onAir || s.wish.Severity != severity || own < 0 || bit(c.NoNet, net) {
					continue
				}
				stuck = true
				if w.For-max(s.since, w.Calm) < patience {
					continue
				}
				if w.couldLeave(b, net, own, last) {
					w.fail("l", "%s may leave %s and has not got to it", b.id, simNets[net])
				}
			}
		}
		if stuck {
			return // orders wait for sickness
		}
	}
}

// couldLeave says whether those who want nothing are enough to let b go.
func (w *world) couldLeave(b *box, net, own, conf int) bool {
	var stay sites
	for _, x := range w.boxes {
		s := &x.spots[net]
		if site := w.siteOf(&w.Confs[conf], x.n); site >= 0 && s.onAir && !s.wish.Want && !s.wish.Unfit && w.now >= s.shy {
			stay.in[site], stay.well[site] = true, true
		}
	}
	return stay.in[own] || stay.count(own) >= w.Confs[conf].Floor && w.lacks(need{w.Confs[conf].Floor, conf}, &stay, own, true) == ""
}
