package health

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// ending is how a command ended.
type ending struct {
	err   error // it did not start, or does not die
	late  bool  // we ended it
	state any   // syscall.WaitStatus
}

// commandRun is one process, the leader of its group, and its end.
type commandRun struct {
	cmd     *exec.Cmd
	out     *os.File
	started chan error
	done    chan any // its wait status

	mu     sync.Mutex
	reaped bool // its number can be somebody else's now
}

func newRun(argv []string, out *os.File) *commandRun {
	cmd := &exec.Cmd{
		Path: argv[0], Args: argv, Dir: "/", Stdout: out, Stderr: out,
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C"},
		// Should this process die, its commands do too.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	return &commandRun{cmd: cmd, out: out, started: make(chan error, 1), done: make(chan any, 1)}
}

// lead starts the process and sees it to its end. It stays on one thread:
// Pdeathsig means the death of the thread that has forked.
func (r *commandRun) lead() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := r.cmd.Start()
	r.out.Close() // the process has its own
	r.started <- err
	if err != nil {
		return
	}
	// First wait without taking the body away: as long as it is there nobody
	// else can have its number, so the rest of the group can be killed by it.
	for {
		err := unix.Waitid(unix.P_PID, r.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	r.kill()
	r.mu.Lock()
	r.reaped = true
	r.mu.Unlock()
	_ = r.cmd.Wait() // says again what the state does
	r.done <- r.cmd.ProcessState.Sys()
}

// kill ends the whole group. Without an error there is nothing to tell, and
// with one (all are dead) neither.
func (r *commandRun) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.reaped {
		_ = unix.Kill(-r.cmd.Process.Pid, unix.SIGKILL)
	}
}

// follow waits for the end and brings it about when ctx ends.
func (r *commandRun) follow(ctx context.Context) ending {
	if err := <-r.started; err != nil {
		return ending{err: fmt.Errorf("%w: start %s: %w", edge.ErrUnknown, r.cmd.Path, bare(err))}
	}
	select {
	case state := <-r.done:
		return ending{state: state}
	case <-ctx.Done():
	}
	r.kill()
	select {
	case state := <-r.done:
		return ending{state: state, late: true}
	case <-time.After(killed):
		return ending{err: fmt.Errorf("%w: %s does not die, the kernel holds it", edge.ErrUnknown, r.cmd.Path)}
	}
}

// tail keeps the last maxOutput bytes that are written to it.
type tail struct{ b []byte }

// Write implements io.Writer; it never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.b = append(t.b, b[max(0, len(b)-maxOutput):]...)
	if over := len(t.b) - maxOutput; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(b), nil
}

// lastLine returns the last line with something in it, cleaned.
func (t *tail) lastLine() string {
	text := strings.TrimRightFunc(string(t.b), func(r rune) bool { return clean(string(r)) == "" })
	return clean(text[strings.LastIndexByte(text, '\n')+1:])
}
