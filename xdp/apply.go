package xdp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
)

// Apply makes the data plane follow t, which is the whole table: a service that
// is not in it is removed. A bad table changes nothing, and its error says all
// that is wrong with it. Everything is built first; then all services that
// change are swapped at once, and no packet sees a mix of the old and the new
// table of a service. Backends that stay keep their flows. If the kernel
// refuses a write midway the error says which, packets meet for each service
// its old or its new table, and the next Apply carries on from there.
func (f *Forwarder) Apply(ctx context.Context, t edge.Table) error {
	if err := checkTable(t); err != nil {
		return fmt.Errorf("apply table: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fits(t); err != nil {
		return fmt.Errorf("apply table: %w", err)
	}
	if err := f.refreshLinks(); err != nil {
		return fmt.Errorf("apply table: %w", err)
	}
	p, err := f.state.plan(t, time.Now())
	if err != nil {
		return fmt.Errorf("apply table: %w", err)
	}
	tables, err := f.buildTables(ctx, p)
	defer closeMaps(tables)
	if err != nil {
		return fmt.Errorf("apply table: %w", err)
	}
	if err := f.commit(p, tables); err != nil {
		return fmt.Errorf("apply table: %w", err)
	}
	f.watchNeighbours(p)
	if len(tables) > 0 {
		f.log.Info("tables swapped", "changed", len(tables), "services", len(p.tables), "backends", len(p.backend))
	}
	return nil
}

// Check says what Apply would refuse a table for, and changes nothing. What is
// left that can go wrong is the kernel.
func (f *Forwarder) Check(t edge.Table) error {
	if err := checkTable(t); err != nil {
		return fmt.Errorf("check table: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.fits(t)
	if err == nil {
		_, err = f.state.plan(t, time.Now())
	}
	if err != nil {
		return fmt.Errorf("check table: %w", err)
	}
	return nil
}

// fits refuses a table whose services would take more memory than may be. One
// with no more services than there are is always let through: it takes nothing.
func (f *Forwarder) fits(t edge.Table) error {
	n := len(t.Services)
	if f.o.Memory == 0 || n <= len(f.state.tables) {
		return nil
	}
	return f.plan(n, max(f.blocked, f.o.Blocked)).Check(f.o.Memory)
}

// buildTables makes and fills the inner map of every service whose table
// changes. Nothing refers to them yet.
func (f *Forwarder) buildTables(ctx context.Context, p *plan) (map[uint32]*ebpf.Map, error) {
	built, r := make(map[uint32]*ebpf.Map), new(rings)
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for id, spec := range p.tables {
		if old, ok := f.state.tables[id]; ok && old == spec.fingerprint() {
			continue
		}
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			m, err := newTable(f.inner, spec, r)
			if err != nil {
				return fmt.Errorf("build table of service %q: %w", nameOf(p.serviceNames[id].Name), err)
			}
			mu.Lock()
			defer mu.Unlock()
			built[id] = m
			return nil
		})
	}
	return built, g.Wait()
}

func newTable(inner *ebpf.MapSpec, spec tableSpec, r *rings) (*ebpf.Map, error) {
	table, err := spec.build(r)
	if err != nil {
		return nil, err
	}
	return newTableOf(inner, table)
}

// newTableOf makes an inner map that holds a table.
func newTableOf(inner *ebpf.MapSpec, table *edgeSvcTable) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(inner)
	if err != nil {
		return nil, fmt.Errorf("make inner map: %w", err)
	}
	if err := m.Put(uint32(0), table); err != nil {
		m.Close()
		return nil, fmt.Errorf("fill inner map: %w", err)
	}
	return m, nil
}

func closeMaps(ms map[uint32]*ebpf.Map) {
	for _, m := range ms {
		m.Close()
	}
}

func (f *Forwarder) commit(p *plan, tables map[uint32]*ebpf.Map) error {
	for _, write := range f.steps(p, tables) {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

// steps write a plan. The order is what keeps every packet right: a thing is
// written before the first thing that refers to it, and removed after the last.
// A process that ends between two of them leaves what the next one can read.
func (f *Forwarder) steps(p *plan, tables map[uint32]*ebpf.Map) []func() error {
	s := f.state
	return []func() error{
		func() error { return f.resetCounters(p) },
		func() error { return s.serviceNames.add(withOld(p.serviceNames, p.oldPools)) },
		func() error { return s.backend.add(p.backend) },
		func() error { return s.backendNames.add(p.backendNames) },
		func() error { return s.swap(p, tables) },
		func() error { return s.backend.add(p.cleared) },
		func() error { return s.serviceNames.add(p.serviceNames) },
		func() error { return s.serverID.add(p.serverID) },
		func() error { return s.vip.add(p.vip) },
		func() error { return s.addr.add(p.addr) },
		func() error { return s.trusted.add(p.trusted) },
		func() error { return s.addr.prune(p.addr) },
		func() error { return s.vip.prune(p.vip) },
		func() error { return s.trusted.prune(p.trusted) },
		func() error { return s.serverID.prune(p.serverID) },
		func() error { return s.retire(p) },
		func() error { return s.release(p) },
	}
}

// withOld returns all, those of old as they are there.
func withOld[K comparable, V any](all, old map[K]V) map[K]V {
	out := maps.Clone(all)
	maps.Copy(out, old)
	return out
}

// resetCounters zeroes the counters of ids that get a new owner. Their names
// are written next: in this order, a crash leaves nobody with foreign counts.
func (f *Forwarder) resetCounters(p *plan) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	for _, id := range p.newServices {
		if err := f.coll.Maps[edgeMapSvcCount].Put(id, make([]edgeSvcCount, cpus)); err != nil {
			return fmt.Errorf("reset counters of service id %d: %w", id, err)
		}
	}
	for _, id := range p.newBackends {
		if err := f.coll.Maps[edgeMapBackendCount].Put(id, make([]edgeCount, cpus)); err != nil {
			return fmt.Errorf("reset counters of backend id %d: %w", id, err)
		}
	}
	return nil
}

// swap puts all new tables in place with one call; when it returns, no CPU is
// using an old one.
func (s *state) swap(p *plan, tables map[uint32]*ebpf.Map) error {
	if len(tables) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(tables))
	fds := make([]uint32, len(ids))
	for i, id := range ids {
		fds[i] = uint32(tables[id].FD())
	}
	n, err := s.svc.BatchUpdate(ids, fds, nil)
	if err != nil && n == 0 {
		s.swappedSingly = true
		n, err = s.swapSingly(ids, fds) // kernels before 5.19 know no batches here
	}
	for _, id := range ids[:n] {
		spec := p.tables[id]
		s.tables[id] = spec.fingerprint()
		delete(s.retired, id)
	}
	if err != nil {
		return fmt.Errorf("swap tables: %w", err)
	}
	return nil
}

func (s *state) swapSingly(ids, fds []uint32) (int, error) {
	for i, id := range ids {
		if err := s.svc.Put(id, fds[i]); err != nil {
			return i, err
		}
	}
	return len(ids), nil
}

// retire deletes the tables of services that are gone. Their names stay, so
// that a service that comes back finds its id and its counters.
func (s *state) retire(p *plan) error {
	for id := range s.tables {
		if _, ok := p.tables[id]; ok {
			continue
		}
		if err := s.svc.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete table of service %q: %w", s.serviceName(id), err)
		}
		delete(s.tables, id)
		s.retired[id] = p.now
	}
	return nil
}

// release marks the backends that are gone: no flow may follow them from here.
func (s *state) release(p *plan) error {
	gone := make(map[uint32]edgeBackend)
	for id, b := range s.backend.have {
		if _, ok := p.backend[id]; ok {
			delete(s.released, id)
			continue
		}
		if b.state() != stateNone {
			gone[id] = b.in(stateNone)
			s.released[id] = p.now
		}
	}
	return s.backend.add(gone)
}
