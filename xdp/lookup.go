package xdp

import (
	"fmt"
	"net/netip"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/flows"
	"github.com/catchment-dev/edge/xdp/model"
	"github.com/cilium/ebpf"
)

// Lookup says what would happen to a whole packet of this flow that opens no
// connection, as the maps are now: the server id in cid first, if that is not
// nil and the service reads one, then the flow tables, then the ring. Whether a
// backend is reached by tx or by redirect depends on where the packet comes in:
// it is tx if the route leaves through the only uplink. It changes and counts
// nothing. The flow's protocol may be any; ports of one without count nothing.
func (f *Forwarder) Lookup(flow edge.Flow, cid []byte) (edge.FlowVerdict, error) {
	if !flow.Src.IsValid() || !flow.Dst.IsValid() || flow.Src.Addr().Unmap().Is4() != flow.Dst.Addr().Unmap().Is4() {
		return edge.FlowVerdict{}, fmt.Errorf("look up flow: %s and %s are not two addresses of one family", flow.Src, flow.Dst)
	}
	f.mu.Lock() // and with it what is mapped
	defer f.mu.Unlock()
	if f.closing.Load() {
		return edge.FlowVerdict{}, fmt.Errorf("look up flow: %w", errClosed)
	}
	v, err := f.lookup(flow, cid)
	if err != nil {
		return edge.FlowVerdict{}, fmt.Errorf("look up flow: %w", err)
	}
	return v, nil
}

func (f *Forwarder) lookup(flow edge.Flow, cid []byte) (edge.FlowVerdict, error) {
	now, err := monotonic()
	if err != nil {
		return edge.FlowVerdict{}, err
	}
	r := reader{f: f, now: flows.TickAt(now)}
	o := r.world().Explain(model.Query{Flow: flow, ConnectionID: cid}, now)
	if r.err != nil {
		return edge.FlowVerdict{}, r.err
	}
	v := f.flowVerdict(edgeVerdict(o.Verdict))
	v.Service, v.Backend, v.By, v.Slot = f.state.serviceName(o.Service), f.state.backendName(o.Backend), string(o.By), int(o.Slot)
	if o.Backend == 0 || o.Verdict != model.TXBackend && o.Verdict != model.RedirectBackend {
		return v, nil
	}
	exit, err := f.exit(f.state.backend.have[o.Backend])
	v.Action, v.Reason = exit.Action, exit.Reason
	return v, err
}

func (f *Forwarder) flowVerdict(value edgeVerdict) edge.FlowVerdict {
	v := f.verdict(value)
	return edge.FlowVerdict{Action: v.action, Reason: v.reason}
}

// reader shows the maps to the model.
type reader struct {
	f   *Forwarder
	now flows.Tick
	err error // the first
}

func (r *reader) world() *model.World {
	s := r.f.state
	w := &model.World{
		Addrs: s.addr.have, VIPs: make(map[model.VIPKey]uint32), Service: r.service,
		Backends: make(map[uint32]model.Backend), ServerIDs: make(map[model.ServerKey]uint32),
		Blocked: r.blocked, Flows: tableReader{r.f.flows}, Half: tableReader{r.f.half},
		Route: func(model.RouteQuery) model.RouteAnswer { return model.RouteAnswer{} }, // Lookup asks for itself
	}
	for k, id := range s.vip.have {
		w.VIPs[model.VIPKey{Addr: k.Addr, Port: netOrder(k.Port), Proto: k.Proto}] = id
	}
	for k, id := range s.serverID.have {
		w.ServerIDs[model.ServerKey{Service: k.Svc, ID: string(k.Id[:k.Length])}] = id
	}
	for id, b := range s.backend.have {
		w.Backends[id] = modelBackend(b)
	}
	return w
}

func modelBackend(b edgeBackend) model.Backend {
	return model.Backend{
		Addr: netip.AddrFrom16(b.Addr).Unmap(), Service: b.Svc, Local: b.Flags&flagLocal != 0,
		Generation: b.gen(), State: model.State(b.state()),
	}
}

func (r *reader) service(id uint32) *model.Service {
	t, err := r.f.readTable(id)
	if err != nil {
		if r.err == nil {
			r.err = err
		}
		return nil
	}
	return modelService(t)
}

// modelService is a service's table as the model has it.
func modelService(t *edgeSvcTable) *model.Service {
	s := &model.Service{
		Seed: t.Seed, GUE: t.Encap == encapGUE, Affinity: model.Affinity(t.Affinity),
		PerSession: t.Flags&svcPerSession != 0, Idle: t.Idle,
		SYN: modelLimit(t.Syn.Interval, t.Syn.Burst), SYNSource: modelLimit(t.SynSource.Interval, t.SynSource.Burst),
	}
	if t.Src4 != 0 {
		s.Source4 = netip.AddrFrom4(nativeBytes(t.Src4))
	}
	if t.Src6 != [16]byte{} {
		s.Source6 = netip.AddrFrom16(t.Src6)
	}
	if t.Flags&svcQUIC != 0 {
		s.QUIC = &edge.QUIC{Offset: int(t.QuicOffset), Length: int(t.QuicLength)}
	}
	if t.N_backends > 0 {
		s.Ring = func(slot uint32) uint32 { return t.Slot[slot] }
	}
	return s
}

func (r *reader) blocked(a netip.Addr) bool {
	if r.f.host.Blocked == 0 {
		return false
	}
	var id ebpf.MapID
	if err := r.f.coll.Maps[edgeMapBlocklist].Lookup(uint32(0), &id); err != nil {
		return false
	}
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return false
	}
	defer m.Close()
	var value uint32
	return m.Lookup(edgePrefix{Bits: 128, Addr: a.As16()}, &value) == nil
}

// tableReader shows a flow table to the model, which only reads here.
type tableReader struct {
	table interface {
		Find(hash uint64, now flows.Tick) (flows.Entry, bool)
	}
}

func (t tableReader) Get(hash uint64) (model.FlowEntry, bool) {
	now, err := monotonic()
	if err != nil {
		return model.FlowEntry{}, false
	}
	e, ok := t.table.Find(hash, flows.TickAt(now))
	return model.FlowEntry{Backend: e.Backend, Generation: e.Generation, Service: e.Service, Until: uint32(e.Until)}, ok
}

func (tableReader) Put(uint64, model.FlowEntry) {}
func (tableReader) Delete(uint64)               {}

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
