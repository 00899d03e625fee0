package relay

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// TestGarbage: what a router may say instead of making a session, what it is
// told, and what the operator reads.
func TestGarbage(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	p := peerN(1)
	p.ConnectRetry = 50 * time.Millisecond
	r.add(p)
	with := func(change func(*wire.Open)) [][]byte {
		o := openOf(1)
		change(&o)
		return [][]byte{o.Marshal()}
	}
	hold := openOf(1).Marshal()
	hold[22], hold[23] = 0, 2
	version := openOf(1).Marshal()
	version[19] = 3
	for _, c := range []struct {
		name      string
		say       [][]byte
		code, sub uint8
		why       string
	}{
		{"an unknown type before the OPEN", [][]byte{raw(9, nil)}, 1, 3, "the router sent garbage: there is no message type 9"},
		{"no marker", [][]byte{make([]byte, 19)}, 1, 1, "the marker"},
		{"a huge length", [][]byte{append(slices.Repeat([]byte{0xff}, 18), 2)}, 1, 2, "a length of 65535"},
		{"an HTTP request", [][]byte{[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")}, 1, 1, "the marker"},
		{"a KEEPALIVE first", [][]byte{wire.Keepalive()}, 5, 1, "the router sent KEEPALIVE in state opensent"},
		{"an UPDATE first", [][]byte{announcing(net4)}, 5, 1, "the router sent UPDATE in state opensent"},
		{"another AS", with(func(o *wire.Open) { o.ASN = 65999 }), 2, 2, "the router's OPEN: AS 65999, configured is AS 65101"},
		{"our AS and our identifier", with(func(o *wire.Open) { o.ASN = ourAS }), 2, 2, "configured is AS 65101"},
		{"a hold time of 2", [][]byte{hold}, 2, 6, "a hold time of 2s"},
		{"no hold time", with(func(o *wire.Open) { o.Hold = 0 }), 2, 6, "a hold time of 0, without any keepalives"},
		{"version 3", [][]byte{version}, 2, 1, "version 3"},
		{"an OPEN that is cut off", [][]byte{raw(1, []byte{4, 0, 1, 0, 9, 1, 2, 3, 4, 9, 2})}, 2, 0, "the parameters are said to be 9 bytes"},
		{"an UPDATE instead of KEEPALIVE", append(with(func(*wire.Open) {}), announcing(net4)), 5, 2, "the router sent UPDATE in state openconfirm"},
		{"a second OPEN", append(with(func(*wire.Open) {}), openOf(1).Marshal()), 5, 2, "the router sent OPEN in state openconfirm"},
	} {
		k := f.accept()
		k.write(c.say...)
		if n := k.ended(); n.Code != c.code || n.Subcode != c.sub {
			t.Errorf("%s is answered with %s, want %d/%d", c.name, n, c.code, c.sub)
		}
		r.until(p, "", c.why)
	}
	if st := r.state(p); st.Flaps != 0 || st.Counts.Malformed == 0 {
		t.Errorf("after garbage: %+v", st)
	}
	// After all this it is a router like any other one.
	f.up()
	r.established(p)
}

// TestFamilies: a router that offers none of the configured families.
func TestFamilies(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	p := peerN(1)
	p.Families = []edge.Family{edge.IPv6}
	r.add(p)
	k := f.accept()
	o := openOf(1)
	o.Families = []edge.Family{edge.IPv4}
	k.write(o.Marshal())
	if n := k.ended(); n.Code != 2 || n.Subcode != 7 || string(n.Data) != "\x01\x04\x00\x02\x00\x01" {
		t.Errorf("answered with %s %x", n, n.Data)
	}
	r.until(p, "", "the router's OPEN: offers [ipv4], configured is [ipv6]")
}

// TestWhatEndsASession, and what does not.
func TestWhatEndsASession(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	p := peerN(1)
	p.ConnectRetry = 50 * time.Millisecond
	g := r.add(p)
	malformed := raw(2, []byte{0, 50, 0, 0})
	for i, c := range []struct {
		name      string
		say       []byte
		code, sub uint8
		why       string
	}{
		{"an OPEN", openOf(1).Marshal(), 5, 3, "the router sent OPEN in state established"},
		{"no marker", make([]byte, 30), 1, 1, "the router sent garbage: the marker is not all ones"},
		{"a KEEPALIVE with a body", raw(4, []byte{1}), 1, 2, "garbage: KEEPALIVE of 20 bytes"},
		{"a NOTIFICATION", wire.Notify(6, 2, communication("maintenance")), 0, 0, `the router sent Cease/Administrative Shutdown: "maintenance"`},
		{"a NOTIFICATION without a name", wire.Notify(77, 3, nil), 0, 0, "the router sent error code 77/subcode 3"},
	} {
		k := f.up()
		r.established(p)
		// None of these matters.
		k.write(malformed, announcing(net4), raw(2, []byte{0, 0, 0, 1, 0xff}), raw(5, []byte{0, 9, 0, 1}), raw(5, []byte{0, 1, 1, 1}), wire.Keepalive())
		eventually(t, func() string {
			if got := r.state(p).Counts.UpdatesReceived; got != uint64(3*(i+1)) {
				return fmt.Sprintf("%d updates received", got)
			}
			return ""
		})
		if st := r.state(p); st.Session != "established" || st.Received != 1 || st.Flaps != i {
			t.Fatalf("%s: before: %+v", c.name, st)
		}
		k.write(c.say)
		if c.code != 0 {
			if n := k.ended(); n.Code != c.code || n.Subcode != c.sub {
				t.Errorf("%s is answered with %s, want %d/%d", c.name, n, c.code, c.sub)
			}
		}
		st := r.until(p, "", c.why)
		if st.Flaps != i+1 || st.Received != 0 || st.Held != nil {
			t.Errorf("%s: after: %+v", c.name, st)
		}
		k.conn.Close()
		g.renew()
	}
	// Lost without a word, and in two ways.
	k := f.up()
	r.established(p)
	k.conn.SetLinger(0)
	k.conn.Close()
	r.until(p, "", "connection reset by the router")
	g.renew()
	k = f.up()
	r.established(p)
	k.conn.CloseWrite()
	r.until(p, "", "the router closed the connection")
}

// TestSlow: a router that sends one byte at a time is one that works.
func TestSlow(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	p := peerN(1)
	g := r.add(p)
	g.both()
	k := f.accept()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, b := range slices.Concat(openOf(1).Marshal(), wire.Keepalive(), announcing(net4), wire.Keepalive()) {
		<-tick.C
		k.write([]byte{b})
	}
	r.established(p)
	r.holds(p, net4, net6)
}

// TestFlood: 100,000 prefixes, of which the relay remembers what it must.
func TestFlood(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	p := peerN(1)
	p.DefaultRoute = true
	c, _ := r.configOf(p)
	must(t, r.hub.Add(c))
	k := f.up()
	r.established(p)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const messages, each = 200, 500
	for i := range messages {
		var some []netip.Prefix
		for j := range each {
			some = append(some, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + i), byte(j >> 8), byte(j), 0}), 24))
		}
		k.write(announcing(some...))
	}
	k.write(announcing(netip.MustParsePrefix("0.0.0.0/0")), withdrawing(netip.MustParsePrefix("20.0.0.0/24")))
	eventually(t, func() string {
		if got := r.state(p).Counts.UpdatesReceived; got != messages+2 {
			return fmt.Sprintf("%d updates", got)
		}
		return ""
	})
	st := r.state(p)
	if st.Session != "established" || !st.OverLimit || st.Received != 999 || !st.Default || st.Counts.Malformed != 0 || st.Flaps != 0 {
		t.Errorf("after the flood: %+v", st)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("the flood has left %d bytes", grown)
	}
	r.mu.Lock()
	if r.updates != messages+2 {
		t.Errorf("OnReceive was called %d times", r.updates)
	}
	r.mu.Unlock()
	// The limit and the question for a default route are no part of the session.
	c.Peer.DefaultRoute, c.Peer.ImportLimit = false, 5000
	if !r.hub.Update(c) {
		t.Error("a new limit needs a new session")
	}
	k.write(announcing(netip.MustParsePrefix("9.0.0.0/8")))
	eventually(t, func() string {
		if st := r.state(p); st.Received != 1000 || st.Default {
			return fmt.Sprintf("%+v", st)
		}
		return ""
	})
}

// TestRefreshes: a router that asks for everything again and again gets it once
// a second.
func TestRefreshes(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	p := peerN(1)
	g := r.add(p)
	g.announce(plain4)
	k := f.up()
	r.holds(p, net4)
	began := time.Now()
	for range 500 {
		k.write(raw(5, []byte{0, 1, 0, 1}))
	}
	asked := time.Since(began)
	// The first time is the table of the new session; then one answer at once and
	// one for all the rest a second later; and some, if the questions have been
	// asked or heard slowly.
	most := 4 + int(asked/refreshPause)
	times := 0
	for times < 3 || time.Since(began) < asked+5*refreshPause {
		if m := k.read(); m.Type == wire.TypeUpdate {
			if times++; time.Since(began) < time.Duration(times-2)*refreshPause {
				t.Errorf("time %d came after %s", times, time.Since(began))
			}
		}
		k.write(wire.Keepalive())
	}
	if times > most {
		t.Errorf("the prefix was sent %d times, want %d at most", times, most)
	}
	if st := r.state(p); st.Session != "established" {
		t.Errorf("after refreshes: %+v", st)
	}
}

// TestNeverReads: a router that reads nothing costs its own session after the
// hold time, and nobody else anything.
func TestNeverReads(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	newBird(t, r, 2, birdOptions{session: "passive;"})
	p, q := peerN(1), peerN(2)
	p.Hold, p.Keepalive = 6*time.Second, 2*time.Second // thousands of paths take a second or two on a busy machine
	must(t, control(f.l.(*net.TCPListener), func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) }))
	g, h := r.add(p), r.add(q)
	fill := func() *talk {
		k := f.accept()
		k.up(openOf(1))
		k.keepalive()
		r.established(p)
		routes := make([]route, 4000)
		for i := range routes {
			routes[i] = route{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{30, byte(i >> 8), byte(i), 0}), 24), NextHop: "10.0.1.1", MED: uint32(i + 1)}
		}
		g.announce(routes...)
		stuck := 0
		eventually(t, func() string {
			if n := len(r.state(p).Held); n == 0 || n != stuck {
				stuck = n
				return fmt.Sprintf("%d prefixes are written, and more to come", n)
			}
			return ""
		})
		return k
	}
	k := fill()
	h.both()
	r.holds(q, net4, net6)
	r.remove(p) // within its time
	k.conn.Close()

	c, g2 := r.configOf(p)
	g = g2
	must(t, r.hub.Add(c))
	k = fill()
	began := time.Now()
	r.hub.Down(p.Addr, "BFD: path down")
	r.quick("Down", began)
	if st := r.state(p); st.LastErr != "BFD: path down" || st.Held != nil || st.Session == "established" {
		t.Errorf("after Down: %+v", st)
	}
	k.conn.Close()
	g.renew()

	k = fill()
	defer k.conn.Close() // not before: a connection that nobody holds is closed by the collector
	eventually(t, func() string {
		if st := r.state(p); !strings.Contains(st.LastErr, "the router takes nothing: what it is sent has waited for 6s") {
			return st.LastErr
		}
		return ""
	})
	if st := r.state(q); st.Flaps != 0 || st.Session != "established" {
		t.Errorf("the other peer: %+v", st)
	}
}
