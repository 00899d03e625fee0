package main

import (
	"encoding/hex"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/catchment-dev/edge/image/setup"
	"github.com/catchment-dev/edge/image/slot"
)

// TestTerminalGoes: the terminal goes in the middle of the drain, and the box is
// rebooted all the same.
func TestTerminalGoes(t *testing.T) {
	for _, command := range []string{"upgrade", "rollback"} {
		c := newTrial(t)
		if command == "rollback" {
			c.put("/efi/EFI/Linux/edge_1.0.0.efi", program("x"))
		}
		signal.Reset(syscall.SIGHUP) // what another test has ignored
		var killed error
		c.node.onDrain = func() { killed = syscall.Kill(os.Getpid(), syscall.SIGHUP) }
		args := []string{command}
		if command == "upgrade" {
			args = append(args, c.payload("1.2.0"))
		}
		c.must(args...)
		if killed != nil || c.reboots() != 1 {
			t.Errorf("%s: %d reboots, %v", command, c.reboots(), killed)
		}
	}
}

// TestConfigurationWaits: a reboot would take it back without a word.
func TestConfigurationWaits(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	from, pending := c.payload("1.2.0"), configStore+"/"+setup.PendingFile
	c.put(pending, []byte("{}"))
	c.refuses("edgectl config confirm, or edgectl config revert, first", "upgrade", "--force", from)
	c.expectESP("1.1.0")
	c.must("upgrade", "--stage-only", from)
	c.refuses("edgectl config confirm", "upgrade", "--no-drain")
	c.expectOrders()
	if err := os.Remove(filepath.Join(c.root, pending)); err != nil {
		t.Fatal(err)
	}
	c.must("upgrade")
	c.boot("1.2.0", slot.B)
	c.put(pending, []byte("{}"))
	c.refuses("edgectl config confirm", "rollback")
	c.expectESP("1.2.0+2-1 1.1.0")
}

// TestSecureBoot: what the firmware would not start is not written.
func TestSecureBoot(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	from := c.payload("1.2.0")
	const vars = "/sys/firmware/efi/efivars/"
	c.put(vars+"SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", []byte{6, 0, 0, 0, 1})
	// db has one sum: EFI_CERT_SHA256, 76 bytes with one entry of 48.
	db := func(sum []byte) {
		b := []byte("\x06\x00\x00\x00\x26\x16\xc4\xc1\x4c\x50\x92\x40\xac\xa9\x41\xf9\x36\x93\x43\x28" +
			"\x4c\x00\x00\x00\x00\x00\x00\x00\x30\x00\x00\x00" + strings.Repeat("\x00", 16))
		c.put(vars+"db-d719b2cb-3d3a-4596-a3bc-dad00e67656f", append(b, sum...))
	}
	db(make([]byte, 32))
	c.refuses("would not start version 1.2.0: it is not signed, and Secure Boot is on; nothing was written", "upgrade", "--force", from)
	c.expectESP("1.1.0")
	if u, err := c.box().state().Upgrade(); u != nil || err != nil {
		t.Error("it has left a state", u, err)
	}
	verity := []byte("1.2.0" + strings.Repeat("v", 9000))
	sum, err := hex.DecodeString(bootSum(program("roothash=" + hexSum(verity[:4096]) + " edge.version=1.2.0")))
	if err != nil {
		t.Fatal(err)
	}
	db(sum)
	c.must("upgrade", from)
	c.expectESP("1.2.0+3 1.1.0")
}

// TestStagedOlder: what is staged is what any reboot boots, also if it is older; and it
// is forced once.
func TestStagedOlder(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", "--force", "--stage-only", c.payload("1.0.0"))
	c.expectESP("1.0.0+3 1.1.0+0")
	c.must("upgrade")
	c.expectESP("1.0.0+3 1.1.0+0")
	c.boot("1.0.0", slot.B)
	c.must("appliance", "health")
	c.bless()
	c.must("appliance", "resume")
	c.expectESP("1.0.0 1.1.0+0")
	if u := c.upgrade(); u.Stage != slot.Good || c.reboots() != 1 {
		t.Errorf("%+v, %d reboots", u, c.reboots())
	}

	// Cut before it is set aside: the same command does it.
	c = newTrial(t)
	from := c.payload("1.0.0")
	c.must("upgrade", "--force", "--stage-only", from)
	c.rename("edge_1.1.0+0.efi", "edge_1.1.0.efi")
	c.must("upgrade", "--force", "--stage-only", from)
	c.expectESP("1.0.0+3 1.1.0+0")
}

// TestOtherInitrd: one that leaves nothing, as mkosi's.
func TestOtherInitrd(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	if err := os.RemoveAll(filepath.Join(c.root, slot.BootedAs)); err != nil {
		t.Fatal(err)
	}
	c.put("/proc/cmdline", []byte("quiet roothash=0123 edge.version=1.1.0\n"))
	c.put("/proc/self/mountinfo", []byte("22 21 253:0 / / ro - erofs /dev/dm-0 ro\n"))
	c.refuses("not one of the slots", "appliance", "health", "--once")
	disk, lower := "/sys/devices/vda/", filepath.Join(c.root, "/sys/dev/block/253:0/slaves")
	for part, name := range map[string]string{"vda1": "edge-esp", "vda5": "edge-root-b"} {
		c.put(disk+part+"/partition", nil)
		c.put(disk+part+"/uevent", []byte("PARTNAME="+name+"\n"))
	}
	if err := errors.Join(os.MkdirAll(lower, 0o755), os.Symlink("../../../../devices/vda/vda5", filepath.Join(lower, "vda5"))); err != nil {
		t.Fatal(err)
	}
	if out := c.must("appliance", "health", "--once"); !strings.Contains(out, "version 1.1.0, slot b, good before") {
		t.Error(out)
	}
	for _, line := range []string{"quiet roothash=0123", "edge.version=1.1.0"} {
		c.put("/proc/cmdline", []byte(line))
		c.refuses("not booted from an image", "appliance", "health", "--once")
	}
	c.put("/proc/cmdline", []byte("roothash=0123 edge.version=../1"))
	c.refuses("is no version", "appliance", "health", "--once")
}
