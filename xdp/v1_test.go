package xdp

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
)

// v1State is a backend's state in v1: active.
const v1Active = 1

// v1Pins loads the data plane of schema v1, the object that was released with
// it, as its own Open and Apply would have: pinned, attached and filled with a
// table. Nothing holds it afterwards but its pins.
func v1Pins(t testing.TB, o Options, table edge.Table) {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec("testdata/edge_v1.o")
	check(t, err)
	spec.Maps[edgeMapFlow].MaxEntries = uint32(o.Flows)
	coll, err := ebpf.NewCollection(spec)
	check(t, err)
	defer coll.Close()
	v1Fill(t, coll, spec, table)
	dir := filepath.Join(o.Dir, oldSchema)
	check(t, os.MkdirAll(dir, 0o700))
	for name, m := range coll.Maps {
		check(t, m.Pin(filepath.Join(dir, name)))
	}
	check(t, coll.Programs[edgeProgEdge].Pin(filepath.Join(dir, "prog")))
	l, err := newLoader(o, edgeSpec(t))
	check(t, err)
	defer l.nl.Close()
	for _, ifname := range o.Interfaces {
		lk, err := attach(l.nl, coll.Programs[edgeProgEdge], ifname, edge.XDPNative)
		check(t, err)
		check(t, lk.Pin(filepath.Join(dir, linkPin(ifname))))
		check(t, lk.Close())
	}
}

// v1Fill writes a table. The ids are those that we would give on an empty box,
// as v1 did.
func v1Fill(t testing.TB, coll *ebpf.Collection, spec *ebpf.CollectionSpec, table edge.Table) {
	t.Helper()
	empty := &state{}
	p, err := empty.plan(table, time.Now())
	check(t, err)
	put := func(name string, key, value any) {
		t.Helper()
		check(t, coll.Maps[name].Put(key, value))
	}
	for a, kind := range p.addr {
		put(edgeMapAddr, a, kind&addrKindMask)
	}
	for a := range p.trusted {
		put(edgeMapTrusted, a, uint32(1))
	}
	for k, id := range p.vip {
		if id&vipFragments == 0 {
			put(edgeMapVip, k, id)
		}
	}
	for id, b := range p.backend {
		put(edgeMapBackend, id, b.in(v1Active))
	}
	for id, n := range p.backendNames {
		put(edgeMapBackendName, id, n)
	}
	for id, n := range p.serviceNames {
		put(edgeMapSvcName, id, n)
	}
	for id, s := range p.tables {
		built, err := s.build(new(rings))
		check(t, err)
		old := v1Table{
			Seed: built.Seed, Src6: built.Src6, Src4: built.Src4, NBackends: built.N_backends, Encap: uint32(built.Encap), Slot: built.Slot,
		}
		inner, err := ebpf.NewMap(spec.Maps[edgeMapSvc].InnerMap)
		check(t, err)
		check(t, inner.Put(uint32(0), &old))
		put(edgeMapSvc, id, uint32(inner.FD()))
		check(t, inner.Close())
	}
}

// v1Size is how many flows v1 remembers.
func v1Size(t testing.TB, dir string) (n int) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, oldSchema, edgeMapFlow), nil)
	check(t, err)
	defer m.Close()
	var k v1FlowKey
	var v v1Flow
	for it := m.Iterate(); it.Next(&k, &v); {
		n++
	}
	return n
}

// v1Count is what v1 has counted.
func v1Count(t testing.TB, dir string) (n uint64) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, oldSchema, edgeMapVerdictCount), nil)
	check(t, err)
	defer m.Close()
	var perCPU []edgeVerdicts
	check(t, m.Lookup(uint32(0), &perCPU))
	for _, c := range perCPU {
		n += c.Received
	}
	return n
}
