package promise

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*rig)
		want string
	}{
		"not announcing":     {func(r *rig) { r.held["b1"] = false }, "b1: it does not announce the prefix"},
		"draining less":      {func(r *rig) { r.mute("b1", edge.SeverityDrain) }, ""},
		"sick too":           {func(r *rig) { r.mute("b1", edge.SeveritySick) }, "b1: it wants to leave too, and goes first"},
		"no answer":          {func(r *rig) { r.cut["b1"] = true }, "b1: no answer"},
		"has withdrawn":      {func(r *rig) { r.nodes["b1"].seats[net1].left = true; r.nodes["b1"].seats[net1].leftAt = r.now }, "b1: it has withdrawn"},
		"failed to withdraw": {func(r *rig) { r.nodes["b1"].seats[net1].unsure = r.now.Add(time.Minute) }, "b1: its own withdrawal failed"},
		"leaving":            {func(r *rig) { r.nodes["b1"].seats[net1].leaving = true }, "b1: it is leaving"},
		"unknown prefix":     {func(r *rig) { delete(r.nodes["b1"].seats, net1); r.nodes["b1"].order = nil }, "b1: it does not know the prefix"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1, "a1", "b1")
			c.set(r)
			r.wish("a1", edge.SeveritySick)
			r.pass(1600 * time.Millisecond)
			if c.want == "" { // a sick site outranks one that drains
				r.want("a1", true)
				return
			}
			r.want("a1", false, c.want)
		})
	}
}

func TestDrainYieldsToDrain(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	r.cut["a1"] = true
	r.wish("b1", edge.SeverityDrain)
	r.pass(time.Second)
	r.cut["a1"] = false
	r.wish("a1", edge.SeverityDrain)
	r.pass(10 * time.Second)
	// b1 ranks to go: the id that comes first stays.
	r.want("b1", true)
	r.want("a1", false, "bound by a promise to b1")
	if !slices.ContainsFunc(r.sent, func(m Message) bool { return m.Kind == Nack && m.From == "b1" && m.Reason == "it is draining" }) {
		t.Errorf("a1 was never told that b1 drains:\n%s", strings.Join(r.log, "\n"))
	}
}

func TestPromiseCancelsOwnRound(t *testing.T) {
	r := newRig(t, 2, "a1", "b1", "c1")
	r.cut["b1"], r.cut["c1"] = true, true // so that a1's round stays open
	r.wish("a1", edge.SeveritySick)
	r.pass(600 * time.Millisecond)
	r.cut["b1"] = false
	r.wish("b1", edge.SeveritySick)
	r.pass(600 * time.Millisecond)
	if r.nodes["a1"].seats[net1].round != nil {
		t.Error("a1 has promised and still asks")
	}
	r.want("a1", false, "bound by a promise to b1")
	if _, err := r.nodes["a1"].Begin(r.now, net1); err == nil || !strings.Contains(err.Error(), "bound") {
		t.Errorf("bound node may leave: %v", err)
	}
}

func TestGrantedPermitIsLostByPromising(t *testing.T) {
	r := newRig(t, 1, "a1", "b1", "c1")
	r.cut["b1"] = true
	r.wish("a1", edge.SeveritySick)
	r.pass(time.Second)
	r.want("a1", true)
	r.cut["b1"] = false
	r.wish("b1", edge.SeveritySick+1)
	r.pass(time.Second)
	r.want("b1", true)
	r.want("a1", false, "bound")
	for _, b := range append(r.nodes["b1"].Bound(r.now), r.nodes["c1"].Bound(r.now)...) {
		if b.To == "a1" {
			t.Errorf("a promise to a1 was not given back: %+v", b)
		}
	}
}

func TestReleaseAfterLeaving(t *testing.T) {
	r := newRig(t, 1, "a1", "b1", "c1")
	r.wish("a1", edge.SeveritySick)
	r.pass(time.Second)
	r.leave("a1")
	for id, n := range r.nodes {
		if b := n.Bound(r.now); len(b) > 0 {
			t.Errorf("%s is still bound: %v", id, b)
		}
	}
	r.want("a1", false, "already withdrawn")
	// What was read back may be stale: it is not believed before it has shown
	// the prefix gone.
	r.held["a1"] = true
	r.wish("b1", edge.SeveritySick)
	r.pass(1500 * time.Millisecond)
	if slices.Contains(r.want("b1", true).Promised, "a") {
		t.Error("a withdrawn site has promised to stay")
	}
}

// TestSessionBack: a prefix that was not held for a moment is promised only when it has
// been held again for long enough, be it asked anew or once more.
func TestSessionBack(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	r.held["a1"] = false
	r.pass(100 * time.Millisecond)
	r.held["a1"] = true
	r.wish("b1", edge.SeveritySick)
	r.pass(taking - 200*time.Millisecond)
	r.want("b1", false, "its routers may not have taken it yet")
	r.pass(1500 * time.Millisecond)
	r.want("b1", true)
}

func TestWithdrawnSiteIsBack(t *testing.T) {
	for _, seen := range []bool{true, false} {
		r := newRig(t, 1, "a1", "b1")
		r.wish("a1", edge.SeveritySick)
		r.pass(time.Second)
		r.leave("a1")
		r.nodes["a1"].Wish(r.now, net1, Wish{})
		if seen {
			r.pass(200 * time.Millisecond)
		}
		r.held["a1"] = true
		r.wish("b1", edge.SeveritySick)
		r.pass(taking - 100*time.Millisecond) // its routers may not have taken it yet
		r.want("b1", false)
		r.pass(2 * time.Second)
		r.want("b1", seen)
		r.pass(10 * time.Second) // a whole lease: nothing read back is so old
		r.want("b1", true)
	}
}

func TestFailedWithdrawal(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	r.wish("a1", edge.SeveritySick)
	r.pass(time.Second)
	until, err := r.nodes["a1"].Begin(r.now, net1)
	if err != nil {
		t.Fatal(err)
	}
	r.deliver(r.nodes["a1"].End(r.now, net1, false))
	r.want("a1", false, "the withdrawal failed")
	r.pass(time.Second)
	if len(r.nodes["b1"].Bound(r.now)) != 1 {
		t.Error("b1 is free, though the withdrawal may yet take effect")
	}
	r.wish("b1", edge.SeveritySick)
	r.pass(until.Sub(r.now) + 200*time.Millisecond)
	if r.nodes["b1"].permitted(r.now) {
		t.Error("a node that may have withdrawn has promised")
	}
	r.pass(5 * time.Second)
	if !r.nodes["a1"].permitted(r.now) && !r.nodes["b1"].permitted(r.now) {
		t.Errorf("nobody may leave long after: %v, %v", r.permit("a1"), r.permit("b1"))
	}
}

func (n *Node) permitted(now time.Time) bool { return n.Permit(now, net1).OK }

func TestLeavingAnswersNobody(t *testing.T) {
	r := newRig(t, 1, "a1", "b1", "c1")
	r.wish("a1", edge.SeveritySick)
	r.pass(time.Second)
	if _, err := r.nodes["a1"].Begin(r.now, net1); err != nil {
		t.Fatal(err)
	}
	if _, err := r.nodes["a1"].Begin(r.now, net1); err == nil {
		t.Error("began twice")
	}
	out := r.nodes["a1"].Receive(r.now, Message{Kind: Intent, From: "c1", To: "a1", Prefix: net1, Round: Round{7, 1}, Severity: 9})
	if len(out) != 1 || out[0].Kind != Nack || out[0].Reason != "it is leaving" {
		t.Errorf("answer while leaving: %+v", out)
	}
	// Another prefix is another matter.
	out = r.nodes["a1"].Receive(r.now, Message{Kind: Intent, From: "c1", To: "a1", Prefix: net2, Round: Round{7, 2}, Severity: 9})
	if len(out) != 1 || out[0].Kind != Promise {
		t.Errorf("answer for another prefix: %+v", out)
	}
	// The wish may end meanwhile; the withdrawal goes on.
	r.deliver(r.nodes["a1"].Wish(r.now, net1, Wish{}))
	r.deliver(r.nodes["a1"].End(r.now, net1, true))
	if len(r.nodes["b1"].Bound(r.now)) != 0 {
		t.Error("b1 was not released")
	}
}

func TestReplayedQuestions(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	b := r.nodes["b1"]
	ask := Message{Kind: Intent, From: "a1", To: "b1", Prefix: net1, Round: Round{7, 3}, Severity: 2}
	if out := b.Receive(r.now, ask); len(out) != 1 || out[0].Kind != Promise {
		t.Fatalf("answer: %v", out)
	}
	b.Receive(r.now, Message{Kind: Release, From: "a1", To: "b1", Prefix: net1, Round: Round{7, 2}})
	if len(b.Bound(r.now)) != 1 {
		t.Error("the release of another round has freed b1")
	}
	b.Receive(r.now, Message{Kind: Release, From: "a1", To: "b1", Prefix: net1, Round: Round{7, 3}})
	b.Receive(r.now, ask)
	b.Receive(r.now, Message{Kind: Release, From: "a1", To: "b1", Prefix: net1, Round: Round{7, 9}}) // overtakes its question
	for n := range uint64(9) {
		ask.Round.N = n + 1
		b.Receive(r.now, ask)
	}
	if len(b.Bound(r.now)) != 0 {
		t.Errorf("b1 is bound by a replay: %v", b.Bound(r.now))
	}
	ask.Round = Round{6, 99}
	if out := b.Receive(r.now, ask); len(out) != 0 {
		t.Errorf("answers the process before: %v", out)
	}
}
