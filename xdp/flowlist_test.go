package xdp

import (
	"cmp"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
)

// listed are all flows that Flows lists, in an order, and without the time that
// is left, which is of one table's idle time for all.
func (d device) listed(t testing.TB, idle time.Duration) []edge.FlowEntry {
	t.Helper()
	var all []edge.FlowEntry
	check(t, d.Flows(func(e edge.FlowEntry) bool {
		if e.Left > idle || e.Left < idle-time.Minute {
			t.Errorf("%+v: %s is left, of %s", e, e.Left, idle)
		}
		e.Left = 0
		all = append(all, e)
		return true
	}))
	return inOrder(all)
}

func diffFlows(got, want []edge.FlowEntry) string {
	return gocmp.Diff(want, got, gocmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }))
}

func inOrder(all []edge.FlowEntry) []edge.FlowEntry {
	slices.SortFunc(all, func(a, b edge.FlowEntry) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), a.Src.Compare(b.Src), cmp.Compare(a.Protocol, b.Protocol), a.Dst.Compare(b.Dst))
	})
	return all
}

// openSome opens flows of each service, some of which it shows one packet only.
// It returns how they are to be listed.
func (d device) openSome(t testing.TB, services []edge.TableService) (want []edge.FlowEntry) {
	t.Helper()
	feed := d.feeder()
	for at, svc := range services {
		for i, proto := range []uint8{6, 17, protoGRE} {
			if proto != 6 && svc.Affinity == edge.AffinityNone {
				continue
			}
			packets, to := 1+(at+i)%3, nowhere
			p := packetOf(withPort(svc.VIP.String(), 443), 10*at+i, proto)
			for range packets {
				to = feed.to(t, p.frame())
			}
			fields := 5
			if svc.Tracking == edge.PerSession {
				fields = fieldsOf[svc.Affinity]
			}
			e := edge.FlowEntry{Service: svc.ID, Backend: nameOfNumber(to), Src: p.src, Dst: p.dst, Protocol: edge.Protocol(proto), Half: packets == 1}
			if proto == protoGRE || fields < 5 {
				e.Src, e.Dst = netip.AddrPortFrom(e.Src.Addr(), 0), netip.AddrPortFrom(e.Dst.Addr(), 0)
			}
			if fields < 3 {
				e.Protocol = 0
			}
			if fields < 2 {
				e.Dst = netip.AddrPort{}
			}
			want = append(want, e)
		}
	}
	return inOrder(want)
}

// What is remembered is listed as it is: tuple, backend, and the half-open as such.
// What a service's tracking leaves out is zero.
func TestFlowsAreListed(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 3)
	services := policies(b...)
	for i := range services {
		services[i].IdleTimeout = time.Hour
	}
	apply(t, d.Forwarder, tableOf(services...))
	want := d.openSome(t, services)
	idle := time.Duration(ticks(time.Hour)) << tickShift
	if diff := diffFlows(d.listed(t, idle), want); diff != "" {
		t.Error(diff)
	}
	n := 0
	check(t, d.Flows(func(edge.FlowEntry) bool { n++; return n < 5 }))
	if n != 5 {
		t.Errorf("%d flows were listed after the fifth was the last one wanted", n)
	}
	// Another process lists the same.
	d = d.another(t)
	if diff := diffFlows(d.listed(t, idle), want); diff != "" {
		t.Errorf("another process: %s", diff)
	}
	// Those of a backend or a service that has left are none any more.
	last := services[len(services)-1]
	for i := range services {
		services[i].Backends = b[1:]
	}
	apply(t, d.Forwarder, tableOf(services[:len(services)-1]...))
	left := slices.DeleteFunc(slices.Clone(want), func(e edge.FlowEntry) bool { return e.Backend == "b0" || e.Service == last.ID })
	if diff := diffFlows(d.listed(t, idle), left); diff != "" || len(left) == len(want) {
		t.Errorf("without a backend: %s", diff)
	}
	d.leave(t, -1)
	if got := d.listed(t, idle); len(got) != 0 {
		t.Errorf("flows that have ended are listed: %v", got)
	}
}

// Flows are listed while packets come and tables change: none of them is a mix.
func TestFlowsUnderTraffic(t *testing.T) {
	d := policyBox(t, 1<<10)
	b := pool(t, 4)
	use := func(n int) error { return d.Apply(t.Context(), tableOf(service("a", vipA, edge.TCP, b[:n]...))) }
	check(t, use(4))
	done, listed := make(chan struct{}), 0
	var g errgroup.Group
	g.Go(func() error {
		defer close(done)
		for i := range 6 {
			if err := use(2 + i%3); err != nil {
				return err
			}
			if err := d.Flows(func(e edge.FlowEntry) bool {
				from := e.Src.Addr().As4()
				if i := int(be.Uint32(from[:]) & 0xffffff); e.Src != clientAt(vipA, i) || e.Dst != addrPort(vipA) || e.Protocol != edge.TCP || e.Service != "a" {
					t.Errorf("nobody sent %+v", e)
				}
				listed++
				return true
			}); err != nil {
				return err
			}
		}
		return nil
	})
	feed := d.feeder()
	for i := 0; ; i++ {
		select {
		case <-done:
			check(t, g.Wait())
			t.Logf("%d flows were listed while %d packets came", listed, i)
			if listed < 100 {
				t.Errorf("only %d flows were listed", listed)
			}
			return
		default:
			feed.to(t, from(tcpTo(vipA, flagSYN), i/2))
		}
	}
}
