package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/catchment-dev/edge"
)

const (
	// maxCommands is how many commands run at once at most: each is a process,
	// or many, and a box whose checks take its memory is sick of its checks.
	maxCommands = 16
	// maxOutput is how much of the end of a command's output is kept, in bytes.
	maxOutput = 4 << 10
	// exTempFail is EX_TEMPFAIL of sysexits.h: the command cannot tell.
	exTempFail = 75
	// killed is how long a process may take to die of SIGKILL, and lastWords
	// how long its output to arrive.
	killed, lastWords = 2 * time.Second, 50 * time.Millisecond
)

// commandKind is the prober of kind command. It runs a program without a shell,
// in a process group of its own, with no input and almost no environment; when
// the program ends, or its time, the whole group is killed. A program that
// leaves its group (setsid) is on its own.
type commandKind struct {
	slots chan struct{} // one value for each command that runs
}

func newCommandKind() commandKind { return commandKind{slots: make(chan struct{}, maxCommands)} }

// Probe runs p.Command: exit code 0 is a pass, 75 (EX_TEMPFAIL) unknown, any
// other a fail that shows the last line of output. So is a command that does not
// end in time. One that cannot be started, or that a signal ends, has said
// nothing: unknown.
func (k commandKind) Probe(ctx context.Context, p edge.Probe) error {
	argv := strings.Split(p.Command, "\x00")
	if !strings.HasPrefix(argv[0], "/") {
		return fmt.Errorf("%w: command %.60q is not an absolute path", edge.ErrUnknown, argv[0])
	}
	waited, err := k.take(ctx)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		<-k.slots
		return fmt.Errorf("%w: make pipe: %w", edge.ErrUnknown, bare(err))
	}
	out := &tail{}
	read := make(chan struct{})
	go func() {
		_, _ = io.Copy(out, r) // ends at the end of the group, or when r is closed
		close(read)
	}()
	run := newRun(argv, w)
	go func() {
		defer func() { <-k.slots }() // when the process is gone, which can be after we are
		run.lead()
	}()
	ended := run.follow(ctx)
	// All that the group wrote is there at once. Somebody who has left the
	// group may still hold the other end: that is not waited for.
	select {
	case <-read:
	case <-time.After(lastWords):
	}
	r.Close()
	<-read
	return judgeCommand(ctx, p, ended, waited, out.lastLine())
}

// take waits for a slot and returns for how long it has.
func (k commandKind) take(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	select {
	case k.slots <- struct{}{}:
		return time.Since(began), nil
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return 0, fmt.Errorf("%w: stopped", edge.ErrUnknown)
	}
	return 0, fmt.Errorf("%w: %d other commands are running", edge.ErrUnknown, maxCommands)
}

// judgeCommand turns the end of a command into the result of a probe.
func judgeCommand(ctx context.Context, p edge.Probe, e ending, waited time.Duration, line string) error {
	if line != "" {
		line = ": " + line
	}
	status, _ := e.state.(syscall.WaitStatus)
	switch {
	case e.err != nil:
		return e.err
	case e.late && errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%w: stopped", edge.ErrUnknown)
	case e.late && waited > p.Timeout/10:
		return fmt.Errorf("%w: command waited for others, and had not the time to end", edge.ErrUnknown)
	case e.late && p.Timeout > 0:
		return fmt.Errorf("command did not end within %s%s", p.Timeout, line)
	case e.late:
		return fmt.Errorf("command did not end in time%s", line)
	case status.Signaled():
		return fmt.Errorf("%w: signal ended the command: %s%s", edge.ErrUnknown, status.Signal(), line)
	case status.ExitStatus() == exTempFail:
		return fmt.Errorf("%w: command ended with code %d%s", edge.ErrUnknown, exTempFail, line)
	case status.ExitStatus() != 0:
		return fmt.Errorf("command ended with code %d%s", status.ExitStatus(), line)
	}
	return nil
}
