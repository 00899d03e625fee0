// Package health runs the probes of a node, damps their results and works out,
// through the dependency graph, how fit each prefix is to be announced.
//
// It owns the schedule of the probes, their sockets, their last errors and the
// history of their states. It never decides what is announced, never opens a
// probe of kind vip, forwarder, regions, bgp or bfd by itself (cmd/edged brings
// those in) and never takes a probe that could not run for a failure. It runs in
// edged.
package health

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
)

// Prober runs one probe once.
//
// A nil error is a pass. An error that wraps edge.ErrFull says that the target is
// alive but takes no more. One that wraps edge.ErrUnknown says that the probe
// could not run: the state stays as it is. Any other error is a fail, and
// its text is what an operator reads: keep it the same while the cause is the
// same. Probe must return soon after ctx ends. It is called by several
// goroutines at once, though never twice for one definition of a probe.
type Prober interface {
	Probe(ctx context.Context, p edge.Probe) error
}

// Weigher is a Prober whose targets can say their weight. A monitor asks it by
// Weigh, which is Probe but for the weight: nil if the answer says none, or none
// that can be read. The weight of a run that fails does not count.
type Weigher interface {
	Prober
	Weigh(ctx context.Context, p edge.Probe) (*int, error)
}

// ProberFunc is a function that is a Prober.
type ProberFunc func(ctx context.Context, p edge.Probe) error

// Probe calls f.
func (f ProberFunc) Probe(ctx context.Context, p edge.Probe) error { return f(ctx, p) }

// DefaultWorkers is how many probes run at once at most, unless Options says
// otherwise; those of kind tcp, and http without TLS, do not count: they need no
// worker. A worker is a goroutine only while a probe runs, so the number is a
// bound on sockets and memory in the worst case (every target silent).
const DefaultWorkers = 1024

// Options are the parts and bounds of a Monitor. The zero value is usable: the
// kinds that need nothing but this box and its network, and no log.
type Options struct {
	// Probers run the kinds that are not built in; one that is, is replaced.
	// They are run by workers.
	Probers map[edge.ProbeKind]Prober
	// Log gets one line for each change of state; nil: none.
	Log *slog.Logger
	// Workers is how many probes they run at once at most; below 1: DefaultWorkers.
	Workers int
	// Events gets one event for each change of state; nil: a ring of its own.
	Events *Ring
}

// Monitor keeps a set of probes running and knows the state of each. All its
// methods may be called by several goroutines at once, Run only once.
type Monitor struct {
	probers map[edge.ProbeKind]Prober
	native  map[edge.ProbeKind]bool // the engine runs them, as far as it can
	log     *slog.Logger
	workers int
	base    time.Time // where the grid of starts begins

	ready   chan struct{} // closed when the schedule runs
	changed chan struct{} // size 1: somebody should look
	wake    chan struct{} // size 1: the schedule has a new head
	ring    *Ring

	// These belong to the goroutine of the schedule.
	engine *engine
	begun  []*entry // what the engine has begun since the last turn
	due    []*entry // kept for its room

	mu      sync.Mutex
	probes  map[edge.ProbeID]*entry
	waiting wheel     // by when the next run starts
	overdue queue     // due, no worker free; by when the run is given up
	flying  wheel     // in the engine for longer than a moment; by when their time is over
	until   time.Time // how long the schedule sleeps, unless it is roused
	dropped []*entry  // the engine is to forget them
	busy    int       // workers at work
	isSet   bool      // Set has been called
	pending int       // entries that are not settled
	settled bool      // latched: the first full round is over
	canary  canary
	counts  Counts
}

// Counts are of runs that are over, since New.
type Counts struct {
	// Runs is how many there were, Unknown how many of them could not say
	// anything of their target.
	Runs, Unknown uint64
}

// New returns a monitor without probes. Nothing runs before Run.
func New(o Options) *Monitor {
	m := &Monitor{
		probers: builtinKinds(),
		native:  map[edge.ProbeKind]bool{edge.ProbeTCP: true, edge.ProbeHTTP: true},
		log:     o.Log,
		workers: o.Workers,
		base:    time.Now(),
		ready:   make(chan struct{}),
		changed: make(chan struct{}, 1),
		wake:    make(chan struct{}, 1),
		engine:  newEngine(),
		ring:    cmp.Or(o.Events, &Ring{}),
		probes:  map[edge.ProbeID]*entry{},
	}
	m.waiting.base, m.flying.base = m.base, m.base
	m.canary = newCanary(m.base)
	m.probers[edge.ProbeProcess] = ProberFunc(probeProcess)
	m.probers[edge.ProbeTCP] = ProberFunc(probeTCP)
	m.probers[edge.ProbeHTTP] = HTTP{}
	for kind, p := range o.Probers {
		m.probers[kind], m.native[kind] = p, false
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.workers < 1 {
		m.workers = DefaultWorkers
	}
	return m
}

// String names the task.
func (m *Monitor) String() string { return "health" }

// Ready is closed when Run has started the schedule. It says nothing of the
// results: for those there is Settled.
func (m *Monitor) Ready() <-chan struct{} { return m.ready }

// Changed gets a value after a state, a weight, the text of a down probe's error,
// the set of probes or Settled has changed. It holds one value: a reader that is slow
// sees many changes as one, and never makes a probe wait.
func (m *Monitor) Changed() <-chan struct{} { return m.changed }

// Set makes probes the whole set. A probe that is equal to the one of the same
// id keeps its state and its place in the schedule; one that is gone is stopped
// and vanishes; a new one runs at once and is Unknown until decided.
//
// A probe whose definition has changed is decided anew, by Rise passes or Fall
// fails of the new definition and at the fast pace of a new one while it
// passes, but until then it goes on showing the state of the old: a reload that touches the
// timeout of every probe must not make the whole site unknown.
//
// Of two probes with one id the last is taken. An Interval, or a FastInterval
// that is not 0, below 10 ms is raised to that; a Timeout that is not positive becomes the Interval.
func (m *Monitor) Set(probes []edge.Probe) {
	want := make(map[edge.ProbeID]edge.Probe, len(probes))
	for _, p := range probes {
		want[p.ID] = bounded(p)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var started []*entry
	next := make(map[edge.ProbeID]*entry, len(want))
	for id, p := range want {
		e := m.probes[id]
		if e == nil || e.probe != p {
			e = m.entry(p, e)
			started = append(started, e)
		}
		next[id] = e
	}
	for id, e := range m.probes {
		if next[id] != e {
			m.drop(e)
		}
	}
	m.probes, m.isSet = next, true
	m.startSoon(started, time.Now())
	m.pending = 0
	for _, e := range next {
		if !e.settled {
			m.pending++
		}
	}
	m.settle()
	m.rouse()
	signal(m.changed)
}

// entry makes the entry of a new definition.
func (m *Monitor) entry(p edge.Probe, old *entry) *entry {
	e := newEntry(p, old)
	if m.native[p.Kind] {
		e.flight = newFlight(e)
	}
	return e
}

// Statuses returns the state of every probe, by id in ascending order.
func (m *Monitor) Statuses() []edge.Status {
	m.mu.Lock()
	out := make([]edge.Status, 0, len(m.probes))
	for _, e := range m.probes {
		out = append(out, e.status)
	}
	m.mu.Unlock()
	slices.SortFunc(out, func(a, b edge.Status) int { return cmp.Compare(a.Probe, b.Probe) })
	return out
}

// Events returns the changes of probes' states with the number since and higher,
// as far as they are among the last 4096, and the number to ask for next time.
// See Ring.Since.
func (m *Monitor) Events(since uint64) (list []edge.Event, next uint64) { return m.ring.Since(since) }

// Counts returns how many runs there have been.
func (m *Monitor) Counts() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts
}

// Settled says whether the first full round of the first set is over: every
// probe has been decided, or has gone through more than max(Rise, Fall) rounds
// without a decision (it could not be run, or its results alternate), so that
// one probe that can never run does not hold up the node for ever.
//
// It stays true: a probe that a later Set adds is Unknown, which the graph
// keeps to the prefixes that need it. It is false before the first Set, and
// true after a Set of no probes.
func (m *Monitor) Settled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.settled
}

// settle latches settled once nothing is pending. The caller holds m.mu.
func (m *Monitor) settle() {
	if m.isSet && m.pending == 0 && !m.settled {
		m.settled = true
		signal(m.changed)
	}
}

// bounded makes p safe to schedule, whatever the configuration let through.
func bounded(p edge.Probe) edge.Probe {
	p.Interval = max(p.Interval, 10*time.Millisecond)
	if p.Timeout <= 0 {
		p.Timeout = p.Interval
	}
	if p.FastInterval > 0 {
		p.FastInterval = max(p.FastInterval, 10*time.Millisecond)
	}
	p.Rise, p.Fall = max(p.Rise, 1), max(p.Fall, 1)
	return p
}

// signal puts a value into a channel of size 1, or finds one there.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
