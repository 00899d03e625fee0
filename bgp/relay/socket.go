package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

const (
	// dialLimit lets a SYN be repeated once. The kernel's own back-off would
	// leave a router that has come back alone for ever longer.
	dialLimit = 2 * time.Second
	// tosCS6 is the class of routing traffic (RFC 4594 section 3.2), as routers
	// send theirs.
	tosCS6 = 0xc0
	// maxTTL is what GTSM sends (RFC 5082).
	maxTTL = 255
	// defaultTTL is that of iBGP, whose routers may be anywhere in the network.
	defaultTTL = 64
)

// ttls are the TTL of what is sent to a peer, and the least that what it sends
// may have; 0: any.
func ttls(c Config) (ttl, least int) {
	switch p := c.Peer; {
	case p.TTLSecurity > 0:
		return maxTTL, maxTTL + 1 - p.TTLSecurity
	case p.Multihop > 0:
		return p.Multihop, 0
	case p.ASN == c.ASN:
		return defaultTTL, 0
	}
	return 1, 0
}

// linkLocal says that a means nothing without an interface (RFC 4007). Not of
// IPv4: the kernel routes its link-local addresses as any others.
func linkLocal(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// device is the interface that the session is bound to; empty: none.
func device(p edge.Peer) string {
	if p.Interface != "" {
		return p.Interface
	}
	return p.Addr.Zone()
}

// zoned is a with the interface of the peer, if it is link-local. Go's own name
// of a zone comes from a table that may be out of date.
func zoned(a netip.Addr, p edge.Peer) netip.Addr {
	if linkLocal(a) {
		return a.WithZone(device(p))
	}
	return a
}

// optionError is a socket option that could not be set.
type optionError struct {
	what string
	err  error
}

func (e *optionError) Error() string { return e.what + ": " + e.err.Error() }
func (e *optionError) Unwrap() error { return e.err }

// secure sets on a socket what must be there before the first packet, and what
// belongs to a session. A key that a connection was accepted with is set once
// more: whatever came before the listener had it is cut off by that.
func secure(fd int, c Config) error {
	ttl, least := ttls(c)
	set := func(what string, err error) error {
		if err == nil {
			return nil
		}
		return &optionError{what, err}
	}
	if c.Key != "" {
		if err := setKey(fd, c.Peer.Addr, c.Key); err != nil {
			return set("install TCP MD5 key", err)
		}
	}
	if dev := device(c.Peer); dev != "" {
		if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, dev); err != nil {
			return set("bind to interface "+dev, err)
		}
	}
	if err := set("set TTL", setTTL(fd, c.Peer.Addr.Is6(), ttl, least)); err != nil {
		return err
	}
	hold := int(c.Peer.Hold / time.Millisecond)
	return set("set user timeout", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, hold))
}

// setTTL sets what is sent and what is at least received, and the class.
func setTTL(fd int, v6 bool, ttl, least int) error {
	level, send, receive, class := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL, unix.IP_TOS
	if v6 {
		level, send, receive, class = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT, unix.IPV6_TCLASS
	}
	return errors.Join(
		unix.SetsockoptInt(fd, level, send, ttl),
		unix.SetsockoptInt(fd, level, receive, least),
		unix.SetsockoptInt(fd, level, class, tosCS6),
	)
}

// setKey installs the TCP MD5 key for an address; an empty one removes it.
func setKey(fd int, addr netip.Addr, key string) error {
	if len(key) > unix.TCP_MD5SIG_MAXKEYLEN {
		return fmt.Errorf("the key is longer than %d bytes", unix.TCP_MD5SIG_MAXKEYLEN)
	}
	sig := unix.TCPMD5Sig{Keylen: uint16(len(key))}
	if addr.Is4() {
		a := addr.As4()
		sig.Addr.Family = unix.AF_INET
		copy(sig.Addr.Data[2:], a[:]) // behind the port of a sockaddr_in
	} else {
		a := addr.As16()
		sig.Addr.Family = unix.AF_INET6
		copy(sig.Addr.Data[6:], a[:]) // behind port and flow of a sockaddr_in6
	}
	copy(sig.Key[:], key)
	err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &sig)
	switch {
	case key == "" && errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOPROTOOPT):
		return errors.New("this kernel has no TCP MD5 (CONFIG_TCP_MD5SIG)")
	case errors.Is(err, unix.ENOMEM):
		return errors.New("no memory for a further key (sysctl net.core.optmem_max)")
	}
	return err
}

// testKeys installs the keys of a peer on sockets of their own, as they will be
// on the real ones.
func testKeys(c Config) error {
	test := func(addr netip.Addr, key string) error {
		if key == "" {
			return nil
		}
		family := unix.AF_INET
		if addr.Is6() {
			family = unix.AF_INET6
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		defer unix.Close(fd)
		return setKey(fd, addr, key)
	}
	if err := test(c.Peer.Addr, c.Key); err != nil {
		return fmt.Errorf("install TCP MD5 key: %w", err)
	}
	if err := test(c.Server.Addr(), c.ServerKey); err != nil {
		return fmt.Errorf("install TCP MD5 key towards the BGP server: %w", err)
	}
	return nil
}

// dialer makes plain TCP sockets on which control has been run: Go would else
// ask for MPTCP where it listens, which knows no MD5, and send keepalives.
func dialer(control func(fd int) error) *net.Dialer {
	d := &net.Dialer{KeepAlive: -1, Control: onSocket(control)}
	d.SetMultipathTCP(false)
	return d
}

func onSocket(control func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = control(int(fd)) }), err)
	}
}

// dialRouter connects to the router of a peer. It is called inside the place
// where the router is.
func dialRouter(ctx context.Context, c Config) (*net.TCPConn, error) {
	d := dialer(func(fd int) error { return secure(fd, c) })
	if a := c.Peer.LocalAddr; a.IsValid() {
		d.LocalAddr = &net.TCPAddr{IP: a.AsSlice()}
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	// The zone is the socket's interface: Go would look the name up in a table of
	// its own.
	conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(c.Peer.Addr.WithZone(""), bgpPort).String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// dialFailure says in an operator's words why dialRouter has failed.
func dialFailure(c Config, err error) string {
	var option *optionError
	if errors.As(err, &option) {
		return option.Error()
	}
	what := cause(err)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		what = fmt.Sprintf("no answer within %s", dialLimit)
		if c.Key != "" {
			what += ", as if the TCP MD5 keys differ"
		}
	}
	if errors.Is(err, unix.EADDRNOTAVAIL) && c.Peer.LocalAddr.IsValid() {
		what = fmt.Sprintf("the local address %s is not on this box", c.Peer.LocalAddr)
	}
	return fmt.Sprintf("connect %s: %s", netip.AddrPortFrom(zoned(c.Peer.Addr, c.Peer), bgpPort), what)
}

// cause is the kernel's word for err, without the addresses that Go puts before
// it.
func cause(err error) string {
	var errno syscall.Errno
	var timeout net.Error
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer"
	}
	return err.Error()
}
