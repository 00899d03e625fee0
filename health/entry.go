package health

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/catchment-dev/edge"
)

// entry is one probe in the schedule. Its probe never changes: a new definition
// is a new entry. Everything else is guarded by Monitor.mu.
type entry struct {
	probe  edge.Probe
	status edge.Status
	damp   damper
	fail   string // text of the last fail, without notes of unknown runs
	rounds int    // rounds that are over, with or without a result
	// settled: nothing more is to be waited for before the first decision.
	settled bool

	due    time.Time // when the run was to start, jitter aside
	spread bool      // its place in the interval has been drawn
	gone   bool      // not in the set any more: results are thrown away
	stop   context.CancelFunc
	flight *flight // nil: run by a worker. The schedule's, not guarded

	at    time.Time // key in the queue or wheel that holds it
	index int       // place in that queue, or in slot of that wheel; -1: in none
	slot  int
	in    *queue
	wheel *wheel
}

// newEntry takes over what old (nil: none) shows, but not its schedule nor its
// streak.
func newEntry(p edge.Probe, old *entry) *entry {
	e := &entry{probe: p, status: edge.Status{Probe: p.ID}, index: -1}
	if old != nil {
		e.status, e.fail = old.status, old.fail
		e.status.Streak = 0
		e.damp.state = old.damp.state
		e.settled = e.damp.state != edge.Unknown
	}
	return e
}

// result is the outcome of one run.
type result struct {
	err    error
	weight *int // what the target has said of itself; nil: nothing
	end    time.Time
	took   time.Duration
}

// unknown says whether the run has told us nothing about the target. A run that
// failed long after its own deadline is one of those: the probers end when
// their context does, so it was this box that had no time (a paused machine, a
// starved CPU), and its view of the target cannot be believed.
func (r result) unknown(timeout time.Duration) bool {
	if r.err == nil {
		return false
	}
	return errors.Is(r.err, edge.ErrUnknown) || r.took > timeout+max(timeout/2, 250*time.Millisecond)
}

// says returns what a run that is not unknown says of the target.
func (r result) says() edge.ProbeState {
	switch {
	case r.err == nil:
		return edge.Up
	case errors.Is(r.err, edge.ErrFull):
		return edge.Full
	}
	return edge.Down
}

// maxSaid bounds the text of an error, in bytes: it may quote the target, and goes
// into statuses, events, logs and what edgebgp is told.
const maxSaid = 400

// said is an error as an operator reads it: one line, not too long.
func said(err error) string { return cleanTo(err.Error(), maxSaid) }

// record takes in one run and says whether the state has changed.
func (e *entry) record(r result) bool {
	e.status.LastRun, e.status.Took = r.end, r.took
	if r.unknown(e.probe.Timeout) {
		e.note(r)
		return false
	}
	if r.err != nil {
		e.fail = said(r.err)
		e.status.LastErr, e.status.LastErrAt = e.fail, r.end
	}
	says := r.says()
	if says.Alive() {
		// Not damped: a target that is up must be able to lower its share at once.
		e.status.Weight = r.weight
	}
	changed := e.damp.add(says, e.probe.Rise, e.probe.Fall)
	e.status.Streak = e.damp.streak()
	if changed {
		e.status.State, e.status.Since = e.damp.state, r.end
	}
	return changed
}

// sameWeight says whether two weights are alike; nil is one of its own.
func sameWeight(a, b *int) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// note remembers that a round was unknown. The evidence that took a probe down
// stays readable in front of it.
func (e *entry) note(r result) {
	text := said(r.err)
	if !errors.Is(r.err, edge.ErrUnknown) {
		text = edge.ErrUnknown.Error() + ": this box was too busy to end it in time: " + text
	}
	if (e.damp.state == edge.Down || e.damp.state == edge.Full) && e.fail != "" {
		text = e.fail + "; last round unknown: " + text
	}
	e.status.LastErr, e.status.LastErrAt = text, r.end
}

// tick is the grid on which runs start, if their interval is long enough: those
// of a tick start together, and are paid for together. A box that is woken up
// for every run, at 2,000 a second, spends more on that than on the runs.
const tick = 40 * time.Millisecond

// grid returns the distance of the starts that a pause between runs allows: a
// whole part of it, the same for all entries with this pause.
func grid(pause time.Duration) time.Duration {
	return max(1, pause/max((pause+tick-1)/tick, 10))
}

// pause returns how long after the last start the next run is due.
//
// A probe whose state is about to change, and one that is undecided, has its
// FastInterval; but not while the box is starved, which more runs would not help.
// Without one, an undecided probe runs four times as often, so that a start or a
// new definition is decided soon.
//
// An undecided probe that has failed runs at the normal pace: a start is when a
// box is busiest and its parts wait for each other, and to take a site down it
// needs no less evidence than at any other time.
func (e *entry) pause(starved bool) time.Duration {
	p := &e.probe
	switch {
	case !e.damp.decided && e.damp.last == edge.Down:
		return p.Interval
	case p.FastInterval > 0 && !starved && (!e.damp.decided || e.damp.streak() > 0):
		return min(p.Interval, p.FastInterval)
	case p.FastInterval == 0 && !e.damp.decided:
		return min(p.Interval, max(p.Interval/4, 50*time.Millisecond))
	}
	return p.Interval
}

// next works out when the next run is due, after one that ended at now, and when
// it starts. A start that has been missed is made up for at once, but only one.
//
// The first normal wait is drawn from the second half of the interval: probes
// that were set together drift apart and stay so. The place is drawn again after
// the box has stood still for more than a whole interval, and with it all other
// probes.
func (e *entry) next(now, base time.Time, starved bool) (start time.Time) {
	pause := e.pause(starved)
	due := e.due.Add(pause)
	if late := now.Sub(due); late > 0 {
		e.spread = e.spread && late < e.probe.Interval
		e.due = now
		return now
	}
	g := grid(pause)
	due = due.Add(-(due.Sub(base) % g))
	if pause == e.probe.Interval && !e.spread {
		e.spread = true
		due = due.Add(-g * rand.N(max(1, pause/2/g)))
	}
	e.due = due
	if j := min(e.probe.Jitter, pause); j > 0 {
		due = due.Add(rand.N(j) - j/2)
	}
	return due
}

// queue is a heap of entries by time. An entry is in one queue, or one wheel, at
// most.
type queue []*entry

// Len implements heap.Interface.
func (q queue) Len() int { return len(q) }

// Less implements heap.Interface.
func (q queue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }

// Swap implements heap.Interface.
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	e := x.(*entry)
	e.index, e.in = len(*q), q
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil // let the collector have it
	*q = (*q)[:last]
	e.index, e.in = -1, nil
	return e
}

// put adds e with the given key.
func (q *queue) put(e *entry, at time.Time) {
	e.at = at
	heap.Push(q, e)
}

// take removes the first entry if its key is not after now.
func (q *queue) take(now time.Time) *entry {
	if len(*q) == 0 || (*q)[0].at.After(now) {
		return nil
	}
	return heap.Pop(q).(*entry)
}

// remove takes e out of whatever holds it.
func remove(e *entry) {
	switch {
	case e.in != nil:
		heap.Remove(e.in, e.index)
	case e.wheel != nil:
		e.wheel.remove(e)
	}
}
