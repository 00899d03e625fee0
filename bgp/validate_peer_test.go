package bgp

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// TestValidatePeer: what the settings of a session and of what it is sent may be.
func TestValidatePeer(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	bfd := func(minTx, minRx time.Duration, n int) *edge.BFD {
		return &edge.BFD{MinTx: minTx, MinRx: minRx, Multiplier: n}
	}
	for name, c := range map[string]struct {
		change func(*edge.Peer)
		want   string // empty: valid
	}{
		"ttl security":       {func(p *edge.Peer) { p.Multihop, p.TTLSecurity = 0, 254 }, ""},
		"ttl security above": {func(p *edge.Peer) { p.Multihop, p.TTLSecurity = 0, 255 }, "ttl security 255 is not 0 to 254"},
		"ttl security below": {func(p *edge.Peer) { p.TTLSecurity = -1 }, "ttl security -1"},
		"ttl and multihop":   {func(p *edge.Peer) { p.TTLSecurity = 1 }, "both ttl security and multihop"},
		"ttl inside":         {func(p *edge.Peer) { p.ASN, p.Multihop, p.TTLSecurity = 64500, 0, 1 }, ""},
		"link-local": {func(p *edge.Peer) {
			p.Addr, p.LocalAddr, p.Interface, p.Multihop = addr("fe80::1"), netip.Addr{}, "eth0", 0
		}, ""},
		"link-local nowhere": {func(p *edge.Peer) { p.Addr, p.LocalAddr = addr("fe80::1"), netip.Addr{} }, "set interface"},
		"link-local zone": {func(p *edge.Peer) {
			p.Addr, p.LocalAddr, p.Interface, p.Multihop = addr("fe80::1%eth0"), netip.Addr{}, "eth0", 0
		}, ""},
		"link-local other": {func(p *edge.Peer) {
			p.Addr, p.LocalAddr, p.Interface, p.Multihop = addr("fe80::1%eth0"), netip.Addr{}, "eth1", 0
		}, `the interface ("eth1")`},
		"link-local zone only": {func(p *edge.Peer) { p.Addr, p.LocalAddr, p.Multihop = addr("fe80::1%eth0"), netip.Addr{}, 0 }, "without zone"},
		"link-local own": {func(p *edge.Peer) {
			p.Addr, p.LocalAddr, p.Interface, p.Multihop = addr("fe80::1%eth0"), addr("fe80::1"), "eth0", 0
		}, "local address fe80::1 is not"},
		"link-local far":       {func(p *edge.Peer) { p.Addr, p.LocalAddr, p.Interface = addr("fe80::1%eth0"), netip.Addr{}, "eth0" }, "multihop 2"},
		"zone":                 {func(p *edge.Peer) { p.Addr, p.LocalAddr, p.Interface = addr("fd00::1%eth0"), netip.Addr{}, "eth0" }, "without zone"},
		"interface long":       {func(p *edge.Peer) { p.Interface = strings.Repeat("x", 16) }, "is not the name of an interface"},
		"interface slash":      {func(p *edge.Peer) { p.Interface = "a/b" }, "is not the name of an interface"},
		"restart":              {func(p *edge.Peer) { p.RestartTime = 4095 * time.Second }, ""},
		"restart above":        {func(p *edge.Peer) { p.RestartTime = 4096 * time.Second }, "restart time 1h8m16s"},
		"restart fraction":     {func(p *edge.Peer) { p.RestartTime = 1500 * time.Millisecond }, "restart time 1.5s"},
		"bfd":                  {func(p *edge.Peer) { p.BFD = bfd(50*time.Millisecond, 10*time.Second, 2) }, ""},
		"bfd fast":             {func(p *edge.Peer) { p.BFD = bfd(49*time.Millisecond, time.Second, 3) }, "bfd: min_tx 49ms"},
		"bfd slow":             {func(p *edge.Peer) { p.BFD = bfd(time.Second, 11*time.Second, 3) }, "bfd: min_rx 11s"},
		"bfd multiplier":       {func(p *edge.Peer) { p.BFD = bfd(time.Second, time.Second, 1) }, "bfd: multiplier 1"},
		"bfd multiplier above": {func(p *edge.Peer) { p.BFD = bfd(time.Second, time.Second, 51) }, "bfd: multiplier 51"},
		"bfd far":              {func(p *edge.Peer) { p.BFD, p.LocalAddr = bfd(time.Second, time.Second, 3), netip.Addr{} }, "needs local_address"},
		"bfd far by ttl": {func(p *edge.Peer) {
			p.BFD, p.LocalAddr, p.Multihop, p.TTLSecurity = bfd(time.Second, time.Second, 3), netip.Addr{}, 0, 2
		}, "needs local_address"},
		"bfd near": {func(p *edge.Peer) {
			p.BFD, p.LocalAddr, p.Multihop, p.TTLSecurity = bfd(time.Second, time.Second, 3), netip.Addr{}, 0, 1
		}, ""},
		"watch":             {func(p *edge.Peer) { p.Watch = true }, ""},
		"watch and sent":    {func(p *edge.Peer) { p.Watch, p.Prefixes = true, []netip.Prefix{p4} }, "watch: the peer is sent nothing"},
		"watch and policy":  {func(p *edge.Peer) { p.Watch, p.Announce.MED = true, 1 }, "watch: the peer is sent nothing"},
		"watch and degrade": {func(p *edge.Peer) { p.Watch, p.Degraded = true, &edge.Attributes{} }, "watch: the peer is sent nothing"},
		"watch and hop":     {func(p *edge.Peer) { p.Watch, p.NextHop4 = true, addr("192.0.2.1") }, "watch: the peer is sent nothing"},
		"prefix":            {func(p *edge.Peer) { p.Prefixes = []netip.Prefix{p4, prefix("198.51.100.1/24")} }, "prefix 2 (198.51.100.1/24)"},
		"announce":          {func(p *edge.Peer) { p.Announce.Prepend = 11 }, "announce: prepend 11"},
		"degraded":          {func(p *edge.Peer) { p.Degraded = &edge.Attributes{Prepend: 11} }, "degraded: prepend 11"},
		"large":             {func(p *edge.Peer) { p.Announce.Large = make([]edge.LargeCommunity, 65) }, "announce: 65 large communities"},
		"next hop":          {func(p *edge.Peer) { p.NextHop4, p.NextHop6 = addr("2001:db8::1"), addr("2001:db8::1") }, ""},
		"next hop loop":     {func(p *edge.Peer) { p.NextHop4 = addr("127.0.0.1") }, "next_hop4 127.0.0.1 is not a routable address"},
		"next hop peer":     {func(p *edge.Peer) { p.NextHop4 = p.Addr }, "is the peer itself"},
		"next hop family":   {func(p *edge.Peer) { p.NextHop6 = addr("192.0.2.1") }, "next_hop6 192.0.2.1 is not an IPv6 address"},
		"import limit":      {func(p *edge.Peer) { p.ImportLimit = -1 }, "import limit -1"},
	} {
		in := goodIntent()
		c.change(&in.Speaker.Peers[0])
		err := validate(in)
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `peer 1 ("a")`)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		change func(*edge.Speaker)
		want   string
	}{
		"rpki":    {func(s *edge.Speaker) { s.RPKI.File = "/f" }, ""},
		"rpki 2":  {func(s *edge.Speaker) { s.RPKI.File, s.RPKI.Servers = "/f", make([]netip.AddrPort, 1) }, "rpki has both"},
		"watch 2": {func(s *edge.Speaker) { s.Watch = edge.Watch{URL: "http://x", File: "/f"} }, "watch has both"},
		"missing": {func(s *edge.Speaker) { s.Watch.MissingAfter = -1 }, "missing after -1ns"},
		"own":     {func(s *edge.Speaker) { s.Own = []netip.Prefix{prefix("198.51.100.1/24")} }, "own prefix 1"},
	} {
		in := goodIntent()
		c.change(&in.Speaker)
		if err := validate(in); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestValidatePlaces: one link-local address may be that of a router on each link.
func TestValidatePlaces(t *testing.T) {
	for _, c := range []struct{ first, on, second, over, want string }{
		{"fe80::1%eth0", "eth0", "fe80::1%eth1", "eth1", ""},
		{"fe80::1", "eth0", "fe80::1%eth1", "eth1", ""},
		{"fe80::1", "eth0", "fe80::1%eth0", "eth0", "second peer with address fe80::1 on interface eth0"},
		{"fe80::1", "eth0", "fe80::1", "eth0", "second peer with address fe80::1 on interface eth0"},
		{"fe80::1", "eth0", "fe80::1", "eth1", "write it with the zone eth1"},
		{"fd00::1", "eth0", "fd00::1", "eth1", "second peer with address fd00::1"},
		{"169.254.0.1", "eth0", "169.254.0.1", "eth1", "second peer with address 169.254.0.1"},
	} {
		in := goodIntent()
		one := in.Speaker.Peers[0]
		one.LocalAddr, one.Multihop, one.BFD = netip.Addr{}, 0, nil
		two := one
		two.ID = "second"
		one.Addr, one.Interface = netip.MustParseAddr(c.first), c.on
		two.Addr, two.Interface = netip.MustParseAddr(c.second), c.over
		in.Speaker.Peers = []edge.Peer{one, two}
		if err := validate(in); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s on %s, %s on %s: %v, want %q", c.first, c.on, c.second, c.over, err, c.want)
		}
	}
}

// TestRestingIsLate: BFD says that the node rests only when nothing is announced.
func TestRestingIsLate(t *testing.T) {
	in := goodIntent()
	in.Speaker.Peers[0].BFD = &edge.BFD{MinTx: time.Second, MinRx: time.Second, Multiplier: 3}
	in.Speaker.Resting = true
	if list := bfdOf(&in); len(list) != 1 || list[0].AdminDown || !list[0].Multihop {
		t.Errorf("with announcements: %+v", list)
	}
	in.Announcements = nil
	if list := bfdOf(&in); len(list) != 1 || !list[0].AdminDown {
		t.Errorf("without: %+v", list)
	}
}
