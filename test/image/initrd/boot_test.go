// Package initrd boots the image's initrd in machines, on disks that are whole,
// grown and damaged. Its root is a shell that tells what it finds: what systemd
// makes of the root is the business of the image's own tests.
package initrd_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestBoot(t *testing.T) {
	p := build(t)
	cmdline := "roothash=" + p.hash + " edge.version=1.2.0"
	t.Run("disks", func(t *testing.T) { // all of them are done before the parts go
		t.Run("life", func(t *testing.T) { t.Parallel(); life(t, p, cmdline) })
		t.Run("4096", func(t *testing.T) { t.Parallel(); rescued(t, p, cmdline) })
		t.Run("tampered", func(t *testing.T) { t.Parallel(); tampered(t, p, cmdline) })
		t.Run("untrusted", func(t *testing.T) { t.Parallel(); untrusted(t, p) })
	})
}

// life is a box from its first boot on a larger disk than the image, by a disk
// that grows once more, to a /var whose beginning is lost.
func life(t *testing.T, p parts, cmdline string) {
	disk := newDisk(t, p, 512, "a")
	m := vm{disks: []string{disk}, sector: 512, cmdline: cmdline}
	resize(t, disk, 300<<20)
	first := m.boot(t, p.initrd)
	want(t, first, "edge-initrd: version 1.2.0 slot a verified", "init: done", "init: slot a", "init: version 1.2.0", "init: esp /dev/vda1",
		"init: note edge.disk=/dev/vda", "init: note edge.gpt=grown", "init: note edge.var=formatted", "init: boots 1",
		"init: mount /dev/dm-0 / erofs ro", "/var ext4 rw,nosuid,nodev", "init: mapper ../dm-0",
		"init: credential /run/credentials/@initrd/edge.yaml from the ESP")
	if strings.Contains(first, "init: credential /run/credentials/@initrd/passwd") {
		t.Error("a credential that is not ours was handed on")
	}
	id := value(t, first, "machine-id")
	if len(id) != 32 {
		t.Errorf("the machine id is %q", id)
	}

	resize(t, disk, 420<<20)
	second := m.boot(t, p.initrd)
	want(t, second, "init: done", "init: note edge.gpt=grown", "init: boots 2", "init: machine-id "+id)
	if a, b := value(t, first, "var"), value(t, second, "var"); a == b {
		t.Errorf("/var has %s on the smaller disk, and %s on the larger one", a, b)
	}
	if strings.Contains(second, "edge.var=") {
		t.Error("a /var that is whole was not left alone")
	}

	wipe(t, disk, 512, "edge-var", 0, 4096)
	writeAt(t, disk, 512, "edge-var", 0, []byte("not a file system"))
	third := m.boot(t, p.initrd)
	want(t, third, "init: done", "init: note edge.var=repaired", "init: boots 3", "init: machine-id "+id)
	if strings.Contains(third, "edge.gpt=") {
		t.Error("a table that is whole was not left alone")
	}
}

func rescued(t *testing.T, p parts, cmdline string) {
	other, disk := newDisk(t, p, 4096, "a"), newDisk(t, p, 4096, "b")
	wipe(t, other, 4096, "edge-verity-a", 4096, 1) // it is of another version
	wipe(t, disk, 4096, "", 0, 6*4096)
	empty := t.TempDir() + "/empty"
	resize(t, empty, 8<<20)
	m := vm{disks: []string{empty, other, disk}, sector: 4096, cmdline: cmdline + " quiet"}
	console := m.boot(t, p.initrd)
	want(t, console, "edge-initrd: version 1.2.0 slot b verified", "init: done", "init: esp /dev/vdc1", "init: note edge.disk=/dev/vdc", "init: note edge.gpt=repaired", "init: note edge.var=formatted")
	if _, table := openDisk(t, disk, 4096); table.Damaged != nil {
		t.Errorf("the table is still damaged: %v", table.Damaged)
	}
}

func tampered(t *testing.T, p parts, cmdline string) {
	disk := newDisk(t, p, 512, "a")
	b, err := os.ReadFile(p.root)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, p.needle[:64])
	if at < 0 {
		t.Fatal("the needle is not in the root as it is")
	}
	wipe(t, disk, 512, "edge-root-a", int64(at), 1)
	if p.needle[0] == 0 {
		t.Fatal("the needle begins with what it is overwritten by")
	}
	console := vm{disks: []string{disk}, sector: 512, cmdline: cmdline}.boot(t, p.initrd)
	want(t, console, "init: machine-id", "Kernel panic - not syncing: dm-verity device corrupted")
	if strings.Contains(console, "init: done") {
		t.Error("the changed file was read")
	}
}

func untrusted(t *testing.T, p parts) {
	console := vm{cmdline: "edge.version=1.2.0"}.boot(t, p.initrd)
	want(t, console, "edge-initrd: the kernel command line has no roothash=", "Kernel panic - not syncing: Attempted to kill init!")
}

func writeAt(t *testing.T, file string, sector int, name string, at int64, b []byte) {
	t.Helper()
	f, table := openDisk(t, file, sector)
	p, err := table.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, table.Offset(p)+at); err != nil {
		t.Fatal(err)
	}
}
