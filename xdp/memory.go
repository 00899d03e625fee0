package xdp

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/catchment-dev/edge/xdp/nic"
	"github.com/cilium/ebpf"
)

// sizesOf is what the memory of the maps depends on, as far as Open knows it.
func sizesOf(spec *ebpf.CollectionSpec, o Options) (nic.Sizes, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nic.Sizes{}, fmt.Errorf("count CPUs: %w", err)
	}
	s := nic.Sizes{Flows: o.Flows, HalfFlows: o.HalfFlows, Services: o.Services, Blocked: o.Blocked, CPUs: cpus}
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		if isPinned(name) {
			s.Maps = append(s.Maps, plannedMap(spec.Maps[name]))
		}
	}
	return s, nil
}

func plannedMap(spec *ebpf.MapSpec) nic.Map {
	m := nic.Map{
		Name: spec.Name, Type: uint32(spec.Type), Flags: spec.Flags,
		Key: spec.KeySize, Value: spec.ValueSize, Entries: spec.MaxEntries,
	}
	if spec.InnerMap != nil {
		inner := plannedMap(spec.InnerMap)
		m.Inner = &inner
	}
	return m
}

// planMemory says what the maps take and, if they are still to be made, refuses
// more than may be. Maps that are there are taken over in any case: to refuse
// them would free nothing.
func (l *loader) planMemory(toMake bool) error {
	plan := nic.Memory(l.sizes)
	var rows []any
	for _, r := range plan.Rows {
		if r.Bytes > plan.Total/100 {
			rows = append(rows, slog.Int64(r.Map, r.Bytes))
		}
	}
	l.o.Log.Info("memory of the data plane", "bytes", plan.Total, "at_most", l.o.Memory, slog.Group("maps", rows...))
	if l.o.Memory == 0 {
		return nil
	}
	err := plan.Check(l.o.Memory)
	if err == nil || toMake {
		return err
	}
	l.o.Log.Warn("the data plane that is pinned takes more memory than it may", "error", err)
	return nil
}

// plan is what the maps take with so many services and blocked prefixes.
func (f *Forwarder) plan(services, blocked int) nic.Plan {
	s := f.sizes
	s.Services, s.Blocked = services, blocked
	return nic.Memory(s)
}

// memory is what all maps take, in bytes: with the room that is needed to swap
// each table and the blocklist for another.
func (f *Forwarder) memory() int64 { return f.plan(len(f.state.tables), f.blocked).Total }

// planBlocked refuses a blocklist that would take more memory than may be. It
// reckons with the services that Open was told of, if there are fewer yet. The
// caller holds f.mu.
func (f *Forwarder) planBlocked(prefixes int) error {
	if f.o.Memory == 0 || prefixes <= f.blocked {
		return nil
	}
	return f.plan(max(len(f.state.tables), f.o.Services), prefixes).Check(f.o.Memory)
}
