package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Why a connection is not taken.
const (
	unknownAddress = "unknown-address"
	wrongInterface = "wrong-interface"
	withoutKey     = "without-key"
	tooMany        = "too-many"
)

// Refusals are the connections that were closed at once.
type Refusals struct {
	// ByReason counts them: unknown-address (of no peer), wrong-interface (a
	// peer's address, on another interface than the peer's), without-key (a
	// link-local peer that has a TCP MD5 key, not by the socket that checks it),
	// too-many (more at a time than any router makes). nil if there was none.
	ByReason map[string]uint64
	// Last says of the last one in words where it came from, and why it was
	// refused; LastAt is when.
	Last   string
	LastAt time.Time
}

// Refusals returns what was refused since the Hub was made.
func (h *Hub) Refusals() Refusals {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.refusals
	r.ByReason = maps.Clone(r.ByReason)
	return r
}

// accept hands connections to their peers until the listener is closed.
func (h *Hub) accept(l *listener) {
	for {
		conn, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			// No file descriptors, say. Trying again at once would only spin.
			h.o.Log.Error("accept BGP connection", "err", err)
			time.Sleep(100 * time.Millisecond)
		default:
			h.dispatch(l, conn)
		}
	}
}

// dispatch gives conn to the peer that it comes from, or refuses it.
func (h *Hub) dispatch(l *listener, conn *net.TCPConn) {
	from, err := originOf(l, conn)
	if err != nil {
		conn.Close() // reset in the meantime
		return
	}
	h.mu.Lock()
	p, reason, why := h.match(l, from)
	if reason == "" {
		select {
		case p.accepts <- conn:
			h.mu.Unlock()
			return
		default:
			reason, why = tooMany, "more at a time than any router makes"
		}
	}
	told := h.refuse(reason, fmt.Sprintf("a connection from %s was refused: %s", from.addr, why))
	h.mu.Unlock()
	conn.SetLinger(0)
	conn.Close()
	if p != nil && told != "" {
		p.mu.Lock()
		p.failed(told)
		p.note()
	}
}

// match finds the peer that a connection comes from. With a reason it is not to be
// taken; p is then whose address it has. h.mu is held.
func (h *Hub) match(l *listener, from origin) (p *peer, reason, why string) {
	for _, o := range h.peers {
		if o.bare != from.addr {
			continue
		}
		if o.link != "" && !from.by(h.index(o.link)) {
			if reason == "" {
				p, reason = o, wrongInterface
				why = fmt.Sprintf("it came in by interface %s, and the peer is on %s", h.interfaceName(from.ingress), o.link)
			}
			continue
		}
		if o.ownLink() && l.link != o.link {
			return o, withoutKey, fmt.Sprintf("not by the socket on %s that checks its TCP MD5 key", o.link)
		}
		return o, "", ""
	}
	if reason == "" {
		return nil, unknownAddress, "no peer has this address"
	}
	return p, reason, why
}

// refuse counts a refusal, and returns what to tell the peer: at most one in a
// second, since anybody may cause them. h.mu is held.
func (h *Hub) refuse(reason, text string) string {
	r := &h.refusals
	if r.ByReason == nil {
		r.ByReason = map[string]uint64{}
	}
	r.ByReason[reason]++
	r.Last, r.LastAt = text, h.o.Now()
	h.o.Log.Debug("refused a BGP connection", "reason", reason, "text", text)
	if reason == tooMany || time.Since(h.noted) < time.Second {
		return ""
	}
	h.noted = time.Now()
	return text
}

// origin is where a connection comes from.
type origin struct {
	addr netip.Addr // without a zone
	// ingress is the interface that its first packet came in by, 0 if that is not
	// known; vrf is that of a VRF that the socket belongs to, 0: none.
	ingress, vrf int
}

// by says whether a connection may belong to a peer on an interface. For one in a
// VRF the kernel names the VRF, and not the interface; who is bound to the latter
// is given the connection, and hears nothing on it if it is not his.
func (o origin) by(index int) bool {
	if index == o.ingress || index == o.vrf {
		return index > 0
	}
	return index > 0 && !linkLocal(o.addr) && (o.vrf != 0 || o.ingress == 0)
}

// originOf returns an error if the connection has been reset.
func originOf(l *listener, conn *net.TCPConn) (o origin, err error) {
	err = control(conn, func(fd int) error {
		sa, err := unix.Getpeername(fd)
		if err != nil {
			return err
		}
		if l.link == "" {
			o.vrf, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX)
		}
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			o.addr, o.ingress = netip.AddrFrom4(sa.Addr), ingress4(fd)
		case *unix.SockaddrInet6:
			o.addr = netip.AddrFrom16(sa.Addr)
			if linkLocal(o.addr) {
				o.ingress, o.vrf = int(sa.ZoneId), 0 // bound by its address alone
				break
			}
			// Where the kernel keeps it for a connection that was accepted.
			o.ingress, _ = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF)
		}
		return nil
	})
	return o, err
}

// ingress4 is the interface by which an accepted IPv4 connection came; 0: it is
// not known. ip(7) has IP_PKTINFO for datagrams only, but the kernel keeps it for
// a connection too, of the packet that has made it, and tells it as IP_PKTOPTIONS.
func ingress4(fd int) int {
	if unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1) != nil {
		return 0
	}
	defer unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 0)
	var buf [64]byte
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, unix.IP_PKTOPTIONS,
		uintptr(unsafe.Pointer(&buf)), uintptr(unsafe.Pointer(&size)), 0)
	all, err := unix.ParseSocketControlMessage(buf[:min(int(size), len(buf))])
	if errno != 0 || err != nil {
		return 0
	}
	for _, m := range all {
		if m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}

// index is that of an interface; -1: there is none.
func (h *Hub) index(name string) int {
	index := -1
	h.inside(func() {
		if i, err := net.InterfaceByName(name); err == nil {
			index = i.Index
		}
	})
	return index
}

// interfaceName is the name of an interface, or its number if it has gone.
func (h *Hub) interfaceName(index int) string {
	name := fmt.Sprintf("number %d", index)
	h.inside(func() {
		if i, err := net.InterfaceByIndex(index); err == nil {
			name = i.Name
		}
	})
	return name
}
