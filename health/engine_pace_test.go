package health

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
)

// TestFastInterval: as long as the last result disagrees with the state runs
// come faster, and then as before.
func TestFastInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := start(t, Options{}, f)
		p := testProbe("a")
		p.FastInterval = 200 * time.Millisecond
		m.Set([]edge.Probe{p})
		begin := time.Now()
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		if s := status(t, m, "a"); s.State != edge.Up {
			t.Errorf("%s after the start: %+v", time.Since(begin), s)
		}
		time.Sleep(10 * time.Second)
		for _, step := range []struct {
			err  error
			need int
		}{{errDown, 3}, {nil, 2}, {fmt.Errorf("%w: answered 503", edge.ErrFull), 2}} {
			synctest.Wait()
			before := len(f.times())
			f.answer(step.err, 0)
			time.Sleep(20 * time.Second)
			synctest.Wait()
			runs := f.times()[before:]
			for i := range runs[1:] {
				want := time.Second
				if i+1 < step.need {
					want = p.FastInterval
				}
				// The grid of the normal interval is met again within a tick.
				if d := runs[i+1].Sub(runs[i]); d > want || d <= want-tick {
					t.Errorf("%v: run %d came %s after the one before, want %s", step.err, i+1, d, want)
				}
			}
		}
	})
}

// TestUndecided: one that passes is decided fast; one that fails gets as much time
// as at any other, since at a start its target may just be starting too.
func TestUndecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := start(t, Options{}, f)
		p, q := testProbe("a"), testProbe("b")
		p.FastInterval = 100 * time.Millisecond
		m.Set([]edge.Probe{p})
		time.Sleep(201 * time.Millisecond)
		synctest.Wait()
		if s := status(t, m, "a"); s.State != edge.Up {
			t.Errorf("%+v", s)
		}
		f.answer(errDown, 0)
		q.FastInterval = 100 * time.Millisecond
		m.Set([]edge.Probe{p, q})
		time.Sleep(q.Interval)
		synctest.Wait()
		if s := status(t, m, "b"); s.State != edge.Unknown || s.Streak == 0 {
			t.Errorf("after an interval: %+v", s)
		}
		time.Sleep(2 * q.Interval)
		synctest.Wait()
		if s := status(t, m, "b"); s.State != edge.Down {
			t.Errorf("after three: %+v", s)
		}
	})
}

// TestJitter: starts move about, but by half of it at most, and the pace stays.
func TestJitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := start(t, Options{}, f)
		p := testProbe("a")
		p.Jitter = 400 * time.Millisecond
		m.Set([]edge.Probe{p})
		time.Sleep(1001 * time.Second)
		synctest.Wait()
		runs := f.times()
		if len(runs) < 998 || len(runs) > 1005 {
			t.Errorf("%d runs in 1001 s", len(runs))
		}
		first := runs[3]
		least, most := time.Hour, -time.Hour
		for i, at := range runs[3:] {
			off := at.Sub(first) - time.Duration(i)*time.Second
			least, most = min(least, off), max(most, off)
		}
		if d := most - least; d < p.Jitter*9/10 || d > p.Jitter+slack {
			t.Errorf("starts are %s to %s off the pace, want a span of %s", least, most, p.Jitter)
		}
	})
}

// TestTogether: the runs of many probes start in few batches, each probe at an
// even pace all the same.
func TestTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := start(t, Options{}, f)
		var probes []edge.Probe
		for i := range 500 {
			probes = append(probes, testProbe(edge.ProbeID(fmt.Sprint(i))))
		}
		m.Set(probes)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		before := len(f.times())
		time.Sleep(10 * time.Second)
		synctest.Wait()
		starts := map[time.Time]int{}
		for _, at := range f.times()[before:] {
			starts[at]++
		}
		if n := int(10 * time.Second / tick); len(starts) > n+1 || len(starts) < n/2 {
			t.Errorf("%d wake-ups in 10 s, want about %d", len(starts), n)
		}
	})
}

func TestGrid(t *testing.T) {
	t.Parallel()
	for pause, want := range map[time.Duration]time.Duration{
		10 * time.Millisecond:   time.Millisecond,
		200 * time.Millisecond:  20 * time.Millisecond,
		time.Second:             tick,
		30 * time.Second:        tick,
		time.Hour:               tick,
		1010 * time.Millisecond: 1010 * time.Millisecond / 26,
		5:                       1,
	} {
		if got := grid(pause); got != want {
			t.Errorf("grid(%s) is %s, want %s", pause, got, want)
		}
	}
}
