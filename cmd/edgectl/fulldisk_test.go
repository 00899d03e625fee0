package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/image/slot"
)

// disk gives the appliance a small /var of its own, made as the initrd makes it.
func (c *trial) disk() {
	c.t.Helper()
	image := filepath.Join(c.t.TempDir(), "var.img")
	at := filepath.Join(c.root, "var")
	steps := [][]string{
		{"mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-N", "4096", image, "24M"},
		{"mount", "-o", "loop", image, at},
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		c.t.Fatal(err)
	}
	for _, s := range steps {
		if out, err := exec.CommandContext(c.t.Context(), s[0], s[1:]...).CombinedOutput(); err != nil {
			c.t.Fatalf("%v: %v: %s", s, err, out)
		}
	}
	c.t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			c.t.Errorf("unmount %s: %v", at, err)
		}
	})
}

// fill is what a version does that fills the disk to its last byte.
func (c *trial) fill() {
	c.t.Helper()
	dir := filepath.Join(c.root, "var/fill")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	for _, size := range []int{1 << 20, 4096} { // what is promised to a file, and not needed, is free again once it is closed
		var err error
		for err == nil {
			err = c.block(dir, size)
		}
		if !errors.Is(err, unix.ENOSPC) {
			c.t.Fatal(err)
		}
	}
}

// block is one file more, of so many bytes.
func (c *trial) block(dir string, size int) error {
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, size))
	return errors.Join(err, f.Sync(), f.Close())
}

// full says whether the disk takes no block more.
func (c *trial) full() bool {
	path := filepath.Join(c.root, "var/more")
	err := slot.ReplaceFile(path, make([]byte, 4096))
	os.Remove(path)
	return errors.Is(err, unix.ENOSPC)
}

// onDisk has edged refuse orders that it cannot keep, as it does.
func (c *trial) onDisk() {
	c.node.set(func(n *node) {
		n.keep = func() error {
			path := filepath.Join(c.root, "var/drains.json")
			return errors.Join(slot.ReplaceFile(path, []byte("[]")), os.Remove(path))
		}
	})
}

// TestFullDisk: a version fills /var to the last byte and goes on to. The box is back on
// the one before, on the air, says why, and refuses that version.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		reserve bool // there is one
		check   string
	}{{"with the reserve", true, "disk"}, {"without", false, "boot"}} {
		t.Run(c.name, func(t *testing.T) { testFullDisk(t, c.reserve, c.check) })
	}
}

func testFullDisk(t *testing.T, reserve bool, check string) {
	c := newTrial(t)
	c.disk()
	c.onDisk()
	from := c.payload("1.2.0")
	c.must("upgrade", from)
	if !reserve {
		if err := c.box().state().Release(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		c.boot("1.2.0", slot.B)
		c.fill()
		before := c.reboots()
		c.refuses("disk: /var", "appliance", "health", "--within=100ms")
		c.fill()
		if c.reboots() != before+1 || !c.full() {
			t.Fatal("it was not given up, or the disk is not full")
		}
	}
	c.boot("1.1.0", slot.A)
	out, err := c.call("appliance", "health", "--within=10s")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, want := range map[string]string{
		motdFile:    "version 1.2.0 has failed, and the box went back to 1.1.0: check " + check,
		alarmsFile:  "version 1.2.0 has failed, and the box went back to 1.1.0: check " + check,
		metricsFile: `edge_boot_rollback_total{from="1.2.0",reason="` + check + `"} 1` + "\n",
		judgedFile:  "passed",
	} {
		if got := c.read(name); !strings.Contains(got, want) {
			t.Errorf("no %q in %s:\n%s", want, name, got)
		}
	}
	if !strings.Contains(c.said.String(), "came back from version 1.2.0: check "+check) {
		t.Errorf("the journal has %s", c.said.String())
	}
	c.refuses("version 1.2.0 is refused: check "+check, "upgrade", from)
	if reserve {
		c.must("appliance", "resume")
		if len(c.node.drains) != 0 {
			t.Errorf("it does not announce: %v", c.node.drains)
		}
		return
	}
	// Nothing at all could be written, and edged takes no order that it cannot keep: it
	// is back once there is room, by itself.
	if !c.full() || !strings.Contains(c.read(alarmsFile), "disk: /var cannot be written") {
		t.Errorf("full: %v, alarms: %s", c.full(), c.read(alarmsFile))
	}
	c.refuses("could not be taken back", "appliance", "resume", "--within=50ms")
	if err := os.RemoveAll(filepath.Join(c.root, "var/fill")); err != nil {
		t.Fatal(err)
	}
	c.must("appliance", "resume")
	c.must("appliance", "health")
	if list, err := c.box().state().Refused(); err != nil || len(list) != 1 || list[0].Version != "1.2.0" || len(c.node.drains) != 0 {
		t.Errorf("%+v, %v, drains %v", list, err, c.node.drains)
	}
}
