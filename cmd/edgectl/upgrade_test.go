package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/image/slot"
)

func (c *trial) expectESP(want string) {
	c.t.Helper()
	if got := c.esp(); got != want {
		c.t.Errorf("the ESP has %s, want %s", got, want)
	}
}

func (c *trial) expectOrders(want ...string) {
	c.t.Helper()
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	if d := cmp.Diff(want, c.node.orders); d != "" {
		c.t.Error("orders: ", d)
	}
}

const drained12 = "drain: edgectl upgrade from 1.1.0 to 1.2.0"

// TestUpgradeAndBack is the whole way of a version that is good, and then of one that
// is not.
func TestUpgradeAndBack(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	out := c.must("upgrade", c.payload("1.2.0"))
	for _, want := range []string{"writing edge-verity-b", "reading edge-root-b back", "draining, for 10m0s at most", "nothing is served any more", "rebooting into 1.2.0"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	c.expectESP("1.2.0+3 1.1.0")
	c.expectOrders(drained12)
	if u := c.upgrade(); u.Stage != slot.Rebooting || u.Slot != slot.B || u.Drain == "" || !u.Configured || c.reboots() != 1 {
		t.Errorf("%+v, %d reboots", u, c.reboots())
	}
	// A node that nobody comes back to is on the air again by itself.
	if left := time.Until(c.node.drains[0].Until); left < 2*time.Hour || left > 2*time.Hour+11*time.Minute {
		t.Errorf("the drain ends in %s", left)
	}

	c.boot("1.2.0", slot.B)
	c.refuses("still under trial", "upgrade", c.payload("1.3.0"))
	c.refuses("has not taken the counter from edge_1.2.0+2-1.efi", "appliance", "resume", "--within", "50ms")
	if out := c.must("appliance", "health"); !strings.Contains(out, "version 1.2.0, slot b, under trial, 2 tries left\ngood") {
		t.Error(out)
	}
	c.bless()
	c.must("appliance", "resume")
	c.expectOrders(drained12, "undrain")
	if u := c.upgrade(); u.Stage != slot.Good || u.Drain != "" {
		t.Errorf("%+v", u)
	}
	if motd := c.read(motdFile); motd != "Catchment 1.2.0, slot b: good\n" {
		t.Error(motd)
	}
	c.must("appliance", "resume") // a restart of the unit
	c.expectOrders(drained12, "undrain")

	// 1.3.0 never establishes BGP.
	c.must("upgrade", "--tries=2", c.payload("1.3.0"))
	c.expectESP("1.3.0+2 1.2.0")
	c.node.down = true
	for _, esp := range []string{"1.3.0+1-1 1.2.0", "1.2.0 1.3.0+0-2"} {
		c.boot("1.3.0", slot.A)
		c.expectESP(esp)
		before := c.reboots()
		c.refuses("bgp: no peer is established: r1 is active", "appliance", "health", "--within=2s")
		if boots, err := c.box().state().Boots(); err != nil || boots[len(boots)-1].Good {
			t.Error(boots, err)
		}
		if c.reboots() != before+1 {
			t.Error("it was not given up")
		}
	}
	c.node.down = false
	c.boot("1.2.0", slot.B)
	c.must("appliance", "health")
	for name, want := range map[string]string{
		motdFile:                        "ALARM  version 1.3.0 has failed, and the box went back to 1.2.0: check bgp at",
		metricsFile:                     `edge_boot_rollback_total{from="1.3.0",reason="bgp"} 1` + "\n",
		alarmsFile:                      "version 1.3.0 has failed",
		slot.StateDir + "/refused.json": "it hurts",
	} {
		if got := c.read(name); !strings.Contains(got, want) {
			t.Errorf("no %q in %s:\n%s", want, name, got)
		}
	}
	c.must("appliance", "resume")
	if orders := c.node.orders; len(orders) != 4 || orders[3] != "undrain" {
		t.Error(orders)
	}
	again := c.payload("1.3.0")
	c.refuses("version 1.3.0 is refused: check bgp at", "upgrade", again)
	c.refuses("--force", "upgrade", again)
	c.must("upgrade", "--force", again)
	c.expectESP("1.3.0+3 1.2.0")
	c.boot("1.3.0", slot.A)
	c.must("appliance", "health")
	c.bless()
	c.must("appliance", "resume")
	if list, err := c.box().state().Refused(); len(list) != 0 || err != nil {
		t.Errorf("it is good, and refused: %v, %v", list, err)
	}
}

// TestCrashIsRemembered: a version that never comes to be judged is refused as well.
func TestCrashIsRemembered(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", c.payload("1.2.0"))
	for range 3 {
		c.boot("1.2.0", slot.B)
	}
	c.boot("1.1.0", slot.A)
	c.must("appliance", "health")
	c.refuses("booted 3 times and never came to be judged", "upgrade", c.payload("1.2.0"))
	c.must("appliance", "resume")
	c.expectOrders(drained12, "undrain")
	if u := c.upgrade(); u.Stage != slot.Failed {
		t.Errorf("%+v", u)
	}
}

func TestGuardRefuses(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.node.refuses = true
	from := c.payload("1.2.0")
	c.refuses("1.2.0 is staged, and nothing was rebooted: not drained within 10ms:\n  198.51.100.0/24 is last-resort: 1 other site must promise", "upgrade", "--wait=10ms", from)
	c.refuses("--no-drain", "upgrade", "--wait=10ms")
	c.expectOrders(drained12, "undrain", drained12, "undrain")
	if u := c.upgrade(); u.Stage != slot.Staged || u.Drain != "" || c.reboots() != 0 {
		t.Errorf("%+v, %d reboots", u, c.reboots())
	}
	c.node.refuses = false
	if out := c.must("upgrade"); strings.Contains(out, "writing") || !strings.Contains(out, "staged in slot b already") {
		t.Error(out)
	}
	if c.reboots() != 1 {
		t.Error("no reboot")
	}
}

// TestDrainOfAnOperatorStays: it is neither replaced nor taken back.
func TestDrainOfAnOperatorStays(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.node.drains = []edge.Drain{{Reason: "a bad line card"}}
	c.must("upgrade", c.payload("1.2.0"))
	c.boot("1.2.0", slot.B)
	c.must("appliance", "health")
	c.bless()
	c.must("appliance", "resume")
	c.expectOrders()

	// One that an operator gives while the upgrade's holds stays too.
	c = newTrial(t)
	c.must("upgrade", c.payload("1.2.0"))
	c.node.drains = []edge.Drain{{Reason: "do not touch"}}
	c.boot("1.2.0", slot.B)
	c.bless()
	c.must("appliance", "resume")
	c.expectOrders(drained12)
}

// TestUpgradeGoesOn: whatever ends the command, the same one goes on.
func TestUpgradeGoesOn(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	from := c.payload("1.2.0")
	// The program that reboots fails.
	c.fail = "systemctl"
	c.refuses("reboot: systemctl fails", "upgrade", from)
	c.expectOrders(drained12, "undrain")
	c.fail = ""
	// It was killed after it had drained.
	c.must("upgrade", from)
	c.node.orders = nil
	first := c.node.drains[0].Until
	c.must("upgrade", from)
	c.expectOrders(drained12) // the drain that is there is its own, and holds longer now
	if d := c.node.drains; len(d) != 1 || !d[0].Until.After(first) {
		t.Errorf("%+v", d)
	}
	if u := c.upgrade(); u.Drain == "" {
		t.Error("it has forgotten its drain")
	}
	// Its root was damaged since: it is written again.
	c.put("/dev/edge-root-b", make([]byte, 64<<10))
	if out := c.must("upgrade", from); !strings.Contains(out, "writing edge-root-b") || !strings.Contains(out, "edge-verity-b is written already") {
		t.Error(out)
	}
	c.put("/dev/edge-root-b", make([]byte, 64<<10))
	c.refuses("1.2.0 is not staged any more", "upgrade")
	// An operator presses ^C while it waits.
	c.node.drains, c.node.orders, c.node.refuses = nil, nil, true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.node.onDrain = cancel
	if _, err := c.callCtx(ctx, "upgrade", from); err == nil || !strings.Contains(err.Error(), "the same command goes on") {
		t.Error(err)
	}
	if n := len(c.node.orders); n != 2 || c.node.orders[1] != "undrain" {
		t.Error(c.node.orders)
	}
}

func TestUpgradeRefuses(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	for want, args := range map[string][]string{
		"version 1.1.0 runs already":         {c.payload("1.1.0"), "--force"},
		"is not newer than 1.1.0":            {c.payload("1.0.0")},
		"has the profile metal":              {c.payload("1.2.0", func(m *slot.Manifest) { m.Profile = "metal" })},
		"is for riscv64":                     {c.payload("1.2.0", func(m *slot.Manifest) { m.Arch = "riscv64" })},
		"the verity partition has 16 KiB":    {c.payload("1.2.0", func(m *slot.Manifest) { m.Files[slotIndex(m, slot.Verity)].Size = 1 << 20 })},
		"no version is staged":               {},
		"not encrypted":                      {"http://updates.example.net/1.2.0"},
		"--tries 10 is not in 1 to 9":        {"--tries=10", "/x"},
		"manifest.json: no such file":        {t.TempDir()},
		"the root partition has 64 KiB, and": {c.payload("1.2.0", func(m *slot.Manifest) { m.Files[slotIndex(m, slot.Root)].Size = 1 << 30 })},
	} {
		c.refuses(want, append([]string{"upgrade"}, args...)...)
	}
	changed := c.payload("1.2.0")
	if err := os.WriteFile(filepath.Join(changed, slot.SignatureName), []byte("no"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.refuses("not signed by any", "upgrade", changed)
	unlock, err := c.box().lock("alice (edgectl, pid 9): edgectl upgrade")
	if err != nil {
		t.Fatal(err)
	}
	c.refuses("changed by alice (edgectl, pid 9)", "upgrade", changed)
	unlock()
	c.expectESP("1.1.0")
	if _, err := os.Stat(filepath.Join(c.root, slot.StateDir, "upgrade.json")); !errors.Is(err, os.ErrNotExist) {
		t.Error("what was refused has left a state", err)
	}
	os.Remove(filepath.Join(c.root, slot.BootedAs, "version"))
	c.refuses("not booted from an image", "upgrade", changed)
}

func slotIndex(m *slot.Manifest, p slot.Part) int {
	for i, f := range m.Files {
		if f.Part == p {
			return i
		}
	}
	return 0
}

func TestStageOnly(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	out := c.must("upgrade", "--stage-only", "-o", "json", c.payload("1.2.0"))
	var got result
	if err := json.Unmarshal([]byte(out), &got); err != nil || got != (result{"1.2.0", "1.1.0", slot.B, slot.Staged}) {
		t.Errorf("%v: %s", err, out)
	}
	c.expectOrders()
	// The power fails, and the next boot takes it.
	c.boot("1.2.0", slot.B)
	c.must("appliance", "health")
	c.bless()
	c.must("appliance", "resume")
	if u := c.upgrade(); u.Stage != slot.Good || c.reboots() != 0 {
		t.Errorf("%+v, %d reboots", u, c.reboots())
	}
}

func TestRollback(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.refuses("no version to go back to", "rollback")
	c.must("upgrade", c.payload("1.2.0"))
	c.boot("1.2.0", slot.B)
	c.must("appliance", "health")
	c.bless()
	c.must("appliance", "resume")
	c.node.orders = nil

	c.node.refuses = true
	c.refuses("nothing was rebooted", "rollback", "--wait=10ms")
	c.expectESP("1.2.0 1.1.0")
	if u := c.upgrade(); u.Stage != slot.Good || u.Version != "1.2.0" {
		t.Errorf("%+v", u)
	}
	c.node.refuses, c.node.orders = false, nil
	c.must("rollback", "--reason=slow requests")
	c.expectESP("1.1.0+3 1.2.0+0")
	c.boot("1.1.0", slot.A)
	c.must("appliance", "health")
	c.bless()
	c.must("appliance", "resume")
	c.expectESP("1.1.0 1.2.0+0")
	c.expectOrders("drain: edgectl rollback from 1.2.0 to 1.1.0", "undrain")
	c.refuses("rolled back by hand", "upgrade", c.payload("1.2.0"))
	if alarms := c.read(alarmsFile); alarms != "" {
		t.Errorf("an order of an operator alarms: %s", alarms)
	}
	c.refuses("is refused: rolled back by hand", "rollback")

	// Forth again, by force, and the newer one fails: the box is back by itself.
	c.must("rollback", "--force")
	c.expectESP("1.2.0+3 1.1.0")
	for range 3 {
		c.boot("1.2.0", slot.B)
	}
	c.expectESP("1.1.0 1.2.0+0-3")
	c.boot("1.1.0", slot.A)
	c.must("appliance", "health")
	if u := c.upgrade(); u.Stage != slot.Failed {
		t.Errorf("%+v", u)
	}
}

// TestForcedToOlder: the version that runs steps behind, and comes back if the older
// one fails.
func TestForcedToOlder(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", "--force", c.payload("1.0.0"))
	c.expectESP("1.0.0+3 1.1.0+0")
	for range 3 {
		c.boot("1.0.0", slot.B)
	}
	c.expectESP("1.1.0+0 1.0.0+0-3")
	c.boot("1.1.0", slot.A)
	if out := c.must("appliance", "health"); !strings.Contains(out, "under trial, 0 tries left") {
		t.Error(out)
	}
	c.bless()
	c.must("appliance", "resume")
	c.expectESP("1.1.0 1.0.0+0-3")
	c.expectOrders("drain: edgectl upgrade from 1.1.0 to 1.0.0", "undrain")
}

func TestWithoutConfiguration(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.put(setupResult, []byte(`{"format":1,"state":"unconfigured","errors":[]}`))
	c.socket = filepath.Join(t.TempDir(), "none")
	if out := c.must("upgrade", c.payload("1.2.0")); !strings.Contains(out, "it announces nothing") {
		t.Error(out)
	}
	c.boot("1.2.0", slot.B)
	c.must("appliance", "health", "--within=1s")
}
