package relay

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// patience is for what comes at once, if the box has nothing else to do.
const patience = time.Minute

// far is the far end of link n as a plain socket: a router that does as it is
// told by the test.
type far struct {
	t  testing.TB
	ns *space
	n  int
	l  net.Listener
}

// newFar listens on the BGP port at the far end of link n.
func newFar(t testing.TB, r *rig, n int) *far {
	t.Helper()
	f := &far{t: t, ns: newSpace(t), n: n}
	link(t, r.ns, f.ns, n)
	must(f.t, f.ns.Run(func() (err error) {
		f.l, err = net.Listen("tcp4", peerN(f.n).Addr.String()+":179")
		return err
	}))
	f.t.Cleanup(func() { f.l.Close() })
	return f
}

// keepalive sends KEEPALIVEs until the connection ends.
func (k *talk) keepalive() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(300 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := k.conn.Write(wire.Keepalive()); err != nil {
				return
			}
		}
	}()
	k.t.Cleanup(func() { k.conn.Close(); <-done })
}

// forget closes the connections that nobody has accepted.
func (f *far) forget() {
	for {
		f.l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Millisecond))
		conn, err := f.l.Accept()
		if err != nil {
			return
		}
		conn.Close()
	}
}

// talk is one connection of the far end.
type talk struct {
	t    testing.TB
	conn *net.TCPConn
	r    *wire.Reader
	open wire.Open // what accept has read
}

func newTalk(t testing.TB, conn net.Conn) *talk {
	t.Cleanup(func() { conn.Close() })
	return &talk{t: t, conn: conn.(*net.TCPConn), r: wire.NewReader(conn)}
}

// accept takes the next connection that the relay has not given up, and reads
// its OPEN.
func (f *far) accept() *talk {
	f.t.Helper()
	f.l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	for {
		conn, err := f.l.Accept()
		must(f.t, err)
		k := newTalk(f.t, conn)
		conn.SetReadDeadline(time.Now().Add(patience))
		m, err := k.r.Read()
		if err == nil && m.Type == wire.TypeOpen {
			k.open, err = wire.ParseOpen(m.Raw)
			must(f.t, err)
			return k
		}
	}
}

// dial connects to the relay.
func (f *far) dial() *talk {
	f.t.Helper()
	k, err := f.tryDial()
	must(f.t, err)
	return k
}

func (f *far) tryDial() (*talk, error) {
	var conn net.Conn
	err := f.ns.Run(func() (err error) {
		d := dialer(func(int) error { return nil })
		d.LocalAddr = &net.TCPAddr{IP: peerN(f.n).Addr.AsSlice()}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		conn, err = d.DialContext(ctx, "tcp", (&net.TCPAddr{IP: net.IPv4(10, 0, byte(f.n), 1), Port: 179}).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	return newTalk(f.t, conn), nil
}

func (k *talk) write(messages ...[]byte) {
	k.t.Helper()
	k.conn.SetWriteDeadline(time.Now().Add(patience))
	for _, m := range messages {
		_, err := k.conn.Write(m)
		must(k.t, err)
	}
}

// read returns the next message.
func (k *talk) read() wire.Message {
	k.t.Helper()
	k.conn.SetReadDeadline(time.Now().Add(patience))
	m, err := k.r.Read()
	must(k.t, err)
	return m
}

// next returns the next message of a type, whatever comes before.
func (k *talk) next(want wire.Type) wire.Message {
	k.t.Helper()
	for {
		if m := k.read(); m.Type == want {
			return m
		}
	}
}

// ended waits for the NOTIFICATION, and that the connection is closed behind it.
func (k *talk) ended() wire.Notification {
	k.t.Helper()
	n, err := wire.ParseNotification(k.next(wire.TypeNotification).Raw)
	must(k.t, err)
	if m, err := k.r.Read(); err == nil {
		k.t.Errorf("%s behind a NOTIFICATION", m.Type)
	}
	return n
}

// openOf is the OPEN of router n.
func openOf(n int) wire.Open {
	return wire.Open{
		ASN: 65100 + uint32(n), Hold: 9 * time.Second, ID: peerN(n).Addr, FourOctet: true, RouteRefresh: true,
		Families: []edge.Family{edge.IPv4, edge.IPv6},
	}
}

// up makes the session with an OPEN of its own, after that of the relay.
func (k *talk) up(o wire.Open) {
	k.t.Helper()
	k.write(o.Marshal(), wire.Keepalive())
	k.next(wire.TypeKeepalive)
}

// up accepts a connection and makes the session.
func (f *far) up() *talk {
	f.t.Helper()
	k := f.accept()
	k.up(openOf(f.n))
	return k
}

// raw is a message of any type and body.
func raw(kind byte, body []byte) []byte {
	b := append(slices.Repeat([]byte{0xff}, 16), byte((19+len(body))>>8), byte(19+len(body)), kind)
	return append(b, body...)
}

// announcing is an UPDATE of IPv4 prefixes with a sound path.
func announcing(prefixes ...netip.Prefix) []byte {
	attrs := []byte{0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfe, 0x4d, 0x40, 3, 4, 10, 0, 1, 2}
	body := append([]byte{0, 0, 0, byte(len(attrs))}, attrs...)
	for _, p := range prefixes {
		a := p.Addr().As4()
		body = append(append(body, byte(p.Bits())), a[:(p.Bits()+7)/8]...)
	}
	return raw(2, body)
}

// withdrawing is an UPDATE that withdraws IPv4 prefixes.
func withdrawing(prefixes ...netip.Prefix) []byte {
	var list []byte
	for _, p := range prefixes {
		a := p.Addr().As4()
		list = append(append(list, byte(p.Bits())), a[:(p.Bits()+7)/8]...)
	}
	return raw(2, append(append([]byte{byte(len(list) >> 8), byte(len(list))}, list...), 0, 0))
}
