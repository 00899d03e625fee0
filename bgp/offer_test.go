package bgp

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/osrg/gobgp/v3/pkg/apiutil"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
	"github.com/catchment-dev/edge/bgp/wire"
)

// checkRoundTrip sends what p is sent of a through GoBGP's form to the bytes of
// an UPDATE, and reads them as the relay does.
func checkRoundTrip(t *testing.T, s edge.Speaker, p edge.Peer, a edge.Announcement) {
	t.Helper()
	want, why := offer(s, p, a)
	if why != "" {
		return
	}
	path, err := want.path(a.Net, s.ASN)
	if err != nil {
		t.Fatalf("%+v: %v", a, err)
	}
	attrs, err := apiutil.GetNativePathAttributes(path)
	if err != nil {
		t.Fatalf("%+v: %v", a, err)
	}
	nlri := []*bgp.IPAddrPrefix{}
	if want.nextHop.Is4() {
		nlri = append(nlri, nlriOf(a.Net).(*bgp.IPAddrPrefix))
	}
	if want.attrs.Prepend == 0 { // GoBGP adds it
		attrs = append(attrs, bgp.NewPathAttributeAsPath(nil))
	}
	raw, err := bgp.NewBGPUpdateMessage(nil, attrs, nlri).Serialize()
	if err != nil || len(raw) > wire.MaxLen {
		t.Fatalf("%+v: %d bytes, %v", a, len(raw), err)
	}
	u, err := wire.ParseUpdate(raw, true)
	if err != nil || len(u.Strange) > 0 || !slices.Equal(u.Announced, []netip.Prefix{a.Net}) {
		t.Fatalf("%+v is read back as %+v, %v", a, u, err)
	}
	got := edge.Attributes{Prepend: len(u.Path.ASPath), Communities: u.Path.Communities, Large: u.Path.Large}
	if u.Path.MED != nil {
		got.MED = *u.Path.MED
	}
	if u.Path.LocalPref != nil {
		got.LocalPref = *u.Path.LocalPref
	}
	if u.PathOf(0).NextHop != want.nextHop || !got.Equal(want.attrs) {
		t.Fatalf("%s %+v is read back as %+v", a.Net, want, u.Path)
	}
}

func TestPathRoundTrip(t *testing.T) {
	in := normal(goodIntent())
	p := in.Speaker.Peers[0]
	p.Announce = edge.Attributes{LocalPref: 200, Large: []edge.LargeCommunity{{Global: 1 << 31, Local1: 2, Local2: 3}}}
	inside := p
	inside.ASN = in.Speaker.ASN
	extended := p
	extended.NextHop4 = netip.MustParseAddr("2001:db8::1")
	for _, a := range in.Announcements {
		for _, p := range []edge.Peer{p, inside, extended} {
			for _, degrade := range []bool{false, true} {
				a.Degrade = degrade
				checkRoundTrip(t, in.Speaker, p, a)
			}
		}
	}
}

func TestOffer(t *testing.T) {
	in := normal(goodIntent())
	s, base := in.Speaker, in.Speaker.Peers[0]
	a4, a6 := in.Announcements[0], in.Announcements[1]
	a4.Normal = edge.Attributes{Prepend: 1, MED: 5, LocalPref: 50, Communities: []edge.Community{2}}
	a4.Degraded = edge.Attributes{Prepend: 3}
	longer := a4
	longer.Net = netip.MustParsePrefix("198.51.100.0/25")
	down := a4
	down.Degrade = true
	own := edge.Attributes{Prepend: 9, LocalPref: 7, Communities: []edge.Community{1, 2}}
	for name, c := range map[string]struct {
		a      edge.Announcement
		change func(*edge.Peer)
		want   edge.Attributes
		hop    string
		why    string
	}{
		"plain":              {a4, func(*edge.Peer) {}, edge.Attributes{Prepend: 1, MED: 5, Communities: []edge.Community{2}}, "192.0.2.1", ""},
		"its own":            {a4, func(p *edge.Peer) { p.Announce = own }, edge.Attributes{Prepend: 10, MED: 5, Communities: []edge.Community{1, 2}}, "192.0.2.1", ""},
		"degraded":           {down, func(p *edge.Peer) {}, edge.Attributes{Prepend: 3}, "192.0.2.1", ""},
		"its own degraded":   {down, func(p *edge.Peer) { p.Degraded = &edge.Attributes{MED: 9} }, edge.Attributes{MED: 9}, "192.0.2.1", ""},
		"iBGP":               {a4, func(p *edge.Peer) { p.ASN = s.ASN }, edge.Attributes{MED: 5, LocalPref: 50, Communities: []edge.Community{2}}, "192.0.2.1", ""},
		"iBGP default":       {down, func(p *edge.Peer) { p.ASN = s.ASN }, edge.Attributes{LocalPref: 100}, "192.0.2.1", ""},
		"next hop":           {a4, func(p *edge.Peer) { p.NextHop4 = netip.MustParseAddr("2001:db8::9") }, edge.Attributes{Prepend: 1, MED: 5, Communities: []edge.Community{2}}, "2001:db8::9", ""},
		"next hop 6":         {a6, func(p *edge.Peer) { p.NextHop6 = netip.MustParseAddr("2001:db8::9") }, edge.Attributes{}, "2001:db8::9", ""},
		"the peer itself":    {a4, func(p *edge.Peer) { p.Addr = a4.NextHop }, edge.Attributes{}, "", "is the peer itself"},
		"watch":              {a4, func(p *edge.Peer) { p.Watch = true }, edge.Attributes{}, "", "only watched"},
		"family":             {a6, func(p *edge.Peer) { p.Families = p.Families[:1] }, edge.Attributes{}, "", "does not carry ipv6"},
		"selected":           {a4, func(p *edge.Peer) { p.Prefixes = []netip.Prefix{a4.Net} }, edge.Attributes{Prepend: 1, MED: 5, Communities: []edge.Community{2}}, "192.0.2.1", ""},
		"not selected":       {a6, func(p *edge.Peer) { p.Prefixes = []netip.Prefix{a4.Net} }, edge.Attributes{}, "", "not among the peer's prefixes"},
		"longer":             {longer, func(p *edge.Peer) {}, edge.Attributes{}, "", "longer than /24, to an external peer: set allow_longer"},
		"longer, allowed":    {longer, func(p *edge.Peer) { p.AllowLonger = true }, edge.Attributes{Prepend: 1, MED: 5, Communities: []edge.Community{2}}, "192.0.2.1", ""},
		"longer, within":     {longer, func(p *edge.Peer) { p.ASN = s.ASN }, edge.Attributes{MED: 5, LocalPref: 50, Communities: []edge.Community{2}}, "192.0.2.1", ""},
		"longer than a /48":  {edge.Announcement{Net: netip.MustParsePrefix("2001:db8::/49"), NextHop: a6.NextHop}, func(p *edge.Peer) {}, edge.Attributes{}, "", "longer than /48"},
		"as long as allowed": {edge.Announcement{Net: netip.MustParsePrefix("2001:db8::/48"), NextHop: a6.NextHop}, func(p *edge.Peer) {}, edge.Attributes{}, "2001:db8::1", ""},
	} {
		p := base
		c.change(&p)
		r, why := offer(s, p, c.a)
		if r == nil {
			r = &route{}
		}
		if !r.attrs.Equal(c.want) || (c.hop != "") != r.nextHop.IsValid() || c.hop != "" && r.nextHop.String() != c.hop {
			t.Errorf("%s: %+v, want %+v by %s", name, r, c.want, c.hop)
		}
		if (why == "") != (c.why == "") || !strings.Contains(string(why), c.why) {
			t.Errorf("%s: %q, want %q", name, why, c.why)
		}
	}
}

// Every field of a peer is sorted into those whose change needs another session
// and those whose does not.
func TestSameSession(t *testing.T) {
	needs := map[string]bool{
		"Addr": true, "ASN": true, "LocalAddr": true, "Families": true, "Hold": true, "Keepalive": true, "Multihop": true, "TTLSecurity": true,
		"Interface": true, "Passive": true, "Watch": true, "RestartTime": true, "NextHop4": true,
		"ID": false, "KeyStamp": false, "ConnectRetry": false, "PasswordFile": false, "Prefixes": false, "Announce": false, "Degraded": false, "NextHop6": false,
		"AllowLonger": false, "ImportLimit": false, "DefaultRoute": false, "BFD": false,
	}
	base := goodIntent().Speaker.Peers[0]
	other := edge.Peer{
		ID: "other", Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1, LocalAddr: netip.MustParseAddr("192.0.2.8"), Families: []edge.Family{edge.IPv4},
		Hold: 1, Keepalive: 1, ConnectRetry: 1, PasswordFile: "/other", KeyStamp: "other", Multihop: 9, TTLSecurity: 9, Interface: "eth9", Passive: false, Watch: true,
		Prefixes: []netip.Prefix{p4}, Announce: edge.Attributes{MED: 1}, Degraded: &edge.Attributes{}, NextHop4: netip.MustParseAddr("2001:db8::9"),
		NextHop6: netip.MustParseAddr("2001:db8::9"), AllowLonger: true, ImportLimit: 9, DefaultRoute: true, RestartTime: 9, BFD: &edge.BFD{},
	}
	fields := reflect.TypeFor[edge.Peer]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		want, known := needs[name]
		p := base
		reflect.ValueOf(&p).Elem().Field(i).Set(reflect.ValueOf(other).Field(i))
		if reflect.DeepEqual(p, base) {
			t.Fatalf("%s is not changed by the test", name)
		}
		if got := !sameSession(base, p); !known || got != want {
			t.Errorf("a change of %s needs another session: %v; want %v, known %v", name, got, want, known)
		}
	}
	p := base
	p.NextHop4 = netip.MustParseAddr("192.0.2.7")
	if !sameSession(base, p) {
		t.Error("another IPv4 next hop needs another session")
	}
}

func TestUnfit(t *testing.T) {
	both := []edge.Family{edge.IPv4, edge.IPv6}
	live := relay.State{Session: established, Ours: wire.Open{Families: both}, Remote: wire.Open{Families: []edge.Family{edge.IPv4}}}
	over6 := &route{nextHop: netip.MustParseAddr("2001:db8::1")}
	for name, c := range map[string]struct {
		net  netip.Prefix
		r    *route
		live relay.State
		want string
	}{
		"fits":     {p4, &route{nextHop: netip.MustParseAddr("192.0.2.1")}, live, ""},
		"family":   {p6, over6, live, "does not speak ipv6"},
		"next hop": {p4, over6, live, "RFC 8950"},
		"next hop, offered": {p4, over6, relay.State{
			Ours: live.Ours, Remote: wire.Open{Families: both, ExtendedNextHop: both},
		}, ""},
	} {
		if got := string(unfit(c.net, c.r, negotiated(c.live), c.live)); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
