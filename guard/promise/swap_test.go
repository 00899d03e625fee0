package promise

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// layered is a fleet of one node a site with both layers: edge.Decide above, the
// protocol below, with reports that are a second old.
type layered struct {
	*rig
	health map[edge.NodeID]edge.Condition
	last   map[edge.NodeID]edge.Decision
	swaps  map[edge.NodeID]edge.Swap
	told   []edge.MemberState
	gone   map[edge.NodeID]int // how often it has withdrawn
	floor  int
	least  int // announcing, after a withdrawal
}

func newLayered(t *testing.T, floor int, names ...string) *layered {
	l := &layered{rig: newRig(t, floor, names...), health: map[edge.NodeID]edge.Condition{}, last: map[edge.NodeID]edge.Decision{},
		swaps: map[edge.NodeID]edge.Swap{}, gone: map[edge.NodeID]int{}, floor: floor, least: len(names)}
	for id := range l.nodes {
		l.be(id, 0)
	}
	return l
}

// be makes a site so sick; 0: well, below: as well as if it were dead.
func (l *layered) be(id edge.NodeID, severity int) {
	l.health[id] = edge.Condition{Health: edge.Healthy, Since: l.now}
	if severity > 0 {
		l.health[id] = edge.Condition{Health: edge.Sick, Since: l.now, Severity: severity, Reason: "sick"}
	}
}

func (l *layered) announcing() (out []edge.NodeID) {
	for _, id := range slices.Sorted(maps.Keys(l.held)) {
		if l.held[id] && !l.cut[id] {
			out = append(out, id)
		}
	}
	return out
}

// turn is a quarter of a second: each site decides, and acts.
func (l *layered) turn() {
	for range 3 {
		l.pass(100 * time.Millisecond)
		for _, id := range slices.Sorted(maps.Keys(l.nodes)) {
			if !l.cut[id] {
				l.decide(id)
			}
		}
	}
}

func (l *layered) decide(id edge.NodeID) {
	n, was := l.nodes[id], l.last[id]
	f := edge.Facts{
		Now: l.now, Last: was, Settled: true, OnAir: l.held[id], Condition: l.health[id], Permit: n.Permit(l.now, net1),
		Floor: l.floor, Others: l.others(id), Hold: 30 * time.Second,
	}
	if was.Rung == edge.Withdrawn {
		f.Worse = l.worse(id, was.Severity)
	}
	d := edge.Decide(net1, f)
	l.deliver(n.Wish(l.now, net1, Wish{Want: d.Rung.WantsOut(), Severity: d.Severity, Reason: d.Reason}))
	if d.Rung.WantsOut() && n.Permit(l.now, net1).OK {
		l.leave(id)
		l.gone[id]++
		l.least = min(l.least, len(l.announcing()))
		f.OnAir = false
		d = edge.Decide(net1, f)
	}
	if d.Rung.OnAir() {
		l.held[id] = true
	}
	l.last[id] = d
}

func (l *layered) worse(id edge.NodeID, severity int) edge.Worse {
	w, better := edge.WorseElsewhere(net1, edge.SiteID(id[:1]), severity, l.told, 10*time.Second)
	if w == (edge.Worse{}) {
		delete(l.swaps, id)
		return w
	}
	if l.swaps[id] = l.swaps[id].Next(l.now, better); !l.swaps[id].Over(l.now) {
		return edge.Worse{}
	}
	return w
}

func (l *layered) others(id edge.NodeID) (n int) {
	for _, m := range l.told {
		if m.Node != id && m.Alive && m.Report.Says[0].Announcing {
			n++
		}
	}
	return n
}

// gossip has all hear what is so now.
func (l *layered) gossip() {
	l.told = nil
	for _, id := range slices.Sorted(maps.Keys(l.nodes)) {
		d, p := l.last[id], l.nodes[id].Permit(l.now, net1)
		l.told = append(l.told, edge.MemberState{Node: id, Site: edge.SiteID(id[:1]), Alive: !l.cut[id], Report: edge.Report{Says: []edge.Claim{{
			Prefix: net1, Announcing: l.held[id] && !l.cut[id], Rung: d.Rung, Severity: d.Severity, Blocked: d.Rung.WantsOut() && !p.BlockedSince.IsZero(),
		}}}})
	}
}

// run lets time pass, with reports that are a second old.
func (l *layered) run(d time.Duration) {
	for end := l.now.Add(d); l.now.Before(end); {
		l.gossip()
		for range 3 {
			l.turn()
		}
	}
}

func (l *layered) is(want string) {
	l.t.Helper()
	if got := fmt.Sprint(l.announcing()); got != want {
		var all []string
		for _, id := range slices.Sorted(maps.Keys(l.last)) {
			all = append(all, fmt.Sprintf("%s %s %s", id, l.last[id].Rung, l.last[id].Reason))
		}
		l.t.Fatalf("announced at %s, want %s\n%s", got, want, strings.Join(all, "\n"))
	}
}

// TestMakeBeforeBreak: the mildly sick site that has left comes back for one that is
// worse and may not leave, and stays in its place.
func TestMakeBeforeBreak(t *testing.T) {
	l := newLayered(t, 2, "a1", "b1", "c1", "d1")
	l.run(2 * time.Second)
	l.be("b1", 3)
	l.run(5 * time.Second)
	l.is("[a1 c1 d1]")
	l.cut["d1"] = true // dies
	l.be("c1", 9)
	l.run(4 * time.Second)
	l.is("[a1 c1]") // refused, but not for long
	l.run(30 * time.Second)
	l.is("[a1 b1]")
	l.run(10 * time.Minute)
	l.is("[a1 b1]")
	if l.gone["b1"] != 1 || l.gone["c1"] != 1 {
		t.Errorf("withdrawals: %v", l.gone)
	}
	l.be("c1", 0) // well again: after its hold it comes back, and b1 may go
	l.run(2 * time.Minute)
	l.is("[a1 c1]")
}

// TestWellComesBackForSick: one that is well again does not sit out its hold while
// another that is sick may not leave.
func TestWellComesBackForSick(t *testing.T) {
	l := newLayered(t, 1, "a1", "b1")
	l.run(2 * time.Second)
	l.be("a1", 5)
	l.run(5 * time.Second)
	l.is("[b1]")
	l.be("a1", 0)
	l.be("b1", 2)
	l.run(25 * time.Second)
	l.is("[a1]")
}

// TestLeastSickComesBack: of two that could come back one does, the less sick.
func TestLeastSickComesBack(t *testing.T) {
	l := newLayered(t, 2, "a1", "b1", "c1", "d1", "e1")
	l.run(2 * time.Second)
	l.be("b1", 4)
	l.be("c1", 3)
	l.run(8 * time.Second)
	l.is("[a1 d1 e1]")
	l.cut["e1"] = true
	l.be("d1", 9)
	l.run(time.Minute)
	l.is("[a1 c1]")
	if l.gone["b1"] != 1 || l.gone["c1"] != 1 {
		t.Errorf("withdrawals: %v", l.gone)
	}
}

// TestSwapsSettle: whoever falls sick, dies or gets well, nobody flaps: while nothing
// changes there are at most as many withdrawals as sites, and then none; and what is
// left when one leaves is never less than the floor.
func TestSwapsSettle(t *testing.T) {
	for seed := range uint64(5) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		n := 3 + rnd.IntN(5)
		var names []string
		for i := range n {
			names = append(names, string(rune('a'+i))+"1")
		}
		l := newLayered(t, 1+rnd.IntN(n-1), names...)
		l.run(2 * time.Second)
		count := func() (all int) {
			for _, g := range l.gone {
				all += g
			}
			return all
		}
		for range 4 {
			for range 1 + rnd.IntN(3) {
				id := edge.NodeID(names[rnd.IntN(n)])
				switch rnd.IntN(4) {
				case 0:
					l.be(id, 0)
				case 1:
					l.cut[id] = !l.cut[id]
				default:
					l.be(id, 2+rnd.IntN(9))
				}
			}
			before := count()
			l.run(time.Minute)
			if left := count() - before; left > n {
				t.Fatalf("seed %d: %d withdrawals in a minute of %d sites: %v", seed, left, n, l.gone)
			}
			before = count()
			l.run(time.Minute)
			if left := count() - before; left > 0 {
				t.Fatalf("seed %d: %d withdrawals while nothing changes: %v", seed, left, l.gone)
			}
		}
		if l.least < l.floor {
			t.Fatalf("seed %d: %d sites after a withdrawal, floor %d", seed, l.least, l.floor)
		}
	}
}
