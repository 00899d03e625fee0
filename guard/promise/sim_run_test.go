package promise

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

var calm = edge.Guard{PromiseLease: 10 * time.Second, AskTimeout: time.Second, BackOff: 200 * time.Millisecond}

// TestFloorHolds plays schedules with every kind of fault.
func TestFloorHolds(t *testing.T) {
	const runs, parts = 500, 4
	for part := range parts {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			withdrawals := 0
			for i := range uint64(runs / parts) {
				seed := uint64(part)*1_000_000 + i
				p := randomPlan(seed)
				w := newWorld(seed, p, none)
				w.run()
				if w.violation != "" {
					t.Fatalf("seed %d: %s\n%+v", seed, w.violation, p)
				}
				withdrawals += w.withdrawals
			}
			if withdrawals < runs/parts {
				t.Errorf("only %d withdrawals: the schedules prove nothing", withdrawals)
			}
		})
	}
}

// TestMutantsAreCaught proves that the simulator can fail.
func TestMutantsAreCaught(t *testing.T) {
	for bug, name := range mutantNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(1000) {
				w := newWorld(seed, bug.suits(randomPlan(seed)), bug)
				w.run()
				if w.violation != "" {
					t.Logf("seed %d: %s", seed, w.violation)
					return
				}
			}
			t.Error("lives: no schedule shows it")
		})
	}
}

// TestAllSick: of N sites that all fall sick within two seconds, exactly N-K
// leave.
func TestAllSick(t *testing.T) {
	for _, c := range []struct{ n, k int }{{3, 1}, {3, 2}, {4, 2}, {5, 3}, {12, 8}, {12, 1}} {
		t.Run(fmt.Sprintf("%d of %d stay", c.k, c.n), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(10) {
				w := newWorld(seed, plan{nodes: c.n, sites: c.n, floor: c.k, policy: calm, dmin: 10 * time.Millisecond,
					dmax: 200 * time.Millisecond, sick: c.n, spread: 2 * time.Second, lastFor: 60 * time.Second}, none)
				w.run()
				if w.violation != "" || w.announcingSites() != c.k {
					t.Fatalf("seed %d: %d of %d sites announce, want %d %s", seed, w.announcingSites(), c.n, c.k, w.violation)
				}
			}
		})
	}
}

// TestIsolatedStays: who reaches nobody never leaves.
func TestIsolatedStays(t *testing.T) {
	for n := 3; n <= 12; n++ {
		w := newWorld(uint64(n), plan{nodes: n, sites: n, floor: 1, policy: calm, dmax: time.Millisecond, isolate: true, sick: n, lastFor: 60 * time.Second}, none)
		w.run()
		if w.withdrawals != 0 {
			t.Errorf("%d isolated nodes: %d left", n, w.withdrawals)
		}
	}
}

// TestSickLeavesSoon: while enough sites are healthy and reachable, every sick
// one is out soon. The bounds are those of the reference: 12 sites, floor 8.
func TestSickLeavesSoon(t *testing.T) {
	for _, c := range []struct {
		sick     int
		loss     float64
		p50, p99 time.Duration
	}{{1, 0, time.Second, 2 * time.Second}, {3, 0, 2 * time.Second, 4 * time.Second}, {3, 0.05, 2 * time.Second, 8 * time.Second}} {
		var took []time.Duration
		for seed := range uint64(60) {
			w := newWorld(seed, plan{nodes: 12, sites: 12, floor: 8, policy: calm, dmin: 10 * time.Millisecond, dmax: 200 * time.Millisecond,
				loss: c.loss, sick: c.sick, spread: 2 * time.Second, lastFor: 40 * time.Second}, none)
			w.run()
			if w.violation != "" || w.withdrawals != c.sick {
				t.Fatalf("%d sick, seed %d: %d left %s", c.sick, seed, w.withdrawals, w.violation)
			}
			took = append(took, w.left...)
		}
		slices.Sort(took)
		p50, p99 := took[len(took)/2], took[len(took)*99/100]
		t.Logf("%d sick, loss %.0f %%: p50 %s p99 %s", c.sick, 100*c.loss, p50, p99)
		if p50 > c.p50 || p99 > c.p99 {
			t.Errorf("%d sick, loss %.0f %%: p50 %s p99 %s, want at most %s and %s", c.sick, 100*c.loss, p50, p99, c.p50, c.p99)
		}
	}
}

// TestSiblingSuffices: of a site's two nodes, one may leave for the other's
// promise alone, though the floor cannot be met.
func TestSiblingSuffices(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(seed, plan{nodes: 4, sites: 2, floor: 2, policy: calm, dmax: 50 * time.Millisecond, sick: 1, lastFor: 20 * time.Second}, none)
		w.run()
		if w.withdrawals != 1 || w.announcingSites() != 2 || w.violation != "" {
			t.Fatalf("seed %d: %d left, %d sites announce %s", seed, w.withdrawals, w.announcingSites(), w.violation)
		}
	}
}
