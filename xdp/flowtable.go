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
// no packet would follow any more, since its backend has left when Flows is
// called, is not among them. It holds up nobody but Close, which waits for yield
// to return and ends the list: yield may be slow, but may not call Close or Flows.
func (f *Forwarder) Flows(yield func(edge.FlowEntry) bool) error {
	who := f.flowOwners()
	f.mapped.RLock()
	defer f.mapped.RUnlock()
	if f.closing.Load() {
		return fmt.Errorf("list flows: %w", errClosed)
	}
	now, err := monotonic()
	if err != nil {
		return fmt.Errorf("list flows: %w", err)
	}
	for _, t := range []struct {
		all  iter.Seq2[uint64, flows.Entry]
		half bool
	}{{f.flows.All(), false}, {f.half.All(), true}} {
		for _, e := range t.all {
			if f.closing.Load() {
				return fmt.Errorf("list flows: %w", errClosed)
			}
			shown, ok := who.entry(e, flows.TickAt(now))
			shown.Half = t.half
			if ok && !yield(shown) {
				return nil
			}
		}
	}
	return nil
}

// errClosed is what a closed Forwarder answers.
var errClosed = errors.New("the forwarder is closed")

// flowOwner is a backend as flows know it, and its names.
type flowOwner struct {
	svc, generation uint32
	service         edge.ServiceID
	backend         edge.BackendID
}

type flowOwners map[uint32]flowOwner

// flowOwners are the backends that flows may follow now.
func (f *Forwarder) flowOwners() flowOwners {
	f.mu.Lock()
	defer f.mu.Unlock()
	who := make(flowOwners, len(f.state.backend.have))
	for id, b := range f.state.backend.have {
		if b.state() != stateNone {
			who[id] = flowOwner{b.Svc, b.gen(), f.state.serviceName(b.Svc), f.state.backendName(id)}
		}
	}
	return who
}

func (who flowOwners) entry(e flows.Entry, now flows.Tick) (edge.FlowEntry, bool) {
	o, ok := who[e.Backend]
	if !ok || !e.Alive(now) || o.generation != e.Generation || o.svc != e.Service {
		return edge.FlowEntry{}, false
	}
	return edge.FlowEntry{
		Service: o.service, Backend: o.backend,
		Src: unmap(e.Tuple.Src), Dst: unmap(e.Tuple.Dst), Protocol: e.Tuple.Protocol, Left: e.Left(now),
	}, true
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
