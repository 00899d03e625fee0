package xdp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"golang.org/x/sync/errgroup"
)

func TestLookup(t *testing.T) {
	d := oneBox(t)
	for dst, want := range map[string]edge.FlowVerdict{
		client4 + ":80":     {Action: "pass", Reason: "not_vip"},
		node4 + ":80":       {Action: "pass", Reason: "not_vip"},
		vip4 + ":9":         {Action: "pass", Reason: "no_service"},
		vip4 + ":80":        {Service: "tcp-80-4", Backend: "b", By: "ring", Action: "tx", Reason: "backend"},
		vip4 + ":84":        {Service: "tcp-84-4", Backend: "b", By: "ring", Action: "redirect", Reason: "backend"},
		vip4 + ":85":        {Service: "tcp-85-4", Backend: "b", By: "ring", Action: "pass", Reason: "local"},
		vip4 + ":86":        {Service: "tcp-86-4", Action: "drop", Reason: "no_backend"},
		vip4 + ":101":       {Service: "tcp-101-4", Backend: "b", By: "ring", Action: "drop", Reason: "fib_unreachable"},
		"[" + vip6 + "]:80": {Service: "tcp-80-6", Backend: "b", By: "ring", Action: "tx", Reason: "backend"},
		"[" + vip6 + "]:82": {Service: "tcp-82-6", Backend: "b", By: "ring", Action: "tx", Reason: "backend"},
	} {
		src := client4 + ":1"
		if addrPort(dst).Addr().Is6() {
			src = "[" + client6 + "]:1"
		}
		got, err := d.Lookup(edge.Flow{Src: addrPort(src), Dst: addrPort(dst), Protocol: edge.TCP}, nil)
		want.Slot = got.Slot
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", dst, got, err, want)
		}
	}
	if _, err := d.Lookup(edge.Flow{Src: addrPort(client4 + ":1"), Dst: addrPort("[" + vip6 + "]:80"), Protocol: edge.TCP}, nil); err == nil {
		t.Error("a flow between families is looked up")
	}
	if got := stats(t, d.Forwarder).Received; got != 0 {
		t.Errorf("lookups were counted as %d packets", got)
	}
}

// Everything at once, for the race detector; and the counters agree whenever
// they are read.
func TestConcurrentUse(t *testing.T) {
	d := boxWith(t, Options{Flows: 1 << 12, HalfFlows: 1 << 12, Memory: 1 << 30})
	b := pool(t, 3)
	var g errgroup.Group
	for i := range 3 {
		g.Go(func() error {
			for n := range 10 {
				// Each list is longer than the one before: the memory for it is asked for.
				list, _ := manyPrefixes(rand.New(rand.NewPCG(1, uint64(i))), 100*(n+1))
				if err := d.Block(t.Context(), list); err != nil {
					return err
				}
			}
			return nil
		})
		g.Go(func() error {
			for range 20 {
				if err := d.Flows(func(edge.FlowEntry) bool { return true }); err != nil {
					return err
				}
			}
			return nil
		})
		g.Go(func() error {
			for n := range 10 {
				if err := d.Apply(t.Context(), tableOf(service("a", vipA, edge.TCP, b[(i+n)%3:]...))); err != nil {
					return err
				}
			}
			return nil
		})
		g.Go(func() error {
			for range 100 {
				st, err := d.Stats()
				_, errLookup := d.Lookup(edge.Flow{Src: addrPort("100.64.0.1:1000"), Dst: addrPort(vipA), Protocol: edge.TCP}, nil)
				if err := errors.Join(err, errLookup, d.Attached()); err != nil {
					return err
				}
				sum := uint64(0)
				for _, v := range st.Verdicts {
					sum += v.Count
				}
				if sum != st.Received {
					return fmt.Errorf("received %d, verdicts %d", st.Received, sum)
				}
			}
			return nil
		})
	}
	for i := range 2000 {
		d.sendTo(t, i, vipA, 6, flagSYN)
	}
	check(t, g.Wait())
}

// innerID returns the kernel's id of a service's table.
func (d device) innerID(t testing.TB, svc string) uint32 {
	t.Helper()
	var id uint32
	for at := range d.state.tables {
		if string(d.state.serviceName(at)) == svc {
			check(t, d.state.svc.Lookup(at, &id))
			return id
		}
	}
	t.Fatalf("no service %s", svc)
	return 0
}

func TestOnlyChangedTablesAreSwapped(t *testing.T) {
	d := oneBox(t)
	b := pool(t, 4)
	table := tableOf(service("a", vipA, edge.TCP, b...), service("b", vipB, edge.TCP, b...))
	apply(t, d.Forwarder, table)
	a, other := d.innerID(t, "a"), d.innerID(t, "b")

	slices.Reverse(table.Services)
	table.Services[0].Backends = []edge.TableBackend{b[2], b[0], b[3], b[1]}
	apply(t, d.Forwarder, table)
	if d.innerID(t, "a") != a || d.innerID(t, "b") != other {
		t.Error("a table was swapped for another order of the same")
	}
	table.Services[0].Backends[0].Weight = 7 // of b
	apply(t, d.Forwarder, table)
	if d.innerID(t, "a") != a || d.innerID(t, "b") == other {
		t.Error("not exactly the table of b was swapped for a new weight in it")
	}
	table.Seed[3]++
	apply(t, d.Forwarder, table)
	if d.innerID(t, "a") == a {
		t.Error("the table of a has the old seed")
	}
}

func TestBadTableChangesNothing(t *testing.T) {
	d := oneBox(t)
	b := pool(t, 2)
	good := tableOf(service("a", vipA, edge.TCP, b[0]))
	apply(t, d.Forwarder, good)
	bad := func(f func(*edge.Table)) edge.Table {
		table := tableOf(service("a", vipA, edge.TCP, b...), service("new", vipB, edge.UDP, b[1]))
		f(&table)
		return table
	}
	for want, table := range map[string]edge.Table{
		"have the same VIP":     bad(func(t *edge.Table) { t.Services[1].VIP, t.Services[1].Protocol = t.Services[0].VIP, edge.TCP }),
		`"a" is there twice`:    bad(func(t *edge.Table) { t.Services[1].ID = "a" }),
		`backend "b0" is there`: bad(func(t *edge.Table) { t.Services[0].Backends = []edge.TableBackend{b[0], b[0]} }),
		"weight 1001": bad(func(t *edge.Table) {
			t.Services[0].Backends = []edge.TableBackend{{ID: "x", Addr: b[0].Addr, Weight: 1001}}
		}),
		"is the VIP": bad(func(t *edge.Table) {
			t.Services[0].Backends = []edge.TableBackend{{ID: "x", Addr: addr(vip4), Weight: 1}}
		}),
		"no source address":     bad(func(t *edge.Table) { t.Source4 = netip.Addr{} }),
		"source 192.0.2.2 is a": bad(func(t *edge.Table) { t.Source4 = addr("192.0.2.2") }),
		"not an IPv6 address":   bad(func(t *edge.Table) { t.Source6 = addr(node4) }),
		"encapsulation":         bad(func(t *edge.Table) { t.Services[0].Encap = "gre" }),
		"protocol protocol-47":  bad(func(t *edge.Table) { t.Services[0].Protocol = 47 }),
		"has all ports":         bad(func(t *edge.Table) { t.Services[0].Protocol = edge.AnyProtocol }),
		"affinity":              bad(func(t *edge.Table) { t.Services[0].Affinity = "x" }),
		"tracking":              bad(func(t *edge.Table) { t.Services[0].Tracking = "x" }),
		"pool":                  bad(func(t *edge.Table) { t.Services[0].Pool = "x" }),
		"idle timeout":          bad(func(t *edge.Table) { t.Services[0].IdleTimeout = 17 * time.Hour }),
		"SYN limit of -1":       bad(func(t *edge.Table) { t.Services[0].SYNLimit.Rate = -1 }),
		"of a connection id":    bad(func(t *edge.Table) { t.Services[1].QUIC = &edge.QUIC{Offset: 19, Length: 2} }),
		"not what the service": bad(func(t *edge.Table) {
			t.Services[0].Backends = []edge.TableBackend{{ID: "x", Addr: b[0].Addr, Weight: 1, ServerID: "a"}}
		}),
		"the same server id": bad(func(t *edge.Table) {
			t.Services[1].QUIC = &edge.QUIC{Length: 1}
			t.Services[1].Backends = []edge.TableBackend{{ID: "x", Addr: b[0].Addr, ServerID: "a"}, {ID: "y", Addr: b[1].Addr, ServerID: "a"}}
		}),
		"not one of a host":      bad(func(t *edge.Table) { t.Services[0].VIP = addrPort("224.0.0.1:80") }),
		"invalid IP is not one":  bad(func(t *edge.Table) { t.Trusted = []netip.Addr{{}} }),
		"33 bytes, not 1 to 32":  bad(func(t *edge.Table) { t.Services[0].ID = edge.ServiceID(strings.Repeat("x", 33)) }),
		"513 services are more":  bad(func(t *edge.Table) { t.Services = slices.Repeat(t.Services[:1], 513) }),
		"8193 backends over all": bad(func(t *edge.Table) { t.Services[0].Backends = slices.Repeat(b[:1], 8192) }),
	} {
		err := d.Apply(t.Context(), table)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if got := stats(t, d.Forwarder); len(got.Services) != 1 || len(got.Backends) != 1 {
		t.Errorf("after bad tables: %+v, %+v", got.Services, got.Backends)
	}
	if to := d.sendTo(t, 1, vipB, 17, 0); to != "pass not_vip" {
		t.Errorf("packet to the VIP of a bad table: %s", to)
	}
}

// While tables are swapped at full speed, a packet must meet one or the other:
// GUE goes to b0, IPIP to b1, and nothing is ever dropped.
func TestSwapStorm(t *testing.T) {
	d := oneBox(t)
	b := pool(t, 2)
	gue := tableOf(service("a", vipA, edge.TCP, b[0]))
	ipip := tableOf(service("a", vipA, edge.TCP, b[1]))
	ipip.Services[0].Encap = edge.EncapIPIP
	apply(t, d.Forwarder, gue)
	done := make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		for i := range 60 {
			if err := d.Apply(t.Context(), []edge.Table{ipip, gue}[i%2]); err != nil {
				return err
			}
		}
		close(done)
		return nil
	})
	seen := make(map[bool]int)
	p := tcpPacket(client4+":4321", vipA)
	p.flags = flagSYN
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		r := d.run(t, p.frame())
		if r.verdict != edgeVerdictTX_BACKEND {
			t.Fatal(d.name(r.verdict))
		}
		o := openTunnel(t, r.out)
		if o.gue != (o.dst == b[0].Addr) {
			t.Fatalf("packet met a mix: gue=%v to %s", o.gue, o.dst)
		}
		seen[o.gue]++
	}
	check(t, g.Wait())
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("saw only one table: %v", seen)
	}
}
