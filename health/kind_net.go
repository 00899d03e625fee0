package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// from returns dial with a source address; one that is not valid leaves the
// choice to the kernel.
func from(source netip.Addr) dialer {
	if !source.IsValid() {
		return dial
	}
	d := net.Dialer{KeepAlive: -1, ControlContext: binder(source)}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, address)
		var op *net.OpError
		if errors.Is(err, edge.ErrUnknown) && errors.As(err, &op) {
			return nil, op.Err // without the address, which the caller names too
		}
		return c, err
	}
}

// binder binds a socket to source before it connects.
func binder(source netip.Addr) func(context.Context, string, string, syscall.RawConn) error {
	return func(_ context.Context, _, address string, c syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%w: read address %q: %w", edge.ErrUnknown, address, err)
		}
		if err := sameFamily(source, to.Addr()); err != nil {
			return err
		}
		var bound error
		if err := c.Control(func(fd uintptr) { bound = bind(int(fd), source) }); err != nil {
			return fmt.Errorf("%w: %w", edge.ErrUnknown, err)
		}
		return bound
	}
}

// sameFamily says what is wrong with a source of the other family.
func sameFamily(source, target netip.Addr) error {
	if source.Unmap().Is4() != target.Unmap().Is4() {
		return fmt.Errorf("%w: source %s is not of the family of %s", edge.ErrUnknown, source, target)
	}
	return nil
}

// bind gives a socket its local address. A port is chosen only when it
// connects: one that is chosen now could not be shared by two targets, and
// thousands of probes of one source would run out of ports.
func bind(fd int, source netip.Addr) error {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) // not for every kind of socket
	to, err := sockaddr(source)
	if err == nil {
		err = unix.Bind(fd, to)
	}
	if err != nil {
		// Whatever the kernel says of it: it is about this box. %v, since
		// cause makes a bare errno of an error that wraps one.
		return fmt.Errorf("%w: bind to source %s: %v", edge.ErrUnknown, source, err)
	}
	return nil
}

// sockaddr returns a with port 0 as the system calls want it.
func sockaddr(a netip.Addr) (unix.Sockaddr, error) {
	if a = a.Unmap(); a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}, nil
	}
	out := &unix.SockaddrInet6{Addr: a.As16()}
	if a.Zone() != "" {
		link, err := net.InterfaceByName(a.Zone())
		if err != nil {
			return nil, fmt.Errorf("find interface %s: %w", a.Zone(), err)
		}
		out.ZoneId = uint32(link.Index)
	}
	return out, nil
}

// bare returns the errno inside err, or err itself if there is none: for a text
// that says already which file or call it is about.
func bare(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}

// denied marks it as unknown that this process may not look into a directory,
// or that this box's packet filter lets no datagram out: neither says anything
// of the target.
func denied(err error) error {
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return ofThisBox(err)
	}
	return err
}

// ofThisBox marks an error as unknown, unless it is already.
func ofThisBox(err error) error {
	if errors.Is(err, edge.ErrUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", edge.ErrUnknown, err)
}

// maxText is how much of a text that came from outside is shown, in bytes.
const maxText = 200

// clean makes a text from outside fit for a log and a terminal: one line, no
// control characters, valid UTF-8, at most maxText bytes.
func clean(text string) string { return cleanTo(text, maxText) }

func cleanTo(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == utf8.RuneError || !unicode.IsPrint(r):
			return -1
		}
		return r
	}, text[:min(len(text), 4*limit)])
	text = strings.TrimSpace(text)
	if len(text) <= limit {
		return text
	}
	cut := limit
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "..."
}
