package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/catchment-dev/edge/test/lab"
)

// qemu is the program that runs a machine, if its Spec names no other.
const qemu = "qemu-system-x86_64"

// Machine is a virtual machine that was started. Its methods may be called by several
// goroutines at once.
type Machine struct {
	// Console is its serial line.
	Console *Console

	spec    Spec
	process *lab.Process
	control *control
	keys    io.WriteCloser
	log     *os.File
}

// Start starts a machine inside a host; it ends with the host at the latest. Its
// console is also in the file console.log of its folder, behind what earlier machines
// of that folder have written.
func Start(ctx context.Context, h *lab.Host, s Spec) (*Machine, error) {
	if err := os.Remove(s.controlSocket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("start machine: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(s.Dir, "console.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}
	m := &Machine{spec: s, log: log, Console: &Console{log: log}}
	cmd := exec.Command(cmp.Or(s.Program, qemu), s.args()...)
	cmd.Stdout, cmd.Stderr = m.Console, m.Console
	if s.TAP != nil {
		cmd.ExtraFiles = []*os.File{s.TAP}
	}
	if m.keys, err = cmd.StdinPipe(); err == nil {
		m.process, err = h.Start(cmd)
	}
	if err != nil {
		log.Close()
		return nil, fmt.Errorf("start machine: %w", err)
	}
	if err := m.connect(ctx); err != nil {
		m.Kill()
		return nil, fmt.Errorf("start machine: %w; it said:\n%s", err, m.Console.Tail(20))
	}
	return m, nil
}

// connect opens the control socket; qemu that has ended ends the wait.
func (m *Machine) connect(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-m.process.Done():
			cancel(errors.New("qemu has ended"))
		case <-stop:
		}
	}()
	if m.control, err = dialControl(ctx, m.spec.controlSocket()); err != nil {
		return err
	}
	go m.control.read()
	return m.control.do(ctx, "qmp_capabilities", nil, nil)
}

// Type sends keys to the serial line.
func (m *Machine) Type(keys string) error {
	if _, err := io.WriteString(m.keys, keys); err != nil {
		return fmt.Errorf("type on the console: %w", err)
	}
	return nil
}

// Kill ends the machine as a power cut does. It may be called again.
func (m *Machine) Kill() {
	m.process.Kill()
	m.clean()
}

func (m *Machine) clean() {
	m.keys.Close()
	if m.control != nil {
		m.control.conn.Close()
	}
	m.log.Close()
}

// Reset is the button: the firmware starts again, without a word to the system.
func (m *Machine) Reset(ctx context.Context) error {
	return m.control.do(ctx, "system_reset", nil, nil)
}

// Resets counts how often the firmware has started again, by the button or because the
// system asked for it.
func (m *Machine) Resets() int { return m.control.seen("RESET") }

// Off is closed when the machine has switched itself off, or was killed.
func (m *Machine) Off() <-chan struct{} { return m.process.Done() }

// AwaitOff waits until the machine has switched itself off.
func (m *Machine) AwaitOff(ctx context.Context) error {
	select {
	case <-m.Off():
		m.clean()
		return m.process.Err()
	case <-ctx.Done():
		return fmt.Errorf("wait until the machine is off: %w; its last lines:\n%s", context.Cause(ctx), m.Console.Tail(40))
	}
}
