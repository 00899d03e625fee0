package xdp

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/flows"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// flowMemory is the table of established flows, mapped into this process.
type flowMemory struct {
	flows.Table
	mapping
}

// halfMemory is that of half-open ones.
type halfMemory struct {
	flows.Half
	mapping
}

// mapFlows maps the table of established flows of the kernel.
func mapFlows(coll *ebpf.Collection) (t flowMemory, err error) {
	buckets := coll.Maps[edgeMapFlow]
	if err := t.mapAll(buckets, coll.Maps[edgeMapFlowDetail]); err != nil {
		return t, err
	}
	t.Table, err = flows.Over(t.mem[0], t.mem[1], int(buckets.MaxEntries()))
	if err != nil {
		t.unmap()
	}
	return t, err
}

func (t *flowMemory) unmap() error {
	t.Table = flows.Table{}
	return t.mapping.unmap()
}

// mapHalf maps the table of half-open flows.
func mapHalf(coll *ebpf.Collection) (t halfMemory, err error) {
	m := coll.Maps[edgeMapHalf]
	if err := t.mapAll(m); err != nil {
		return t, err
	}
	t.Half, err = flows.HalfOver(t.mem[0], int(m.MaxEntries()))
	if err != nil {
		t.unmap()
	}
	return t, err
}

func (t *halfMemory) unmap() error {
	t.Half = flows.Half{}
	return t.mapping.unmap()
}

// mapping is the memory of some maps.
type mapping struct{ mem [][]byte }

func (m *mapping) mapAll(all ...*ebpf.Map) error {
	for _, x := range all {
		mem, err := unix.Mmap(x.FD(), 0, int(x.MaxEntries())*int(x.ValueSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			m.unmap()
			return fmt.Errorf("map memory of %s: %w", x, err)
		}
		m.mem = append(m.mem, mem)
	}
	return nil
}

func (m *mapping) unmap() error {
	var errs []error
	for _, mem := range m.mem {
		errs = append(errs, unix.Munmap(mem))
	}
	m.mem = nil
	return errors.Join(errs...)
}

// monotonic is the clock of the program.
func monotonic() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// Flows calls yield with each flow that is remembered, until it returns false.
// Packets go on meanwhile: a flow that comes or moves may be missed. A flow that
// no packet would follow any more, since its backend has left, is not among them.
// yield must be quick, as Apply waits for it, and call no method of f.
func (f *Forwarder) Flows(yield func(edge.FlowEntry) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := monotonic()
	if err != nil {
		return fmt.Errorf("list flows: %w", err)
	}
	for _, t := range []struct {
		all  iter.Seq2[uint64, flows.Entry]
		half bool
	}{{f.flows.All(), false}, {f.half.All(), true}} {
		for _, e := range t.all {
			shown, ok := f.flowEntry(e, flows.TickAt(now))
			shown.Half = t.half
			if ok && !yield(shown) {
				return nil
			}
		}
	}
	return nil
}

func (f *Forwarder) flowEntry(e flows.Entry, now flows.Tick) (edge.FlowEntry, bool) {
	b, ok := f.state.backend.have[e.Backend]
	if !ok || !e.Alive(now) || b.gen() != e.Generation || b.state() == stateNone || b.Svc != e.Service {
		return edge.FlowEntry{}, false
	}
	return edge.FlowEntry{
		Service: f.state.serviceName(b.Svc), Backend: f.state.backendName(e.Backend),
		Src: unmap(e.Tuple.Src), Dst: unmap(e.Tuple.Dst), Protocol: e.Tuple.Protocol, Left: e.Left(now),
	}, true
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
