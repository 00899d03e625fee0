package bfd

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// Two engines, each the other's far end.

func both(t *testing.T) (a, b *running, sa, sb *space) {
	t.Helper()
	sa, sb = pair(t)
	return run(t, sa), run(t, sb), sa, sb
}

func TestTwoEngines(t *testing.T) {
	t.Parallel()
	a, b, _, _ := both(t)
	for _, c := range []struct {
		name string
		a, b Config
	}{
		{"IPv4", to("10.0.0.2", "10.0.0.1"), to("10.0.0.1", "10.0.0.2")},
		{"IPv4, the kernel chooses the address", to("10.0.0.2", ""), to("10.0.0.1", "")},
		{"IPv4 on an interface", on("v0", to("10.0.0.2", "")), on("v0", to("10.0.0.1", "10.0.0.2"))},
		{"IPv6", to("fd00::2", "fd00::1"), to("fd00::1", "")},
		{"link-local by interface", on("v0", to("fe80::2", "")), to("fe80::1%v0", "fe80::2")},
		{"IPv4 multihop", multi(to("10.0.0.2", "10.0.0.1")), multi(to("10.0.0.1", "10.0.0.2"))},
		{"IPv6 multihop", multi(to("fd00::2", "fd00::1")), multi(to("fd00::1", "fd00::2"))},
	} {
		t.Run(c.name, func(t *testing.T) {
			a.t, b.t = t, t
			a.set(c.a)
			b.set(c.b)
			a.reaches(c.a.Peer.String(), Up)
			b.reaches(c.b.Peer.String(), Up)
			st := a.becomes(c.a.Peer.String(), "agreed on 100 ms", func(s Status) bool { return s.Detect == 300*time.Millisecond })
			if st.Tx != 100*time.Millisecond || st.Rx != 100*time.Millisecond || st.Local == 0 || st.Remote == 0 || st.LastErr != "" || st.Failed() {
				t.Errorf("status %+v", st)
			}
			// What is removed is a matter of administration at the far end.
			a.set()
			st = b.reaches(c.b.Peer.String(), Down)
			if st.RemoteState != AdminDown || st.Diag != DiagNeighbour || st.RemoteDiag != DiagAdmin || st.Failed() || st.Flaps != 1 {
				t.Errorf("after the removal: %+v", st)
			}
			b.set()
		})
	}
}

func on(iface string, c Config) Config { c.Interface = iface; return c }
func multi(c Config) Config            { c.Multihop = true; return c }

func TestAdminDown(t *testing.T) {
	t.Parallel()
	a, b, _, _ := both(t)
	cfg := to("10.0.0.2", "10.0.0.1")
	a.set(cfg)
	b.set(to("10.0.0.1", "10.0.0.2"))
	a.reaches("10.0.0.2", Up)
	b.reaches("10.0.0.1", Up)
	cfg.AdminDown = true
	a.set(cfg)
	if st := a.status("10.0.0.2"); st.State != AdminDown || st.Diag != DiagAdmin || st.Failed() || st.Flaps != 0 {
		t.Errorf("ours: %+v", st)
	}
	st := b.becomes("10.0.0.1", "remote admin-down", func(s Status) bool { return s.RemoteState == AdminDown })
	if st.State != Down || st.Failed() {
		t.Errorf("theirs: %+v", st)
	}
	// It stays so for longer than a detection time: the far end goes on hearing.
	began := time.Now()
	eventually(t, func() string {
		if s := b.status("10.0.0.1"); s.RemoteState != AdminDown || s.State != Down {
			t.Fatalf("theirs: %+v", s)
		}
		if time.Since(began) < 1500*time.Millisecond {
			return "still looking"
		}
		return ""
	})
	cfg.AdminDown = false
	a.set(cfg)
	a.reaches("10.0.0.2", Up)
	if got, want := a.changes("10.0.0.2"), []State{Init, Up, AdminDown, Down, Init, Up}; !slices.Equal(slices.DeleteFunc(got, func(s State) bool { return s == Init }), slices.DeleteFunc(want, func(s State) bool { return s == Init })) {
		t.Errorf("changes %v, want %v but for init", got, want)
	}
}

// TestRemoved: after the farewell nothing of a session is left, and a session
// that is named again before comes up as before.
func TestRemoved(t *testing.T) {
	t.Parallel()
	a, b, _, _ := both(t)
	cfg := to("10.0.0.2", "10.0.0.1")
	b.set(to("10.0.0.1", "10.0.0.2"))
	for range 2 {
		a.set(cfg)
		a.reaches("10.0.0.2", Up)
		b.reaches("10.0.0.1", Up)
		a.set()
		if n := len(a.States()); n != 0 {
			t.Fatalf("%d sessions are shown after the removal", n)
		}
	}
	b.reaches("10.0.0.1", Down)
	before := b.status("10.0.0.1").Received
	// Three farewells come at most, 100 ms apart; then there is silence.
	b.becomes("10.0.0.1", "nothing known of the far end", func(s Status) bool { return s.Remote == 0 })
	if got := b.status("10.0.0.1").Received - before; got > 3 {
		t.Errorf("%d packets after the removal", got)
	}
	// Another local address is another session.
	cfg.Local = netip.MustParseAddr("10.0.0.1")
	a.set(cfg)
	first := a.reaches("10.0.0.2", Up).Local
	b.reaches("10.0.0.1", Up)
	cfg.Local = netip.Addr{}
	a.set(cfg)
	st := a.becomes("10.0.0.2", "up by another session", func(s Status) bool { return s.State == Up && s.Local != first })
	if b.becomes("10.0.0.1", "knows the new one", func(s Status) bool { return s.State == Up && s.Remote == st.Local }).Failed() {
		t.Error("the new session was taken for a failure")
	}
}

// TestTimersChange: another interval is agreed on by a Poll, without a flap, in
// both directions; equal configs change nothing at all.
func TestTimersChange(t *testing.T) {
	t.Parallel()
	a, b, _, _ := both(t)
	cfg := to("10.0.0.2", "10.0.0.1")
	a.set(cfg)
	b.set(to("10.0.0.1", "10.0.0.2"))
	first := a.reaches("10.0.0.2", Up)
	b.reaches("10.0.0.1", Up)
	for _, d := range []time.Duration{400, 50, 250} {
		cfg.MinTx, cfg.MinRx, cfg.Multiplier = d*time.Millisecond, d*time.Millisecond, 4
		a.set(cfg)
		want := max(d, 100) * time.Millisecond
		a.becomes("10.0.0.2", "agreed", func(s Status) bool { return s.Tx == want && s.Rx == want && s.Detect == 3*want })
		b.becomes("10.0.0.1", "agreed", func(s Status) bool { return s.Tx == want && s.Rx == want && s.Detect == 4*want })
	}
	for range 100 {
		a.set(cfg)
	}
	if st := a.status("10.0.0.2"); st.Flaps != 0 || st.Since != first.Since || st.Local != first.Local {
		t.Errorf("flapped: %+v", st)
	}
	if st := b.status("10.0.0.1"); st.Flaps != 0 || st.State != Up {
		t.Errorf("the far end flapped: %+v", st)
	}
}

// hostile is a packet that shall do no more than raise a counter.
type hostile struct {
	peer, dest string
	ttl        int
	b          []byte
	want       string // the reason; empty: nobody listens there
}

// wrong are packets that say Down to the two sessions, each with one fault.
func wrong(good, good6 packet) []hostile {
	bytes := func(p packet, change ...func([]byte)) []byte {
		var b [packetLen]byte
		p.put(&b)
		for _, c := range change {
			c(b[:])
		}
		return b[:]
	}
	other, unset := good, good
	other.yours++
	unset.state, unset.yours = Up, 0
	v4, v6 := "10.0.0.1:3784", "[fd00::1]:4784"
	return []hostile{
		{"10.0.0.2", v4, 254, bytes(good), "ttl"},
		{"10.0.0.2", v4, 1, bytes(good), "ttl"},
		{"fd00::2", v6, 199, bytes(good6), "ttl"},
		{"10.0.0.2", v4, 255, nil, "length"},
		{"10.0.0.2", v4, 255, bytes(good)[:23], "length"},
		{"10.0.0.2", v4, 255, bytes(good, func(b []byte) { b[3] = 25 }), "length"},
		{"10.0.0.2", v4, 255, bytes(good, func(b []byte) { b[0] = 2 << 5 }), "version"},
		{"10.0.0.2", v4, 255, bytes(good, func(b []byte) { b[2] = 0 }), "multiplier"},
		{"10.0.0.2", v4, 255, bytes(good, func(b []byte) { b[1] |= 1 }), "multipoint"},
		{"10.0.0.2", v4, 255, bytes(other), "discriminator"},
		{"10.0.0.2", v4, 255, bytes(unset), "discriminator"},
		{"10.0.0.2", v4, 255, append(bytes(good, func(b []byte) { b[1] |= 4; b[3] = 26 }), 1, 2), "auth"},
		{"10.0.0.2", "10.0.0.7:3784", 255, bytes(good), "address"},
		{"fd00::2", "[fd00::1]:3784", 255, bytes(good6), ""},
		{"10.0.0.2", "10.0.0.1:4784", 255, bytes(good), ""},
	}
}

func TestHostilePackets(t *testing.T) {
	t.Parallel()
	a, b, sa, sb := both(t)
	sa.Up(t, "v0", "10.0.0.7/24")
	sb.Up(t, "v0", "10.0.0.9/24")
	cfg6 := multi(to("fd00::2", "fd00::1"))
	cfg6.MinTTL = 200
	a.set(to("10.0.0.2", "10.0.0.1"), to("10.0.0.8", "10.0.0.7"), cfg6)
	b.set(to("10.0.0.1", "10.0.0.2"), multi(to("fd00::1", "fd00::2")))
	up, up6 := a.reaches("10.0.0.2", Up), a.reaches("fd00::2", Up)
	good := packet{state: Down, multiplier: 3, mine: up.Remote, yours: up.Local, minTx: time.Second, minRx: time.Second}
	good6 := good
	good6.mine, good6.yours = up6.Remote, up6.Local
	send := func(peer, dest string, ttl int, b []byte) {
		sendRaw(t, sb, rawPacket{netip.AddrPortFrom(netip.MustParseAddr(peer), 0), netip.MustParseAddrPort(dest), ttl, b})
	}
	for _, c := range wrong(good, good6) {
		before := a.status(c.peer)
		send(c.peer, c.dest, c.ttl, c.b)
		if c.want != "" {
			a.becomes(c.peer, "counted as "+c.want, func(s Status) bool { return s.Dropped[c.want] == before.Dropped[c.want]+1 })
		}
	}
	var buf, buf6 [packetLen]byte
	good.put(&buf)
	good6.put(&buf6)
	send("10.0.0.9", "10.0.0.1:3784", 255, buf[:])
	eventually(t, func() string {
		if got := a.Dropped(); got["unknown-peer"] != 1 {
			return fmt.Sprint(got)
		}
		return ""
	})
	for _, peer := range []string{"10.0.0.2", "fd00::2"} {
		if st := a.status(peer); st.State != Up || st.Flaps != 0 {
			t.Errorf("a hostile packet was heard: %+v", st)
		}
	}
	// The check of the check: the same packets are heard if nothing is wrong.
	send("10.0.0.2", "10.0.0.1:3784", 255, buf[:])
	a.becomes("10.0.0.2", "down", func(s Status) bool { return s.Flaps == 1 })
	send("fd00::2", "[fd00::1]:4784", 200, buf6[:])
	a.becomes("fd00::2", "down", func(s Status) bool { return s.Flaps == 1 })
}

// TestOpenErrors: what cannot be opened is said, does not harm the others, and
// is tried again.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	sa, sb := newSpace(t), newSpace(t)
	a, b := run(t, sa), run(t, sb)
	ghost := on("v0", to("10.0.0.2", "10.0.0.1"))
	invalid := to("10.0.0.3", "fd00::1")
	here := to("127.0.0.2", "127.0.0.1")
	err := a.Set([]Config{ghost, invalid, here, here})
	for _, want := range []string{`interface "v0"`, "not of the peer's family", "named twice"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if st := a.status("10.0.0.2"); st.State != Down || !strings.Contains(st.LastErr, `interface "v0"`) {
		t.Errorf("status %+v", st)
	}
	a.becomes("127.0.0.2", "sends", func(s Status) bool { return s.Sent > 0 && s.LastErr == "" })
	link(t, sa, sb, "v0")
	b.set(to("10.0.0.1", "10.0.0.2"))
	if st := a.reaches("10.0.0.2", Up); st.LastErr != "" {
		t.Errorf("an error stayed: %+v", st)
	}
	// The interface goes, and another of its name comes.
	l, err := sa.Netlink.LinkByName("v0")
	must(t, err)
	must(t, sa.Netlink.LinkDel(l))
	if st := a.reaches("10.0.0.2", Down); !st.Failed() || st.Diag != DiagExpired {
		t.Errorf("status %+v", st)
	}
	a.becomes("10.0.0.2", "says that the interface is gone", func(s Status) bool { return strings.Contains(s.LastErr, `"v0"`) })
	link(t, sa, sb, "v0")
	a.reaches("10.0.0.2", Up)
}

// TestAddressComesLater: the address of a session may come after it.
func TestAddressComesLater(t *testing.T) {
	t.Parallel()
	sa, sb := pair(t)
	a, b := run(t, sa), run(t, sb)
	a.set(to("10.0.0.2", "10.0.0.7"), to("fd00::2", "fd00::7"))
	b.set(to("10.0.0.7", "10.0.0.2"), to("fd00::7", "fd00::2"))
	for _, peer := range []string{"10.0.0.2", "fd00::2"} {
		a.becomes(peer, "says that the address is missing", func(s Status) bool { return strings.Contains(s.LastErr, "is not on this box") })
	}
	sa.Up(t, "v0", "10.0.0.7/24", "fd00::7/64")
	for _, peer := range []string{"10.0.0.2", "fd00::2"} {
		if st := a.reaches(peer, Up); st.LastErr != "" {
			t.Errorf("an error stayed: %+v", st)
		}
	}
}

// TestWildcardIsAlone: two sockets for any address would steal each other's
// packets, so the second is refused, and the remedy said.
func TestWildcardIsAlone(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	a, b := run(t, s), run(t, s)
	a.set(to("127.0.0.2", ""))
	if err := b.Set([]Config{to("127.0.0.3", "")}); err == nil || !strings.Contains(err.Error(), "local address") {
		t.Errorf("two daemons share any address: %v", err)
	}
	b.set(to("127.0.0.1", "127.0.0.2"))
	a.reaches("127.0.0.2", Up)
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	e := New(Options{})
	if e.String() != "bfd" || e.States() != nil || e.Dropped() != nil {
		t.Error("an engine that does not run shows something")
	}
	// Before Run a set is checked and kept.
	if err := e.Set([]Config{to("127.0.0.2", "127.0.0.1"), {}}); err == nil || !strings.Contains(err.Error(), "not a unicast address") {
		t.Errorf("an invalid config was taken: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := newSpace(t).Go(func() error { return e.Run(ctx) })
	<-e.Ready()
	if st := e.States(); len(st) != 1 || st[0].Peer != netip.MustParseAddr("127.0.0.2") {
		t.Errorf("states %+v", st)
	}
	cancel()
	must(t, <-done)
	if err := e.Set(nil); err == nil {
		t.Error("a set after the end was taken")
	}
	if e.States() != nil {
		t.Error("states after the end")
	}
	if err := e.Run(t.Context()); err == nil {
		t.Error("it ran twice")
	}
}

// TestEndTellsTheFarEnd: the end of Run is AdminDown at once, and a restart has
// another discriminator.
func TestEndTellsTheFarEnd(t *testing.T) {
	t.Parallel()
	sa, sb := pair(t)
	a, b := run(t, sa), run(t, sb)
	a.set(to("10.0.0.2", "10.0.0.1"))
	b.set(to("10.0.0.1", "10.0.0.2"))
	first := b.reaches("10.0.0.1", Up)
	a.end()
	st := b.reaches("10.0.0.1", Down)
	if st.RemoteState != AdminDown || st.Failed() {
		t.Errorf("status %+v", st)
	}
	a = run(t, sa)
	a.set(to("10.0.0.2", "10.0.0.1"))
	if st := b.reaches("10.0.0.1", Up); st.Remote == first.Remote || st.Local != first.Local {
		t.Errorf("discriminators %d and %d, before %d and %d", st.Local, st.Remote, first.Local, first.Remote)
	}
}
