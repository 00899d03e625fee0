package promise

import (
	"flag"
	"slices"
	"testing"
	"time"
)

// corner is a situation that schedules must come into often enough to prove anything.
type corner int

const (
	restartBound   corner = iota // a process starts, and the one before had promised
	restartShorter               // and by a longer lease than its own
	restartAsking                // a process starts, and the one before still has promises
	wallBack                     // the wall clock went back over a restart
	bootTwice                    // two processes of a node have raised their boot id by one report
	orphan                       // a withdrawal outlives the process that has ordered it
	lastMoment                   // a withdrawal takes effect at the very end of its permit
	lateAnswer                   // an answer to the round comes when a promise does not count any more
	veryLate                     // a message comes after more than a lease
	floorUp                      // the floor has changed between the question and the withdrawal
	floorDown
	rosterChanged
	leaseChanged
	termsChanged
	bySibling     // a node leaves on the word of its own site
	leftInPart    // a site leaves by a round that was opened under a partition
	fourParts     // and of more than two parts
	forcedBound   // an operator forces out who has promised to stay
	backWhileSick // who is sick announces again
	orderWaits    // an order is refused for sickness
	fastClock     // a clock that runs fast promises, one that runs slow counts
	corners
)

var cornerNames = [corners]string{
	"restart while bound", "restart while bound by a longer lease", "restart while promised", "wall clock back", "boot id raised twice by one report", "orphaned withdrawal",
	"withdrawal at the last moment", "answer after the span", "message after a lease", "floor up meanwhile", "floor down meanwhile",
	"roster changed meanwhile", "lease changed meanwhile", "terms changed meanwhile", "sibling stays", "left in its part", "left in one of many parts",
	"forced while bound", "back while sick", "order waits", "clocks at both ends",
}

func (w *world) meet(c corner) { w.met |= 1 << c }

// meetStart looks at what the process before has left behind.
func (w *world) meetStart(b *box, now time.Time) {
	for net := range b.spots {
		for x := range w.Nodes {
			if p := &b.spots[net].owes[x]; p.round.N > 0 && now.Before(p.until) {
				w.meet(restartBound)
				if p.until.Sub(now) > w.Confs[b.file].Lease {
					w.meet(restartShorter)
				}
			}
			if p := &w.boxes[x].spots[net].owes[b.n]; p.round.N > 0 && w.boxes[x].clock(w.now).Before(p.until) {
				w.meet(restartAsking)
			}
		}
	}
}

// meetEffect looks at a withdrawal that takes effect.
func (w *world) meetEffect(b *box, net int, o *order, died bool) {
	if died {
		w.meet(orphan)
	}
	if o.until.Sub(b.clock(w.now)) < 20*time.Millisecond {
		w.meet(lastMoment)
	}
	for _, x := range w.boxes {
		if w.stands(b, x, net, o) && x.rate-b.rate > 0.0198 {
			w.meet(fastClock)
		}
	}
	if w.cut != 0 && o.at > w.cutAt && slices.Max(w.parts[:]) > 1 {
		w.meet(fourParts)
	}
	then, now := &w.Confs[o.needs.conf], &w.Confs[o.now.conf]
	switch {
	case o.needs.floor < o.now.floor:
		w.meet(floorUp)
	case o.needs.floor > o.now.floor:
		w.meet(floorDown)
	}
	if then.Out != now.Out || then.Moved != now.Moved {
		w.meet(rosterChanged)
	}
	if then.Lease != now.Lease {
		w.meet(leaseChanged)
	}
	if then.Spare != now.Spare || then.Healthy != now.Healthy || then.Fraction != now.Fraction || then.Capacity != now.Capacity || then.Region != now.Region {
		w.meet(termsChanged)
	}
}

// meetPromise looks at an answer that comes.
func (w *world) meetPromise(b *box, m *Message) {
	s := &b.spots[netOf(m.Prefix)]
	switch age := w.now - s.asks.at; {
	case s.asks.round == m.Round && age > Span(m.Lease):
		w.meet(lateAnswer)
	case s.asks.round != m.Round && s.got[numberOf(m.From)] == m.Round && age > m.Lease:
		w.meet(veryLate)
	}
}

// simCorner bends all schedules to one kind of trouble, by its number in bends.
var simCorner = flag.Int("corner", -1, "bend each schedule to this corner (and others to others)")

// bends make a plan one of a nasty kind.
var bends = []func(d draw, p *plan){
	draw.restarts, draw.boundaries, draw.copies, draw.meanwhile, draw.pairs, draw.swaps, draw.operators, draw.parts, draw.long, draw.leases, draw.small,
}

// corners bends one plan of three.
func (d draw) corners(p *plan) {
	if *simCorner >= 0 {
		bends[*simCorner](d, p)
	} else if !d.oneIn(3) {
		return
	}
	bends[d.IntN(len(bends))](d, p)
	if d.oneIn(2) {
		bends[d.IntN(len(bends))](d, p)
	}
}

func (p *plan) hit(f fault) { p.Faults = append(p.Faults, f) }

// restarts: processes end again and again within a lease.
func (d draw) restarts(p *plan) {
	p.Orphans, p.Slow = true, d.oneIn(2)
	for node := range p.Nodes {
		for range d.IntN(4) {
			f := fault{At: d.upTo(p.For), Kind: faultCrash, Node: node, For: d.upTo(500 * time.Millisecond)}
			if d.oneIn(3) {
				f.Back = d.upTo(2*time.Minute) - time.Minute
			}
			p.hit(f)
		}
	}
}

// boundaries: clocks at the ends of what they may be, questions that wait for as long
// as a promise counts, answers and withdrawals that come at its end.
func (d draw) boundaries(p *plan) {
	p.Skew, p.Ends, p.Slow, p.Orphans = 0.01, true, true, d.oneIn(2)
	for i := range p.Confs {
		c := &p.Confs[i]
		c.Ask = Span(c.Lease) - time.Millisecond - d.upTo(c.Lease/10)
	}
	c := &p.Confs[0]
	p.DelayMax = max(p.DelayMax, c.Ask/2)
	p.DelayMin = p.DelayMax - d.upTo(p.DelayMax)/4
	p.For += c.Lease
}

// copies: all comes twice, and again when the lease is over.
func (d draw) copies(p *plan) {
	p.Twice, p.Again = 0.3+d.Float64()*0.6, p.longestLease()*5/4
	p.Loss = d.Float64() * 0.3
	p.Late = d.Float64() * 0.2
}

// meanwhile: floors, rosters and terms change all the time, and not everywhere at once.
func (d draw) meanwhile(p *plan) {
	for range 3 {
		c := p.Confs[0]
		switch d.IntN(4) {
		case 0:
			c.Floor = 1 + d.IntN(min(8, p.Sites-1))
		case 1:
			c.Floor = max(1, c.Floor-1)
		case 2:
			c.Out = d.few(p) &^ 1
		case 3:
			d.terms(&c)
		}
		p.Confs = append(p.Confs, c)
	}
	p.Slow = true
	for node := range p.Nodes {
		for range 1 + d.IntN(4) {
			p.hit(fault{At: d.upTo(p.For), Kind: faultConf, Node: node, Conf: d.IntN(len(p.Confs))})
		}
	}
}

// pairs: as many sites as can have two nodes.
func (d draw) pairs(p *plan) {
	if p.Nodes = min(maxNodes, 2*p.Sites); d.oneIn(2) {
		for i := range p.Confs {
			p.Confs[i].Moved = d.few(p)
		}
	}
	for node := range p.Nodes {
		if d.oneIn(2) {
			p.hit(fault{At: d.upTo(3 * time.Second), Kind: faultSick, Node: node, Nets: 1<<p.Nets - 1, Worse: d.IntN(9)})
		}
	}
}

// swaps: all are sick, one worse than the other, and who has left comes back for it.
func (d draw) swaps(p *plan) {
	for node := range p.Nodes {
		p.hit(fault{At: d.upTo(2 * time.Second), Kind: faultSick, Node: node, Nets: 1<<p.Nets - 1, Worse: d.IntN(9)})
		for range d.IntN(4) {
			p.hit(fault{At: time.Second + d.upTo(p.For), Kind: faultBack, Node: node, Nets: 1<<p.Nets - 1})
		}
	}
}

// operators: orders, and force, among those that are sick.
func (d draw) operators(p *plan) {
	for i := range p.Confs {
		p.Confs[i].Planned = d.IntN(3)
	}
	if d.oneIn(2) { // a network that hears everybody
		p.Loss, p.Twice, p.Late, p.DelayMax, p.DelayMin = 0, 0, 0, 40*time.Millisecond, 0
		p.Faults = slices.DeleteFunc(p.Faults, func(f fault) bool { return f.Kind != faultSick && f.Kind != faultDrain })
		p.Confs = p.Confs[:1]
	}
	for node := range p.Nodes {
		if d.oneIn(2) {
			p.hit(fault{At: d.upTo(3 * time.Second), Kind: faultDrain, Node: node, Nets: 1<<p.Nets - 1, For: d.upTo(p.For)})
		}
	}
	if d.oneIn(2) {
		for range 1 + d.IntN(3) {
			p.hit(fault{At: d.upTo(p.For), Kind: faultForce, Node: d.IntN(p.Nodes), Nets: 1<<p.Nets - 1})
		}
	}
}

// parts: the network falls into up to four parts, and into others soon.
func (d draw) parts(p *plan) {
	p.For += 2 * time.Second
	for range 2 + d.IntN(4) {
		p.hit(fault{At: d.upTo(p.For), Kind: faultCut, To: d.nodes(p), From: d.nodes(p), For: d.upTo(4 * time.Second)})
		p.hit(fault{At: d.upTo(p.For), Kind: faultOneWay, From: d.few(p), To: d.nodes(p), For: d.upTo(4 * time.Second)})
	}
	if p.Confs[0].Floor > 2 && d.oneIn(2) {
		p.Confs[0].Floor = 1 + d.IntN(2)
	}
}

// long: the settings that are the default, and messages that take half a minute.
func (d draw) long(p *plan) {
	if !d.oneIn(12) { // it takes a while
		return
	}
	p.For = 31*time.Second + d.upTo(15*time.Second)
	p.Late = max(p.Late, 0.1)
	for i := range p.Confs {
		c := &p.Confs[i]
		c.Lease, c.Ask, c.BackOff = 10*time.Second, time.Second, 500*time.Millisecond
	}
	for i := range p.Faults {
		p.Faults[i].At *= 4
	}
}

// leases: each process starts with another lease than the one before it.
func (d draw) leases(p *plan) {
	p.Slow, p.Orphans = true, d.oneIn(2)
	for range 2 {
		c := p.Confs[0]
		c.Lease = max(time.Second, c.Ask*5/4+time.Millisecond) + d.upTo(6*time.Second)
		p.Confs = append(p.Confs, c)
	}
	for node := range p.Nodes {
		for range 1 + d.IntN(3) {
			at := d.upTo(p.For)
			p.hit(fault{At: at, Kind: faultConf, Node: node, Conf: d.IntN(len(p.Confs))})
			p.hit(fault{At: at + d.upTo(time.Second), Kind: faultCrash, Node: node, For: d.upTo(300 * time.Millisecond)})
		}
	}
}

// small: hardly any may go, and all want to.
func (d draw) small(p *plan) {
	for i := range p.Confs {
		c := &p.Confs[i]
		c.Floor = min(8, max(1, p.Sites-1-d.IntN(2)))
		c.Spare, c.Healthy, c.Fraction, c.Capacity, c.Region, c.Demand = 0, 0, 0, 0, 0, false
	}
	for node := range p.Nodes {
		p.hit(fault{At: d.upTo(2 * time.Second), Kind: faultSick, Node: node, Nets: 1<<p.Nets - 1, Worse: d.IntN(9)})
	}
}

// checkCorners: each has been come into, and not once.
func (s *sums) checkCorners(t *testing.T, n int) {
	t.Helper()
	for c := range corners {
		got := s.corners[c].Load()
		t.Logf("%-40s %8d", cornerNames[c], got)
		if got < int64(n/2000) {
			t.Errorf("%s: in %d of %d schedules, which proves nothing", cornerNames[c], got, n)
		}
	}
}
