package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/image/gpt"
)

// varName is the name of the partition that takes what the disk has over.
const varName = "edge-var"

// prepareDisk makes the table on the disk whole and as large as the disk, and
// the kernel's partitions what the table says. A disk that takes no new table
// boots as it is: only the notes tell.
func prepareDisk(c *console, f found, n *notes) error {
	d, err := os.OpenFile("/dev/"+f.disk.name, os.O_RDWR, 0)
	if err != nil {
		c.say(warn, "%v: the disk is left as it is", err)
		n.add("edge.gpt", "read-only")
		if d, err = os.Open("/dev/" + f.disk.name); err != nil {
			return fmt.Errorf("open disk: %w", err)
		}
	}
	defer d.Close()
	table := f.disk.table
	if table.Damaged != nil {
		c.say(warn, "the partition table of %s is damaged: %v", f.disk.name, table.Damaged)
	}
	grown, changed, err := table.Grow(varName)
	switch {
	case err != nil:
		c.say(warn, "partition table of %s: %v", f.disk.name, err)
		n.add("edge.gpt", "not grown")
	case changed:
		if err := grown.Write(d); err != nil {
			c.say(warn, "partition table of %s: %v", f.disk.name, err)
			n.add("edge.gpt", "not written")
			break
		}
		n.add("edge.gpt", wasDone(table))
		c.say(notice, "partition table of %s: %s", f.disk.name, wasDone(table))
		table = grown
	}
	for _, s := range steps(settledPartitions(f.disk.name), table) {
		if err := s.do(d); err != nil {
			// If it is one of the root's, the boot ends where it is looked for.
			c.say(warn, "partition %d of %s: %v", s.number, f.disk.name, err)
		}
	}
	return nil
}

func wasDone(before *gpt.Table) string {
	if before.Damaged != nil {
		return "repaired"
	}
	return "grown"
}

// partition is one that the kernel has; lengths and places are bytes.
type partition struct {
	node          string // vda2
	device        string // MAJOR:MINOR
	number        int
	start, length int64
}

// settledPartitions waits until the kernel has the partitions of a disk. It
// shows the disk before it has read the table, and what is done to the
// partitions meanwhile is undone or refused. Of a table that it can't read it
// never has any: so the wait is short.
func settledPartitions(disk string) (out []partition) {
	const least, most = 3, time.Second // looks that agree, and how long
	same := 0
	for start := time.Now(); same < least && time.Since(start) < most; time.Sleep(firstPause) {
		now := kernelPartitions(disk)
		if len(now) > 0 && slices.Equal(now, out) {
			same++
		} else {
			same = 0
		}
		out = now
	}
	return out
}

// kernelPartitions are those that the kernel has of a disk.
func kernelPartitions(disk string) (out []partition) {
	files, err := filepath.Glob(filepath.Join("/sys/block", disk, "*/partition"))
	if err != nil {
		return nil
	}
	for _, file := range files {
		node := filepath.Base(filepath.Dir(file))
		// Here the kernel counts in 512 bytes, whatever the disk does.
		p := partition{node: node, number: int(sysNumber(node, "partition")), start: sysNumber(node, "start") * 512, length: sysNumber(node, "size") * 512}
		if b, err := os.ReadFile(filepath.Join("/sys/class/block", node, "dev")); err == nil {
			p.device = string(trimLine(b))
			out = append(out, p)
		}
	}
	return out
}

func trimLine(b []byte) []byte {
	for len(b) > 0 && b[len(b)-1] == '\n' {
		b = b[:len(b)-1]
	}
	return b
}

// step is one change of the kernel's partitions.
type step struct {
	op            int32 // BLKPG_*
	number        int
	start, length int64
}

// steps are what the kernel has to change to have the partitions of the table.
// It has none of a disk whose primary table was damaged, and too small a last
// one of a disk that has grown.
func steps(have []partition, t *gpt.Table) (out []step) {
	kernel := map[int]partition{}
	for _, p := range have {
		kernel[p.number] = p
	}
	for _, p := range t.Partitions {
		want := step{number: p.Number, start: t.Offset(p), length: t.Size(p)}
		k, there := kernel[p.Number]
		switch {
		case !there:
			want.op = unix.BLKPG_ADD_PARTITION
		case k.start != want.start:
			out = append(out, step{op: unix.BLKPG_DEL_PARTITION, number: p.Number})
			want.op = unix.BLKPG_ADD_PARTITION
		case k.length != want.length:
			want.op = unix.BLKPG_RESIZE_PARTITION
		default:
			continue
		}
		out = append(out, want)
	}
	return out
}

func (s step) do(disk *os.File) error {
	p := unix.BlkpgPartition{Start: s.start, Length: s.length, Pno: int32(s.number)}
	arg := unix.BlkpgIoctlArg{Op: s.op, Datalen: int32(unsafe.Sizeof(p)), Data: (*byte)(unsafe.Pointer(&p))}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, disk.Fd(), unix.BLKPG, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return errno
	}
	return nil
}

// espName is the name of the EFI partition.
const espName = "edge-esp"

// espDevice is the EFI partition of the disk that is booted. Without it the system
// looks for itself.
func espDevice(f found) string {
	p, err := f.disk.table.Find(espName)
	if err != nil {
		return ""
	}
	k, err := kernelPartition(f, p)
	if err != nil {
		return ""
	}
	return "/dev/" + k.node
}

var errNoPartition = errors.New("the kernel has no such partition")

// kernelPartition is the kernel's partition at the place of one of the table.
func kernelPartition(f found, p gpt.Partition) (partition, error) {
	for _, k := range kernelPartitions(f.disk.name) {
		if k.number == p.Number && k.start == f.disk.table.Offset(p) {
			return k, nil
		}
	}
	return partition{}, fmt.Errorf("partition %d of %s: %w", p.Number, f.disk.name, errNoPartition)
}
