package bgptest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"
)

// Process is a child inside a namespace.
type Process struct {
	Cmd  *exec.Cmd
	Done <-chan struct{} // closed when it has ended; Cmd.ProcessState is set then
	log  string
}

// Start runs a command inside the namespace until Stop or the test's end. Its
// output is added to the file log, the end of which is shown when the test fails.
func (s *Space) Start(t testing.TB, log string, args ...string) *Process {
	t.Helper()
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	Must(t, err)
	defer f.Close()
	done := make(chan struct{})
	p := &Process{Cmd: exec.Command(args[0], args[1:]...), Done: done, log: log}
	p.Cmd.Stdout, p.Cmd.Stderr = f, f
	// The death signal comes when the starting *thread* ends: the goroutine
	// below keeps it until the child is gone.
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(s.NS)
		if err == nil {
			err = p.Cmd.Start()
		}
		started <- err
		if err == nil {
			p.Cmd.Wait()
		}
		close(done)
	}()
	Must(t, <-started)
	t.Cleanup(func() {
		p.Stop(syscall.SIGKILL)
		if t.Failed() {
			out := p.Output()
			t.Logf("%s:\n%s", filepath.Base(p.log), out[max(0, len(out)-8000):])
		}
	})
	return p
}

// Stop sends sig and waits for the end. After the end it does nothing.
func (p *Process) Stop(sig syscall.Signal) {
	p.Cmd.Process.Signal(sig)
	<-p.Done
}

// Output is what it has written so far; empty if the file is gone.
func (p *Process) Output() string {
	b, _ := os.ReadFile(p.log)
	return string(b)
}
