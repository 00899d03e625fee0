package ansible

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRolloutLost: a node is lost at a step of its upgrade, alone in its run or not. The
// run always ends as failed, says which node and why, and goes on when it is back.
func TestRolloutLost(t *testing.T) {
	for _, p := range []struct {
		name, lose string
		args       []string
		// say is what the run says, drained and fresh how the node is then.
		say            string
		drained, fresh bool
	}{
		{"in the soak, alone", "3 edge_rollout_sample", []string{"--limit", "b1"}, "b1: soak: it was not seen to the end of the soak: ", false, true},
		{"in the upgrade, alone", "1 wait_for", []string{"--limit", "b1"}, "b1: wait as long as a node of the test takes: ", true, false},
		{"when it has its lock again", "3 edge_lock", nil, "b1: note that it was reached after the upgrade: it was not reached any more: ", true, true},
	} {
		t.Run(p.name, func(t *testing.T) {
			r := newRolls(t, "a1", "b1")
			with, err := filepath.Abs("testdata/connection")
			must(t, err)
			r.env = append(r.env, "ANSIBLE_CONNECTION_PLUGINS="+with)
			r.node("b1").set(func(s *standIn) { s.rate = 1 }) // it is the canary
			must(t, os.WriteFile(r.node("b1").file("lose"), []byte(p.lose), 0o644))
			args := append([]string{"-e", "ansible_connection=lossy", "-e", "rollout_version=2.0.0", "-e", "rollout_leave_out=d1", "-e", "rollout_drain_bad=false"}, p.args...)
			if out := r.wants(false, "rollout", args, p.say+"the cable was cut", "The report: "); strings.Contains(out, "All 1 nodes") {
				t.Errorf("it says that all is well:\n%s", out)
			}
			r.stands("1.0.0", false, "a1")
			n := r.node("b1")
			if v := n.versions().Running; (v == "2.0.0") != p.fresh || (n.drained() != "") != p.drained {
				t.Errorf("b1 runs %s and is drained by %q", v, n.drained())
			}
			must(t, os.Remove(n.file("lose")))
			must(t, os.Remove(n.file("lost")))
			again := "1. resume: b1"
			if !p.drained {
				again = "1. soak again: b1"
			}
			r.wants(true, "rollout", args, again, "nodes are at version 2.0.0")
			r.stands("2.0.0", false, "b1")
		})
	}
}

// TestRolloutBudget: with a budget the others go on past a node that fails, and the run has
// failed all the same.
func TestRolloutBudget(t *testing.T) {
	r := newRolls(t, "a1", "b1", "c1")
	for name, load := range map[string]float64{"a1": 50, "b1": 100, "c1": 200} {
		r.node(name).set(func(s *standIn) { s.rate = load })
	}
	r.node("a1").set(func(s *standIn) { s.sick = "2.0.0" })
	args := []string{"-e", "rollout_version=2.0.0", "-e", "rollout_leave_out=d1", "-e", "rollout_budget=1"}
	r.wants(false, "rollout", args, "2 of 3 nodes are done, and 1 have failed", "a1: wait until it is healthy, several times in a row: ", "it stays off the air")
	r.stands("2.0.0", false, "b1", "c1")
	r.stands("2.0.0", true, "a1")
	r.node("a1").set(func(s *standIn) { s.sick = "" })
	r.wants(true, "rollout", args, "1. resume: a1", "All 3 nodes are at version 2.0.0")
	r.stands("2.0.0", false, "a1")
}
