package promise

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// planned has every node of the rig take so many orders at a time.
func (r *rig) planned(most int, names ...string) {
	s := rigSettings(1, names...)
	s.Policy.MaxPlanned = most
	for _, id := range names {
		if _, err := r.nodes[edge.NodeID(id)].Update(r.now, s); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) wishOf(id edge.NodeID, p netip.Prefix, severity int) {
	r.deliver(r.nodes[id].Wish(r.now, p, Wish{Want: true, Severity: severity, Reason: "test"}))
}

func TestOrdersWait(t *testing.T) {
	names := []string{"a1", "b1", "c1", "d1", "e1"}
	sick, order := edge.SeveritySick, edge.SeverityDrain
	for name, c := range map[string]struct {
		most int
		set  func(*rig)
		want string // part of why a1 waits; empty: it may go
	}{
		"for nothing":               {1, func(*rig) {}, ""},
		"for a site that is sick":   {1, func(r *rig) { r.open("e1", net1, sick) }, "is leaving for sickness"},
		"also with another prefix":  {1, func(r *rig) { r.open("e1", net2, sick) }, "is leaving for sickness"},
		"for an order before":       {1, func(r *rig) { r.open("e1", net1, order) }, "1 sites are leaving by an order already, and 1 may at a time"},
		"with another prefix too":   {1, func(r *rig) { r.open("e1", net2, order) }, "1 sites are leaving by an order already, and 1 may at a time"},
		"not if two may":            {2, func(r *rig) { r.open("e1", net1, order) }, ""},
		"for two if two may":        {2, func(r *rig) { r.open("e1", net1, order); r.open("d1", net2, order) }, "2 sites are leaving by an order already, and 2 may at a time"},
		"not for one that has left": {1, func(r *rig) { r.open("e1", net1, sick); r.leave("e1"); r.pass(500 * time.Millisecond) }, ""},
		"for one that all refuse": {1, func(r *rig) {
			for _, id := range []edge.NodeID{"b1", "c1", "d1", "a1"} {
				r.nodes[id].Wish(r.now, net2, Wish{Unfit: true, Severity: sick})
				r.nodes[id].seats[net2].floor = 0
			}
			r.nodes["e1"].seats[net2].floor = 0
			r.open("e1", net2, order)
		}, "e1: 1 sites are leaving by an order already, and 1 may at a time"},
		"for one that is well again, and leaving": {1, func(r *rig) {
			r.open("e1", net2, sick)
			for _, id := range []edge.NodeID{"b1", "c1"} {
				clear(r.nodes[id].seats[net2].bound) // as after a restart
			}
			if _, err := r.nodes["e1"].Begin(r.now, net2); err != nil {
				r.t.Fatal(err)
			}
			r.deliver(r.nodes["e1"].Wish(r.now, net2, Wish{}))
		}, "it wants to leave for sickness itself"},
		"for one that does not know whether it has left": {1, func(r *rig) {
			r.open("e1", net2, sick)
			for _, id := range []edge.NodeID{"b1", "c1"} {
				clear(r.nodes[id].seats[net2].bound)
			}
			if _, err := r.nodes["e1"].Begin(r.now, net2); err != nil {
				r.t.Fatal(err)
			}
			r.deliver(r.nodes["e1"].End(r.now, net2, false))
			r.deliver(r.nodes["e1"].Wish(r.now, net2, Wish{}))
		}, "it wants to leave for sickness itself"},
		"not if it is not limited": {0, func(r *rig) { r.open("e1", net1, order); r.open("d1", net1, order) }, ""},
		"not for its own site":     {1, func(r *rig) { r.open("a1", net2, order) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1, names...)
			r.planned(c.most, names...)
			c.set(r)
			r.wishOf("a1", net1, edge.SeverityDrain)
			r.pass(600 * time.Millisecond)
			if c.want != "" && r.nodes["a1"].seats[net1].round != nil {
				t.Error("the round goes on")
			}
			p := r.permit("a1")
			if p.OK != (c.want == "") || !strings.Contains(string(p.Reason), c.want) {
				t.Errorf("permit %v: %s, want %q", p.OK, p.Reason, c.want)
			}
			if d := r.nodes["a1"].Past(); c.want != "" && (len(d) == 0 || !strings.Contains(string(d[len(d)-1].Reason), c.want)) {
				t.Errorf("not in the record: %+v", d)
			}
		})
	}
}

// open has id ask and get its promises, of which a1, d1 and e1 hear nothing: who
// has promised could not ask.
func (r *rig) open(id edge.NodeID, p netip.Prefix, severity int) {
	r.t.Helper()
	for _, o := range []edge.NodeID{"a1", "d1", "e1"} {
		r.cut[o] = o != id
	}
	defer clear(r.cut)
	r.wishOf(id, p, severity)
	r.pass(1600 * time.Millisecond)
	if !r.nodes[id].Permit(r.now, p).OK {
		r.t.Fatalf("%s: %+v", id, r.nodes[id].Permit(r.now, p))
	}
}

// TestOrdersForTwoPrefixes: of two orders that are asked for at once, of two prefixes,
// one goes first, and then the other.
func TestOrdersForTwoPrefixes(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	r.planned(1, "a1", "b1")
	a, b := r.nodes["a1"], r.nodes["b1"]
	r.wishOf("a1", net1, edge.SeverityDrain)
	r.wishOf("b1", net2, edge.SeverityDrain)
	a.seats[net1].next, b.seats[net2].next = r.now, r.now
	// Both ask before either hears of it.
	asked := append(a.Tick(r.now), b.Tick(r.now)...)
	r.deliver(asked)
	mayA, mayB := r.permit("a1").OK, b.Permit(r.now, net2).OK
	if mayA || !mayB {
		t.Fatalf("a1 may leave: %v, b1: %v; want b1, whose name comes last\n%s", mayA, mayB, strings.Join(r.log, "\n"))
	}
	if _, err := b.Begin(r.now, net2); err != nil {
		t.Fatal(err)
	}
	r.deliver(b.End(r.now, net2, true))
	r.pass(2 * time.Second)
	r.want("a1", true)
}

// TestWhoHasPromisedWaits: also if nobody else knows of the sickness.
func TestWhoHasPromisedWaits(t *testing.T) {
	r := newRig(t, 1, "a1", "b1", "c1")
	a := r.nodes["a1"]
	ask := Message{Kind: Intent, From: "c1", To: "a1", Prefix: net2, Round: Round{9, 1}, Severity: edge.SeveritySick}
	if out := a.Receive(r.now, ask); len(out) != 1 || out[0].Kind != Promise {
		t.Fatalf("answer: %v", out)
	}
	r.cut["c1"] = true
	r.wishOf("a1", net1, edge.SeverityDrain)
	r.pass(2 * time.Second)
	r.want("a1", false, "c1 is leaving for sickness, and orders wait for that")
	r.wishOf("a1", net1, edge.SeveritySick)
	r.pass(2 * time.Second)
	r.want("a1", true)
}

// TestSicknessDoesNotWait: no order keeps a sick site.
func TestSicknessDoesNotWait(t *testing.T) {
	names := []string{"a1", "b1", "c1", "d1"}
	r := newRig(t, 1, names...)
	r.planned(1, names...)
	r.open("d1", net1, edge.SeverityDrain)
	r.open("c1", net2, edge.SeveritySick)
}

// TestOrderHearsEverybodyOut: one more answer may be that it has to wait. Who does
// not answer is not waited for longer than for promises.
func TestOrderHearsEverybodyOut(t *testing.T) {
	r := newRig(t, 1, "a1", "b1", "c1", "d1")
	r.cut["d1"], r.sick["c1"] = true, true // who is sick is not asked last
	r.wish("a1", edge.SeverityDrain)
	r.pass(600 * time.Millisecond)
	if got := len(r.nodes["a1"].seats[net1].round.promised); got != 2 {
		t.Fatalf("%d have promised", got)
	}
	if got := len(r.nodes["a1"].seats[net1].round.asked); got != 3 {
		t.Fatalf("%d are asked", got)
	}
	r.want("a1", false, "asking")
	r.pass(time.Second)
	r.want("a1", true)
	sick := newRig(t, 1, "a1", "b1", "c1", "d1")
	sick.cut["d1"] = true
	sick.wish("a1", edge.SeveritySick)
	sick.pass(600 * time.Millisecond)
	sick.want("a1", true)
}

// TestAnotherCauseAsksAnew: an order that turns into sickness, or the other way
// about, is not carried out by what was promised for the other.
func TestAnotherCauseAsksAnew(t *testing.T) {
	for _, c := range [][2]int{{edge.SeverityDrain, edge.SeveritySick}, {edge.SeveritySick, edge.SeverityDrain}} {
		r := newRig(t, 1, "a1", "b1", "c1")
		r.cut["b1"], r.cut["c1"] = true, true
		r.wish("a1", c[0])
		r.pass(600 * time.Millisecond)
		first := r.nodes["a1"].seats[net1].round.id
		r.cut["b1"], r.cut["c1"] = false, false
		r.wish("a1", c[1])
		r.pass(700 * time.Millisecond)
		r.want("a1", true)
		if got := r.nodes["a1"].seats[net1].round; got.id == first || got.wish.Severity != c[1] {
			t.Errorf("from %d to %d: still round %v, severity %d", c[0], c[1], got.id, got.wish.Severity)
		}
	}
}

// manyNets are prefixes to leave.
func manyNets(n int) (out []edge.Prefix) {
	for i := range n {
		out = append(out, edge.Prefix{Net: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", i)), MinSites: 1})
	}
	return out
}

func TestLeavesAreLimited(t *testing.T) {
	for _, c := range []struct {
		nets int
		max  float64
		want int // that may leave in the first minute
	}{
		{12, 0, 12}, {12, 1, 12}, {12, 0.01, 10}, {40, 0.5, 20}, {40, 0.2, 10}, {100, 0.29, 29}, {5, 0.1, 5},
	} {
		r := newRig(t, 1, "a1", "b1")
		s := rigSettings(1, "a1", "b1")
		s.Prefixes, s.Policy.MaxLeaves = manyNets(c.nets), c.max
		for id, n := range r.nodes {
			r.held[id] = false
			n.Update(r.now, s)
			n.Tick(r.now) // what is not configured and not held is forgotten
			r.held[id] = true
		}
		r.pass(taking) // from now on it may be promised
		a := r.nodes["a1"]
		for _, p := range s.Prefixes {
			r.wishOf("a1", p.Net, edge.SeveritySick)
		}
		r.pass(time.Second)
		// All at once, before any has ended: the limit counts what is under way.
		begun := 0
		for _, p := range s.Prefixes {
			if _, err := a.Begin(r.now, p.Net); err == nil {
				begun++
			} else if !strings.Contains(err.Error(), "within a minute") {
				t.Errorf("refused: %v", err)
			}
		}
		if begun != c.want {
			t.Errorf("%d prefixes, share %v: %d may leave, want %d", c.nets, c.max, begun, c.want)
		}
		for _, p := range s.Prefixes[:begun] {
			r.deliver(a.End(r.now, p.Net, false)) // it may have left all the same
		}
		r.pass(30 * time.Second)
		again, other := a.Permit(r.now, s.Prefixes[0].Net), a.Permit(r.now, s.Prefixes[c.nets-1].Net)
		if !again.OK || other.OK != (c.want == c.nets) {
			t.Errorf("%d prefixes, share %v: the same again %v %s, one more %v", c.nets, c.max, again.OK, again.Reason, other.OK)
		}
		r.pass(29 * time.Second)
		last := s.Prefixes[c.nets-1].Net
		for range 50 { // permits that are not used lapse meanwhile
			if r.pass(100 * time.Millisecond); a.Permit(r.now, last).OK {
				break
			}
		}
		if p := a.Permit(r.now, last); !p.OK {
			t.Errorf("%d prefixes, share %v: after a minute: %s", c.nets, c.max, p.Reason)
		}
	}
}

// TestRestartForgetsNoLeaves: what the process before has withdrawn within the minute
// counts, whatever its clock said.
func TestRestartForgetsNoLeaves(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	s := rigSettings(1, "a1", "b1")
	s.Prefixes, s.Policy.MaxLeaves = manyNets(12), 0.1
	for _, n := range r.nodes {
		n.Update(r.now, s)
	}
	a := r.nodes["a1"]
	for i, p := range s.Prefixes[:11] {
		at := a.started.Add(-30 * time.Second)
		switch i {
		case 0:
			at = a.started.Add(-time.Minute) // no longer counts
		case 1:
			at = a.started.Add(time.Hour) // the clock has gone back since
		}
		a.RecallLeft(p.Net, at)
	}
	last := s.Prefixes[11].Net
	if _, ok := a.mayLeave(a.started.Add(29*time.Second), last); ok {
		t.Error("one more than ten may leave within a minute, after a restart")
	}
	if _, ok := a.mayLeave(a.started.Add(29*time.Second), s.Prefixes[2].Net); !ok {
		t.Error("one that has left already counts twice")
	}
	if _, ok := a.mayLeave(a.started.Add(30*time.Second), last); !ok {
		t.Error("a minute later it may not")
	}
}

func TestBlocked(t *testing.T) {
	r := newRig(t, 2, "a1", "b1", "c1")
	r.cut["c1"] = true
	r.wish("a1", edge.SeveritySick)
	r.pass(4 * time.Second)
	if p := r.want("a1", false, "c1: no answer"); !p.Refused || !p.BlockedSince.IsZero() {
		t.Errorf("after four seconds: %+v", p)
	}
	r.pass(4 * time.Second)
	p := r.want("a1", false, "c1: no answer")
	if since := r.now.Sub(p.BlockedSince); p.BlockedSince.IsZero() || since < 5*time.Second || since > 8*time.Second {
		t.Errorf("blocked since %s", p.BlockedSince)
	}
	r.cut["c1"] = false
	r.pass(3 * time.Second)
	if p := r.want("a1", true); !p.BlockedSince.IsZero() {
		t.Errorf("blocked and permitted: %+v", p)
	}
	r.deliver(r.nodes["a1"].Wish(r.now, net1, Wish{}))
	r.cut["c1"] = true
	r.wish("a1", edge.SeveritySick)
	r.pass(2 * time.Second)
	if p := r.permit("a1"); !p.BlockedSince.IsZero() {
		t.Errorf("a new wish is blocked by the old: %+v", p)
	}
}

// TestBlockedWithoutARound: who may not even ask is blocked too.
func TestBlockedWithoutARound(t *testing.T) {
	for name, set := range map[string]func(*rig){
		"for promises given before the start": func(r *rig) { r.nodes["a1"].quiet = r.now.Add(time.Minute) },
		"bound": func(r *rig) {
			r.nodes["a1"].seats[net1].bound["b1"] = binding{round: Round{1, 1}, until: r.now.Add(time.Minute)}
		},
	} {
		r := newRig(t, 1, "a1", "b1")
		set(r)
		r.wish("a1", edge.SeveritySick)
		r.pass(4 * time.Second)
		if p := r.permit("a1"); !p.Refused || !p.BlockedSince.IsZero() {
			t.Errorf("%s, after four seconds: %+v", name, p)
		}
		r.pass(2 * time.Second)
		if p := r.permit("a1"); p.BlockedSince.IsZero() {
			t.Errorf("%s, after six seconds: %+v", name, p)
		}
	}
}

func TestDecisionsAreKept(t *testing.T) {
	r := newRig(t, 2, "a1", "b1", "c1", "d1")
	a := r.nodes["a1"]
	r.cut["c1"] = true
	r.held["d1"] = false
	r.wish("a1", edge.SeveritySick)
	r.pass(1700 * time.Millisecond)
	past := a.Past()
	if len(past) != 1 {
		t.Fatalf("%d rounds are over: %+v", len(past), past)
	}
	d := past[0]
	if d.Prefix != net1 || d.Round != 1 || d.Severity != edge.SeveritySick || d.Wish != "test" || d.Needed != 2 || d.Left ||
		!slices.Equal(d.Promised, []edge.NodeID{"b1"}) || !slices.Equal(d.Silent, []edge.NodeID{"c1"}) ||
		d.Nacked["d1"] != "it does not announce the prefix" || len(d.Nacked) != 1 ||
		!strings.Contains(string(d.Reason), "1 of 2 other sites promised to stay; c1: no answer") || !d.Opened.Before(d.Time) {
		t.Errorf("kept: %+v", d)
	}
	r.deliver(a.Wish(r.now, net1, Wish{}))
	r.wish("a1", edge.SeveritySick)
	r.pass(700 * time.Millisecond)
	r.deliver(a.Wish(r.now, net1, Wish{})) // amid a round
	if d := a.Past()[1]; d.Reason != "it does not want to leave any more" || d.Wish != "test" || d.Severity != edge.SeveritySick {
		t.Errorf("kept of a wish that has ended: %+v", d)
	}
	r.cut["c1"] = false
	r.wish("a1", edge.SeveritySick)
	r.pass(2 * time.Second)
	r.leave("a1")
	if d := a.Past()[2]; !d.Left || d.Reason != "withdrew" {
		t.Errorf("kept of a withdrawal: %+v", d)
	}
	// The last fifty only, oldest first.
	b := r.nodes["b1"]
	r.cut["c1"], r.cut["d1"] = true, true
	r.wish("b1", edge.SeveritySick)
	r.pass(3 * time.Minute)
	all := b.Past()
	if len(all) != 50 || !slices.IsSortedFunc(all, func(x, y edge.GuardDecision) int { return x.Time.Compare(y.Time) }) || all[49].Round < 51 {
		t.Errorf("%d are kept, the last is %d", len(all), all[len(all)-1].Round)
	}
}
