package promise

import (
	"math/rand/v2"
	"time"

	"github.com/catchment-dev/edge"
)

// schedule puts the plan's faults into the queue.
func (w *world) schedule() {
	order := w.rng.Perm(len(w.boxes))
	for i, at := range order {
		b := w.boxes[at]
		switch {
		case i < w.sick:
			w.fallSick(b, 200*time.Millisecond+w.upTo(w.spread), Wish{Want: true, Severity: edge.SeveritySick, Reason: "sick"})
		case i < w.sick+w.drains:
			w.fallSick(b, 200*time.Millisecond+w.upTo(w.spread), Wish{Want: true, Severity: edge.SeverityDrain, Reason: "drained"})
		}
	}
	for range w.cuts {
		w.at(w.upTo(w.lastFor), w.cut)
	}
	for range w.crashes {
		w.at(w.upTo(w.lastFor), w.crash)
	}
}

func (w *world) fallSick(b *box, in time.Duration, wish Wish) {
	w.at(in, func() {
		b.wish, b.wishedAt = wish, w.now
		if w.heal {
			w.at(2*time.Second+w.upTo(10*time.Second), func() { w.recover(b, wish) })
		}
	})
}

// recover makes the box well: it announces again, which asks nobody.
func (w *world) recover(b *box, wish Wish) {
	b.wish = Wish{}
	w.at(w.upTo(3*time.Second), func() {
		if !b.wish.Want && !b.leaving && !w.pending(b) {
			b.announcing = true
		}
	})
	w.fallSick(b, 4*time.Second+w.upTo(5*time.Second), wish)
}

// pending: a withdrawal that may still take effect must not be mixed up with
// one that happens after the site came back.
func (w *world) pending(b *box) bool { return b.clock(w.now).Before(b.until) }

func (w *world) cut() {
	if w.isolate {
		return
	}
	oneWay := w.rng.IntN(3) == 0
	groups := 2 + w.rng.IntN(2)
	for _, b := range w.boxes {
		if !oneWay {
			w.group[b.ID] = w.rng.IntN(groups)
			continue
		}
		for _, o := range w.boxes {
			w.cutOne[[2]edge.NodeID{b.ID, o.ID}] = w.rng.IntN(3) == 0
		}
	}
	w.at(w.upTo(8*time.Second), func() {
		clear(w.group)
		clear(w.cutOne)
	})
}

func (w *world) crash() {
	b := w.boxes[w.rng.IntN(len(w.boxes))]
	if b.node == nil {
		return
	}
	b.node, b.leaving = nil, false
	b.life++
	w.at(300*time.Millisecond+w.upTo(2*time.Second), func() { w.start(b) })
}

// randomPlan draws a plan that may contain every kind of fault.
func randomPlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 2))
	some := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d) + 1)) }
	p := plan{nodes: 3 + r.IntN(10), lastFor: 40 * time.Second}
	p.sites = p.nodes
	if r.IntN(3) == 0 {
		p.sites = max(2, p.nodes/2)
	}
	p.floor = 1 + r.IntN(min(8, p.sites-1))
	p.policy.PromiseLease = 2*time.Second + some(6*time.Second)
	if r.IntN(3) == 0 {
		p.policy.PromiseLease = 2 * time.Second // the least that the longest ask timeout allows for
	}
	p.policy.AskTimeout = 300*time.Millisecond + some(700*time.Millisecond)
	p.policy.BackOff = 100*time.Millisecond + some(400*time.Millisecond)
	p.dmin = some(20 * time.Millisecond)
	p.dmax = p.dmin + some(300*time.Millisecond)
	if r.IntN(4) == 0 {
		p.dmax += some(900 * time.Millisecond)
	}
	if r.IntN(2) == 0 {
		p.loss, p.dup, p.tail = r.Float64()*0.3, r.Float64()*0.2, r.Float64()*0.1
	}
	if r.IntN(2) == 0 {
		p.cuts = r.IntN(6)
	}
	if r.IntN(2) == 0 {
		p.crashes = r.IntN(2 * p.nodes)
	}
	p.skew = r.Float64() * 0.04
	p.fails = []float64{0, 0.1, 0.5}[r.IntN(3)]
	p.slow = r.IntN(2) == 0
	p.sick = 1 + r.IntN(p.nodes)
	p.drains = r.IntN(p.nodes - p.sick + 1)
	p.spread = some(4 * time.Second)
	p.heal = r.IntN(2) == 0
	return p
}

// mutant is a way to break the protocol on purpose, done to the nodes from
// outside: the simulator must notice each, or it could not notice anything.
type mutant int

const (
	none           mutant = iota
	goneStays             // a withdrawn site promises to stay
	noNonce               // an answer to an old round is taken for the current
	ignoresBinding        // a bound site leaves
	forgets               // a restarted site may leave at once
	fromAnswer            // the lease is counted from the answer
	countsNodes           // two nodes of one site count twice
)

var mutantNames = map[mutant]string{
	goneStays: "withdrawn site promises", noNonce: "no round nonce", ignoresBinding: "own binding not checked",
	forgets: "forgets on restart", fromAnswer: "lease counted from the answer", countsNodes: "two nodes of a site count twice",
}

// suits makes a plan one in which the mutant matters: where the slowness of
// the network is the whole point, a fast one shows nothing.
func (m mutant) suits(p plan) plan {
	if m == fromAnswer {
		p.dmin, p.dmax, p.slow = 300*time.Millisecond, 600*time.Millisecond, true
		p.policy.PromiseLease, p.policy.AskTimeout = 2*time.Second, time.Second
	}
	return p
}

// mutate applies the mutant to a message on its way to b; true swallows it.
func (w *world) mutate(b *box, m *Message) bool {
	s := b.node.seats[simPrefix]
	switch {
	case w.bug == goneStays && m.Kind == Intent && !b.announcing:
		b.owes[m.From] = owed{m.Round, b.clock(w.now).Add(w.policy.PromiseLease)}
		w.post(Message{Kind: Promise, From: b.ID, To: m.From, Prefix: m.Prefix, Round: m.Round, Lease: w.policy.PromiseLease})
		return true
	case w.bug == noNonce && m.Kind == Promise && s.round != nil:
		m.Round = s.round.id
	case w.bug == fromAnswer && m.Kind == Promise && s.round != nil && s.round.id == m.Round:
		s.round.asked[m.From] = b.clock(w.now)
	}
	return false
}
