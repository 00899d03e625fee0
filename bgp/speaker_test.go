package bgp_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/catchment-dev/edge"
)

var equateAddrs = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// heldOf is what a peer should hold of in.
func heldOf(in edge.Intent) []edge.HeldPrefix {
	var out []edge.HeldPrefix
	for _, a := range in.Announcements {
		h := edge.HeldPrefix{Net: a.Net, NextHop: a.NextHop, Attributes: a.Normal}
		if a.Degrade {
			h.Attributes = a.Degraded
		}
		h.Communities = slices.Sorted(slices.Values(h.Communities))
		out = append(out, h)
	}
	return out
}

// shows waits until the state of a peer is as wrong has nothing to say of it. What a
// router was sent is noted behind it: the router may show it before.
func (s *speaker) shows(id edge.PeerID, wrong func(edge.PeerState) string) (p edge.PeerState) {
	s.t.Helper()
	eventually(s.t, func() string {
		p = s.peer(id)
		if what := wrong(p); what != "" {
			return fmt.Sprintf("%s: %s: %+v", id, what, p)
		}
		return ""
	})
	return p
}

// numbers is wrong of shows: how many prefixes the peer holds, and is not sent.
func numbers(held, notSent int) func(edge.PeerState) string {
	return func(p edge.PeerState) string {
		if len(p.Held) != held || len(p.NotSent) != notSent {
			return fmt.Sprintf("not %d held and %d not sent", held, notSent)
		}
		return ""
	}
}

// holds waits until a peer holds what it should of in.
func (s *speaker) holds(id edge.PeerID, in edge.Intent) {
	s.t.Helper()
	s.shows(id, func(p edge.PeerState) string { return cmp.Diff(heldOf(in), p.Held, equateAddrs) })
}

// announced is a speaker whose one peer, a BIRD, has both prefixes.
func announced(t *testing.T) (*speaker, *bird, edge.Intent) {
	t.Helper()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{})
	in := intentOf(peerN(1))
	s.set(in)
	s.established("r1")
	r.has(net4, normal4)
	r.has(net6, normal6)
	return s, r, in
}

func TestAnnounceDegradeWithdraw(t *testing.T) {
	t.Parallel()
	s, r, in := announced(t) // over the same IPv4 session
	inFIB(t, r.ns, true)
	s.holds("r1", in)

	// A steady state sends nothing, however often the lease is renewed.
	updates, _ := r.counts()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		s.set(in)
	}
	if now, _ := r.counts(); now != updates {
		t.Errorf("%d updates in a steady state", now-updates)
	}

	// Degrading and coming back are implicit updates.
	deleted := watch(t, r.ns)
	s.set(degraded(in))
	r.has(net4, degraded4)
	r.has(net6, degraded6)
	s.holds("r1", degraded(in))
	s.set(in)
	r.has(net4, normal4)
	r.has(net6, normal6)
	if _, withdraws := r.counts(); withdraws != 0 {
		t.Errorf("the router has received %d withdrawals", withdraws)
	}
	if now, _ := r.counts(); now != updates+4 {
		t.Errorf("%d updates for two prefixes degraded and back, want 4", now-updates)
	}
	if n := deleted(); n != 0 {
		t.Errorf("the router's kernel lost the route %d times", n)
	}

	// Withdrawing one leaves the other.
	one := withdrawn(in, time.Now().Add(time.Minute), net4)
	if st := s.set(one); st.Holders(net4) != 0 || st.Holders(net6) != 1 {
		t.Errorf("holders of %s: %d, of %s: %d, want 0 and 1", net4, st.Holders(net4), net6, st.Holders(net6))
	}
	r.has(net4, nil)
	r.has(net6, normal6)
	s.set(withdrawn(one, time.Now().Add(time.Minute), net6))
	r.has(net6, nil)
	inFIB(t, r.ns, false)
	if p := s.shows("r1", numbers(0, 0)); p.Flaps != 0 || p.LastErr != "" || p.Held != nil {
		t.Errorf("peer after it all: %+v", p)
	}
	s.endsAtOnce(r)
}

// endsAtOnce checks that SIGTERM ends a speaker of which nobody holds anything, and its
// session with it.
func (s *speaker) endsAtOnce(r *bird) {
	t := s.t
	t.Helper()
	s.proc.Stop(syscall.SIGTERM)
	if code := s.proc.Cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	eventually(t, func() string {
		if out := r.birdc("show protocols edge"); strings.Contains(out, "Established") {
			return out
		}
		return ""
	})
}

func TestFRR(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newFRR(t, s, 1, frrOptions{})
	in := intentOf(peerN(1))
	s.set(in)
	s.established("r1")
	frrNormal := func(hop string) *seen {
		return &seen{path: "4200000001", communities: "65000:10 65000:20", nextHop: hop}
	}
	r.has(net4, frrNormal("10.0.1.1"))
	r.has(net6, frrNormal("fd00:1::1"))
	inFIB(t, r.ns, true)
	deleted := watch(t, r.ns)
	s.set(degraded(in))
	path := strings.TrimSpace(strings.Repeat("4200000001 ", 4))
	r.has(net4, &seen{path: path, med: 500, communities: "graceful-shutdown", nextHop: "10.0.1.1"})
	r.has(net6, &seen{path: path, med: 500, communities: "graceful-shutdown", nextHop: "fd00:1::1"})
	s.set(in)
	r.has(net4, frrNormal("10.0.1.1"))
	if n := deleted(); n != 0 {
		t.Errorf("the router's kernel lost the route %d times", n)
	}
	s.set(withdrawn(in, time.Now().Add(time.Minute), net4, net6))
	r.has(net4, nil)
	r.has(net6, nil)
	inFIB(t, r.ns, false)
}

func TestLeaseRunsOut(t *testing.T) {
	t.Parallel()
	s, r, in := announced(t)
	deleted := watch(t, r.ns)

	in.Speaker.Lease = time.Second
	if st := s.set(in); st.Expired || st.LeaseLeft <= 0 || st.LeaseLeft > time.Second {
		t.Errorf("a new lease has %s left, expired %v", st.LeaseLeft, st.Expired)
	}
	r.has(net4, degraded4)
	r.has(net6, degraded6)
	st := s.state()
	if !st.Expired || st.LeaseLeft != 0 {
		t.Errorf("after the lease: %s left, expired %v", st.LeaseLeft, st.Expired)
	}
	for _, a := range st.Announcements {
		if !a.Degrade || !strings.HasPrefix(string(a.Reason), "lease expired: edged has not renewed since ") {
			t.Errorf("after the lease: %s degrade %v, reason %q", a.Net, a.Degrade, a.Reason)
		}
	}
	in.Speaker.Lease = time.Minute
	if st := s.set(in); st.Expired || st.Announcements[0].Degrade || st.Announcements[0].Reason != "" {
		t.Errorf("after the renewal: %+v", st)
	}
	r.has(net4, normal4)
	r.has(net6, normal6)
	if _, withdraws := r.counts(); withdraws != 0 || deleted() != 0 {
		t.Errorf("the router has received %d withdrawals, or its kernel lost the route", withdraws)
	}
	if p := s.peer("r1"); p.Flaps != 0 {
		t.Errorf("%d flaps", p.Flaps)
	}
}

func TestOnePeerLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	one := newBird(t, s, 1, birdOptions{})
	two := newBird(t, s, 2, birdOptions{families: []string{"ipv4"}})
	in := intentOf(peerN(1))
	s.set(in)
	s.established("r1")
	one.has(net4, normal4)
	one.has(net6, normal6)
	before := s.peer("r1")
	updates, _ := one.counts()

	p2 := peerN(2)
	in.Speaker.Peers = append(in.Speaker.Peers, p2)
	s.set(in)
	two.has(net4, normal4)
	// The second router speaks IPv4 only: it is not said to hold the other.
	if held := s.shows("r2", func(p edge.PeerState) string {
		if len(p.Held) != 1 {
			return "holds another number than 1"
		}
		return ""
	}).Held; held[0].Net != net4 {
		t.Errorf("r2 holds %+v", held)
	}
	p2.Keepalive = 2 * time.Second
	in.Speaker.Peers[1] = p2
	s.set(in)
	eventually(t, func() string {
		if p := s.peer("r2"); p.Session != "established" || p.Flaps != 1 || p.Keepalive != 2*time.Second {
			return fmt.Sprintf("%+v", p)
		}
		return ""
	})
	two.has(net4, normal4)
	// Another name and another order are no other peer.
	in.Speaker.Peers = []edge.Peer{p2, in.Speaker.Peers[0]}
	in.Speaker.Peers[0].ID = "renamed"
	in.Speaker.Peers[1].Families = []edge.Family{edge.IPv6, edge.IPv4}
	s.set(in)
	if p := s.peer("renamed"); p.Session != "established" || p.Flaps != 1 {
		t.Errorf("renaming has reset the session: %+v", p)
	}
	in.Speaker.Peers = in.Speaker.Peers[1:]
	s.set(in)
	two.has(net4, nil)

	after := s.peer("r1")
	if !after.Since.Equal(before.Since) || after.Flaps != 0 {
		t.Errorf("the first session was touched: since %s, before %s, %d flaps", after.Since, before.Since, after.Flaps)
	}
	if now, _ := one.counts(); now != updates {
		t.Errorf("the first router got %d updates", now-updates)
	}
}

func TestOverIPv6(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{v6: true, session: "multihop 4;"})
	p := peerN(1)
	p.Addr, p.LocalAddr, p.Multihop = netip.MustParseAddr("fd00:1::2"), netip.MustParseAddr("fd00:1::1"), 4
	in := intentOf(p)
	s.set(in)
	s.established("r1")
	r.has(net6, normal6)
	r.has(net4, normal4)
	s.holds("r1", in)
}

func TestImportsNothing(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	// The router offers a default route, a foreign one, and our own prefix.
	r := newBird(t, s, 1, birdOptions{
		top:     "protocol static leak { ipv4; route 0.0.0.0/0 blackhole; route 198.51.100.0/24 blackhole; route 192.0.2.0/24 blackhole; route 192.0.2.0/25 blackhole; }",
		exports: `where source = RTS_STATIC`,
		session: "allow local as 2;",
	})
	other := newBird(t, s, 2, birdOptions{})
	in := intentOf(peerN(1), peerN(2))
	s.set(in)
	s.established("r1", "r2")
	other.has(net4, normal4)
	eventually(t, func() string {
		if out := r.birdc("show protocols all edge"); !strings.Contains(out, "exported") || strings.Contains(out, " 0 exported") && !strings.Contains(out, "4 exported") {
			return out
		}
		return ""
	})
	updates, _ := other.counts()
	s.holds("r2", in)
	if out := other.birdc("show route count protocol edge"); !strings.Contains(out, "1 of 1 routes for 1 networks in table master4") {
		t.Errorf("the other router has more than our route: %s", out)
	}
	// Nothing of it stands between us and our own word.
	s.set(degraded(in))
	other.has(net4, degraded4)
	if now, withdraws := other.counts(); now != updates+2 || withdraws != 0 {
		t.Errorf("the other router got %d updates and %d withdrawals, want 2 and 0", now-updates, withdraws)
	}
	routes, err := s.ns.Netlink.RouteList(nil, 0)
	must(t, err)
	for _, route := range routes {
		if route.Protocol == 186 || route.Gw != nil {
			t.Errorf("a route in our own kernel: %s", route)
		}
	}
}
