package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tendPause is how often it is looked whether an interface has come or gone: a
// router repeats its SYN after a second.
const tendPause = time.Second

// listener is a listening socket of one address family.
//
// The kernel knows a TCP MD5 key by the address of the other end alone:
// TCP_MD5SIG_FLAG_IFINDEX takes the index of a VRF and of nothing else
// (tcp_v6_parse_md5_keys; EINVAL for any other interface). But a key belongs to
// one socket, and of two that listen on a port the kernel takes the one that is
// bound to the interface of the packet. So a peer that is link-local and has a key
// is listened for by a socket on its link, and two peers with one address can
// have a key each, or one of them none.
type listener struct {
	*net.TCPListener
	v6 bool
	// link is the interface that the socket is bound to; empty: it takes what no
	// such one does.
	link string
}

// listen opens the sockets. A kernel without IPv6 gets one only.
func (h *Hub) listen() ([]*listener, error) {
	if h.o.Listen == 0 {
		return nil, nil
	}
	var all []*listener
	for _, v6 := range []bool{false, true} {
		l, err := h.listenOn(&listener{v6: v6})
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

// listenOn opens the socket of l.
func (h *Hub) listenOn(l *listener) (*listener, error) {
	network, wildcard := "tcp4", "0.0.0.0"
	if l.v6 {
		network, wildcard = "tcp6", "::"
	}
	lc := net.ListenConfig{KeepAlive: -1, Control: onSocket(func(fd int) error {
		if l.link != "" {
			err := errors.Join(
				unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, l.link),
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
			if err != nil {
				return err
			}
		}
		return setTTL(fd, l.v6, maxTTL, 0)
	})}
	lc.SetMultipathTCP(false)
	var made net.Listener
	var err error
	h.inside(func() {
		made, err = lc.Listen(context.Background(), network, net.JoinHostPort(wildcard, strconv.Itoa(h.o.Listen)))
	})
	if err != nil {
		return nil, err
	}
	l.TCPListener = made.(*net.TCPListener)
	return l, nil
}

// listenLink opens a socket on one link, beside the one for all. The kernel allows
// that if both are willing to share the port while the second is bound; only so
// long, for nobody else shall take a share. h.mu is held.
func (h *Hub) listenLink(link string) (*listener, error) {
	i := slices.IndexFunc(h.listeners, func(l *listener) bool { return l.v6 })
	if i < 0 {
		return nil, errors.New("this kernel has no IPv6")
	}
	share := func(l *listener, yes int) error {
		return control(l, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, yes) })
	}
	if err := share(h.listeners[i], 1); err != nil {
		return nil, err
	}
	l, err := h.listenOn(&listener{v6: true, link: link})
	err = errors.Join(err, share(h.listeners[i], 0))
	if l != nil {
		err = errors.Join(err, share(l, 0))
	}
	for _, p := range h.peers {
		if err == nil {
			err = l.learn(p)
		}
	}
	if err != nil {
		if l != nil {
			l.Close()
		}
		return nil, err
	}
	return l, nil
}

// ownLink says whether p is listened for on its link.
func (p *peer) ownLink() bool { return p.key != "" && linkLocal(p.bare) }

// tend sees to it that there is a socket on each link that needs one, and that
// those there are of interfaces that are. serve is called with each new one.
func (h *Hub) tend(serve func(*listener)) {
	troubled := map[*peer]string{}
	h.mu.Lock()
	need := map[string]bool{}
	for _, p := range h.peers {
		if p.ownLink() && h.o.Listen != 0 {
			need[p.link] = true
		}
	}
	for link := range h.troubles {
		if !need[link] {
			delete(h.troubles, link)
		}
	}
	for link, l := range h.links {
		if !need[link] || l.stale() {
			l.Close()
			delete(h.links, link)
		}
	}
	for link := range need {
		if h.links[link] == nil {
			h.openLink(link, serve)
		}
	}
	for _, p := range h.peers {
		if why := h.troubles[p.link]; why != "" && p.ownLink() && p.config().Peer.Passive {
			troubled[p] = why
		}
	}
	h.mu.Unlock()
	for p, why := range troubled {
		p.mu.Lock()
		p.failed(why)
		p.note()
	}
}

// openLink opens the socket of a link, or keeps why not. h.mu is held.
func (h *Hub) openLink(link string, serve func(*listener)) {
	l, err := h.listenLink(link)
	if err != nil {
		why := fmt.Sprintf("listen on interface %s: %s", link, cause(err))
		if h.troubles[link] != why {
			h.o.Log.Warn("no BGP on a link", "reason", why)
		}
		h.troubles[link] = why
		return
	}
	delete(h.troubles, link)
	h.links[link] = l
	h.tune()
	serve(l)
}

// stale says that the interface of the socket is no more, or has another name.
func (l *listener) stale() bool {
	name := ""
	err := control(l, func(fd int) (err error) {
		name, err = unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE)
		return err
	})
	return err != nil || name != l.link
}

// deafen closes all listening sockets.
func (h *Hub) deafen() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.ears() {
		l.Close()
	}
}

// ears are all listening sockets. h.mu is held.
func (h *Hub) ears() []*listener {
	return slices.AppendSeq(slices.Clone(h.listeners), maps.Values(h.links))
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

// keyed says whether l needs the key of p: a link-local peer comes by its link.
func (l *listener) keyed(p *peer) bool {
	return p.key != "" && l.v6 == p.bare.Is6() && (!linkLocal(p.bare) || l.link == p.link)
}

func (l *listener) learn(p *peer) error {
	if !l.keyed(p) {
		return nil
	}
	if err := control(l, func(fd int) error { return setKey(fd, p.bare, p.key) }); err != nil {
		return fmt.Errorf("install TCP MD5 key on the listening socket: %w", err)
	}
	return nil
}

func (l *listener) forget(p *peer) error {
	if !l.keyed(p) {
		return nil
	}
	return control(l, func(fd int) error { return setKey(fd, p.bare, "") })
}

// hears says whether connections of p are taken by l, if all is as it should.
func (l *listener) hears(p *peer) bool {
	switch {
	case l.v6 != p.bare.Is6():
		return false
	case l.link == "":
		return !p.ownLink()
	}
	return p.link == l.link || p.link == ""
}

// tune sets the least TTL that the listening sockets take: only if all peers
// check theirs can a SYN from afar be dropped before it makes a connection. What
// they send has TTL 255 always. With less, a router that checks it would never
// see us refuse a connection, and wait in it for minutes. h.mu is held.
func (h *Hub) tune() {
	for _, l := range h.ears() {
		least, peers := maxTTL, 0
		for _, p := range h.peers {
			if l.hears(p) {
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
