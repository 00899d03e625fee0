package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge/image/slot"
)

// expectSlots compares what edgectl slots says with "a: 1.1.0 runs good; ..., next V".
func (c *trial) expectSlots(want string) {
	c.t.Helper()
	var v slotsView
	if err := json.Unmarshal([]byte(c.must("slots", "-o", "json")), &v); err != nil {
		c.t.Fatal(err)
	}
	got := ""
	for _, s := range v.Slots {
		words := []string{string(s.Slot) + ":", s.Version, s.State}
		if s.Runs {
			words[2] = "runs " + s.State
		}
		got += strings.Join(words, " ") + "; "
	}
	if got += "next " + v.Next; got != want {
		c.t.Errorf("the slots: %s\nwant       %s", got, want)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.refuses("nothing to cancel", "upgrade", "--cancel")
	c.must("upgrade", "--stage-only", c.payload("1.2.0"))
	c.expectSlots("a: 1.1.0 runs good; b: 1.2.0 staged; next 1.2.0")
	if out := c.must("upgrade", "--cancel"); !strings.Contains(out, "the next reboot boots 1.1.0") {
		t.Error(out)
	}
	c.expectESP("1.1.0")
	c.expectOrders()
	c.expectSlots("a: 1.1.0 runs good; b:  empty; next 1.1.0")
	if u := c.upgrade(); u.Stage != slot.Cancelled || c.reboots() != 0 {
		t.Errorf("%+v, %d reboots", u, c.reboots())
	}
	c.refuses("nothing to cancel", "upgrade", "--cancel")
	c.refuses("no version is staged", "upgrade")
	// Nothing is remembered as failed, now and after a reboot.
	c.boot("1.1.0", slot.A)
	c.must("appliance", "health")
	c.must("appliance", "resume")
	if list, err := c.box().state().Refused(); len(list) != 0 || err != nil || c.read(alarmsFile) != "" {
		t.Errorf("%v, %v, alarms: %s", list, err, c.read(alarmsFile))
	}
	c.must("upgrade", c.payload("1.2.0"))
	c.boot("1.2.0", slot.B)
	c.refuses("runs, under trial: leave it with edgectl rollback", "upgrade", "--cancel")
	c.expectSlots("a: 1.1.0 good; b: 1.2.0 runs trial; next 1.2.0")
}

// TestCancelDrained: the reboot that was ordered fails, and its drain is left.
func TestCancelDrained(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", c.payload("1.2.0"))
	c.stopping = true
	c.refuses("has begun", "upgrade", "--cancel")
	c.expectESP("1.2.0+3 1.1.0")
	c.stopping = false
	c.must("upgrade", "--cancel")
	c.expectOrders(drained12, "undrain")
	if u := c.upgrade(); u.Stage != slot.Cancelled || u.Drain != "" {
		t.Errorf("%+v", u)
	}

	// Killed while it wrote.
	c = newTrial(t)
	if err := c.box().state().SetUpgrade(&slot.Upgrade{Stage: slot.Writing, Version: "1.2.0", Slot: slot.B, From: "1.1.0"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	c.put(slot.StateDir+"/fetch/root-0123", make([]byte, 100))
	c.put("/efi/EFI/Linux/edge_1.2.0+3.efi", make([]byte, 8192)) // its first sector is missing
	c.must("upgrade", "--cancel")
	c.expectESP("1.1.0")
	for _, name := range []string{slot.StateDir + "/fetch", "/efi/EFI/Linux/edge_1.2.0+3.efi"} {
		if _, err := os.Stat(filepath.Join(c.root, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}

// TestCancelOlder: what was set aside for an older version is first again, with the
// counter that it was booted under if it is not good yet.
func TestCancelOlder(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", "--force", "--stage-only", c.payload("1.0.0"))
	c.expectSlots("a: 1.1.0 runs aside; b: 1.0.0 staged; next 1.0.0")
	c.must("upgrade", "--cancel")
	c.expectESP("1.1.0")

	c.must("upgrade", c.payload("1.2.0"))
	c.boot("1.2.0", slot.B)
	c.must("upgrade", "--force", "--stage-only", c.payload("1.0.0"))
	c.expectESP("1.0.0+3 1.2.0+0")
	c.must("upgrade", "--cancel")
	c.expectESP("1.2.0+2-1")
	c.must("appliance", "health")
	c.bless()
	c.must("upgrade", "--force", "--stage-only", c.payload("1.0.0"))
	c.must("upgrade", "--cancel")
	c.expectESP("1.2.0")
}

// TestCancelRollback: the reboot of a rollback fails. The other version was good, and is
// kept.
func TestCancelRollback(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", c.payload("1.2.0"))
	c.boot("1.2.0", slot.B)
	c.must("appliance", "health")
	c.bless()
	c.must("appliance", "resume")
	c.fail = "systemctl"
	c.refuses("systemctl fails", "rollback")
	c.expectESP("1.1.0+3 1.2.0+0")
	c.fail = ""
	c.must("upgrade", "--cancel")
	c.expectESP("1.2.0 1.1.0+3")
	if list, err := c.box().state().Refused(); len(list) != 0 || err != nil {
		t.Errorf("it runs, and is refused: %v, %v", list, err)
	}
	// And forth: the newer one has to stand behind.
	c.must("rollback")
	c.boot("1.1.0", slot.A)
	c.must("appliance", "health")
	c.bless()
	c.must("appliance", "resume")
	c.fail = "systemctl"
	c.refuses("systemctl fails", "rollback", "--force")
	c.expectESP("1.2.0+3 1.1.0")
	c.fail = ""
	c.must("upgrade", "--cancel")
	c.expectESP("1.1.0 1.2.0+0")
}

func TestForgive(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.refuses("version 1.2.0 is not refused: none is", "upgrade", "--forgive=1.2.0")
	c.must("upgrade", "--tries=1", c.payload("1.2.0"))
	c.node.down = true
	c.boot("1.2.0", slot.B)
	c.refuses("no peer is established", "appliance", "health", "--within=1s")
	c.node.down = false
	c.boot("1.1.0", slot.A)
	if out := c.must("slots"); !strings.Contains(out, "refused: version 1.2.0") {
		t.Errorf("before it is written down: %s", out)
	}
	c.must("appliance", "health")
	c.expectSlots("a: 1.1.0 runs good; b: 1.2.0 failed; next 1.1.0")
	if out := c.must("slots"); !strings.Contains(out, "refused: version 1.2.0, check bgp at") || !strings.Contains(out, "has failed: booted only if") {
		t.Error(out)
	}
	c.refuses("version 9 is not refused: refused are 1.2.0", "upgrade", "--forgive", "9")
	if !strings.Contains(c.read(alarmsFile), "version 1.2.0 has failed") {
		t.Error("no alarm")
	}
	for _, args := range [][]string{{"--cancel"}, {"--stage-only"}, {"/mnt"}} {
		c.refuses("stand alone", append([]string{"upgrade", "--forgive=1.2.0"}, args...)...)
	}
	c.must("upgrade", "--forgive=1.2.0")
	if a := c.read(alarmsFile); a != "" {
		t.Error(a)
	}
	if motd := c.read(motdFile); motd != "Catchment 1.1.0, slot a: good\n" {
		t.Error(motd)
	}
	c.must("upgrade", "--stage-only", c.payload("1.2.0"))
}

// TestForgiveWhatRuns: it keeps the name that it was booted by, on its last try.
func TestForgiveWhatRuns(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	if err := c.box().state().Refuse(slot.Refused{Version: "1.2.0", When: time.Now(), Check: "bgp", Reason: "no peer"}); err != nil {
		t.Fatal(err)
	}
	c.must("upgrade", "--force", "--tries=1", c.payload("1.2.0"))
	c.boot("1.2.0", slot.B)
	c.expectESP("1.1.0 1.2.0+0-1")
	if out := c.must("slots"); strings.Contains(out, "--cancel") {
		t.Errorf("nothing can be taken back: %s", out)
	}
	c.must("upgrade", "--forgive=1.2.0")
	c.expectESP("1.1.0 1.2.0+0-1")
	if list, err := c.box().state().Refused(); len(list) != 0 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
}

// TestCancelFailed: a version has failed, and has tries left, since this one was booted by
// hand. The next boot would take it.
func TestCancelFailed(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", c.payload("1.2.0"))
	c.boot("1.2.0", slot.B)
	c.boot("1.1.0", slot.A)
	c.must("appliance", "health")
	c.expectSlots("a: 1.1.0 runs good; b: 1.2.0 trial; next 1.2.0")
	if out := c.must("slots"); !strings.Contains(out, "boots 1.2.0; edgectl upgrade --cancel takes it back") {
		t.Error(out)
	}
	c.must("upgrade", "--cancel")
	c.expectESP("1.1.0")
	c.refuses("nothing to cancel", "upgrade", "--cancel")
	c.refuses("version 1.2.0 is refused", "upgrade", c.payload("1.2.0"))
}

// TestSlotsText is what a person reads.
func TestSlotsText(t *testing.T) {
	v := slotsView{
		Slots:   []slotView{{Slot: slot.A, Version: "1.1.0", Runs: true, State: "good"}, {Slot: slot.B, Version: "1.2.0", State: "staged", Tries: 3}},
		Next:    "1.2.0",
		Upgrade: &slot.Upgrade{From: "1.1.0", Version: "1.2.0", Stage: slot.Staged, By: "ops", Changed: time.Unix(0, 0)},
		Refused: []slot.Refused{{Version: "1.1.5", When: time.Unix(0, 0), Check: "bgp", Reason: "no peer", Times: 2}},
	}
	want := `
SLOT  VERSION        STATE
a     1.1.0    runs  good
b     1.2.0          staged, with 3 boots to become good

the next reboot boots 1.2.0; edgectl upgrade --cancel takes it back
the last upgrade: from 1.1.0 to 1.2.0, staged at 1970-01-01 00:00:00 UTC, by ops
refused: version 1.1.5, check bgp at 1970-01-01 00:00:00 UTC, 2 times by now: no peer
edgectl upgrade --forgive VERSION has one taken again
`
	if d := cmp.Diff(want, v.text(env{})); d != "" {
		t.Error(d)
	}
	v = slotsView{Slots: []slotView{{Slot: slot.A, Version: "1.1.0", Runs: true, State: "empty"}, {Slot: slot.B, State: "empty"}}}
	for _, want := range []string{"its UKI is not on the EFI partition", "none that can be booted", "finds nothing to boot"} {
		if out := v.text(env{}); !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
