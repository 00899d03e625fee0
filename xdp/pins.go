package xdp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// schema names the layout of maps.h: it is the directory of the pins. Change it
// with the layout, or a new binary would misread the old maps. Those of
// oldSchema are migrated.
const (
	schema    = "v2"
	oldSchema = "v1"
)

const (
	maxFlows         = 1 << 24 // 2 GiB
	defaultHalfFlows = 1 << 16
	lockWait         = 10 * time.Second
	lockPoll         = 20 * time.Millisecond
)

// Files in the directory of the pins; maps are pinned under their own names.
const (
	progPrefix = "prog_" // and the program's tag
	nextPin    = "next"
	linkPrefix = "link_"
)

func pinDir(dir string) string { return filepath.Join(dir, schema) }

// buildDir is where a new data plane is pinned before it is renamed: a crash
// half-way leaves nothing that looks whole.
func buildDir(dir string) string { return filepath.Join(dir, buildName) }

const buildName = "new"

// linkPin names the pin of an interface's link. A bpffs refuses dots.
func linkPin(ifname string) string {
	var b strings.Builder
	b.WriteString(linkPrefix)
	for _, c := range []byte(ifname) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return b.String()
}

// makeDir makes dir if it is missing, after checking that it will be on a
// bpffs: on any other file system pinning fails only much later.
func makeDir(dir string) error {
	base := filepath.Clean(dir)
	for {
		_, err := os.Stat(base)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || base == filepath.Dir(base) {
			return fmt.Errorf("look at directory of the pins: %w", err)
		}
		base = filepath.Dir(base)
	}
	if err := onBPFFS(base); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of the pins: %w", err)
	}
	return nil
}

func onBPFFS(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("look at file system of %s: %w", dir, err)
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s is not on a bpffs: mount one there (mount -t bpf bpf %s)", dir, dir)
	}
	return nil
}

// lockDir takes the lock of dir, so that only one process writes the maps. The
// lock ends with the file, thus with the process at the latest.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	for {
		f, err := os.Open(dir)
		if err != nil {
			return nil, fmt.Errorf("open directory of the pins: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && sameFile(f, dir) {
			return f, nil
		}
		f.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s: another process has it open: %w", dir, ctx.Err())
		case <-time.After(lockPoll):
		}
	}
}

// sameFile says whether f is still what dir names: who held the lock before may
// have removed it.
func sameFile(f *os.File, dir string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(dir)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// pinnedAs returns the names of the pins in dir that begin so; none if dir is not
// there.
func pinnedAs(dir, prefix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// removePins detaches every pinned link under dir and deletes everything there.
func removePins(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list pins: %w", err)
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, removePinDir(filepath.Join(dir, e.Name())))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil {
		return fmt.Errorf("remove directory of the pins: %w", err)
	}
	return nil
}

func removePinDir(dir string) error {
	names, err := pinnedAs(dir, linkPrefix)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := detachPin(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}

// detachPin detaches a pinned link. Just deleting the pin would leave the
// program attached for as long as anybody holds the link.
func detachPin(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return fmt.Errorf("open pinned link %s: %w", filepath.Base(path), err)
	}
	defer l.Close()
	if err := l.Detach(); err != nil {
		return fmt.Errorf("detach %s: %w", filepath.Base(path), err)
	}
	if err := l.Unpin(); err != nil {
		return fmt.Errorf("unpin %s: %w", filepath.Base(path), err)
	}
	return nil
}
