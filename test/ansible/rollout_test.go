package ansible

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/story"
)

// rolls is a fleet of stand-ins, and an operator who rolls it.
type rolls struct {
	t *testing.T
	*controller
	*world
}

func newRolls(t *testing.T, nodes ...string) *rolls {
	t.Helper()
	dir := t.TempDir()
	r := &rolls{t: t, controller: newController(t, dir), world: &world{t: t}}
	r.env = append(r.env, "ANSIBLE_CALLBACKS_ENABLED=catchment.edge.rollout")
	for _, n := range nodes {
		r.add(dir, n, n[:1])
	}
	must(t, r.world.inventory(r.controller.inventory, dir))
	return r
}

// running is a playbook that runs.
type running struct {
	cmd   *exec.Cmd
	out   bytes.Buffer
	ended chan error
}

func (r *rolls) start(book string, args ...string) *running {
	r.t.Helper()
	p := &running{cmd: exec.CommandContext(r.t.Context(), "ansible-playbook", append([]string{"catchment.edge." + book, "-i", r.controller.inventory}, args...)...), ended: make(chan error, 1)}
	// As a shell does for what it runs in front.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env, p.cmd.Dir, p.cmd.WaitDelay = &p.out, &p.out, r.env, r.dir, 10*time.Second
	must(r.t, p.cmd.Start())
	go func() { p.ended <- p.cmd.Wait() }()
	return p
}

// wait waits for its end, and returns what it has printed.
func (p *running) wait() (out string, good bool) {
	err := <-p.ended
	return p.out.String(), err == nil
}

// wants runs a playbook that is to end well, or not, and to say these words.
func (r *rolls) wants(good bool, book string, args []string, words ...string) string {
	r.t.Helper()
	begun := time.Now()
	out, ok := r.start(book, args...).wait()
	r.t.Logf("%s %v took %.1f s", book, args, time.Since(begun).Seconds())
	if ok != good {
		r.t.Fatalf("%s %v ended well: %t\n%s", book, args, ok, out)
	}
	for _, w := range words {
		if !strings.Contains(strings.ReplaceAll(out, `\"`, `"`), w) {
			r.t.Fatalf("%s %v does not say %q\n%s", book, args, w, out)
		}
	}
	return out
}

func (r *rolls) until(what string, ok func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	defer cancel()
	must(r.t, story.Until(ctx, what, func() error {
		if !ok() {
			return errors.New("not yet")
		}
		return nil
	}))
}

func (r *rolls) node(name string) *standIn {
	for _, n := range r.nodes {
		if n.name == name {
			return n
		}
	}
	r.t.Fatalf("no node %s", name)
	return nil
}

// stands checks the version of each node, whether it is drained, and that no lock is held.
func (r *rolls) stands(version string, drained bool, nodes ...string) {
	r.t.Helper()
	for _, name := range nodes {
		n := r.node(name)
		if v := n.versions().Running; v != version || (n.drained() != "") != drained {
			r.t.Fatalf("%s runs %s and is drained by %q, want %s and %t", name, v, n.drained(), version, drained)
		}
		if _, err := os.Stat(filepath.Join(n.dir, "lock", "lock.json")); !errors.Is(err, os.ErrNotExist) {
			r.t.Fatalf("the lock of %s is still held", name)
		}
	}
}

func (s *standIn) set(change func(s *standIn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *standIn) file(name string) string { return filepath.Join(s.dir, name) }

// TestRollout rolls three sites of one node each through all that can happen to a run.
func TestRollout(t *testing.T) {
	r := newRolls(t, "a1", "b1", "c1")
	to := func(version string, more ...string) []string {
		return append([]string{"-e", "rollout_version=" + version, "-e", "rollout_leave_out=d1"}, more...)
	}
	for name, load := range map[string]float64{"a1": 50, "b1": 100, "c1": 200} {
		r.node(name).set(func(s *standIn) { s.rate = load })
	}
	for _, p := range []struct {
		name string
		run  func()
	}{
		{"check mode shows the plan and changes nothing", func() {
			out := r.wants(true, "rollout", to("2.0.0", "--check"), "1. canary: a1", "2. one of each site: b1", "3. one of each site: c1")
			if n := strings.Count(out, "changed=1 "); n != 3 {
				t.Errorf("%d nodes would be staged, want 3\n%s", n, out)
			}
			if _, err := os.Stat(filepath.Join(r.dir, ".rollout")); !errors.Is(err, os.ErrNotExist) || r.left() != "" {
				t.Errorf("something was changed: %v, %q", err, r.left())
			}
			r.stands("1.0.0", false, "a1", "b1", "c1")
		}},
		{"the lock of another keeps it out", func() {
			lock := r.node("b1").file("lock/lock.json")
			must(t, os.MkdirAll(filepath.Dir(lock), 0o755))
			id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
			must(t, err)
			must(t, os.WriteFile(lock, fmt.Appendf(nil, `{"owner": "eve", "what": "a test", "since": "x", "until": "y", "until_boot": 1e12, "boot_id": %q}`, strings.TrimSpace(string(id))), 0o644))
			r.wants(false, "rollout", to("2.0.0"), "b1: ", "eve holds the lock for a test")
			must(t, os.Remove(lock))
			r.stands("1.0.0", false, "a1", "b1", "c1")
		}},
		{"a fleet that is not well is left alone", func() {
			r.node("c1").set(func(s *standIn) { s.sick = "1.0.0" })
			r.wants(false, "rollout", []string{"-e", "rollout_version=2.0.0"}, "c1: it is not ready: ", "probe web fails", "d1: it is not reached: ")
			r.node("c1").set(func(s *standIn) { s.sick = "" })
			if r.left() != "" {
				t.Errorf("%s were drained", r.left())
			}
		}},
		{"a node that is not healthy stays off the air and ends it", func() {
			r.node("b1").set(func(s *standIn) { s.sick = "2.0.0" })
			r.wants(false, "rollout", to("2.0.0"), "1 nodes have failed, and rollout_budget is 0", "b1 is not healthy within", "probe web fails")
			r.stands("2.0.0", false, "a1")
			r.stands("2.0.0", true, "b1")
			r.stands("1.0.0", false, "c1")
			md := r.report("rollout-2.0.0.md")
			for _, want := range []string{"| b1 | one of each site | wait until it is healthy", "| c1 | one of each site | waiting", "| a1 | canary | done"} {
				if !strings.Contains(md, want) {
					t.Errorf("the report lacks %q:\n%s", want, md)
				}
			}
		}},
		{"after a repair it goes on, and after kill -9 too", func() {
			r.node("b1").set(func(s *standIn) { s.sick = "" })
			must(t, os.WriteFile(r.node("c1").file("hang"), nil, 0o644))
			p := r.start("rollout", to("2.0.0")...)
			r.until("c1 is upgraded", func() bool { _, err := os.Stat(r.node("c1").file("began")); return err == nil })
			r.wants(false, "rollout", to("2.0.0"), "runs already, as process")
			must(t, syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL))
			p.wait()
			must(t, os.Remove(r.node("c1").file("hang")))
			// One that is refused has not forgotten what the first was about.
			r.wants(false, "rollout", to("9.9.9", "-e", "rollout_owner=mallory"), "c1: it is drained by another: rollout ")
			if r.node("b1").drained() != "" || r.node("c1").drained() == "" {
				t.Fatalf("b1 is drained by %q, c1 by %q", r.node("b1").drained(), r.node("c1").drained())
			}
			r.wants(true, "rollout", to("2.0.0"), "1. resume: c1", "All 3 nodes are at version 2.0.0")
			r.stands("2.0.0", false, "a1", "b1", "c1")
			if r.left() != "a1 b1 c1" || r.worst != 1 {
				t.Errorf("nodes left as %q, at most %d sites at once", r.left(), r.worst)
			}
		}},
		{"Ctrl-C, SIGTERM and SIGHUP release what it holds", func() {
			r.node("a1").set(func(s *standIn) { s.stays = true })
			// A terminal interrupts all that runs in front, a service manager may end the one.
			for n, to := range map[syscall.Signal]int{syscall.SIGINT: -1, syscall.SIGTERM: 1, syscall.SIGHUP: -1} {
				p := r.start("rollout", "-e", "rollout_version=3.0.0", "-e", "rollout_leave_out=d1")
				r.until("a1 is drained", func() bool { return r.node("a1").drained() != "" })
				must(t, syscall.Kill(to*p.cmd.Process.Pid, n))
				if out, good := p.wait(); good || !strings.Contains(out, "it was cut; run it again") {
					t.Fatalf("after %s it ended well: %t\n%s", n, good, out)
				}
				r.stands("2.0.0", false, "a1", "b1", "c1")
			}
			r.node("a1").set(func(s *standIn) { s.stays = false })
		}},
		{"a node that serves worse than the others ends it, and goes back", func() {
			r.node("a1").set(func(s *standIn) { s.crashing = "3.0.0" })
			r.wants(false, "rollout", to("3.0.0"), "soak: it was not ready in the soak: edged was started again")
			r.stands("3.0.0", true, "a1")
			r.node("a1").set(func(s *standIn) { s.crashing, s.failing = "", "3.0.0" })
			r.wants(false, "rollout", to("3.0.0"), "requests ended with 5xx, and 0.00 % at the others")
			r.stands("2.0.0", false, "b1", "c1")
			r.stands("3.0.0", true, "a1")
			r.wants(true, "rollback", to("3.0.0"), "1. resume: a1 (to 2.0.0)")
			r.stands("2.0.0", false, "a1", "b1", "c1")
		}},
	} {
		if !t.Run(p.name, func(t *testing.T) { r.t, r.world.t = t, t; p.run() }) {
			break
		}
	}
	r.t, r.world.t = t, t
}

func (r *rolls) report(name string) string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "report", name))
	must(r.t, err)
	return string(text)
}
