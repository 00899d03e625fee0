package relay

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
)

var equateAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
var equatePrefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// TestBird: what GoBGP announces is what BIRD has and what the relay notes.
func TestBird(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	b := newBird(t, r, 1, birdOptions{session: "passive;"})
	p := peerN(1)
	g := r.add(p)
	st := r.established(p)
	if st.Local.Addr() != netip.MustParseAddr("10.0.1.1") || st.Remote.ASN != 65101 || st.Remote.ID != p.Addr ||
		st.Remote.Hold != 9*time.Second || st.Ours.ASN != ourAS || st.Flaps != 0 || st.Since.IsZero() {
		t.Errorf("state of the session: %+v", st)
	}
	g.both()
	b.has(net4, "BGP.as_path: 4200000001\n", "BGP.next_hop: 10.0.1.1", "(65535,0)", "(4200000001, 1, 2)")
	b.has(net6, "BGP.next_hop: fd00:1::1")
	r.holds(p, net4, net6)

	// A degraded path is an implicit update.
	g.announce(route{net4, "10.0.1.1", 3, 500})
	b.has(net4, "BGP.as_path: 4200000001 4200000001 4200000001 4200000001\n", "BGP.med: 500")
	want := edge.HeldPrefix{Net: net4, NextHop: netip.MustParseAddr("10.0.1.1"), Attributes: edge.Attributes{
		Prepend: 3, MED: 500, Communities: []edge.Community{edge.GracefulShutdown}, Large: []edge.LargeCommunity{{Global: ourAS, Local1: 1, Local2: 2}},
	}}
	eventually(t, func() string { // it is noted once it is written: BIRD may have it before
		st = r.state(p)
		return cmp.Diff(want, st.Held[0], equateAddrs, equatePrefixes)
	})
	if st.Counts.WithdrawsSent != 0 || st.Counts.UpdatesSent != 3 || st.Counts.Malformed != 0 {
		t.Errorf("counts: %+v", st.Counts)
	}
	g.withdraw(plain4)
	b.has(net4)
	if st := r.holds(p, net6); st.Counts.WithdrawsSent != 1 {
		t.Errorf("counts after a withdrawal: %+v", st.Counts)
	}
	r.remove(p)
	b.logs("edge: Received: ", "Peer de-configured")
	b.has(net6)
	if got := r.words[p.Addr]; !slices.Equal(got[:min(len(got), 5)], []string{"active", "connect", "active", "opensent", "openconfirm"}) &&
		!slices.Contains(got, "established") {
		t.Errorf("changes: %v", got)
	}
}

func TestFRR(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	f := newFRR(t, r, 1, "10.0.1.2")
	p := peerN(1)
	g := r.add(p)
	g.both()
	r.established(p)
	f.has(net4, "10.0.1.1", "4200000001")
	f.has(net6, "fd00:1::1")
	r.holds(p, net4, net6)
	r.hub.Shutdown(p.Addr, "works on the box")
	st := r.until(p, "idle", "works on the box")
	if st.Held != nil || st.Flaps != 1 {
		t.Errorf("after a shutdown: %+v", st)
	}
	eventually(t, func() string {
		if out := f.log.Output(); !strings.Contains(out, "Administrative Shutdown") || !strings.Contains(out, "works on the box") {
			return "the words in " + out
		}
		return ""
	})
	r.never(p, 2*time.Second)
}
