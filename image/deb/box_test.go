package deb_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// box is a Debian of its own: namespaces, and an overlay that takes what the test
// changes. Nothing of it outlives the test.
type box struct {
	pid   int
	lower string // the root below, which stays as it is
	upper string // what has been changed
	pkgs  string // /pkgs of the box
	// runs says that systemd runs in it.
	runs bool
}

// newBox starts a box over the root lower, and waits until it is up. With boot,
// its first process is systemd.
func newBox(t *testing.T, lower string, boot bool) *box {
	t.Helper()
	work := t.TempDir()
	must(t, os.Mkdir(filepath.Join(work, "pkgs"), 0o755))
	first := []string{"sleep", "infinity"}
	if boot {
		first = []string{"/lib/systemd/systemd", "--unit=multi-user.target"}
	}
	script, err := filepath.Abs("testdata/box.sh")
	must(t, err)
	cmd := exec.Command(script, append([]string{lower, work}, first...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	group := newCgroup(t)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		UseCgroupFD: true, CgroupFD: int(group.Fd()),
		Pdeathsig: syscall.SIGKILL,
	}
	done := make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the death signal comes when the starting thread ends
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
		close(done)
	}()
	must(t, <-started)
	t.Cleanup(func() {
		cmd.Process.Kill() // the first process: all others of the box go with it
		<-done
		if t.Failed() {
			t.Logf("the box said:\n%s", out.String())
		}
	})
	b := &box{pid: cmd.Process.Pid, lower: lower, upper: filepath.Join(work, "upper"), pkgs: filepath.Join(work, "pkgs"), runs: boot}
	poll(t, "the box is up", func() error {
		select {
		case <-done:
			t.Fatalf("the box has ended:\n%s", out.String())
		default:
		}
		_, err := b.try("test", "-e", "/run/box-is-up")
		return err
	})
	if boot {
		poll(t, "systemd has started all", func() error {
			out, err := b.try("systemctl", "is-system-running")
			if s := strings.TrimSpace(out); s == "running" || s == "degraded" {
				return nil
			}
			return fmt.Errorf("%s: %w", out, err)
		})
	}
	return b
}

// newCgroup makes a group of its own for a box: two systemds cannot share one.
func newCgroup(t *testing.T) *os.File {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	at := ""
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 5 && strings.Contains(line, " - cgroup2 ") {
			at = f[4]
		}
	}
	if at == "" {
		t.Fatal("no cgroup2 is mounted")
	}
	dir := filepath.Join(at, fmt.Sprintf("edge-deb-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	must(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() {
		poll(t, "the group of the box is gone", func() error {
			os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
			return removeGroups(dir)
		})
	})
	f, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func removeGroups(dir string) error {
	below, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, d := range below {
		if d.IsDir() {
			if err := removeGroups(filepath.Join(dir, d.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// try runs a command in the box and returns what it wrote.
func (b *box) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	enter := []string{"--target", strconv.Itoa(b.pid), "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--root",
		"env", "--chdir=/", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "HOME=/root", "MANWIDTH=100"}
	out, err := exec.CommandContext(ctx, "nsenter", append(enter, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// run is try that has to work.
func (b *box) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := b.try(args...)
	must(t, err)
	return out
}

// sh runs a line of shell in the box.
func (b *box) sh(t *testing.T, line string) string {
	t.Helper()
	return b.run(t, "bash", "-euo", "pipefail", "-c", line)
}

// put writes a file of the box.
func (b *box) put(t *testing.T, path, text string) {
	t.Helper()
	name := filepath.Join(b.pkgs, "put")
	must(t, os.WriteFile(name, []byte(text), 0o600))
	b.run(t, "cp", "/pkgs/put", path)
}

// apt has apt-get install, remove or purge, without a network and without waiting
// for the disk at each file.
func (b *box) apt(t *testing.T, args ...string) string {
	t.Helper()
	return b.run(t, append([]string{"apt-get", "-y", "--no-install-recommends", "--allow-downgrades",
		"-o", "Dpkg::Use-Pty=0", "-o", "Dpkg::Options::=--force-unsafe-io", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=/dev/null"}, args...)...)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// poll waits for a condition.
func poll(t *testing.T, what string, holds func() error) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(errors.Join(errors.New(what+": not within two minutes"), err))
		}
		time.Sleep(50 * time.Millisecond)
	}
}
