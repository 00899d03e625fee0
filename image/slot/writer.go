package slot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// Volume is a partition, or a file of the ESP. Close returns once all that was
// written is on the disk, and a Volume that is opened after that reads from there.
type Volume interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// ESPFile is a file in UKIFolder. Bootable says that it begins as a program does,
// and is not shorter than any, so that systemd-boot lists it.
type ESPFile struct {
	Name     string
	Size     int64
	Bootable bool
}

// ESP is UKIFolder of the EFI partition. There is no rename, since that of a FAT
// is none: see Writer.
type ESP interface {
	List() ([]ESPFile, error)
	// Open makes the file if it is not there.
	Open(name string) (Volume, error)
	// Remove returns once the file is gone from the disk.
	Remove(name string) error
}

// Writer writes the slot that does not run.
//
// The order is such that the power may fail anywhere: the UKI of that slot is
// removed first, since from then on nothing may point to it; then come verity and
// root, read back from the disk; the UKI is last. A failed update therefore leaves
// only the version that runs to boot: what it fell back to is gone, as its root is
// half overwritten. All that can fail before (fetching, sums, signature, room) is
// done before, so that this window is the time of writing two partitions.
//
// A rename on a FAT writes two entries in no certain order: a power cut can leave
// both, which then share their clusters, so that removing one later destroys the
// other; or none. So a UKI is written under its last name, all but its first sector,
// which is zero: no program, which systemd-boot does not list. Once that is on the
// disk the first sector is written, and a disk writes a sector whole or not at all.
type Writer struct {
	// Partition opens one by its GPT name.
	Partition func(name string) (Volume, error)
	ESP       ESP
	// RootHash reads the root hash (hex) of a verity partition.
	RootHash func(io.ReaderAt) (string, error)
	// Tell is told of each step; nil: nobody is.
	Tell func(step string)
}

// Job is what to write.
type Job struct {
	Manifest *Manifest
	Packed   map[Part]string // as Fetcher.Fetch returned them
	Slot     Slot            // not the one that runs
	Running  string          // the version that runs
	Tries    int             // how often it may fail to become good: 1 to 9
	// Ready is called when the slot is whole, and before the UKI is there by which the
	// next boot takes it, whatever ends this process. An error ends the writing. nil:
	// nobody is told.
	Ready func() error
}

// headSize is the first sector of a UKI: the smallest that a disk writes whole.
const headSize = 512

func (w *Writer) tell(format string, args ...any) {
	if w.Tell != nil {
		w.Tell(fmt.Sprintf(format, args...))
	}
}

// UKIs are those on the ESP that systemd-boot lists.
func (w *Writer) UKIs() ([]UKI, error) {
	files, err := w.ESP.List()
	if err != nil {
		return nil, fmt.Errorf("list UKIs: %w", err)
	}
	var out []UKI
	for _, f := range files {
		if u, ok := ParseUKI(f.Name); ok && f.Bootable {
			out = append(out, u)
		}
	}
	slices.SortFunc(out, CompareUKI)
	return out, nil
}

// Write writes a version into a slot. What is there already and right is kept, so
// that an update that was cut goes on. After an error the ESP has at most what it
// had before.
func (w *Writer) Write(ctx context.Context, j Job) error {
	if j.Manifest.Version == j.Running {
		return fmt.Errorf("write %s: it is the version that runs", j.Running)
	}
	if j.Tries < 1 || j.Tries > 9 {
		return fmt.Errorf("write %s: %d tries, want 1 to 9", j.Manifest.Version, j.Tries)
	}
	for _, p := range parts() { // a disk that fills meanwhile may have cost what was fetched
		f, err := openFile(j.Packed[p])
		if err != nil {
			return fmt.Errorf("write %s: what was fetched is not there any more: %w", p, err)
		}
		f.Close()
	}
	if err := w.clear(j.Running); err != nil {
		return err
	}
	for _, p := range []Part{Verity, Root} {
		if err := w.partition(ctx, j, p); err != nil {
			return fmt.Errorf("write %s of slot %s: %w", p, j.Slot, err)
		}
	}
	if err := w.checkRootHash(j.Manifest, j.Slot); err != nil {
		return err
	}
	if j.Ready != nil {
		if err := j.Ready(); err != nil {
			return err
		}
	}
	name := UKI{Version: j.Manifest.Version, Counted: true, Left: j.Tries}.Name()
	w.tell("writing %s to the EFI partition", name)
	file := j.Manifest.File(Kernel)
	err := w.install(ctx, name, func(to io.Writer) error { return unpack(ctx, j.Packed[Kernel], file, to) }, func(r io.ReaderAt) error {
		if err := sameSum(ctx, r, file); err != nil {
			return err
		}
		return CheckCommandLine(r, j.Manifest)
	})
	if err != nil {
		return fmt.Errorf("write UKI %s: %w", name, err)
	}
	return nil
}

// clear removes every UKI but the one of the version that runs, which has to be
// there, and what an update that was cut has left.
func (w *Writer) clear(running string) error {
	all, err := w.UKIs()
	if err != nil {
		return err
	}
	keep, ok, err := Of(all, running)
	if err != nil {
		return err
	} else if !ok {
		return fmt.Errorf("the EFI partition has no UKI of version %s, which runs: nothing is removed, since nothing would be left to boot; put %s back", running, UKI{Version: running}.Name())
	}
	files, err := w.ESP.List()
	if err != nil {
		return fmt.Errorf("list UKIs: %w", err)
	}
	for _, f := range files {
		u, ours := ParseUKI(f.Name)
		if !ours || f.Bootable && u == keep {
			continue
		}
		w.tell("removing %s from the EFI partition: its slot is overwritten", f.Name)
		if err := w.ESP.Remove(f.Name); err != nil {
			return fmt.Errorf("remove %s: %w", f.Name, err)
		}
	}
	return nil
}

func (j Job) partitionName(p Part) string { return partitionName(j.Slot, p) }

func partitionName(s Slot, p Part) string {
	if p == Verity {
		return s.VerityName()
	}
	return s.RootName()
}

func (w *Writer) partition(ctx context.Context, j Job, p Part) error {
	file, name := j.Manifest.File(p), j.partitionName(p)
	if w.holds(ctx, name, file) == nil {
		w.tell("%s is written already", name)
		return nil
	}
	w.tell("writing %s, %s", name, Size(file.Size))
	v, err := w.Partition(name)
	if err != nil {
		return err
	}
	to := &sequence{to: v}
	if err := errors.Join(unpack(ctx, j.Packed[p], file, to), v.Close()); err != nil {
		return err
	}
	w.tell("reading %s back", name)
	return w.holds(ctx, name, file)
}

// holds says why a partition does not begin with a file.
func (w *Writer) holds(ctx context.Context, name string, file File) error {
	v, err := w.Partition(name)
	if err != nil {
		return err
	}
	return errors.Join(sameSum(ctx, v, file), v.Close())
}

// sameSum says why the first bytes of r are not those of a file.
func sameSum(ctx context.Context, r io.ReaderAt, file File) error {
	h := sha256.New()
	n, err := io.CopyBuffer(h, &interruptible{ctx, io.NewSectionReader(r, 0, file.Size)}, make([]byte, block))
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if n != file.Size || sumOf(h) != file.SHA256 {
		return errors.New("what is read back is not what the manifest names")
	}
	return nil
}

func (w *Writer) checkRootHash(m *Manifest, s Slot) error {
	v, err := w.Partition(s.VerityName())
	if err != nil {
		return fmt.Errorf("check root hash: %w", err)
	}
	hash, err := w.RootHash(v)
	if err := errors.Join(err, v.Close()); err != nil {
		return fmt.Errorf("check root hash: %w", err)
	}
	if hash != m.RootHash {
		return fmt.Errorf("check root hash: %s has %s, and the manifest says %s: the payload is wrong", s.VerityName(), hash, m.RootHash)
	}
	return nil
}

// Holds says why a slot and the ESP do not hold a version as it was written, ready
// to be booted; nil: they do. It reads all of it.
func (w *Writer) Holds(ctx context.Context, m *Manifest, s Slot) error {
	all, err := w.UKIs()
	if err != nil {
		return err
	}
	u, ok, err := Of(all, m.Version)
	switch {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("the EFI partition has no UKI of version %s", m.Version)
	case u.Spent():
		return fmt.Errorf("%s has no tries left", u.Name())
	}
	for _, p := range []Part{Verity, Root} {
		if err := w.holds(ctx, partitionName(s, p), m.File(p)); err != nil {
			return fmt.Errorf("%s of slot %s: %w", p, s, err)
		}
	}
	v, err := w.ESP.Open(u.Name())
	if err != nil {
		return err
	}
	return errors.Join(sameSum(ctx, v, m.File(Kernel)), v.Close())
}

// block is how much is read and written at once, in bytes.
const block = 256 << 10

// maxWindow bounds the memory that a packed file may ask for, in bytes.
const maxWindow = 64 << 20

// unpack writes what a packed file holds, which must be as long as the manifest
// says, and have its sum.
func unpack(ctx context.Context, path string, file File, to io.Writer) error {
	z, done, err := openPacked(ctx, path)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", file.Name, err)
	}
	defer done()
	h := sha256.New()
	full := &filled{to: io.MultiWriter(to, h)}
	n, err := io.Copy(full, io.LimitReader(plain{z}, file.Size+1))
	if err == nil {
		err = full.flush()
	}
	switch {
	case err != nil:
		return fmt.Errorf("unpack %s: %w", file.Name, err)
	case n != file.Size:
		return fmt.Errorf("unpack %s: not the %d bytes that the manifest names", file.Name, file.Size)
	case sumOf(h) != file.SHA256:
		return fmt.Errorf("unpack %s: its sum is not the one of the manifest", file.Name)
	}
	return nil
}

// openPacked returns what a packed file holds, until done is called.
func openPacked(ctx context.Context, path string) (z *zstd.Decoder, done func(), err error) {
	in, err := openFile(path)
	if err != nil {
		return nil, nil, err
	}
	z, err = zstd.NewReader(&interruptible{ctx, in}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, nil, errors.Join(err, in.Close())
	}
	return z, func() { z.Close(); in.Close() }, nil
}

// plain hides that a decoder could write by itself, without a limit.
type plain struct{ io.Reader }

// filled collects writes to whole blocks: a partition is written in few large ones.
type filled struct {
	to  io.Writer
	buf []byte
}

func (f *filled) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		if f.buf == nil {
			f.buf = make([]byte, 0, block)
		}
		take := min(len(p)-n, block-len(f.buf))
		f.buf = append(f.buf, p[n:n+take]...)
		n += take
		if len(f.buf) == block {
			if err := f.flush(); err != nil {
				return n, err
			}
		}
	}
	return len(p), nil
}

func (f *filled) flush() error {
	_, err := f.to.Write(f.buf)
	f.buf = f.buf[:0]
	return err
}

// sequence writes one after another.
type sequence struct {
	to io.WriterAt
	at int64
}

func (s *sequence) Write(p []byte) (int, error) {
	n, err := s.to.WriteAt(p, s.at)
	s.at += int64(n)
	return n, err
}
