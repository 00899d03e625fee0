package edge

import (
	"net/netip"
	"testing"
	"time"
)

// TestDropsRoutesByPeer: which changes of the BGP settings would withdraw something.
func TestDropsRoutesByPeer(t *testing.T) {
	p4, p6 := netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:100::/48")
	peer := Peer{ID: "r", Addr: netip.MustParseAddr("192.0.2.1"), ASN: 65001, Hold: 9 * time.Second, KeyStamp: "one"}
	old := Speaker{ASN: 64512, Peers: []Peer{peer}}
	st := SpeakerState{
		Announcements: []Announcement{{Net: p4}},
		Peers:         []PeerState{{ID: "r", Addr: peer.Addr, Session: "established", Held: []HeldPrefix{{Net: p4}}}},
	}
	for name, tt := range map[string]struct {
		change func(*Speaker, *Peer)
		drops  bool
	}{
		"nothing":                 {func(*Speaker, *Peer) {}, false},
		"how it is announced":     {func(_ *Speaker, p *Peer) { p.Announce.Prepend = 2 }, false},
		"BFD":                     {func(_ *Speaker, p *Peer) { p.BFD = &BFD{} }, false},
		"an IPv4 next hop":        {func(_ *Speaker, p *Peer) { p.NextHop4 = netip.MustParseAddr("192.0.2.9") }, false},
		"prefixes with it":        {func(_ *Speaker, p *Peer) { p.Prefixes = []netip.Prefix{p4} }, false},
		"prefixes without it":     {func(_ *Speaker, p *Peer) { p.Prefixes = []netip.Prefix{p6} }, true},
		"only watched":            {func(_ *Speaker, p *Peer) { p.Watch = true }, true},
		"the hold time":           {func(_ *Speaker, p *Peer) { p.Hold = time.Minute }, true},
		"an IPv6 next hop":        {func(_ *Speaker, p *Peer) { p.NextHop4 = netip.MustParseAddr("2001:db8::9") }, true},
		"the AS":                  {func(s *Speaker, _ *Peer) { s.ASN = 1 }, true},
		"the name of the peer":    {func(_ *Speaker, p *Peer) { p.ID = "x" }, false},
		"its address":             {func(_ *Speaker, p *Peer) { p.Addr = netip.MustParseAddr("192.0.2.2") }, true},
		"its key":                 {func(_ *Speaker, p *Peer) { p.KeyStamp = "another" }, true},
		"its families":            {func(_ *Speaker, p *Peer) { p.Families = []Family{IPv6} }, true},
		"where the RPKI is asked": {func(s *Speaker, _ *Peer) { s.RPKI.File = "/x" }, false},
	} {
		next, p := old, peer
		tt.change(&next, &p)
		next.Peers = []Peer{p}
		if why := DropsRoutes(old, next, st); (why != "") != tt.drops {
			t.Errorf("%s: %q", name, why)
		}
	}
	// To take BFD off ends the session, unless the router has none any more.
	for _, tt := range []struct {
		st    *BFDState
		next  *BFD
		drops bool
	}{
		{&BFDState{State: "up", Remote: "up"}, nil, true},
		{&BFDState{State: "init", Remote: "down"}, nil, true},
		{&BFDState{State: "down", Remote: "up"}, nil, true},
		{&BFDState{State: "down", Remote: "admin-down"}, nil, false},
		{&BFDState{State: "down", Remote: "down"}, nil, false},
		{nil, nil, false},
		{&BFDState{State: "up", Remote: "up"}, &BFD{Multiplier: 5}, false},
	} {
		was, next := peer, peer
		was.BFD, next.BFD = &BFD{Multiplier: 3}, tt.next
		st.Peers[0].BFD = tt.st
		why := DropsRoutes(Speaker{ASN: 64512, Peers: []Peer{was}}, Speaker{ASN: 64512, Peers: []Peer{next}}, st)
		if (why != "") != tt.drops {
			t.Errorf("BFD %+v, then %+v: %q", tt.st, tt.next, why)
		}
	}
}

// TestDropsRoutes: one session that needs no change is enough for a prefix.
func TestDropsRoutes(t *testing.T) {
	p4 := netip.MustParsePrefix("198.51.100.0/24")
	addr := map[PeerID]netip.Addr{"r1": netip.MustParseAddr("192.0.2.1"), "r2": netip.MustParseAddr("192.0.2.2"), "r3": netip.MustParseAddr("192.0.2.3")}
	peer := func(id PeerID, hold time.Duration) Peer {
		return Peer{ID: id, Addr: addr[id], ASN: 65001, Hold: hold}
	}
	speaker := func(asn uint32, peers ...Peer) Speaker { return Speaker{ASN: asn, Peers: peers} }
	held := func(ids ...PeerID) SpeakerState {
		st := SpeakerState{Announcements: []Announcement{{Net: p4}}}
		for _, id := range ids {
			st.Peers = append(st.Peers, PeerState{ID: id, Addr: addr[id], Session: "established", Held: []HeldPrefix{{Net: p4}}})
		}
		return st
	}
	old := speaker(1, peer("r1", 9), peer("r2", 9))
	for _, tt := range []struct {
		name  string
		next  Speaker
		st    SpeakerState
		drops bool
	}{
		{"nothing changes", old, held("r1", "r2"), false},
		{"a peer more", speaker(1, peer("r1", 9), peer("r2", 9), peer("r3", 9)), held("r1", "r2"), false},
		{"one of two changes", speaker(1, peer("r1", 3), peer("r2", 9)), held("r1", "r2"), false},
		{"one of two goes", speaker(1, peer("r2", 9)), held("r1", "r2"), false},
		{"the only one that holds it changes", speaker(1, peer("r1", 3), peer("r2", 9)), held("r1"), true},
		{"both change", speaker(1, peer("r1", 3), peer("r2", 3)), held("r1", "r2"), true},
		{"all go", speaker(1), held("r1", "r2"), true},
		{"another AS", speaker(2, peer("r1", 9), peer("r2", 9)), held("r1", "r2"), true},
		{"another AS, nobody holds anything", speaker(2, peer("r1", 9)), held(), false},
	} {
		if why := DropsRoutes(old, tt.next, tt.st); (why != "") != tt.drops {
			t.Errorf("%s: %q", tt.name, why)
		}
	}
}
