package promise

import (
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// What is looked at after each step, and not at a withdrawal alone.

// stayed is a withdrawal that has been: the boxes that it counted on must stay until
// it has given their promises back, or these have run out.
type stayed struct {
	net   int
	by    edge.NodeID
	round Round
	boxes uint32
	until [maxNodes]time.Time // on their own clocks
}

// stands says whether x has promised b to stay in the round of o, b has heard it, and
// x does: or would, but for a fault.
func (w *world) stands(b, x *box, net int, o *order) bool {
	s := &x.spots[net]
	p := &s.owes[b.n]
	return p.round == o.round && x.clock(w.now).Before(p.until) && b.spots[net].got[x.n] == o.round && (s.onAir || w.now < s.excused)
}

// count takes down on whom a withdrawal counts that takes effect now.
func (w *world) count(b *box, net int, o *order) {
	r := stayed{net: net, by: b.id, round: o.round}
	for _, x := range w.boxes {
		if w.stands(b, x, net, o) {
			r.boxes |= 1 << x.n
			r.until[x.n] = x.spots[net].owes[b.n].until
		}
	}
	w.stays = append(w.stays, r)
}

// released: a promise is given back, by its round or by a later one, which is not
// opened before all is over with it.
func (w *world) released(m *Message) {
	for i := range w.stays {
		if r := &w.stays[i]; r.by == m.From && simNets[r.net] == m.Prefix && !r.round.After(m.Round) {
			r.boxes &^= 1 << numberOf(m.To)
		}
	}
}

// audit is made after each step.
//
//go:norace
func (w *world) audit() {
	for _, b := range w.boxes {
		for net := range b.spots {
			s := &b.spots[net]
			if s.was && !s.onAir && s.letGo != w.steps {
				w.fail("k", "%s has lost %s, and nobody has withdrawn it", b.id, simNets[net])
			}
			s.was = s.onAir
		}
	}
	for i := 0; i < len(w.stays); i++ {
		if w.auditStay(&w.stays[i]); w.stays[i].boxes == 0 {
			w.stays[i] = w.stays[len(w.stays)-1]
			w.stays = w.stays[:len(w.stays)-1]
			i--
		}
	}
}

//go:norace
func (w *world) auditStay(r *stayed) {
	for n, x := range w.boxes {
		s := &x.spots[r.net]
		switch {
		case !bit(r.boxes, n):
		case !x.clock(w.now).Before(r.until[n]):
			r.boxes &^= 1 << n
		case !s.onAir && w.now >= s.excused:
			w.fail("s", "%s has left %s, on which %s counts, that has left it before", x.id, simNets[r.net], r.by)
		}
	}
}

// reach finds out which ways are shut, after a change of the network.
func (w *world) reach() {
	for from := range w.Nodes {
		for to := range w.Nodes {
			shut := w.cut != 0 && w.parts[from] != w.parts[to] || bit(w.deaf[to], from)
			switch at := &w.shut[from][to]; {
			case !shut || w.now == 0 && w.steps == 0:
				*at = -1
			case *at < 0:
				*at = w.now
			}
		}
	}
}

// isolated says whether, since before the question of o, no node of another site
// could both hear b and be heard.
func (w *world) isolated(b *box, own int, c *conf, o *order) bool {
	since := func(at time.Duration) bool { return at >= 0 && at < o.at }
	for n := range w.Nodes {
		if site := w.siteOf(c, n); n != b.n && site >= 0 && site != own && !since(w.shut[b.n][n]) && !since(w.shut[n][b.n]) {
			return false
		}
	}
	return true
}

// ladder has the decision made that edged makes of the health and the permit: who is
// on the air stays there, who is sick is degraded at once, who is well comes back.
func (w *world) ladder(b *box, net int) {
	s := &b.spots[net]
	now := b.clock(w.now)
	f := edge.Facts{
		Now: now, Last: s.last, Settled: true, OnAir: s.onAir, Condition: edge.Condition{Health: edge.Healthy, Since: simStart},
		Permit: b.node.Permit(now, simNets[net]), Floor: s.floor, Others: maxSites,
	}
	if s.want != 0 {
		switch {
		case s.wish.Unfit:
			f.Condition.Health = edge.HealthDegraded
		case s.wish.Severity == edge.SeverityDrain:
			f.Drain = &edge.Drain{Reason: "drained"}
		default:
			f.Condition.Health, f.Condition.Severity = edge.Sick, s.wish.Severity
		}
	}
	s.last = edge.Decide(simNets[net], f)
	rung := s.last.Rung
	switch {
	case s.onAir && !rung.OnAir():
		w.fail("k", "%s is to have %s %s, which is on the air", b.id, simNets[net], rung)
	case s.onAir && s.want != 0 && rung == edge.Announced, s.onAir && s.wish.Want && !rung.WantsOut():
		w.fail("k", "%s is to have %s %s, and cannot serve it", b.id, simNets[net], rung)
	case !s.onAir && s.want == 0 && !rung.OnAir():
		w.fail("r", "%s is to have %s %s, and is well", b.id, simNets[net], rung)
	}
}

// raise has the box hear of an earlier process of its own: not always the last, as
// long as the network is bad.
func (w *world) raise(b *box) {
	heard := slices.Max(b.boots)
	if !w.calm {
		heard = b.boots[w.rng.IntN(len(b.boots))]
	}
	if heard < b.node.boot || heard == b.node.boot && !w.calm {
		return
	}
	to := heard + 1
	if w.bug != sameRounds {
		to += w.rng.Int64N(1 << 27)
	}
	b.node.RaiseBoot(to)
	w.meet(wallBack)
	if slices.ContainsFunc(b.boots, func(boot int64) bool { return boot > heard && boot-heard < 1<<28 }) {
		w.meet(bootTwice)
	}
	b.boots = append(b.boots, to)
}

// comeBack announces a prefix again, and finds that nothing is in the way.
func (w *world) comeBack(b *box, net int) {
	s := &b.spots[net]
	w.ladder(b, net)
	w.announce(b, net)
	if s.want == 0 && !s.onAir && !s.leaving {
		w.fail("r", "%s may not announce %s again", b.id, simNets[net])
	}
}
