package main

import (
	"errors"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/image/slot"
)

// TestGreets: what listens on the port of sshd, and is none.
func TestGreets(t *testing.T) {
	t.Parallel()
	for greeting, want := range map[string]string{"SSH-2.0-x\r\n": "", "HTTP/1.1 400 no\r\n": `sshd does: "HTTP/1.1 400 no\r\n"`, "": "sshd does: EOF"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if c, err := ln.Accept(); err == nil {
				io.WriteString(c, greeting)
				c.Close()
			}
		}()
		err = greets(t.Context(), ln.Addr().(*net.TCPAddr).AddrPort())
		if (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", greeting, err, want)
		}
		ln.Close()
		<-done
	}
}

// spyESP tells of each file that is opened.
type spyESP struct {
	slot.ESP
	opens func(name string) error
}

func (e spyESP) Open(name string) (slot.Volume, error) {
	if err := e.opens(name); err != nil {
		return nil, err
	}
	return e.ESP.Open(name)
}

// TestStagedBeforeTheUKI: as soon as the loader may take the new version the state says
// so. Else, after a power cut in between, nobody would know what was under trial: a
// bad version would not be refused.
func TestStagedBeforeTheUKI(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	opened := 0
	c.between = func(e slot.ESP) slot.ESP {
		return spyESP{e, func(name string) error {
			opened++
			if u := c.upgrade(); u.Stage != slot.Staged || u.Version != "1.2.0" {
				t.Errorf("while %s is written: %+v", name, u)
			}
			return nil
		}}
	}
	from := c.payload("1.2.0")
	c.must("upgrade", "--stage-only", from)
	if opened == 0 {
		t.Fatal("it was not looked")
	}
	// A UKI that cannot be written, nor perhaps be removed: what may be booted is known.
	c = newTrial(t)
	c.between = func(e slot.ESP) slot.ESP {
		return spyESP{e, func(string) error { return errors.New("the disk is ill") }}
	}
	from = c.payload("1.2.0")
	c.refuses("the disk is ill", "upgrade", from)
	if u := c.upgrade(); u.Stage != slot.Staged || c.reboots() != 0 {
		t.Errorf("%+v, %d reboots", u, c.reboots())
	}
	c.between = nil
	c.refuses("1.2.0 is not staged any more: the EFI partition has no UKI of version 1.2.0; give its source again", "upgrade")
	c.must("upgrade", from)
	c.expectESP("1.2.0+3 1.1.0")
	// The state cannot be kept: the next boot must not take what nobody knows of.
	c = newTrial(t)
	from = c.payload("1.2.0")
	c.between = func(e slot.ESP) slot.ESP {
		return listESP{e, func() { // the first step of writing
			c.put(slot.StateDir+"/upgrade.json", []byte(`{"format":9}`))
		}}
	}
	c.refuses("a newer version has written it", "upgrade", from)
	c.expectESP("1.1.0")
}

// listESP tells that the files are listed.
type listESP struct {
	slot.ESP
	lists func()
}

func (e listESP) List() ([]slot.ESPFile, error) {
	e.lists()
	return e.ESP.List()
}

// brokenPipe is the output of a login that has broken.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestLoginBreaks: neither the signals of it nor its pipes end an upgrade half way.
func TestLoginBreaks(t *testing.T) {
	for _, args := range [][]string{{"upgrade"}, {"rollback"}} {
		c := newTrial(t)
		if args[0] == "upgrade" {
			args = append(args, c.payload("1.2.0"))
		} else {
			c.put("/efi/EFI/Linux/edge_1.0.0.efi", program("roothash=x edge.version=1.0.0"))
		}
		t.Cleanup(func() { signal.Reset(syscall.SIGHUP, syscall.SIGPIPE) })
		signal.Reset(syscall.SIGHUP, syscall.SIGPIPE)
		o := &options{env: env{stdout: brokenPipe{}, stderr: brokenPipe{}, now: time.Now, user: "ops"}, output: "text", socket: c.socket, timeout: 5 * time.Second}
		root := &cobra.Command{Use: "edgectl", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(o.upgradeCommandOn(c.box()), o.rollbackCommandOn(c.box()))
		root.SetArgs(args)
		if err := root.ExecuteContext(t.Context()); !errors.Is(err, syscall.EPIPE) || c.reboots() != 1 {
			t.Errorf("%s: %d reboots, %v", args[0], c.reboots(), err)
		}
		if !signal.Ignored(syscall.SIGHUP) || !signal.Ignored(syscall.SIGPIPE) {
			t.Errorf("%s: a login that breaks ends it", args[0])
		}
	}
}

// TestUpgradeWhileJudged: what an operator begins while a boot looks back is not taken for
// what has failed.
func TestUpgradeWhileJudged(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", c.payload("1.2.0"))
	for range 3 {
		c.boot("1.2.0", slot.B)
	}
	c.boot("1.1.0", slot.A)
	next := c.payload("1.3.0")
	c.onExec = func(name string) {
		if name == "journalctl" {
			c.must("upgrade", "--stage-only", next)
		}
	}
	c.must("appliance", "health")
	if u := c.upgrade(); u.Version != "1.3.0" || u.Stage != slot.Staged {
		t.Errorf("%+v", u)
	}
	c.refuses("version 1.2.0 is refused", "upgrade", c.payload("1.2.0"))
}

// TestJudgedAgain: a version that was blessed in this boot is good, whatever the loader
// has said at its start: a unit that is started again must not have the box reboot.
func TestJudgedAgain(t *testing.T) {
	t.Parallel()
	c := newTrial(t)
	c.must("upgrade", c.payload("1.2.0"))
	c.boot("1.2.0", slot.B)
	c.must("appliance", "health")
	c.bless()
	before := c.reboots()
	c.node.down = true
	again := c.judge()
	c.await("a verdict", c.holds(judgedFile, "was good before, so it stays"))
	again.stop()
	<-again.done
	if c.reboots() != before {
		t.Error("it reboots")
	}
}

// TestFullVar: in whichever step something fills /var, what may be booted is known, and
// the same command goes on once there is room.
func TestFullVar(t *testing.T) {
	failed := 0
	for step := 0; step < 12; step++ {
		c := newTrial(t)
		from := c.payload("1.2.0")
		dir := filepath.Join(c.root, slot.StateDir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		inMounts(t, func() {
			if err := unix.Mount("none", dir, "tmpfs", 0, "size=32k"); err != nil {
				t.Error(err)
				return
			}
			full, steps := filepath.Join(dir, "full"), 0
			fill := func() {
				if steps++; steps == step+1 {
					f, err := os.Create(full)
					for err == nil {
						_, err = f.Write(make([]byte, 4096))
					}
					f.Close()
				}
			}
			c.between = func(e slot.ESP) slot.ESP {
				return listESP{spyESP{e, func(string) error { fill(); return nil }}, fill}
			}
			out, err := c.call("upgrade", from)
			u, stateErr := c.box().state().Upgrade()
			switch booted := strings.Contains(c.esp(), "1.2.0"); {
			case c.reboots() == 1 && (err != nil || stateErr != nil || u.Stage != slot.Rebooting):
				t.Errorf("step %d: it reboots, %+v, %v, %v\n%s", step, u, err, stateErr, out)
			case booted && (stateErr != nil || !u.OnTrial()):
				t.Errorf("step %d: it would be booted, %+v, %v, %v\n%s", step, u, err, stateErr, out)
			case c.reboots() == 0 && c.node.drains != nil:
				t.Errorf("step %d: it stays drained: %v\n%s", step, err, out)
			case c.reboots() == 0:
				failed++
			}
			c.between = nil
			os.Remove(full)
			c.must("upgrade", from)
			c.expectESP("1.2.0+3 1.1.0")
		})
	}
	if failed == 0 {
		t.Error("nothing has failed")
	}
}

// inMounts runs f where what it mounts is seen by itself only.
func inMounts(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() { done <- err }() // also after a t.Fatal in f
		runtime.LockOSThread()         // for good: the thread ends with its view of the mounts
		err = unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			f()
		}
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
