package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge/image/slot"
)

func TestHealthChecks(t *testing.T) {
	t.Parallel()
	for want, spoil := range map[string]func(*trial){
		`version: the UKI is of version 1.2.0, and its root says "1.1.0"`: func(c *trial) { c.put(osRelease, []byte("IMAGE_VERSION=1.1.0\n")) },
		"version: version 1.2.0 was written to slot b":                    func(c *trial) { c.put(slot.BootedAs+"/slot", []byte("a")) },
		"configuration: the configuration of EDGECFG is not valid: e.yaml:1:1: bad": func(c *trial) {
			c.put(setupResult, []byte(`{"format":1,"state":"rescue","source":"EDGECFG","errors":["e.yaml:1:1: bad"]}`))
		},
		"configuration: the version before had a configuration":                func(c *trial) { c.put(setupResult, []byte(`{"state":"unconfigured"}`)) },
		"configuration: edge-setup has not said":                               func(c *trial) { os.Remove(filepath.Join(c.root, setupResult)) },
		"sshd: nothing listens on TCP port":                                    func(c *trial) { c.put("/proc/net/tcp", nil) },
		"firewall: the packet filter has no table inet edge_host":              func(c *trial) { c.bare = true },
		"edged: edged does not answer":                                         func(c *trial) { c.socket += ".gone" },
		"edgeproxy: edgeproxy does not answer on its health port: get http://": func(c *trial) { c.deaf = true },
		"edgeproxy: edgeproxy does not answer: ":                               func(c *trial) { os.Remove(filepath.Join(c.root, "/run/edge/edgeproxy.sock")) },
		"hook:origin: the origin is far": func(c *trial) {
			c.put(hookFolder+"/origin", []byte("#!/bin/sh\necho the origin is far\nexit 1\n"))
			if err := os.Chmod(filepath.Join(c.root, hookFolder, "origin"), 0o755); err != nil {
				c.t.Fatal(err)
			}
		},
	} {
		c := newTrial(t)
		c.must("upgrade", c.payload("1.2.0"))
		c.boot("1.2.0", slot.B)
		spoil(c)
		c.refuses(want, "appliance", "health", "--once")
		if _, err := os.Stat(filepath.Join(c.root, motdFile)); err == nil || c.reboots() != 1 {
			t.Errorf("%s: --once changes something", want)
		}
	}
}

// TestFirewallIsOff: a box whose configuration wants no rules needs none.
func TestFirewallIsOff(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.bare = true
	c.refuses("firewall: ", "appliance", "health", "--once")
	c.put(edgeConfig, []byte(strings.Replace(c.read(edgeConfig), "node:\n", "node:\n  host_firewall: {mode: off}\n", 1)))
	c.must("appliance", "health", "--once")
}

// await waits until a condition holds.
func (c *trial) await(what string, holds func() bool) {
	c.t.Helper()
	ctx, stop := context.WithTimeout(c.t.Context(), time.Minute)
	defer stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			b, _ := os.ReadFile(filepath.Join(c.root, motdFile))
			c.t.Fatalf("not within a minute: %s\n%s", what, b)
		case <-tick.C:
		}
	}
}

// holds says whether a file has a text by now.
func (c *trial) holds(name, want string) func() bool {
	return func() bool {
		b, err := os.ReadFile(filepath.Join(c.root, name))
		return err == nil && strings.Contains(string(b), want)
	}
}

// judging is edge-health on its way.
type judging struct {
	stop context.CancelFunc
	done chan error
}

func (c *trial) judge(args ...string) *judging {
	ctx, stop := context.WithCancel(c.t.Context())
	j := &judging{stop, make(chan error, 1)}
	go func() {
		_, err := c.callCtx(ctx, append([]string{"appliance", "health", "--within=2s", "--again=500ms"}, args...)...)
		j.done <- err
	}()
	c.t.Cleanup(stop)
	return j
}

// TestHealthOfAGoodVersion: it stays up when its checks fail, and alarms; and once
// they pass it is good after all.
func TestHealthOfAGoodVersion(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.node.set(func(n *node) { n.down = true })
	j := c.judge()
	c.await("an alarm", c.holds(alarmsFile, "version 1.1.0 of slot a is not good: bgp"))
	c.await("that it is judged", c.holds(judgedFile, "was good before, so it stays"))
	out, err := c.call("appliance", "health", "--once", "-o", "json")
	var v verdict
	if jerr := json.Unmarshal([]byte(out), &v); jerr != nil || err == nil || v.Good || v.Trial || len(v.Failed) != 1 || v.Failed[0].Check != "bgp" {
		t.Errorf("%v, %v: %s", jerr, err, out)
	}
	// Something else fails in the meantime, and is told too.
	c.put(osRelease, []byte("IMAGE_VERSION=9\n"))
	c.await("another reason", c.holds(metricsFile, `edge_boot_check_failed{check="version"} 1`))
	select {
	case err := <-j.done:
		t.Fatalf("it does not go on: %v", err)
	default:
	}
	c.node.set(func(n *node) { n.down = false })
	c.put(osRelease, []byte("IMAGE_VERSION=1.1.0\n"))
	if err := <-j.done; err != nil {
		t.Errorf("its router is back, and still: %v", err)
	}
	if motd := c.read(motdFile); motd != "Catchment 1.1.0, slot a: good\n" {
		t.Error(motd)
	}
	if m := c.read(metricsFile); !strings.Contains(m, "edge_boot_good 1") || strings.Contains(m, "check_failed") {
		t.Error(m)
	}
	boots, err := c.box().state().Boots()
	if err != nil || len(boots) != 1 || !boots[0].Good || c.reboots() != 0 {
		t.Errorf("%+v, %v, %d reboots", boots, err, c.reboots())
	}
}

// TestStaysDown: an upgrade that meets routers in maintenance. The box has come back,
// and once they answer it is on the air again without a hand.
func TestStaysDown(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", c.payload("1.2.0"))
	c.node.set(func(n *node) { n.down = true })
	for range 3 {
		c.boot("1.2.0", slot.B)
		c.refuses("is booted", "appliance", "health", "--within=2s")
	}
	c.boot("1.1.0", slot.A)
	j := c.judge()
	c.await("both to be told", c.holds(motdFile, "version 1.2.0 has failed"))
	c.await("a verdict", c.holds(judgedFile, "so it stays"))
	// What is staged meanwhile is no reason to reboot: nobody has ordered that.
	c.must("upgrade", "--stage-only", c.payload("1.3.0"))
	before := c.reboots()
	c.node.set(func(n *node) { n.down = false })
	if err := <-j.done; err != nil {
		t.Fatal(err)
	}
	c.must("appliance", "resume")
	if c.reboots() != before || len(c.node.drains) != 0 {
		t.Errorf("%d reboots, drains %v", c.reboots()-before, c.node.drains)
	}
}

// TestMendedRescue: a configuration that is mended makes the boot good, and its checks
// are those of the new one.
func TestMendedRescue(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.put(setupResult, []byte(`{"format":1,"state":"rescue","source":"EDGECFG","errors":["e.yaml:1:1: bad"]}`))
	j := c.judge()
	c.await("an alarm", c.holds(alarmsFile, "e.yaml:1:1: bad"))
	hook := filepath.Join(c.root, hookFolder, "origin")
	c.put(hookFolder+"/origin", []byte("#!/bin/sh\necho the origin is far\nexit 1\n"))
	if err := os.Chmod(hook, 0o755); err != nil {
		t.Fatal(err)
	}
	c.put(setupResult, []byte(`{"format":1,"state":"ok","source":"EDGECFG","errors":[]}`))
	c.await("the hook", c.holds(alarmsFile, "the origin is far"))
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	if err := <-j.done; err != nil {
		t.Fatal(err)
	}
}

// TestHealthEnds: a reboot is not held up by a judgement.
func TestHealthEnds(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.node.set(func(n *node) { n.down = true })
	for _, once := range []bool{false, true} {
		j := c.judge("--within=1h")
		if once {
			j = c.judge()
			c.await("a verdict", c.holds(judgedFile, "so it stays"))
		}
		j.stop()
		if err := <-j.done; err == nil || !strings.Contains(err.Error(), "interrupted") {
			t.Error(err)
		}
	}
}

// TestJudgedOnce: only the first verdict of a boot gives it up, whoever calls again.
func TestJudgedOnce(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", c.payload("1.2.0"))
	c.boot("1.2.0", slot.B)
	c.must("appliance", "health") // and its blessing fails
	before := c.reboots()
	c.node.set(func(n *node) { n.down = true })
	j := c.judge()
	c.await("an alarm", c.holds(alarmsFile, "judged before, so it stays"))
	j.stop()
	if err := <-j.done; err == nil || c.reboots() != before {
		t.Errorf("%v, %d reboots", err, c.reboots()-before)
	}
}

// TestGivesUpByForce: what is broken is perhaps what reboots.
func TestGivesUpByForce(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", c.payload("1.2.0"))
	c.boot("1.2.0", slot.B)
	c.node.set(func(n *node) { n.down = true })
	c.fail = "systemctl"
	c.ran = nil
	c.refuses("2 tries are left", "appliance", "health", "--within=2s")
	if got := strings.Join(c.ran, "; "); got != "systemctl reboot; systemctl reboot --force; systemctl reboot --force --force" {
		t.Error(got)
	}
	if _, err := os.Stat(filepath.Join(c.root, judgedFile)); err == nil {
		t.Error("it is to be given up, and said to stay")
	}
}

// TestGet: only 200 is an answer, and what does not answer is not waited for.
func TestGet(t *testing.T) {
	t.Parallel()
	status := 200
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }))
	if err := get(t.Context(), s.URL+"/healthz"); err != nil {
		t.Error(err)
	}
	for _, status = range []int{204, 302, 404, 503} {
		if err := get(t.Context(), s.URL+"/healthz"); err == nil || !strings.Contains(err.Error(), strconv.Itoa(status)) {
			t.Errorf("status %d: %v", status, err)
		}
	}
	s.Close()
	if err := get(t.Context(), s.URL+"/healthz"); err == nil {
		t.Error("nobody answers, and that is good")
	}
}
