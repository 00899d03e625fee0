package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/catchment-dev/edge/image/gpt"
	"github.com/catchment-dev/edge/image/verity"
)

// disk is one disk of the machine as it was read.
type disk struct {
	name   string // of the kernel: vda, nvme0n1
	size   int64  // bytes
	sector int    // bytes
	boot   bool   // the firmware has booted from it
	table  *gpt.Table
	slots  []slot
	err    error // why it has no table
}

// slot is one of the two places for a root.
type slot struct {
	name         string // a or b
	root, hashes gpt.Partition
	area         verity.Area
	err          error // why it holds no root
}

// found is the root that is to be mounted.
type found struct {
	disk disk
	slot slot
}

// errOther says that the root is there, but not on the disk that the firmware
// booted from.
var errOther = errors.New("the disk that the firmware booted from is not there yet")

// choose takes the slot whose content has that hash. Of several disks the one
// that the firmware booted from comes first; while there is grace, and it was
// not seen, it alone. The error names each disk and what is wrong with it.
func choose(disks []disk, root rootHash, grace bool) (found, error) {
	var first found
	for _, d := range disks {
		s, ok := d.match(root)
		if ok && d.boot {
			return found{d, s}, nil
		}
		if ok && first.disk.table == nil {
			first = found{d, s}
		}
	}
	switch {
	case first.disk.table == nil:
		return found{}, fmt.Errorf("no disk holds the root %s: %s", root, explain(disks))
	case grace && !slices.ContainsFunc(disks, func(d disk) bool { return d.boot }):
		return found{}, errOther
	}
	return first, nil
}

// match is the slot of a disk that has the hash. If both have it, they hold the
// same version, and a is as good as b.
func (d disk) match(root rootHash) (slot, bool) {
	for _, s := range d.slots {
		if s.err == nil && s.area.Root == root {
			return s, true
		}
	}
	return slot{}, false
}

func holds(disks []disk, root rootHash) bool {
	_, err := choose(disks, root, false)
	return err == nil
}

// explain says of each disk why it is not the one.
func explain(disks []disk) string {
	if len(disks) == 0 {
		return "there is no disk (a driver that the initrd lacks?)"
	}
	var out []string
	for _, d := range disks {
		if d.err != nil {
			out = append(out, fmt.Sprintf("%s: %v", d.name, d.err))
			continue
		}
		for _, s := range d.slots {
			why := fmt.Sprintf("holds %s", s.area.Root)
			if s.err != nil {
				why = s.err.Error()
			}
			out = append(out, fmt.Sprintf("%s slot %s: %s", d.name, s.name, why))
		}
	}
	return strings.Join(out, "; ")
}
