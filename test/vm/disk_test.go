package vm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unicode/utf16"
)

// newDisk makes a disk with a FAT partition "edge-esp" of 40 MiB at 1 MiB and an empty
// "edge-root-b" of 1 MiB behind it.
func newDisk(ctx context.Context, t *testing.T) string {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk.raw")
	fat := filepath.Join(t.TempDir(), "fat")
	if err := tool(ctx, "mkfs.vfat", "-C", fat, "40960"); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(fat)
	if err != nil {
		t.Fatal(err)
	}
	image := make([]byte, 43<<20)
	copy(image[1<<20:], content)
	putTable(image, []Partition{{"edge-esp", 1 << 20, 40 << 20}, {"edge-root-b", 41 << 20, 1 << 20}})
	if err := os.WriteFile(disk, image, 0o644); err != nil {
		t.Fatal(err)
	}
	return disk
}

// putTable writes the little of a table that is read, entries of 128 bytes at sector 2.
func putTable(image []byte, parts []Partition) {
	head := image[gptSector:]
	copy(head, gptMagic)
	binary.LittleEndian.PutUint64(head[72:], 2)
	binary.LittleEndian.PutUint32(head[80:], 128)
	binary.LittleEndian.PutUint32(head[84:], 128)
	for i, p := range parts {
		e := image[2*gptSector+i*128:]
		e[0] = 1
		binary.LittleEndian.PutUint64(e[32:], uint64(p.Offset/gptSector))
		binary.LittleEndian.PutUint64(e[40:], uint64((p.Offset+p.Size)/gptSector-1))
		for j, u := range utf16.Encode([]rune(p.Name)) {
			binary.LittleEndian.PutUint16(e[56+2*j:], u)
		}
	}
}

func TestFAT(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	disk := newDisk(ctx, t)
	esp := FAT{Disk: disk, Partition: "edge-esp"}
	file := filepath.Join(t.TempDir(), "uki")
	if err := os.WriteFile(file, []byte("kernel"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time all is there
		if err := errors.Join(
			esp.Mkdir(ctx, "EFI"), esp.Mkdir(ctx, "EFI/Linux"),
			esp.Put(ctx, file, "EFI/Linux/edge_1.0.0.efi"), esp.Put(ctx, file, "EFI/Linux/edge_1.1.0+3-0.efi"),
		); err != nil {
			t.Fatal(err)
		}
	}
	names, err := esp.List(ctx, "EFI/Linux")
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{"edge_1.0.0.efi", "edge_1.1.0+3-0.efi"}) {
		t.Errorf("the folder has %q, %v", names, err)
	}
	back := filepath.Join(t.TempDir(), "back")
	if err := esp.Get(ctx, "EFI/Linux/edge_1.0.0.efi", back); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(back); err != nil || string(b) != "kernel" {
		t.Errorf("got back %q, %v", b, err)
	}
	if err := esp.Delete(ctx, "EFI/Linux/edge_1.0.0.efi"); err != nil {
		t.Fatal(err)
	}
	if names, err := esp.List(ctx, "EFI/Linux"); err != nil || !slices.Equal(names, []string{"edge_1.1.0+3-0.efi"}) {
		t.Errorf("the folder has %q, %v", names, err)
	}
	if err := esp.Delete(ctx, "EFI/Linux/none.efi"); err == nil {
		t.Error("a file that is not there was deleted")
	}
	if _, err := (FAT{Disk: disk, Partition: "edge-var"}).List(ctx, "EFI"); err == nil {
		t.Error("a partition that is not there was listed")
	}
}

func TestSpoil(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	disk := newDisk(ctx, t)
	before, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	used := func(want int64) {
		t.Helper()
		if got, err := Used(disk, "edge-root-b"); err != nil || got != want {
			t.Errorf("%d bytes are used, %v; want %d", got, err, want)
		}
	}
	used(0)
	if err := Spoil(disk, "edge-root-b", 4096, 10); err != nil {
		t.Fatal(err)
	}
	used(64 << 10)
	after, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	at := 41<<20 + 4096
	for i := range 10 {
		before[at+i] ^= 0xff
	}
	if !bytes.Equal(before, after) {
		t.Error("something else than the ten bytes has changed")
	}
	if err := Spoil(disk, "edge-root-b", 1<<20-5, 10); err == nil {
		t.Error("bytes behind the partition were spoiled")
	}
}

func TestGrow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Grow(path, 1<<30); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != 1<<30 {
		t.Errorf("got %v, %v", st, err)
	}
	if err := Grow(path, 1<<20); err == nil {
		t.Error("a disk was made smaller")
	}
}

func FuzzPartitions(f *testing.F) {
	image := make([]byte, 40*gptSector)
	putTable(image, []Partition{{"edge-esp", 1 << 20, 1 << 20}})
	f.Add(image[gptSector:])
	f.Add([]byte(gptMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		parts, err := Partitions(io.NewSectionReader(bytes.NewReader(append(make([]byte, gptSector), b...)), 0, 1<<20))
		for _, p := range parts {
			if err != nil || p.Size <= 0 && p.Size > -gptSector {
				t.Errorf("partition %+v with error %v", p, err)
			}
		}
	})
}

func TestVolumes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	files := map[string]string{"edge.yaml": "node: {}\n", "network/10-uplink.network": "[Match]\n", "secrets/ring.seed": "00"}
	dir := t.TempDir()
	fat := filepath.Join(dir, "v.img")
	for range 2 { // over the old one
		if err := Volume(ctx, fat, KindFAT, "EDGECFG", files); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := output(ctx, "mtype", "-i", fat, "::/network/10-uplink.network"); err != nil || out != "[Match]\n" {
		t.Errorf("the file in the FAT volume is %q, %v", out, err)
	}
	if out, err := output(ctx, "blkid", "-o", "value", "-s", "LABEL", fat); err != nil || out != "EDGECFG\n" {
		t.Errorf("its label is %q, %v", out, err)
	}
	iso := filepath.Join(dir, "v.iso")
	if err := Volume(ctx, iso, KindISO, "EDGECFG", files); err != nil {
		t.Fatal(err)
	}
	if out, err := output(ctx, "blkid", "-o", "value", "-s", "LABEL", iso); err != nil || out != "EDGECFG\n" {
		t.Errorf("the label of the ISO volume is %q, %v", out, err)
	}
	for _, bad := range []map[string]string{{"../out": "x"}, {}} {
		if err := Volume(ctx, fat, KindFAT, "EDGECFG", bad); err == nil {
			t.Errorf("a volume of %v was made", bad)
		}
	}
}
