package bgp

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// TestSeveralServers: a prefix is withdrawn from all or from none, and a server
// that fails costs the other peers nothing.
func TestSeveralServers(t *testing.T) {
	f := &faulty{}
	s := f.unstarted()
	in := plainIntent()
	b := in.Speaker.Peers[0]
	b.ID, b.Addr, b.Prefixes = "b", netip.MustParseAddr("192.0.2.253"), []netip.Prefix{p4}
	in.Speaker.Peers = append(in.Speaker.Peers, b)
	f.spare(s, "x ")
	f.spare(s, "y ")
	if err := s.accept(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	first := f.did()
	for _, want := range []string{"add 198.51.100.0/24", "relay a", "relay b"} {
		if !strings.Contains(first, want) {
			t.Errorf("first intent: did %s", first)
		}
	}
	if strings.Count(first, "add 2001:db8::/32") != 1 {
		t.Errorf("the second peer does not select the prefix: %s", first)
	}
	f.fault = func(c string) error {
		if c == "y delete 198.51.100.0/24" {
			return errors.New("no")
		}
		return nil
	}
	// The order of the announcements is the same before and after.
	in2 := ordered(in, p4)
	in2.Announcements, in2.Withdraw[0].Until = in.Announcements[1:], time.Now().Add(time.Second)
	s.intent.Announcements[0], s.intent.Announcements[1] = s.intent.Announcements[1], s.intent.Announcements[0]
	s.retry()
	f.did()
	if err := s.accept(t.Context(), in2); err == nil || strings.Count(err.Error(), "stays") != 1 {
		t.Errorf("withdrawal: %v", err)
	}
	did := f.did()
	for _, want := range []string{"x delete 198.51.100.0/24", "x add 198.51.100.0/24", "y delete 198.51.100.0/24", "y add 198.51.100.0/24"} {
		if !strings.Contains(did, want) {
			t.Errorf("a withdrawal that fails at one peer: did %s, want %s", did, want)
		}
	}
	// A server that hangs is found once; then nothing is taken from the others.
	f.fault = func(c string) error {
		if strings.HasPrefix(c, "y ") {
			return context.DeadlineExceeded
		}
		return nil
	}
	both := ordered(in2, p6)
	if err := s.accept(t.Context(), both); err == nil || strings.Count(err.Error(), "stays") != 2 {
		t.Errorf("withdrawals: %v", err)
	}
	if did := f.did(); strings.Contains(did, "delete 2001:db8::/32") {
		t.Errorf("taken from one peer only: did %s", did)
	}
	f.fault = nil
	s.retry()
	if err := s.accept(t.Context(), both); err != nil || len(s.intent.Announcements) != 0 {
		t.Errorf("withdrawn: %v, %+v", err, s.intent.Announcements)
	}
}

// TestPeerSettings: what a change of a peer's settings does, call by call.
func TestPeerSettings(t *testing.T) {
	f := &faulty{}
	s := speakerOf(t, f)
	in := plainIntent()
	for _, c := range []struct {
		name   string
		change func(*edge.Peer)
		did    string
	}{
		{"nothing", func(*edge.Peer) {}, ""},
		{"name", func(p *edge.Peer) { p.ID = "b" }, ""},
		{"attributes", func(p *edge.Peer) { p.Announce.MED = 7 }, "add 198.51.100.0/24, add 2001:db8::/32"},
		{"selection", func(p *edge.Peer) { p.Prefixes = []netip.Prefix{p6} }, "delete 198.51.100.0/24"},
		{"selection back", func(p *edge.Peer) { p.Prefixes = nil }, "add 198.51.100.0/24"},
		{"limit", func(p *edge.Peer) { p.ImportLimit, p.ConnectRetry = 9, 9*time.Second }, ""},
		{"hold", func(p *edge.Peer) { p.Hold = 30 * time.Second },
			"unrelay 192.0.2.254: " + newSettings + ", leave, meet AS64501, relay b"},
		{"inside", func(p *edge.Peer) { p.ASN, p.Multihop = 64500, 0 },
			"unrelay 192.0.2.254: " + newSettings + ", add 198.51.100.0/24, add 2001:db8::/32, leave, meet AS64500, relay b"},
	} {
		in = normal(in)
		c.change(&in.Speaker.Peers[0])
		if err := s.accept(t.Context(), in); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if did := f.did(); did != c.did {
			t.Errorf("%s: did %s, want %s", c.name, did, c.did)
		}
	}
	// Trouble with a peer is shown with it, and no error of the intent.
	f.fault = func(c string) error {
		if c == "relay b" {
			return errors.New("no")
		}
		return nil
	}
	in.Speaker.Peers[0].Hold = 9 * time.Second
	if err := s.accept(t.Context(), in); err != nil || s.failed || s.untilWake() > retryPause {
		t.Errorf("a peer that is refused: %v, failed %v", err, s.failed)
	}
	if st := s.state().Peers[0]; st.LastErr != "peer refused: no" || st.Session != "idle" {
		t.Errorf("a peer that is refused: %+v", st)
	}
	// Removed, its server is kept for the next one.
	f.fault = nil
	f.did()
	in.Speaker.Peers = nil
	if err := s.accept(t.Context(), in); err != nil || f.did() != "leave, clear" || len(s.engine.pool.spare) != 1 || len(s.engine.peerings) != 0 {
		t.Errorf("removed: %v", err)
	}
	in.Speaker.Peers = plainIntent().Speaker.Peers
	if err := s.accept(t.Context(), in); err != nil || f.did() != "add 198.51.100.0/24, add 2001:db8::/32, meet AS64501, relay a" {
		t.Errorf("added again: %v", err)
	}
}

// TestForeign: a prefix that is not ours is refused, one that is announced stays.
func TestForeign(t *testing.T) {
	f := &faulty{}
	s := speakerOf(t, f)
	in := plainIntent()
	in.Speaker.Own = []netip.Prefix{p6}
	if err := s.accept(t.Context(), in); err != nil {
		t.Errorf("one that is announced: %v", err)
	}
	in.Announcements = append(in.Announcements, edge.Announcement{Net: netip.MustParsePrefix("203.0.113.0/24"), NextHop: in.Announcements[0].NextHop})
	if err := s.accept(t.Context(), in); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "announcement 3 (203.0.113.0/24): outside of the fleet's prefixes") || f.did() != "" {
		t.Errorf("a foreign one: %v", err)
	}
	in.Announcements[2].Net = netip.MustParsePrefix("2001:db8:1::/48")
	in.Announcements[2].NextHop = in.Announcements[1].NextHop
	if err := s.accept(t.Context(), in); err != nil || f.did() != "add 2001:db8:1::/48" {
		t.Errorf("a part of ours: %v", err)
	}
}
