package xdp

import (
	"errors"
	"time"

	"github.com/catchment-dev/edge"
)

// backendKey is what makes a backend the same one: a backend that gets another
// address is another backend, and its flows move.
type backendKey struct {
	svc   uint32
	name  [maxNameLen]byte
	addr  [16]byte
	flags uint32
}

// plan is what the maps are to hold for one table. Making it changes nothing.
type plan struct {
	s   *state
	now time.Time

	addr         map[[16]byte]uint32
	trusted      map[[16]byte]uint32
	vip          map[edgeVipKey]uint32
	serverID     map[edgeServerKey]uint32
	backend      map[uint32]edgeBackend // the living
	backendNames map[uint32]edgeBackendName
	// serviceNames have the pools that the tables will have, oldPools the names of
	// services that are about to switch with the pool before.
	serviceNames, oldPools map[uint32]edgeSvcName
	tables                 map[uint32]tableSpec
	// cleared are the backends of services that switch and forget their flows,
	// as they are after it: with another generation.
	cleared map[uint32]edgeBackend
	// alike tells apart the services of an address and protocol that fragments
	// could go to.
	alike map[edgeVipKey]*candidates

	services     map[edge.ServiceID]uint32
	backends     map[backendKey]uint32
	idleServices []uint32
	idleBackends []uint32
	// New owners of ids: their counters start at zero.
	newServices, newBackends []uint32
}

func (s *state) plan(t edge.Table, now time.Time) (*plan, error) {
	p := &plan{
		s: s, now: now,
		addr:         make(map[[16]byte]uint32),
		trusted:      make(map[[16]byte]uint32),
		vip:          make(map[edgeVipKey]uint32),
		serverID:     make(map[edgeServerKey]uint32),
		backend:      make(map[uint32]edgeBackend),
		backendNames: make(map[uint32]edgeBackendName),
		serviceNames: make(map[uint32]edgeSvcName),
		oldPools:     make(map[uint32]edgeSvcName),
		tables:       make(map[uint32]tableSpec),
		cleared:      make(map[uint32]edgeBackend),
		alike:        make(map[edgeVipKey]*candidates),
		services:     make(map[edge.ServiceID]uint32),
		backends:     make(map[backendKey]uint32),
	}
	p.index()
	if t.Source4.IsValid() {
		p.addr[t.Source4.As16()] = addrTunnel
	}
	if t.Source6.IsValid() {
		p.addr[t.Source6.As16()] = addrTunnel
	}
	for _, a := range t.Trusted {
		p.trusted[a.As16()] = 1
	}
	for _, svc := range t.Services {
		if err := p.service(t, svc); err != nil {
			return nil, err
		}
	}
	p.fragments()
	return p, nil
}

// index finds out who has which id, and which ids nobody has.
func (p *plan) index() {
	s := p.s
	for id := range s.serviceNames.have {
		p.services[s.serviceName(id)] = id
	}
	for id, name := range s.backendNames.have {
		if name != (edgeBackendName{}) {
			b := s.backend.have[id]
			p.backends[backendKey{b.Svc, name.Name, b.Addr, b.Flags}] = id
		}
	}
	p.idleServices = idle(serviceIDs, func(id uint32) bool { return s.serviceName(id) != "" }, s.retired, p.now)
	p.idleBackends = idle(backendIDs, func(id uint32) bool { return s.backendName(id) != "" }, s.released, p.now)
}

func (p *plan) service(t edge.Table, svc edge.TableService) error {
	id, err := p.serviceID(svc.ID)
	if err != nil {
		return err
	}
	p.name(id, svc)
	table := newTableSpec(t, svc)
	for _, b := range svc.Backends {
		bid, err := p.backendID(id, t, b)
		if err != nil {
			return err
		}
		if b.Weight > 0 {
			table.add(b, bid)
		}
		if b.ServerID != "" {
			p.serverID[serverKey(id, b.ServerID)] = bid
		}
	}
	p.tables[id] = table
	p.vipOf(id, svc, table)
	p.switchPool(id, svc)
	return nil
}

// name claims the id for a service.
func (p *plan) name(id uint32, svc edge.TableService) {
	vip := vipKey(svc)
	n := edgeSvcName{Name: name32(string(svc.ID)), Vip: vip.Addr, Port: vip.Port, Proto: vip.Proto}
	n.Pool = poolNumber(svc.Pool)
	p.serviceNames[id] = n
}

func vipKey(svc edge.TableService) edgeVipKey {
	return edgeVipKey{Addr: svc.VIP.Addr().As16(), Port: netOrder(svc.VIP.Port()), Proto: uint8(svc.Protocol)}
}

// poolNumber is how the map svc_name writes a pool.
func poolNumber(p edge.Pool) uint8 {
	if p == edge.PoolFailover {
		return 1
	}
	return 0
}

// switchPool plans what a switch to the other pool does to the flows of a
// service. The pool of a service that was there is what the maps say, whichever
// process wrote them. That they say the new one is written last: a process that
// ends before leaves the switch, and the clearing, to the next.
func (p *plan) switchPool(id uint32, svc edge.TableService) {
	old, was := p.s.serviceNames.have[id]
	_, served := p.s.tables[id]
	if !was || !served || old.Name != p.serviceNames[id].Name || old.Pool == p.serviceNames[id].Pool {
		return
	}
	before := p.serviceNames[id]
	before.Pool = old.Pool
	p.oldPools[id] = before
	if !svc.ClearOnSwitch {
		return
	}
	for bid, b := range p.backend {
		if b.Svc == id {
			p.cleared[bid] = b.next()
		}
	}
}

// vipOf makes the entries by which packets find a service.
func (p *plan) vipOf(id uint32, svc edge.TableService, table tableSpec) {
	key := vipKey(svc)
	flags := p.addr[key.Addr] | addrVIP | addrAllPorts
	if key.Proto == 0 {
		flags |= addrAllProtocols
	}
	p.addr[key.Addr] = flags
	p.vip[key] = id
	all := edgeVipKey{Addr: key.Addr, Proto: key.Proto}
	if p.alike[all] == nil {
		p.alike[all] = &candidates{name: svc.ID, id: id, table: table.likeness()}
	} else {
		p.alike[all].add(svc.ID, id, table.likeness())
	}
}

// candidates are the services of one address and protocol: a fragment, which
// names no port, can go to any of them if they choose alike.
type candidates struct {
	name   edge.ServiceID // the first by name
	id     uint32
	table  fingerprint
	differ bool
}

func (c *candidates) add(name edge.ServiceID, id uint32, table fingerprint) {
	c.differ = c.differ || c.table != table
	if name < c.name {
		c.name, c.id = name, id
	}
}

// fragments makes the entries by which fragments find a service, where none of
// all ports takes them.
func (p *plan) fragments() {
	for key, c := range p.alike {
		if _, all := p.vip[key]; all {
			continue
		}
		p.vip[key] = vipFragments | c.id
		if c.differ {
			p.vip[key] = vipFragments
		}
	}
}

func serverKey(svc uint32, id string) edgeServerKey {
	k := edgeServerKey{Svc: svc, Length: uint8(len(id))}
	copy(k.Id[:], id)
	return k
}

func (p *plan) serviceID(name edge.ServiceID) (uint32, error) {
	if id, ok := p.services[name]; ok {
		return id, nil
	}
	for len(p.idleServices) > 0 {
		id := p.idleServices[0]
		p.idleServices = p.idleServices[1:]
		if _, taken := p.serviceNames[id]; taken {
			continue // its former owner is back
		}
		p.newServices = append(p.newServices, id)
		delete(p.services, p.s.serviceName(id))
		p.services[name] = id
		p.forget(id)
		return id, nil
	}
	return 0, errors.New("too many services have changed in a short time: no id is free, try again in 2 s")
}

// forget takes their names from the backends of a service id's former owner.
func (p *plan) forget(svc uint32) {
	for key, id := range p.backends {
		if key.svc == svc {
			delete(p.backends, key)
			p.backendNames[id] = edgeBackendName{}
		}
	}
}

// backendID finds or makes the entry of a backend of a service.
func (p *plan) backendID(svc uint32, t edge.Table, b edge.TableBackend) (uint32, error) {
	want := edgeBackend{Addr: b.Addr.As16(), Svc: svc}
	if b.Addr.Is6() && !b.Addr.Is4In6() {
		want.Flags |= flagV6
	}
	if isLocal(t, b) {
		want.Flags |= flagLocal
	}
	key := backendKey{svc, name32(string(b.ID)), want.Addr, want.Flags}
	id, known := p.backends[key]
	if !known {
		var ok bool
		if id, ok = p.idleBackend(); !ok {
			return 0, errors.New("too many backends have changed in a short time: no id is free, try again in 2 s")
		}
		p.newBackends = append(p.newBackends, id)
		p.backends[key] = id
	}
	old := p.s.backend.have[id]
	gen := old.gen()
	if !known || old.state() == stateNone {
		gen++ // whoever still follows this id meant another, or this one before it left
	}
	want.Life = uint64(gen)<<32 | memberState(b)
	p.backend[id] = want
	p.backendNames[id] = edgeBackendName{Name: key.name}
	return id, nil
}

// memberState says which flows may follow a backend: all, if it is in the ring.
func memberState(b edge.TableBackend) uint64 {
	state := uint64(stateMember)
	if b.KeepTCP || b.Weight > 0 {
		state |= stateKeepTCP
	}
	if b.KeepOther || b.Weight > 0 {
		state |= stateKeepOther
	}
	return state
}

// idleBackend takes an id from those that may get a new owner.
func (p *plan) idleBackend() (uint32, bool) {
	for len(p.idleBackends) > 0 {
		id := p.idleBackends[0]
		p.idleBackends = p.idleBackends[1:]
		if _, taken := p.backend[id]; taken {
			continue // its former owner is back
		}
		b := p.s.backend.have[id]
		delete(p.backends, backendKey{b.Svc, p.s.backendNames.have[id].Name, b.Addr, b.Flags})
		return id, true
	}
	return 0, false
}
