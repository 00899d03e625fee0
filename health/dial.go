package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/catchment-dev/edge"
)

// dialer opens a connection, as net.Dialer.DialContext does.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// probeTCP passes if a TCP connection opens. It proves that the kernel at the
// other end answers for a listening socket, not that anybody accepts.
func probeTCP(ctx context.Context, p edge.Probe) error {
	c, err := connect(ctx, from(p.Source), p, p.Addr.String())
	if err != nil {
		return err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		// Close with a reset: a connection that we close in the normal way
		// keeps its local port for a minute (TIME_WAIT), and thousands of
		// probes of one address would run out of ports.
		_ = tcp.SetLinger(0)
	}
	_ = c.Close() // the connection has opened: nothing can change the result
	return nil
}

// dial opens a connection in this network namespace. Keepalives are off: the
// connection does not live that long.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1}
	return d.DialContext(ctx, network, address)
}

// connect opens a TCP connection for p and puts the deadline of ctx on it.
func connect(ctx context.Context, d dialer, p edge.Probe, address string) (net.Conn, error) {
	c, err := d(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect %s: %w", address, explain(ctx, err, p.Timeout))
	}
	t, ok := ctx.Deadline()
	if !ok {
		return c, nil // the caller wants to wait for ever
	}
	if err := c.SetDeadline(t); err != nil {
		c.Close()
		return nil, fmt.Errorf("%w: set deadline: %w", edge.ErrUnknown, cause(err))
	}
	return c, nil
}

// explain makes the error of a network operation short and the same each time,
// without ports that the kernel chose, and marks what is about this box as
// unknown. limit, for the text, is what the run was given; 0: not known.
func explain(ctx context.Context, err error, limit time.Duration) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("%w: stopped", edge.ErrUnknown)
	}
	err = cause(err)
	var no syscall.Errno
	var timeout net.Error
	switch {
	case errors.Is(err, edge.ErrUnknown), errors.As(err, &no):
		return err // an Errno calls EAGAIN a timeout
	case ctx.Err() == nil && !(errors.As(err, &timeout) && timeout.Timeout()):
		return err // else, at the deadline: whatever it was in the middle of
	case limit > 0:
		return fmt.Errorf("no answer within %s", limit)
	}
	return errors.New("no answer in time")
}

// cause returns the system's error inside err, marked as unknown if it says
// that this box is out of something; other errors as they are.
func cause(err error) error {
	var call *os.SyscallError
	if errors.As(err, &call) && call.Syscall == "socket" {
		return fmt.Errorf("%w: make socket: %w", edge.ErrUnknown, call.Err)
	}
	var no syscall.Errno
	if !errors.As(err, &no) {
		return err
	}
	switch no {
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS,
		syscall.EADDRNOTAVAIL, // no local port, or no local address, is free
		syscall.EAGAIN:        // connect(2) of AF_INET: no entry in the routing cache
		return fmt.Errorf("%w: %w", edge.ErrUnknown, no)
	}
	return no
}
