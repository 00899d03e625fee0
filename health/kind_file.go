package health

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// ahead is how far the time of a file may be in the future, for file systems
// with coarse or foreign clocks.
const ahead = 5 * time.Second

// fileKind is the prober of kind file: the file exists and was changed less
// than p.MaxAge ago (0: at any time). A unix socket must be listened on, too.
type fileKind struct{ patience *patience }

func (k fileKind) Probe(ctx context.Context, p edge.Probe) error {
	said, err := k.patience.call(ctx, "stat "+p.File, func() (any, error) { return os.Stat(p.File) })
	if err != nil {
		return fmt.Errorf("look at %s: %w", p.File, denied(explain(ctx, err, p.Timeout)))
	}
	info := said.(fs.FileInfo)
	if info.Mode().Type() == fs.ModeSocket {
		if err := probeSocket(ctx, p); err != nil {
			return err
		}
	}
	return judgeAge(p, info.ModTime(), time.Now())
}

// judgeAge compares the time of a file with what p allows.
func judgeAge(p edge.Probe, changed, now time.Time) error {
	switch age := now.Sub(changed); {
	case p.MaxAge <= 0:
		return nil
	case age < -ahead:
		// One of two clocks is wrong, and the age is anything.
		return fmt.Errorf("%w: %s was changed in the future", edge.ErrUnknown, p.File)
	case age > p.MaxAge:
		return fmt.Errorf("%s has not been changed since %s, at most %s ago is wanted", p.File, changed.UTC().Format(time.RFC3339), p.MaxAge)
	}
	return nil
}

// probeSocket is the prober of kind socket: a connection to the unix socket
// p.File opens, of whichever type the socket is. Nothing is sent.
func probeSocket(ctx context.Context, p edge.Probe) error {
	if len(p.File) > maxSocketPath {
		return fmt.Errorf("%w: the path %s is longer than %d bytes", edge.ErrUnknown, p.File, maxSocketPath)
	}
	var err error
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM} {
		if err = connectUnix(ctx, p.File, kind); !errors.Is(err, unix.EPROTOTYPE) {
			break
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EAGAIN) && !errors.Is(ctx.Err(), context.Canceled):
		// Of a unix socket, this is about who listens: it does not accept.
		return fmt.Errorf("connect to %s: its queue of connections is full", p.File)
	}
	return fmt.Errorf("connect to %s: %w", p.File, denied(explain(ctx, err, p.Timeout)))
}

// maxSocketPath is the room that sun_path has for a path, in bytes (unix(7)).
const maxSocketPath = 107

// queuePoll is the pause between two tries to connect to a full queue.
const queuePoll = 20 * time.Millisecond

// connectUnix connects and closes. Connect does not block, and while the queue
// of who listens is full it is tried again until ctx ends.
func connectUnix(ctx context.Context, path string, kind int) error {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	for {
		err := unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(queuePoll):
		}
	}
}
