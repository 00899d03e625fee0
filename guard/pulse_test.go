package guard

import (
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

func (f *forger) pulse(key string, spoil func(*pulse)) []byte {
	p := pulse{head: f.head()}
	if spoil != nil {
		spoil(&p)
	}
	return encodePulse(p, keyOf(key))
}

// TestDeadStaysOld: who has the gossip key and has recorded all that a node has said
// cannot keep its word fresh when it is dead, nor when the others have been started
// again and have forgotten what they have seen.
func TestDeadStaysOld(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	a, b, c := f.start(0), f.start(1), f.start(2)
	var reports, pulses [][]byte
	var says []edge.Claim
	for _, words := range []edge.Reason{"first", "second", "third"} {
		says = claim(words)
		b.Publish(edge.Report{Says: says})
		b.mu.Lock()
		reports = append(reports, b.own.raw)
		b.mu.Unlock()
		pulses = append(pulses, b.pulseFor("a", time.Now()), b.pulseFor("c", time.Now()))
	}
	fresh := func(n *node) bool {
		m := n.report("b")
		return m.Age >= 0 && m.Age < n.fresh() && m.Report.Says[0].Reason == "third"
	}
	f.until("a and c hear b itself", func() bool {
		b.Publish(edge.Report{Says: says})
		return fresh(a) && fresh(c)
	})
	b.stop()
	f.nodes[1] = nil
	r := &recorder{Memberlist: f.insider("z", f.roster[1].Gossip)}
	age := a.report("b").Age // before the time, that it is no older
	died := time.Now()
	replay := func(to *node) {
		for _, raw := range reports {
			r.say(t, to, raw)
		}
		for i, raw := range pulses {
			if i%2 == 0 == (to.ID == "a") {
				r.say(t, to, raw)
			}
		}
	}
	f.until("the word of b is old at a", func() bool {
		replay(a)
		dead := time.Since(died)
		m := a.report("b")
		if m.Age < age+dead-time.Second {
			t.Fatalf("b, dead for %s, was heard %s ago", time.Since(died), m.Age)
		}
		return m.Age > a.fresh()
	})
	if n := a.State().Dropped["stale_pulse"]; n == 0 {
		t.Errorf("no pulse was replayed: %v", a.State().Dropped)
	}
	a.stop()
	a = f.start(0)
	f.until("all was replayed to the new a", func() bool {
		replay(a)
		m := a.report("b")
		if m.Age >= 0 && m.Age < a.fresh() {
			t.Fatalf("b is dead, and was heard %s ago", m.Age)
		}
		return m.Age >= 0 && m.Report.Says[0].Reason == "third" && a.State().Dropped["stale_pulse"] > 0
	})
}

// TestHeardIsJoinedFirst: a node that is heard and is not alive to memberlist is there.
func TestHeardIsJoinedFirst(t *testing.T) {
	g := alone(t, 300)
	for i, id := range []edge.NodeID{"c", "x", "q"} {
		g.note(pulse{head: head{node: id, site: edge.SiteID(id), boot: 5, seq: 1, to: "a", toBoot: g.boot}}, time.Now().Add(-time.Duration(i)*g.fresh()))
	}
	g.up.on["b"] = true
	dead := g.dead()
	if len(dead) != 298 || dead[0].ID != "c" {
		t.Errorf("%d dead, first %s", len(dead), dead[0].ID)
	}
	for range 100 {
		if g.dead()[1].ID != dead[1].ID {
			return
		}
	}
	t.Error("always in the same order")
}
