package promise

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// The simulator drives real Nodes through virtual time: a seeded network that
// loses, delays, repeats and reorders, partitions, crashes and restarts, clocks
// that run at different rates, and a speaker that is read back late.

var simPrefix = netip.MustParsePrefix("192.0.2.0/24")

// plan is one schedule; the zero values are a perfect network.
type plan struct {
	nodes, sites, floor int
	policy              edge.Guard
	dmin, dmax          time.Duration
	loss, dup, tail     float64 // tail: share of messages that take up to 30 s
	cuts                int     // partitions during the run, up to 8 s each
	isolate             bool    // all cut from all, for good
	crashes             int
	skew                float64 // clock rates differ by this, either way
	fails               float64 // share of withdrawals whose outcome is an error
	slow                bool    // a withdrawal may take until its deadline
	sick                int     // how many fall sick; the others may drain
	drains              int
	spread              time.Duration // over which they do
	heal                bool          // they recover, announce again and fall sick again
	lastFor             time.Duration
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any     { o := *q; e := o[len(o)-1]; *q = o[:len(o)-1]; return e }

// owed is a promise as the network saw it: the truth that no crash forgets.
type owed struct {
	round Round
	until time.Time // on the promiser's clock
}

type box struct {
	edge.Node
	node   *Node // nil while crashed
	life   int   // counts restarts: events of an earlier life are void
	rate   float64
	offset time.Duration
	boot   int64

	announcing bool // the truth at the routers
	cached     bool // as last read back
	wish       Wish
	wishedAt   time.Duration
	leftAt     time.Duration
	leaving    bool
	until      time.Time
	owes       map[edge.NodeID]owed
}

type world struct {
	plan
	rng    *rand.Rand
	now    time.Duration
	events queue
	seq    int
	boxes  []*box
	roster []edge.Node
	group  map[edge.NodeID]int
	cutOne map[[2]edge.NodeID]bool // one-way
	bug    mutant

	withdrawals int
	left        []time.Duration // how long each took from its wish
	violation   string
}

var simStart = time.Unix(1_700_000_000, 0)

func newWorld(seed uint64, p plan, bug mutant) *world {
	w := &world{plan: p, rng: rand.New(rand.NewPCG(seed, 1)), bug: bug, group: map[edge.NodeID]int{}, cutOne: map[[2]edge.NodeID]bool{}}
	for i := range p.nodes {
		b := &box{Node: edge.Node{ID: edge.NodeID(fmt.Sprintf("n%02d", i)), Site: edge.SiteID(fmt.Sprintf("s%02d", i%p.sites))}, owes: map[edge.NodeID]owed{}}
		b.rate = 1 + (w.rng.Float64()*2-1)*p.skew
		b.offset = time.Duration(w.rng.Int64N(int64(time.Hour)))
		b.announcing, b.cached = true, true
		w.boxes = append(w.boxes, b)
		w.roster = append(w.roster, b.Node)
	}
	for i, b := range w.boxes {
		if p.isolate {
			w.group[b.ID] = i
		}
		w.start(b)
	}
	return w
}

func (w *world) at(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{w.now + d, w.seq, do})
}

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d) + 1)) }

func (b *box) clock(t time.Duration) time.Time {
	return simStart.Add(b.offset + time.Duration(float64(t)*b.rate))
}

// start gives the box a fresh process: it knows nothing of the one before.
func (w *world) start(b *box) {
	now := b.clock(w.now)
	boot := now.UnixNano() + w.rng.Int64N(int64(2*time.Minute)) - int64(time.Minute) // the wall clock may have gone back
	roster := slices.Clone(w.roster)
	if w.bug == countsNodes {
		for i := range roster {
			roster[i].Site = edge.SiteID(roster[i].ID)
		}
	}
	started := now
	if w.bug == forgets || b.life == 0 {
		started = now.Add(-w.policy.PromiseLease) // the run begins with settled nodes
	}
	n, err := New(Options{
		Self: b.ID, Boot: boot, Started: started, Rand: w.rng,
		Settings: Settings{Roster: roster, Prefixes: []edge.Prefix{{Net: simPrefix, MinSites: w.floor}}, Policy: w.policy},
		Held:     func(netip.Prefix) bool { return b.cached },
		Sick: func(id edge.NodeID, _ netip.Prefix) bool {
			o := w.boxes[slices.IndexFunc(w.boxes, func(o *box) bool { return o.ID == id })]
			return o.wish.Want && w.rng.IntN(3) > 0
		},
	})
	if err != nil {
		panic(err)
	}
	b.node, b.cached = n, b.announcing
	b.life++
	life := b.life
	if before := b.boot; boot <= before { // gossip shows it its own earlier report
		w.at(w.upTo(time.Second), func() {
			if b.life == life {
				b.node.RaiseBoot(before + 1)
				b.boot = before + 1
			}
		})
	}
	b.boot = max(boot, b.boot)
	w.tick(b, life)
	w.readBack(b, life)
}

func (w *world) tick(b *box, life int) {
	w.at(50*time.Millisecond+w.upTo(100*time.Millisecond), func() {
		if b.life != life || b.node == nil {
			return
		}
		w.send(b, b.node.Tick(b.clock(w.now)))
		w.act(b)
		w.tick(b, life)
	})
}

// readBack refreshes what the node believes that it announces: late.
func (w *world) readBack(b *box, life int) {
	w.at(w.upTo(time.Second), func() {
		if b.life == life && b.node != nil {
			b.cached = b.announcing
			w.readBack(b, life)
		}
	})
}

func (w *world) send(b *box, out []Message) {
	for _, m := range out {
		if m.Kind == Promise {
			b.owes[m.To] = owed{m.Round, b.clock(w.now).Add(m.Lease)}
		}
		if w.rng.Float64() < w.loss {
			continue
		}
		w.post(m)
		if w.rng.Float64() < w.dup {
			w.at(w.upTo(20*time.Second), func() { w.post(m) })
		}
	}
}

func (w *world) post(m Message) {
	d := w.dmin + w.upTo(w.dmax-w.dmin)
	if w.rng.Float64() < w.tail {
		d = w.upTo(30 * time.Second)
	}
	w.at(d, func() {
		if w.group[m.From] != w.group[m.To] || w.cutOne[[2]edge.NodeID{m.From, m.To}] {
			return
		}
		b := w.boxes[slices.IndexFunc(w.boxes, func(b *box) bool { return b.ID == m.To })]
		if b.node == nil {
			return
		}
		if o, ok := b.owes[m.From]; ok && m.Kind == Release && o.round == m.Round {
			delete(b.owes, m.From)
		}
		if w.mutate(b, &m) {
			return
		}
		w.send(b, b.node.Receive(b.clock(w.now), m))
		w.act(b)
	})
}

// act is what edged does: it tells the wish, and leaves when it may.
func (w *world) act(b *box) {
	now := b.clock(w.now)
	wish := b.wish
	wish.Want = wish.Want && b.cached
	w.send(b, b.node.Wish(now, simPrefix, wish))
	if w.bug == ignoresBinding {
		clear(b.node.seats[simPrefix].bound)
	}
	if b.leaving || !b.node.Permit(now, simPrefix).OK {
		return
	}
	until, err := b.node.Begin(now, simPrefix)
	if err != nil {
		return
	}
	b.leaving, b.until = true, until
	w.withdraw(b, b.life, owed{b.node.seats[simPrefix].round.id, until})
}

// withdraw is the request to the speaker: it takes effect a little later, and
// never after its deadline; its answer may be an error all the same.
func (w *world) withdraw(b *box, life int, by owed) {
	took := w.upTo(300 * time.Millisecond)
	if w.slow && w.rng.IntN(4) == 0 {
		took = w.upTo(w.policy.PromiseLease) // as late as the deadline lets it
	}
	fails := w.rng.Float64() < w.fails
	effect := !fails || w.rng.IntN(2) == 0
	answer := took + w.upTo(20*time.Millisecond)
	if fails {
		answer = w.upTo(took) // before the effect, even
	}
	if effect {
		w.at(took, func() {
			if b.life != life && took > 50*time.Millisecond || !b.clock(w.now).Before(by.until) {
				return // the process died before the request went out, or its deadline was met
			}
			w.check(b, by.round)
			b.announcing = false
			b.leftAt = w.now
			w.left = append(w.left, w.now-b.wishedAt)
		})
	}
	w.at(answer, func() {
		if b.life != life || b.node == nil {
			return
		}
		b.leaving = false
		ok := !fails && !b.announcing
		w.send(b, b.node.End(b.clock(w.now), simPrefix, ok))
	})
}

// check is the promise of the product, at the instant of a withdrawal.
func (w *world) check(b *box, r Round) {
	w.withdrawals++
	announce, promised := map[edge.SiteID]bool{}, map[edge.SiteID]bool{}
	for _, o := range w.boxes {
		if o == b {
			continue
		}
		if o.announcing {
			announce[o.Site] = true
		}
		if p, ok := o.owes[b.ID]; ok && p.round == r && o.clock(w.now).Before(p.until) {
			promised[o.Site] = true
		}
	}
	for to, p := range b.owes {
		if b.clock(w.now).Before(p.until) {
			w.fail("%s withdrew though bound to %s", b.ID, to)
		}
	}
	if !announce[b.Site] && len(announce) < w.floor {
		w.fail("%s withdrew and left %d sites, floor %d", b.ID, len(announce), w.floor)
	}
	if !promised[b.Site] && len(promised) < w.floor {
		w.fail("%s withdrew with %d live promises, floor %d", b.ID, len(promised), w.floor)
	}
}

func (w *world) fail(format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf("at %s: ", w.now) + fmt.Sprintf(format, args...)
	}
}

// announcingSites counts the sites that are on the air.
func (w *world) announcingSites() int {
	on := map[edge.SiteID]bool{}
	for _, b := range w.boxes {
		if b.announcing {
			on[b.Site] = true
		}
	}
	return len(on)
}

// run plays the plan until its end or the first violation.
func (w *world) run() {
	w.schedule()
	for len(w.events) > 0 && w.violation == "" {
		e := heap.Pop(&w.events).(event)
		if e.at > w.lastFor {
			return
		}
		w.now = e.at
		e.do()
	}
}
