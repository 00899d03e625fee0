package vm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"unicode/utf16"
)

// Copy copies a disk, variables or a saved state; holes stay holes.
func Copy(ctx context.Context, to, from string) error {
	return tool(ctx, "cp", "--sparse=always", "--reflink=auto", "--no-preserve=mode", from, to)
}

// Grow makes a disk larger, as a box's is than the image.
func Grow(path string, size int64) error {
	st, err := os.Stat(path)
	if err == nil && st.Size() > size {
		err = fmt.Errorf("it has %d bytes already", st.Size())
	}
	if err == nil {
		err = os.Truncate(path, size)
	}
	if err != nil {
		return fmt.Errorf("grow disk to %d bytes: %w", size, err)
	}
	return nil
}

// Partition is where a partition is in a disk, in bytes.
type Partition struct {
	Name         string
	Offset, Size int64
}

// gpt is the little that is read of the table (UEFI specification, 5.3).
const (
	gptSector  = 512
	gptMagic   = "EFI PART"
	maxEntries = 1024
)

// Partitions reads the first partition table of a disk with sectors of 512 bytes. It
// reads in its own way, not in the product's, and checks no checksum: the firmware
// does.
func Partitions(disk io.ReaderAt) ([]Partition, error) {
	head := make([]byte, gptSector)
	if _, err := disk.ReadAt(head, gptSector); err != nil {
		return nil, fmt.Errorf("read partition table: %w", err)
	}
	if string(head[:8]) != gptMagic {
		return nil, errors.New("read partition table: there is none")
	}
	at := int64(binary.LittleEndian.Uint64(head[72:])) * gptSector
	count, size := int(binary.LittleEndian.Uint32(head[80:])), int(binary.LittleEndian.Uint32(head[84:]))
	if count > maxEntries || size < 128 || size > 4096 || at <= 0 {
		return nil, fmt.Errorf("read partition table: %d entries of %d bytes at %d", count, size, at)
	}
	table := make([]byte, count*size)
	if _, err := disk.ReadAt(table, at); err != nil {
		return nil, fmt.Errorf("read partition table: %w", err)
	}
	var out []Partition
	for ; len(table) > 0; table = table[size:] {
		first, last := binary.LittleEndian.Uint64(table[32:]), binary.LittleEndian.Uint64(table[40:])
		if [16]byte(table[:16]) == ([16]byte{}) || last < first {
			continue
		}
		out = append(out, Partition{
			Name: gptName(table[56:128]), Offset: int64(first) * gptSector, Size: int64(last-first+1) * gptSector,
		})
	}
	return out, nil
}

func gptName(b []byte) string {
	units := make([]uint16, 0, len(b)/2)
	for ; len(b) > 1; b = b[2:] {
		u := binary.LittleEndian.Uint16(b)
		if u == 0 {
			break
		}
		units = append(units, u)
	}
	return string(utf16.Decode(units))
}

// FindPartition finds a partition of a disk by its name.
func FindPartition(disk, name string) (Partition, error) {
	f, err := os.Open(disk)
	if err != nil {
		return Partition{}, fmt.Errorf("open disk: %w", err)
	}
	defer f.Close()
	all, err := Partitions(f)
	if err != nil {
		return Partition{}, err
	}
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
	}
	return Partition{}, fmt.Errorf("find partition %s: it is not in %v", name, all)
}

// Used is how far into a partition of a disk something is written: the end of the last
// block of 64 KiB that is not all zero.
func Used(disk, partition string) (int64, error) {
	p, err := FindPartition(disk, partition)
	if err != nil {
		return 0, err
	}
	f, err := os.Open(disk)
	if err != nil {
		return 0, fmt.Errorf("look into %s: %w", partition, err)
	}
	defer f.Close()
	block, zero := make([]byte, 64<<10), make([]byte, 64<<10)
	var used int64
	for at := int64(0); at < p.Size; at += int64(len(block)) {
		part := block[:min(int64(len(block)), p.Size-at)]
		if _, err := f.ReadAt(part, p.Offset+at); err != nil {
			return 0, fmt.Errorf("look into %s: %w", partition, err)
		}
		if !bytes.Equal(part, zero[:len(part)]) {
			used = at + int64(len(part))
		}
	}
	return used, nil
}

// Spoil inverts bytes of a partition of a disk that no machine uses.
func Spoil(disk, partition string, offset, length int64) error {
	p, err := FindPartition(disk, partition)
	if err != nil {
		return err
	}
	if offset < 0 || length < 0 || offset+length > p.Size {
		return fmt.Errorf("spoil %s: %d bytes at %d are not in it", partition, length, offset)
	}
	f, err := os.OpenFile(disk, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("spoil %s: %w", partition, err)
	}
	defer f.Close()
	b := make([]byte, length)
	if _, err := f.ReadAt(b, p.Offset+offset); err != nil {
		return fmt.Errorf("spoil %s: %w", partition, err)
	}
	for i := range b {
		b[i] ^= 0xff
	}
	if _, err := f.WriteAt(b, p.Offset+offset); err != nil {
		return fmt.Errorf("spoil %s: %w", partition, err)
	}
	return f.Close()
}

// FAT reads and writes the FAT partition of a disk that no machine uses, by mtools: no
// mount, no loop device.
type FAT struct {
	Disk, Partition string
}

func (v FAT) image() (string, error) {
	p, err := FindPartition(v.Disk, v.Partition)
	return fmt.Sprintf("%s@@%d", v.Disk, p.Offset), err
}

// List returns the names in a folder, such as "EFI/Linux".
func (v FAT) List(ctx context.Context, dir string) ([]string, error) {
	img, err := v.image()
	if err != nil {
		return nil, err
	}
	out, err := output(ctx, "mdir", "-b", "-i", img, "::/"+dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(out) {
		if name := strings.TrimPrefix(strings.TrimSpace(line), "::/"+dir+"/"); name != "" {
			names = append(names, strings.TrimSuffix(name, "/"))
		}
	}
	return names, nil
}

// Get copies a file out of the volume.
func (v FAT) Get(ctx context.Context, name, to string) error {
	img, err := v.image()
	if err != nil {
		return err
	}
	return tool(ctx, "mcopy", "-n", "-o", "-i", img, "::/"+name, to)
}

// Put copies a file into the volume, over the one of that name.
func (v FAT) Put(ctx context.Context, from, name string) error {
	img, err := v.image()
	if err != nil {
		return err
	}
	return tool(ctx, "mcopy", "-o", "-i", img, from, "::/"+name)
}

// Delete removes a file.
func (v FAT) Delete(ctx context.Context, name string) error {
	img, err := v.image()
	if err != nil {
		return err
	}
	return tool(ctx, "mdel", "-i", img, "::/"+name)
}

// Mkdir makes a folder; one that is there is fine.
func (v FAT) Mkdir(ctx context.Context, name string) error {
	img, err := v.image()
	if err != nil {
		return err
	}
	if _, err := v.List(ctx, name); err == nil {
		return nil
	}
	return tool(ctx, "mmd", "-i", img, "::/"+name)
}

// tool runs a program whose output nobody needs.
func tool(ctx context.Context, name string, args ...string) error {
	_, err := output(ctx, name, args...)
	return err
}

// output runs a program; its error has what the program said.
func output(ctx context.Context, name string, args ...string) (string, error) {
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	// mtools asks its own questions on the terminal, and minds a disk's geometry.
	cmd.Env = append(os.Environ(), "MTOOLS_SKIP_CHECK=1", "LC_ALL=C.UTF-8")
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("run %s: %w: %s", name, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
