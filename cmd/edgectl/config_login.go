package main

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/image/setup/confirm"
)

// logins are the ssh connections of this box when a change begins.
type logins struct {
	// at are the addresses of the box by which somebody is logged in.
	at []string
	// watched are the connections that are to live on: that of whoever makes the
	// change, or all where that is not known. others are the rest.
	watched, others []string
}

// The most that is watched, and remembered, of a box with very many connections.
const mostWatched, mostOthers = 8, 256

// sshLogins goes by what sshd says of this login ($SSH_CONNECTION; sudo may have
// dropped it), else by all that have a connection to sshd's port.
func sshLogins(connection string) (l logins) {
	port := uint16(22)
	if f := strings.Fields(connection); len(f) == 4 {
		client, server := addrPort(f[0], f[1]), addrPort(f[2], f[3])
		if client.IsValid() && server.IsValid() {
			port = server.Port()
			l.at, l.watched = []string{server.String()}, []string{tcpConn{local: server, remote: client}.String()}
		}
	}
	known := len(l.watched) > 0
	for _, c := range tcpConns() {
		switch name := c.String(); {
		case c.local.Port() != port || slices.Contains(l.watched, name):
		case known || len(l.watched) == mostWatched:
			if len(l.others) < mostOthers {
				l.others = append(l.others, name)
			}
		default:
			l.watched = append(l.watched, name)
			if at := c.local.String(); !slices.Contains(l.at, at) {
				l.at = append(l.at, at)
			}
		}
	}
	slices.Sort(l.at)
	return l
}

func addrPort(addr, port string) netip.AddrPort {
	a, err := netip.ParseAddr(addr)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, uint16(n))
}

// tcpConn is one established connection.
type tcpConn struct {
	local, remote netip.AddrPort
	// unanswered says that what was sent has been sent again and is not acknowledged.
	unanswered bool
}

// String is how a connection is named in rules: "REMOTE LOCAL".
func (c tcpConn) String() string { return c.remote.String() + " " + c.local.String() }

// connOf takes a name apart.
func connOf(name string) (c tcpConn, ok bool) {
	remote, local, _ := strings.Cut(name, " ")
	var err, localErr error
	c.remote, err = netip.ParseAddrPort(remote)
	c.local, localErr = netip.ParseAddrPort(local)
	return c, err == nil && localErr == nil
}

// same compares without the zone, which the kernel's table does not have.
func (c tcpConn) same(d tcpConn) bool {
	bare := func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
	}
	return bare(c.local) == bare(d.local) && bare(c.remote) == bare(d.remote)
}

// tcpConns reads the kernel's tables of the network namespace of this thread.
func tcpConns() (out []tcpConn) {
	for _, name := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		if text, err := os.ReadFile(name); err == nil {
			out = append(out, parseTCP(string(text))...)
		}
	}
	return out
}

// parseTCP reads the established connections of a table of proc_net_tcp. Fields, from
// 0: 1 local and 2 remote address, 3 state, 5 timer:when, 6 how often the oldest unacknowledged
// data was sent again.
func parseTCP(table string) (out []tcpConn) {
	for text := range strings.Lines(table) {
		f := strings.Fields(text)
		if len(f) < 7 || f[3] != "01" {
			continue
		}
		local, remote := tableAddr(f[1]), tableAddr(f[2])
		if !local.IsValid() || !remote.IsValid() {
			continue
		}
		// Timer 1 is that of sending again; 4 would ask a window that is shut, of a peer
		// that answers.
		again, err := strconv.ParseUint(f[6], 16, 32)
		out = append(out, tcpConn{local, remote, err == nil && again > 0 && strings.HasPrefix(f[5], "01:")})
	}
	return out
}

// tableAddr reads an address and port of the table: 32-bit words of the host's byte
// order in hex.
func tableAddr(text string) netip.AddrPort {
	words, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(words)
	n, portErr := strconv.ParseUint(port, 16, 16)
	if err != nil || portErr != nil || len(b)%4 != 0 {
		return netip.AddrPort{}
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(n))
}

// lookAtLogins fills in what is seen of the logins that are watched. The dial of
// sshAnswers comes from the box itself and sees no gateway that is lost: this does,
// since sshd has always just sent what the change has said.
func lookAtLogins(r confirm.Rules, f *confirm.Facts) {
	if len(r.Logins) == 0 {
		return
	}
	now := tcpConns()
	watched := make([]tcpConn, 0, len(r.Logins))
	for _, name := range r.Logins {
		w, ok := connOf(name)
		if !ok {
			continue
		}
		watched = append(watched, w)
		if i := slices.IndexFunc(now, w.same); i >= 0 {
			f.Open = append(f.Open, name)
			if now[i].unanswered {
				f.Stuck = append(f.Stuck, name)
			}
		}
		if !routed(w) {
			f.NoRoute = append(f.NoRoute, name)
		}
	}
	for _, c := range now {
		ours := slices.ContainsFunc(watched, func(w tcpConn) bool { return w.local.Port() == c.local.Port() })
		if !ours || c.unanswered || slices.ContainsFunc(watched, c.same) || slices.Contains(r.Others, c.String()) {
			continue
		}
		// The box itself comes in too: sshAnswers does.
		f.Fresh = f.Fresh || !ownAddress(c.remote.Addr())
	}
}

// routed says whether the kernel has a route for a connection. Connecting a socket of
// UDP asks it, and sends nothing. An address that is gone from the box is no matter of
// routes.
func routed(c tcpConn) bool {
	local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.local.Addr(), 0))
	s, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(c.remote))
	if err == nil {
		s.Close()
		return true
	}
	errno := cmp.Or(asErrno(err), unix.EADDRNOTAVAIL)
	return !slices.Contains([]unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL}, errno)
}

func asErrno(err error) unix.Errno {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return 0
}
