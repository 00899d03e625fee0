package gpt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
)

// alignment of the end of a partition that grows, in bytes: what tools and
// disks like, and a whole number of blocks of every file system.
const alignment = 1 << 20

// Disk is what a table is written to. Sync returns when all is on the disk.
type Disk interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// Grow gives a table in which the partition of that name reaches to the end of
// the disk, with the backup behind it, both copies whole. It has to be the
// partition that is last on the disk. changed is false if the table on the disk
// is already so: then nothing has to be written. A disk with less than a
// mebibyte to win is left as it is. The receiver is not changed.
func (t *Table) Grow(name string) (grown *Table, changed bool, err error) {
	p, err := t.Find(name)
	if err != nil {
		return nil, false, err
	}
	for _, other := range t.Partitions {
		if other.First > p.Last {
			return nil, false, fmt.Errorf("partition %s can't grow: partition %d is behind it", name, other.Number)
		}
	}
	grown = t.whole()
	end := (grown.used + 1) * uint64(t.SectorSize) / alignment * alignment / uint64(t.SectorSize)
	if end > p.Last+1 {
		i := slices.IndexFunc(grown.Partitions, func(q Partition) bool { return q.Number == p.Number })
		grown.Partitions[i].Last = end - 1
		binary.LittleEndian.PutUint64(grown.entries[(p.Number-1)*t.size+40:], end-1)
		return grown, true, nil
	}
	return grown, t.Damaged != nil || t.backup, nil
}

// whole is the table laid out for this disk: the primary in sector 1, the
// backup in the last one. What partitions may use never shrinks: a table of
// another tool may end later than ours would.
func (t *Table) whole() *Table {
	w := *t
	w.Damaged, w.backup = nil, false
	w.Partitions, w.entries, w.header = slices.Clone(t.Partitions), slices.Clone(t.entries), slices.Clone(t.header)
	w.used = max(t.used, t.sectors-2-t.entrySectors())
	binary.LittleEndian.PutUint64(w.header[48:], w.used)
	return &w
}

// Write writes both copies, the backup first and on the disk before the
// primary is touched: cut off at any moment, one whole copy is left, which is
// the old or the new table. Only a table that Grow gave may be written.
func (t *Table) Write(disk Disk) error {
	first := binary.LittleEndian.Uint64(t.header[40:])
	last := t.sectors - 1
	if t.used+t.entrySectors() >= last || firstEntries+t.entrySectors() > first {
		return errors.New("write table: there is no room for a copy of it")
	}
	if err := t.writeCopy(disk, last, 1, last-t.entrySectors()); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	// The sector in front of the primary belongs to it: without the MBR that
	// protects it neither the firmware nor the kernel looks for a table.
	if err := t.writeMBR(disk); err != nil {
		return fmt.Errorf("write protective MBR: %w", err)
	}
	if err := t.writeCopy(disk, 1, last, firstEntries); err != nil {
		return fmt.Errorf("write primary: %w", err)
	}
	return nil
}

// writeCopy writes the copy whose header is in the sector at, the other one in
// the sector other. The entries are on the disk before the header names them.
func (t *Table) writeCopy(disk Disk, at, other, entries uint64) error {
	le := binary.LittleEndian
	sector := make([]byte, t.SectorSize)
	h := sector[:len(t.header)]
	copy(h, t.header)
	le.PutUint64(h[24:], at)
	le.PutUint64(h[32:], other)
	le.PutUint64(h[72:], entries)
	le.PutUint32(h[88:], crc32.ChecksumIEEE(t.entries))
	le.PutUint32(h[16:], headerSum(h))
	padded := make([]byte, t.entrySectors()*uint64(t.SectorSize))
	copy(padded, t.entries)
	if err := writeSynced(disk, padded, int64(entries)*int64(t.SectorSize)); err != nil {
		return err
	}
	return writeSynced(disk, sector, int64(at)*int64(t.SectorSize))
}

func writeSynced(disk Disk, b []byte, at int64) error {
	if _, err := disk.WriteAt(b, at); err != nil {
		return err
	}
	return disk.Sync()
}

// writeMBR makes or corrects the protective MBR (UEFI section 5.2.3): one
// partition of type EE over the whole disk. The code in front of it is kept. An
// MBR with other partitions (a hybrid one) is left as it is: somebody meant it.
func (t *Table) writeMBR(disk Disk) error {
	old := make([]byte, t.SectorSize)
	if _, err := disk.ReadAt(old, 0); err != nil {
		return err
	}
	table := old[446:510]
	signed := old[510] == 0x55 && old[511] == 0xaa
	if signed && (table[4] != 0xee || slices.ContainsFunc(table[16:], func(b byte) bool { return b != 0 })) {
		return nil
	}
	sector := slices.Clone(old)
	table = sector[446:510]
	boot := table[0]
	clear(table)
	if signed {
		table[0] = boot
	}
	// From head 0, cylinder 0, sector 2 to the end, both as old BIOSes count.
	copy(table[1:], []byte{0, 2, 0, 0xee, 0xff, 0xff, 0xff})
	binary.LittleEndian.PutUint32(table[8:], 1)
	binary.LittleEndian.PutUint32(table[12:], uint32(min(t.sectors-1, 0xffffffff)))
	sector[510], sector[511] = 0x55, 0xaa
	if slices.Equal(sector, old) {
		return nil
	}
	return writeSynced(disk, sector, 0)
}
