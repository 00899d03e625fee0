package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/catchment-dev/edge/image/gpt"
	"github.com/catchment-dev/edge/image/verity"
)

// readDisks looks at all disks of the machine. bootID is the id of the partition
// that the firmware has booted from, empty if it is not known.
func readDisks(bootID string) (disks []disk) {
	entries, err := os.ReadDir("/sys/block") // sorted by name
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if d, ok := readDisk(e.Name()); ok {
			d.boot = bootID != "" && d.table != nil &&
				slices.ContainsFunc(d.table.Partitions, func(p gpt.Partition) bool { return p.ID.String() == bootID })
			disks = append(disks, d)
		}
	}
	return disks
}

// notDisks are the block devices that hold no image: what the kernel makes
// itself, and drives with media.
func isDisk(name string) bool {
	return !slices.ContainsFunc([]string{"loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd"}, func(prefix string) bool {
		rest, ok := strings.CutPrefix(name, prefix)
		return ok && strings.Trim(rest, "0123456789") == ""
	})
}

// readDisk reads the table of a disk and the slots on it. ok is false for what
// is no disk.
func readDisk(name string) (d disk, ok bool) {
	if !isDisk(name) || sysNumber(name, "hidden") != 0 || sysNumber(name, "size") == 0 {
		return disk{}, false
	}
	d = disk{name: name, size: sysNumber(name, "size") * 512, sector: int(sysNumber(name, "queue/logical_block_size"))}
	f, err := os.Open("/dev/" + name)
	if err != nil {
		d.err = err
		return d, true
	}
	defer f.Close()
	if d.table, d.err = gpt.Read(f, d.size, d.sector); d.err != nil {
		return d, true
	}
	for _, s := range []string{"a", "b"} {
		d.slots = append(d.slots, readSlot(f, d.table, s))
	}
	return d, true
}

// readSlot reads by the place on the whole disk: the kernel has no partitions
// of a disk whose primary table is damaged.
func readSlot(disk io.ReaderAt, t *gpt.Table, name string) slot {
	s := slot{name: name}
	var err error
	if s.hashes, err = t.Find("edge-verity-" + name); err == nil {
		s.root, err = t.Find("edge-root-" + name)
	}
	if err != nil {
		s.err = err
		return s
	}
	if s.area, s.err = verity.Read(io.NewSectionReader(disk, t.Offset(s.hashes), t.Size(s.hashes))); s.err != nil {
		return s
	}
	if t.Size(s.root) < s.area.Bytes() {
		s.err = fmt.Errorf("edge-root-%s has %d bytes, its hashes are of %d", name, t.Size(s.root), s.area.Bytes())
	}
	return s
}

// sysNumber reads a number of a block device; what is not there is 0.
func sysNumber(name, attribute string) int64 {
	b, err := os.ReadFile(filepath.Join("/sys/class/block", name, attribute))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// bootVariable is where systemd-boot leaves the id of its partition
// (https://systemd.io/BOOT_LOADER_INTERFACE).
const bootVariable = "/sys/firmware/efi/efivars/LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// bootPartition is the id of the partition that the firmware has booted from,
// in lower case, or nothing. Anybody can write that variable: it decides between
// disks that hold the same verified root, never what is verified.
func bootPartition() string {
	b, err := os.ReadFile(bootVariable)
	if err != nil {
		return ""
	}
	id, err := parseBootPartition(b)
	if err != nil {
		return ""
	}
	return id
}

// parseBootPartition reads the file of an EFI variable: four bytes of
// attributes, then UTF-16 with a zero at its end.
func parseBootPartition(b []byte) (string, error) {
	if len(b) < 4 || len(b)%2 != 0 {
		return "", errors.New("the variable is no text")
	}
	var units []uint16
	for b = b[4:]; len(b) > 0; b = b[2:] {
		units = append(units, binary.LittleEndian.Uint16(b))
	}
	id := strings.ToLower(strings.TrimRight(string(utf16.Decode(units)), "\x00"))
	if len(id) != 36 || strings.Trim(id, "0123456789abcdef-") != "" {
		return "", fmt.Errorf("the variable is no id: %.80q", id)
	}
	return id, nil
}
