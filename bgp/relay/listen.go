package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// listener is the listening socket of one address family, for all peers.
type listener struct {
	*net.TCPListener
	v6 bool
}

// listen opens the sockets. A kernel without IPv6 gets one only.
func (h *Hub) listen() ([]*listener, error) {
	if h.o.Listen == 0 {
		return nil, nil
	}
	var all []*listener
	for _, v6 := range []bool{false, true} {
		l, err := h.listenFamily(v6)
		if v6 && errors.Is(err, unix.EAFNOSUPPORT) || v6 && errors.Is(err, unix.EADDRNOTAVAIL) {
			h.o.Log.Info("no BGP over IPv6: this kernel has none", "err", err)
			continue
		}
		if err != nil {
			for _, l := range all {
				l.Close()
			}
			return nil, fmt.Errorf("take BGP port: %w", err)
		}
		all = append(all, l)
	}
	return all, nil
}

func (h *Hub) listenFamily(v6 bool) (*listener, error) {
	network, wildcard := "tcp4", "0.0.0.0"
	if v6 {
		network, wildcard = "tcp6", "::"
	}
	lc := net.ListenConfig{KeepAlive: -1, Control: onSocket(func(fd int) error { return setTTL(fd, v6, maxTTL, 0) })}
	lc.SetMultipathTCP(false)
	var l net.Listener
	var err error
	h.inside(func() {
		l, err = lc.Listen(context.Background(), network, net.JoinHostPort(wildcard, strconv.Itoa(h.o.Listen)))
	})
	if err != nil {
		return nil, err
	}
	return &listener{l.(*net.TCPListener), v6}, nil
}

// control runs f on the socket.
func control(conn syscall.Conn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}

func (l *listener) setKey(addr netip.Addr, key string) error {
	return control(l, func(fd int) error { return setKey(fd, addr, key) })
}

// listener returns the socket that addr would connect to; nil: none. h.mu is
// held.
func (h *Hub) listener(addr netip.Addr) *listener {
	for _, l := range h.listeners {
		if addr.IsValid() && l.v6 == addr.Is6() {
			return l
		}
	}
	return nil
}

// tune sets the least TTL that the listening sockets take: only if all peers
// check theirs can a SYN from afar be dropped before it makes a connection. What
// they send has TTL 255 always. With less, a router that checks it would never
// see us refuse a connection, and wait in it for minutes. h.mu is held.
func (h *Hub) tune() {
	for _, l := range h.listeners {
		least, peers := maxTTL, 0
		for _, p := range h.peers {
			if p.addr.Is6() == l.v6 {
				_, m := ttls(p.config())
				least = min(least, m)
				peers++
			}
		}
		if peers == 0 {
			least = 0
		}
		err := control(l, func(fd int) error { return setTTL(fd, l.v6, maxTTL, least) })
		if err != nil && !errors.Is(err, net.ErrClosed) {
			h.o.Log.Error("set TTL of the listening socket", "err", err)
		}
	}
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
			h.dispatch(conn)
		}
	}
}

// dispatch gives conn to the peer whose address it comes from.
func (h *Hub) dispatch(conn *net.TCPConn) {
	from, scope, err := remote(conn)
	if err != nil {
		conn.Close() // reset in the meantime
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.peers {
		if p.addr.WithZone("") != from || scope != 0 && h.index(device(p.config().Peer)) != scope {
			continue
		}
		select {
		case p.accepts <- conn:
		default:
			conn.Close() // more at once than any router makes
		}
		return
	}
	h.strangers++
	conn.SetLinger(0)
	conn.Close()
	h.o.Log.Debug("closed a BGP connection of no peer", "from", from)
}

// remote is where conn comes from, and for a link-local address the index of
// the interface. Go's own name of the zone may be out of date.
func remote(conn *net.TCPConn) (from netip.Addr, scope int, err error) {
	err = control(conn, func(fd int) error {
		sa, err := unix.Getpeername(fd)
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			from = netip.AddrFrom4(sa.Addr)
		case *unix.SockaddrInet6:
			from, scope = netip.AddrFrom16(sa.Addr), int(sa.ZoneId)
		}
		return err
	})
	return from, scope, err
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
