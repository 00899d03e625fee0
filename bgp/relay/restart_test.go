package relay

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// TestGracefulRestart: with it BIRD keeps the routes over a restart of the
// relay, and drops at the end of the table what is not there any more.
func TestGracefulRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	b := newBird(t, r, 1, birdOptions{session: "passive; graceful restart on;"})
	p := peerN(1)
	p.RestartTime = 2 * time.Minute
	c, g := r.configOf(p)
	c.KeepsForwarding = func() bool { return true }
	must(t, r.hub.Add(c))
	g.both()
	r.holds(p, net4, net6)
	r.end()
	must(t, <-r.done)
	r.done <- nil
	eventually(t, func() string {
		if out := b.birdc("show protocols all edge"); !strings.Contains(out, "Neighbor graceful restart active") {
			return out
		}
		return ""
	})
	b.has(net4, "BGP.as_path")
	b.has(net6, "BGP.as_path")

	r = newRigIn(t, r.ns, 0)
	c, g = r.configOf(p)
	c.KeepsForwarding, c.Restarting = func() bool { return true }, true
	g.announce(plain4)
	must(t, r.hub.Add(c))
	b.has(net4, "BGP.as_path")
	st := r.holds(p, net4)
	want := &wire.GracefulRestart{Restarting: true, Time: p.RestartTime, Families: map[edge.Family]bool{edge.IPv4: true, edge.IPv6: true}}
	if diff := cmp.Diff(want, st.Ours.GracefulRestart); diff != "" {
		t.Errorf("what was offered (-want +got):\n%s", diff)
	}
	b.has(net6) // stale, and gone with the End-of-RIB
	b.has(net4, "BGP.as_path")
	if err := r.hub.Add(c); err == nil {
		t.Error("a second peer of one address")
	}
}

// TestRestartBits: the R bit goes with the first session, the F bits follow the
// data plane, and nothing is offered where it is not asked for.
func TestRestartBits(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	p := peerN(1)
	p.RestartTime = 2 * time.Minute
	c, g := r.configOf(p)
	c.Restarting = true
	must(t, r.hub.Add(c))
	offered := func() *wire.GracefulRestart {
		k := f.up()
		r.established(p)
		k.conn.Close()
		return k.open.GracefulRestart
	}
	if got := offered(); !got.Restarting || got.Families[edge.IPv4] || len(got.Families) != 2 || got.Time != p.RestartTime {
		t.Errorf("first offer: %+v", got)
	}
	c.KeepsForwarding = func() bool { return true }
	if !r.hub.Update(c) {
		t.Fatal("the data plane needs a session")
	}
	g.renew()
	if got := offered(); got.Restarting || !got.Families[edge.IPv4] {
		t.Errorf("second offer: %+v", got)
	}
	r.remove(p)
	p.RestartTime = 0
	r.add(p)
	if got := offered(); got != nil {
		t.Errorf("offer without graceful restart: %+v", got)
	}
}

// TestServerComesAndGoes: GoBGP is away before, between and in a session.
func TestServerComesAndGoes(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	b := newBird(t, r, 1, birdOptions{})
	p := peerN(1)
	g := r.add(p)
	g.both()
	r.holds(p, net4, net6)
	g.renew()
	r.until(p, "", "the BGP server of this peer sent Cease/Peer De-configured")
	b.logs("Received: Peer de-configured")
	r.holds(p, net4, net6)
	r.remove(p)

	// While nobody is there, too.
	q := peerN(2)
	q.Passive = true
	g = r.add(q)
	r.until(q, "active")
	for range 3 {
		g.renew()
	}
	newBird(t, r, 2, birdOptions{})
	r.established(q)
}

// TestOnlyUpdates: a router that sends UPDATEs has no need of KEEPALIVEs.
func TestOnlyUpdates(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	p := peerN(1)
	p.Hold, p.Keepalive = 6*time.Second, 2*time.Second // half a second without CPU is none of 6 s
	r.add(p)
	k := f.up()
	began := r.established(p).Since
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < 7*time.Second {
		<-tick.C
		k.write(announcing(net4))
	}
	if st := r.state(p); st.Session != "established" || st.Flaps != 0 {
		t.Errorf("after UPDATEs only: %+v", st)
	}
	// Half a message is none.
	k.write(announcing(net4)[:30])
	r.until(p, "", "hold timer expired: nothing from the router for 6s")
	if n := k.ended(); n.Code != 4 {
		t.Errorf("told %s", n)
	}
}

// TestNarrowAS: a router without AS numbers of 4 bytes.
func TestNarrowAS(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFar(t, r, 1)
	p := peerN(1)
	g := r.add(p)
	g.announce(route{net4, "10.0.1.1", 2, 9})
	k := f.accept()
	o := openOf(1)
	o.FourOctet, o.Families = false, []edge.Family{edge.IPv4}
	k.up(o)
	u, err := wire.ParseUpdate(k.next(wire.TypeUpdate).Raw, false)
	must(t, err)
	if diff := cmp.Diff([]uint32{ourAS, ourAS, ourAS}, u.Path.ASPath); diff != "" {
		t.Errorf("path (-want +got):\n%s", diff)
	}
	if st := r.holds(p, net4); st.Held[0].Prepend != 2 || st.Held[0].MED != 9 {
		t.Errorf("held: %+v", st.Held)
	}
}

func TestSmallParts(t *testing.T) {
	t.Parallel()
	long := string(make([]byte, 254)) + "é" // of two bytes, of which one fits
	for _, c := range []struct{ text, want string }{{"", "\x00"}, {"abc", "\x03abc"}, {long, "\xfe" + long[:254]}} {
		if got := string(communication(c.text)); got != c.want {
			t.Errorf("communication(%q) = %q", c.text, got)
		}
	}
	for _, c := range []struct {
		peer       edge.Peer
		ttl, least int
	}{
		{edge.Peer{ASN: 1}, 1, 0}, {edge.Peer{ASN: ourAS}, 64, 0}, {edge.Peer{ASN: 1, Multihop: 5}, 5, 0}, {edge.Peer{ASN: ourAS, Multihop: 5}, 5, 0},
		{edge.Peer{ASN: 1, TTLSecurity: 1}, 255, 255}, {edge.Peer{ASN: ourAS, TTLSecurity: 3}, 255, 253}, {edge.Peer{TTLSecurity: 254}, 255, 2},
	} {
		if ttl, least := ttls(Config{Peer: c.peer, ASN: ourAS}); ttl != c.ttl || least != c.least {
			t.Errorf("TTLs of %+v: %d, %d; want %d, %d", c.peer, ttl, least, c.ttl, c.least)
		}
	}
	id := func(s string, as uint32) wire.Open { return wire.Open{ID: netip.MustParseAddr(s), ASN: as} }
	for _, c := range []struct {
		ours, theirs wire.Open
		want         bool
	}{
		{id("10.0.0.1", 1), id("9.0.0.1", 2), true}, {id("10.0.0.1", 2), id("10.0.0.2", 1), false},
		{id("10.0.0.1", 2), id("10.0.0.1", 1), true}, {id("10.0.0.1", 1), id("10.0.0.1", 2), false},
	} {
		if keepsOurs(c.ours, c.theirs) != c.want || keepsOurs(c.theirs, c.ours) == c.want {
			t.Errorf("%v and %v do not agree which connection stays", c.ours, c.theirs)
		}
	}
	both := []edge.Family{edge.IPv4, edge.IPv6}
	ours := wire.Open{Families: both}
	theirs := wire.Open{
		ASN: 7, Hold: time.Minute, ID: netip.MustParseAddr("1.1.1.1"), Families: both[:1], ExtendedNextHop: both[:1],
		GracefulRestart: &wire.GracefulRestart{Time: time.Minute}, Unknown: []uint8{73},
	}
	want := wire.Open{ASN: 7, Hold: time.Minute, ID: theirs.ID, Families: both[:1]}
	if diff := cmp.Diff(want, forServer(ours, theirs), equateAddrs); diff != "" {
		t.Errorf("what GoBGP is told (-want +got):\n%s", diff)
	}
}

// TestNotReady: a hub that does not run, and one that does no more.
func TestNotReady(t *testing.T) {
	t.Parallel()
	h := New(Options{})
	c := Config{Peer: peerN(1)}
	if err := h.Add(c); err == nil || h.Update(c) {
		t.Error("a hub that does not run has taken a peer")
	}
	h.Remove(c.Peer.Addr, "")
	h.Shutdown(c.Peer.Addr, "")
	h.Down(c.Peer.Addr, "")
	if _, ok := h.State(c.Peer.Addr); ok || h.String() == "" {
		t.Error("there is a state of nobody")
	}
	r := newRig(t, 0)
	r.end()
	must(t, <-r.done)
	r.done <- nil
	if err := r.hub.Add(c); err == nil {
		t.Error("a hub that has ended has taken a peer")
	}
	// A port that is taken, and no addresses.
	r = newRig(t, 1791)
	if err := r.hub.Add(Config{Peer: peerN(1)}); err == nil {
		t.Error("a peer without a server was taken")
	}
	if err := r.hub.Add(Config{Server: netip.MustParseAddrPort("127.0.0.1:1")}); err == nil {
		t.Error("a peer without an address was taken")
	}
	other := New(Options{Log: r.hub.o.Log, Listen: 1791})
	other.inside = inside(r.ns)
	if err := other.Run(t.Context()); err == nil {
		t.Error("a port was had twice")
	}
}
