package health

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// sock is a socket of the engine.
type sock struct {
	fd, slot int
	key      poolKey
	flight   *flight // nil: in a pool
	watched  bool    // the epoll knows it
	armed    bool    // for the run that is in the air
}

// poolKey is what sockets must have in common to stand in for each other.
type poolKey struct {
	family int
	source netip.Addr // not valid: the kernel chooses
}

// pool is the sockets of one key that are not in use; the last in is the first
// out, since it is the one in the caches.
type pool struct {
	socks []*sock
	low   int // the fewest that were in it since the last trim
}

// socket takes a socket from its pool, or makes one.
func (g *engine) socket(key poolKey) (*sock, error) {
	if p := g.pools[key]; p != nil && len(p.socks) > 0 {
		last := len(p.socks) - 1
		s := p.socks[last]
		p.socks[last], p.socks = nil, p.socks[:last]
		p.low = min(p.low, last)
		return s, nil
	}
	fd, err := unix.Socket(key.family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: make socket: %w", edge.ErrUnknown, err)
	}
	if key.source.IsValid() {
		if err := bind(fd, key.source); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	// The last packet of the handshake waits for the request and goes with it, or
	// not at all: a tcp probe then ends with a reset before the target's process
	// has even been woken up. The option stays with the socket. What it is called
	// after is its use by servers.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 1)
	s := &sock{fd: fd, key: key, slot: g.slot()}
	g.socks[s.slot] = s
	return s, nil
}

// slot returns a free place in socks.
func (g *engine) slot() int {
	if last := len(g.freeSlots) - 1; last >= 0 {
		n := int(g.freeSlots[last])
		g.freeSlots = g.freeSlots[:last]
		return n
	}
	g.socks = append(g.socks, nil)
	return len(g.socks) - 1
}

// recycle ends a connection with a reset and puts its socket into the pool. A
// socket that is connected again costs half of what a new one does (measured, 6
// µs instead of 12, a handshake over loopback included). A reset, since an
// orderly end would keep the local port for a minute (TIME_WAIT), and thousands
// of probes of one address would run out of ports.
func (g *engine) recycle(s *sock) {
	if disconnect(s.fd) != nil {
		g.discard(s)
		return
	}
	if s.watched && !s.armed {
		// To be known to the epoll costs in each run, even if there is nothing to
		// report. This one did without.
		g.forget(s)
	}
	s.flight, s.armed = nil, false
	p := g.pools[s.key]
	if p == nil {
		p = &pool{}
		g.pools[s.key] = p
	}
	p.socks = append(p.socks, s)
}

// discard closes a socket, with a reset if it is connected.
func (g *engine) discard(s *sock) {
	_ = disconnect(s.fd)
	if s.watched {
		// By hand: while a child of this process is between fork and exec it
		// holds the socket too, and closing ours would leave it registered.
		g.forget(s)
	}
	unix.Close(s.fd)
	g.socks[s.slot] = nil
	g.freeSlots = append(g.freeSlots, int32(s.slot))
}

// forget takes a socket out of the epoll.
func (g *engine) forget(s *sock) {
	_ = unix.EpollCtl(g.epoll, unix.EPOLL_CTL_DEL, s.fd, nil)
	s.watched = false
}

// trim closes the sockets that no pool has needed since the last call: those of
// a burst, and of sources that nobody uses any more.
func (g *engine) trim() {
	for key, p := range g.pools {
		for _, s := range p.socks[:p.low] {
			g.discard(s)
		}
		p.socks = append(p.socks[:0], p.socks[p.low:]...)
		clear(p.socks[len(p.socks):cap(p.socks)])
		p.low = len(p.socks)
		if p.low == 0 {
			delete(g.pools, key)
		}
	}
}
