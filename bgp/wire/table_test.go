package wire_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

func show(t *wire.Table) (out []string) {
	for p, path := range t.All() {
		s := fmt.Sprintf("%s via %s origin %d path %v", p, path.NextHop, path.Origin, path.ASPath)
		if path.MED != nil {
			s += fmt.Sprintf(" med %d", *path.MED)
		}
		if path.LocalPref != nil {
			s += fmt.Sprintf(" pref %d", *path.LocalPref)
		}
		if path.Communities != nil {
			s += fmt.Sprintf(" communities %v", path.Communities)
		}
		if path.Large != nil {
			s += fmt.Sprintf(" large %v", path.Large)
		}
		out = append(out, s)
	}
	return out
}

func announce(as uint32, nets string) wire.Update {
	return wire.Update{Announced: prefixes(nets), Path: wire.Path{ASPath: []uint32{as}, NextHop: netip.MustParseAddr("192.0.2.1")}}
}

func TestTable(t *testing.T) {
	var table wire.Table
	if _, ok := table.Get(netip.MustParsePrefix("10.0.0.0/8")); ok || table.Over() || show(&table) != nil || table.Len(edge.IPv4) != 0 {
		t.Error("the zero value is not empty")
	}
	table.Apply(wire.Update{Withdrawn: prefixes("10.0.0.0/8")})
	table.Apply(announce(1, "2001:db8::/32 192.0.2.0/24 10.0.0.0/8 10.0.0.0/16 10.0.0.0/8"))
	table.Apply(announce(2, "10.0.0.0/16"))
	mixed := announce(3, "192.0.2.0/24") // announced counts (RFC 4271 section 4.3)
	mixed.Withdrawn = prefixes("192.0.2.0/24 10.0.0.0/8 172.16.0.0/12")
	table.Apply(mixed)
	want := []string{
		"10.0.0.0/16 via 192.0.2.1 origin 0 path [2]",
		"192.0.2.0/24 via 192.0.2.1 origin 0 path [3]",
		"2001:db8::/32 via 192.0.2.1 origin 0 path [1]",
	}
	if diff := cmp.Diff(want, show(&table)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if a, b, c := table.Len(edge.IPv4), table.Len(edge.IPv6), table.Len("l2vpn"); a != 2 || b != 1 || c != 0 {
		t.Errorf("%d, %d and %d prefixes", a, b, c)
	}
	if p, ok := table.Get(netip.MustParsePrefix("10.0.3.4/16")); !ok || p.ASPath[0] != 2 {
		t.Errorf("10.0.0.0/16: %v, %v", p, ok)
	}
	for p := range table.All() {
		if p != netip.MustParsePrefix("10.0.0.0/16") {
			t.Errorf("first is %s", p)
		}
		break
	}
}

func TestTableLimit(t *testing.T) {
	table := wire.Table{Limit: 2}
	table.Apply(announce(1, "10.0.0.0/8 2001:db8::/32"))
	table.Apply(announce(2, "10.0.0.0/8")) // known: no more than before
	if table.Over() || table.Missed() != 0 {
		t.Error("over at the limit")
	}
	table.Apply(announce(3, "11.0.0.0/8 12.0.0.0/8"))
	if !table.Over() || table.Missed() != 2 || table.Len(edge.IPv4)+table.Len(edge.IPv6) != 2 {
		t.Errorf("over %v, missed %d, %v", table.Over(), table.Missed(), show(&table))
	}
	table.Apply(wire.Update{Withdrawn: prefixes("10.0.0.0/8 2001:db8::/32")})
	table.Apply(announce(4, "13.0.0.0/8"))
	if !table.Over() || table.Len(edge.IPv4) != 1 || table.Len(edge.IPv6) != 0 {
		t.Errorf("after withdrawals: over %v, %v", table.Over(), show(&table))
	}
	// One message may replace what it withdraws.
	table = wire.Table{Limit: 1}
	table.Apply(announce(1, "10.0.0.0/8"))
	u := announce(2, "11.0.0.0/8")
	u.Withdrawn = prefixes("10.0.0.0/8")
	if table.Apply(u); table.Over() || table.Len(edge.IPv4) != 1 {
		t.Errorf("replaced: over %v, %v", table.Over(), show(&table))
	}
}

// TestTableModel: any sequence of updates gives what a plain map gives.
func TestTableModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 760))
	some := func() (out []netip.Prefix) {
		for range rnd.IntN(4) {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rnd.IntN(4))}), 16)
			if rnd.IntN(2) == 0 {
				p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, byte(rnd.IntN(4))}), 32)
			}
			out = append(out, p)
		}
		return out
	}
	var table wire.Table
	model := map[netip.Prefix]uint32{}
	for i := range uint32(5000) {
		u := wire.Update{Announced: some(), Withdrawn: some(), Path: wire.Path{ASPath: []uint32{i}}}
		table.Apply(u)
		for _, p := range u.Withdrawn {
			delete(model, p)
		}
		for _, p := range u.Announced {
			model[p] = i
		}
		n4, seen := 0, 0
		for p, path := range table.All() {
			if as, ok := model[p]; !ok || path.ASPath[0] != as {
				t.Fatalf("step %d: %s has %v, the model %d, %v", i, p, path.ASPath, as, ok)
			}
			if p.Addr().Is4() {
				n4++
			}
			seen++
		}
		if seen != len(model) || table.Len(edge.IPv4) != n4 || table.Len(edge.IPv6) != seen-n4 {
			t.Fatalf("step %d: %d prefixes, %d and %d, the model has %d", i, seen, table.Len(edge.IPv4), table.Len(edge.IPv6), len(model))
		}
	}
}
