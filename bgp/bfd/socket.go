package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	portSingle = 3784 // RFC 5881 section 4
	portMulti  = 4784 // RFC 5883 section 5
	// The source port of a session (RFC 5881 section 4).
	sourceFirst, sourceLast = 49152, 65535
	// ttl of what we send: a single-hop peer takes no other.
	ttl = 255
	// tos is CS6, network control.
	tos = 0xc0
	// queue is the receive buffer in bytes: what some thousand packets take, so
	// that a pause of ours loses none.
	queue = 4 << 20
)

// place is where packets are taken: what sessions with an equal one share is a
// socket.
type place struct {
	local    netip.Addr // unspecified, but of the family: any
	index    int        // of the interface; 0: any
	multihop bool
}

func (p place) port() int {
	if p.multihop {
		return portMulti
	}
	return portSingle
}

func (p place) String() string {
	at := netip.AddrPortFrom(p.local, uint16(p.port())).String()
	if p.index != 0 {
		at += fmt.Sprintf(" on interface %d", p.index)
	}
	return at
}

// receiver is a socket that takes the packets of a place.
type receiver struct {
	place
	fd      int
	users   int       // sessions
	emptied time.Time // when the whole queue was read last before judging silence
}

// datagram is what a receiver has read.
type datagram struct {
	from    netip.Addr // without a zone
	index   int        // of the link, if from is link-local
	ttl     int        // -1: the kernel has not said
	payload []byte     // valid until the next read
}

// udp opens a socket of the family of a, bound to an interface if index is
// not 0, with the integer options given as level, name, value.
func udp(a netip.Addr, index int, options ...[3]int) (fd int, err error) {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
		options = append(options, [3]int{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1})
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if index != 0 {
		// By index and not by name: an interface that went and came again is
		// another one, and its socket must be another.
		options = append(options, [3]int{unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("set socket option %d of level %d: %w", o[1], o[0], err)
		}
	}
	return fd, nil
}

// sockaddr is a and port as the kernel takes them; index is for link-local
// addresses.
func sockaddr(a netip.Addr, port, index int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: port}
	}
	s := &unix.SockaddrInet6{Addr: a.As16(), Port: port}
	if a.IsLinkLocalUnicast() {
		s.ZoneId = uint32(index)
	}
	return s
}

// bind binds fd, also to an address that the box does not have (yet): whether
// the address or the daemon comes first shall not matter.
func bind(fd int, a netip.Addr, port, index int) error {
	err := unix.Bind(fd, sockaddr(a, port, index))
	if !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	level, option := unix.IPPROTO_IP, unix.IP_FREEBIND
	if a.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return err
	}
	return unix.Bind(fd, sockaddr(a, port, index))
}

// absent says whether the box does not have the address.
func absent(a netip.Addr, index int) bool {
	fd, err := udp(a, index)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return errors.Is(unix.Bind(fd, sockaddr(a, 0, index)), unix.EADDRNOTAVAIL)
}

// interfaceIndex is that of the namespace of the calling thread.
func interfaceIndex(name string) (int, error) {
	if name == "" {
		return 0, nil
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		return 0, fmt.Errorf("interface %q: %w", name, err)
	}
	fd, err := udp(netip.IPv4Unspecified(), 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req); err != nil {
		return 0, fmt.Errorf("interface %q: %w", name, err)
	}
	return int(req.Uint32()), nil
}

// openReceiver opens the socket of a place. Others of this process may hold
// the same port for other addresses (ours); other daemons may only if the place
// has an address or an interface of its own.
func openReceiver(p place, ours bool) (*receiver, error) {
	level, option := unix.IPPROTO_IP, unix.IP_RECVTTL
	if p.local.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT
	}
	fd, err := udp(p.local, p.index, [3]int{level, option, 1})
	if err != nil {
		return nil, fmt.Errorf("receive at %s: %w", p, err)
	}
	fail := func(err error) (*receiver, error) {
		unix.Close(fd)
		return nil, fmt.Errorf("receive at %s: %w", p, err)
	}
	// Of two sockets for any address on any interface, one would starve in
	// silence: so such a one is bound without sharing. Once it is bound, sockets
	// of single addresses and interfaces may stand beside it: the kernel prefers
	// them.
	shared := ours || !p.local.IsUnspecified() || p.index != 0
	if shared {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = bind(fd, p.local, p.port(), p.index)
	}
	switch {
	case errors.Is(err, unix.EADDRINUSE) && !shared:
		return fail(fmt.Errorf("another BFD daemon of this box has the port: give the session a local address: %w", err))
	case errors.Is(err, unix.EADDRINUSE):
		return fail(fmt.Errorf("another process has the port and does not share it: %w", err))
	case err != nil:
		return fail(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fail(err)
	}
	// FORCE needs CAP_NET_ADMIN; without it the system's limit is what we get.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queue) != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, queue); err != nil {
			return fail(err)
		}
	}
	return &receiver{place: p, fd: fd}, nil
}

// read returns the next datagram, or false if there is none. buf takes the
// payload, oob the control messages.
func (r *receiver) read(buf, oob []byte) (d datagram, ok bool) {
	for {
		n, oobn, _, from, err := unix.Recvmsg(r.fd, buf, oob, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return d, false
		}
		d.payload, d.ttl = buf[:n], hops(oob[:oobn])
		switch a := from.(type) {
		case *unix.SockaddrInet4:
			d.from = netip.AddrFrom4(a.Addr)
		case *unix.SockaddrInet6:
			d.from = netip.AddrFrom16(a.Addr)
			if d.from.IsLinkLocalUnicast() {
				d.index = int(a.ZoneId)
			}
		}
		return d, true
	}
}

// hops is the TTL or hop limit in control messages; -1: none.
func hops(oob []byte) int {
	for len(oob) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return -1
		}
		v4 := h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL
		v6 := h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT
		if (v4 || v6) && len(data) >= 4 {
			return int(binary.NativeEndian.Uint32(data))
		}
		oob = rest
	}
	return -1
}

// openSender opens the socket by which a session sends. Its port is port, or
// one that pick gives if that is 0 or taken; the socket reads nothing.
func openSender(local netip.Addr, index, port int, pick func() int) (fd, bound int, err error) {
	options := [][3]int{
		{unix.IPPROTO_IP, unix.IP_TTL, ttl}, {unix.IPPROTO_IP, unix.IP_TOS, tos}, {unix.SOL_SOCKET, unix.SO_RCVBUF, 0},
	}
	if local.Is6() {
		options[0] = [3]int{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl}
		options[1] = [3]int{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, tos}
	}
	if fd, err = udp(local, index, options...); err != nil {
		return -1, 0, fmt.Errorf("send from %s: %w", local, err)
	}
	for range 1000 {
		if port == 0 {
			port = pick()
		}
		if err = bind(fd, local, port, index); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		port = 0
	}
	if err != nil {
		unix.Close(fd)
		return -1, 0, fmt.Errorf("send from %s: %w", local, err)
	}
	return fd, port, nil
}
