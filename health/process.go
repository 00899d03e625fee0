package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"github.com/catchment-dev/edge"
)

// maxPID is the highest pid that Linux can be told to give (PID_MAX_LIMIT).
const maxPID = 1 << 22

// maxSmallFile is how much of a pid file or a stat file is read, in bytes.
const maxSmallFile = 4096

// probeProcess passes if the process that the pid file names is alive: it
// exists and is not a zombie. It cannot tell a process from a later one that
// was given the same pid.
func probeProcess(_ context.Context, p edge.Probe) error {
	b, err := readSmall(p.PIDFile)
	if err != nil {
		return fmt.Errorf("read pid file %s: %w", p.PIDFile, cause(err))
	}
	pid, err := parsePID(b)
	if err != nil {
		return fmt.Errorf("read pid file %s: %w", p.PIDFile, err)
	}
	return alive(pid)
}

// alive asks procfs, since a signal 0 also reaches a zombie.
func alive(pid int) error {
	b, err := readSmall(fmt.Sprintf("/proc/%d/stat", pid))
	if gone(err) {
		return fmt.Errorf("process %d does not exist", pid)
	}
	if err != nil {
		return fmt.Errorf("read state of process %d: %w", pid, cause(err))
	}
	state, err := parseState(b)
	switch {
	case err != nil:
		// The kernel wrote something that we do not understand: that is
		// about us, not about the process.
		return fmt.Errorf("%w: read state of process %d: %w", edge.ErrUnknown, pid, err)
	case state == 'Z':
		return fmt.Errorf("process %d is a zombie", pid)
	case state == 'X' || state == 'x':
		return fmt.Errorf("process %d is dead", pid)
	}
	return nil
}

// gone says whether a file of /proc/PID is not there: either it cannot be
// opened, or the process went between open and read (ESRCH).
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// parsePID reads the first line of a pid file: a decimal number and nothing
// else. Some daemons write more lines.
func parsePID(b []byte) (int, error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	text := string(bytes.TrimSpace(line))
	if text == "" {
		return 0, errors.New("it is empty")
	}
	pid, err := strconv.ParseUint(text, 10, 32)
	if err != nil || pid < 1 || pid > maxPID {
		return 0, fmt.Errorf("%.40q is not a pid, 1 to %d", text, maxPID)
	}
	return int(pid), nil
}

// parseState returns the state letter of /proc/PID/stat (proc_pid_stat(5)):
// "pid (comm) S ...". The comm may itself hold parentheses and blanks, so the
// last ")" counts.
func parseState(b []byte) (byte, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 || len(b) < i+3 || b[i+1] != ' ' {
		return 0, fmt.Errorf("no state letter in %.40q", b)
	}
	return b[i+2], nil
}

// readSmall reads the start of a regular file. It does not block on a FIFO that
// somebody put in the place of the file: a worker would hang for ever.
func readSmall(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	return io.ReadAll(io.LimitReader(f, maxSmallFile))
}
