package main

import (
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/nft"
)

// hostConfig is the configuration of a1 with services of every kind: proxied, on
// this box, on another, and of all ports.
func hostConfig() *edge.Config {
	c := testConfig()
	c.Local.Forwarder.Interfaces = []string{"up0", "up1"}
	vip := netip.MustParseAddrPort
	here, there := []edge.Backend{{ID: "x", Addr: c.Self().Addr4, Weight: 1}}, []edge.Backend{{ID: "x", Addr: netip.MustParseAddr("192.0.2.9"), Weight: 1}}
	c.Fleet.Services = []edge.Service{
		{ID: "web", VIP: vip("198.51.100.10:443"), Protocol: edge.TCP, Encap: edge.EncapGUE, Proxied: true},
		{ID: "web6", VIP: vip("[2001:db8:100::10]:443"), Protocol: edge.TCP, Encap: edge.EncapIPIP, Proxied: true},
		{ID: "dns", VIP: vip("198.51.100.53:53"), Protocol: edge.UDP, Encap: edge.EncapGUE, Backends: here},
		{ID: "all", VIP: vip("198.51.100.11:0"), Protocol: edge.AnyProtocol, Encap: edge.EncapIPIP, Backends: here},
		{ID: "away", VIP: vip("198.51.100.12:80"), Protocol: edge.TCP, Encap: edge.EncapGUE, Backends: there},
	}
	return c
}

func TestFilterRules(t *testing.T) {
	c := hostConfig()
	vip := func(s string) netlink.Addr { return netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(s)}} }
	here := []netlink.Addr{vip("127.0.0.1"), vip("198.51.100.10"), vip("2001:db8:100::10"), vip("198.51.100.11")}
	check := func(name string, want ...int) {
		t.Helper()
		got := filterRules(c, here, 1500)
		if len(got) != len(want) {
			t.Fatalf("%s: %v", name, got)
		}
		for i, r := range got {
			if r.MSS != want[i] {
				t.Errorf("%s: MSS of %s is %d, want %d", name, r.VIP, r.MSS, want[i])
			}
		}
	}
	// Behind the MTU: the outer IP header, that of GUE, the inner one, TCP.
	check("a node with IPv6", 1500-40-8-20-20, 1500-40-40-20, 1500-40-20-20)
	if got, want := filterRules(c, here, 1500)[2], (nft.Service{VIP: netip.MustParseAddrPort("198.51.100.11:0"), Protocol: edge.AnyProtocol, MSS: 1420}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	c.Fleet.Nodes[0].Addr6 = netip.Addr{}
	check("a node without", 1500-20-8-20-20, 1500-20-40-20, 1500-20-20-20)
	here = nil
	check("a box that serves nothing")
}

// TestHostFilter: the rules come with the addresses of the services and go with
// them.
func TestHostFilter(t *testing.T) {
	twoUplinks(t)
	c := hostConfig()
	mustDo(t, prepareHost(c))
	hasRules(t, "prepared", true, "198.51.100.10 . 443", "2001:db8:100::10 . 443", "198.51.100.53", "198.51.100.11",
		"maxseg size set 1312", // GUE, by the smaller of the two MTU
		"maxseg size set 1320", // IPIP
		"maxseg size set 1300") // IPIP, IPv6
	hasRules(t, "prepared", false, "198.51.100.12")

	mustDo(t, exec.CommandContext(t.Context(), "nft", "flush", "ruleset").Run())
	mustDo(t, tidyHost(c, c))
	hasRules(t, "put right", true, "198.51.100.10 . 443", "notrack")

	// The box serves "all" no longer, but its flows drain; "dns" is gone.
	next := hostConfig()
	next.Fleet.Services = next.Fleet.Services[:4]
	next.Fleet.Services[2] = c.Fleet.Services[4]
	next.Fleet.Services[3].Backends = c.Fleet.Services[4].Backends
	mustDo(t, prepareHost(next))
	mustDo(t, tidyHost(c, next))
	hasRules(t, "changed", true, "198.51.100.10 . 443", "198.51.100.11")
	hasRules(t, "changed", false, "198.51.100.53", "198.51.100.12")

	none := hostConfig()
	none.Fleet.Services = nil
	mustDo(t, tidyHost(next, none))
	if got := ruleset(t); got != "" {
		t.Errorf("no service is left, but rules are:\n%s", got)
	}
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// twoUplinks puts the test's thread into a namespace of its own, for good: the
// thread ends with the test's goroutine.
func twoUplinks(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	ns, err := netns.New()
	mustDo(t, err)
	t.Cleanup(func() { ns.Close() })
	for name, mtu := range map[string]int{"up0": 1500, "up1": 1400} {
		mustDo(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, PeerName: "far" + name}))
	}
}

func ruleset(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	return string(out)
}

func hasRules(t *testing.T, when string, want bool, parts ...string) {
	t.Helper()
	rules := ruleset(t)
	for _, p := range parts {
		if strings.Contains(rules, p) != want {
			t.Errorf("%s: %q is there: %t, want %t:\n%s", when, p, !want, want, rules)
		}
	}
}

func TestUplinkMTU(t *testing.T) {
	if mtu, err := uplinkMTU([]string{"lo"}); err != nil || mtu < 1280 {
		t.Errorf("lo: %d, %v", mtu, err)
	}
	if _, err := uplinkMTU([]string{"lo", "nosuch0"}); err == nil || !strings.Contains(err.Error(), "nosuch0") {
		t.Errorf("an interface that is missing: %v", err)
	}
}

// TestBGPGuards: each peer with GTSM is guarded, and the port for everybody only
// if no peer is without it.
func TestBGPGuards(t *testing.T) {
	near := edge.Peer{Addr: netip.MustParseAddr("192.0.2.1"), TTLSecurity: 1}
	third := edge.Peer{Addr: netip.MustParseAddr("fe80::1%eth0"), TTLSecurity: 3}
	plain := edge.Peer{Addr: netip.MustParseAddr("192.0.2.9")}
	lax := edge.Peer{Addr: netip.MustParseAddr("fe80::1%eth1")}
	nearer := edge.Peer{Addr: netip.MustParseAddr("fe80::1%eth1"), TTLSecurity: 1}
	guard := func(addr string, listen uint16, ttl uint8) nft.Guard {
		g := nft.Guard{Listen: listen, MinTTL: ttl}
		if addr != "" {
			g.Peer = netip.MustParseAddr(addr)
		}
		return g
	}
	for name, tt := range map[string]struct {
		s    edge.Speaker
		want []nft.Guard
	}{
		"no peers":       {edge.Speaker{Listen: 179}, nil},
		"without GTSM":   {edge.Speaker{Listen: 179, Peers: []edge.Peer{plain}}, nil},
		"some":           {edge.Speaker{Listen: 179, Peers: []edge.Peer{near, plain}}, []nft.Guard{guard("192.0.2.1", 179, 255)}},
		"all":            {edge.Speaker{Listen: 179, Peers: []edge.Peer{near, third}}, []nft.Guard{guard("192.0.2.1", 179, 255), guard("fe80::1", 179, 253), guard("", 179, 253)}},
		"one address":    {edge.Speaker{Listen: 179, Peers: []edge.Peer{third, lax}}, nil},
		"one address, 3": {edge.Speaker{Listen: 179, Peers: []edge.Peer{third, nearer}}, []nft.Guard{guard("fe80::1", 179, 253), guard("", 179, 253)}},
		"BFD":            {edge.Speaker{Peers: []edge.Peer{{BFD: &edge.BFD{}}, {BFD: &edge.BFD{}, Multihop: 2}}}, []nft.Guard{{UDP: true, Listen: 3784, MinTTL: 255}}},
		"BFD, multihop":  {edge.Speaker{Peers: []edge.Peer{{BFD: &edge.BFD{}, Multihop: 2}}}, nil},
		"all, dial only": {edge.Speaker{Peers: []edge.Peer{near}}, []nft.Guard{guard("192.0.2.1", 0, 255)}},
	} {
		if got := bgpGuards(tt.s); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
