package promise

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

func TestPermitNeedsPromisesOfOtherSites(t *testing.T) {
	r := newRig(t, 2, "a1", "b1", "b2", "c1")
	r.cut["c1"] = true
	r.wish("a1", edge.SeveritySick)
	r.pass(2 * time.Second)
	p := r.want("a1", false, "1 of 2 other sites promised to stay; c1: no answer")
	if !p.Refused || p.Needed != 2 {
		t.Errorf("refused permit: %+v", p)
	}
	r.cut["c1"] = false
	r.pass(2 * time.Second)
	p = r.want("a1", true, "b c")
	if !slices.Equal(p.Promised, []edge.SiteID{"b", "c"}) || p.Refused || p.Until.Before(r.now.Add(6*time.Second)) {
		t.Errorf("permit: %+v", p)
	}
	if got := len(r.nodes["b1"].Bound(r.now)); got != 1 {
		t.Errorf("b1 is bound %d times", got)
	}
}

func TestPromiseLapsesForAskerFirst(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	r.wish("a1", edge.SeveritySick)
	r.pass(time.Second)
	r.want("a1", true)
	until := r.permit("a1").Until
	bound := r.nodes["b1"].Bound(r.now)[0].Until
	if lead := bound.Sub(until); lead < 1500*time.Millisecond {
		t.Errorf("the permit ends %s before the promise, want a tenth of the lease and the margin", lead)
	}
	r.now = until
	r.want("a1", false)
	if _, err := r.nodes["a1"].Begin(r.now, net1); err == nil {
		t.Error("left on a permit that has ended")
	}
}

func TestQuietAfterStart(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	n := r.nodes["a1"]
	n.started, n.quiet = r.now, r.now.Add(10*time.Second)
	r.wish("a1", edge.SeveritySick)
	r.pass(9900 * time.Millisecond)
	if p := r.want("a1", false, "forgotten", "until 00:16:50"); !p.Refused {
		t.Error("not shown as refused")
	}
	r.pass(500 * time.Millisecond)
	r.want("a1", true)
}

func TestWishEnds(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	r.wish("a1", edge.SeveritySick)
	r.pass(time.Second)
	r.want("a1", true)
	v := r.nodes["a1"].Version()
	if out := r.nodes["a1"].Wish(r.now, net1, Wish{Want: true, Severity: edge.SeveritySick, Reason: "test"}); out != nil || r.nodes["a1"].Version() != v {
		t.Error("the same wish again is not for nothing")
	}
	r.deliver(r.nodes["a1"].Wish(r.now, net1, Wish{}))
	if len(r.nodes["b1"].Bound(r.now)) != 0 {
		t.Error("b1 is still bound")
	}
	r.want("a1", false, "no wish to leave")
}

func TestKnownSickAreAskedLast(t *testing.T) {
	r := newRig(t, 1, "a1", "b1", "c1")
	r.sick["b1"], r.cut["c1"] = true, true
	r.wish("a1", edge.SeveritySick)
	r.pass(600 * time.Millisecond)
	asked := r.nodes["a1"].seats[net1].round.asked
	if _, ok := asked["b1"]; ok || len(asked) != 1 {
		t.Errorf("asked first: %v", asked)
	}
	r.pass(600 * time.Millisecond)
	r.want("a1", true, "b")
}

func TestSiblingAlone(t *testing.T) {
	r := newRig(t, 2, "a1", "a2", "b1", "c1")
	r.cut["b1"], r.cut["c1"] = true, true
	r.wish("a1", edge.SeveritySick)
	r.pass(time.Second)
	if p := r.want("a1", true); !slices.Equal(p.Promised, []edge.SiteID{"a"}) {
		t.Errorf("promised: %v", p.Promised)
	}
	r.leave("a1")
	r.wish("a2", edge.SeveritySick)
	r.pass(3 * time.Second)
	r.want("a2", false, "0 of 2", "a1: it has withdrawn")
}

func TestBadMessages(t *testing.T) {
	r := newRig(t, 1, "a1", "b1", "c1")
	r.cut["b1"], r.cut["c1"] = true, true
	r.wish("a1", edge.SeveritySick)
	r.pass(600 * time.Millisecond)
	a := r.nodes["a1"]
	cur := a.seats[net1].round.id
	lease := 10 * time.Second
	for _, c := range []struct {
		why string
		m   Message
	}{
		{"stale_round", Message{Kind: Promise, From: "b1", To: "a1", Prefix: net1, Round: Round{cur.Boot, cur.N - 1}, Lease: lease}},
		{"stale_round", Message{Kind: Promise, From: "b1", To: "a1", Prefix: net1, Round: Round{cur.Boot - 1, cur.N}, Lease: lease}},
		{"stale_round", Message{Kind: Promise, From: "b1", To: "a1", Prefix: net2, Round: cur, Lease: lease}},
		{"bad_lease", Message{Kind: Promise, From: "b1", To: "a1", Prefix: net1, Round: cur}},
		{"bad_lease", Message{Kind: Promise, From: "b1", To: "a1", Prefix: net1, Round: cur, Lease: 2 * time.Hour}},
		{"unknown_sender", Message{Kind: Promise, From: "x1", To: "a1", Prefix: net1, Round: cur, Lease: lease}},
		{"self_sent", Message{Kind: Promise, From: "a1", To: "a1", Prefix: net1, Round: cur, Lease: lease}},
		{"misdirected", Message{Kind: Promise, From: "b1", To: "c1", Prefix: net1, Round: cur, Lease: lease}},
		{"unknown_prefix", Message{Kind: Promise, From: "b1", To: "a1", Prefix: netip.MustParsePrefix("10.0.0.0/8"), Round: cur, Lease: lease}},
		{"unknown_kind", Message{Kind: 9, From: "b1", To: "a1", Prefix: net1, Round: cur}},
		{"stale_release", Message{Kind: Release, From: "b1", To: "a1", Prefix: net1, Round: Round{7, 1}}},
	} {
		before := r.drops[c.why]
		if out := a.Receive(r.now, c.m); len(out) != 0 || r.drops[c.why] != before+1 {
			t.Errorf("%v: sends %v, counted %v, want 1 %s more", c.m, out, r.drops, c.why)
		}
		r.want("a1", false)
	}
	good := Message{Kind: Promise, From: "b1", To: "a1", Prefix: net1, Round: cur, Lease: lease}
	a.Receive(r.now, good)
	r.want("a1", true)
	a.Receive(r.now, good)
	if r.drops["replayed"] != 1 {
		t.Errorf("replay was not counted: %v", r.drops)
	}
}

func TestUpdate(t *testing.T) {
	r := newRig(t, 2, "a1", "b1", "c1")
	r.cut["c1"] = true
	a := r.nodes["a1"]
	update := func(s Settings) {
		t.Helper()
		out, err := a.Update(r.now, s)
		if err != nil {
			t.Fatal(err)
		}
		r.deliver(out)
	}
	r.wish("a1", edge.SeveritySick)
	r.pass(600 * time.Millisecond)
	update(rigSettings(1, "a1", "b1", "c1"))
	r.want("a1", false) // the round was opened under floor 2
	r.pass(1500 * time.Millisecond)
	r.want("a1", true)
	update(rigSettings(2, "a1", "b1", "c1"))
	r.want("a1", false) // higher counts at once
	update(rigSettings(1, "a1", "b1", "c1"))
	r.want("a1", true)
	update(rigSettings(1, "a1", "c1"))
	r.want("a1", false) // b1 is no longer of the fleet
	s := rigSettings(1, "a1", "b1", "c1")
	s.Prefixes = s.Prefixes[1:]
	update(s)
	r.pass(3 * time.Second)
	r.want("a1", true) // the floor of a removed prefix goes on to hold
	r.leave("a1")
	r.deliver(a.Wish(r.now, net1, Wish{}))
	r.pass(time.Second)
	r.want("a1", false, "not in the configuration")
	if _, err := a.Update(r.now, rigSettings(1, "b1")); err == nil {
		t.Error("took a roster without itself")
	}
	s.Policy.AskTimeout = s.Policy.PromiseLease
	if _, err := a.Update(r.now, s); err == nil {
		t.Error("took a policy that cannot work")
	}
}

func TestLeaseOfAnEarlierConfigurationBinds(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	n := r.nodes["a1"]
	n.started, n.quiet = r.now, r.now.Add(10*time.Second)
	s := rigSettings(1, "a1", "b1")
	s.Policy.PromiseLease = 3 * time.Second
	if _, err := n.Update(r.now, s); err != nil {
		t.Fatal(err)
	}
	r.wish("a1", edge.SeveritySick)
	r.pass(9 * time.Second)
	r.want("a1", false, "forgotten")
}

func TestNoFloor(t *testing.T) {
	r := newRig(t, 0, "a1")
	r.wish("a1", edge.SeverityDrain)
	r.pass(time.Second)
	r.want("a1", true)
}

func TestRaiseBoot(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	r.nodes["b1"].seats[net1].seen["a1"] = Round{Boot: 100, N: 5} // of a process with a later clock
	r.wish("a1", edge.SeveritySick)
	r.pass(2 * time.Second)
	r.want("a1", false, "b1: no answer")
	r.nodes["a1"].RaiseBoot(101)
	r.pass(2 * time.Second)
	r.want("a1", true)
}
