package bgp_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// TestFRRSettings: what a session can be told, with FRR at the other end.
func TestFRRSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o      frrOptions
		change func(*speaker, *edge.Peer)
		path   string
	}{
		"MD5":  {frrOptions{neighbor: []string{"password s3cret"}}, func(s *speaker, p *edge.Peer) { p.PasswordFile = s.key("key", "s3cret\n") }, "4200000001"},
		"GTSM": {frrOptions{neighbor: []string{"ttl-security hops 1"}}, func(_ *speaker, p *edge.Peer) { p.TTLSecurity = 1 }, "4200000001"},
		"multihop": {frrOptions{neighbor: []string{"ebgp-multihop 9", "passive"}}, func(_ *speaker, p *edge.Peer) {
			p.Multihop, p.LocalAddr = 9, netip.MustParseAddr("10.0.1.1")
		}, "4200000001"},
		"over IPv6": {frrOptions{v6: true}, func(_ *speaker, p *edge.Peer) { p.Addr = netip.MustParseAddr("fd00:1::2") }, "4200000001"},
		"iBGP":      {frrOptions{own: 4200000001}, func(_ *speaker, p *edge.Peer) { p.ASN = 4200000001 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpeaker(t)
			r := newFRR(t, s, 1, c.o)
			p := peerN(1)
			c.change(s, &p)
			p.Announce = edge.Attributes{LocalPref: 170, Large: []edge.LargeCommunity{{Global: 4200000001, Local1: 2, Local2: 3}}}
			in := intentOf(p)
			s.set(in)
			want := &seen{path: c.path, communities: "65000:10 65000:20", large: "4200000001:2:3", nextHop: "10.0.1.1"}
			if c.path == "" {
				want.localPref = 170
			}
			r.has(net4, want)
			s.set(degraded(in))
			eventually(t, func() string {
				if got := r.route(net6); got == nil || got.med != 500 || !strings.Contains(got.communities, "graceful-shutdown") {
					return fmt.Sprintf("%+v", got)
				}
				return ""
			})
		})
	}
}

// TestBIRDSettings: the same with BIRD, and what it alone shows.
func TestBIRDSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o      birdOptions
		change func(*edge.Peer)
		path   string
	}{
		"GTSM":     {birdOptions{session: "ttl security on;"}, func(p *edge.Peer) { p.TTLSecurity = 1 }, "4200000001"},
		"multihop": {birdOptions{session: "multihop 4;"}, func(p *edge.Peer) { p.Multihop = 4 }, "4200000001"},
		"bound":    {birdOptions{}, func(p *edge.Peer) { p.Interface = "v1" }, "4200000001"},
		"iBGP":     {birdOptions{own: 4200000001}, func(p *edge.Peer) { p.ASN = 4200000001 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpeaker(t)
			r := newBird(t, s, 1, c.o)
			p := peerN(1)
			c.change(&p)
			p.Announce = edge.Attributes{LocalPref: 170, Large: []edge.LargeCommunity{{Global: 4200000001, Local1: 2, Local2: 3}}}
			s.set(intentOf(p))
			want := *normal4
			want.path, want.large = c.path, "(4200000001, 2, 3)"
			if c.path == "" {
				want.localPref = 170
			}
			r.has(net4, &want)
			st := s.shows("r1", numbers(2, 0))
			if st.Hold != 9*time.Second || st.Keepalive != 3*time.Second || st.RemoteID.String() != "10.0.1.2" || len(st.Families) != 2 ||
				st.Local.Addr().String() != "10.0.1.1" || st.Messages.UpdatesSent == 0 || st.Messages.Malformed != 0 {
				t.Errorf("state: %+v", st)
			}
		})
	}
}

// TestGTSMOneSided: with one end that checks and one that does not set the TTL
// there is no session.
func TestGTSMOneSided(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{session: "ttl security on;"})
	ours := newBird(t, s, 2, birdOptions{})
	p1, p2 := peerN(1), peerN(2)
	p2.TTLSecurity = 1
	s.set(intentOf(p1, p2))
	begun := time.Now()
	eventually(t, func() string {
		// BIRD drops what comes with a low TTL from its OPEN on only: it answers
		// ours, but never gets further.
		if s.peer("r2").Session == "established" || strings.Contains(r.birdc("show protocols edge"), "Established") {
			t.Fatal("a session is up with TTL security at one end only")
		}
		if time.Since(begun) < 4*time.Second {
			return "wait for some attempts"
		}
		return ""
	})
	r.has(net4, nil)
	ours.has(net4, nil)
}

// TestExtendedNextHop: IPv4 over an IPv6 next hop (RFC 8950), for a router that
// has offered it, and why not for another.
func TestExtendedNextHop(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	over := netip.MustParseAddr("fd00:1::1")
	able := newBird(t, s, 1, birdOptions{v6: true, channel: "extended next hop on;"})
	unable := newBird(t, s, 2, birdOptions{v6: true})
	frr := newFRR(t, s, 3, frrOptions{v6: true, neighbor: []string{"capability extended-nexthop"}})
	var peers []edge.Peer
	for n := 1; n <= 3; n++ {
		p := peerN(n)
		p.Addr, p.NextHop4 = netip.MustParseAddr(fmt.Sprintf("fd00:%d::2", n)), over
		peers = append(peers, p)
	}
	in := intentOf(peers...)
	s.set(in)
	want := *normal4
	want.nextHop = "fd00:1::1"
	able.has(net4, &want)
	able.has(net6, normal6)
	unable.has(net6, normal6)
	frr.has(net4, &seen{path: "4200000001", communities: "65000:10 65000:20", nextHop: "fd00:1::1"})
	if got := unable.route(net4); got != nil {
		t.Errorf("a router that has not offered RFC 8950 has %+v", got)
	}
	if p := s.shows("r2", numbers(1, 1)); p.NotSent[0].Net != net4 || !strings.Contains(string(p.NotSent[0].Reason), "RFC 8950") {
		t.Errorf("not sent: %+v, held %+v", p.NotSent, p.Held)
	}
	// Back to an IPv4 next hop: another capability, so another session.
	in.Speaker.Peers[1].NextHop4 = netip.Addr{}
	s.set(in)
	unable.has(net4, normal4)
	if p := s.shows("r2", numbers(2, 0)); p.Flaps != 1 {
		t.Errorf("after the change: %+v", p)
	}
}

// TestPolicies: each peer is sent what its settings say, and a change of them
// resets nothing.
func TestPolicies(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	one := newBird(t, s, 1, birdOptions{})
	two := newBird(t, s, 2, birdOptions{})
	watched := newBird(t, s, 3, birdOptions{})
	p1, p2, p3 := peerN(1), peerN(2), peerN(3)
	p1.Announce = edge.Attributes{Prepend: 1, MED: 7, Communities: []edge.Community{65000<<16 | 30}}
	p2.Prefixes = []netip.Prefix{net6}
	p2.Degraded = &edge.Attributes{MED: 9, Communities: []edge.Community{65535<<16 | 65281}}
	p3.Watch = true
	in := intentOf(p1, p2, p3)
	long := in.Announcements[0]
	long.Net = netip.MustParsePrefix("198.51.100.0/25")
	in.Announcements = append(in.Announcements, long)
	s.set(in)
	s.established("r1", "r2", "r3")
	one.has(net4, &seen{path: "4200000001 4200000001", med: 7, communities: "(65000,10) (65000,20) (65000,30)", nextHop: "10.0.1.1"})
	two.has(net6, normal6)
	if two.route(net4) != nil || two.route(long.Net) != nil || one.route(long.Net) != nil || watched.route(net4) != nil {
		t.Error("a peer has what it should not")
	}
	for id, want := range map[edge.PeerID]string{
		"r1": "longer than /24", "r2": "not among the peer's prefixes|not among the peer's prefixes", "r3": "only watched|only watched|only watched",
	} {
		var got []string
		for _, n := range s.peer(id).NotSent {
			got = append(got, string(n.Reason))
		}
		for i, w := range strings.Split(want, "|") {
			if len(got) != strings.Count(want, "|")+1 || !strings.Contains(got[i], w) {
				t.Errorf("%s is not sent: %q, want %q", id, got, want)
			}
		}
	}
	s.set(degraded(in))
	two.has(net6, &seen{path: "4200000001", med: 9, communities: "(65535,65281)", nextHop: "fd00:1::1"})
	s.set(in)
	two.has(net6, normal6)

	in.Speaker.Peers[0].Announce, in.Speaker.Peers[0].AllowLonger = edge.Attributes{}, true
	in.Speaker.Peers[1].Prefixes = []netip.Prefix{net4}
	in.Speaker.Peers[1].NextHop4 = netip.MustParseAddr("10.0.1.9")
	s.set(in)
	one.has(net4, normal4)
	one.has(long.Net, normal4)
	two.has(net6, nil)
	two.has(net4, &seen{path: "4200000001", communities: normal4.communities, nextHop: "10.0.1.9"})
	for _, id := range []edge.PeerID{"r1", "r2", "r3"} {
		if p := s.peer(id); p.Flaps != 0 {
			t.Errorf("%s has flapped: %+v", id, p)
		}
	}
	if _, withdraws := one.counts(); withdraws != 0 {
		t.Errorf("%d withdrawals at the first router", withdraws)
	}
}

// TestReloads: a thousand intents, each of which changes something, and no
// session is any younger for it.
func TestReloads(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{})
	in := intentOf(peerN(1))
	s.set(in)
	s.established("r1")
	r.has(net6, normal6)
	before := s.peer("r1")
	other := peerN(2) // there is nobody
	for i := range 1000 {
		now := in
		now.Generation = uint64(i + 2)
		p := peerN(1)
		p.ID = edge.PeerID(fmt.Sprint("r1-", i%2))
		p.ImportLimit, p.DefaultRoute, p.ConnectRetry = 100+i, i%2 == 0, time.Duration(1+i%9)*time.Second
		p.Announce.MED = uint32(i % 3)
		now.Speaker.Peers = []edge.Peer{p}
		if i%2 == 1 {
			other.Hold = time.Duration(9+i%90) * time.Second
			now.Speaker.Peers = append(now.Speaker.Peers, other)
		}
		now.Speaker.Lease = time.Duration(30+i%3) * time.Second
		s.set(now)
	}
	s.set(in)
	r.has(net4, normal4)
	after := s.peer("r1")
	if !after.Since.Equal(before.Since) || after.Flaps != 0 || after.Messages.WithdrawsSent != 0 {
		t.Errorf("after 1000 reloads: since %s, before %s, %d flaps, %d withdrawn", after.Since, before.Since, after.Flaps, after.Messages.WithdrawsSent)
	}
	// The peer that came and went 500 times has left nothing behind.
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.proc.Cmd.Process.Pid))
	must(t, err)
	if len(fds) > 60 {
		t.Errorf("%d open files", len(fds))
	}
}

// TestSteadyAndDegraded: what the wire says of a steady state, of degrading and
// of the way back.
func TestSteadyAndDegraded(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{})
	wired := newCapture(t, r.ns, "10.0.1.1")
	in := intentOf(peerN(1))
	s.set(in)
	r.has(net4, normal4)
	r.has(net6, normal6)
	sent := s.shows("r1", numbers(2, 0)).Messages.UpdatesSent
	eventually(t, func() string { // the capture comes behind the router
		if n := len(wired.of(t, wire.TypeUpdate)); n < int(sent) {
			return fmt.Sprintf("%d UPDATEs on the wire, and %d were sent", n, sent)
		}
		return ""
	})
	updates := len(wired.of(t, wire.TypeUpdate))
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
		s.set(in)
	}
	if now := len(wired.of(t, wire.TypeUpdate)); updates == 0 || now != updates || s.peer("r1").Messages.UpdatesSent != sent {
		t.Errorf("%d UPDATEs on the wire at first, %d after a steady state; the counter says %d and %d", updates, now, sent, s.peer("r1").Messages.UpdatesSent)
	}
	eventually(t, func() string {
		if n := len(wired.of(t, wire.TypeKeepalive)); n < 2 {
			return fmt.Sprintf("%d keepalives", n)
		}
		return ""
	})
	for range 5 {
		s.set(degraded(in))
		r.has(net4, degraded4)
		s.set(in)
		r.has(net6, normal6)
		r.has(net4, normal4)
	}
	eventually(t, func() string { // the capture comes behind the router
		if announced, withdrawn := wired.changes(t); len(announced) != 2+2*10 || len(withdrawn) != 0 {
			return fmt.Sprintf("%d announced and %d withdrawn on the wire", len(announced), len(withdrawn))
		}
		return ""
	})
	s.shows("r1", func(p edge.PeerState) string {
		if m := p.Messages; m.WithdrawsSent != 0 || m.UpdatesSent-sent != 20 {
			return fmt.Sprintf("the counters say %+v", m)
		}
		return ""
	})
}

// TestKeepalivesUnderLoad: with every CPU busy and the socket full of questions
// they leave in time.
func TestKeepalivesUnderLoad(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{})
	wired := newCapture(t, r.ns, "10.0.1.1")
	p := peerN(1)
	p.Keepalive = time.Second
	in := intentOf(p)
	s.set(in)
	s.established("r1")
	var load []*process
	for range 6 {
		load = append(load, s.ns.Start(t, s.dir+"/load.log", "sh", "-c", "while :; do :; done"))
	}
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); {
		s.set(in)
	}
	for _, l := range load {
		l.Stop(syscall.SIGKILL)
	}
	var last time.Time
	for _, m := range wired.of(t, wire.TypeKeepalive) {
		// One of three is enough. When it leaves is the kernel's choice, too.
		if !last.IsZero() && m.at.Sub(last) > p.Hold/3 {
			t.Errorf("%s between two keepalives", m.at.Sub(last))
		}
		last = m.at
	}
	if p := s.peer("r1"); p.Flaps != 0 || p.Session != "established" || last.IsZero() {
		t.Errorf("%+v", p)
	}
}
