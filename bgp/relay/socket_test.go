package relay

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// addKeyed adds the peer with a TCP MD5 key.
func (r *rig) addKeyed(p edge.Peer, key string) {
	r.t.Helper()
	c, _ := r.configOf(p)
	c.Key = key
	must(r.t, r.hub.Add(c))
}

func TestMD5Dialling(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	newBird(t, r, 1, birdOptions{session: `password "right"; passive;`})
	newBird(t, r, 2, birdOptions{session: `passive;`})
	p, q := peerN(1), peerN(2)
	r.addKeyed(p, "wrong")
	r.addKeyed(q, "right") // the router has none
	r.until(p, "", "connect 10.0.1.2:179: no answer within 2s, as if the TCP MD5 keys differ")
	r.until(q, "", "no answer within 2s")
	r.remove(p)
	r.remove(q)
	r.add(p) // without a key
	r.until(p, "", "connect 10.0.1.2:179: no answer within 2s")
	r.remove(p)
	r.addKeyed(p, "right")
	r.established(p)
}

func TestMD5Listening(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	b := newBird(t, r, 1, birdOptions{session: `password "right";`})
	newBird(t, r, 2, birdOptions{session: `password "right";`})
	newBird(t, r, 3, birdOptions{session: `password "right";`, local: "fd00:3::2", remote: "fd00:3::1"})
	newBird(t, r, 4, birdOptions{})
	none, wrong, good6, plain := peerN(1), peerN(2), peerN(3), peerN(4)
	good6.Addr = netip.MustParseAddr("fd00:3::2")
	for _, p := range []*edge.Peer{&none, &wrong, &good6, &plain} {
		p.Passive = true
	}
	r.add(none)
	r.addKeyed(wrong, "wrong")
	r.addKeyed(good6, "right")
	r.addKeyed(plain, "right") // the router has none
	r.established(good6)
	r.never(none, 3*time.Second)
	r.never(wrong, 0)
	r.never(plain, 0)
	for _, p := range []edge.Peer{none, wrong, plain} {
		if st := r.state(p); st.Session != "active" {
			t.Errorf("%s is %s: a connection was taken", p.ID, st.Session)
		}
	}
	r.remove(none)
	r.addKeyed(none, "right")
	r.established(none)
	// Removed with the peer, and the other keys stay.
	r.remove(none)
	r.remove(good6)
	b.configure(birdOptions{})
	b.birdc("configure")
	r.add(none)
	r.established(none)
	r.addKeyed(good6, "right")
	r.established(good6)
}

func TestKeysRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1790)
	c, _ := r.configOf(peerN(1))
	c.Key = strings.Repeat("x", 81)
	if err := r.hub.Add(c); err == nil || !strings.Contains(err.Error(), "install TCP MD5 key: the key is longer than 80 bytes") {
		t.Errorf("a key that is too long: %v", err)
	}
	c.Key, c.ServerKey = "", strings.Repeat("x", 81)
	if err := r.hub.Add(c); err == nil || !strings.Contains(err.Error(), "towards the BGP server") {
		t.Errorf("a server key that is too long: %v", err)
	}
	if _, ok := r.hub.State(c.Peer.Addr); ok {
		t.Error("a refused peer is there")
	}
	c.ServerKey, c.Key = "between us", "one"
	must(t, r.hub.Add(c))
	if err := r.hub.Add(c); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a peer twice: %v", err)
	}
	// What the kernel says to a key on a socket that cannot have one.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 262) // IPPROTO_MPTCP
	must(t, err)
	defer unix.Close(fd)
	if err := setKey(fd, c.Peer.Addr, "key"); err == nil {
		t.Error("MPTCP takes a key: the sockets need not be plain TCP any more")
	}
	for _, l := range r.hub.listeners {
		must(t, control(l, func(fd int) error {
			if proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || proto != unix.IPPROTO_TCP {
				t.Errorf("the listening socket speaks protocol %d: %v", proto, err)
			}
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			if flags&unix.FD_CLOEXEC == 0 {
				t.Error("children inherit the listening socket")
			}
			return err
		}))
	}
}

// TestServerKey: without the key nobody gets into GoBGP.
func TestServerKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	newBird(t, r, 1, birdOptions{session: "passive;"})
	p := peerN(1)
	c, _ := r.configOf(p)
	c.ServerKey = "another"
	must(t, r.hub.Add(c))
	r.until(p, "idle", "the BGP server of this peer", "takes no session")
}

func TestGTSM(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	newBird(t, r, 1, birdOptions{session: "passive; ttl security on;"})
	newBird(t, r, 2, birdOptions{session: "ttl security on;"})
	newBird(t, r, 3, birdOptions{session: "ttl security on;", local: "fd00:3::2", remote: "fd00:3::1"})
	newBird(t, r, 4, birdOptions{session: "passive;"})
	newBird(t, r, 5, birdOptions{})
	strict := []*bird{
		newBird(t, r, 6, birdOptions{session: "passive; ttl security on;"}),
		newBird(t, r, 7, birdOptions{session: "ttl security on;"}),
	}
	var peers []edge.Peer
	for n := 1; n <= 7; n++ {
		p := peerN(n)
		p.Passive = n == 2 || n == 3 || n == 5 || n == 7
		if n <= 5 {
			p.TTLSecurity = 1
		}
		if n == 3 {
			p.Addr = netip.MustParseAddr("fd00:3::2")
		}
		peers = append(peers, p)
		r.add(p)
	}
	for _, p := range peers[:3] {
		r.established(p)
	}
	r.never(peers[3], 4*time.Second)
	r.never(peers[4], 0)
	// BIRD takes what has come before it could say so, but no session.
	for _, b := range strict {
		if out := b.birdc("show protocols edge"); strings.Contains(out, "Established") {
			t.Error(out)
		}
	}
}

// TestGTSMListener: only if all peers check the TTL does the listening socket.
func TestGTSMListener(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	get := func() (ttl, least int) {
		must(t, control(r.hub.listeners[0], func(fd int) (err error) {
			ttl, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL)
			must(t, err)
			least, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MINTTL)
			return err
		}))
		return ttl, least
	}
	p, q, plain := peerN(1), peerN(2), peerN(3)
	p.TTLSecurity, q.TTLSecurity = 1, 3
	for i, step := range []struct {
		do    func()
		least int
	}{
		{func() {}, 0},
		{func() { r.add(p) }, 255},
		{func() { r.add(q) }, 253},
		{func() { r.add(plain) }, 0},
		{func() { r.remove(plain) }, 253},
		{func() { r.remove(q); r.remove(p) }, 0},
	} {
		step.do()
		if ttl, least := get(); ttl != 255 || least != step.least {
			t.Errorf("step %d: TTL %d, at least %d; want 255, %d", i, ttl, least, step.least)
		}
	}
}

// TestMultihop: the router is behind another one.
func TestMultihop(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	middle, far := newSpace(t), newSpace(t)
	link(t, r.ns, middle, 1)
	link(t, middle, far, 2)
	lead(t, r.ns, "10.0.2.0/24", "10.0.1.2")
	lead(t, far, "10.0.1.0/24", "10.0.2.1")
	must(t, middle.Run(func() error { return writeSysctl("net/ipv4/ip_forward", "1") }))
	newBird(t, r, 2, birdOptions{ns: far, remote: "10.0.1.1", session: "multihop 3; passive;"})
	p := peerN(2)
	r.add(p)
	r.until(p, "", "connect 10.0.2.2:179: ") // TTL 1 does not get there
	r.remove(p)
	p.Multihop = 2
	r.add(p)
	r.established(p)
	r.remove(p)
	// The router sends 3, only its SYN-ACK 255: that makes no session.
	p.Multihop, p.TTLSecurity = 0, 2
	r.add(p)
	r.never(p, 3*time.Second)
}

func TestLocalAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	newBird(t, r, 1, birdOptions{remote: "10.0.1.9", session: "passive;"})
	newBird(t, r, 2, birdOptions{})
	r.ns.Up(t, "v1", "10.0.1.9/24")
	p := peerN(1)
	p.LocalAddr = netip.MustParseAddr("10.0.1.9")
	r.add(p)
	if st := r.established(p); st.Local.Addr() != p.LocalAddr {
		t.Errorf("local end is %s", st.Local)
	}
	q := peerN(2) // its router connects to 10.0.2.1
	q.Passive, q.LocalAddr = true, netip.MustParseAddr("10.0.2.9")
	r.add(q)
	r.until(q, "active", "the router has connected to 10.0.2.1, the local address is 10.0.2.9")
	r.remove(q)
	q.Passive = false
	r.add(q)
	r.until(q, "", "connect 10.0.2.2:179: the local address 10.0.2.9 is not on this box")
}

// TestLinkLocal: two routers with one address, told apart by the interface; one
// is dialled, the other one dials.
func TestLinkLocal(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	p, q := peerN(1), peerN(2)
	p.Addr, p.LocalAddr = netip.MustParseAddr("fe80::2"), netip.MustParseAddr("fe80::1")
	p.Interface = "v1"
	q.Addr, q.Passive = netip.MustParseAddr("fe80::2%v2"), true
	g, h := r.add(p), r.add(q)
	// The interface comes later.
	r.until(p, "", "bind to interface v1: no such device")
	b := newBird(t, r, 1, birdOptions{local: "fe80::2", remote: "fe80::1", session: `interface "v1"; passive;`})
	c := newBird(t, r, 2, birdOptions{local: "fe80::2", remote: "fe80::1", session: `interface "v2";`})
	r.established(p)
	r.established(q)
	if r.state(p).Remote.ASN != 65101 || r.state(q).Remote.ASN != 65102 {
		t.Error("the routers were taken for each other")
	}
	// A next hop of the link goes with our own address, any other is replaced.
	g.announce(plain6)
	h.announce(plain6)
	b.has(net6, "BGP.next_hop: fd00:1::1 fe80::1\n")
	c.has(net6, "BGP.next_hop: :: fe80::1\n")
	if hop := r.holds(p, net6).Held[0].NextHop; hop != netip.MustParseAddr("fd00:1::1") {
		t.Errorf("the next hop on the link is %s", hop)
	}
	if hop := r.holds(q, net6).Held[0].NextHop; hop != netip.MustParseAddr("fe80::1%v2") {
		t.Errorf("the next hop elsewhere is %s", hop)
	}
}

// TestBoundInterface: a peer that is bound to another interface than the one
// that leads to it has no session.
func TestBoundInterface(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	newBird(t, r, 1, birdOptions{session: "passive;"})
	other := newSpace(t)
	link(t, r.ns, other, 2)
	p := peerN(1)
	p.Interface = "v2"
	r.add(p)
	r.until(p, "", "connect 10.0.1.2:179: ")
	r.remove(p)
	p.Interface = "v1"
	r.add(p)
	r.established(p)
}

// TestInternal: iBGP, over IPv6.
func TestInternal(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	b := newBird(t, r, 1, birdOptions{asn: ourAS, local: "fd00:1::2", remote: "fd00:1::1", session: "passive; multihop;"})
	p := peerN(1)
	p.Addr, p.ASN = netip.MustParseAddr("fd00:1::2"), ourAS
	g := r.add(p)
	g.both()
	r.established(p)
	b.has(net4, "BGP.local_pref: 100")
	st := r.holds(p, net4, net6)
	if h := st.Held[0]; h.Prepend != 0 || h.LocalPref != 100 {
		t.Errorf("held: %+v", h)
	}
}

// TestSocketOptions reads back what is on the socket of a session.
func TestSocketOptions(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	newBird(t, r, 1, birdOptions{session: "passive;"})
	p := peerN(1)
	r.add(p)
	r.established(p)
	q := r.hub.peer(p.Addr)
	q.mu.Lock()
	conn := q.sessions[0].conn
	q.mu.Unlock()
	must(t, control(conn, func(fd int) error {
		for _, o := range []struct {
			what             string
			level, opt, want int
		}{
			{"TTL", unix.IPPROTO_IP, unix.IP_TTL, 1}, {"TOS", unix.IPPROTO_IP, unix.IP_TOS, 0xc0},
			{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}, {"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0},
			{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 9000}, {"SO_PROTOCOL", unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_TCP},
		} {
			if got, err := unix.GetsockoptInt(fd, o.level, o.opt); err != nil || got != o.want {
				t.Errorf("%s is %d, want %d (%v)", o.what, got, o.want, err)
			}
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if flags&unix.FD_CLOEXEC == 0 {
			t.Error("children inherit the connection")
		}
		return err
	}))
}
