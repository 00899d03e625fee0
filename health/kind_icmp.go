package health

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// The types of an echo (RFC 792, RFC 4443).
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// probeICMP is the prober of kind icmp: one echo, answered by the target with
// what was sent.
func probeICMP(ctx context.Context, p edge.Probe) error {
	target := p.Target.Unmap()
	if !target.IsValid() || target.IsMulticast() || target.IsUnspecified() {
		return fmt.Errorf("%w: %s is not the address of a target", edge.ErrUnknown, p.Target)
	}
	e, err := newEcho(target, p.Source)
	if err != nil {
		return fmt.Errorf("ping %s: %w", target, denied(explain(ctx, err, p.Timeout)))
	}
	defer e.file.Close()
	// It makes a read that is under way return; there is nobody to tell if it
	// fails, and it cannot on an open socket.
	defer context.AfterFunc(ctx, func() { _ = e.file.SetDeadline(time.Unix(1, 0)) })()
	if err := e.ask(); err != nil {
		return fmt.Errorf("ping %s: %w", target, denied(explain(ctx, err, p.Timeout)))
	}
	return nil
}

// echo is the socket of one echo.
type echo struct {
	file  *os.File
	v6    bool
	raw   bool // else the kernel chooses the identifier, and hands on no others
	id    uint16
	seq   uint16
	token []byte
}

// newEcho opens and connects a socket: that of an unprivileged ping (sysctl
// ping_group_range) or else a raw one (CAP_NET_RAW).
func newEcho(target, source netip.Addr) (*echo, error) {
	if source.IsValid() {
		if err := sameFamily(source, target); err != nil {
			return nil, err
		}
	}
	e := &echo{v6: target.Is6(), token: make([]byte, 16)}
	_, _ = rand.Read(e.token) // never fails
	e.id, e.seq = binary.BigEndian.Uint16(e.token), binary.BigEndian.Uint16(e.token[2:])
	fd, err := e.socket()
	if err != nil {
		return nil, err
	}
	if err := e.connect(fd, target, source); err != nil {
		unix.Close(fd)
		return nil, err
	}
	e.file = os.NewFile(uintptr(fd), "icmp")
	return e, nil
}

func (e *echo) socket() (int, error) {
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if e.v6 {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	const flags = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|flags, protocol)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EPROTONOSUPPORT) {
		e.raw = true
		fd, err = unix.Socket(family, unix.SOCK_RAW|flags, protocol)
	}
	if errors.Is(err, unix.EPERM) {
		return -1, fmt.Errorf("%w: neither the sysctl net.ipv4.ping_group_range nor CAP_NET_RAW allows it", edge.ErrUnknown)
	}
	return fd, os.NewSyscallError("socket", err) // nil stays nil
}

func (e *echo) connect(fd int, target, source netip.Addr) error {
	// Errors of the network are wanted in full, with who says so.
	var err error
	switch {
	case e.v6 && e.raw:
		var only unix.ICMPv6Filter
		for i := range only.Data {
			only.Data[i] = ^uint32(0) // 1 blocks
		}
		only.Data[echoReply6>>5] &^= 1 << (echoReply6 & 31)
		err = unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &only)
	case e.raw:
		const icmpFilter = 1 // include/uapi/linux/icmp.h
		err = unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, ^(1 << echoReply4))
	}
	if e.v6 {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
	} else {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1))
	}
	if err != nil {
		return fmt.Errorf("%w: set up socket: %v", edge.ErrUnknown, err)
	}
	if source.IsValid() {
		if err := bind(fd, source); err != nil {
			return err
		}
	}
	to, err := sockaddr(target)
	if err != nil {
		return fmt.Errorf("%w: %w", edge.ErrUnknown, err)
	}
	return unix.Connect(fd, to)
}

// ask sends the echo and waits for its reply, or for an error of the network.
func (e *echo) ask() error {
	rc, err := e.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("%w: %w", edge.ErrUnknown, err)
	}
	if _, err := e.file.Write(e.request()); err != nil {
		return errorOf(rc, err)
	}
	buf := make([]byte, 1500)
	for {
		n, err := e.file.Read(buf)
		if err != nil {
			return errorOf(rc, err)
		}
		if e.answers(buf[:n]) {
			return nil
		}
	}
}

// request is the message; the kernel fills in the checksum where we do not.
func (e *echo) request() []byte {
	b := make([]byte, 8, 8+len(e.token))
	b[0] = echoRequest4
	if e.v6 {
		b[0] = echoRequest6
	}
	binary.BigEndian.PutUint16(b[4:], e.id)
	binary.BigEndian.PutUint16(b[6:], e.seq)
	b = append(b, e.token...)
	if !e.v6 {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return b
}

// answers says whether a packet is the reply to our echo. A raw socket of IPv4
// gets the IP header too, and replies to everybody who pings the same target.
func (e *echo) answers(b []byte) bool {
	if e.raw && !e.v6 {
		if len(b) < 20 || int(b[0]&15)*4 > len(b) {
			return false
		}
		b = b[int(b[0]&15)*4:]
	}
	want := byte(echoReply4)
	if e.v6 {
		want = echoReply6
	}
	return len(b) >= 8 && b[0] == want && b[1] == 0 &&
		(!e.raw || binary.BigEndian.Uint16(b[4:]) == e.id) &&
		binary.BigEndian.Uint16(b[6:]) == e.seq && bytes.Equal(b[8:], e.token)
}

// checksum is that of RFC 1071, over an even number of bytes.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
