package promise

import (
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// start gives the box a fresh process: it knows nothing of the one before but
// what is on its disk.
func (w *world) start(b *box) {
	if b.node != nil {
		return
	}
	first := b.life == 0
	b.life++
	if w.siteOf(&w.Confs[b.file], b.n) < 0 {
		b.file = b.conf // a configuration without itself: edged does not take it
	}
	now := b.clock(w.now)
	if !first {
		w.meetStart(b, now)
	}
	boot := now.UnixNano() - int64(b.back)
	started := now
	if w.bug == forgets || first {
		started = now.Add(-time.Minute) // the run begins with settled nodes
	}
	b.conf = b.file
	b.lease = max(b.lease, w.Confs[b.conf].Lease)
	n, err := New(w.bug.options(Options{
		Self: b.id, Boot: boot, Started: started, Settings: w.sets[b.conf], LeaseBefore: b.lease, Rand: w.rng,
		Held:   func(p netip.Prefix) bool { return b.spots[netOf(p)].view },
		Sick:   w.knownSick,
		Demand: func() (float64, bool) { return w.load, w.loadKnown },
	}))
	if err != nil {
		panic(err)
	}
	if w.bug != forgetsForce {
		n.Recall(b.forced...)
	}
	b.node, b.seen = n, 0
	for net := range b.spots {
		w.takeOver(b, net)
	}
	b.dead = false
	if len(b.boots) > 0 && slices.Max(b.boots) >= boot { // gossip shows it its own earlier report
		w.after(w.upTo(time.Second), event{kind: evRaise, box: int8(b.n), life: b.life})
	}
	b.boots = append(b.boots, boot)
	if w.trace != nil {
		w.note("%s has a process, with %s", b.id, w.Confs[b.conf].Lease)
	}
	w.nextTick(b)
}

// takeOver is what edged does first: a prefix that is on the air stays, and one
// that is not is announced if nothing is against it.
func (w *world) takeOver(b *box, net int) {
	s := &b.spots[net]
	if b.dead && s.onAir && s.wish.Want {
		s.onAir, s.excused, s.letGo = false, w.now+w.longestLease(), w.steps
	}
	s.view, s.leaving, s.asks, s.last = s.onAir && !b.dark, false, asked{}, edge.Decision{}
	if len(b.forced) > 0 {
		s.shy = w.now + 3*(forceLast+stale)/2
	}
	w.configured(b, net)
	if !s.onAir && !s.wish.Want {
		w.after(w.upTo(time.Second), event{kind: evBack, box: int8(b.n), net: int8(net), life: b.life})
	}
}

//go:norace
func netOf(p netip.Prefix) int {
	for i := range simNets {
		if simNets[i] == p {
			return i
		}
	}
	panic("unknown prefix")
}

// configured notes the floor: of a prefix that is not configured any more the
// last goes on to hold, unless the process is a new one.
func (w *world) configured(b *box, net int) {
	if c := &w.Confs[b.conf]; !bit(c.NoNet, net) {
		b.spots[net].floor = c.Floor
	}
}

// knownSick is what gossip says, a moment later.
func (w *world) knownSick(id edge.NodeID, p netip.Prefix) bool {
	s := &w.boxes[numberOf(id)].spots[netOf(p)]
	return s.want != 0 && s.wish.Want && w.now-s.since > 200*time.Millisecond
}

// tickEvery is how often a process looks at the time, about.
const tickEvery = 100 * time.Millisecond

func (w *world) nextTick(b *box) {
	b.tick++
	in := b.idle(w.now)
	if in > 0 {
		in += w.upTo(tickEvery)
	} else {
		in = tickEvery/2 + w.upTo(tickEvery)
	}
	b.tickAt = w.now + in
	w.after(in, event{kind: evTick, box: int8(b.n), life: b.life, arg: b.tick})
}

// idle is for how long looks at the time come to nothing, unless a message does:
// they are left out, which is what most of the time of a simulation would go to.
//
//go:norace
func (b *box) idle(at time.Duration) time.Duration {
	now := b.clock(at)
	due := now.Add(9 * tickEvery)
	by := func(t time.Time) {
		if t.Before(due) {
			due = t
		}
	}
	if e := b.node.echoes; len(e) > 0 {
		by(e[0].at)
	}
	for net := range b.spots {
		s := b.node.seats[simNets[net]]
		switch {
		case s == nil || s.leaving:
		case s.failed != nil:
			by(s.failed.until)
		case s.round != nil && s.granted:
			return 0
		case s.round != nil:
			by(s.round.opened.Add(b.node.policy.AskTimeout))
			by(s.round.last.Add(b.node.policy.AskTimeout / (repeats + 1)))
			if !s.round.wide {
				by(s.round.opened.Add(min(widenAfter, b.node.policy.AskTimeout/2)))
			}
		case s.wish.Want && len(s.bound) == 0:
			by(s.next)
		}
	}
	return max(0, due.Sub(now))
}

// end takes the process away.
func (b *box) end() {
	b.node = nil
	b.life++
}

// update gives the box another configuration.
func (w *world) update(b *box, conf int) {
	b.file = conf
	if b.node == nil || w.siteOf(&w.Confs[conf], b.n) < 0 {
		return
	}
	b.conf = conf
	b.lease = max(b.lease, w.Confs[conf].Lease)
	out, err := b.node.Update(b.clock(w.now), w.sets[conf])
	if err != nil {
		panic(err)
	}
	for net := range b.spots {
		w.configured(b, net)
		if s := b.node.seats[simNets[net]]; w.bug == floorFollows && s != nil && s.round != nil {
			s.round.terms = terms{}
		}
	}
	w.send(b, out)
	w.act(b)
	w.nextTick(b)
}

// act is what edged does: it tells the wishes, and leaves where it may.
//
//go:norace
func (w *world) act(b *box) {
	now := b.clock(w.now)
	for net := range b.spots {
		s := &b.spots[net]
		wish := s.wish
		wish.Want = wish.Want && s.view
		if seat := b.node.seats[simNets[net]]; w.bug == wishesOn && seat != nil && seat.wish.Want && !wish.Want {
			wish = seat.wish
		}
		w.send(b, b.node.Wish(now, simNets[net], wish))
		seat := b.node.seats[simNets[net]]
		if seat == nil {
			continue
		}
		if seat.granted && s.grants.round != seat.round.id {
			s.grants = asked{round: seat.round.id, at: w.now}
		}
		w.spoil(b, seat)
		if s.leaving {
			continue
		}
		if !seat.wish.Want { // whoever does not want out is not let out
			if w.steps%16 == 0 && b.node.Permit(now, simNets[net]).OK {
				w.fail("f", "%s has a permit for %s and no wish to leave", b.id, simNets[net])
			}
			continue
		}
		if seat.round != nil && (seat.granted || w.bug != none) && b.node.Permit(now, simNets[net]).OK {
			w.withdraw(b, net)
		}
	}
}

// withdraw gives the speaker the order: it takes effect a little later, and never
// after its deadline; its answer may be an error all the same.
func (w *world) withdraw(b *box, net int) {
	s, seat := &b.spots[net], b.node.seats[simNets[net]]
	until, err := b.node.Begin(b.clock(w.now), simNets[net])
	if err != nil {
		w.fail("f", "%s has a permit for %s that is none: %v", b.id, simNets[net], err)
		return
	}
	if s.asks.round != seat.round.id && s.floor == 0 { // it has asked nobody
		s.asks = asked{round: seat.round.id, at: w.now, needs: need{0, b.conf}}
	}
	if s.asks.round != seat.round.id {
		w.fail("b", "%s leaves %s by round %v, and has asked in %v", b.id, simNets[net], seat.round.id, s.asks.round)
		return
	}
	if !s.asks.planned && s.asks.round.N != 0 && s.wish.Severity == edge.SeverityDrain && len(seat.round.asked) > 0 {
		w.fail("o", "%s leaves %s by an order, and has asked as one that is sick", b.id, simNets[net])
	}
	if !s.wish.Want {
		w.fail("f", "%s leaves %s, and does not want to", b.id, simNets[net])
	}
	o := order{asked: s.asks, now: need{s.floor, b.conf}, until: until, begun: w.now, deaths: b.deaths}
	w.orders = append(w.orders, o)
	n := len(w.orders) - 1
	s.leaving = true
	if w.trace != nil {
		w.note("%s leaves %s, permit until %s from now", b.id, simNets[net], until.Sub(b.clock(w.now)))
	}
	w.checkLeave(b, net, &w.orders[n])
	if w.bug == earlyRelease {
		b.node.release(b.clock(w.now), seat, seat.round)
		w.send(b, b.node.flush())
	}
	w.carryOut(b, net, n)
}

// carryOut is what comes of order n.
func (w *world) carryOut(b *box, net, n int) {
	o := &w.orders[n]
	took := 5*time.Millisecond + w.upTo(45*time.Millisecond)
	if w.Slow && !w.calm && w.rng.IntN(4) == 0 {
		took = w.upTo(o.until.Sub(b.clock(w.now)) + tickEvery) // as late as the deadline lets it, or too late
	}
	answer := took + w.upTo(20*time.Millisecond)
	if w.by(w.Fails) {
		o.fails = true
		answer = w.upTo(took) // before the effect, even
	}
	o.quick = took < 50*time.Millisecond
	if !o.fails || w.rng.IntN(2) == 0 {
		w.after(took, event{kind: evEffect, box: int8(b.n), net: int8(net), life: b.life, arg: int32(n)})
	}
	w.after(answer, event{kind: evAnswer, box: int8(b.n), net: int8(net), life: b.life, arg: int32(n)})
}

// force has an operator take prefixes off the air, which asks nobody.
func (w *world) force(b *box, f *fault) {
	for net := range b.spots {
		s := &b.spots[net]
		if b.node == nil || !bit(f.Nets, net) || !s.onAir || s.leaving {
			continue
		}
		broken, out, err := b.node.Force(b.clock(w.now), simNets[net])
		if err != nil {
			continue
		}
		if len(broken) > 0 {
			w.meet(forcedBound)
		}
		w.send(b, out)
		s.leaving = true
		b.forced = append(b.forced, b.clock(w.now))
		w.orders = append(w.orders, order{forced: true, until: b.clock(w.now).Add(5 * time.Second), begun: w.now, deaths: b.deaths})
		w.carryOut(b, net, len(w.orders)-1)
	}
}

// effect is when the routers lose the route.
func (w *world) effect(b *box, net int, n, life int32) {
	o, s := &w.orders[n], &b.spots[net]
	died := b.node == nil || b.life != life
	if died && !o.quick && !w.Orphans || b.deaths != o.deaths || !b.clock(w.now).Before(o.until) || !s.onAir {
		return // it was not sent any more, or too late
	}
	if o.forced { // who counts on it cannot know
		s.excused = w.now + w.longestLease()
	} else {
		w.checkLeave(b, net, o)
		w.checkGone(b, net, o)
		w.meetEffect(b, net, o, died)
		w.count(b, net, o)
	}
	if w.announces(b, net) {
		s.lostAt = w.now
	}
	s.onAir, o.struck, s.letGo = false, true, w.steps
	if w.trace != nil {
		w.note("%s is gone from %s", b.id, simNets[net])
	}
	w.withdrawals++
	if s.wish.Want && s.wish.Severity >= edge.SeveritySick {
		w.took = append(w.took, w.now-s.since)
	}
	w.look(b, net)
	if o.fails || died { // nobody knows that it is gone: the next intent announces it
		w.after(w.upTo(2*time.Second), event{kind: evBack, box: int8(b.n), net: int8(net), life: b.life})
	}
}

// look has the box read back what it announces, late.
func (w *world) look(b *box, net int) {
	w.after(w.upTo(stale-100*time.Millisecond), event{kind: evView, box: int8(b.n), net: int8(net), life: b.life})
}

func (w *world) answer(b *box, net int, n int32) {
	o, s := &w.orders[n], &b.spots[net]
	s.leaving = false
	if s.want == 0 && !s.onAir { // it is well again meanwhile
		w.after(w.upTo(time.Second), event{kind: evBack, box: int8(b.n), net: int8(net), life: b.life})
	}
	if w.trace != nil {
		w.note("%s hears of its withdrawal of %s: %v", b.id, simNets[net], o.struck && !o.fails)
	}
	if o.forced {
		b.node.Forced(b.clock(w.now), simNets[net], "by hand", o.struck && !o.fails)
		if o.fails || !o.struck {
			s.shy = w.now + 3*(forceLast+stale)/2
		}
		w.act(b)
		return
	}
	w.send(b, b.node.End(b.clock(w.now), simNets[net], o.struck && !o.fails))
	if w.bug == sureOfFailure && (o.fails || !o.struck) {
		seat := b.node.seats[simNets[net]]
		seat.unsure, seat.failed, seat.heldFrom = time.Time{}, nil, b.node.started
	}
	w.act(b)
}

// announce puts the prefix on the air again, which asks nobody. A withdrawal
// that may still take effect has been waited for.
func (w *world) announce(b *box, net int) {
	s := &b.spots[net]
	if s.onAir || s.leaving || w.bug == asksToReturn && len(b.node.Bound(b.clock(w.now))) > 0 {
		return
	}
	s.onAir, s.backAt = true, w.now
	if w.trace != nil {
		w.note("%s announces %s again", b.id, simNets[net])
	}
	w.look(b, net)
	w.after(w.belief(), event{kind: evBelieved, box: int8(b.n), net: int8(net), life: b.life})
}

// belief is how long it may take a box to take in that it announces again.
func (w *world) belief() time.Duration { return stale + max(stale, w.longestLease()) + time.Second }
