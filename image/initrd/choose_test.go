package main

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/image/gpt"
	"github.com/catchment-dev/edge/image/verity"
)

// holding is a disk whose slots hold these roots; 0 is a slot with nothing.
func holding(name string, a, b byte) disk {
	d := disk{name: name, table: &gpt.Table{}}
	for i, h := range []byte{a, b} {
		s := slot{name: string("ab"[i]), area: verity.Area{Root: rootHash{h}}}
		if h == 0 {
			s.err = verity.ErrNone
		}
		d.slots = append(d.slots, s)
	}
	return d
}

func booted(d disk) disk {
	d.boot = true
	return d
}

func TestChoose(t *testing.T) {
	other := disk{name: "sdb", err: gpt.ErrNoTable}
	cases := map[string]struct {
		disks []disk
		grace bool
		want  string // disk and slot, or what the error says
	}{
		"slot a":                             {disks: []disk{holding("vda", 1, 2)}, want: "vda a"},
		"slot b":                             {disks: []disk{holding("vda", 2, 1)}, want: "vda b"},
		"b alone":                            {disks: []disk{holding("vda", 0, 1)}, want: "vda b"},
		"both hold it":                       {disks: []disk{holding("vda", 1, 1)}, want: "vda a"},
		"another disk":                       {disks: []disk{holding("vda", 2, 0), other, holding("vdb", 0, 1)}, want: "vdb b"},
		"two, the first by name":             {disks: []disk{holding("vda", 1, 0), holding("vdb", 1, 0)}, want: "vda a"},
		"two, booted from the second":        {disks: []disk{holding("vda", 1, 0), booted(holding("vdb", 0, 1))}, want: "vdb b"},
		"booted from it, in grace":           {disks: []disk{booted(holding("vda", 1, 0))}, grace: true, want: "vda a"},
		"a copy, the right one not yet seen": {disks: []disk{holding("vda", 1, 0)}, grace: true, want: "not there yet"},
		"a copy, the right one never seen":   {disks: []disk{holding("vda", 1, 0)}, want: "vda a"},
		"booted from one without it":         {disks: []disk{booted(holding("vda", 2, 0)), holding("vdb", 1, 0)}, grace: true, want: "vdb a"},
		"no disk":                            {want: "there is no disk"},
		"none holds it":                      {disks: []disk{holding("vda", 2, 0), other}, want: "vda slot a: holds 02"},
		"none holds it: an empty slot":       {disks: []disk{holding("vda", 2, 0)}, want: "vda slot b: no verity superblock"},
		"none holds it: another's disk":      {disks: []disk{other}, want: "sdb: no GPT on this disk"},
	}
	for name, c := range cases {
		f, err := choose(c.disks, rootHash{1}, c.grace)
		got := f.disk.name + " " + f.slot.name
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestSteps(t *testing.T) {
	table := &gpt.Table{SectorSize: 4096, Partitions: []gpt.Partition{{Number: 1, First: 8, Last: 15}, {Number: 3, First: 16, Last: 31}}}
	one := partition{number: 1, start: 8 * 4096, length: 8 * 4096}
	three := partition{number: 3, start: 16 * 4096, length: 16 * 4096}
	add := func(p partition) step {
		return step{op: unix.BLKPG_ADD_PARTITION, number: p.number, start: p.start, length: p.length}
	}
	small, moved := three, three
	small.length, moved.start = 4096, 4096
	cases := map[string]struct {
		have []partition
		want []step
	}{
		"as the table says":  {have: []partition{three, one}},
		"none":               {want: []step{add(one), add(three)}},
		"the last one grown": {have: []partition{one, small}, want: []step{{op: unix.BLKPG_RESIZE_PARTITION, number: 3, start: three.start, length: three.length}}},
		"elsewhere":          {have: []partition{one, moved}, want: []step{{op: unix.BLKPG_DEL_PARTITION, number: 3}, add(three)}},
		"one too many":       {have: []partition{one, three, {number: 9}}},
	}
	for name, c := range cases {
		if diff := cmp.Diff(c.want, steps(c.have, table), cmp.AllowUnexported(step{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestIsDisk(t *testing.T) {
	for name, want := range map[string]bool{"vda": true, "sda": true, "nvme0n1": true, "mmcblk0": true, "xvda": true, "srv": true,
		"loop0": false, "ram1": false, "zram0": false, "dm-0": false, "md127": false, "sr0": false, "fd0": false, "nbd3": false} {
		if isDisk(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func variable(text string) []byte {
	b := []byte{6, 0, 0, 0}
	for _, u := range utf16.Encode([]rune(text)) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}

func TestBootPartition(t *testing.T) {
	const id = "4D21B016-B534-45C2-A9FB-5C16E091FD2D"
	for _, text := range []string{id, id + "\x00"} {
		if got, err := parseBootPartition(variable(text)); err != nil || got != strings.ToLower(id) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, b := range [][]byte{nil, {6, 0, 0}, variable(""), variable(id[:35]), variable(id + "0"), variable(strings.Replace(id, "4", "/", 1)), append(variable(id), 0)} {
		if got, err := parseBootPartition(b); err == nil {
			t.Errorf("%q is read as %q", b, got)
		}
	}
}

func FuzzBootPartition(f *testing.F) {
	f.Add(variable("4D21B016-B534-45C2-A9FB-5C16E091FD2D\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, err := parseBootPartition(b); err == nil && len(id) != 36 {
			t.Errorf("%q", id)
		}
	})
}

// TestReadSlot: a slot that can't be is an error of the slot, not of the disk.
func TestReadSlot(t *testing.T) {
	table := &gpt.Table{SectorSize: 512, Partitions: []gpt.Partition{{Number: 1, Name: "edge-verity-a", First: 0, Last: 31}, {Number: 2, Name: "edge-root-a", First: 32, Last: 39}}}
	if s := readSlot(strings.NewReader(""), table, "b"); s.err == nil || !strings.Contains(s.err.Error(), "edge-verity-b") {
		t.Errorf("a slot without partitions: %v", s.err)
	}
	if s := readSlot(strings.NewReader(strings.Repeat("\x00", 40*512)), table, "a"); !errors.Is(s.err, verity.ErrNone) {
		t.Errorf("an empty slot: %v", s.err)
	}
	if s := readSlot(strings.NewReader("short"), table, "a"); s.err == nil {
		t.Error("a disk that ends in the slot is read")
	}
	super := make([]byte, 512)
	copy(super, "verity\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00")
	copy(super[32:], "sha256")
	copy(super[64:], []byte{0, 16, 0, 0, 0, 16, 0, 0, 2})
	content := string(super) + strings.Repeat("\x00", 40*512)
	if s := readSlot(strings.NewReader(content), table, "a"); s.err == nil || !strings.Contains(s.err.Error(), "edge-root-a has 4096 bytes, its hashes are of 8192") {
		t.Errorf("a root that has no room: %v", s.err)
	}
}
