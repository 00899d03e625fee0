package health

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// TestDisk fills a real file system, in a mount that only this test's thread
// sees; the prober's threads reach it through that thread's root.
func TestDisk(t *testing.T) {
	t.Parallel()
	apart(t, unix.CLONE_NEWNS, func() {
		top := t.TempDir()
		if err := unix.Mount("tmpfs", top, "tmpfs", 0, "size=1m,nr_inodes=20"); err != nil {
			t.Errorf("mount: %v", err)
			return
		}
		defer unix.Unmount(top, unix.MNT_DETACH)
		through := fmt.Sprintf("/proc/%d/root%s", unix.Gettid(), top)
		is := func(p edge.Probe, want string) {
			t.Helper()
			p.Kind, p.File = edge.ProbeDisk, through
			expect(t, try(t, p), want)
		}
		is(edge.Probe{MinFreePercent: 90, MinFreeBytes: 900 << 10}, "")
		is(edge.Probe{MinFreeBytes: 3 << 20}, "has 1 MiB free, wanted 3 MiB")
		if err := os.WriteFile(filepath.Join(top, "half"), make([]byte, 700<<10), 0o600); err != nil {
			t.Error(err)
		}
		is(edge.Probe{MinFreePercent: 20, MinFreeBytes: 300 << 10}, "")
		is(edge.Probe{MinFreePercent: 40}, "has 31 % of its bytes free, wanted 40 %")
		is(edge.Probe{MinFreeBytes: 512 << 10}, "has 324 KiB free, wanted 512 KiB")
		for i := range 16 {
			if err := os.WriteFile(filepath.Join(top, fmt.Sprint(i)), nil, 0o600); err != nil {
				t.Error(err)
			}
		}
		is(edge.Probe{MinFreePercent: 20}, "has 10 % of its inodes free, wanted 20 %")
		is(edge.Probe{}, "")
		if err := unix.Mount("", top, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Error(err)
		}
		is(edge.Probe{}, "is mounted read-only")
	})
	expect(t, try(t, edge.Probe{Kind: edge.ProbeDisk, File: "/nowhere"}), "look at the file system of /nowhere: no such file or directory")
}

func TestDiskNumbers(t *testing.T) {
	t.Parallel()
	p := edge.Probe{File: "/x", MinFreePercent: 10, MinFreeBytes: 1 << 30}
	const huge = 1 << 52
	for _, c := range []struct {
		s    unix.Statfs_t
		want string
	}{
		{unix.Statfs_t{Bsize: 4096, Blocks: huge, Bfree: huge, Bavail: huge}, ""}, // and makes inodes as it needs them
		{unix.Statfs_t{Bsize: 4096, Frsize: 1024, Blocks: 4 << 20, Bfree: 4 << 20, Bavail: 900 << 10}, "has 900 MiB free, wanted 1 GiB"},
		{unix.Statfs_t{Bsize: 4096, Blocks: 100 << 20, Bfree: 20 << 20, Bavail: 5 << 20}, "has 5 % of its bytes free"},
		{unix.Statfs_t{Bsize: 4096, Blocks: huge, Bfree: huge, Bavail: huge, Files: 1000, Ffree: 99}, "has 9 % of its inodes free"},
	} {
		expect(t, judgeDisk(p, c.s), c.want)
	}
	for bytes, want := range map[float64]string{0: "0 bytes", 1023: "1023 bytes", 1536: "1.5 KiB", 1<<30 - 1: "1023.9 MiB", 1 << 60: "1 EiB", 1 << 70: "1024 EiB"} {
		if got := sizeText(bytes); got != want {
			t.Errorf("sizeText(%v) = %q, want %q", bytes, got, want)
		}
	}
}
