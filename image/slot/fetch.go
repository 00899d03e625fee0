package slot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"
)

// FetchManifest fetches the manifest and its signature, checks that one of trusted
// has signed it, and reads it. The sum (hex SHA-256) names this very manifest.
func FetchManifest(ctx context.Context, from Source, trusted Trusted) (m *Manifest, sum string, err error) {
	text, err := fetchSmall(ctx, from, ManifestName, maxManifest)
	if err != nil {
		return nil, "", err
	}
	sig, err := fetchSmall(ctx, from, SignatureName, maxSignature)
	if err != nil {
		return nil, "", err
	}
	if _, err := trusted.Verify(text, sig); err != nil {
		return nil, "", err
	}
	if m, err = ParseManifest(text); err != nil {
		return nil, "", err
	}
	s := sha256.Sum256(text)
	return m, hex.EncodeToString(s[:]), nil
}

// fetchSmall fetches a whole file of at most so many bytes.
func fetchSmall(ctx context.Context, from Source, name string, most int64) (b []byte, err error) {
	err = again(ctx, func() (bool, error) {
		r, err := from.Open(ctx, name, 0)
		if err != nil {
			return false, err
		}
		defer r.Close()
		b, err = io.ReadAll(io.LimitReader(r, most+1))
		if err == nil && int64(len(b)) > most {
			err = fmt.Errorf("larger than %d bytes", most)
		}
		return false, err
	})
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", name, err)
	}
	return b, nil
}

const (
	fetchTries = 6 // without a byte in between
	firstPause = time.Second
	// keepFree is what a fetch leaves of /var, in bytes: the daemons keep state there.
	keepFree = 32 << 20
)

// again repeats f while its errors are Temporary, up to fetchTries times in a row
// in which it got nothing.
func again(ctx context.Context, f func() (progress bool, err error)) error {
	pause, failed := firstPause, 0
	for {
		progress, err := f()
		var temporary *Temporary
		if err == nil || !errors.As(err, &temporary) {
			return err
		}
		if progress {
			pause, failed = firstPause, 0
		}
		if failed++; failed == fetchTries {
			return fmt.Errorf("%w (given up after %d tries)", err, failed)
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
		pause *= 2
	}
}

// Fetcher brings the files of a payload to where they can be read more than once.
type Fetcher struct {
	From Source
	// Dir is where they are kept; what is there from another payload is removed.
	Dir string
	// Free says how many bytes the file system of Dir has left.
	Free func() (int64, error)
	// Progress is told how many bytes of how many are there; nil: nobody is.
	Progress func(done, of int64)
}

// Fetch returns where the packed files of m are, each with the right sum. Those of
// a folder stay there; others are kept in Dir under their sum, so that a fetch that
// was cut goes on where it was, even in another process.
func (f *Fetcher) Fetch(ctx context.Context, m *Manifest) (map[Part]string, error) {
	out := map[Part]string{}
	if dir, ok := f.From.(folder); ok {
		for _, file := range m.Files {
			path := filepath.Join(string(dir), file.Name)
			if err := checkPacked(ctx, path, file); err != nil {
				return nil, err
			}
			out[file.Part] = path
		}
		return out, nil
	}
	if err := f.prepare(m); err != nil {
		return nil, err
	}
	var before int64
	for _, p := range parts() {
		file := m.File(p)
		tell := func(n int64) {
			if f.Progress != nil {
				f.Progress(before+n, m.PackedSize())
			}
		}
		path := f.path(file)
		if err := f.one(ctx, file, path, tell); err != nil {
			return nil, fmt.Errorf("fetch %s: %w", file.Name, err)
		}
		out[p], before = path, before+file.PackedSize
	}
	return out, nil
}

func (f *Fetcher) path(file File) string {
	return filepath.Join(f.Dir, string(file.Part)+"-"+file.PackedSHA256[:16])
}

// prepare removes what is of another payload, and looks whether there is room.
func (f *Fetcher) prepare(m *Manifest) error {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	wanted := map[string]bool{}
	for _, file := range m.Files {
		wanted[f.path(file)] = true
	}
	have, err := os.ReadDir(f.Dir)
	if err != nil {
		return fmt.Errorf("read folder: %w", err)
	}
	need := m.PackedSize()
	for _, e := range have {
		path := filepath.Join(f.Dir, e.Name())
		if !wanted[path] {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("remove what is of another payload: %w", err)
			}
		} else if info, err := e.Info(); err == nil {
			need -= info.Size()
		}
	}
	free, err := f.Free()
	if err != nil {
		return fmt.Errorf("ask for free space: %w", err)
	}
	if need > 0 && free < need+keepFree {
		return fmt.Errorf("%s has %s free, and the payload needs %s beside the %s that are kept free: remove files there, or upgrade from a folder",
			f.Dir, Size(free), Size(need), Size(keepFree))
	}
	return nil
}

// one fetches a file, from where an earlier try ended.
func (f *Fetcher) one(ctx context.Context, file File, path string, tell func(int64)) error {
	if err := checkPacked(ctx, path, file); err == nil {
		tell(file.PackedSize)
		return nil
	}
	old, _ := os.Stat(path)
	err := f.whole(ctx, file, path, tell)
	if errors.Is(err, errWrongSum) && old != nil && old.Size() > 0 {
		// What a process or a boot before has left need not be what it had fetched.
		err = f.whole(ctx, file, path, tell)
	}
	return err
}

// whole has a file complete and right, or not there.
func (f *Fetcher) whole(ctx context.Context, file File, path string, tell func(int64)) error {
	// A server that begins anew each time, and breaks off, has to come further than
	// before to be asked again: what it lacks of the file does not come by asking.
	var most int64
	err := again(ctx, func() (bool, error) {
		at, err := f.more(ctx, file, path, tell)
		further := at > most
		most = max(most, at)
		return further, err
	})
	if err != nil {
		return err
	}
	if err := checkPacked(ctx, path, file); err != nil {
		return errors.Join(err, os.Remove(path)) // nothing can follow on it
	}
	return nil
}

// more appends to a file what is missing of it; reached is how many of its bytes
// are there then, 0 if none came.
func (f *Fetcher) more(ctx context.Context, file File, path string, tell func(int64)) (reached int64, err error) {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	at, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	if at >= file.PackedSize { // whole, but with a wrong sum: else it would not be asked for
		at = 0
	}
	r, err := f.From.Open(ctx, file.Name, at)
	if errors.Is(err, errNoRange) {
		at = 0
		r, err = f.From.Open(ctx, file.Name, 0)
	}
	if err != nil {
		return 0, err
	}
	defer r.Close()
	if err := out.Truncate(at); err != nil {
		return 0, err
	}
	return f.append(out, r, at, file, tell)
}

// append writes what comes behind the first at bytes.
func (f *Fetcher) append(out io.WriterAt, r io.Reader, at int64, file File, tell func(int64)) (reached int64, err error) {
	start := at
	buf := make([]byte, 256<<10)
	for {
		n, err := r.Read(buf)
		if at+int64(n) > file.PackedSize {
			return 0, fmt.Errorf("the source sends more than the %d bytes that the manifest names", file.PackedSize)
		}
		if _, werr := out.WriteAt(buf[:n], at); werr != nil {
			return 0, werr
		}
		at += int64(n)
		tell(at)
		if err == nil {
			continue
		}
		if at > start {
			reached = at
		}
		switch {
		case errors.Is(err, io.EOF) && at < file.PackedSize:
			return reached, &Temporary{fmt.Errorf("it ended after %d of %d bytes", at, file.PackedSize)}
		case errors.Is(err, io.EOF):
			return reached, nil
		}
		return reached, err
	}
}

// checkPacked compares a packed file with its manifest.
func checkPacked(ctx context.Context, path string, file File) error {
	f, err := openFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() != file.PackedSize {
		return errors.Join(err, fmt.Errorf("%s: not the %d bytes that the manifest names", path, file.PackedSize))
	}
	h := sha256.New()
	if _, err := io.Copy(h, &interruptible{ctx, f}); err != nil {
		return err
	}
	if sumOf(h) != file.PackedSHA256 {
		return fmt.Errorf("%s: %w", path, errWrongSum)
	}
	return nil
}

// errWrongSum says that a file has the right size and other bytes.
var errWrongSum = errors.New("its sum is not the one of the manifest")

func sumOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// interruptible ends reading with the context.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i *interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(p)
}

// Size is a number of bytes for people.
func Size(n int64) string {
	switch {
	case n >= 10<<20 || n <= -10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
