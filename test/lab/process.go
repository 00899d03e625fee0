package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// aLongTimeAgo is a deadline that has passed.
var aLongTimeAgo = time.Unix(1, 0)

// Process is a child inside a host. Its methods may be called by several
// goroutines at once.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

// Start starts a command inside the host. It is killed when the lab dies: by
// its parent-death signal, or, if it has changed its user (which clears that
// signal), by the janitor.
func (h *Host) Start(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	// Away from the terminal's group: Ctrl-C is for the one who holds the lab.
	cmd.SysProcAttr.Setpgid = true
	// A grandchild may keep the output open; nobody waits for it.
	cmd.WaitDelay = 200 * time.Millisecond
	if err := h.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", cmd.Path, h.name, err)
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		if errors.Is(p.err, exec.ErrWaitDelay) {
			p.err = nil
		}
		close(p.done)
	}()
	return p, nil
}

// Run runs a command inside the host and returns its standard output. Its
// error contains what it wrote to standard error. When ctx ends the command is
// killed.
func (h *Host) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	p, err := h.Start(cmd)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.Kill()
		return out.Bytes(), fmt.Errorf("run %s on %s: %w", name, h.name, context.Cause(ctx))
	}
	if p.err != nil {
		return out.Bytes(), fmt.Errorf("run %s on %s: %w: %s", name, h.name, p.err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), nil
}

// start starts a daemon whose output goes to w.
func (h *Host) start(w io.Writer, name string, args ...string) (*Process, error) {
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = w, w
	return h.Start(cmd)
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the process ended: nil for exit code 0. Only after Done.
func (p *Process) Err() error { return p.err }

// Signal sends a signal. An ended process is not an error.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill sends SIGKILL and waits until the process is gone.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}
