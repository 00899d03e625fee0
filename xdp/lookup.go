package xdp

import (
	"errors"
	"fmt"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
)

// Lookup says what would happen to a whole packet of this flow that opens no
// connection, as the maps are now: the flow table first, then the ring. Whether
// a backend is reached by tx or by redirect depends on where the packet comes
// in: it is tx if the route leaves through the only uplink. It changes and
// counts nothing. The flow's protocol may be any.
func (f *Forwarder) Lookup(flow edge.Flow) (edge.FlowVerdict, error) {
	if !flow.Src.IsValid() || !flow.Dst.IsValid() || flow.Src.Addr().Unmap().Is4() != flow.Dst.Addr().Unmap().Is4() {
		return edge.FlowVerdict{}, fmt.Errorf("look up flow: %s and %s are not two addresses of one family", flow.Src, flow.Dst)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.lookup(flow)
	if err != nil {
		return edge.FlowVerdict{}, fmt.Errorf("look up flow: %w", err)
	}
	return v, nil
}

func (f *Forwarder) lookup(flow edge.Flow) (edge.FlowVerdict, error) {
	key := edgeFlowKey{
		Src: flow.Src.Addr().As16(), Sport: netOrder(flow.Src.Port()),
		Dst: flow.Dst.Addr().As16(), Dport: netOrder(flow.Dst.Port()),
		Proto: uint8(flow.Protocol),
	}
	if f.state.addr.have[key.Dst] != addrVIP {
		return f.flowVerdict(edgeVerdictPASS_NOT_VIP), nil
	}
	id, ok := f.state.vip.have[edgeVipKey{Addr: key.Dst, Port: key.Dport, Proto: key.Proto}]
	if !ok {
		return f.flowVerdict(edgeVerdictPASS_NO_SERVICE), nil
	}
	key.Svc = id
	backend, tracked, err := f.choose(key)
	if err != nil {
		return edge.FlowVerdict{}, err
	}
	v := f.flowVerdict(edgeVerdictDROP_NO_BACKEND)
	if backend != 0 {
		if v, err = f.exit(f.state.backend.have[backend]); err != nil {
			return v, err
		}
		v.Backend, v.Tracked = f.state.backendName(backend), tracked
	}
	v.Service = f.state.serviceName(id)
	return v, nil
}

func (f *Forwarder) flowVerdict(value edgeVerdict) edge.FlowVerdict {
	v := f.verdict(value)
	return edge.FlowVerdict{Action: v.action, Reason: v.reason}
}

// choose is choose of edge.c: the flow table, then the ring. Backend 0 is none.
func (f *Forwarder) choose(key edgeFlowKey) (backend uint32, tracked bool, err error) {
	var entry edgeFlow
	err = f.coll.Maps[edgeMapFlow].Lookup(key, &entry)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, false, fmt.Errorf("read flow table: %w", err)
	}
	if err == nil {
		b := f.state.backend.have[entry.Backend]
		if b.state() != stateNone && b.gen() == entry.Gen && b.Svc == key.Svc {
			return entry.Backend, true, nil
		}
	}
	table, err := f.readTable(key.Svc)
	if err != nil || table.N_backends == 0 {
		return 0, false, err
	}
	return table.Slot[slotOf(flowHash(table.Seed, key))], false, nil
}

// readTable reads a service's table back from the kernel.
func (f *Forwarder) readTable(svc uint32) (*edgeSvcTable, error) {
	var id ebpf.MapID
	if err := f.state.svc.Lookup(svc, &id); err != nil {
		return nil, fmt.Errorf("find table of service %q: %w", f.state.serviceName(svc), err)
	}
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return nil, fmt.Errorf("open table of service %q: %w", f.state.serviceName(svc), err)
	}
	defer m.Close()
	table := new(edgeSvcTable)
	if err := m.Lookup(uint32(0), table); err != nil {
		return nil, fmt.Errorf("read table of service %q: %w", f.state.serviceName(svc), err)
	}
	return table, nil
}
