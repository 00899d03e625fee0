// Package gpt reads GUID partition tables, finds partitions by their names,
// and grows the last partition of a disk that is larger than its table.
//
// It owns the bytes of both copies of the table: headers, check sums and
// entries, on disks of 512 and of 4096-byte sectors. It never makes a table,
// never adds or removes a partition and never moves one: entries are kept as
// the bytes they were, and growing changes one number of one entry. It talks to
// no kernel: the caller gives it something to read and to write.
//
// Process: the initrd, and edgectl for an upgrade.
//
// Why not github.com/diskfs/go-diskfs (v1.9.4 was tried): the initrd reads the
// tables of all disks of a machine, also of those that are not ours, and there
// a header that claims 2^31 entries of 4096 bytes ended the process by its
// allocation, which for process 1 is a panic at each boot; a primary table that
// can't be read (a bad sector, not a bad check sum) was not answered with the
// backup; and its module would bring in eight others for one file.
package gpt

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"unicode/utf16"
)

// UEFI 2.10 section 5.3.
const (
	headerSize   = 92 // bytes that every header has; a header may be longer
	entrySize    = 128
	revision     = 0x00010000
	mostEntries  = 1 << 20 // bytes of all entries together: 64 times what every tool writes
	nameOffset   = 56      // of an entry
	nameUnits    = 36      // UTF-16 units
	firstEntries = 2       // LBA of the primary's entries where nothing else is said
)

// ErrNoTable says that neither copy begins like a table: an empty disk or one
// that is partitioned in another way, not a damaged one.
var ErrNoTable = errors.New("no GPT on this disk")

// GUID is a globally unique id as it stands on the disk: the first three
// fields little-endian.
type GUID [16]byte

// String is the usual form, in lower case.
func (g GUID) String() string {
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", binary.LittleEndian.Uint32(g[0:]),
		binary.LittleEndian.Uint16(g[4:]), binary.LittleEndian.Uint16(g[6:]), g[8:10], g[10:])
}

// Partition is one used entry of a table.
type Partition struct {
	Number      int    // from 1, as in the names of the kernel
	Name        string // without the zeros behind it
	Type, ID    GUID
	First, Last uint64 // sectors; Last belongs to the partition
}

// Table is one table of a disk. Nobody may change it while another goroutine
// uses it.
type Table struct {
	Disk       GUID
	SectorSize int         // bytes: 512 or 4096
	Partitions []Partition // in the order of their numbers
	// Damaged says what is wrong with the copy that was not used, or that the
	// backup is not at the end of the disk; nil if both copies are whole.
	Damaged error

	backup  bool   // this came from the backup
	sectors uint64 // of the disk
	header  []byte // as it was read, headerSize or more
	entries []byte // as they were read
	size    int    // of one entry
	used    uint64 // the last sector that a partition may have
}

// Read reads the table of a disk of that many bytes. A primary copy that can't
// be read, or whose check sums are wrong, is answered with the backup in the
// last sector; the table then says so in Damaged. An error lists what is wrong
// with both, and is ErrNoTable if neither is a table at all.
func Read(disk io.ReaderAt, size int64, sectorSize int) (*Table, error) {
	if sectorSize != 512 && sectorSize != 4096 {
		return nil, fmt.Errorf("sectors of %d bytes: only 512 and 4096 are known", sectorSize)
	}
	sectors := uint64(max(size, 0)) / uint64(sectorSize)
	if sectors < 8 {
		return nil, fmt.Errorf("%w: it has %d sectors", ErrNoTable, sectors)
	}
	first, err := readCopy(disk, sectors, sectorSize, 1)
	if err == nil {
		first.Damaged = first.checkBackup(disk)
		return first, nil
	}
	second, err2 := readCopy(disk, sectors, sectorSize, sectors-1)
	if err2 == nil {
		second.backup = true
		second.Damaged = fmt.Errorf("primary: %w", err)
		return second, nil
	}
	if errors.Is(err, ErrNoTable) && errors.Is(err2, ErrNoTable) {
		return nil, ErrNoTable
	}
	return nil, fmt.Errorf("primary: %w; backup: %w", err, err2)
}

// readCopy reads the copy whose header is in the sector at.
func readCopy(disk io.ReaderAt, sectors uint64, sectorSize int, at uint64) (*Table, error) {
	sector := make([]byte, sectorSize)
	if _, err := disk.ReadAt(sector, int64(at)*int64(sectorSize)); err != nil {
		return nil, fmt.Errorf("read header in sector %d: %w", at, err)
	}
	t, err := parseHeader(sector, sectors, at)
	if err != nil {
		return nil, err
	}
	if _, err := disk.ReadAt(t.entries, int64(t.entriesAt())*int64(sectorSize)); err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	if got, want := crc32.ChecksumIEEE(t.entries), binary.LittleEndian.Uint32(t.header[88:]); got != want {
		return nil, fmt.Errorf("the entries' check sum is %08x, the header says %08x", got, want)
	}
	return t, t.parseEntries()
}

// parseHeader checks a header and gives a table whose entries have room but
// are not read.
func parseHeader(sector []byte, sectors, at uint64) (*Table, error) {
	le := binary.LittleEndian
	if !bytes.Equal(sector[:8], []byte("EFI PART")) {
		return nil, ErrNoTable
	}
	length := le.Uint32(sector[12:])
	if length < headerSize || int(length) > len(sector) {
		return nil, fmt.Errorf("the header is %d bytes long, not %d to %d", length, headerSize, len(sector))
	}
	t := &Table{SectorSize: len(sector), sectors: sectors, header: slices.Clone(sector[:length])}
	if got, want := headerSum(t.header), le.Uint32(sector[16:]); got != want {
		return nil, fmt.Errorf("the header's check sum is %08x, it says %08x", got, want)
	}
	if r := le.Uint32(sector[8:]); r != revision {
		return nil, fmt.Errorf("revision %08x is not known", r)
	}
	if own := le.Uint64(sector[24:]); own != at {
		return nil, fmt.Errorf("the header in sector %d says that it is in %d", at, own)
	}
	copy(t.Disk[:], sector[56:])
	return t, t.checkLayout()
}

// checkLayout checks where a header says that things are, and makes room for
// the entries: nothing is allocated on the word of a header alone.
func (t *Table) checkLayout() error {
	le := binary.LittleEndian
	count, each := uint64(le.Uint32(t.header[80:])), uint64(le.Uint32(t.header[84:]))
	if each < entrySize || each%entrySize != 0 || count == 0 || count*each > mostEntries {
		return fmt.Errorf("%d entries of %d bytes are not believed", count, each)
	}
	first, last := le.Uint64(t.header[40:]), le.Uint64(t.header[48:])
	if first < firstEntries || first > last || last >= t.sectors-1 {
		return fmt.Errorf("sectors %d to %d are not usable on a disk of %d", first, last, t.sectors)
	}
	t.used, t.size, t.entries = last, int(each), make([]byte, count*each)
	at, length := t.entriesAt(), t.entrySectors()
	if at < firstEntries || at >= t.sectors || length > t.sectors-at || at <= last && at+length > first {
		return fmt.Errorf("%d sectors of entries from %d are not outside of %d to %d", length, at, first, last)
	}
	return nil
}

// entriesAt is the sector in which the entries of the header begin.
func (t *Table) entriesAt() uint64 { return binary.LittleEndian.Uint64(t.header[72:]) }

func (t *Table) entrySectors() uint64 {
	return (uint64(len(t.entries)) + uint64(t.SectorSize) - 1) / uint64(t.SectorSize)
}

func (t *Table) parseEntries() error {
	first := binary.LittleEndian.Uint64(t.header[40:])
	for i := 0; i < len(t.entries); i += t.size {
		p := parseEntry(t.entries[i:i+entrySize], i/t.size+1)
		if p.Type == (GUID{}) {
			continue
		}
		if p.First < first || p.First > p.Last || p.Last > t.used {
			return fmt.Errorf("partition %d has sectors %d to %d, usable are %d to %d", p.Number, p.First, p.Last, first, t.used)
		}
		t.Partitions = append(t.Partitions, p)
	}
	byPlace := slices.SortedFunc(slices.Values(t.Partitions), func(a, b Partition) int { return cmp.Compare(a.First, b.First) })
	for i := 1; i < len(byPlace); i++ {
		if a, b := byPlace[i-1], byPlace[i]; b.First <= a.Last {
			return fmt.Errorf("partitions %d and %d overlap", a.Number, b.Number)
		}
	}
	return nil
}

func parseEntry(b []byte, number int) Partition {
	p := Partition{Number: number, First: binary.LittleEndian.Uint64(b[32:]), Last: binary.LittleEndian.Uint64(b[40:])}
	copy(p.Type[:], b)
	copy(p.ID[:], b[16:])
	var name []uint16
	for i := range nameUnits {
		u := binary.LittleEndian.Uint16(b[nameOffset+2*i:])
		if u == 0 {
			break
		}
		name = append(name, u)
	}
	p.Name = string(utf16.Decode(name))
	return p
}

// headerSum is the check sum of a header, whose own field counts as zero.
func headerSum(header []byte) uint32 {
	h := slices.Clone(header)
	clear(h[16:20])
	return crc32.ChecksumIEEE(h)
}

// checkBackup says what is wrong with the other copy of a primary that is
// whole. The sector that the primary names is looked at, not the last one: on a
// disk that has grown the backup is elsewhere and still whole.
func (t *Table) checkBackup(disk io.ReaderAt) error {
	at := binary.LittleEndian.Uint64(t.header[32:])
	if at >= t.sectors || at < 2 {
		return fmt.Errorf("backup: sector %d is not on this disk", at)
	}
	b, err := readCopy(disk, t.sectors, t.SectorSize, at)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if b.Disk != t.Disk || !bytes.Equal(b.entries, t.entries) {
		return errors.New("backup: it differs from the primary")
	}
	return nil
}

// Find is the partition of that name. Two of one name are an error: which one
// is meant can't be told.
func (t *Table) Find(name string) (Partition, error) {
	i := slices.IndexFunc(t.Partitions, func(p Partition) bool { return p.Name == name })
	if i < 0 {
		return Partition{}, fmt.Errorf("no partition is named %s", name)
	}
	p := t.Partitions[i]
	for _, other := range t.Partitions[i+1:] {
		if other.Name == name {
			return Partition{}, fmt.Errorf("partitions %d and %d are both named %s", p.Number, other.Number, name)
		}
	}
	return p, nil
}

// Offset is where a partition begins, in bytes.
func (t *Table) Offset(p Partition) int64 { return int64(p.First) * int64(t.SectorSize) }

// Size is the length of a partition in bytes.
func (t *Table) Size(p Partition) int64 { return int64(p.Last-p.First+1) * int64(t.SectorSize) }
