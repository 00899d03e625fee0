package relay

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// TestBothDial: both ends dial, with BIRD and FRR, and with the higher
// identifier on either side; again and again there must be one session, and no
// connection that only a hold timer ends.
func TestBothDial(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	var peers []edge.Peer
	servers := map[edge.PeerID]*gobgp{}
	for n := 1; n <= 4; n++ {
		id := "10.200.0.1" // ours is 10.0.1.1
		if n%2 == 0 {
			id = "1.2.3.4"
		}
		p := peerN(n)
		if n <= 2 {
			newBird(t, r, n, birdOptions{id: id, session: "connect delay time 0;"})
		} else {
			newFRR(t, r, n, id)
		}
		servers[p.ID] = r.add(p)
		peers = append(peers, p)
	}
	for round := range 4 {
		for _, p := range peers {
			if st := r.established(p); strings.Contains(st.LastErr, "hold timer") {
				t.Errorf("round %d: %s was waited for: %s", round, p.ID, st.LastErr)
			}
			servers[p.ID].both()
		}
		for _, p := range peers {
			if st := r.holds(p, net4, net6); st.Flaps != round {
				t.Errorf("round %d: %s has flapped: %+v", round, p.ID, st)
			}
		}
		for _, p := range peers {
			r.hub.Down(p.Addr, "round over")
			servers[p.ID].renew()
		}
	}
}

// TestCollision plays a collision through, as the far end with the higher and
// with the lower identifier (RFC 4271 section 6.8).
func TestCollision(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, id  string
		ours      bool // the connection that we have dialled stays
		keepAlive bool // the first of the two has been confirmed before
	}{
		{"their identifier is higher", "200.0.0.1", false, false},
		{"ours is higher", "1.0.0.1", true, false},
		{"one is established", "200.0.0.1", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 179)
			f := newFar(t, r, 1)
			p := peerN(1)
			p.Hold, p.Keepalive = 90*time.Second, 30*time.Second
			r.add(p)
			o := openOf(1)
			o.ID, o.Hold = netip.MustParseAddr(c.id), p.Hold
			first := f.accept()
			second := f.dial()
			second.next(wire.TypeOpen)
			first.write(o.Marshal())
			first.next(wire.TypeKeepalive)
			if c.keepAlive {
				first.write(wire.Keepalive())
				r.established(p)
				if n := second.ended(); n.Code != 6 || n.Subcode != 7 {
					t.Errorf("the loser was sent %s", n)
				}
				first.next(wire.TypeKeepalive) // GoBGP's answer; its next is 30 s away
				third := f.dial()
				asked := time.Now()
				if m, err := third.r.Read(); err == nil {
					t.Errorf("a connection beside an established one was sent %s", m.Type)
				}
				if first.next(wire.TypeKeepalive); time.Since(asked) > 20*time.Second {
					t.Error("the session was not asked for a sign of life")
				}
				return
			}
			second.write(o.Marshal())
			winner, loser := second, first
			if c.ours {
				winner, loser = first, second
			}
			if n := loser.ended(); n.Code != 6 || n.Subcode != 7 {
				t.Errorf("the loser was sent %s", n)
			}
			winner.write(wire.Keepalive())
			st := r.established(p)
			if st.Local.Port() == 179 == c.ours || st.LastErr != "" || st.Flaps != 0 {
				t.Errorf("after a collision: %+v", st)
			}
		})
	}
}

// TestStrangers: connections of nobody's router, and more than one of a router.
func TestStrangers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	f := newFar(t, r, 1)
	if k, err := f.tryDial(); err == nil { // or reset already
		if _, err := k.r.Read(); err == nil {
			t.Error("a stranger was sent something")
		}
	}
	eventually(t, func() string {
		if got := r.hub.Refusals(); got.ByReason[unknownAddress] != 1 || got.Last != "a connection from 10.0.1.2 was refused: no peer has this address" {
			return fmt.Sprintf("%+v", got)
		}
		return ""
	})
	p := peerN(1)
	p.Passive = true
	r.add(p)
	old := f.dial()
	old.next(wire.TypeOpen)
	young := f.dial()
	young.next(wire.TypeOpen)
	young.up(openOf(1))
	r.established(p)
	if m, err := old.r.Read(); err == nil {
		t.Errorf("the older of two connections was sent %s", m.Type)
	}
}

// TestRouterAway: a router that comes back has its session soon.
func TestRouterAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	b := newBird(t, r, 1, birdOptions{session: "passive;"}) // all the dialling is ours
	cut := newBird(t, r, 2, birdOptions{session: "passive;"})
	p, q := peerN(1), peerN(2)
	p.ConnectRetry, q.ConnectRetry = 2*time.Second, 2*time.Second
	q.Hold, q.Keepalive = 3*time.Second, time.Second
	r.add(p).both()
	r.add(q).announce(route{Prefix: net4, NextHop: "10.0.2.1"}, route{Prefix: net6, NextHop: "fd00:2::1"})
	r.holds(p, net4, net6)
	r.holds(q, net4, net6)
	b.proc.Stop(syscall.SIGKILL)
	cut.ns.Down(t, "v2")
	r.until(p, "", "the router")
	r.until(q, "", "hold timer expired: nothing from the router for 3s")
	r.until(p, "active", "connect 10.0.1.2:179: connection refused; the last session was lost: ", "the router")
	r.until(q, "connect", "connect 10.0.2.2:179: no answer within 2s; the last session was lost: hold timer expired")
	b.start()
	cut.ns.Up(t, "v2", "fd00:2::2/64")
	r.until(p, "established")
	r.until(q, "established")
	b.has(net4, "BGP.as_path")
	cut.has(net4, "BGP.as_path")
	if st := r.state(p); st.Flaps != 1 {
		t.Errorf("%+v", st)
	}
}

// TestFarewells: what a router is told, as BIRD understands it.
func TestFarewells(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	b := newBird(t, r, 1, birdOptions{session: "passive;"})
	p := peerN(1)
	g := r.add(p)
	g.both()
	r.holds(p, net4, net6)
	b.birdc("disable", "edge", `"works at the exchange"`)
	r.until(p, "", `the router sent Cease/Administrative Shutdown: "works at the exchange"`)
	g.renew()
	b.birdc("enable", "edge")
	r.holds(p, net4, net6)

	began := time.Now()
	r.hub.Down(p.Addr, "BFD: path down")
	r.quick("Down", began)
	b.logs("edge: Received: ", "6.10")
	b.has(net4)
	g.renew()
	r.holds(p, net4, net6)

	r.hub.Shutdown(p.Addr, "moving house")
	b.logs("edge: Received: Administrative shutdown", "moving house")
	if st := r.state(p); st.Session != "idle" || st.LastErr != `shut down here: "moving house"` {
		t.Errorf("after Shutdown: %+v", st)
	}
	r.remove(p)
	r.add(p)
	r.established(p)
	r.end() // the whole relay
	b.logs("edge: Received: Administrative shutdown")
}

// TestRemoveAnyTime removes a peer in every state.
func TestRemoveAnyTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	f := newFar(t, r, 1)
	p := peerN(1)
	stages := map[string]func(){
		"at once":     func() { r.add(p) },
		"opensent":    func() { r.add(p); f.accept(); r.until(p, "opensent") },
		"openconfirm": func() { r.add(p); f.accept().write(openOf(1).Marshal()); r.until(p, "openconfirm") },
		"established": func() { r.add(p); f.up(); r.established(p) },
		"no server": func() {
			c, g := r.configOf(p)
			g.stop()
			must(t, r.hub.Add(c))
			f.dial()
			r.until(p, "idle")
		},
		"two connections": func() { r.add(p); f.accept(); f.dial().next(wire.TypeOpen) },
		"connecting": func() {
			f.l.Close()
			f.ns.Down(t, "v1")
			r.add(p)
			r.until(p, "connect")
		},
	}
	for _, stage := range []string{"at once", "opensent", "openconfirm", "established", "no server", "two connections", "connecting"} {
		stages[stage]()
		r.remove(p)
		if t.Failed() {
			t.Fatalf("after stage %q", stage)
		}
		f.forget()
	}
}

// TestUpdates: settings that need no session change under it, a thousand times.
func TestUpdates(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	b := newBird(t, r, 1, birdOptions{})
	p := peerN(1)
	c, g := r.configOf(p)
	must(t, r.hub.Add(c))
	g.both()
	since := r.holds(p, net4, net6).Since
	for i := range 1000 {
		c.Peer.ImportLimit, c.Peer.DefaultRoute = i+1, i%2 == 0
		c.Peer.ConnectRetry = time.Duration(i+1) * time.Second
		c.Peer.Announce.MED, c.Peer.ID = uint32(i), edge.PeerID(fmt.Sprint(i))
		c.Allowed = func(netip.Prefix) bool { return i == 999 }
		if !r.hub.Update(c) {
			t.Fatal("an update needs a session")
		}
	}
	for name, change := range map[string]func(*Config){
		"hold": func(c *Config) { c.Peer.Hold++ }, "AS": func(c *Config) { c.Peer.ASN++ }, "our AS": func(c *Config) { c.ASN++ },
		"key": func(c *Config) { c.Key = "k" }, "server": func(c *Config) { c.Server = netip.AddrPort{} }, "passive": func(c *Config) { c.Peer.Passive = true },
		"TTL": func(c *Config) { c.Peer.TTLSecurity = 1 }, "next hop": func(c *Config) { c.Peer.NextHop4 = netip.MustParseAddr("fd00::1") },
		"families": func(c *Config) { c.Peer.Families = []edge.Family{edge.IPv4} }, "not there": func(c *Config) { c.Peer.Addr = netip.MustParseAddr("10.9.9.9") },
	} {
		other := c
		if change(&other); r.hub.Update(other) {
			t.Errorf("%s needs no session", name)
		}
	}
	g.announce(route{net4, "10.0.1.1", 1, 7})
	b.has(net4, "BGP.med: 7")
	if st := r.holds(p, net4, net6); st.Flaps != 0 || !st.Since.Equal(since) {
		t.Errorf("after the updates: %+v", st)
	}
}

// TestAllowed: nothing that may not be announced gets onto the wire.
func TestAllowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	b := newBird(t, r, 1, birdOptions{session: "passive;", channels: "ipv4 { import all; export none; };"})
	p := peerN(1)
	c, g := r.configOf(p)
	leak, sibling := netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24")
	c.Allowed = func(q netip.Prefix) bool { return q != leak }
	must(t, r.hub.Add(c))
	g.both()
	b.has(net4, "BGP.as_path")
	g.announce(route{Prefix: leak, NextHop: "10.0.1.1"}, route{Prefix: sibling, NextHop: "fd00:1::1"})
	eventually(t, func() string {
		st := r.state(p)
		if !strings.Contains(st.NotSent[leak], "may not be announced") || !strings.Contains(st.NotSent[sibling], "RFC 8950") || st.NotSent[net4] != "" {
			return fmt.Sprint(st.NotSent)
		}
		return ""
	})
	b.has(leak)
	b.has(sibling)
	r.holds(p, net4)
	// What was not sent may be withdrawn, and is forgotten by that.
	g.withdraw(route{Prefix: leak, NextHop: "10.0.1.1"}, route{Prefix: sibling, NextHop: "fd00:1::1"})
	eventually(t, func() string {
		if st := r.state(p); len(st.NotSent) != 0 {
			return fmt.Sprint(st.NotSent)
		}
		return ""
	})
	r.holds(p, net4)
}

// TestExtendedNextHop: IPv4 prefixes with an IPv6 next hop.
func TestExtendedNextHop(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	channels := "ipv4 { import all; export none; extended next hop; }; ipv6 { import all; export none; };"
	b := newBird(t, r, 1, birdOptions{session: "passive;", local: "fd00:1::2", remote: "fd00:1::1", channels: channels})
	p := peerN(1)
	p.Addr, p.NextHop4 = netip.MustParseAddr("fd00:1::2"), netip.MustParseAddr("fd00:1::1")
	g := r.add(p)
	g.announce(route{Prefix: net4, NextHop: "fd00:1::1"})
	b.has(net4, "BGP.next_hop: fd00:1::1")
	if st := r.holds(p, net4); st.Held[0].NextHop != p.NextHop4 || !slices.Equal(st.Ours.ExtendedNextHop, []edge.Family{edge.IPv4}) {
		t.Errorf("%+v", st)
	}
}
