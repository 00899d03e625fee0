package xdp

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
)

// storm is two tables of one service that differ in everything: the ring, the
// affinity, the outer header, the outer source. All backends are members all the
// time, so that only the table says which.
type storm struct {
	device
	tables  [2]edge.Table
	packets []stormPacket
}

// stormPacket is a packet, and how it leaves by each table.
type stormPacket struct {
	frame []byte
	as    [2]outside
}

// outside is what can be seen of a table in the outer IPv4 header: its protocol,
// source and destination.
type outside [9]byte

func outsideOf(frame []byte) outside {
	return outside(append([]byte{frame[ethLen+9]}, frame[ethLen+12:ethLen+20]...))
}

// The policies of the two tables.
var stormPolicies = [2]struct {
	encap    edge.Encap
	proto    byte // of GUE UDP, of IPIP that of the inner family
	affinity edge.Affinity
	source   string
	backends []int
}{
	{edge.EncapGUE, 17, edge.AffinityClientIPPortProto, node4, []int{0, 1, 2}},
	{edge.EncapIPIP, 0, edge.AffinityClientIP, near4, []int{3, 4, 5}},
}

func newStorm(t *testing.T, vip string) storm {
	t.Helper()
	s := storm{device: policyBox(t, 1<<12)}
	// New connections, and a protocol of which nothing is remembered.
	for i := range 500 {
		s.packets = append(s.packets, stormPacket{frame: from(tcpTo(withPort(vip, 80), flagSYN), i)}, stormPacket{frame: from(protoTo(vip, protoSCTP), i)})
	}
	b := pool(t, 6)
	for i, p := range stormPolicies {
		backends := slices.Clone(b)
		for at := range backends {
			backends[at].KeepTCP, backends[at].KeepOther = true, true
			if !slices.Contains(p.backends, at) {
				backends[at].Weight = 0
			}
		}
		svc := service("storm", vip, edge.AnyProtocol, backends...)
		svc.Encap, svc.Affinity = p.encap, p.affinity
		s.tables[i] = tableOf(svc)
		s.tables[i].Source4 = addr(p.source)
		ring := byTheRing(t, backends)
		for at := range s.packets {
			x := &s.packets[at]
			proto := p.proto
			if proto == 0 {
				proto = map[bool]byte{false: 4, true: 41}[addrPort(vip).Addr().Is6()]
			}
			who := ring(x.frame, fieldsOf[p.affinity])
			to := backends[slices.IndexFunc(backends, func(b edge.TableBackend) bool { return b.ID == who })].Addr
			x.as[i] = outside(slices.Concat([]byte{proto}, addr(p.source).AsSlice(), to.AsSlice()))
		}
	}
	return s
}

// feedUntil feeds in packets until stop, and counts which table each has met.
func (s storm) feedUntil(stop *atomic.Bool) (met [2]int, err error) {
	feed := s.feeder()
	for i := 0; !stop.Load(); i++ {
		p := s.packets[i%len(s.packets)]
		feed.meta.DataEnd = uint32(len(p.frame))
		o := ebpf.RunOptions{Data: p.frame, DataOut: feed.out, Repeat: 1, Context: &feed.meta}
		xdp, err := feed.prog.Run(&o)
		if err != nil || xdp != xdpCode[1] {
			return met, fmt.Errorf("packet %d left with %d: %v", i, xdp, err)
		}
		which := slices.Index(p.as[:], outsideOf(o.DataOut))
		if which < 0 {
			return met, fmt.Errorf("packet %d met a mix: it left as %v, by the tables it is %v", i, outsideOf(o.DataOut), p.as)
		}
		met[which]++
	}
	return met, nil
}

// swaps changes the tables at full speed: with Apply, and with nothing but its
// swap, which is faster by far.
func (s storm) swaps(t *testing.T) func() error {
	t.Helper()
	var swap [2]func() error
	for i, table := range s.tables {
		apply(t, s.Forwarder, s.tables[1-i])
		p, err := s.state.plan(table, time.Now())
		check(t, err)
		built, err := s.buildTables(t.Context(), p)
		check(t, err)
		t.Cleanup(func() { closeMaps(built) })
		swap[i] = func() error { return s.state.swap(p, built) }
	}
	return func() error {
		for i := range 10 {
			if err := s.Apply(t.Context(), s.tables[i%2]); err != nil {
				return err
			}
		}
		for i := range 50 {
			if err := swap[i%2](); err != nil {
				return err
			}
		}
		return nil
	}
}

// While policies, rings and outer headers change together, no packet meets a mix
// of two tables, and none is lost.
func TestPolicyStorm(t *testing.T) {
	for _, vip := range bothVIPs(0) {
		s := newStorm(t, vip)
		swaps := s.swaps(t)
		var stop atomic.Bool
		var g errgroup.Group
		g.Go(func() error {
			defer stop.Store(true)
			return swaps()
		})
		var met [2]atomic.Int64
		for range runtime.GOMAXPROCS(0) {
			g.Go(func() error {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				var err error
				in(t, s.ns, func() {
					var n [2]int
					n, err = s.feedUntil(&stop)
					met[0].Add(int64(n[0]))
					met[1].Add(int64(n[1]))
				})
				return err
			})
		}
		check(t, g.Wait())
		t.Logf("%s: %d packets met one table, %d the other", vip, met[0].Load(), met[1].Load())
		if met[0].Load() == 0 || met[1].Load() == 0 {
			t.Errorf("%s: only one table was met", vip)
		}
		balanced(t, s.Forwarder)
	}
}

// A packet's table is looked up in one place, and handed on: a second look might
// find the next table. The storm would meet that one time in two.
func TestTableIsLookedUpOnce(t *testing.T) {
	spec, err := loadEdge()
	check(t, err)
	n := 0
	for _, ins := range spec.Programs[edgeProgEdge].Instructions {
		if ins.IsLoadFromMap() && ins.Reference() == edgeMapSvc {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the program looks for the table of a service in %d places", n)
	}
}
