package bgp

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/catchment-dev/edge"
)

func goodIntent() edge.Intent {
	return edge.Intent{
		Generation: 3,
		Speaker: edge.Speaker{
			ASN: 64500, RouterID: netip.MustParseAddr("192.0.2.1"), Listen: 179, Lease: 5 * time.Second,
			Peers: []edge.Peer{{
				ID: "a", Addr: netip.MustParseAddr("192.0.2.254"), ASN: 64501, LocalAddr: netip.MustParseAddr("192.0.2.1"),
				Families: []edge.Family{edge.IPv6, edge.IPv4}, Hold: 9 * time.Second, Keepalive: 3 * time.Second, ConnectRetry: 2 * time.Second,
				PasswordFile: "/etc/edge/a.key", Multihop: 2, Passive: true,
			}},
		},
		Announcements: []edge.Announcement{{
			Net: netip.MustParsePrefix("198.51.100.0/24"), NextHop: netip.MustParseAddr("192.0.2.1"),
			Normal:   edge.Attributes{Communities: []edge.Community{3, 1, 3}},
			Degraded: edge.Attributes{Prepend: 10, MED: 1, Communities: []edge.Community{edge.GracefulShutdown}},
		}, {
			Net: netip.MustParsePrefix("2001:db8::/32"), NextHop: netip.MustParseAddr("2001:db8::1"),
		}},
	}
}

// spoiled is a change of goodIntent and what must be said of it.
type spoiled struct {
	spoil func(*edge.Intent)
	want  []string
}

func ofSpeaker(f func(*edge.Speaker)) func(*edge.Intent) {
	return func(in *edge.Intent) { f(&in.Speaker) }
}
func ofPeer(f func(*edge.Peer)) func(*edge.Intent) {
	return func(in *edge.Intent) { f(&in.Speaker.Peers[0]) }
}
func ofFirst(f func(*edge.Announcement)) func(*edge.Intent) {
	return func(in *edge.Intent) { f(&in.Announcements[0]) }
}

func spoiledSpeakers() map[string]spoiled {
	addr, speaker, peer := netip.MustParseAddr, ofSpeaker, ofPeer
	return map[string]spoiled{
		"good":             {func(*edge.Intent) {}, nil},
		"no announcements": {func(in *edge.Intent) { in.Announcements = nil }, nil},
		"no peers":         {speaker(func(s *edge.Speaker) { s.Peers = nil }), nil},
		"zero":             {func(in *edge.Intent) { *in = edge.Intent{} }, []string{"ASN 0", "router id", "lease 0s"}},
		"AS_TRANS":         {speaker(func(s *edge.Speaker) { s.ASN = 23456 }), []string{"speaker: ASN 23456 is reserved"}},
		"router id v6":     {speaker(func(s *edge.Speaker) { s.RouterID = addr("::1") }), []string{"router id"}},
		"router id zero":   {speaker(func(s *edge.Speaker) { s.RouterID = addr("0.0.0.0") }), []string{"router id"}},
		"port":             {speaker(func(s *edge.Speaker) { s.Listen = 65536 }), []string{"listen port 65536"}},
		"port below":       {speaker(func(s *edge.Speaker) { s.Listen = -1 }), []string{"listen port -1", ""}},
		"lease short":      {speaker(func(s *edge.Speaker) { s.Lease = time.Millisecond }), []string{"lease 1ms"}},
		"lease long":       {speaker(func(s *edge.Speaker) { s.Lease = 2 * time.Hour }), []string{"lease 2h"}},
		"many peers": {speaker(func(s *edge.Speaker) { s.Peers = slices.Repeat(s.Peers, 257) }),
			[]string{"257 peers are more than 256"}},
		"peer twice": {speaker(func(s *edge.Speaker) { s.Peers = slices.Repeat(s.Peers, 2) }),
			[]string{`peer 2 ("a"): second peer with this id`, "second peer with address 192.0.2.254"}},
		"peer no id":      {peer(func(p *edge.Peer) { p.ID = "" }), []string{"no id"}},
		"peer ibgp":       {peer(func(p *edge.Peer) { p.ASN = 64500 }), nil},
		"peer no address": {peer(func(p *edge.Peer) { p.Addr = netip.Addr{} }), []string{"address"}},
		"peer zone":       {peer(func(p *edge.Peer) { p.Addr, p.LocalAddr = addr("fe80::1%eth0"), netip.Addr{} }), []string{"without zone"}},
		"peer mapped":     {peer(func(p *edge.Peer) { p.Addr = addr("::ffff:1.2.3.4") }), []string{"not a unicast"}},
		"peer multicast":  {peer(func(p *edge.Peer) { p.Addr = addr("224.0.0.1") }), []string{"not a unicast"}},
		"local family":    {peer(func(p *edge.Peer) { p.LocalAddr = addr("2001:db8::1") }), []string{"local address"}},
		"local is peer":   {peer(func(p *edge.Peer) { p.LocalAddr = p.Addr }), []string{"local address"}},
	}
}

func spoiledRest() map[string]spoiled {
	addr, prefix, speaker, peer, first := netip.MustParseAddr, netip.MustParsePrefix, ofSpeaker, ofPeer, ofFirst
	return map[string]spoiled{
		"no families":       {peer(func(p *edge.Peer) { p.Families = nil }), []string{"no families"}},
		"family unknown":    {peer(func(p *edge.Peer) { p.Families = []edge.Family{"vpn"} }), []string{`family "vpn" is not`}},
		"family twice":      {peer(func(p *edge.Peer) { p.Families = []edge.Family{edge.IPv4, edge.IPv4} }), []string{"twice"}},
		"hold zero":         {peer(func(p *edge.Peer) { p.Hold = 0 }), []string{"hold 0s", "below hold"}},
		"hold fraction":     {peer(func(p *edge.Peer) { p.Hold += time.Millisecond }), []string{"hold 9.001s"}},
		"hold long":         {peer(func(p *edge.Peer) { p.Hold = 65536 * time.Second }), []string{"hold 18h"}},
		"keepalive too big": {peer(func(p *edge.Peer) { p.Keepalive = p.Hold }), []string{"keepalive 9s"}},
		"keepalive zero":    {peer(func(p *edge.Peer) { p.Keepalive = 0 }), []string{"keepalive 0s"}},
		"retry zero":        {peer(func(p *edge.Peer) { p.ConnectRetry = 0 }), []string{"connect retry 0s"}},
		"multihop":          {peer(func(p *edge.Peer) { p.Multihop = 256 }), []string{"multihop 256"}},
		"multihop below":    {peer(func(p *edge.Peer) { p.Multihop = -1 }), []string{"multihop -1"}},
		"passive and deaf":  {speaker(func(s *edge.Speaker) { s.Listen = 0 }), []string{"passive, but the speaker listens on no port"}},
		"zero byte":         {peer(func(p *edge.Peer) { p.PasswordFile = "a\x00b" }), []string{"zero byte"}},
		"host bits":         {first(func(a *edge.Announcement) { a.Net = prefix("198.51.100.1/24") }), []string{"without host bits"}},
		"no prefix":         {first(func(a *edge.Announcement) { a.Net = netip.Prefix{} }), []string{"not a unicast prefix", "next hop"}},
		"default route":     {first(func(a *edge.Announcement) { a.Net = prefix("0.0.0.0/0") }), []string{"not a unicast prefix"}},
		"multicast":         {first(func(a *edge.Announcement) { a.Net = prefix("239.0.0.0/8") }), []string{"not a unicast prefix"}},
		"loopback":          {first(func(a *edge.Announcement) { a.Net = prefix("127.0.0.0/8") }), []string{"not a unicast prefix"}},
		"mapped": {first(func(a *edge.Announcement) {
			a.Net, a.NextHop = netip.PrefixFrom(addr("::ffff:1.2.3.0"), 120), addr("2001:db8::1")
		}), []string{"not a unicast prefix"}},
		"next hop family":   {first(func(a *edge.Announcement) { a.NextHop = addr("2001:db8::1") }), []string{"next hop"}},
		"next hop missing":  {first(func(a *edge.Announcement) { a.NextHop = netip.Addr{} }), []string{"next hop"}},
		"next hop zero":     {first(func(a *edge.Announcement) { a.NextHop = addr("0.0.0.0") }), []string{"next hop"}},
		"next hop loopback": {first(func(a *edge.Announcement) { a.NextHop = addr("127.0.0.1") }), []string{"next hop"}},
		"prefix twice": {func(in *edge.Intent) { in.Announcements = slices.Repeat(in.Announcements[:1], 2) },
			[]string{"announcement 2 (198.51.100.0/24): second announcement"}},
		"prepend":       {first(func(a *edge.Announcement) { a.Normal.Prepend = 11 }), []string{"normal: prepend 11"}},
		"prepend below": {first(func(a *edge.Announcement) { a.Degraded.Prepend = -1 }), []string{"degraded: prepend -1"}},
		"communities":   {first(func(a *edge.Announcement) { a.Normal.Communities = make([]edge.Community, 65) }), []string{"65 communities"}},
		"many announcements": {func(in *edge.Intent) { in.Announcements = make([]edge.Announcement, 10001) },
			[]string{"10001 announcements and withdrawals are more than 10000"}},
		"withdraw another": {func(in *edge.Intent) { in.Withdraw = []edge.Withdrawal{{Net: prefix("203.0.113.0/24")}} }, nil},
		"withdraw and announce": {func(in *edge.Intent) { in.Withdraw = []edge.Withdrawal{{Net: in.Announcements[0].Net}} },
			[]string{"withdrawal 1 (198.51.100.0/24): the prefix is announced by the same intent"}},
		"withdraw twice": {func(in *edge.Intent) {
			in.Withdraw = slices.Repeat([]edge.Withdrawal{{Net: prefix("203.0.113.0/24")}}, 2)
		}, []string{"withdrawal 2 (203.0.113.0/24): second withdrawal"}},
		"withdraw host bits": {func(in *edge.Intent) { in.Withdraw = []edge.Withdrawal{{Net: prefix("203.0.113.1/24")}} },
			[]string{"withdrawal 1 (203.0.113.1/24): not a unicast prefix"}},
		"many withdrawals": {func(in *edge.Intent) { in.Withdraw = make([]edge.Withdrawal, 9999) }, []string{"10001 announcements and"}},
	}
}

func TestValidate(t *testing.T) {
	all := spoiledSpeakers()
	maps.Copy(all, spoiledRest())
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			in := goodIntent()
			c.spoil(&in)
			err := validate(in)
			if (err == nil) != (c.want == nil) || err != nil && !errors.Is(err, ErrInvalid) {
				t.Fatalf("validate: %v, want %q", err, c.want)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("validate: %v, want %q in it", err, w)
				}
			}
		})
	}
}

func TestNormalSharesNothing(t *testing.T) {
	in := goodIntent()
	before := goodIntent()
	out := normal(in)
	if got := out.Announcements[0].Normal.Communities; !slices.Equal(got, []edge.Community{1, 3}) {
		t.Errorf("communities %v", got)
	}
	if got := out.Speaker.Peers[0].Families; !slices.Equal(got, []edge.Family{edge.IPv4, edge.IPv6}) {
		t.Errorf("families %v", got)
	}
	out.Speaker.Peers[0].Families[0], out.Announcements[0].Normal.Communities[0], out.Announcements[1].Degrade = "x", 9, true
	if diff := cmp.Diff(before, in, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("normal has changed its argument:\n%s", diff)
	}
}

// FuzzIntent: whatever is sent, it is refused with a reason or it can be made
// into paths and peers, and the paths read back are what was asked for.
func FuzzIntent(f *testing.F) {
	b, err := json.Marshal(goodIntent())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"speaker":{"peers":[{}]},"announcements":[{"prefix":"::/0"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var in edge.Intent
		if json.Unmarshal(b, &in) != nil {
			return
		}
		if err := validate(in); err != nil {
			if !errors.Is(err, ErrInvalid) || len(err.Error()) <= len(ErrInvalid.Error())+2 {
				t.Fatalf("refused without a reason: %v", err)
			}
			return
		}
		in = normal(in)
		for _, p := range in.Speaker.Peers {
			if out := neighbour(p, ""); out.Timers.Config.HoldTime == 0 || len(out.AfiSafis) == 0 {
				t.Fatalf("peer %+v becomes %v", p, out)
			}
			for _, a := range in.Announcements {
				checkRoundTrip(t, in.Speaker, p, a)
			}
		}
		again, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var in2 edge.Intent
		if err := json.Unmarshal(again, &in2); err != nil {
			t.Fatalf("does not read what it has written: %v", err)
		}
	})
}
