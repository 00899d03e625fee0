package edge

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestSpeaker parses a file of peers that say all that they can.
func TestSpeaker(t *testing.T) {
	c, err := Parse("f", []byte(read(t, "testdata/bgp.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	addr, at, net, ms, s := netip.MustParseAddr, netip.MustParseAddrPort, netip.MustParsePrefix, time.Millisecond, time.Second
	plain := Peer{
		Families: []Family{IPv4, IPv6}, Hold: 9 * s, Keepalive: 3 * s, ConnectRetry: 2 * s, ImportLimit: 1000,
	}
	ext, in, link, link2, glass := plain, plain, plain, plain, plain
	ext.ID, ext.Addr, ext.ASN, ext.TTLSecurity = "ext", addr("10.1.0.1"), 65001, 1
	ext.BFD = &BFD{MinTx: 50 * ms, MinRx: 50 * ms, Multiplier: 5}
	ext.Prefixes, ext.NextHop4 = []netip.Prefix{net("192.0.2.0/24")}, addr("10.1.0.9")
	// Communities come out in order.
	ext.Announce = Attributes{
		Prepend: 1, MED: 5, Communities: []Community{65001<<16 | 7, 0xffffff04},
		Large: []LargeCommunity{{65001, 1, 2}, {65001, 2, 1}},
	}
	ext.Degraded = &Attributes{Prepend: 6, Communities: []Community{GracefulShutdown}}
	ext.ImportLimit, ext.DefaultRoute, ext.RestartTime = 5, true, 30*s
	in.ID, in.Addr, in.ASN, in.LocalAddr, in.Multihop = "int", addr("fd00::1"), 64512, addr("fd00:1::2"), 8
	in.BFD, in.Announce = &BFD{MinTx: 300 * ms, MinRx: 300 * ms, Multiplier: 3}, Attributes{LocalPref: 200}
	in.NextHop4, in.NextHop6 = addr("fd00:1::2"), addr("fd00:1::3")
	link.ID, link.Addr, link.ASN, link.Interface, link.AllowLonger, link.Passive = "link", addr("fe80::1%eth1"), 65002, "eth1", true, true
	link2.ID, link2.Addr, link2.ASN, link2.Interface, link2.Families = "link2", addr("fe80::1%eth2"), 65002, "eth2", []Family{IPv6}
	glass.ID, glass.Addr, glass.ASN, glass.Watch = "glass", addr("10.1.0.3"), 65003, true
	want := Speaker{
		ASN: 64512, RouterID: addr("10.1.0.2"), Listen: 179, Lease: 5 * s,
		Own:   []netip.Prefix{net("192.0.0.0/16"), net("192.0.2.0/24"), net("2001:db8::/48")},
		RPKI:  RPKI{Servers: []netip.AddrPort{at("10.1.0.50:8282")}, RefuseInvalid: true},
		Watch: Watch{File: "/run/edge/feed.json", Origins: []uint32{64513}, Neighbours: []uint32{65001}, MissingAfter: 300 * s},
		Peers: []Peer{ext, in, link, link2, glass},
	}
	same := cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})
	if d := cmp.Diff(want, c.Local.Speaker, same); d != "" {
		t.Errorf("speaker (-want +got)\n%s", d)
	}
	degraded := Attributes{Prepend: 3, MED: 1000, Communities: []Community{GracefulShutdown}}
	prefixes := []Prefix{
		{Net: net("2001:db8::/48"), MinSites: 1, WhenFull: SpreadFull, Degraded: degraded, Announce: Attributes{LocalPref: 300, Large: []LargeCommunity{{1, 2, 3}}}},
		{Net: net("192.0.2.0/24"), MinSites: 1, WhenFull: DegradeFull, Degraded: degraded, Needs: []Need{{On: "up", Class: Shared}}},
		{Net: net("192.0.0.0/16"), MinSites: 1, WhenFull: SpreadFull, Degraded: degraded, Unconditional: []SiteID{"b", "c"}},
	}
	if d := cmp.Diff(prefixes, c.Fleet.Prefixes, same); d != "" {
		t.Errorf("prefixes (-want +got)\n%s", d)
	}
	if c.Local.DrainFile != "/run/edge/drain" || c.Fleet.Guard.DrainTime != 0 || c.Fleet.Guard.MaxCycles != 5 {
		t.Errorf("drain file %q, guard %+v", c.Local.DrainFile, c.Fleet.Guard)
	}
}

// TestUnconditionalFloor: the default counts the sites that announce the prefix,
// not those of the fleet.
func TestUnconditionalFloor(t *testing.T) {
	base := read(t, "testdata/bgp.yaml")
	for sites, want := range map[string]int{"[b]": 0, "[b, c]": 1, "[b, empty]": 0, "[a, b, c]": 1, "[]": 1} {
		c, err := Parse("f", []byte(strings.Replace(base, "unconditional: [b, c]", "unconditional: "+sites, 1)))
		if err != nil {
			t.Errorf("%s: %v", sites, err)
		} else if got := c.Fleet.Prefixes[2].MinSites; got != want {
			t.Errorf("%s: the floor is %d, want %d", sites, got, want)
		}
	}
}

// TestLonger: who is sent a long prefix, and must have said that it takes one.
func TestLonger(t *testing.T) {
	base := read(t, "testdata/smallest.yaml")
	for name, c := range map[string]struct {
		prefix, peer string
		ok           bool
	}{
		"/24 to eBGP":           {"192.0.2.0/24", "asn: 65001", true},
		"/25 to eBGP":           {"192.0.2.0/25", "asn: 65001", false},
		"/25, allowed":          {"192.0.2.0/25", "asn: 65001, allow_longer: true", true},
		"/25 to iBGP":           {"192.0.2.0/25", "asn: 64512", true},
		"/25, watched":          {"192.0.2.0/25", "asn: 65001, watch: true", true},
		"/25, other family":     {"192.0.2.0/25", "asn: 65001, families: [ipv6]", true},
		"/25, not among those":  {"192.0.2.0/25", "asn: 65001, prefixes: [203.0.113.0/24]", true},
		"/25, among those":      {"192.0.2.0/25", "asn: 65001, prefixes: [203.0.113.0/24, 192.0.2.0/25]", false},
		"/25, allowed in words": {"192.0.2.0/25", "asn: 65001, allow_longer: false", false},
	} {
		src := strings.NewReplacer("prefixes: [{prefix: 192.0.2.0/24}]", "prefixes: [{prefix: "+c.prefix+"}, {prefix: 203.0.113.0/24}]",
			"10.0.0.9, asn: 65001", "10.0.0.9, "+c.peer).Replace(base)
		_, err := Parse("f", []byte(src))
		says := err != nil && strings.Contains(err.Error(), "node.bgp.peers[0]: would be sent 192.0.2.0/25,") && strings.Contains(err.Error(), "allow_longer: true") && !strings.Contains(err.Error(), "\n")
		if (err == nil) != c.ok || err != nil && !says {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOnLink: a link-local peer is known by its address and interface, written as
// the two keys or as one.
func TestOnLink(t *testing.T) {
	base := read(t, "testdata/smallest.yaml")
	peer := func(name, more string) string { return "{name: " + name + ", asn: 65001, " + more + "}" }
	for _, c := range []struct{ first, second, want string }{
		{`address: "fe80::1", interface: eth0`, `address: "fe80::1", interface: eth1`, ""},
		{`address: "fe80::1", interface: eth0`, `address: "fe80::1%eth1"`, ""},
		{`address: "fe80::1%eth0", interface: eth0`, `address: "fe80::2%eth0"`, ""},
		{`address: "fe80::1", interface: eth0`, `address: "fe80::1%eth0"`, "peers[1].address: fe80::1%eth0 is already that of node.bgp.peers[0]"},
		{`address: "fd00::1", interface: eth0`, `address: "fd00::1", interface: eth1`, "peers[1].address: fd00::1 is already that of node.bgp.peers[0]"},
		{`address: 169.254.0.1, interface: eth0`, `address: 169.254.0.1, interface: eth1`, "peers[1].address: 169.254.0.1 is already that"},
		{`address: "fe80::1"`, `address: 10.0.0.9`, "peers[0].address: fe80::1 is link-local and needs interface"},
		{`address: "fe80::1%eth0", interface: eth1`, `address: 10.0.0.9`, "peers[0].interface: eth1 is not the zone of the address fe80::1%eth0"},
		{`address: "fd00::1%eth0"`, `address: 10.0.0.9`, `peers[0].address: "fd00::1%eth0" has a zone, which only a link-local IPv6 address can have; expected fd00::1`},
		{`address: "10.0.0.1%eth0"`, `address: 10.0.0.9`, `peers[0].address: "10.0.0.1%eth0" has a zone`},
		{`address: "fe80::1%a/b"`, `address: 10.0.0.9`, `peers[0].address: "a/b" is not the name of an interface`},
		{`address: "fe80::1%"`, `address: 10.0.0.9`, `peers[0].address: "" is not the name of an interface`},
		{`address: "fe80::1%eth0", local_address: "fe80::1"`, `address: 10.0.0.9`, "peers[0].local_address: fe80::1 is the address of the peer"},
		{`address: "fe80::1%eth0", multihop: 2`, `address: 10.0.0.9`, "peers[0].multihop: 2 is for a peer over several hops"},
	} {
		src := strings.Replace(base, "- {name: r, address: 10.0.0.9, asn: 65001}", "- "+peer("one", c.first)+"\n      - "+peer("two", c.second), 1)
		got, err := Parse("f", []byte(src))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), "node.bgp."+c.want) {
			t.Errorf("%s; %s: %v, want %q", c.first, c.second, err, c.want)
		}
		if err != nil {
			continue
		}
		for _, p := range got.Local.Speaker.Peers[:2] {
			if p.Addr.Zone() != p.Interface || p.Interface == "" {
				t.Errorf("%s; %s: address %s, interface %q", c.first, c.second, p.Addr, p.Interface)
			}
		}
	}
}

func TestDiffSpeaker(t *testing.T) {
	src := read(t, "testdata/bgp.yaml")
	a, err := Parse("f", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse("f", []byte(strings.NewReplacer(
		"drain_file: /run/edge/drain", "drain_file: /d", `rpki: {servers: ["10.1.0.50:8282"], refuse_invalid: true}`, "rpki: {file: /v}",
		"origins: [64513]", "origins: []", "missing_after: 5m", "missing_after: 90s", "ttl_security: 1", "local_address: 10.1.0.2",
		"bfd: {interval: 50ms, multiplier: 5}", "bfd: {interval: 1s}", "prefixes: [192.0.2.0/24]", "prefixes: []", "med: 5", "med: 6", "no-peer", "no-export",
		`large_communities: ["65001:2:1", "65001:1:2"]`, `large_communities: ["1:2:3"]`, "        degraded: {prepend: 6, communities: [graceful-shutdown]}\n", "",
		"next_hop4: 10.1.0.9", "next_hop4: fd00:1::2", "import_limit: 5", "import_limit: 6", "default_route: true", "default_route: false",
		"restart_time: 30s", "restart_time: 120s", "bfd: {}", "#", "local_pref: 200", "local_pref: 100", "interface: eth2", "interface: eth3",
		"allow_longer: true", "#", "watch: true", "#", "drain_time: 0s", "drain_time: 1m", "max_cycles: 5", "max_cycles: 1",
		"when_full: degrade", "when_full: spread", "class: shared", "class: hard", "unconditional: [b, c]", "unconditional: [b, a]",
	).Replace(src)))
	if err != nil {
		t.Fatal(err)
	}
	there := strings.Split(strings.TrimSpace(read(t, "testdata/bgp-diff.txt")), "\n")
	if d := cmp.Diff(there, Diff(a, b)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	back := Diff(b, a)
	for _, want := range []string{"node.bgp.peers[int].bfd: added", "node.bgp.peers[ext].degraded: added", "node.bgp.peers[ext].bfd.interval: 1s -> 50ms"} {
		if !slices.Contains(back, want) {
			t.Errorf("back: no %q in %q", want, back)
		}
	}
	if again := Diff(a, a); len(again) > 0 {
		t.Errorf("no change gives %q", again)
	}
}

// TestDocumentedSections: the examples of docs/configure.md are taken as they are.
func TestDocumentedSections(t *testing.T) {
	doc, base := read(t, "docs/configure.md"), read(t, "testdata/health.yaml")
	example := func(section string) string {
		_, rest, ok := strings.Cut(doc, "```yaml\n"+section+":\n")
		text, _, ok2 := strings.Cut(rest, "```")
		if !ok || !ok2 {
			t.Fatalf("no example of %s was found", section)
		}
		return "  " + section + ":\n  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
	}
	head, _, _ := strings.Cut(base, "  bgp:\n")
	_, fleet, _ := strings.Cut(base, "fleet:\n")
	fleet, _, _ = strings.Cut(fleet, "  health:\n")
	fleet = strings.Replace(fleet, "regions: [", `regions: [{name: west, capacity: 1, upstreams: [{name: u, address: "10.9.0.8:80"}]}, `, 1)
	c, err := Parse("f", []byte(head+example("bgp")+"fleet:\n"+fleet+example("health")))
	if err != nil {
		t.Fatal(err)
	}
	if n, m := len(c.Local.Speaker.Peers), len(c.Fleet.Health.Probes); n != 4 || m != 6 {
		t.Errorf("they have %d peers and %d probes, want 4 and 6", n, m)
	}
}
