package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSystem: a system has the network of its box and nothing else that others have;
// when its first process ends, or the lab, nothing of it is left.
func TestSystem(t *testing.T) {
	l := build(t, small())
	box := l.Boxes["a1"]
	start := func() *Process {
		// The second process would outlive the first, were it not for the namespace.
		p, err := l.StartSystem(box, exec.Command("sh", "-c", "mount -t tmpfs tmpfs /mnt && setsid sleep 600 & exec sleep 600"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start()
	for _, kind := range []string{"mnt", "pid", "ipc", "uts", "cgroup"} {
		if namespace(t, p.PID(), kind) == namespace(t, os.Getpid(), kind) {
			t.Errorf("the system has the %s namespace of the machine", kind)
		}
	}
	if got, want := namespace(t, p.PID(), "net"), fmt.Sprintf("net:[%d]", box.inode); got != want {
		t.Errorf("its network is %s, that of its box %s", got, want)
	}
	group := filepath.Join(l.group, "a1")
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID())); err != nil || !strings.Contains(string(b), "0::/"+filepath.Base(l.group)+"/a1\n") {
		t.Errorf("its control groups are %s, %v", b, err)
	}
	two := func() error {
		if b, err := os.ReadFile(filepath.Join(group, "cgroup.procs")); err != nil || len(strings.Fields(string(b))) < 2 {
			return fmt.Errorf("the processes of the group are %q, %w", b, err)
		}
		return nil
	}
	if err := Until(limit(t, patience), "both processes run", two); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	before := p.PID()
	p = start() // what the first has left is no obstacle
	if b, err := os.ReadFile(filepath.Join(group, "cgroup.procs")); err != nil || slices.Contains(strings.Fields(string(b)), fmt.Sprint(before)) {
		t.Errorf("the processes of the group are %q, %v", b, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := errors.Join(gone(l.group), notMounted("catchment-lab")); err != nil {
		t.Error(err)
	}
}

func namespace(t *testing.T, pid int, kind string) string {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// TestRemoveGroupOfNobodyElse: what is not of a lab stays.
func TestRemoveGroupOfNobodyElse(t *testing.T) {
	top, err := groupTop()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, fmt.Sprintf("other-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	if err := removeGroup(dir); err != nil || gone(dir) == nil {
		t.Errorf("a group of somebody else is removed: %v", err)
	}
	if err := removeGroup(filepath.Join(top, dirPrefix+"none")); err != nil {
		t.Errorf("one that is not there: %v", err)
	}
}
