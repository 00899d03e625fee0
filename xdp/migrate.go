package xdp

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
)

// The layout of schema v1, where it is another than ours. Its maps trusted,
// backend_name, backend_count and verdict_count are the same, and so are the
// keys of the others; what was padding of svc_name means the primary pool.

// v1Table is struct svc_table of v1.
type v1Table struct {
	Seed      [2]uint64
	Src6      [16]byte
	Src4      uint32
	NBackends uint32
	Encap     uint32
	Pad       [5]uint32
	Slot      [65537]uint32
	Tail      uint32
}

type v1SvcCount struct{ Packets, Bytes, Flows uint64 }

// v1FlowKey is struct flow_key of v1: a packet's 5-tuple and its service.
type v1FlowKey struct {
	Src, Dst     [16]byte
	Sport, Dport uint16 // in network order
	Proto        uint8
	Pad          [3]uint8
	Svc          uint32
	Pad2         uint32
}

type v1Flow struct {
	Backend, Generation uint32
	Pad                 uint64
}

// v1Maps are the maps that v1 has pinned, with the sizes of their elements.
func v1Maps() []ebpf.MapSpec {
	const table = 2*8 + 16 + 8*4 + (65537+1)*4
	return []ebpf.MapSpec{
		{Name: edgeMapAddr, Type: ebpf.Hash, KeySize: 16, ValueSize: 4},
		{Name: edgeMapTrusted, Type: ebpf.Hash, KeySize: 16, ValueSize: 4},
		{Name: edgeMapVip, Type: ebpf.Hash, KeySize: 20, ValueSize: 4},
		{Name: edgeMapSvc, Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, InnerMap: &ebpf.MapSpec{ValueSize: table}},
		{Name: edgeMapBackend, Type: ebpf.Array, KeySize: 4, ValueSize: 32},
		{Name: edgeMapFlow, Type: ebpf.LRUHash, KeySize: 48, ValueSize: 16},
		{Name: edgeMapSvcCount, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 24},
		{Name: edgeMapBackendCount, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16},
		{Name: edgeMapVerdictCount, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 257 * 8},
		{Name: edgeMapSvcName, Type: ebpf.Array, KeySize: 4, ValueSize: 56},
		{Name: edgeMapBackendName, Type: ebpf.Array, KeySize: 4, ValueSize: 32},
	}
}

// oldPins are the pins of the schema before. They are only read, until they are
// removed as a whole.
type oldPins struct {
	dir   string
	coll  ebpf.Collection // the maps that are there
	ids   map[ebpf.MapID]bool
	progs []*ebpf.Program
}

// open opens what is pinned, and checks that it has the layout of v1. Some of it
// may be gone, if removing it was cut short: complete tells.
func (p *oldPins) open() error {
	p.coll.Maps, p.ids = make(map[string]*ebpf.Map), make(map[ebpf.MapID]bool)
	for _, want := range v1Maps() {
		m, err := ebpf.LoadPinnedMap(filepath.Join(p.dir, want.Name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open map %s of schema %s: %w", want.Name, oldSchema, err)
		}
		p.coll.Maps[want.Name] = m
		if m.Type() != want.Type || m.KeySize() != want.KeySize || m.ValueSize() != want.ValueSize {
			return fmt.Errorf("map %s is not that of schema %s: %s", want.Name, oldSchema, m)
		}
		info, err := m.Info()
		if err != nil {
			return fmt.Errorf("read map %s of schema %s: %w", want.Name, oldSchema, err)
		}
		id, _ := info.ID()
		p.ids[id] = true
	}
	for _, name := range []string{"prog", "prog_new"} {
		prog, err := ebpf.LoadPinnedProgram(filepath.Join(p.dir, name), nil)
		if err == nil {
			p.progs = append(p.progs, prog)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("open program of schema %s: %w", oldSchema, err)
		}
	}
	return nil
}

// complete says which map is missing, if one is.
func (p *oldPins) complete() error {
	for _, want := range v1Maps() {
		if p.coll.Maps[want.Name] == nil {
			return fmt.Errorf("map %s of schema %s is missing", want.Name, oldSchema)
		}
	}
	return nil
}

// owns says whether a program works on these maps: v1 has recorded no tags.
func (p *oldPins) owns(prog *ebpf.Program) bool {
	ids, err := mapsOf(prog)
	return err == nil && slices.ContainsFunc(ids, func(id ebpf.MapID) bool { return p.ids[id] })
}

// tags are those of the pinned programs.
func (p *oldPins) tags() (tags []string) {
	for _, prog := range p.progs {
		if tag, err := tagOf(prog); err == nil {
			tags = append(tags, tag)
		}
	}
	return tags
}

// Close implements io.Closer. The pins stay.
func (p *oldPins) Close() error {
	p.coll.Close()
	for _, prog := range p.progs {
		prog.Close()
	}
	return nil
}

// describeHost tells the program about this box before it meets a packet: it
// leaves frames to a MAC address that it does not know to the stack.
func (l *loader) describeHost() error {
	f := &Forwarder{log: l.o.Log, coll: l.coll, nl: l.nl}
	for _, ifname := range l.o.Interfaces {
		f.uplinks = append(f.uplinks, uplink{name: ifname})
	}
	return f.openHost()
}

// carryTables fills the new maps with what the old ones say. What a packet's way
// depends on stays as it was, as far as v1 knew it, until the first Apply.
func (l *loader) carryTables() error {
	if err := l.old.complete(); err != nil {
		return l.incompatible(err)
	}
	return errors.Join(
		carry(l, edgeMapTrusted, func(_ [16]byte, v uint32) uint32 { return v }),
		carry(l, edgeMapSvcName, func(_ uint32, v edgeSvcName) edgeSvcName { return v }),
		carry(l, edgeMapBackendName, func(_ uint32, v edgeBackendName) edgeBackendName { return v }),
		carry(l, edgeMapBackend, func(_ uint32, b edgeBackend) edgeBackend {
			if b.state() == stateNone {
				return b
			}
			return b.in(stateKeepAll) // v1 kept all flows of those that it drained
		}),
		carry(l, edgeMapVip, func(_ edgeVipKey, id uint32) uint32 { return id }),
		carry(l, edgeMapAddr, func(_ [16]byte, kind uint32) uint32 {
			if kind == addrVIP {
				return addrVIP | addrAllPorts // for fragments
			}
			return kind
		}),
		l.carryFragments(),
		l.carryServices(),
	)
}

// carry copies the elements of a map, each as convert makes it.
func carry[K, V comparable](l *loader, name string, convert func(K, V) V) error {
	from, err := newMirror[K, V](&l.old.coll, name)
	if err != nil {
		return err
	}
	to := mirror[K, V]{m: l.coll.Maps[name], have: make(map[K]V)}
	want := make(map[K]V, len(from.have))
	for k, v := range from.have {
		want[k] = convert(k, v)
	}
	return to.add(want)
}

// carryFragments makes the entries by which fragments, which v1 dropped, find a
// service: where only one has that address and protocol. Elsewhere they are
// dropped as before, until the first Apply knows better.
func (l *loader) carryFragments() error {
	vips, err := newMirror[edgeVipKey, uint32](&l.old.coll, edgeMapVip)
	if err != nil {
		return err
	}
	want := make(map[edgeVipKey]uint32)
	for k, id := range vips.have {
		k.Port = 0
		if _, twice := want[k]; twice {
			id = 0
		}
		want[k] = vipFragments | id
	}
	to := mirror[edgeVipKey, uint32]{m: l.coll.Maps[edgeMapVip], have: make(map[edgeVipKey]uint32)}
	return to.add(want)
}

// carryServices makes the table of each service anew. The ring is the same;
// what is in no flow table finds another place in it all the same, since v1
// hashed packets in another way.
func (l *loader) carryServices() error {
	from, to := l.old.coll.Maps[edgeMapSvc], l.coll.Maps[edgeMapSvc]
	inner := innerOf(l.spec, edgeMapSvc)
	var ids, fds []uint32
	var made []*ebpf.Map
	defer func() {
		for _, m := range made {
			m.Close()
		}
	}()
	for id := range from.MaxEntries() {
		old, err := readV1Table(from, id)
		if err != nil {
			return fmt.Errorf("read table of service id %d: %w", id, err)
		}
		if old == nil {
			continue
		}
		m, err := newTableOf(inner, old.table())
		if err != nil {
			return fmt.Errorf("build table of service id %d: %w", id, err)
		}
		made = append(made, m)
		ids, fds = append(ids, id), append(fds, uint32(m.FD()))
	}
	if len(ids) == 0 {
		return nil
	}
	n, err := to.BatchUpdate(ids, fds, nil)
	if err != nil && n == 0 {
		_, err = (&state{svc: to}).swapSingly(ids, fds)
	}
	if err != nil {
		return fmt.Errorf("put tables in place: %w", err)
	}
	return nil
}

// readV1Table returns the table of a service; nil if it has none.
func readV1Table(svc *ebpf.Map, id uint32) (*v1Table, error) {
	var inner ebpf.MapID
	switch err := svc.Lookup(id, &inner); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	m, err := ebpf.NewMapFromID(inner)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	table := new(v1Table)
	return table, m.Lookup(uint32(0), table)
}

// table is the same in our layout, with what v1 did for every service: the
// 5-tuple chooses, and flows of UDP are tracked as those of TCP are.
func (t *v1Table) table() *edgeSvcTable {
	return &edgeSvcTable{
		Seed: t.Seed, Src6: t.Src6, Src4: t.Src4, N_backends: t.NBackends, Slot: t.Slot,
		Idle: ticks(defaultIdle), Encap: uint8(t.Encap), Affinity: affinityFiveTuple,
	}
}

const affinityFiveTuple = 5 // AFFINITY_5TUPLE of maps.h

// carryCounters copies the counters that mean the same. What v1 counts from here
// until its last packet is lost: a counter of each CPU cannot be added to while
// it counts.
func (l *loader) carryCounters() error {
	services, errA := newMirror[uint32, edgeSvcName](l.coll, edgeMapSvcName)
	backends, errB := newMirror[uint32, edgeBackend](l.coll, edgeMapBackend)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	return errors.Join(
		carryPerCPU(l, edgeMapVerdictCount, []uint32{0}, func(v edgeVerdicts) edgeVerdicts {
			v.Received = 0
			for _, n := range v.Left {
				v.Received += n // a packet may be in between
			}
			return v
		}),
		carryPerCPU(l, edgeMapBackendCount, slices.Collect(maps.Keys(backends.have)), func(v edgeCount) edgeCount { return v }),
		carryPerCPU(l, edgeMapSvcCount, slices.Collect(maps.Keys(services.have)), func(v v1SvcCount) edgeSvcCount {
			return edgeSvcCount{Packets: v.Packets, Bytes: v.Bytes, Opened: v.Flows}
		}),
	)
}

// carryPerCPU copies the counters of these ids, each as convert makes it.
func carryPerCPU[A, B any](l *loader, name string, ids []uint32, convert func(A) B) error {
	for _, id := range ids {
		var perCPU []A
		if err := l.old.coll.Maps[name].Lookup(id, &perCPU); err != nil {
			return fmt.Errorf("read counters %s: %w", name, err)
		}
		out := make([]B, len(perCPU))
		for i, n := range perCPU {
			out[i] = convert(n)
		}
		if err := l.coll.Maps[name].Put(id, out); err != nil {
			return fmt.Errorf("write counters %s: %w", name, err)
		}
	}
	return nil
}

// innerOf is what the inner maps of a map are made of. Type information would be
// loaded for each of them, so it is left out.
func innerOf(spec *ebpf.CollectionSpec, name string) *ebpf.MapSpec {
	inner := spec.Maps[name].InnerMap.Copy()
	inner.Key, inner.Value = nil, nil
	return inner
}
