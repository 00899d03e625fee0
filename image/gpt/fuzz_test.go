package gpt

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"
)

// fuzzSectors is a disk of a mebibyte and a bit: its last partition can grow.
const fuzzSectors = 2300

// FuzzRead reads tables of anybody. The check sums are put right, so that what
// is behind them is reached too. What is read must be written again whole.
func FuzzRead(f *testing.F) {
	for _, backup := range []bool{false, true} {
		header, entries := seed(backup)
		f.Add(header, entries, backup)
	}
	f.Fuzz(func(t *testing.T, header, entries []byte, backup bool) {
		const sectors, sector = fuzzSectors, 512
		disk := memory(make([]byte, sectors*sector))
		at := int64(1)
		if backup {
			at = sectors - 1
		}
		if len(header) > sector || len(entries) > 32*sector {
			return
		}
		copy(disk[2*sector:], entries)
		h := disk[at*sector : (at+1)*sector]
		copy(h, header)
		copy(h, "EFI PART")
		signHeader(h, disk)
		table, err := Read(bytes.NewReader(disk), int64(len(disk)), sector)
		if err != nil {
			return
		}
		for _, p := range table.Partitions {
			grown, changed, err := table.Grow(p.Name)
			if err != nil || !changed {
				continue
			}
			if err := grown.Write(disk); err != nil {
				continue
			}
			again, err := Read(bytes.NewReader(disk), int64(len(disk)), sector)
			if err != nil || again.Damaged != nil || len(again.Partitions) != len(table.Partitions) {
				t.Fatalf("written: %v, then %+v, %v", grown.Partitions, again, err)
			}
			return
		}
	})
}

// seed is a small table of two partitions, the second of which can grow.
func seed(backup bool) (header, entries []byte) {
	le := binary.LittleEndian
	header, entries = make([]byte, headerSize), make([]byte, 4*entrySize)
	le.PutUint32(header[8:], revision)
	le.PutUint32(header[12:], headerSize)
	for i, v := range []uint64{1, fuzzSectors - 1, 34, 200} {
		le.PutUint64(header[24+8*i:], v)
	}
	if backup {
		le.PutUint64(header[24:], fuzzSectors-1)
		le.PutUint64(header[32:], 1)
	}
	le.PutUint64(header[72:], 2)
	le.PutUint32(header[80:], 4)
	le.PutUint32(header[84:], entrySize)
	for i, name := range []string{"a", "b"} {
		e := entries[i*entrySize:]
		e[0], e[16], e[nameOffset] = 1, byte(i), name[0]
		le.PutUint64(e[32:], uint64(40+20*i))
		le.PutUint64(e[40:], uint64(50+20*i))
	}
	return header, entries
}

// signHeader puts the two check sums of a header right, if it says of its
// lengths what can be so.
func signHeader(h, disk []byte) {
	le := binary.LittleEndian
	at, n := le.Uint64(h[72:])*512, uint64(le.Uint32(h[80:]))*uint64(le.Uint32(h[84:]))
	if at < uint64(len(disk)) && n < uint64(len(disk))-at {
		le.PutUint32(h[88:], crc32.ChecksumIEEE(disk[at:at+n]))
	}
	if n := le.Uint32(h[12:]); n >= headerSize && int(n) <= len(h) {
		le.PutUint32(h[16:], headerSum(h[:n]))
	}
}

type memory []byte

func (m memory) WriteAt(b []byte, at int64) (int, error) { return copy(m[at:], b), nil }
func (m memory) ReadAt(b []byte, at int64) (int, error)  { return copy(b, m[at:]), nil }
func (m memory) Sync() error                             { return nil }
