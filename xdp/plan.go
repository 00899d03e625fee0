package xdp

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/maglev"
)

// fingerprint identifies the contents of a service's table.
type fingerprint [sha256.Size]byte

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
	backend      map[uint32]edgeBackend // the living
	backendNames map[uint32]edgeBackendName
	serviceNames map[uint32]edgeSvcName
	tables       map[uint32]tableSpec

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
		backend:      make(map[uint32]edgeBackend),
		backendNames: make(map[uint32]edgeBackendName),
		serviceNames: make(map[uint32]edgeSvcName),
		tables:       make(map[uint32]tableSpec),
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
	vip := edgeVipKey{Addr: svc.VIP.Addr().As16(), Port: netOrder(svc.VIP.Port()), Proto: uint8(svc.Protocol)}
	p.addr[vip.Addr] = addrVIP
	p.vip[vip] = id
	p.serviceNames[id] = edgeSvcName{Name: name32(string(svc.ID)), Vip: vip.Addr, Port: vip.Port, Proto: vip.Proto}
	table := newTableSpec(t, svc.Encap)
	for _, b := range svc.Backends {
		bid, err := p.backendID(id, t, b)
		if err != nil {
			return err
		}
		if b.Weight > 0 && !b.Drain {
			table.add(b, bid)
		}
	}
	p.tables[id] = table
	return nil
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
	state := uint64(stateActive)
	if b.Drain {
		state = stateDrain
	}
	want.Life = uint64(gen)<<32 | state
	p.backend[id] = want
	p.backendNames[id] = edgeBackendName{Name: key.name}
	return id, nil
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

// tableSpec is what a service's table is built from.
type tableSpec struct {
	seed     [16]byte
	head     edgeSvcTable // without slots
	backends []maglev.Backend
	ids      []uint32
}

func newTableSpec(t edge.Table, encap edge.Encap) tableSpec {
	s := tableSpec{seed: t.Seed}
	s.head.Seed = seedWords(t.Seed)
	s.head.Encap = encapGUE
	if encap == edge.EncapIPIP {
		s.head.Encap = encapIPIP
	}
	if t.Source4.IsValid() {
		a := t.Source4.Unmap().As4()
		s.head.Src4 = binary.NativeEndian.Uint32(a[:])
	}
	if t.Source6.IsValid() {
		s.head.Src6 = t.Source6.As16()
	}
	return s
}

func (s *tableSpec) add(b edge.TableBackend, id uint32) {
	s.backends = append(s.backends, maglev.Backend{Name: string(b.ID), Weight: b.Weight})
	s.ids = append(s.ids, id)
}

// fingerprint covers all that build depends on, in an order of its own: a
// table in another order is the same table.
func (s *tableSpec) fingerprint() fingerprint {
	h := sha256.New()
	h.Write(s.seed[:])
	h.Write(s.head.Src6[:])
	b := binary.LittleEndian.AppendUint32(nil, s.head.Src4)
	b = binary.LittleEndian.AppendUint32(b, s.head.Encap)
	order := make([]int, len(s.ids))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return cmp.Compare(s.ids[x], s.ids[y]) })
	for _, i := range order {
		// The id stands for the name as long as nobody else gets it; who does
		// is told apart by the name.
		b = binary.LittleEndian.AppendUint32(b, s.ids[i])
		b = binary.LittleEndian.AppendUint32(b, uint32(s.backends[i].Weight))
		name := name32(s.backends[i].Name)
		b = append(b, name[:]...)
	}
	h.Write(b)
	return fingerprint(h.Sum(nil))
}

// build fills in the ring.
func (s *tableSpec) build() (*edgeSvcTable, error) {
	ring, err := maglev.Build(s.seed, s.backends)
	if err != nil {
		return nil, err
	}
	table := s.head
	table.N_backends = uint32(len(s.backends))
	for slot, at := range ring {
		if at != maglev.Empty {
			table.Slot[slot] = s.ids[at]
		}
	}
	return &table, nil
}
