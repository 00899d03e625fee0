package health

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// errorOf returns the message of ICMP behind the error of a socket, or that
// error if there is none.
func errorOf(rc syscall.RawConn, err error) error {
	var no syscall.Errno
	if !errors.As(err, &no) {
		return err
	}
	said := error(no)
	_ = rc.Control(func(fd uintptr) {
		control := make([]byte, 512)
		_, n, _, _, err := unix.Recvmsg(int(fd), make([]byte, 64), control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err == nil {
			if text := parseQueued(control[:n]); text != "" {
				said = errors.New(text)
			}
		}
	})
	return said
}

// parseQueued reads a struct sock_extended_err and the address of who sent it
// (ip(7), IP_RECVERR) in the control data of an error queue; "" if it does not
// come from the network.
func parseQueued(control []byte) string {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return ""
	}
	for _, m := range messages {
		v6 := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		v4 := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR
		if !v4 && !v6 || len(m.Data) < 16 {
			continue
		}
		switch m.Data[4] {
		case unix.SO_EE_ORIGIN_ICMP, unix.SO_EE_ORIGIN_ICMP6:
			return unreachable(v6, m.Data[5], m.Data[6]) + who(m.Data[16:])
		}
	}
	return ""
}

// who reads the struct sockaddr of the sender.
func who(b []byte) string {
	if len(b) < 8 {
		return ""
	}
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		return fmt.Sprintf(", says %s", netip.AddrFrom4([4]byte(b[4:8])))
	case unix.AF_INET6:
		if len(b) >= 24 {
			return fmt.Sprintf(", says %s", netip.AddrFrom16([16]byte(b[8:24])))
		}
	}
	return ""
}

// unreachable names a message of ICMP by its type and code (RFC 792, RFC 1812
// section 5.2.7.1, RFC 4443 section 3).
func unreachable(v6 bool, kind, code byte) string {
	names := map[[2]byte]string{
		{3, 0}: "network unreachable", {3, 1}: "host unreachable", {3, 2}: "protocol unreachable",
		{3, 3}: "port unreachable", {3, 4}: "fragmentation needed", {3, 6}: "network unknown", {3, 7}: "host unknown",
		{3, 9}: "network prohibited", {3, 10}: "host prohibited", {3, 13}: "prohibited by a filter",
		{11, 0}: "time to live exceeded",
	}
	if v6 {
		names = map[[2]byte]string{
			{1, 0}: "no route", {1, 1}: "prohibited by a filter", {1, 2}: "beyond the scope of the source",
			{1, 3}: "address unreachable", {1, 4}: "port unreachable", {1, 5}: "source refused by a policy",
			{1, 6}: "route rejects", {2, 0}: "packet too big", {3, 0}: "hop limit exceeded",
		}
	}
	if name, ok := names[[2]byte{kind, code}]; ok {
		return name
	}
	return fmt.Sprintf("icmp type %d code %d", kind, code)
}
