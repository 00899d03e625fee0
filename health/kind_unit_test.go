package health

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// TestUnit puts real processes into real control groups, in a mount of the
// kernel's cgroup v2 that only this test's thread sees. The groups have names of
// this test's own, below one of its own, which takes the place of the root.
func TestUnit(t *testing.T) {
	t.Parallel()
	apart(t, unix.CLONE_NEWNS, func() {
		top := t.TempDir()
		if err := unix.Mount("cgroup2", top, "cgroup2", 0, ""); err != nil {
			t.Errorf("mount cgroup2: %v", err)
			return
		}
		defer unix.Unmount(top, unix.MNT_DETACH)
		root := must(os.MkdirTemp(top, "health-test-"))
		defer removeGroups(t, root)
		k := unitKind{root: root}
		is := func(unit, want string) {
			t.Helper()
			expect(t, tryOf(t, k, edge.Probe{Kind: edge.ProbeUnit, Unit: unit}), want)
		}
		is("app", "unknown: has no system.slice: is systemd running?")
		for _, dir := range []string{
			"system.slice/app.service", "system.slice/system-tpl.slice/tpl@1.service", "edge.slice/edge-deep.slice/deep.service",
			"system.slice/nested.service/inner", "system.slice/_memory.service", "user.slice/a.service",
		} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Error(err)
			}
		}
		is("app", "unit app.service has no live process")
		is("gone.service", "unit gone.service is not running")
		for unit, dir := range map[string]string{
			"app": "system.slice/app.service", "app.service": "system.slice/app.service", "tpl@1": "system.slice/system-tpl.slice/tpl@1.service",
			"deep": "edge.slice/edge-deep.slice/deep.service", "nested": "system.slice/nested.service/inner", "memory": "system.slice/_memory.service", "a": "user.slice/a.service",
		} {
			is(unit, "has no live process")
			stop := inGroup(t, filepath.Join(root, dir))
			is(unit, "")
			stop()
			eventually(t, unit+" is down", func() bool { return tryOf(t, k, edge.Probe{Unit: unit}) != nil })
			is(unit, "has no live process")
		}
		stop := inGroup(t, filepath.Join(root, "system.slice/app.service"))
		freeze := filepath.Join(root, "system.slice/app.service/cgroup.freeze")
		if err := os.WriteFile(freeze, []byte("1"), 0); err != nil {
			t.Error(err)
		}
		eventually(t, "app is frozen", func() bool { return tryOf(t, k, edge.Probe{Unit: "app"}) != nil })
		is("app", "unit app.service is frozen")
		if err := os.WriteFile(freeze, []byte("0"), 0); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// inGroup starts a process in a control group; the function ends it.
func inGroup(t *testing.T, dir string) (stop func()) {
	t.Helper()
	fd := must(unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0))
	defer unix.Close(fd)
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	if err := cmd.Start(); err != nil {
		t.Errorf("start in %s: %v", dir, err)
		return func() {}
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// removeGroups removes a tree of control groups, the deepest first.
func removeGroups(t *testing.T, root string) {
	t.Helper()
	entries, err := os.ReadDir(root)
	for _, entry := range entries {
		if entry.IsDir() {
			removeGroups(t, filepath.Join(root, entry.Name()))
		}
	}
	if err != nil {
		t.Error(err)
	}
	eventually(t, root+" is empty", func() bool { return unix.Rmdir(root) == nil })
}

// TestUnitTree is about trees that no kernel would make.
func TestUnitTree(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	is := func(unit, want string) {
		t.Helper()
		expect(t, tryOf(t, unitKind{root: root}, edge.Probe{Unit: unit}), want)
	}
	is("app", "unknown: cgroup v2 is not mounted at")
	write("unified/cgroup.procs", "") // a hybrid
	is("app", "unknown: unified has no system.slice")
	write("unified/system.slice/app.service/cgroup.events", "populated 1\nfrozen 0\n")
	is("app", "")
	write("unified/system.slice/app.service/cgroup.events", "what 1\n")
	is("app", "unknown: does not say whether it is populated")
	for _, unit := range []string{"", "../x", "a/b", ".", "..", "a\x00b"} {
		is(unit, "unknown: is not the name of a unit")
	}
	write("unified/a"+strings.Repeat(".slice/a", maxDepth)+".slice/deep.service/cgroup.events", "populated 1\n")
	is("deep", "unknown: there are too many slices")
}

func FuzzEvents(f *testing.F) {
	for _, s := range []string{"populated 1\nfrozen 0\n", "populated 0", "populated 2\n", "", "frozen 1\npopulated 1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := parseEvents(b); err == nil && e.populated && !strings.Contains(string(b), "populated 1") {
			t.Errorf("%q is populated", b)
		}
	})
}
