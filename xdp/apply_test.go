package xdp

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/google/go-cmp/cmp"
)

// pool returns n backends behind up0 with a neighbour each; b0 is 10.0.0.100.
func pool(t testing.TB, n int) []edge.TableBackend {
	t.Helper()
	var all []edge.TableBackend
	for i := range n {
		a := fmt.Sprintf("10.0.0.%d", 100+i)
		addNeighbour(t, "up0", a, nearMAC)
		all = append(all, edge.TableBackend{ID: edge.BackendID(fmt.Sprint("b", i)), Addr: addr(a), Weight: 1})
	}
	return all
}

func service(id, vip string, p edge.Protocol, backends ...edge.TableBackend) edge.TableService {
	// Of the affinities with a 5-tuple the one with which UDP is tracked too.
	return edge.TableService{ID: edge.ServiceID(id), VIP: addrPort(vip), Protocol: p, Encap: edge.EncapGUE,
		Affinity: edge.AffinityClientIPPortProto, Backends: backends}
}

func tableOf(services ...edge.TableService) edge.Table {
	return edge.Table{Source4: addr(node4), Source6: addr(node6), Seed: testSeed, Services: services}
}

// sendTo runs a packet of flow i and returns the backend it went to, or the
// verdict if it went nowhere.
func (d device) sendTo(t testing.TB, i int, vip string, proto, flags uint8) string {
	t.Helper()
	p := packet{dst: addrPort(vip), proto: proto, flags: flags, ttl: 64,
		src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), 1000)}
	r := d.run(t, p.frame())
	if r.verdict != edgeVerdictTX_BACKEND {
		return d.name(r.verdict)
	}
	return fmt.Sprint("b", int(openTunnel(t, r.out).dst.As4()[3])-100)
}

// sendAll runs a packet of each of n flows.
func (d device) sendAll(t testing.TB, n int, vip string, proto, flags uint8) []string {
	t.Helper()
	to := make([]string, n)
	for i := range to {
		to[i] = d.sendTo(t, i, vip, proto, flags)
	}
	return to
}

const (
	vipA, vipB = "192.0.2.1:80", "192.0.2.2:80"
	someFlows  = 300
)

func TestFlowsStay(t *testing.T) {
	d := oneBox(t)
	b := pool(t, 6)
	for _, proto := range []edge.Protocol{edge.TCP, edge.UDP} {
		use := func(backends ...edge.TableBackend) {
			apply(t, d.Forwarder, tableOf(service("a", vipA, proto, backends...)))
		}
		send := func(flags uint8) []string { return d.sendAll(t, someFlows, vipA, uint8(proto), flags) }
		use(b[:3]...)
		before := send(flagSYN)
		if len(slices.Compact(slices.Sorted(slices.Values(before)))) != 3 {
			t.Fatalf("%s: not all backends are used", proto)
		}
		use(b...)
		if diff := cmp.Diff(before, send(flagACK)); diff != "" {
			t.Errorf("%s: flows moved when backends came: %s", proto, diff)
		}
		use(b[1], b[2], b[3], b[4], b[5]) // b0 is gone
		after := send(flagACK)
		for i := range after {
			if before[i] != "b0" && after[i] != before[i] || after[i] == "b0" {
				t.Fatalf("%s: flow %d went from %s to %s when b0 left", proto, i, before[i], after[i])
			}
		}
		use(b...) // b0 is back: the flows that left it stay where they are
		if diff := cmp.Diff(after, send(flagACK)); diff != "" {
			t.Errorf("%s: flows moved when b0 came back: %s", proto, diff)
		}
	}
	balanced(t, d.Forwarder)
}

// A flow that slept while its backend was away must not find the entry valid:
// the other end may have been replaced.
func TestGenerationGuardsSleepers(t *testing.T) {
	d := oneBox(t)
	b := pool(t, 2)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b[0])))
	d.sendTo(t, 1, vipA, 6, flagSYN)
	flow := edge.Flow{Src: addrPort("100.64.0.1:1000"), Dst: addrPort(vipA), Protocol: edge.TCP}
	goesTo := func(by string, backend edge.BackendID) {
		t.Helper()
		v, err := d.Lookup(flow, nil)
		check(t, err)
		if v.By != by || v.Backend != backend {
			t.Errorf("%+v, want %s to %q", v, by, backend)
		}
	}
	goesTo("half", "b0")
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP)))
	goesTo("", "")
	if got := d.sendTo(t, 1, vipA, 6, flagACK); got != "drop no_backend" {
		t.Errorf("without backends: %s", got)
	}
	b[0].Weight = 0 // back, but in no ring
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b...)))
	goesTo("ring", "b1")
	if got := d.sendTo(t, 1, vipA, 6, flagACK); got != "b1" {
		t.Errorf("the sleeper went to %s", got)
	}
	goesTo("half", "b1")
}

func TestDrain(t *testing.T) {
	d := oneBox(t)
	b := pool(t, 2)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b...)))
	before := d.sendAll(t, someFlows, vipA, 6, flagSYN)
	b[0].Weight, b[0].KeepTCP = 0, true
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b...)))
	if diff := cmp.Diff(before, d.sendAll(t, someFlows, vipA, 6, flagACK)); diff != "" {
		t.Errorf("flows moved off a draining backend: %s", diff)
	}
	b[1].Weight, b[1].KeepTCP = 0, true
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b...)))
	if diff := cmp.Diff(before, d.sendAll(t, someFlows, vipA, 6, flagACK)); diff != "" {
		t.Errorf("flows moved when everything drains: %s", diff)
	}
	if got := d.sendTo(t, someFlows+1, vipA, 6, flagSYN); got != "drop no_backend" {
		t.Errorf("new flow to a service that drains: %s", got)
	}
	b[1].Weight = 1
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b...)))
	for i, to := range d.sendAll(t, someFlows, vipA, 6, flagSYN) {
		if to != "b1" {
			t.Fatalf("new connection %d went to %s", i, to)
		}
	}
}

func TestWeightZeroKeepsFlows(t *testing.T) {
	d := oneBox(t)
	b := pool(t, 2)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.UDP, b...)))
	before := d.sendAll(t, someFlows, vipA, 17, 0)
	b[0].Weight, b[0].KeepTCP, b[0].KeepOther = 0, true, true
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.UDP, b...)))
	if diff := cmp.Diff(before, d.sendAll(t, someFlows, vipA, 17, 0)); diff != "" {
		t.Errorf("flows moved: %s", diff)
	}
	for i := range someFlows {
		if to := d.sendTo(t, someFlows+i, vipA, 17, 0); to != "b1" {
			t.Fatalf("new flow went to %s", to)
		}
	}
}

// A backend that leaves one service stays in the other.
func TestSharedBackend(t *testing.T) {
	d := oneBox(t)
	b := pool(t, 2)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b...), service("b", vipB, edge.TCP, b...)))
	beforeA := d.sendAll(t, someFlows, vipA, 6, flagSYN)
	beforeB := d.sendAll(t, someFlows, vipB, 6, flagSYN)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b[1]), service("b", vipB, edge.TCP, b...)))
	for i, to := range d.sendAll(t, someFlows, vipA, 6, flagACK) {
		if to != "b1" {
			t.Fatalf("flow of a, before at %s, went to %s", beforeA[i], to)
		}
	}
	if diff := cmp.Diff(beforeB, d.sendAll(t, someFlows, vipB, 6, flagACK)); diff != "" {
		t.Errorf("flows of b moved: %s", diff)
	}
}

func TestAddressChangeMovesFlows(t *testing.T) {
	d := oneBox(t)
	b := pool(t, 2)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b[0])))
	d.sendTo(t, 1, vipA, 6, flagSYN)
	b[1].ID = b[0].ID
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b[1])))
	if to := d.sendTo(t, 1, vipA, 6, flagACK); to != "b1" {
		t.Errorf("flow went to %s", to)
	}
}

func TestServiceLeaves(t *testing.T) {
	d := oneBox(t)
	b := pool(t, 1)
	a80, a81, other := service("a", vipA, edge.TCP, b...), service("a81", "192.0.2.1:81", edge.TCP, b...), service("b", vipB, edge.TCP, b...)
	steps := []struct {
		table  edge.Table
		a, oth string
	}{
		{tableOf(a80, a81, other), "b0", "b0"},
		{tableOf(a81, other), "pass no_service", "b0"},
		{tableOf(other), "pass not_vip", "b0"},
		{tableOf(), "pass not_vip", "pass not_vip"},
		{tableOf(a80), "b0", "pass not_vip"},
		// The same VIP under another name, and the name at another VIP.
		{tableOf(service("b", vipA, edge.TCP, b...), service("a", vipB, edge.TCP, b...)), "b0", "b0"},
	}
	for i, s := range steps {
		apply(t, d.Forwarder, s.table)
		if got := d.sendTo(t, i, vipA, 6, flagACK); got != s.a {
			t.Errorf("step %d: %s: %s, want %s", i, vipA, got, s.a)
		}
		if got := d.sendTo(t, i, vipB, 6, flagACK); got != s.oth {
			t.Errorf("step %d: %s: %s, want %s", i, vipB, got, s.oth)
		}
	}
}

func TestResetMakesNoFlow(t *testing.T) {
	d := oneBox(t)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, pool(t, 1)...)))
	for i, flags := range []uint8{flagRST, flagRST | flagACK, flagSYN, flagACK, flagACK | flagFIN} {
		d.sendTo(t, i, vipA, 6, flags)
	}
	if got := stats(t, d.Forwarder).Services[0]; got.New != 3 || got.Packets != 5 || got.Bytes != 5*40 {
		t.Errorf("counted %+v, want 5 packets of 40 bytes and 3 flows", got)
	}
}
