package volume

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
)

// Volume is what the first blocks of a device say of its file system.
type Volume struct {
	// Kind is the name that Linux has for it: vfat or iso9660.
	Kind string
	// Label is without the blanks behind it; empty: it has none.
	Label string
}

// Identify reads what file system r holds. ok is false for all but FAT and
// ISO 9660.
func Identify(r io.ReaderAt) (v Volume, ok bool) {
	if label, ok := isoLabel(r); ok {
		return Volume{"iso9660", label}, true
	}
	if label, ok := fatLabel(r); ok {
		return Volume{"vfat", label}, true
	}
	return Volume{}, false
}

// isoLabel looks for the primary volume descriptor (ECMA-119 section 8.4). It
// comes before FAT: an ISO may begin with a boot sector.
func isoLabel(r io.ReaderAt) (string, bool) {
	const sector, most = 2048, 32
	b := make([]byte, 72)
	for i := range int64(most) {
		if _, err := r.ReadAt(b, (16+i)*sector); err != nil || string(b[1:6]) != "CD001" || b[0] == 255 {
			return "", false
		}
		if b[0] == 1 {
			return text(b[40:72]), true
		}
	}
	return "", false
}

// fat are the fields of a boot sector that say where the root folder is
// (Microsoft's FAT specification 1.03, section 3).
type fat struct {
	sector, cluster   int64 // bytes in a sector, sectors in a cluster
	reserved, fats    int64
	entries           int64 // of the root folder, 0 in FAT32
	perFAT            int64 // sectors
	rootCluster       int64 // FAT32
	label             string
	bits32, signature bool
}

// fatLabel returns the label of the root folder, which is what Windows writes,
// or that of the boot sector.
func fatLabel(r io.ReaderAt) (string, bool) {
	b := make([]byte, 512)
	if _, err := r.ReadAt(b, 0); err != nil {
		return "", false
	}
	f, ok := parseFAT(b)
	if !ok {
		return "", false
	}
	if label, ok := f.rootLabel(r); ok {
		return label, true
	}
	if !f.signature || f.label == "NO NAME" {
		return "", true
	}
	return f.label, true
}

func parseFAT(b []byte) (f fat, ok bool) {
	u16 := func(at int) int64 { return int64(binary.LittleEndian.Uint16(b[at:])) }
	u32 := func(at int) int64 { return int64(binary.LittleEndian.Uint32(b[at:])) }
	f = fat{sector: u16(11), cluster: int64(b[13]), reserved: u16(14), fats: int64(b[16]), entries: u16(17), perFAT: u16(22)}
	power := func(n int64) bool { return n > 0 && n&(n-1) == 0 }
	media := b[21] == 0xf0 || b[21] >= 0xf8
	if b[510] != 0x55 || b[511] != 0xaa || !power(f.sector) || f.sector < 512 || f.sector > 4096 || !power(f.cluster) || f.reserved == 0 || f.fats == 0 || f.fats > 2 || !media {
		return f, false
	}
	at := 38 // of the extended boot signature
	if f.perFAT == 0 {
		f.bits32, f.perFAT, f.rootCluster, at = true, u32(36), u32(44), 66
	}
	if f.bits32 != (f.entries == 0) || f.perFAT == 0 || f.bits32 && f.rootCluster < 2 {
		return f, false
	}
	f.signature, f.label = b[at] == 0x29, text(b[at+5:at+16])
	return f, true
}

// rootLabel looks through the root folder, of FAT32 through its first cluster:
// mkfs and Windows write the label first.
func (f fat) rootLabel(r io.ReaderAt) (string, bool) {
	at, size := (f.reserved+f.fats*f.perFAT)*f.sector, f.entries*32
	if f.bits32 {
		size = f.cluster * f.sector
		at += (f.rootCluster - 2) * size
	}
	b := make([]byte, min(size, 64<<10))
	if n, err := r.ReadAt(b, at); err != nil {
		b = b[:n]
	}
	const attributes, volumeID, longName = 11, 0x08, 0x0f
	for ; len(b) >= 32; b = b[32:] {
		switch {
		case b[0] == 0:
			return "", false
		case b[0] == 0xe5: // deleted
		case b[attributes]&longName != longName && b[attributes]&volumeID != 0:
			return text(b[:11]), true
		}
	}
	return "", false
}

// text is a label as people write it.
func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return strings.TrimRight(string(b), " ")
}
