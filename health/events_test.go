package health

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
)

func TestRing(t *testing.T) {
	t.Parallel()
	var r Ring
	if list, next := r.Since(7); len(list) != 0 || next != 0 {
		t.Errorf("empty: %v, next %d", list, next)
	}
	for i := range 5000 {
		r.Add(edge.Event{Subject: fmt.Sprint(i)})
	}
	for _, c := range []struct {
		since        uint64
		first, count int
	}{{0, 904, 4096}, {904, 904, 4096}, {905, 905, 4095}, {4999, 4999, 1}, {5000, 0, 0}, {5001, 904, 4096}} {
		list, next := r.Since(c.since)
		if len(list) != c.count || next != 5000 {
			t.Errorf("since %d: %d events, next %d", c.since, len(list), next)
			continue
		}
		for i, e := range list {
			if e.Subject != fmt.Sprint(c.first+i) {
				t.Fatalf("since %d: event %d is %s", c.since, i, e.Subject)
			}
		}
	}
}

// TestRingTogether: who follows a ring that several write sees each event once.
func TestRingTogether(t *testing.T) {
	t.Parallel()
	var r Ring
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 500 {
				r.Add(edge.Event{})
			}
		})
	}
	var done atomic.Bool
	go func() {
		writers.Wait()
		done.Store(true)
	}()
	seen, since := 0, uint64(0)
	for last := false; !last; {
		last = done.Load()
		var list []edge.Event
		list, since = r.Since(since)
		seen += len(list)
	}
	if seen != 2000 || since != 2000 {
		t.Errorf("saw %d, next is %d", seen, since)
	}
}

// TestEvents: every change of a state is an event, and nothing else is.
func TestEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := atomic.Pointer[error]{}
		set := func(err error) { answer.Store(&err) }
		set(nil)
		m := start(t, Options{}, ProberFunc(func(context.Context, edge.Probe) error { return *answer.Load() }))
		m.Set([]edge.Probe{testProbe("a")})
		full := fmt.Errorf("%w: answered 429", edge.ErrFull)
		for _, err := range []error{nil, edge.ErrUnknown, full, errDown, full, nil} {
			set(err)
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		var got []string
		list, next := m.Events(0)
		for _, e := range list {
			if e.Kind != "probe" || e.Time.IsZero() {
				t.Errorf("%+v", e)
			}
			if e.Subject == "a" {
				got = append(got, e.From+"-"+e.To+": "+e.Evidence)
			}
		}
		want := []string{
			"unknown-up: passed 2 times in a row", "up-full: alive but full: answered 429", "full-down: it is broken",
			"down-full: alive but full: answered 429", "full-up: passed 2 times in a row",
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if list, again := m.Events(next); len(list) != 0 || again != next {
			t.Errorf("nothing has happened, but: %v, %d after %d", list, again, next)
		}
	})
}
