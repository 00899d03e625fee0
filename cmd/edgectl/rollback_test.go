package main

import (
	"strings"
	"testing"

	"github.com/catchment-dev/edge/image/slot"
)

// upgraded is an appliance on which 1.2.0 of slot b is good, and 1.1.0 of slot a was.
func upgraded(t *testing.T) *trial {
	t.Helper()
	c := newTrial(t)
	c.must("upgrade", c.payload("1.2.0"))
	c.boot("1.2.0", slot.B)
	c.must("appliance", "health")
	c.bless()
	c.must("appliance", "resume")
	c.node.orders = nil
	return c
}

// TestRollbackFails: the version that was gone back to is no better, so the box is
// on the one that was left in the end, undrained.
func TestRollbackFails(t *testing.T) {
	t.Parallel()
	c := upgraded(t)
	c.must("rollback", "--reason=slow requests")
	c.expectESP("1.1.0+3 1.2.0+0")
	c.node.down = true
	for range 3 {
		before := c.reboots()
		c.boot("1.1.0", slot.A)
		c.refuses("bgp: no peer is established", "appliance", "health", "--within=2s")
		if c.reboots() != before+1 {
			t.Fatal("it was not given up")
		}
	}
	c.expectESP("1.2.0+0 1.1.0+0-3")
	c.node.down = false
	c.boot("1.2.0", slot.B)
	c.must("appliance", "health")
	c.bless()
	c.must("appliance", "resume")
	c.expectESP("1.2.0 1.1.0+0-3")
	c.expectOrders("drain: edgectl rollback from 1.2.0 to 1.1.0", "undrain")
	list, err := c.box().state().Refused()
	if err != nil || len(list) != 1 || list[0].Version != "1.1.0" || list[0].Check != "bgp" {
		t.Errorf("refused: %+v, %v", list, err)
	}
	if motd := c.read(motdFile); strings.Contains(motd, "version 1.2.0, rolled back") || !strings.Contains(motd, "refused: version 1.1.0, check bgp") {
		t.Error(motd)
	}
}

// TestRollbackOfStaged: what was never booted is taken back, and is not booted by the
// very command that is to keep it away.
func TestRollbackOfStaged(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.node.refuses = true
	c.refuses("nothing was rebooted", "upgrade", "--wait=10ms", c.payload("1.2.0"))
	c.node.refuses = false
	c.expectESP("1.2.0+3 1.1.0")
	if out := c.must("rollback"); !strings.Contains(out, "1.2.0 is not staged any more: the next reboot boots 1.1.0") {
		t.Error(out)
	}
	c.expectESP("1.1.0")
	if u := c.upgrade(); u.Stage != slot.Cancelled || c.reboots() != 0 {
		t.Errorf("%+v, %d reboots", u, c.reboots())
	}
	if list, err := c.box().state().Refused(); len(list) != 0 || err != nil {
		t.Errorf("refused: %v, %v", list, err)
	}
	c.refuses("no version to go back to", "rollback")
	c.must("upgrade", "--stage-only", c.payload("1.2.0"))

	// One that is older, for which the version that runs stands behind; and killed
	// while it drained.
	c = newTrial(t)
	c.must("upgrade", "--force", c.payload("1.0.0"))
	c.expectESP("1.0.0+3 1.1.0+0")
	c.must("rollback")
	c.expectESP("1.1.0")
	c.expectOrders("drain: edgectl upgrade from 1.1.0 to 1.0.0", "undrain")
}

// TestRollbackGoesOn: one that was cut short is no version that is staged.
func TestRollbackGoesOn(t *testing.T) {
	t.Parallel()
	c := upgraded(t)
	c.fail = "systemctl"
	c.refuses("reboot: systemctl fails", "rollback")
	c.fail = ""
	c.must("rollback")
	c.expectESP("1.1.0+3 1.2.0+0")
	if c.reboots() < 2 {
		t.Error("no reboot")
	}
}

// TestRollbackKeepsItsDrain: one that could not be taken back stays on record, so
// that edge-resume ends it.
func TestRollbackKeepsItsDrain(t *testing.T) {
	t.Parallel()
	c := upgraded(t)
	c.node.refuses, c.node.keeps = true, true
	c.refuses("could not be taken back", "rollback", "--wait=10ms")
	if u := c.upgrade(); u.Drain == "" || u.Version != "1.2.0" || u.Stage != slot.Good {
		t.Errorf("%+v", u)
	}
	c.node.refuses, c.node.keeps = false, false
	c.must("appliance", "resume")
	if u := c.upgrade(); u.Drain != "" || len(c.node.drains) != 0 {
		t.Errorf("%+v, %v", u, c.node.drains)
	}
}
