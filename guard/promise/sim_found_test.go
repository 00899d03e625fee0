package promise

import (
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// What the simulator has found, told with as little as shows it. The schedules are
// in testdata/sim.

// TestStartedNodePromisesNobody: what its process before was withdrawing may go for
// as long as that had leave to, and what is read back is older still.
func TestStartedNodePromisesNobody(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	b := r.nodes["b1"]
	b.started, b.quiet, b.blind = r.now, time.Time{}, time.Time{}
	if _, err := b.Update(r.now, rigSettings(1, "a1", "b1")); err != nil {
		t.Fatal(err)
	}
	r.wish("a1", edge.SeveritySick)
	r.pass(Span(10*time.Second) + stale + taking - 100*time.Millisecond)
	r.want("a1", false, "b1: it has started a moment ago")
	r.pass(2 * time.Second)
	r.want("a1", true)
}

// TestStartedNodeThatWasForced: what an operator has forced out before the start may go
// for longer than any permit lasts.
func TestStartedNodeThatWasForced(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	n, err := New(Options{Self: "a1", Started: r.now, Settings: rigSettings(1, "a1", "b1"), Held: r.nodes["a1"].held, Rand: r.nodes["a1"].rand})
	if err != nil {
		t.Fatal(err)
	}
	n.Recall(r.now.Add(-time.Minute)) // by a clock that may have jumped
	answer := func(at time.Duration) Kind {
		out := n.Receive(r.now.Add(at), Message{Kind: Intent, From: "b1", To: "a1", Prefix: net1, Round: Round{9, uint64(at)}, Severity: edge.SeveritySick})
		return out[0].Kind
	}
	if answer(forceLast+stale+taking-time.Millisecond) != Nack || answer(forceLast+stale+taking) != Promise {
		t.Error("it promises too soon, or not again")
	}
}

// TestReleaseOfAnotherProcess: if the clock goes back over a restart, what the process
// before has asked and given back may come late, and look newer.
func TestReleaseOfAnotherProcess(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	b := r.nodes["b1"]
	say := func(k Kind, round Round) []Message {
		return b.Receive(r.now, Message{Kind: k, From: "a1", To: "b1", Prefix: net1, Round: round, Severity: edge.SeveritySick})
	}
	if out := say(Intent, Round{5, 1}); len(out) != 1 || out[0].Kind != Promise {
		t.Fatalf("answer: %v", out)
	}
	if out := say(Intent, Round{9, 1}); len(out) != 1 || out[0].Kind != Nack {
		t.Errorf("answer to the other process: %v", out)
	}
	say(Release, Round{9, 1})
	if len(b.Bound(r.now)) != 1 {
		t.Error("it is free of what the one counts on, by the release of the other")
	}
	if say(Release, Round{5, 1}); len(b.Bound(r.now)) != 0 {
		t.Error("it is bound still")
	}
	if out := say(Intent, Round{9, 2}); len(out) != 1 || out[0].Kind != Promise {
		t.Errorf("answer once it is free: %v", out)
	}
}

// TestInTheRosterInBetween: who was not in the roster when the round was opened, and is
// not now, is not counted, though it was asked in between.
func TestInTheRosterInBetween(t *testing.T) {
	r := newRig(t, 1, "a1", "b1", "c1")
	a := r.nodes["a1"]
	roster := func(names ...string) {
		out, err := a.Update(r.now, rigSettings(1, names...))
		if err != nil {
			t.Fatal(err)
		}
		r.deliver(out)
	}
	roster("a1", "b1")
	r.cut["b1"] = true
	r.wish("a1", edge.SeveritySick)
	for a.seats[net1].round == nil {
		r.pass(100 * time.Millisecond)
	}
	roster("a1", "b1", "c1")
	for a.seats[net1].round != nil && len(a.seats[net1].round.promised) == 0 {
		a.seats[net1].round.wide = false
		r.pass(100 * time.Millisecond)
	}
	if len(a.seats[net1].round.promised) != 1 {
		t.Fatal("c1 was not asked")
	}
	roster("a1", "b1")
	r.want("a1", false)
}

// TestLeaseOfTheProcessBefore: it may have promised by a longer lease, or have been
// promised for as long.
func TestLeaseOfTheProcessBefore(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	n, err := New(Options{Self: "a1", Started: r.now, Settings: rigSettings(1, "a1", "b1"), LeaseBefore: time.Minute,
		Held: r.nodes["a1"].held, Rand: r.nodes["a1"].rand})
	if err != nil {
		t.Fatal(err)
	}
	r.nodes["a1"] = n
	r.wish("a1", edge.SeveritySick)
	r.pass(59 * time.Second)
	r.want("a1", false, "forgotten")
	ask := Message{Kind: Intent, From: "b1", To: "a1", Prefix: net1, Round: Round{9, 1}, Severity: edge.SeveritySick + 1}
	if out := n.Receive(r.now.Add(-5*time.Second), ask); len(out) != 1 || out[0].Kind != Nack {
		t.Errorf("it promises: %v", out)
	}
	r.pass(2 * time.Second)
	r.want("a1", true)
}

// TestNoPermitBeyondTheOwnLease: after a restart that is all that is known of how
// long the process before may have had leave.
func TestNoPermitBeyondTheOwnLease(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	s := rigSettings(1, "a1", "b1")
	s.Policy.PromiseLease = 4 * time.Second
	if _, err := r.nodes["a1"].Update(r.now, s); err != nil {
		t.Fatal(err)
	}
	r.wish("a1", edge.SeveritySick)
	r.pass(time.Second)
	if p := r.want("a1", true); p.Until.Sub(r.now) > Span(4*time.Second) {
		t.Errorf("a permit of %s, and the lease is 4s", p.Until.Sub(r.now))
	}
	if got := r.nodes["b1"].Bound(r.now)[0].Until.Sub(r.now); got < 9*time.Second {
		t.Errorf("b1 is bound for %s: it promises by its own lease", got)
	}
}

// TestFailedWithdrawalUnderAnothersLease: the permit may last longer than the own
// lease does by now, and nobody is promised before it can be seen what has come of
// the withdrawal.
func TestFailedWithdrawalUnderAnothersLease(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	r.wish("a1", edge.SeveritySick)
	r.pass(time.Second)
	a := r.nodes["a1"]
	until, err := a.Begin(r.now, net1)
	if err != nil {
		t.Fatal(err)
	}
	s := rigSettings(1, "a1", "b1")
	s.Policy.PromiseLease = 3 * time.Second
	if _, err := a.Update(r.now, s); err != nil {
		t.Fatal(err)
	}
	r.deliver(a.End(r.now, net1, false))
	r.deliver(a.Wish(r.now, net1, Wish{}))
	round := uint64(0)
	ask := func(at time.Time) Kind {
		round++
		return a.Receive(at, Message{Kind: Intent, From: "b1", To: "a1", Prefix: net1, Round: Round{9, round}, Severity: edge.SeveritySick})[0].Kind
	}
	if ask(until.Add(-time.Millisecond)) != Nack || ask(until.Add(stale-time.Millisecond)) != Nack || ask(until.Add(stale+taking-time.Millisecond)) != Nack {
		t.Error("it promises while its withdrawal may take effect, or not be seen yet, or be undone but now")
	}
	if ask(until.Add(stale+taking)) != Promise {
		t.Error("it does not promise after that")
	}
}

// TestOldReadBackAfterLeaving: with a short lease what was read back before the
// withdrawal is older than that.
func TestOldReadBackAfterLeaving(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	s := rigSettings(1, "a1", "b1")
	s.Policy.PromiseLease, s.Policy.AskTimeout = time.Second, 300*time.Millisecond
	for _, n := range r.nodes {
		if _, err := n.Update(r.now, s); err != nil {
			t.Fatal(err)
		}
	}
	r.wish("a1", edge.SeveritySick)
	r.pass(600 * time.Millisecond)
	r.leave("a1")
	r.held["a1"] = true // still
	r.wish("b1", edge.SeveritySick)
	r.pass(stale - 100*time.Millisecond)
	r.want("b1", false, "a1: it has withdrawn")
}

// TestUnlimitedIsNotLimited: without a limit a prefix that has come back may leave
// again at once.
func TestUnlimitedIsNotLimited(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	for range 5 {
		r.open("a1", net1, edge.SeveritySick)
		r.leave("a1")
		r.nodes["a1"].Wish(r.now, net1, Wish{})
		r.pass(200 * time.Millisecond)
		r.held["a1"] = true
		r.pass(200 * time.Millisecond)
	}
}

// TestLostMessagesArePutAgain: the question, its answer and the release each get a
// second chance, and a promise counts from the first question all the same.
func TestLostMessagesArePutAgain(t *testing.T) {
	r := newRig(t, 1, "a1", "b1")
	r.cut["b1"] = true
	r.wish("a1", edge.SeveritySick)
	for r.nodes["a1"].seats[net1].round == nil {
		r.pass(100 * time.Millisecond)
	}
	opened := r.now
	r.cut["b1"] = false
	r.pass(700 * time.Millisecond)
	if p := r.want("a1", true); p.Until.After(opened.Add(Span(10 * time.Second))) {
		t.Errorf("the permit is until %s, and the question was first put at %s", p.Until, opened)
	}
	if n := r.drops["replayed"] + r.drops["stale_round"]; n != 0 {
		t.Errorf("%d messages count as replays", n)
	}
	// A copy that comes while the promise stands gets it again, and binds no longer.
	b := r.nodes["b1"]
	until := b.Bound(r.now)[0].Until
	again := Message{Kind: Intent, From: "a1", To: "b1", Prefix: net1, Round: r.nodes["a1"].seats[net1].round.id, Severity: edge.SeveritySick}
	if out := b.Receive(r.now, again); len(out) != 1 || out[0].Kind != Promise || !b.Bound(r.now)[0].Until.Equal(until) {
		t.Errorf("a copy of the question: %v, bound until %s, before %s", out, b.Bound(r.now)[0].Until, until)
	}
	longer := rigSettings(1, "a1", "b1")
	longer.Policy.PromiseLease = time.Minute
	if _, err := b.Update(r.now, longer); err != nil {
		t.Fatal(err)
	}
	if out := b.Receive(r.now, again); len(out) != 1 || out[0].Lease != 10*time.Second {
		t.Errorf("under another lease: %v", out)
	}
	r.held["b1"] = false
	if out := b.Receive(r.now, again); len(out) != 0 {
		t.Errorf("promised again without the prefix: %v", out)
	}
	r.held["b1"] = true
	r.cut["b1"] = true
	r.deliver(r.nodes["a1"].Wish(r.now, net1, Wish{}))
	r.cut["b1"] = false
	r.pass(500 * time.Millisecond)
	if len(b.Bound(r.now)) != 0 {
		t.Error("b1 is still bound: the release was lost")
	}
	if n := r.drops["stale_release"]; n != 0 {
		t.Errorf("%d releases count as stale", n)
	}
}

// TestForcedNode: it promises nobody, not what it has promised before once more, and
// asks nobody meanwhile, whatever it wants. After a failure it is not known for long
// whether it may have left all the same.
func TestForcedNode(t *testing.T) {
	r := newRig(t, 1, "a1", "b1", "c1")
	ask := Message{Kind: Intent, From: "c1", To: "a1", Prefix: net1, Round: Round{9, 1}, Severity: edge.SeveritySick}
	a := r.nodes["a1"]
	if out := a.Receive(r.now, ask); len(out) != 1 || out[0].Kind != Promise {
		t.Fatalf("answer: %v", out)
	}
	if broken, _, err := a.Force(r.now, net1); err != nil || len(broken) != 1 || broken[0] != "c1" {
		t.Fatalf("broken %v, %v", broken, err)
	}
	if out := a.Receive(r.now, ask); len(out) != 0 {
		t.Errorf("a broken promise is given again: %v", out)
	}
	r.deliver(a.Receive(r.now, Message{Kind: Release, From: "c1", To: "a1", Prefix: net1, Round: ask.Round}))
	r.wish("a1", edge.SeveritySick)
	r.pass(time.Second)
	if a.seats[net1].round != nil {
		t.Error("it asks while it is forced out")
	}
	a.Forced(r.now, net1, "test", false)
	if a.seats[net1].leaving {
		t.Error("it is leaving for ever")
	}
	r.deliver(a.Wish(r.now, net1, Wish{}))
	answer := func(at time.Duration) Kind {
		ask.Round.N++
		return a.Receive(r.now.Add(at), ask)[0].Kind
	}
	if answer(forceLast+stale+taking-time.Millisecond) != Nack || answer(forceLast+stale+taking) != Promise {
		t.Error("it promises too soon, or not again")
	}
}

// TestNothingIsForgottenWithThePrefix: one that is taken from the configuration, and
// put back, is not sure again of what has become of its withdrawal.
func TestNothingIsForgottenWithThePrefix(t *testing.T) {
	for name, leave := range map[string]func(*rig, *Node){
		"failed": func(r *rig, a *Node) {
			r.open("a1", net1, edge.SeveritySick)
			if _, err := a.Begin(r.now, net1); err != nil {
				t.Fatal(err)
			}
			r.deliver(a.End(r.now, net1, false))
			r.pass(9 * time.Second)
		},
		"forced": func(r *rig, a *Node) {
			if _, _, err := a.Force(r.now, net1); err != nil {
				t.Fatal(err)
			}
			a.Forced(r.now, net1, "test", false)
		},
	} {
		r := newRig(t, 1, "a1", "b1")
		a := r.nodes["a1"]
		leave(r, a)
		r.deliver(a.Wish(r.now, net1, Wish{}))
		s := rigSettings(1, "a1", "b1")
		with := s.Prefixes
		s.Prefixes = with[1:]
		r.held["a1"] = false // its sessions are down
		for _, s.Prefixes = range [][]edge.Prefix{with[1:], with} {
			if _, err := a.Update(r.now, s); err != nil {
				t.Fatal(err)
			}
			r.pass(100 * time.Millisecond)
		}
		r.held["a1"] = true
		out := a.Receive(r.now, Message{Kind: Intent, From: "b1", To: "a1", Prefix: net1, Round: Round{9, 1}, Severity: edge.SeveritySick})
		if len(out) != 1 || out[0].Kind != Nack {
			t.Errorf("%s: it promises: %v", name, out)
		}
	}
}
