package health

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge"
)

// startGap is the room that each of many first runs gets: a handful start at
// once, thousands over an interval or less instead of in one burst of sockets.
const startGap = 500 * time.Microsecond

// slack is the shortest sleep of the schedule, but for runs of the engine that
// end: what is due within it starts together.
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

// schedule sleeps until a run is due, and gives it to the engine or a worker.
func (m *Monitor) schedule(ctx context.Context, spawn func(*entry)) {
	defer m.closeEngine()
	defer context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.rouse()
	})()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		t := m.turn(time.Now(), spawn)
		if len(m.engine.ends) == 0 {
			m.sleep(ctx, timer, t)
		}
	}
}

// closeEngine is done under the lock, so that nobody rings the bell meanwhile.
func (m *Monitor) closeEngine() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.engine.close()
	m.canary.close()
}

// rouse has the schedule look again at once. The caller holds m.mu.
func (m *Monitor) rouse() {
	signal(m.wake)
	m.engine.ring()
}

// sleep waits as long as a turn has said, or until somebody rouses it. Whatever the
// engine has to do, it does meanwhile.
func (m *Monitor) sleep(ctx context.Context, timer *time.Timer, t turn) {
	g := m.engine
	if g.flights == 0 {
		timer.Reset(time.Until(t.until))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-m.wake:
		}
		return
	}
	g.wait(t.until, m.wake)
}

// turn is what one round of the schedule has found to do.
type turn struct {
	changes       []change
	dropped, late []*entry // of the engine: to be forgotten; out of time
	canary        bool     // its run is over
	wait          time.Duration
	until         time.Time // that is the end of wait
}

// turn takes in what is over, starts what is due, and gives up what has waited
// too long for a worker.
func (m *Monitor) turn(now time.Time, spawn func(*entry)) turn {
	g := m.engine
	t := m.dispatch(now, spawn)
	m.report(t.changes)
	for _, e := range t.dropped {
		g.abort(e.flight)
	}
	if len(t.late) > 0 {
		g.advance() // this process may have stood still, and their answers be there
		g.look()
		now = time.Now()
		for _, e := range t.late {
			g.expire(e.flight, now)
		}
	}
	if t.canary {
		m.canary.drain()
		g.trim() // as good a moment as any
	}
	for _, e := range m.begun {
		if e.flight != nil {
			g.begin(e.flight)
		}
	}
	return t
}

// dispatch is the part of a turn that holds m.mu.
func (m *Monitor) dispatch(now time.Time, spawn func(*entry)) turn {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := turn{wait: time.Hour} // nothing to do: Set rouses us
	if m.canary.sane && now.Sub(m.until) > canaryTimeout {
		m.watch(&t, func(c *canary) (result, bool) { return c.overslept(now) })
	}
	m.land(now, &t)
	t.late = m.flying.take(now, nil)
	t.dropped, m.dropped = m.dropped, nil
	m.startCanary(now, &t)
	m.due = m.waiting.take(now, m.due[:0])
	for _, e := range m.due {
		if e.flight != nil {
			m.begun = append(m.begun, e)
			t.wait = min(t.wait, e.probe.Timeout)
		} else {
			m.overdue.put(e, now.Add(e.probe.Timeout))
		}
	}
	clear(m.due)
	m.giveUp(now)
	for m.busy < m.workers && len(m.overdue) > 0 {
		m.busy++
		spawn(heap.Pop(&m.overdue).(*entry))
	}
	if len(m.overdue) > 0 {
		t.wait = min(t.wait, m.overdue[0].at.Sub(now))
	}
	for _, w := range []*wheel{&m.waiting, &m.flying} {
		if at, ok := w.next(); ok {
			t.wait = min(t.wait, at.Sub(now))
		}
	}
	t.wait = max(t.wait, slack)
	t.until = now.Add(t.wait)
	m.until = t.until
	return t
}

// land takes in the runs of the engine that are over, and sees to the time of
// those that are not. The caller holds m.mu.
func (m *Monitor) land(now time.Time, t *turn) {
	g := m.engine
	for _, end := range g.ends {
		if end.e == m.canary.entry {
			t.canary = true
			m.watch(t, func(c *canary) (result, bool) { return c.land(end.r) })
			continue
		}
		if c, ok := m.record(end.e, end.r); ok {
			t.changes = append(t.changes, c)
		}
	}
	clear(g.ends)
	g.ends = g.ends[:0]
	for _, e := range m.begun {
		if e.flight != nil && e.flight.phase != idle && !e.gone {
			m.flying.put(e, e.flight.start.Add(e.probe.Timeout))
		}
	}
	clear(m.begun)
	m.begun = m.begun[:0]
}

// giveUp ends the rounds that found no worker in time. That says something of
// this box and nothing of the target: the round is unknown. The caller holds
// m.mu.
func (m *Monitor) giveUp(now time.Time) {
	for e := m.overdue.take(now); e != nil; e = m.overdue.take(now) {
		e.note(result{err: fmt.Errorf("%w: no worker free for %s", edge.ErrUnknown, e.probe.Timeout), end: now})
		m.counts.Runs++
		m.counts.Unknown++
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
	remove(e)
	m.waiting.put(e, e.next(now, m.base, m.canary.starved(now)))
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

// change is a change of state, for the log.
type change struct {
	edge.Event
	err    string
	canary bool
}

// finish records the result of a worker's run and schedules the next.
func (m *Monitor) finish(e *entry, r result) {
	m.mu.Lock()
	c, ok := m.record(e, r)
	if !e.gone && e.at.Before(m.until) {
		m.rouse()
	}
	m.mu.Unlock()
	if ok {
		m.report([]change{c})
	}
}

func (m *Monitor) report(changes []change) {
	for _, c := range changes {
		if c.canary {
			m.log.Warn("this box's own canary changed state", "from", c.From, "to", c.To, "error", c.err)
			continue
		}
		m.log.Info("probe changed state", "probe", c.Subject, "from", c.From, "to", c.To, "error", c.err)
	}
}

// record takes in a run, schedules the next, and says whether the state has
// changed. The caller holds m.mu.
func (m *Monitor) record(e *entry, r result) (c change, changed bool) {
	if e.gone {
		return c, false
	}
	if r.says() == edge.Down && !errors.Is(r.err, edge.ErrUnknown) && m.canary.starved(r.end) {
		r.err = fmt.Errorf("%w: this box was too busy to judge (see the canary): %v", edge.ErrUnknown, r.err)
	}
	m.counts.Runs++
	if r.unknown(e.probe.Timeout) {
		m.counts.Unknown++
	}
	from, was := e.damp.state, e.status
	e.stop = nil
	if changed = e.record(r); changed {
		c = m.event(e, from, r)
	}
	shown := e.damp.state == edge.Down || e.damp.state == edge.Full
	if changed || shown && e.status.LastErr != was.LastErr || !sameWeight(e.status.Weight, was.Weight) {
		signal(m.changed)
	}
	m.again(e, r.end)
	return c, changed
}

// event puts a change of state into the ring.
func (m *Monitor) event(e *entry, from edge.ProbeState, r result) change {
	c := change{Event: edge.Event{
		Time: r.end, Kind: "probe", Subject: string(e.probe.ID), From: from.String(), To: e.damp.state.String(),
		Evidence: "passed",
	}}
	if r.err != nil {
		c.err = said(r.err)
		c.Evidence = c.err
	} else if e.damp.run > 1 {
		c.Evidence = fmt.Sprintf("passed %d times in a row", e.damp.run)
	}
	m.ring.Add(c.Event)
	return c
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
	if e.flight != nil {
		m.dropped = append(m.dropped, e)
	}
	if e.stop != nil {
		e.stop()
	}
}
