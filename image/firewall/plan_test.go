package firewall

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/catchment-dev/edge"
)

// TestDisjoint: the intervals hold exactly the addresses of the networks, in
// ascending order and without touching twice.
func TestDisjoint(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var nets []netip.Prefix
		for range 1 + rnd.IntN(8) {
			a := netip.AddrFrom4([4]byte{10, byte(rnd.IntN(2)), byte(rnd.IntN(4)), byte(rnd.IntN(256))})
			nets = append(nets, netip.PrefixFrom(a, rnd.IntN(33)).Masked())
		}
		got := disjoint(nets)
		for i, n := range got[1:] {
			if got[i].Overlaps(n) || n.Addr().Less(got[i].Addr()) {
				t.Fatalf("%v of %v: %v and %v", got, nets, got[i], n)
			}
		}
		for range 50 {
			a := netip.AddrFrom4([4]byte{byte(9 + rnd.IntN(3)), byte(rnd.IntN(3)), byte(rnd.IntN(5)), byte(rnd.IntN(256))})
			in := func(n netip.Prefix) bool { return n.Contains(a) }
			if slices.ContainsFunc(nets, in) != slices.ContainsFunc(got, in) {
				t.Fatalf("%v of %v: %v", got, nets, a)
			}
		}
	}
}

// TestRouters: what is asked of the packets of each kind of peer.
func TestRouters(t *testing.T) {
	at := netip.MustParseAddr
	bfd := &edge.BFD{}
	for name, c := range map[string]struct {
		peer          edge.Peer
		bgp, bfd, far []neighbour
	}{
		"plain":            {edge.Peer{Addr: at("192.0.2.1")}, []neighbour{{addr: at("192.0.2.1")}}, nil, nil},
		"with GTSM":        {edge.Peer{Addr: at("192.0.2.1"), TTLSecurity: 1}, []neighbour{{at("192.0.2.1"), "", 255}}, nil, nil},
		"GTSM, three hops": {edge.Peer{Addr: at("192.0.2.1"), TTLSecurity: 3}, []neighbour{{at("192.0.2.1"), "", 253}}, nil, nil},
		"BFD":              {edge.Peer{Addr: at("192.0.2.1"), BFD: bfd}, []neighbour{{addr: at("192.0.2.1")}}, []neighbour{{at("192.0.2.1"), "", 255}}, nil},
		"BFD, many hops":   {edge.Peer{Addr: at("192.0.2.1"), BFD: bfd, Multihop: 5}, []neighbour{{addr: at("192.0.2.1")}}, nil, []neighbour{{addr: at("192.0.2.1")}}},
		"bound":            {edge.Peer{Addr: at("192.0.2.1"), Interface: "eth1"}, []neighbour{{at("192.0.2.1"), "eth1", 0}}, nil, nil},
		"link-local":       {edge.Peer{Addr: at("fe80::1%eth2"), BFD: bfd}, []neighbour{{at("fe80::1"), "eth2", 0}}, []neighbour{{at("fe80::1"), "eth2", 255}}, nil},
	} {
		var p plan
		p.routers(edge.Speaker{Peers: []edge.Peer{c.peer}})
		want := plan{bgp: c.bgp, bfd: c.bfd, far: c.far}
		if d := cmp.Diff(want, p, cmp.AllowUnexported(plan{}, neighbour{}), cmpopts.EquateComparable(netip.Addr{})); d != "" {
			t.Errorf("%s: (-want +got)\n%s", name, d)
		}
	}
}

// TestManagement: the console is only for those that are named.
func TestManagement(t *testing.T) {
	c := reference(t)
	p := newPlan(&c.Local, []*edge.Config{c})
	if len(p.console) != 0 {
		t.Errorf("the console listens on loopback, and %v are opened", p.console)
	}
	c.Local.Management = netip.MustParseAddrPort("0.0.0.0:9180")
	if p = newPlan(&c.Local, []*edge.Config{c}); !slices.Equal(p.console, []uint16{9180}) {
		t.Errorf("the console on all addresses: %v", p.console)
	}
	c.Local.HostFirewall.ManagementPorts = nil
	c.Local.HostFirewall.ManagementNets = nil
	if p = newPlan(&c.Local, []*edge.Config{c}); len(p.ports) != 0 {
		t.Errorf("no ports are to be open: %v", p.ports)
	}
	for _, s := range newPlan(&c.Local, []*edge.Config{c}).layout().sets {
		if s.name == "management_port" {
			t.Errorf("set %s of nothing", s.name)
		}
	}
}

// TestChecked: a box that is a backend answers the checks of the others.
func TestChecked(t *testing.T) {
	c := reference(t, "address: 10.1.0.20\n", "address: 10.1.0.2\n")
	if p := newPlan(&c.Local, []*edge.Config{c}); !slices.Equal(p.healthPorts, []uint16{8053, 9181}) {
		t.Errorf("ports of checks: %v", p.healthPorts)
	}
	c = reference(t)
	if p := newPlan(&c.Local, []*edge.Config{c}); !slices.Equal(p.healthPorts, []uint16{9181}) {
		t.Errorf("ports of checks of others: %v", p.healthPorts)
	}
}
