package promise

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/catchment-dev/edge"
)

// The simulator drives real Nodes through virtual time: a seeded network that
// loses, delays, repeats and reorders, partitions, crashes and restarts, clocks
// that run at different rates, configurations that change, and a speaker that is
// read back late. All that happens is an event in one queue. A world has one
// goroutine: what runs most often of it (not of the Nodes) is left out by the race
// detector, which makes it a third faster.

type eventKind uint8

const (
	evTick     eventKind = iota // a box looks at the time
	evMessage                   // arg: in mail
	evView                      // a box reads back what it announces of net
	evEffect                    // arg: of orders; the routers lose the route
	evAnswer                    // arg: of orders; the speaker says how it went
	evFault                     // arg: of Faults
	evFaultEnd                  // arg: of Faults
	evStart                     // a box has a process again
	evRaise                     // a box hears of its own earlier boot id
	evBack                      // a box announces net again
	evBelieved                  // and must know it by now
	evCalm
)

type event struct {
	at   time.Duration
	seq  uint32
	kind eventKind
	box  int8
	net  int8
	life int32
	arg  int32
}

// world is a plan as it is played.
type world struct {
	*plan
	bug    mutant
	only   string // the kind of violation that counts; empty: all
	rng    *rand.Rand
	now    time.Duration
	queue  []event
	seq    uint32
	boxes  []*box
	mail   []Message
	empty  []int32 // of mail
	orders []order
	sets   []Settings // by configuration
	calm   bool

	cut   int32 // the fault that cuts, 0: none, else its number and one
	cutAt time.Duration
	parts [maxNodes]uint8 // of the cut that a node is in
	deaf  [maxNodes]uint32
	shut  [maxNodes][maxNodes]time.Duration // from, to: since when nothing comes through; below 0: it does

	stays []stayed
	met   uint32 // corners, as bits

	question  Message // that is being answered
	load      float64
	loadKnown bool

	steps, withdrawals int
	took               []time.Duration // from each sickness to the withdrawal
	violation          string
	trace              func(format string, args ...any) // nil: none
}

// box is a node with its speaker and what the network knows of both.
type box struct {
	id     edge.NodeID
	n      int
	node   *Node // nil while it has no process
	life   int32 // counts the processes: events of an earlier one are void
	tick   int32 // the tick that counts
	tickAt time.Duration
	rate   float64
	offset time.Duration
	back   time.Duration // the wall clock is this much behind
	boots  []int64       // that it has used
	conf   int           // that it runs with
	file   int           // that is on its disk
	lease  time.Duration // the longest that it has ever run with
	dark   bool
	litAt  time.Duration // when it last was not dark any more
	dead   bool
	deaths int
	forced []time.Time // on its disk: when it was forced
	seen   uint64      // version of node
	spots  []spot
}

// spot is a box and one prefix.
type spot struct {
	// onAir: it has not left by its own decision. The routers have its route if
	// the box is neither dark nor dead.
	onAir   bool
	was     bool          // onAir, at the step before
	letGo   int           // the step at which it was allowed to leave the air
	view    bool          // as last read back
	lostAt  time.Duration // when the routers last lost it
	excused time.Duration // until when it counts as one that stays: it died, and did not come back as it was
	want    int32         // the fault that makes it want out, and one; 0: none
	wish    Wish
	since   time.Duration // of wish
	last    edge.Decision // what edged makes of it
	backAt  time.Duration // when it last announced again

	shy     time.Duration // until when it may promise nobody: forced in vain, or before its process started
	leaving bool
	floor   int // as last configured
	asks    asked
	owes    [maxNodes]owed
	got     [maxNodes]Round // the promises that have come
	grants  asked           // the round that has had enough, and since when
}

// asked is the round that a box was last seen to ask in, and under what terms.
type asked struct {
	round   Round
	at      time.Duration
	needs   need
	planned bool
}

// need is what a withdrawal needs: the floor, and the terms of a configuration.
type need struct{ floor, conf int }

// owed is a promise as the network saw it: the truth that no crash forgets.
type owed struct {
	round         Round
	until         time.Time // on the promiser's clock
	well, planned bool
	life          int32
}

// order is a withdrawal on its way to the speaker.
type order struct {
	asked
	now    need // by the configuration at its beginning
	until  time.Time
	begun  time.Duration
	forced bool
	fails  bool // its answer is an error
	quick  bool // it is with the speaker at once
	struck bool
	deaths int // of the box, when it was given
}

var simStart = time.Unix(1_700_000_000, 0)

func newWorld(p *plan, bug mutant) *world {
	w := &world{plan: p, bug: bug, rng: rand.New(rand.NewPCG(p.Seed, 1)), queue: make([]event, 0, 256)}
	for i := range p.Confs {
		w.sets = append(w.sets, bug.settings(p.settings(&p.Confs[i])))
	}
	for i := range p.Nodes {
		b := &box{id: simIDs[i], n: i, spots: make([]spot, p.Nets)}
		b.rate = 1 + (w.rng.Float64()*2-1)*p.Skew
		if p.Ends {
			b.rate = 1 + float64(w.rng.IntN(3)-1)*p.Skew
		}
		b.offset = w.upTo(time.Hour)
		for net := range b.spots {
			b.spots[net] = spot{onAir: true, was: true, view: true, lostAt: -time.Hour, backAt: -time.Hour, floor: p.Confs[0].Floor, wish: Wish{Well: true}}
		}
		w.boxes = append(w.boxes, b)
	}
	w.reach()
	for _, b := range w.boxes {
		w.start(b)
	}
	for i := range p.Faults {
		w.after(p.Faults[i].At, event{kind: evFault, arg: int32(i)})
	}
	if p.Calm > 0 {
		w.after(p.Calm, event{kind: evCalm})
	}
	return w
}

// play plays p, and looks for violations of one kind only, or of all.
func play(p *plan, bug mutant, only string) *world {
	w := newWorld(p, bug)
	w.only = only
	return w.run()
}

// run plays the plan until its end or the first violation.
func (w *world) run() *world {
	for len(w.queue) > 0 && w.violation == "" {
		e := w.pop()
		if e.at > w.For {
			break
		}
		w.now = e.at
		w.steps++
		w.do(e)
		w.audit()
	}
	if w.violation == "" && w.calm {
		w.checkLiveness()
	}
	return w
}

func (w *world) do(e event) {
	switch e.kind {
	case evMessage:
		w.deliver(e.arg)
	case evFault:
		w.strike(e.arg)
	case evFaultEnd:
		w.mend(e.arg)
	case evStart:
		w.start(w.boxes[e.box])
	case evCalm:
		w.becalm()
	case evEffect:
		w.effect(w.boxes[e.box], int(e.net), e.arg, e.life)
	default:
		if b := w.boxes[e.box]; b.node != nil && b.life == e.life {
			w.local(b, e)
		}
	}
}

// local is what concerns one process only.
func (w *world) local(b *box, e event) {
	switch e.kind {
	case evTick:
		if e.arg == b.tick {
			w.send(b, b.node.Tick(b.clock(w.now)))
			w.act(b)
			w.nextTick(b)
		}
	case evView:
		b.spots[e.net].view = w.announces(b, int(e.net))
		w.ladder(b, int(e.net))
		w.act(b)
	case evAnswer:
		w.answer(b, int(e.net), e.arg)
	case evRaise:
		w.raise(b)
	case evBack:
		w.comeBack(b, int(e.net))
	case evBelieved:
		at, s := &b.spots[e.net], b.node.seats[simNets[e.net]]
		if at.onAir && at.view && !b.dark && w.now-max(at.backAt, b.litAt) >= w.belief() && s != nil && s.left {
			w.fail("f", "%s announces %s again and does not take it in", b.id, simNets[e.net])
		}
	}
}

//go:norace
func (w *world) after(d time.Duration, e event) {
	w.seq++
	e.at, e.seq = w.now+d, w.seq
	w.queue = append(w.queue, e)
	for i := len(w.queue) - 1; i > 0; {
		up := (i - 1) / 2
		if !w.queue[i].before(&w.queue[up]) {
			break
		}
		w.queue[i], w.queue[up] = w.queue[up], w.queue[i]
		i = up
	}
}

//go:norace
func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

//go:norace
func (w *world) pop() event {
	first, last := w.queue[0], len(w.queue)-1
	w.queue[0] = w.queue[last]
	w.queue = w.queue[:last]
	for i := 0; ; {
		least := i
		for _, c := range [2]int{2*i + 1, 2*i + 2} {
			if c < last && w.queue[c].before(&w.queue[least]) {
				least = c
			}
		}
		if least == i {
			return first
		}
		w.queue[i], w.queue[least] = w.queue[least], w.queue[i]
		i = least
	}
}

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d) + 1)) }

// by is chance, that costs nothing if there is none.
func (w *world) by(share float64) bool { return share > 0 && !w.calm && w.rng.Float64() < share }

func (b *box) clock(t time.Duration) time.Time {
	return simStart.Add(b.offset + time.Duration(float64(t)*b.rate))
}

// announces says whether the routers have the route.
func (w *world) announces(b *box, net int) bool { return b.spots[net].onAir && !b.dark && !b.dead }

// note tells what happens, to whoever looks at one run.
func (w *world) note(format string, args ...any) {
	if w.trace != nil { // asked before the call too, which costs else
		w.trace("%8s  "+format, append([]any{w.now.Round(time.Millisecond)}, args...)...)
	}
}

// fail notes the first thing that must not be; kind is one letter.
func (w *world) fail(kind, format string, args ...any) {
	if w.violation == "" && (w.only == "" || w.only == kind) {
		w.violation = fmt.Sprintf("%s: at %s ", kind, w.now) + fmt.Sprintf(format, args...)
	}
}
