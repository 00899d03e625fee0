package promise

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestMutantsAreCaught proves that the simulator can fail.
func TestMutantsAreCaught(t *testing.T) {
	for m := none + 1; m < mutants; m++ {
		t.Run(strings.ReplaceAll(m.String(), " ", "-"), func(t *testing.T) {
			t.Parallel()
			for _, kind := range proofs[m].kinds {
				m.caught(t, string(kind))
			}
		})
	}
}

// caught looks for a schedule that shows m by a violation of this kind.
func (m mutant) caught(t *testing.T, kind string) {
	t.Helper()
	const most = 20_000
	for seed := range uint64(most) {
		if v := play(m.suits(randomPlan(seed)), m, kind).violation; v != "" {
			t.Logf("seed %d: %s", seed, v)
			return
		}
	}
	t.Errorf("lives: none of %d schedules shows it by %q", most, kind)
}

// TestShrink makes of a schedule that shows a mutant one that a reader can follow.
func TestShrink(t *testing.T) {
	for _, m := range []mutant{goneStays, countsNodes} {
		p := firstToShow(t, m)
		least, what := shrink(p, m, "a")
		if what == "" || play(least, m, "a").violation != what {
			t.Fatalf("%s: the plan that came out does not fail: %s", m, least)
		}
		if least.Nodes > 4 || len(least.Faults) > 4 || least.Nets != 1 || least.Skew != 0 || len(least.Faults) >= len(p.Faults) {
			t.Errorf("%s: from %d nodes, %d faults to no less than\n%s", m, p.Nodes, len(p.Faults), least)
		}
		if v := play(least, none, "").violation; v != "" {
			t.Errorf("%s: it fails without the mutant too: %s", m, v)
		}
		path, err := least.keep(t.TempDir(), what)
		if err != nil {
			t.Fatal(err)
		}
		again, err := readPlan(path)
		if err != nil {
			t.Fatal(err)
		}
		if again.String() != least.String() || play(again, m, "a").violation != what {
			t.Errorf("%s: kept otherwise than it was:\n%s\n%s", m, least, again)
		}
		t.Logf("%s: %s\n%s", m, what, least)
	}
}

func firstToShow(t *testing.T, m mutant) *plan {
	t.Helper()
	for seed := range uint64(20_000) {
		p := randomPlan(seed)
		if p.Nodes > 5 && len(p.Faults) > 5 && play(p, m, "a").violation != "" {
			return p
		}
	}
	t.Fatalf("%s: no schedule shows it", m)
	return nil
}

// TestAllSick: of N sites that all fall sick within two seconds, exactly N-K
// leave.
func TestAllSick(t *testing.T) {
	for _, c := range []struct{ n, k int }{{3, 1}, {3, 2}, {4, 2}, {5, 3}, {12, 8}, {12, 1}} {
		t.Run(fmt.Sprintf("%d of %d stay", c.k, c.n), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(10) {
				p := calmPlan(seed, c.n, c.k)
				p.DelayMin, p.DelayMax = 10*time.Millisecond, 200*time.Millisecond
				p.sicken(c.n, 2*time.Second)
				w := play(p, none, "")
				if w.violation != "" || c.n-w.withdrawals != c.k {
					t.Fatalf("seed %d: %d of %d sites stay, want %d %s", seed, c.n-w.withdrawals, c.n, c.k, w.violation)
				}
			}
		})
	}
}

// TestIsolatedStays: who reaches nobody never leaves.
func TestIsolatedStays(t *testing.T) {
	for n := 3; n <= maxSites; n++ {
		p := calmPlan(uint64(n), n, 1)
		p.sicken(n, time.Second)
		p.Faults = append(p.Faults, fault{Kind: faultOneWay, From: 1<<n - 1, To: 1<<n - 1})
		if w := play(p, none, ""); w.violation != "" || w.withdrawals != 0 {
			t.Errorf("%d isolated nodes: %d left %s", n, w.withdrawals, w.violation)
		}
	}
}

// TestSiblingSuffices: of a site's two nodes, one may leave for the other's
// promise alone, though the floor cannot be met; the last may not.
func TestSiblingSuffices(t *testing.T) {
	for seed := range uint64(20) {
		p := calmPlan(seed, 2, 2)
		p.Nodes, p.For = 4, 20*time.Second
		p.Faults = []fault{{Kind: faultSick, Node: 0, Nets: 1}}
		if w := play(p, none, ""); w.withdrawals != 1 || w.violation != "" {
			t.Fatalf("seed %d: %d left %s", seed, w.withdrawals, w.violation)
		}
		p.Faults = append(p.Faults, fault{Kind: faultSick, Node: 2, Nets: 1})
		if w := play(p, none, ""); w.withdrawals != 1 || w.violation != "" {
			t.Fatalf("seed %d, both sick: %d left %s", seed, w.withdrawals, w.violation)
		}
	}
}

// TestDrainsOneByOne: orders that come together are carried out, no more at a
// time than may, and none is left over.
func TestDrainsOneByOne(t *testing.T) {
	for seed := range uint64(20) {
		p := calmPlan(seed, 8, 3)
		p.Nets, p.Confs[0].Planned = 2, 1
		for node := range 5 {
			p.Faults = append(p.Faults, fault{Kind: faultDrain, Node: node, Nets: 3})
		}
		if w := play(p, none, ""); w.withdrawals != 10 || w.violation != "" {
			t.Fatalf("seed %d: %d left %s", seed, w.withdrawals, w.violation)
		}
	}
}

// TestLeavesPerMinute: of many prefixes a sick node takes away only so many in a
// minute, and all in the end.
func TestLeavesPerMinute(t *testing.T) {
	for seed := range uint64(3) {
		p := calmPlan(seed, 3, 1)
		p.Nets, p.Confs[0].Leaves, p.For = 14, 0.5, 2*time.Minute
		p.Faults = []fault{{Kind: faultSick, Node: 1, Nets: 1<<14 - 1}}
		if w := play(p, none, ""); w.withdrawals != 14 || w.violation != "" {
			t.Errorf("seed %d: %d left in two minutes, want 14 %s", seed, w.withdrawals, w.violation)
		}
		p.For = 50 * time.Second
		if w := play(p, none, ""); w.withdrawals != 10 {
			t.Errorf("seed %d: %d left in the first minute, want 10", seed, w.withdrawals)
		}
	}
}
