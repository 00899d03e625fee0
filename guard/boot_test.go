package guard

import (
	"net/netip"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// TestRaisedBootIsItsOwn: two processes that are raised over the same old report have
// different boot ids, above it, or the answers to one would count for the other.
func TestRaisedBootIsItsOwn(t *testing.T) {
	f := newFleet(t, 1, 0)
	seen := map[int64]bool{}
	for range 5 {
		g, err := New(Options{Self: "a", Roster: f.roster, Policy: quick, Keys: [][]byte{key1}, NodeKey: keyOf("a"), Bind: f.roster[0].Gossip, Held: func(netip.Prefix) bool { return true }})
		if err != nil {
			t.Fatal(err)
		}
		g.hearOfSelf(head{boot: maxBoot})
		if g.boot >= maxBoot {
			t.Errorf("boot id %d, which nobody takes", g.boot)
		}
		for _, heard := range []int64{10, maxBoot - 1} {
			g.boot = heard - 1
			if g.hearOfSelf(head{boot: heard}); g.boot <= heard {
				t.Errorf("boot id %d over %d", g.boot, heard)
			}
			if heard == 10 && seen[g.boot] {
				t.Errorf("boot id %d twice", g.boot)
			}
			seen[g.boot] = true
		}
	}
}

// TestClockBackWithoutAReport: a node whose last process had a clock that was ahead and
// has sent signs of life, but no report that arrived, is heard again.
func TestClockBackWithoutAReport(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, 1)
	a, b := f.start(0), f.start(1)
	b.mu.Lock()
	b.boot += int64(time.Hour)
	b.mu.Unlock()
	f.until("a has heard the process with the odd clock", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.bootOf("b") > b.born
	})
	b.stop()
	b = f.start(1)
	f.until("a hears b", func() bool {
		b.Publish(edge.Report{Says: claim("back")})
		m := a.report("b")
		return m.Age >= 0 && m.Age < 2*time.Second
	})
}
