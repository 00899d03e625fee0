package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// TestWrongLink: who comes in by another interface, or has no known address, is
// refused with a reason and counted, whatever else he does.
func TestWrongLink(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	bareLink(t, r, 1)
	other, third := bareLink(t, r, 2), newSpace(t)
	other.Up(t, "v2", "fe80::7/64")
	p, q := linkPeer(1), linkPeer(2)
	p.Passive, q.Passive = true, true
	q.Addr = netip.MustParseAddr("fe80::8%v2")
	// Bound to a link by setting, and with an address that leads to another.
	link(t, r.ns, third, 3)
	bound4, bound6 := peerN(3), peerN(4)
	bound6.Addr = netip.MustParseAddr("fd00:3::2")
	for _, b := range []*edge.Peer{&bound4, &bound6} {
		b.Interface, b.Passive = "v1", true
	}
	for _, one := range []edge.Peer{p, q, bound4, bound6} {
		r.add(one)
	}
	want := map[string]uint64{}
	for _, c := range []struct {
		ns            *space
		from, to      string
		link, reason  string
		says, peerHas string
		peer          edge.Peer
	}{
		{other, "fe80::1", "fe80::2", "v2", wrongInterface, "from fe80::1 was refused: it came in by interface v2, and the peer is on v1", "and the peer is on v1", p},
		{other, "fe80::7", "fe80::2", "v2", unknownAddress, "from fe80::7 was refused: no peer has this address", "", edge.Peer{}},
		{third, "10.0.3.2", "10.0.3.1", "v3", wrongInterface, "from 10.0.3.2 was refused: it came in by interface v3, and the peer is on v1", "came in by interface v3", bound4},
		{third, "fd00:3::2", "fd00:3::1", "v3", wrongInterface, "from fd00:3::2 was refused: it came in by interface v3, and the peer is on v1", "came in by interface v3", bound6},
	} {
		r.hub.mu.Lock()
		r.hub.noted = time.Time{} // no need to wait for the next
		r.hub.mu.Unlock()
		conn, err := dialTo(c.ns, c.from, c.to, c.link)
		if err == nil {
			conn.SetReadDeadline(time.Now().Add(patience))
			if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("%s: read %d, %v", c.from, n, err)
			}
			conn.Close()
		} else if !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: %v", c.from, err)
		}
		want[c.reason]++
		eventually(t, func() string {
			if got := r.hub.Refusals(); fmt.Sprint(got.ByReason) != fmt.Sprint(want) || !strings.HasSuffix(got.Last, c.says) {
				return fmt.Sprintf("%s: %+v, want %v", c.from, got, want)
			}
			return ""
		})
		if c.peerHas != "" {
			r.until(c.peer, "active", c.peerHas)
		}
	}
}

// TestMatch: by which socket and interface a connection may come.
func TestMatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for n := 1; n <= 3; n++ {
		bareLink(t, r, n)
	}
	index := func(n int) int { return r.hub.index(fmt.Sprintf("v%d", n)) }
	plain, keyed, global, bound := linkPeer(1), linkPeer(2), peerN(3), peerN(4)
	plain.Addr, plain.Interface = netip.MustParseAddr("fe80::1"), "v1" // as an older edged writes it
	bound.Interface = "v1"
	gone := linkPeer(9)
	for _, p := range []edge.Peer{plain, global, bound, gone} {
		r.add(p)
	}
	r.addKeyed(keyed, "key")
	all, link1, link2 := &listener{v6: true}, &listener{v6: true, link: "v1"}, &listener{v6: true, link: "v2"}
	for _, c := range []struct {
		at           *listener
		from         string
		ingress, vrf int
		want         edge.PeerID
		reason       string
	}{
		{all, "fe80::1", index(1), 0, "r1", ""},
		{link1, "fe80::1", index(1), 0, "r1", ""},
		{link2, "fe80::1", index(2), 0, "r2", ""},
		{all, "fe80::1", index(2), 0, "r2", withoutKey},
		{all, "fe80::1", index(3), 0, "any", wrongInterface},
		{all, "fe80::1", 0, 0, "any", wrongInterface},
		{all, "fe80::1", index(3), index(1), "any", ""}, // what originOf never makes
		{all, "fe80::3", index(1), 0, "", unknownAddress},
		{all, "10.0.3.2", index(2), 0, "r3", ""},
		{all, "10.0.4.2", index(1), 0, "r4", ""},
		{all, "10.0.4.2", index(2), 0, "r4", wrongInterface},
		{all, "10.0.4.2", index(2), index(3), "r4", ""}, // in a VRF
		{all, "10.0.4.2", 0, 0, "r4", ""},               // the kernel does not say
	} {
		r.hub.mu.Lock()
		p, reason, why := r.hub.match(c.at, origin{netip.MustParseAddr(c.from), c.ingress, c.vrf})
		r.hub.mu.Unlock()
		got := edge.PeerID("")
		if p != nil {
			got = p.c.Peer.ID
		}
		if reason != c.reason || got != c.want && c.want != "any" || (why == "") != (reason == "") {
			t.Errorf("%s at %q from %d, %d: %s %q %q, want %s %q", c.from, c.at.link, c.ingress, c.vrf, got, reason, why, c.want, c.reason)
		}
	}
}
