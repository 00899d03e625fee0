package xdp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/nic"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

// notes keeps the messages of a log about backends and neighbours, by one goroutine.
type notes struct{ said []string }

func (*notes) Enabled(context.Context, slog.Level) bool { return true }
func (n *notes) WithAttrs([]slog.Attr) slog.Handler     { return n }
func (n *notes) WithGroup(string) slog.Handler          { return n }

func (n *notes) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "address" {
			n.said = append(n.said, fmt.Sprint(r.Level, " ", r.Message, " ", a.Value))
		}
		return true
	})
	return nil
}

// backendsAt is a table with a backend at each address.
func backendsAt(addrs ...string) edge.Table {
	var b []edge.TableBackend
	for i, a := range addrs {
		b = append(b, edge.TableBackend{ID: edge.BackendID(fmt.Sprint("b", i)), Addr: addr(a), Weight: 1})
	}
	return tableOf(service("a", vipA, edge.TCP, b...))
}

// hears applies a table three times, and wants this said, once.
func (d device) hears(t testing.TB, n *notes, table edge.Table, want ...string) {
	t.Helper()
	n.said = nil
	for range 3 {
		apply(t, d.Forwarder, table)
	}
	slices.Sort(n.said)
	if diff := cmp.Diff(want, n.said); diff != "" {
		t.Errorf("said (-want +got):\n%s", diff)
	}
}

func TestTroublesAreToldOnce(t *testing.T) {
	n := &notes{}
	d := boxWith(t, Options{Log: slog.New(n)})
	const lost = "10.9.9.9"
	table := backendsAt(near4, lost)
	d.hears(t, n, table, "WARN "+cannotBeReached+" "+lost)
	d.hears(t, n, table)
	addRoute(t, "10.9.9.0/24", near4, 0)
	d.hears(t, n, table, "INFO no more: "+cannotBeReached+" "+lost)
	check(t, netlink.RouteDel(&netlink.Route{Dst: network("10.9.9.0/24")}))
	d.hears(t, n, table, "WARN "+cannotBeReached+" "+lost)
	d.hears(t, n, backendsAt(near4), "INFO no more: "+cannotBeReached+" "+lost)
}

func network(s string) *net.IPNet {
	p := netip.MustParsePrefix(s)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// An MTU that the program does not mind is told of: one that is not locked, and
// smaller than that of the interface.
func TestIgnoredMTUIsTold(t *testing.T) {
	n := &notes{}
	d := boxWith(t, Options{Log: slog.New(n)})
	for family, c := range map[string]struct{ to, dst, via string }{
		"ipv4": {"10.9.9.9", "10.9.9.0/24", near4}, "ipv6": {"fd09::9", "fd09::/64", near6},
	} {
		table, what := backendsAt(c.to), mtuNotLocked+" "+c.to
		set := func(mtu int, lock bool) {
			t.Helper()
			check(t, netlink.RouteReplace(&netlink.Route{Dst: network(c.dst), Gw: net.ParseIP(c.via), MTU: mtu, MTULock: lock}))
		}
		t.Log(family)
		set(0, false)
		d.hears(t, n, table)
		set(1400, false)
		d.hears(t, n, table, "WARN "+what)
		set(1400, true)
		d.hears(t, n, table, "INFO no more: "+what)
		set(1500, false)
		d.hears(t, n, table)
		d.hears(t, n, tableOf())
	}
}

// A next hop is told of whose interface takes no frames from XDP.
func TestInterfaceThatTakesNoFramesIsTold(t *testing.T) {
	n := &notes{}
	d := boxWith(t, Options{Log: slog.New(n)})
	veth(t, "up1", "peer1")
	addAddr(t, "up1", "10.0.1.1/24")
	table, what := backendsAt(near4, far4), takesNoFrames+" "+far4
	d.hears(t, n, table, "WARN "+what)
	stub, err := AttachPassStub("peer1") // with which a veth takes them
	check(t, err)
	d.hears(t, n, table, "INFO no more: "+what)
	check(t, stub.Close())
	d.hears(t, n, table, "WARN "+what)
	// A VLAN of an uplink leaves by that.
	up1 := up(t, "up1").Attrs().Index
	d.vlans = []nic.VLAN{{Index: up1, Uplink: d.ingress}}
	if w := d.wayOut(up1); w.takesNone || w.name != "up1" {
		t.Errorf("of a VLAN of the uplink: %+v", w)
	}
	// The uplinks are not asked: their drivers may say so only of what they run.
	check(t, d.Close())
	o := d.o
	o.Interfaces = []string{"up0", "up1"}
	d.Forwarder = openForwarder(t, o)
	d.hears(t, n, table)
}

func TestGenericModeTakesFramesAnywhere(t *testing.T) {
	n := &notes{}
	d := boxWith(t, Options{Log: slog.New(n), Mode: edge.XDPGeneric})
	veth(t, "up1", "peer1")
	addAddr(t, "up1", "10.0.1.1/24")
	d.hears(t, n, backendsAt(near4, far4))
}

// Who is kept, by the forwarder's asking or by an operator's, and who not any more.
func TestNeighboursAreReleased(t *testing.T) {
	d := boxWith(t, Options{})
	const ours, another, operators, told = "10.0.0.50", "10.0.0.51", "10.0.0.60", near4
	ours6 := "fd00::50"
	managed := func(a string) bool {
		t.Helper()
		known, err := d.sockets.neighbours()
		check(t, err)
		return known[hop{d.ingress, addr(a)}].managed
	}
	expect := func(what string, want ...string) {
		t.Helper()
		for _, a := range []string{ours, ours6, another, operators, told} {
			if got := managed(a); got != slices.Contains(want, a) {
				t.Errorf("%s: %s is managed: %t", what, a, got)
			}
		}
	}
	check(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: d.ingress, IP: net.ParseIP(operators), Flags: netlink.NTF_USE, FlagsExt: netlink.NTF_EXT_MANAGED}))
	apply(t, d.Forwarder, backendsAt(ours, ours6, another, operators, told))
	expect("all are backends", ours, ours6, another, operators)
	apply(t, d.Forwarder, backendsAt(ours, ours6, another))
	expect("the operator's is none", ours, ours6, another, operators)
	apply(t, d.Forwarder, backendsAt(ours, ours6))
	expect("one has left", ours, ours6, operators)
	d = d.another(t)
	expect("another process", ours, ours6, operators)
	apply(t, d.Forwarder, backendsAt(ours))
	expect("one has left meanwhile", ours, operators)
	d = d.another(t)
	apply(t, d.Forwarder, tableOf())
	expect("all have left", operators)
	apply(t, d.Forwarder, backendsAt(another))
	expect("one comes", operators, another)
	d = d.another(t)
	apply(t, d.Forwarder, backendsAt(operators))
	expect("the operator's is a backend", operators)
}
