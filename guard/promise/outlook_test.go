package promise

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// outlooked is a node of site a in a fleet of six, with a policy.
func outlooked(t *testing.T, floor int, change func(*edge.Guard)) (*rig, *Node) {
	t.Helper()
	names := []string{"a1", "b1", "c1", "d1", "e1", "f1"}
	r := newRig(t, floor, names...)
	s := rigSettings(floor, names...)
	for i, name := range names {
		s.Sites = append(s.Sites, edge.Site{ID: edge.SiteID(name[:1]), Region: edge.RegionID([]string{"eu", "us"}[i/3]), Capacity: float64(100 * (i + 1))})
	}
	change(&s.Policy)
	if _, err := r.nodes["a1"].Update(r.now, s); err != nil {
		t.Fatal(err)
	}
	return r, r.nodes["a1"]
}

// standings: upper case is well, lower case announces, - before it does not, ? silent.
func standings(words string) map[edge.SiteID]Standing {
	out := map[edge.SiteID]Standing{}
	for _, w := range strings.Fields(words) {
		id := edge.SiteID(strings.ToLower(strings.Trim(w, "-?")))
		out[id] = Standing{Announces: !strings.HasPrefix(w, "-"), Well: strings.ToUpper(w) == w, Silent: strings.HasPrefix(w, "?")}
	}
	return out
}

// TestOutlook: how many may leave, by each of the terms.
func TestOutlook(t *testing.T) {
	for _, c := range []struct {
		name, at string
		floor    int
		policy   func(*edge.Guard)
		room     int
		lacks    string
	}{
		{"floor 2", "A B C D E F", 2, func(*edge.Guard) {}, 4, "1 other sites would stay, and 2 must"},
		{"no floor", "A B C", 0, func(*edge.Guard) {}, 3, ""},
		{"the silent and the withdrawn are gone", "A B C ?D -E F", 2, func(*edge.Guard) {}, 2, "1 other sites"},
		{"at the floor", "A B", 2, func(*edge.Guard) {}, 0, "1 other sites would stay, and 2 must"},
		{"nobody", "-A -B", 2, func(*edge.Guard) {}, 0, ""},
		{"spare", "A B C D E F", 2, func(g *edge.Guard) { g.SpareSites = 2 }, 2, "and 4 must"},
		{"fraction", "A B C D E F", 1, func(g *edge.Guard) { g.MinFraction = 0.7 }, 1, "and 5 must"},
		{"healthy: the sick go first", "a b C D E F", 1, func(g *edge.Guard) { g.MinHealthy = 4 }, 2, "3 of those that stay are healthy, and 4 must be"},
		{"capacity: the small go first", "A B C D E F", 1, func(g *edge.Guard) { g.MinCapacity = 1500 }, 3, "serve 1100 requests a second, and 1500 are needed"},
		{"regions", "A B C D E F", 1, func(g *edge.Guard) {
			g.Regions = []edge.RegionFloor{{Region: "us", MinSites: 2}, {Region: "eu", MinSites: 2}}
		}, 2, "of region eu stay, and 2 must"},
		{"demand that is not known", "A B C D E F", 1, func(g *edge.Guard) { g.CoverDemand = true }, 0, "the demand of the fleet is not known"},
	} {
		r, n := outlooked(t, c.floor, c.policy)
		got, ok := n.Outlook(r.now, net1, standings(c.at))
		if !ok || got.MayLeave != c.room || !strings.Contains(string(got.Lacks), c.lacks) || c.lacks == "" && got.Lacks != "" {
			t.Errorf("%s: %d may leave (%q), want %d (%q)", c.name, got.MayLeave, got.Lacks, c.room, c.lacks)
		}
	}
}

// TestWhatIf: who could leave in this order; who may not stays for the next.
func TestWhatIf(t *testing.T) {
	r, n := outlooked(t, 3, func(*edge.Guard) {})
	text := func(leave, at string) string {
		var sites []edge.SiteID
		for _, s := range strings.Fields(leave) {
			sites = append(sites, edge.SiteID(s))
		}
		var out []string
		for _, o := range n.WhatIf(r.now, net1, sites, standings(at)) {
			out = append(out, fmt.Sprintf("%s %t %s", o.Site, o.OK, o.Reason))
		}
		return strings.Join(out, "; ")
	}
	for _, c := range []struct{ leave, at, want string }{
		{"b", "A B C D", "b true a, c, d stay, 3 must"},
		{"b c", "A B C D", "b true a, c, d stay, 3 must; c false 2 other sites would stay, and 3 must"},
		{"b", "A B C ?D", "b false 2 other sites would stay, and 3 must"},
		{"d b", "A B C D ?E F", "d true a, b, c, f stay, 3 must; b true a, c, f stay, 3 must"},
		{"e -", "A B C D -E", "e true it does not announce the prefix; - false it is not a site of the configuration"},
		{"d", "A B C ?D", "d false it is not heard of: who is cut off gets no promises"},
		{"a", "A B C D", "a true b, c, d stay, 3 must"},
	} {
		if got := text(c.leave, c.at); got != c.want {
			t.Errorf("%s of %s:\n got %s\nwant %s", c.leave, c.at, got, c.want)
		}
	}
	r.mute("b1", edge.SeveritySick)
	r.nodes["b1"].seats[net1].next = time.Time{}
	r.pass(200 * time.Millisecond) // b asks, and a promises
	if got := text("a", "A B C D E"); !strings.HasPrefix(got, "a false bound by a promise to b1") {
		t.Errorf("bound: %s", got)
	}
	for _, s := range n.seats {
		if s.wish.Want {
			t.Error("to ask what if is a wish")
		}
	}
}

// TestWhatIfIsTheProtocol: where all promise that announce, what-if says what the
// protocol then does.
func TestWhatIfIsTheProtocol(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	for range 60 {
		floor := rnd.IntN(6)
		r := newRig(t, floor, "a1", "b1", "c1", "d1", "e1", "f1")
		at := map[edge.SiteID]Standing{}
		for id := range r.nodes {
			r.held[id] = id == "a1" || rnd.IntN(3) > 0
			at[edge.SiteID(id[:1])] = Standing{Announces: r.held[id]}
		}
		want := r.nodes["b1"].WhatIf(r.now, net1, []edge.SiteID{"a"}, at)[0]
		r.wish("a1", edge.SeveritySick)
		r.pass(2 * time.Second)
		if got := r.permit("a1"); got.OK != want.OK {
			t.Errorf("floor %d, %v: what-if says %t (%s), the protocol %t (%s)", floor, r.held, want.OK, want.Reason, got.OK, got.Reason)
		}
	}
}

// TestForce: an operator's order is the only way around the guard, and not often.
func TestForce(t *testing.T) {
	r := newRig(t, 2, "a1", "b1", "c1")
	r.cut["c1"] = true // b waits for its answer
	a := r.nodes["a1"]
	r.wish("b1", edge.SeveritySick)
	r.pass(700 * time.Millisecond) // a has promised
	r.wish("a1", edge.SeveritySick)
	r.want("a1", false)
	if _, err := a.Begin(r.now, net1); err == nil {
		t.Fatal("left without a permit")
	}
	broken, out, err := a.Force(r.now, net1)
	if err != nil || fmt.Sprint(broken) != "[b1]" {
		t.Fatalf("force: broken %v, %v", broken, err)
	}
	r.deliver(out)
	if _, _, err := a.Force(r.now, net1); err == nil {
		t.Error("forced while it leaves")
	}
	if why := a.refusal(r.now, a.seats[net1], Message{From: "b1", Severity: 9}); why != "it is leaving" {
		t.Errorf("promises while it leaves: %q", why)
	}
	a.End(r.now, net2, true) // nothing to do with it
	a.Forced(r.now, net1, "fire", false)
	if why := a.refusal(r.now, a.seats[net1], Message{From: "b1", Severity: 9}); !strings.Contains(string(why), "failed a moment ago") {
		t.Errorf("after one that failed: %q", why)
	}
	if _, _, err = a.Force(r.now, net1); err != nil {
		t.Fatal(err)
	}
	r.held["a1"] = false
	a.Forced(r.now, net1, "fire", true)
	if why := a.refusal(r.now, a.seats[net1], Message{From: "b1", Severity: 9}); why != "it has withdrawn" {
		t.Errorf("after it: %q", why)
	}
	past := a.Past()
	if last := past[len(past)-1]; !last.Left || !last.Forced || last.Reason != "forced: fire" || last.Needed != 2 {
		t.Errorf("kept: %+v", last)
	}
	if _, _, err := a.Force(r.now, netip.MustParsePrefix("203.0.113.0/24")); err == nil {
		t.Error("a prefix that is not configured was forced out")
	}
	for range edge.FreeLeaves - 2 {
		if _, _, err = a.Force(r.now, net2); err != nil {
			t.Fatal(err)
		}
		a.Forced(r.now, net2, "fire", false)
	}
	if _, _, err = a.Force(r.now, net2); err == nil || !strings.Contains(err.Error(), "10 prefixes have been forced out within 10m0s") {
		t.Errorf("the eleventh: %v", err)
	}
	restarted := newRig(t, 2, "a1", "b1").nodes["a1"]
	restarted.Recall(a.forced...)
	if _, _, err := restarted.Force(r.now, net2); err == nil {
		t.Error("a restart forgets")
	}
	if _, _, err = a.Force(r.now.Add(edge.ForceWindow), net2); err != nil {
		t.Errorf("after ten minutes: %v", err)
	}
}

// TestForcedUnderAnotherClock: a clock that was ahead over the restart bars nobody from
// forcing for longer than the window, and one that is set does not lift the limit.
func TestForcedUnderAnotherClock(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Minute, time.Hour, 365 * 24 * time.Hour} {
		r := newRig(t, 1, "a1", "b1")
		n := r.nodes["a1"]
		for range edge.FreeLeaves {
			n.Recall(r.now.Add(ahead))
		}
		if _, _, err := n.Force(r.now, net1); err == nil {
			t.Errorf("%s ahead: no limit", ahead)
		}
		if _, _, err := n.Force(r.now.Add(edge.ForceWindow), net1); err != nil {
			t.Errorf("%s ahead: %v", ahead, err)
		}
	}
}
