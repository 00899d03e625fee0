package relay

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// puppet is a GoBGP that does as it is told by the test.
type puppet struct {
	t testing.TB
	l *net.TCPListener
}

// addPuppet adds the peer with a puppet.
func (r *rig) addPuppet(p edge.Peer) *puppet {
	r.t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(r.t, err)
	r.t.Cleanup(func() { l.Close() })
	must(r.t, r.hub.Add(Config{
		Peer: p, ASN: ourAS, RouterID: netip.MustParseAddr("10.0.1.1"), Server: l.Addr().(*net.TCPAddr).AddrPort(),
		Allowed: func(netip.Prefix) bool { return true },
	}))
	return &puppet{r.t, l.(*net.TCPListener)}
}

// accept takes the next connection and says that it is ready.
func (s *puppet) accept() *talk {
	s.t.Helper()
	s.l.SetDeadline(time.Now().Add(patience))
	conn, err := s.l.Accept()
	must(s.t, err)
	k := newTalk(s.t, conn)
	k.write(wire.Open{ASN: ourAS, Hold: 9 * time.Second, ID: netip.MustParseAddr("10.0.1.1"), FourOctet: true}.Marshal())
	return k
}

// TestWhatReachesGoBGP: of what a router sends, only what is said in the
// package's promise.
func TestWhatReachesGoBGP(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	p := peerN(1)
	s := r.addPuppet(p)
	server := s.accept()
	router := f.accept()
	o := openOf(1)
	o.GracefulRestart = &wire.GracefulRestart{Time: time.Minute} // not offered by us
	odd := bytes.Clone(o.Marshal())
	odd = append(odd, 2, 4, 73, 2, 1, 'x') // one more parameter, with a capability that we do not know
	odd[17] += 6
	odd[28] += 6
	router.write(odd, wire.Keepalive())
	refresh := raw(5, []byte{0, 1, 0, 1})
	shutdown := wire.Notify(6, 2, communication("bye"))
	router.write(announcing(net4), wire.EndOfRIB(edge.IPv4), wire.EndOfRIB(edge.IPv4), raw(2, []byte{0, 9, 9, 9}), raw(5, []byte{0, 25, 0, 70}),
		refresh, wire.EndOfRIB(edge.IPv6), withdrawing(net4), shutdown)
	want := [][]byte{
		wire.Open{ASN: 65101, Hold: 9 * time.Second, ID: p.Addr, Families: o.Families, FourOctet: true, RouteRefresh: true}.Marshal(),
		wire.Keepalive(), wire.EndOfRIB(edge.IPv4), refresh, wire.EndOfRIB(edge.IPv6), shutdown,
	}
	for i, w := range want {
		if m := server.read(); !bytes.Equal(m.Raw, w) {
			t.Fatalf("message %d is %x, want %x", i, m.Raw, w)
		}
	}
	if m, err := server.r.Read(); err == nil {
		t.Errorf("behind the NOTIFICATION: %s", m.Type)
	}
}

// TestBadServer: whatever GoBGP does, the session ends with a reason or goes on.
func TestBadServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	p := peerN(1)
	p.ConnectRetry = 50 * time.Millisecond
	s := r.addPuppet(p)
	up := func() (server, router *talk) {
		server = s.accept()
		router = f.up()
		server.next(wire.TypeKeepalive)
		r.established(p)
		return server, router
	}
	// No OPEN but something else, and nothing but a closed connection.
	s.accept().write(announcing(net4))
	s.l.SetDeadline(time.Now().Add(patience))
	conn, err := s.l.Accept()
	must(t, err)
	conn.Close()
	f.forget()

	server, router := up()
	// What cannot be read is not sent, nor what has no place there.
	server.write(raw(2, []byte{0, 50, 0, 0}), raw(5, []byte{0, 1, 0, 1}), openOf(1).Marshal(), wire.Keepalive(), announcing(net4))
	if m := router.read(); m.Type != wire.TypeKeepalive {
		t.Errorf("the router was sent %s", m.Type)
	}
	if m := router.read(); !bytes.Equal(m.Raw, announcing(net4)) {
		t.Errorf("the router was sent %x", m.Raw)
	}
	r.holds(p, net4)
	for _, c := range []struct {
		say       []byte
		code, sub uint8
		why       string
	}{
		{wire.Notify(4, 0, nil), 4, 0, "hold timer expired: nothing from the router for 9s"},
		{wire.Notify(2, 2, nil), 2, 2, "the BGP server of this peer sent OPEN Message Error/Bad Peer AS"},
		{make([]byte, 40), 6, 2, "the BGP server of this peer closed its connection: "},
		{nil, 6, 2, "the BGP server of this peer closed its connection: EOF"},
	} {
		server.write(c.say)
		if c.say == nil {
			server.conn.Close()
		}
		if n := router.ended(); n.Code != c.code || n.Subcode != c.sub {
			t.Errorf("the router was told %s, want %d/%d", n, c.code, c.sub)
		}
		r.until(p, "", c.why)
		router.conn.Close()
		server.conn.Close()
		server, router = up()
	}
}
