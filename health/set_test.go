package health

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
)

// TestNeverDecided: a probe that cannot run, and one that alternates, do not
// hold up the node for ever.
func TestNeverDecided(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]Prober{
		"cannot run": ProberFunc(func(context.Context, edge.Probe) error { return edge.ErrUnknown }),
		"alternates": func() Prober {
			var n atomic.Int64
			return ProberFunc(func(context.Context, edge.Probe) error {
				if n.Add(1)%2 == 0 {
					return errDown
				}
				return nil
			})
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := start(t, Options{}, p)
				m.Set([]edge.Probe{testProbe("a")})
				<-m.Changed() // of Set
				<-m.Changed()
				if !m.Settled() || status(t, m, "a").State != edge.Unknown {
					t.Errorf("settled %v, %+v", m.Settled(), status(t, m, "a"))
				}
			})
		})
	}
	m := New(Options{})
	m.Set(nil)
	if !m.Settled() {
		t.Error("no probes: nothing to wait for")
	}
}

// TestSetKeeps: what is equal goes on undisturbed, what has changed is decided
// anew while it shows the old state, what is gone is gone.
func TestSetKeeps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := start(t, Options{}, f)
		a, b, c := testProbe("a"), testProbe("b"), testProbe("c")
		m.Set([]edge.Probe{a, b, c})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		before, runs := status(t, m, "a"), len(f.times())
		b.Timeout, b.Path = 100*time.Millisecond, "/new"
		f.answer(errDown, 0)
		m.Set([]edge.Probe{b, a})
		if after := status(t, m, "a"); after != before || len(f.times()) != runs {
			t.Errorf("unchanged probe: %+v, was %+v", after, before)
		}
		if len(m.Statuses()) != 2 {
			t.Errorf("statuses: %+v", m.Statuses())
		}
		time.Sleep(1100 * time.Millisecond) // two runs of b: a fail is followed at the normal pace
		synctest.Wait()
		if s := status(t, m, "b"); s.State != edge.Up || s.Since.IsZero() || s.Streak != 2 || !m.Settled() {
			t.Errorf("changed probe, not decided: %+v, want up still", s)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if s := status(t, m, "b"); s.State != edge.Down {
			t.Errorf("changed probe, after three fails: %+v", s)
		}
	})
}

// TestChangedToTheSame: a new definition that comes to the old result is no
// change of state.
func TestChangedToTheSame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := start(t, Options{}, &fake{})
		p := testProbe("a")
		m.Set([]edge.Probe{p})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		before := status(t, m, "a")
		p.Timeout /= 2
		m.Set([]edge.Probe{p})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s := status(t, m, "a"); s.State != edge.Up || s.Since != before.Since || s.LastRun == before.LastRun {
			t.Errorf("%+v, was %+v", s, before)
		}
	})
}

// TestRemovedWhileRunning: the run is ended, its result is nobody's, and the
// schedule holds nothing of it.
func TestRemovedWhileRunning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{took: time.Hour}
		m := start(t, Options{}, f)
		a, b := testProbe("a"), testProbe("b")
		a.Timeout, a.Fall, b.Interval = time.Hour, 1, time.Hour
		m.Set([]edge.Probe{a})
		synctest.Wait()
		f.answer(nil, 0)
		m.Set([]edge.Probe{b})
		synctest.Wait()
		counts := func(waiting, busy, pending int) {
			t.Helper()
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.waiting.n != waiting || len(m.overdue) != 0 || m.busy != busy || m.pending != pending {
				t.Errorf("waiting %d, overdue %d, busy %d, pending %d", m.waiting.n, len(m.overdue), m.busy, m.pending)
			}
		}
		counts(1, 0, 1)
		if s := m.Statuses(); len(s) != 1 || s[0].Probe != "b" || m.Settled() {
			t.Errorf("%+v, settled %v", s, m.Settled())
		}
		m.Set(nil)
		counts(0, 0, 0)
	})
}

// TestSpread: thousands of first runs are spread, but all inside an interval;
// and they stay spread over it.
func TestSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := start(t, Options{}, f)
		var probes []edge.Probe
		for i := range 4000 {
			p := testProbe(edge.ProbeID(fmt.Sprintf("p%d", i)))
			p.Rise = 1
			probes = append(probes, p)
		}
		begin := time.Now()
		m.Set(probes)
		time.Sleep(time.Second)
		synctest.Wait()
		if s := m.Statuses(); s[0].State != edge.Up || !m.Settled() {
			t.Errorf("after one interval: %+v, settled %v", s[0], m.Settled())
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		buckets := make([]int, 10)
		for _, r := range f.times() {
			if at := r.Sub(begin); at > 8*time.Second && at <= 9*time.Second {
				buckets[(at-8*time.Second-1)/(100*time.Millisecond)]++
			}
		}
		for i, n := range buckets {
			if n < 100 || n > 800 { // evenly: 400; two halves overlaid: 200 to 600
				t.Errorf("tenth %d of a second: %d runs (%v)", i, n, buckets)
			}
		}
	})
}

// TestChurn changes the set while probes of every length run, with the race
// detector on; in the end exactly the last set is there and decided.
func TestChurn(t *testing.T) {
	t.Parallel()
	m := start(t, Options{Workers: 16}, ProberFunc(func(ctx context.Context, p edge.Probe) error {
		select {
		case <-time.After(rand.N(3 * time.Millisecond)):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
	var last []edge.Probe
	for range 300 {
		last = nil
		for i := range 20 + rand.IntN(60) {
			p := edge.Probe{ID: edge.ProbeID(fmt.Sprintf("p%02d", i)), Kind: kindTest, Rise: 1, Fall: 3, Timeout: time.Second}
			p.Interval = time.Duration(10+rand.IntN(2)) * time.Millisecond
			last = append(last, p)
		}
		m.Set(last)
		_ = m.Statuses()
		_ = m.Settled()
		select {
		case <-m.Changed():
		default:
			t.Fatal("Set did not signal")
		}
	}
	eventually(t, "all of the last set are up", func() bool {
		up := 0
		for _, s := range m.Statuses() {
			if s.State == edge.Up {
				up++
			}
		}
		return up == len(last) && len(m.Statuses()) == len(last)
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.waiting.n + len(m.overdue) + m.busy; n > len(last)+16 {
		t.Errorf("%d entries in the schedule, of %d probes", n, len(last))
	}
}
