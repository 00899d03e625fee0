package model

import (
	"time"

	"github.com/catchment-dev/edge"
)

const tickShift = 30

// tick is the time in ticks of 2^30 ns.
func tick(now time.Duration) uint32 { return uint32(now >> tickShift) }

// choose finds the backend of a packet: what may say so is asked in turn.
func (d *decision) choose() Verdict {
	ring, flow := d.hashes()
	d.Slot = Slot(ring)
	d.Hash, d.Flow = FlowHash(flow, d.Service), d.svc.flowTuple(d.p.tuple)
	d.Tracked = d.svc.tracks(d.p.tuple.Proto)
	if v := d.limit(); v != Undecided {
		return v
	}
	if d.askServerID() || d.Tracked && !d.svc.opens(&d.p) && d.askTables() {
		return Undecided
	}
	return d.askRing()
}

// hashes returns the hash of the ring and that of the flow, which also spreads
// the outer packets over queues and paths.
func (d *decision) hashes() (ring, flow uint64) {
	ring = Hash(d.svc.Seed, d.p.tuple.keep(d.svc.Affinity))
	flow = Hash(d.svc.Seed, d.svc.flowTuple(d.p.tuple))
	return ring, flow
}

// flowTuple is what the flow tables remember of a packet.
func (s *Service) flowTuple(t Tuple) Tuple {
	if s.PerSession {
		return t.keep(s.Affinity)
	}
	return t
}

// tracks says whether flows of a protocol are remembered.
func (s *Service) tracks(proto uint8) bool {
	switch proto {
	case protoTCP:
		return true
	case protoUDP, protoESP, protoGRE:
		return s.Affinity != AffinityNone
	}
	return false
}

// opens says whether a packet begins a connection, so that nothing that is
// remembered of its tuple is about it.
func (s *Service) opens(p *packet) bool {
	return p.syn && (!s.PerSession || s.Affinity == AffinityNone || s.Affinity == AffinityFiveTuple)
}

// take settles on a backend.
func (d *decision) take(by By, id uint32) { d.By, d.Backend = by, id }

// askServerID follows the server id in a QUIC connection id.
func (d *decision) askServerID() bool {
	q, from := d.svc.QUIC, d.p.shortID
	if q == nil || from == nil {
		return false
	}
	if q.Length <= 0 || len(from) < q.Offset+q.Length {
		d.say("server_id", "the connection id is too short for one", 0)
		return false
	}
	id, ok := d.w.ServerIDs[ServerKey{d.Service, string(from[q.Offset : q.Offset+q.Length])}]
	b := d.w.Backends[id]
	switch {
	case !ok:
		d.say("server_id", "nobody has it", 0)
	case b.Service != d.Service || b.State&Member == 0:
		d.say("server_id", "its backend has left the service", id)
	default:
		d.say("server_id", "its backend", id)
		d.take(ByServerID, id)
		return true
	}
	return false
}

// askTables follows what is remembered of the flow, and remembers it for longer.
func (d *decision) askTables() bool {
	if e, ok := d.recall(string(ByTable), d.w.Flows); ok {
		d.take(ByTable, e.Backend)
		d.remember(d.w.Flows, e)
		return true
	}
	e, ok := d.recall(string(ByHalf), d.w.Half)
	if !ok {
		return false
	}
	d.take(ByHalf, e.Backend)
	if d.p.syn { // of a session: a forged source sends as many as it likes
		d.remember(d.w.Half, e)
		return true
	}
	// It has shown a second packet, which a forged source does not.
	d.Established = d.remember(d.w.Flows, e)
	if d.writes() {
		d.w.Half.Delete(d.Hash)
	}
	return true
}

// recall reads the flow's entry, if there is one that can be followed.
func (d *decision) recall(asked string, t FlowTable) (e FlowEntry, ok bool) {
	if e, ok = d.find(t); !ok {
		d.say(asked, "no entry", 0)
		return e, false
	}
	if why := d.stale(e); why != "" {
		d.say(asked, why, e.Backend)
		return e, false
	}
	d.say(asked, "the flow's backend", e.Backend)
	return e, true
}

// find reads the flow's entry, unless it has ended.
func (d *decision) find(t FlowTable) (FlowEntry, bool) {
	if t == nil {
		return FlowEntry{}, false
	}
	e, ok := t.Get(d.Hash)
	return e, ok && tick(d.now) <= e.Until
}

// stale says why an entry cannot be followed; empty if it can.
func (d *decision) stale(e FlowEntry) edge.Reason {
	b, keep := d.w.Backends[e.Backend], KeepOther
	switch tcp := d.p.tuple.Proto == protoTCP; {
	case tcp && d.p.syn: // of a session: it can go anywhere, so one that drains does not get it
		keep = KeepTCP | KeepOther
	case tcp:
		keep = KeepTCP
	}
	switch {
	case b.Service != d.Service || b.State&Member == 0:
		return "its backend has left the service"
	case b.Generation != e.Generation:
		return "its backend has left the service, and another has its id"
	case b.State&keep != keep:
		return "its backend keeps no flows of this protocol"
	}
	return ""
}

// writes says whether the packet may change what is remembered.
func (d *decision) writes() bool { return !d.still && !d.p.icmpError }

// remember keeps a flow's entry until it has been idle for the service's time,
// and says whether it did.
func (d *decision) remember(t FlowTable, e FlowEntry) bool {
	if t == nil || !d.writes() {
		return false
	}
	e.Service, e.Until = d.Service, tick(d.now)+d.svc.Idle
	t.Put(d.Hash, e)
	return true
}

// askRing gives a flow the backend of its slot, and remembers it.
func (d *decision) askRing() Verdict {
	if d.svc.Ring == nil {
		d.say("ring", "nobody takes new flows", 0)
		return DropNoBackend
	}
	id := d.svc.Ring(d.Slot)
	b := d.w.Backends[id]
	if b.State&Member == 0 {
		d.say("ring", "the slot's backend has left the service", id)
		return DropStaleBackend
	}
	d.say("ring", "the slot's backend", id)
	d.take(ByRing, id)
	// A reset ends a flow: it must not push another out of the table.
	if !d.Tracked || d.p.rst {
		return Undecided
	}
	e := FlowEntry{Backend: id, Generation: b.Generation}
	if _, ok := d.find(d.w.Flows); ok {
		d.remember(d.w.Flows, e)
	} else {
		d.Opened = d.remember(d.w.Half, e)
	}
	return Undecided
}
