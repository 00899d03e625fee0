package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mounted mounts a file system that has no place in the tree and ends with the
// test, and returns a path to it.
func mounted(t *testing.T, kind string, options ...string) string {
	t.Helper()
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		mustDo(t, unix.FsconfigSetString(fs, key, value))
	}
	mustDo(t, unix.FsconfigCreate(fs))
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(m) })
	return fmt.Sprintf("/proc/self/fd/%d", m)
}

// hangingFS is a FUSE whose server never answers anything; abort has the kernel
// fail what waits for it.
func hangingFS(t *testing.T) (path string, abort func()) {
	t.Helper()
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	abort = func() { dev.Close() }
	t.Cleanup(abort)
	// If the test itself hangs, it shall fail by what it finds then.
	watchdog := time.AfterFunc(time.Minute, abort)
	t.Cleanup(func() { watchdog.Stop() })
	return mounted(t, "fuse", fmt.Sprintf("fd=%d", dev.Fd()), "rootmode=40000", "user_id=0", "group_id=0"), abort
}

// running counts the goroutines that are in a function.
func running(name string) int {
	b := make([]byte, 1<<20)
	return strings.Count(string(b[:runtime.Stack(b, true)]), name)
}

// TestBlocklistHangs: a file system that does not answer holds neither the start nor an
// operator for long, and one goroutine however often it is asked.
func TestBlocklistHangs(t *testing.T) {
	dir, abort := hangingFS(t)
	b := newBlocker(slog.New(slog.DiscardHandler))
	b.within = 2 * time.Second
	var asked sync.WaitGroup
	began := time.Now()
	for range 4 {
		asked.Go(func() {
			if _, err := b.read(filepath.Join(dir, "list")); err == nil || !strings.Contains(err.Error(), "has not answered within 2s") {
				t.Errorf("answer %v", err)
			}
		})
	}
	asked.Wait()
	if passed := time.Since(began); passed > 3*b.within || running(".readBlocklist(") != 1 {
		t.Errorf("after %s %d files are being read", passed, running(".readBlocklist("))
	}
	abort()
	if l, err := b.read(blockFile(t, "192.0.2.1")); err != nil || len(l.sources) != 1 {
		t.Errorf("%v, %v", l.sources, err)
	}
	if n := running(".readBlocklist("); n != 0 {
		t.Errorf("%d files are being read at the end", n)
	}
}
