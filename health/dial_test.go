package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// listen returns a listener of this machine's loopback that ends with the test.
func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// closedPort returns an address on which nobody listens.
func closedPort(t *testing.T) netip.AddrPort {
	t.Helper()
	ln := listen(t, "127.0.0.1:0")
	defer ln.Close()
	return netip.MustParseAddrPort(ln.Addr().String())
}

// silentPort returns an address that does not answer: its queue of connections
// is full and nobody accepts, so the kernel drops what comes.
func silentPort(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := errors.Join(
		syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
		syscall.Listen(fd, 0),
	); err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(sa.(*syscall.SockaddrInet4).Port))
	for range 8 { // fills it: a queue of 0 holds one or two
		c, err := net.DialTimeout("tcp", at.String(), time.Second)
		if err != nil {
			return at
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the queue of connections does not fill")
	return at
}

func TestTCP(t *testing.T) {
	t.Parallel()
	v4 := netip.MustParseAddrPort(listen(t, "127.0.0.1:0").Addr().String())
	v6 := netip.MustParseAddrPort(listen(t, "[::1]:0").Addr().String())
	refused := closedPort(t)
	silent := silentPort(t)
	for _, c := range []struct {
		name string
		addr netip.AddrPort
		want string
	}{
		{"open", v4, ""},
		{"open, IPv6", v6, ""},
		{"refused", refused, fmt.Sprintf("connect %s: connection refused", refused)},
		{"an IPv4 address written as IPv6", netip.AddrPortFrom(netip.AddrFrom16(v4.Addr().As16()), v4.Port()), ""},
		{"silent", silent, fmt.Sprintf("connect %s: no answer within 300ms", silent)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := edge.Probe{Kind: edge.ProbeTCP, Addr: c.addr, Timeout: ample}
			if c.addr == silent {
				p.Timeout = 300 * time.Millisecond
			}
			expect(t, once(t, p), c.want)
			expect(t, slowly(t, p), c.want)
		})
	}
}

func TestStoppedIsUnknown(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect(t, probeTCP(ctx, edge.Probe{Addr: silentPort(t)}), "unknown: stopped")
}

// TestCause is the table of what is about the target and what about this box.
func TestCause(t *testing.T) {
	t.Parallel()
	op := func(call string, no syscall.Errno) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError(call, no)}
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{op("connect", syscall.ECONNREFUSED), "connection refused"},
		{op("connect", syscall.EHOSTUNREACH), "no route to host"},
		{op("connect", syscall.ENETUNREACH), "network is unreachable"},
		{op("connect", syscall.ETIMEDOUT), "connection timed out"},
		{op("connect", syscall.EADDRNOTAVAIL), "unknown: cannot assign"},
		{op("connect", syscall.EAGAIN), "unknown: resource temporarily"},
		{op("connect", syscall.ENOBUFS), "unknown: no buffer space"},
		{op("socket", syscall.EMFILE), "unknown: make socket: too many open files"},
		{op("socket", syscall.EAFNOSUPPORT), "unknown: address family not supported"},
		{fmt.Errorf("%w: no such namespace", edge.ErrUnknown), "unknown: no such namespace"},
		{os.ErrDeadlineExceeded, "no answer within 2s"},
		{context.DeadlineExceeded, "no answer within 2s"},
		{errors.New("something else"), "something else"},
	} {
		expect(t, explain(t.Context(), c.err, 2*time.Second), c.want)
	}
	expect(t, explain(t.Context(), os.ErrDeadlineExceeded, 0), "no answer in time")
}
