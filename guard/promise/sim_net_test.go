package promise

import (
	"cmp"
	"time"

	"github.com/catchment-dev/edge"
)

// send takes what a node has to say, and notes what is true by it from now on.
func (w *world) send(b *box, out []Message) {
	for i := range out {
		m := &out[i]
		s := &b.spots[netOf(m.Prefix)]
		switch m.Kind {
		case Intent:
			if s.asks.round != m.Round {
				s.asks = asked{m.Round, w.now, need{s.floor, b.conf}, m.Severity == edge.SeverityDrain}
			}
		case Promise:
			w.checkPromise(b, m)
			if o := &s.owes[numberOf(m.To)]; o.round == m.Round && o.life == b.life {
				o.well = o.well || m.Well // it says so once more
				break
			}
			w.checkOrders(b, m)
			s.owes[numberOf(m.To)] = owed{m.Round, b.clock(w.now).Add(m.Lease), m.Well, w.planned(), b.life}
		}
		if w.by(w.Loss) {
			continue
		}
		w.post(m, w.delay())
		if w.by(w.Twice) {
			w.post(m, w.delay()+w.upTo(cmp.Or(w.Again, 4*time.Second)))
		}
	}
}

// planned says whether the question that is being answered is by an order.
func (w *world) planned() bool { return w.question.Severity == edge.SeverityDrain }

func (w *world) delay() time.Duration {
	switch {
	case w.calm:
		return min(w.DelayMin, 20*time.Millisecond) + w.upTo(min(w.DelayMax-w.DelayMin, 100*time.Millisecond))
	case w.by(w.Late):
		return w.upTo(30 * time.Second)
	}
	return w.DelayMin + w.upTo(w.DelayMax-w.DelayMin)
}

//go:norace
func (w *world) post(m *Message, d time.Duration) {
	if w.now+d > w.For {
		return // nobody would see it
	}
	var at int32
	if n := len(w.empty) - 1; n >= 0 {
		at, w.empty = w.empty[n], w.empty[:n]
		w.mail[at] = *m
	} else {
		at = int32(len(w.mail))
		w.mail = append(w.mail, *m)
	}
	w.after(d, event{kind: evMessage, arg: at})
}

//go:norace
func (w *world) deliver(at int32) {
	m := w.mail[at]
	w.empty = append(w.empty, at)
	from, to := numberOf(m.From), numberOf(m.To)
	b := w.boxes[to]
	if b.node == nil || w.shut[from][to] >= 0 {
		return
	}
	switch m.Kind {
	case Promise:
		w.meetPromise(b, &m)
		if s := &b.spots[netOf(m.Prefix)]; m.Round == s.asks.round {
			s.got[from] = m.Round
		}
	case Release:
		w.released(&m)
	case Nack:
		if m.Veto {
			w.meet(orderWaits)
		}
	}
	// One that is not of its roster is not listened to, and frees it of nothing.
	if o := &b.spots[netOf(m.Prefix)].owes[from]; m.Kind == Release && o.round == m.Round && w.siteOf(&w.Confs[b.conf], from) >= 0 {
		*o = owed{}
	}
	if w.trace != nil {
		w.note("%s hears from %s: %s %s round %d %s", m.To, m.From, m.Kind, m.Prefix, m.Round.N, m.Reason)
	}
	w.question = m
	if w.mutate(b, &m) {
		return
	}
	w.send(b, b.node.Receive(b.clock(w.now), m))
	if v := b.node.Version(); v != b.seen || w.bug != none {
		b.seen = v
		w.act(b)
		if b.tickAt-w.now > b.idle(w.now)+tickEvery {
			w.nextTick(b)
		}
	}
}

// strike begins fault i.
func (w *world) strike(i int32) {
	f := &w.Faults[i]
	b := w.boxes[f.Node]
	if w.trace != nil {
		w.note("fault %+v", *f)
	}
	switch f.Kind {
	case faultSick:
		w.wish(b, i, Wish{Want: true, Severity: edge.SeveritySick + f.Worse, Reason: "sick"})
	case faultDrain:
		w.wish(b, i, Wish{Want: true, Severity: edge.SeverityDrain, Reason: "drained", Well: true})
	case faultUnfit:
		w.wish(b, i, Wish{Unfit: true, Severity: edge.SeveritySick})
	default:
		if w.calm {
			return
		}
		w.disturb(i, f, b)
	}
	if f.For > 0 && f.Kind != faultCrash && f.Kind != faultDie {
		w.after(f.For, event{kind: evFaultEnd, arg: i})
	}
}

func (w *world) disturb(i int32, f *fault, b *box) {
	switch f.Kind {
	case faultCut:
		w.cut, w.cutAt = i+1, w.now
		for n := range w.Nodes {
			w.parts[n] = uint8(f.To>>n&1 | f.From>>n&1<<1)
		}
		w.reach()
	case faultOneWay:
		for to := range w.Nodes {
			if bit(f.To, to) {
				w.deaf[to] |= f.From
			}
		}
		w.reach()
	case faultCrash, faultDie:
		if b.node == nil {
			return
		}
		b.end()
		b.back += f.Back
		w.after(f.For, event{kind: evStart, box: int8(b.n)})
		if f.Kind == faultDie {
			b.dead = true
			b.deaths++
			w.lose(b)
		}
	case faultDark:
		b.dark = true
		w.lose(b)
	case faultConf:
		w.update(b, f.Conf)
	case faultForce:
		w.force(b, f)
	case faultBack:
		w.swap(b, f)
	case faultDemand:
		w.load, w.loadKnown = f.Load, f.Load >= 0
	}
}

// lose: the routers lose all routes of the box.
func (w *world) lose(b *box) {
	for net := range b.spots {
		if b.spots[net].onAir {
			b.spots[net].lostAt = w.now
		}
		w.look(b, net)
	}
}

func (w *world) mend(i int32) {
	f := &w.Faults[i]
	b := w.boxes[f.Node]
	switch f.Kind {
	case faultCut:
		if w.cut == i+1 {
			w.cut = 0
		}
		w.reach()
	case faultOneWay:
		w.deaf = [maxNodes]uint32{}
		w.reach()
	case faultDark:
		w.light(b)
	default:
		w.heal(b, i)
	}
}

func (w *world) light(b *box) {
	b.dark, b.litAt = false, w.now
	for net := range b.spots {
		w.look(b, net)
	}
}

// wish makes the box want something of the prefixes of fault i.
func (w *world) wish(b *box, i int32, wish Wish) {
	for net := range b.spots {
		if s := &b.spots[net]; bit(w.Faults[i].Nets, net) {
			s.want, s.wish, s.since = i+1, wish, w.now
			if w.bug == degradeLeaves && b.node != nil {
				s.onAir = false
			}
		}
	}
	if b.node != nil {
		for net := range b.spots {
			w.ladder(b, net)
		}
		w.act(b)
		w.nextTick(b)
	}
}

// swap has the box announce again what it is sick of: for a worse one, as a last
// resort, or by hand.
func (w *world) swap(b *box, f *fault) {
	for net := range b.spots {
		if s := &b.spots[net]; b.node != nil && bit(f.Nets, net) && !s.onAir && !s.leaving && s.want != 0 && !bit(w.Confs[b.conf].NoNet, net) {
			w.announce(b, net)
			w.meet(backWhileSick)
		}
	}
}

// heal ends that, and the box announces again.
func (w *world) heal(b *box, i int32) {
	for net := range b.spots {
		s := &b.spots[net]
		if s.want != i+1 {
			continue
		}
		s.want, s.wish = 0, Wish{Well: true}
		w.after(w.upTo(time.Second), event{kind: evBack, box: int8(b.n), net: int8(net), life: b.life})
	}
	if b.node != nil {
		w.act(b)
	}
}

// becalm ends all faults but sickness.
func (w *world) becalm() {
	w.calm, w.cut, w.deaf = true, 0, [maxNodes]uint32{}
	w.reach()
	w.load, w.loadKnown = 0, true
	for _, b := range w.boxes {
		w.light(b)
		w.start(b)
		w.raise(b)
		w.update(b, len(w.Confs)-1)
	}
}
