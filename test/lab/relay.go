package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// relayQueue is how many packets may be under way in one direction; more are
// dropped. At 1,600 bytes it bounds the memory of a direction to 6.5 MB, and at
// 20 ms allows 200,000 packets/s.
const relayQueue = 4096

// relay moves packets one way between two devices, each a fixed time after it
// was read.
type relay struct {
	from    io.Reader
	to      io.Writer
	queue   chan packet
	delay   atomic.Int64 // nanoseconds
	muted   atomic.Bool
	dropped atomic.Uint64
}

type packet struct {
	due  time.Time
	data []byte
}

func newRelay(from io.Reader, to io.Writer, delay time.Duration) *relay {
	r := &relay{from: from, to: to, queue: make(chan packet, relayQueue)}
	r.delay.Store(int64(delay))
	return r
}

// read takes packets from the device into the queue until ctx ends.
func (r *relay) read(ctx context.Context) error {
	defer close(r.queue)
	buf := make([]byte, 65536)
	for {
		n, err := r.from.Read(buf)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read device: %w", err)
		}
		if r.muted.Load() {
			continue
		}
		p := packet{due: time.Now().Add(time.Duration(r.delay.Load())), data: append([]byte(nil), buf[:n]...)}
		select {
		case r.queue <- p:
		default:
			r.dropped.Add(1)
		}
	}
}

// write sends the packets in the order they were read in, each when it is due.
func (r *relay) write(ctx context.Context) error {
	clock, err := newAlarm()
	if err != nil {
		return err
	}
	defer clock.close()
	stop := context.AfterFunc(ctx, clock.cancel)
	defer stop()
	for p := range r.queue {
		if ctx.Err() != nil {
			return nil
		}
		if err := clock.wait(p.due); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if r.muted.Load() {
			continue
		}
		// A device without a carrier, or set down, refuses: the packet is lost,
		// as on any broken link.
		if _, err := r.to.Write(p.data); err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("write device: %w", err)
		}
	}
	return nil
}

// alarm waits by a timerfd: the runtime's own timers come up to a millisecond
// late when the process is idle.
type alarm struct{ f *os.File }

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make timer: %w", err)
	}
	return &alarm{f: os.NewFile(uintptr(fd), "timer")}, nil
}

// wait returns once the time has come, at once if it has passed.
func (a *alarm) wait(until time.Time) error {
	left := time.Until(until)
	if left <= 0 {
		return nil
	}
	rc, err := a.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("set timer: %w", err)
	}
	var setErr error
	err = rc.Control(func(fd uintptr) {
		setErr = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(left))}, nil)
	})
	if err := errors.Join(err, setErr); err != nil {
		return fmt.Errorf("set timer: %w", err)
	}
	var expirations [8]byte
	if _, err := a.f.Read(expirations[:]); err != nil {
		return fmt.Errorf("wait for timer: %w", err)
	}
	return nil
}

// cancel makes wait, now and from now on, return an error.
func (a *alarm) cancel() { a.f.SetReadDeadline(aLongTimeAgo) }

func (a *alarm) close() { a.f.Close() }
