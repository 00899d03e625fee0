package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDaemonIsSupervised(t *testing.T) {
	ctx := limit(t, patience)
	h, err := newHost("alone")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	d, err := startDaemon(daemonSpec{
		host: h, name: "sleep", path: sleep, args: []string{"600"},
		pidFile: filepath.Join(dir, "pid"), log: filepath.Join(dir, "log"), restart: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.close()
		if err := sweep([]uint64{h.inode}); err != nil {
			t.Error(err)
		}
		h.close()
	})
	await := func(what string, holds func() bool) {
		t.Helper()
		err := Until(ctx, what, func() error {
			if !holds() {
				return fmt.Errorf("starts %d, pid %d, exits %v", d.Starts(), d.PID(), d.Exits())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	first := d.PID()
	if err := d.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	await("it is started again", func() bool { return d.Starts() == 2 && d.PID() != 0 && d.PID() != first })
	if e := d.Exits(); len(e) != 1 || e[0].PID != first || e[0].Err == nil {
		t.Errorf("exits %+v, want one by a signal", e)
	}

	d.RestartNever()
	if err := d.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	await("it is down", func() bool { return d.PID() == 0 && len(d.Exits()) == 2 })
	if err := d.Signal(unix.SIGTERM); err == nil {
		t.Error("a daemon that is down takes a signal")
	}
	d.RestartAfter(0)
	await("it is started by the new policy", func() bool { return d.Starts() == 3 && d.PID() != 0 })

	// A successor in the pid file, as after a reload: followed, not doubled.
	next, err := h.Start(exec.Command(sleep, "600"))
	if err != nil {
		t.Fatal(err)
	}
	old := d.PID()
	if err := os.WriteFile(filepath.Join(dir, "pid"), fmt.Appendln(nil, next.PID()), 0o644); err != nil {
		t.Fatal(err)
	}
	if d.PID() != next.PID() {
		t.Errorf("main pid %d, want the pid file's %d", d.PID(), next.PID())
	}
	if err := unix.Kill(old, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await("the old one's end is seen", func() bool { return len(d.Exits()) == 3 })
	if d.Starts() != 3 {
		t.Error("started again although the successor lives")
	}
	if err := d.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	await("it is started when the successor dies", func() bool { return d.Starts() == 4 && len(d.Exits()) == 4 })
}

func TestDaemonThatCannotStart(t *testing.T) {
	h, err := newHost("alone")
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	_, err = startDaemon(daemonSpec{host: h, name: "none", path: "/nonexistent", log: filepath.Join(t.TempDir(), "log")})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
}
