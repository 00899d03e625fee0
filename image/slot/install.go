package slot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// install writes a UKI under a name that is not there yet, its first sector last;
// see Writer. check is shown the whole before that sector is written. After an error
// the file is gone, if the ESP still takes orders.
func (w *Writer) install(ctx context.Context, name string, fill func(io.Writer) error, check func(io.ReaderAt) error) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, w.removeIfThere(name))
		}
	}()
	if err := w.removeIfThere(name); err != nil { // of a try before
		return err
	}
	head, err := w.writeBody(name, fill)
	if err != nil {
		return err
	}
	v, err := w.ESP.Open(name)
	if err != nil {
		return err
	}
	if err := check(&headed{head, v}); err != nil {
		return errors.Join(err, v.Close())
	}
	if err := ctx.Err(); err != nil {
		return errors.Join(err, v.Close())
	}
	_, err = v.WriteAt(head, 0)
	if err := errors.Join(err, v.Close()); err != nil {
		return err
	}
	if v, err = w.ESP.Open(name); err != nil {
		return err
	}
	return errors.Join(check(v), v.Close())
}

// writeBody writes all but the first sector, which is zero, to the disk, and
// returns that sector. The zeros are on the disk before there is more of the file:
// what a FAT gives to a file has the content of the one that had it before, which is
// perhaps the first sector of the UKI that was just removed.
func (w *Writer) writeBody(name string, fill func(io.Writer) error) (head []byte, err error) {
	v, err := w.ESP.Open(name)
	if err != nil {
		return nil, err
	}
	_, err = v.WriteAt(make([]byte, headSize), 0)
	if err := errors.Join(err, v.Close()); err != nil {
		return nil, err
	}
	if v, err = w.ESP.Open(name); err != nil {
		return nil, err
	}
	to := &beheaded{sequence: sequence{to: v}}
	err = fill(to)
	if err == nil && len(to.head) < headSize {
		err = fmt.Errorf("it is shorter than %d bytes", headSize)
	}
	return to.head, errors.Join(err, v.Close())
}

// beheaded keeps the first sector, and writes zeros for it.
type beheaded struct {
	sequence
	head []byte
}

func (b *beheaded) Write(p []byte) (int, error) {
	n := min(len(p), headSize-len(b.head))
	if n <= 0 {
		return b.sequence.Write(p)
	}
	b.head = append(b.head, p[:n]...)
	body := make([]byte, len(p))
	copy(body[n:], p[n:])
	return b.sequence.Write(body)
}

// headed reads as if the first sector were written.
type headed struct {
	head []byte
	rest io.ReaderAt
}

func (h *headed) ReadAt(p []byte, at int64) (int, error) {
	n, err := h.rest.ReadAt(p, at)
	if at >= 0 && at < int64(len(h.head)) {
		copy(p[:n], h.head[at:])
	}
	return n, err
}

func (w *Writer) removeIfThere(name string) error {
	files, err := w.ESP.List()
	if err != nil {
		return err
	}
	for _, f := range files {
		if strings.EqualFold(f.Name, name) { // on a FAT they are one file
			return w.ESP.Remove(f.Name)
		}
	}
	return nil
}

// Drop removes the UKIs of a version, whole or not, so that it is not booted. That of
// the version that runs has to be there: something must be left to boot.
func (w *Writer) Drop(version, running string) error {
	if version == running {
		return fmt.Errorf("remove UKI of %s: it is the version that runs", version)
	}
	all, err := w.UKIs()
	if err != nil {
		return err
	}
	if _, ok, err := Of(all, running); err != nil || !ok {
		return errors.Join(err, fmt.Errorf("remove UKI of %s: the EFI partition has none of version %s, which runs: nothing would be left to boot", version, running))
	}
	files, err := w.ESP.List()
	if err != nil {
		return fmt.Errorf("list UKIs: %w", err)
	}
	for _, f := range files {
		if u, ours := ParseUKI(f.Name); !ours || u.Version != version {
			continue
		}
		w.tell("removing %s from the EFI partition", f.Name)
		if err := w.ESP.Remove(f.Name); err != nil {
			return fmt.Errorf("remove %s: %w", f.Name, err)
		}
	}
	return nil
}

// Recount gives a UKI another counter, by a copy under the new name, and then
// removes the old: whenever the power fails one of the two is whole. (A rename on a
// FAT can leave none, or two that share their clusters; see Writer.) If a copy from
// a try before is there, it goes on with that. It needs room for a second one.
func (w *Writer) Recount(ctx context.Context, from, to UKI) error {
	if from.Version != to.Version {
		return fmt.Errorf("recount %s: %s is of another version", from.Name(), to.Name())
	}
	files, err := w.ESP.List()
	if err != nil {
		return fmt.Errorf("recount %s: %w", from.Name(), err)
	}
	if from != to {
		i := slices.IndexFunc(files, func(f ESPFile) bool { u, ours := ParseUKI(f.Name); return ours && u == from })
		if i < 0 {
			return fmt.Errorf("recount %s: it is not on the EFI partition", from.Name())
		}
		if err := w.copyUKI(ctx, files[i].Name, to.Name(), files[i].Size); err != nil {
			return fmt.Errorf("copy %s to %s: %w", from.Name(), to.Name(), err)
		}
	}
	for _, f := range files { // also copies of tries before
		u, ours := ParseUKI(f.Name)
		if !ours || u.Version != to.Version || u == to || u != from && !u.Copy() {
			continue
		}
		if err := w.ESP.Remove(f.Name); err != nil {
			return fmt.Errorf("remove %s: %w", f.Name, err)
		}
	}
	return nil
}

func (w *Writer) copyUKI(ctx context.Context, from, to string, size int64) (err error) {
	v, err := w.ESP.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(h, &interruptible{ctx, io.NewSectionReader(v, 0, size)}); err != nil {
		return err
	}
	as := File{Size: size, SHA256: sumOf(h)}
	return w.install(ctx, to, func(out io.Writer) error {
		_, err := io.CopyBuffer(out, &interruptible{ctx, io.NewSectionReader(v, 0, size)}, make([]byte, block))
		return err
	}, func(r io.ReaderAt) error { return sameSum(ctx, r, as) })
}
