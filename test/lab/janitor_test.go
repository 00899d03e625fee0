package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// abandonedName is argument 0 of a child that makes a lab and is then killed.
const abandonedName = "catchment-lab-abandoned"

// abandoned is what the child says of its lab.
type abandoned struct {
	Dir     string
	FDs     []int // of the network namespaces
	Janitor int
	Map     int // id of a BPF map that is pinned in a box
	Group   string
}

// abandonIfAsked is the child.
func abandonIfAsked() {
	if os.Args[0] != abandonedName {
		return
	}
	if err := abandon(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

func abandon() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := New(ctx, Default())
	if err != nil {
		return err
	}
	box := l.Boxes["a1"]
	pin := box.path("bpf/pinned")
	if _, err := box.Run(ctx, "bpftool", "map", "create", pin, "type", "array", "key", "4", "value", "4", "entries", "1", "name", "labtest"); err != nil {
		return err
	}
	out, err := box.Run(ctx, "bpftool", "-j", "map", "show", "pinned", pin)
	if err != nil {
		return err
	}
	var shown struct{ ID int }
	if err := json.Unmarshal(out, &shown); err != nil {
		return err
	}
	// A daemon without a parent-death signal, as after a change of user.
	if _, err := box.Run(ctx, "setsid", "--fork", "sleep", "600"); err != nil {
		return err
	}
	if _, err := l.StartSystem(box, exec.Command("sleep", "600")); err != nil {
		return err
	}
	a := abandoned{Dir: l.dir, Janitor: l.janitor.cmd.Process.Pid, Map: shown.ID, Group: l.group}
	for _, h := range l.hosts {
		a.FDs = append(a.FDs, h.ns)
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

// startAbandoned starts the child, which the caller kills.
func startAbandoned(t *testing.T) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{abandonedName}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd, bufio.NewReader(out)
}

func TestJanitorRemovesAbandonedLab(t *testing.T) {
	ctx := limit(t, patience)
	cmd, out := startAbandoned(t)
	line, err := out.ReadBytes('\n')
	if err != nil {
		t.Fatalf("the child did not make its lab: %v", err)
	}
	var a abandoned
	if err := json.Unmarshal(line, &a); err != nil {
		t.Fatal(err)
	}
	inodes := holdNamespaces(t, cmd.Process.Pid, a.FDs)
	if n := countIn(t, inodes); n < 6 {
		t.Fatalf("%d processes in the lab, want its routers and a sleep", n)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for what, holds := range map[string]func() error{
		"the processes are gone": func() error {
			if n := countIn(t, inodes); n > 0 {
				return fmt.Errorf("%d are left", n)
			}
			return nil
		},
		"the control group is gone": func() error { return gone(a.Group) },
		"the folder is gone":        func() error { return gone(a.Dir) },
		"the janitor is gone":       func() error { return gone(fmt.Sprintf("/proc/%d/ns/net", a.Janitor)) },
		"the BPF map is gone": func() error {
			if exec.CommandContext(ctx, "bpftool", "map", "show", "id", strconv.Itoa(a.Map)).Run() == nil {
				return errors.New("it is there")
			}
			return nil
		},
		"nothing is mounted": func() error { return notMounted(a.Dir) },
	} {
		if err := Until(ctx, what, holds); err != nil {
			t.Error(err)
		}
	}
}

// TestJanitorAfterEarlyDeath kills the child while it is building.
func TestJanitorAfterEarlyDeath(t *testing.T) {
	for _, after := range []time.Duration{50, 100, 200, 400} {
		t.Run((after * time.Millisecond).String(), func(t *testing.T) {
			ctx := limit(t, patience)
			cmd, _ := startAbandoned(t)
			pid := cmd.Process.Pid
			<-time.After(after * time.Millisecond) // not a wait for something: when to kill
			janitors := childrenNamed(pid, janitorName)
			cmd.Process.Kill()
			cmd.Wait()
			for _, j := range janitors {
				err := Until(ctx, "the janitor is gone", func() error { return gone(fmt.Sprintf("/proc/%d/ns/net", j)) })
				if err != nil {
					t.Error(err)
				}
			}
			// Killed between fork and exec, the janitor is there under
			// another name, which the list above does not have: its work
			// is waited for, not only its end.
			if err := Until(ctx, "no folder is left", func() error { return noFolderOf(pid) }); err != nil {
				t.Error(err)
			}
		})
	}
}

// noFolderOf says which folder of a lab of the process is left.
func noFolderOf(pid int) error {
	owned, _ := filepath.Glob(filepath.Join(dirParent, dirPrefix+"*", "pid"))
	for _, f := range owned {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == strconv.Itoa(pid) {
			return fmt.Errorf("%s is left", filepath.Dir(f))
		}
	}
	return nil
}

// holdNamespaces opens the namespaces of another process, so that their inode
// numbers stay theirs.
func holdNamespaces(t *testing.T, pid int, fds []int) []uint64 {
	t.Helper()
	var inodes []uint64
	for _, fd := range fds {
		f, err := os.Open(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		inode, err := inodeOf(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		inodes = append(inodes, inode)
	}
	return inodes
}

func countIn(t *testing.T, inodes []uint64) int {
	t.Helper()
	n := 0
	for _, pid := range pids() {
		if livesIn(pid, inodes) {
			n++
		}
	}
	return n
}

func pids() []int {
	dirs, _ := os.ReadDir("/proc")
	var all []int
	for _, d := range dirs {
		if pid, err := strconv.Atoi(d.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// childrenNamed are the children of a process with this argument 0.
func childrenNamed(parent int, name string) []int {
	var found []int
	for _, pid := range pids() {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if strings.HasPrefix(string(cmdline), name+"\x00") && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", parent)) {
			found = append(found, pid)
		}
	}
	return found
}

func gone(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is there (%v)", path, err)
	}
	return nil
}

func notMounted(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil && strings.Contains(string(b), dir) {
		err = errors.New("mounted on the machine")
	}
	return err
}

// TestNothingOfTheMachineChanges compares its links, routes and mounts, but for
// those that the tests of other packages mount in their own temporary folders
// meanwhile.
func TestNothingOfTheMachineChanges(t *testing.T) {
	look := func() string {
		var all strings.Builder
		for _, f := range []string{"/proc/net/dev", "/proc/net/route", "/proc/net/ipv6_route", "/proc/self/mountinfo"} {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(b)) {
				name, _, _ := strings.Cut(line, ":") // without the counters
				if f != "/proc/net/dev" {
					name = line
				}
				if strings.Contains(line, " "+os.TempDir()+"/Test") || strings.Contains(line, " "+os.TempDir()+"/Fuzz") {
					continue
				}
				all.WriteString(strings.TrimRight(name, "\n") + "\n")
			}
		}
		return all.String()
	}
	before := look()
	l := build(t, small())
	if during := look(); during != before {
		t.Errorf("with a lab the machine has\n%s\nand before\n%s", during, before)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if after := look(); after != before {
		t.Errorf("after a lab the machine has\n%s\nand before\n%s", after, before)
	}
	if err := l.Boxes["a1"].Do(func() error { return nil }); !errors.Is(err, errGone) {
		t.Errorf("a closed host says %v, want %v", err, errGone)
	}
}

// TestProcessOutlivesNothing: a process in a closed lab is gone.
func TestProcessOutlivesNothing(t *testing.T) {
	h, err := newHost("alone")
	if err != nil {
		t.Fatal(err)
	}
	p, err := h.Start(exec.Command("sleep", "600"))
	if err != nil {
		t.Fatal(err)
	}
	h.close() // ends the thread: the parent-death signal
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Error("the process lives on")
	}
	if unix.Kill(p.PID(), 0) == nil {
		t.Error("the pid is still there")
	}
}
