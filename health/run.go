package health

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge"
)

// startGap is the room that each of many first runs gets: a handful start at
// once, thousands over an interval or less instead of in one burst of sockets.
const startGap = 500 * time.Microsecond

// slack is the shortest sleep of the schedule: runs that are due within it start
// together. To wake up for each of 2,000 runs a second costs more than half of
// what all the rest of the schedule does.
const slack = 5 * time.Millisecond

// Run keeps the probes running until ctx ends, then ends those that are in
// flight without recording their results, and returns nil.
func (m *Monitor) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		m.schedule(ctx, func(e *entry) {
			g.Go(func() error {
				m.work(ctx, e)
				return nil
			})
		})
		return nil
	})
	close(m.ready)
	return g.Wait()
}

// schedule sleeps until a run is due and hands it to a worker.
func (m *Monitor) schedule(ctx context.Context, spawn func(*entry)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(max(slack, m.dispatch(time.Now(), spawn)))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-m.wake:
		}
	}
}

// dispatch starts what is due at now, gives up what has waited too long for a
// worker, and returns how long until there is something to do again.
func (m *Monitor) dispatch(now time.Time, spawn func(*entry)) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := m.waiting.take(now); e != nil; e = m.waiting.take(now) {
		m.overdue.put(e, now.Add(e.probe.Timeout))
	}
	m.giveUp(now)
	for m.busy < m.workers && len(m.overdue) > 0 {
		m.busy++
		spawn(heap.Pop(&m.overdue).(*entry))
	}
	wait := time.Hour // nothing to do: Set wakes us
	if len(m.waiting) > 0 {
		wait = min(wait, m.waiting[0].at.Sub(now))
	}
	if len(m.overdue) > 0 {
		wait = min(wait, m.overdue[0].at.Sub(now))
	}
	return wait
}

// giveUp ends the rounds that found no worker in time. That says something of
// this box and nothing of the target: the round is unknown. The caller holds
// m.mu.
func (m *Monitor) giveUp(now time.Time) {
	for e := m.overdue.take(now); e != nil; e = m.overdue.take(now) {
		e.note(result{err: fmt.Errorf("%w: no worker free for %s", edge.ErrUnknown, e.probe.Timeout), end: now})
		m.again(e, now)
	}
}

// again ends a round of e and schedules the next. The caller holds m.mu.
func (m *Monitor) again(e *entry, now time.Time) {
	e.rounds++
	if !e.settled && (e.damp.decided || e.rounds > max(e.probe.Rise, e.probe.Fall)) {
		e.settled = true
		m.pending--
		m.settle()
	}
	e.due = e.next(now)
	m.waiting.put(e, e.due)
}

// work runs e and then whatever else waits for a worker.
func (m *Monitor) work(ctx context.Context, e *entry) {
	for e != nil {
		m.run(ctx, e)
		e = m.nextOverdue(ctx)
	}
}

// nextOverdue returns the waiting run that will be given up soonest, or frees
// the worker.
func (m *Monitor) nextOverdue(ctx context.Context) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.overdue) == 0 || ctx.Err() != nil {
		m.busy--
		return nil
	}
	return heap.Pop(&m.overdue).(*entry)
}

// run runs e once.
func (m *Monitor) run(parent context.Context, e *entry) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(parent, e.probe.Timeout)
	defer cancel()
	if !m.begin(e, cancel) {
		return
	}
	w, err := m.probe(ctx, e.probe)
	end := time.Now()
	if parent.Err() != nil {
		return // we are stopping: what the prober says now is about us
	}
	m.finish(e, result{err: err, weight: w, end: end, took: end.Sub(start)})
}

// begin lets Set end the run, and says whether e is still wanted.
func (m *Monitor) begin(e *entry, stop context.CancelFunc) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.stop = stop
	return !e.gone
}

func (m *Monitor) probe(ctx context.Context, p edge.Probe) (*int, error) {
	switch prober := m.probers[p.Kind].(type) {
	case nil:
		return nil, fmt.Errorf("%w: this process has no prober of kind %q", edge.ErrUnknown, p.Kind)
	case Weigher:
		return prober.Weigh(ctx, p)
	default:
		return nil, prober.Probe(ctx, p)
	}
}

// finish records the result of a run and schedules the next.
func (m *Monitor) finish(e *entry, r result) {
	from, to, changed := m.recordRun(e, r)
	if !changed {
		return
	}
	text := ""
	if r.err != nil {
		text = r.err.Error()
	}
	m.log.Info("probe changed state", "probe", e.probe.ID, "from", from, "to", to, "error", text)
}

func (m *Monitor) recordRun(e *entry, r result) (from, to edge.ProbeState, changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.gone {
		return 0, 0, false
	}
	from, was := e.damp.state, e.status
	changed = e.record(r)
	to, e.stop = e.damp.state, nil
	if changed || to == edge.Down && e.status.LastErr != was.LastErr || !sameWeight(e.status.Weight, was.Weight) {
		signal(m.changed)
	}
	m.again(e, r.end)
	if e.index == 0 {
		signal(m.wake)
	}
	return from, to, changed
}

// startSoon schedules the first runs of new entries. The caller holds m.mu.
func (m *Monitor) startSoon(entries []*entry, now time.Time) {
	burst := time.Duration(len(entries)) * startGap
	for _, e := range entries {
		e.due = now
		if burst > slack {
			e.due = now.Add(rand.N(min(burst, e.probe.Interval)))
		}
		m.waiting.put(e, e.due)
	}
}

// drop takes e out of the schedule and ends its run. The caller holds m.mu.
func (m *Monitor) drop(e *entry) {
	e.gone = true
	remove(e)
	if e.stop != nil {
		e.stop()
	}
}
