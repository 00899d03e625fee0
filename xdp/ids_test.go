package xdp

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
)

// maps of the kernel without interfaces: enough for ids and counters.
func bareState(t *testing.T) (*Forwarder, *ebpf.Collection) {
	t.Helper()
	spec, err := loadEdge()
	check(t, err)
	coll, err := ebpf.NewCollection(spec)
	check(t, err)
	t.Cleanup(coll.Close)
	s, err := readState(coll, time.Now())
	check(t, err)
	return &Forwarder{coll: coll, state: s, inner: spec.Maps[edgeMapSvc].InnerMap}, coll
}

// applyAt is Apply at a time of the test's.
func applyAt(t *testing.T, f *Forwarder, table edge.Table, now time.Time) *plan {
	t.Helper()
	check(t, checkTable(table))
	p, err := f.state.plan(table, now)
	check(t, err)
	tables, err := f.buildTables(t.Context(), p)
	check(t, err)
	defer closeMaps(tables)
	check(t, f.commit(p, tables))
	return p
}

func numbered(service, backends int) edge.TableService {
	var b []edge.TableBackend
	for i := range backends {
		b = append(b, edge.TableBackend{ID: edge.BackendID(fmt.Sprint("b", i)), Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Weight: 1})
	}
	vip := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(service)}), uint16(1+service>>8))
	return numberedAs(fmt.Sprint("s", service), vip, b)
}

func numberedAs(id string, vip netip.AddrPort, b []edge.TableBackend) edge.TableService {
	return edge.TableService{ID: edge.ServiceID(id), VIP: vip, Protocol: edge.TCP, Encap: edge.EncapGUE, Backends: b}
}

// Another process learns all ids from the maps, gives the same to the same, and
// what it reads is what was written.
func TestIDsAreLearnt(t *testing.T) {
	f, coll := bareState(t)
	now := time.Now()
	table := tableOf(numbered(1, 5), numbered(2, 5))
	first := applyAt(t, f, table, now)
	applyAt(t, f, tableOf(numbered(2, 4)), now)

	again, err := readState(coll, now)
	check(t, err)
	g := &Forwarder{coll: coll, state: again, inner: f.inner}
	second := applyAt(t, g, table, now)
	if len(second.newServices)+len(second.newBackends) != 0 {
		t.Errorf("new ids: %v, %v", second.newServices, second.newBackends)
	}
	for id, b := range first.backend {
		got := second.backend[id]
		if got.Svc != b.Svc || got.Addr != b.Addr {
			t.Errorf("backend %d is %+v, was %+v", id, got, b)
		}
		// Service 1 and the fifth backend of service 2 were away.
		away := again.serviceName(b.Svc) == "s1" || again.backendName(id) == "b4"
		if moved := got.gen() != b.gen(); moved != away {
			t.Errorf("backend %s of %s: generation %d after %d", again.backendName(id), again.serviceName(b.Svc), got.gen(), b.gen())
		}
	}
}

// An id gets a new owner only when nobody else is left and it has rested, and
// then nothing of the old owner is seen.
func TestIDsAreReused(t *testing.T) {
	f, _ := bareState(t)
	now := time.Now()
	applyAt(t, f, tableOf(numbered(0, 2)), now)
	before := maps.Clone(f.state.backend.have)
	applyAt(t, f, tableOf(), now)
	cpus, err := ebpf.PossibleCPU()
	check(t, err)
	dirty, dirtyBackend := make([]edgeSvcCount, cpus), make([]edgeCount, cpus)
	dirty[0].Packets, dirtyBackend[0].Packets = 99, 99
	for id := range uint32(10) {
		check(t, f.coll.Maps[edgeMapSvcCount].Put(id, dirty))
		check(t, f.coll.Maps[edgeMapBackendCount].Put(id, dirtyBackend))
	}
	occupy(f, 2, 3)
	if _, err := f.state.plan(tableOf(numbered(1, 2)), now.Add(quarantine-time.Millisecond)); err == nil {
		t.Error("ids are reused without a rest")
	}
	p := applyAt(t, f, tableOf(numbered(1, 2)), now.Add(quarantine))
	if len(p.newServices) != 1 || len(p.newBackends) != 2 {
		t.Fatalf("new ids: %v, %v", p.newServices, p.newBackends)
	}
	for id, b := range p.backend {
		if was := before[id]; was.Svc != 1 || b.gen() <= was.gen() {
			t.Errorf("backend id %d has generation %d after %+v", id, b.gen(), was)
		}
	}
	st, err := f.Stats()
	check(t, err)
	if len(st.Services) != 1 || st.Services[0].Service != "s1" || st.Services[0].Packets != 0 || len(st.Backends) != 2 || st.Backends[0].Packets+st.Backends[1].Packets != 0 {
		t.Errorf("counters of new owners: %+v, %+v", st.Services, st.Backends)
	}
}

// occupy makes all ids from these on look as if they were in use.
func occupy(f *Forwarder, service, backend uint32) {
	for id := service; id < serviceIDs; id++ {
		f.state.serviceNames.have[id] = edgeSvcName{Name: name32(fmt.Sprint("busy", id))}
	}
	for id := backend; id < backendIDs; id++ {
		f.state.backendNames.have[id] = edgeBackendName{Name: name32(fmt.Sprint("busy", id))}
	}
}

// The former owner of an id comes back in the very table in which others need
// ids, before or after them: each gets one of its own.
func TestFormerOwnersComeBack(t *testing.T) {
	for order, services := range [][]edge.TableService{
		{numbered(1, 3), numbered(3, 3), numbered(4, 3)},
		{numbered(3, 3), numbered(4, 3), numbered(2, 3)},
		{numbered(3, 3), numbered(4, 3), numbered(1, 3)},
		{numbered(3, 3), numbered(2, 3), numbered(4, 3)},
		{numbered(2, 3), numbered(3, 4), numbered(1, 2)},
	} {
		f, _ := bareState(t)
		now := time.Now()
		applyAt(t, f, tableOf(numbered(1, 3), numbered(2, 3)), now)
		applyAt(t, f, tableOf(), now)
		occupy(f, 4, 10)
		table := tableOf(services...)
		p := applyAt(t, f, table, now.Add(time.Minute))
		if len(p.tables) != 3 || len(p.backend) != 9 {
			t.Errorf("order %d: %d tables, %d backends", order, len(p.tables), len(p.backend))
		}
		f.agrees(t, table)
	}
}

// The same for the backends of one service.
func TestFormerBackendsComeBack(t *testing.T) {
	s := numbered(1, 4)
	a, b, c := s.Backends[0], s.Backends[1], s.Backends[3]
	with := func(backends ...edge.TableBackend) edge.Table {
		s := s
		s.Backends = backends
		return tableOf(s)
	}
	for order, table := range []edge.Table{with(c, a, b), with(a, c, b), with(a, b, c), with(b, c, a)} {
		f, _ := bareState(t)
		now := time.Now()
		applyAt(t, f, with(a, b), now)
		applyAt(t, f, with(), now)
		occupy(f, 2, 4)
		f.state.backendNames.have[3] = edgeBackendName{Name: name32("gone")}
		f.state.released[3] = now.Add(time.Second)
		if p := applyAt(t, f, table, now.Add(time.Minute)); len(p.backend) != 3 {
			t.Errorf("order %d: %d backends", order, len(p.backend))
		}
		f.agrees(t, table)
	}
}

// A process may end between any two steps of an Apply. Whoever comes next reads
// what is there and ends up with the table it wants, and nothing else.
func TestCutShort(t *testing.T) {
	old := tableOf(numbered(1, 3), numbered(2, 3))
	next := tableOf(numbered(2, 2), numbered(3, 3))
	now := time.Now()
	for cut, steps := 0, 1; cut <= steps; cut++ {
		f, coll := bareState(t)
		applyAt(t, f, old, now)
		p, err := f.state.plan(next, now)
		check(t, err)
		tables, err := f.buildTables(t.Context(), p)
		check(t, err)
		all := f.steps(p, tables)
		for _, step := range all[:cut] {
			check(t, step())
		}
		steps = len(all)
		closeMaps(tables)
		s, err := readState(coll, now)
		check(t, err)
		g := &Forwarder{coll: coll, state: s, inner: f.inner}
		applyAt(t, g, next, now.Add(time.Minute))
		s, err = readState(coll, now)
		check(t, err)
		g.state = s
		g.agrees(t, next)
	}
}

// agrees fails unless the maps hold exactly a table.
func (f *Forwarder) agrees(t *testing.T, table edge.Table) {
	t.Helper()
	s := f.state
	// A VIP has an entry of its own and one for fragments.
	if len(s.vip.have) != 2*len(table.Services) || len(s.addr.have) != 2+len(table.Services) || len(s.tables) != len(table.Services) {
		t.Fatalf("%d VIPs, %d addresses, %d tables", len(s.vip.have), len(s.addr.have), len(s.tables))
	}
	alive := 0
	for _, svc := range table.Services {
		id := s.vip.have[edgeVipKey{Addr: svc.VIP.Addr().As16(), Port: netOrder(svc.VIP.Port()), Proto: uint8(svc.Protocol)}]
		if s.serviceName(id) != svc.ID {
			t.Fatalf("VIP of %s is of service %q", svc.ID, s.serviceName(id))
		}
		ring, err := f.readTable(id)
		check(t, err)
		for slot, bid := range ring.Slot {
			b := s.backend.have[bid]
			if b.Svc != id || b.state() != stateKeepAll || netip.AddrFrom16(b.Addr).Unmap() != addrOf(svc, s.backendName(bid)) {
				t.Fatalf("slot %d of %s holds backend %q: %+v", slot, svc.ID, s.backendName(bid), b)
			}
		}
		alive += len(svc.Backends)
	}
	for _, b := range s.backend.have {
		if b.state() != stateNone {
			alive--
		}
	}
	if alive != 0 {
		t.Errorf("%d backends too few are alive", alive)
	}
}

func addrOf(svc edge.TableService, name edge.BackendID) netip.Addr {
	for _, b := range svc.Backends {
		if b.ID == name {
			return b.Addr
		}
	}
	return netip.Addr{}
}

// A hundred services are swapped with one call, not one by one.
func TestHundredServicesInOneSwap(t *testing.T) {
	f, _ := bareState(t)
	table := tableOf()
	for i := range 100 {
		table.Services = append(table.Services, numbered(i, 3))
	}
	applyAt(t, f, table, time.Now())
	table.Seed[0]++
	p, err := f.state.plan(table, time.Now())
	check(t, err)
	built, err := f.buildTables(t.Context(), p)
	check(t, err)
	defer closeMaps(built)
	if len(built) != 100 {
		t.Errorf("%d tables were built", len(built))
	}
	var ids, fds []uint32
	for id, m := range built {
		ids, fds = append(ids, id), append(fds, uint32(m.FD()))
	}
	// With each call the kernel waits until no CPU uses what was there before.
	start := time.Now()
	_, err = f.state.swapSingly(ids, fds)
	check(t, err)
	singly := time.Since(start)
	start = time.Now()
	check(t, f.state.swap(p, built))
	t.Logf("%d tables are swapped in %s, one by one in %s", len(built), time.Since(start), singly)
	if f.state.swappedSingly {
		t.Error("the tables were not swapped with one call")
	}
}
