package xdp

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
)

// Limits of a table. The program has twice as many ids, so that a table can be
// replaced by an entirely different one.
const (
	maxServices = edge.MaxServices
	maxBackends = edge.MaxBackends // over all services
	maxTrusted  = edge.MaxTrusted
	serviceIDs  = 1024
	backendIDs  = 16384
	maxNameLen  = 32

	maxIdle         = 16 * time.Hour
	maxRate         = 100_000_000 // of SYNs, a second
	maxServerID     = 8           // bytes
	maxConnectionID = 20          // bytes (RFC 9000 section 17.2)
)

// quarantine is how long an id rests once it is released: a packet that is on
// its way through the program may still hold it.
const quarantine = 2 * time.Second

// What maps.h calls enum addr_kind and addr_flags, encap, affinity, svc_flags,
// backend_state and backend_flags.
const (
	addrVIP          = 1
	addrTunnel       = 2
	addrAllPorts     = 0x100
	addrAllProtocols = 0x200
	addrKindMask     = 0xff

	vipFragments = 0x80000000
	vipIDMask    = 0xffff

	encapGUE  = 1
	encapIPIP = 2

	svcPerSession = 1
	svcQUIC       = 2

	stateNone      = 0
	stateMember    = 1
	stateKeepTCP   = 2
	stateKeepOther = 4
	stateKeepAll   = stateMember | stateKeepTCP | stateKeepOther

	flagLocal = 1
	flagV6    = 2
)

// tickShift makes ticks of the flow tables out of nanoseconds.
const tickShift = 30

// state is what is in the kernel's maps, and with it the ids: they are learnt
// from the maps, so a process that adopts them goes on with the same ones.
type state struct {
	addr         mirror[[16]byte, uint32]
	trusted      mirror[[16]byte, uint32]
	vip          mirror[edgeVipKey, uint32]
	serverID     mirror[edgeServerKey, uint32]
	backend      mirror[uint32, edgeBackend]
	backendNames mirror[uint32, edgeBackendName]
	serviceNames mirror[uint32, edgeSvcName]
	svc          *ebpf.Map
	// tables holds a fingerprint of each service's table; the zero fingerprint
	// if it is there but another process has built it.
	tables map[uint32]fingerprint
	// swappedSingly says that the kernel has refused to swap several at once.
	swappedSingly bool

	released map[uint32]time.Time // backend ids
	retired  map[uint32]time.Time // service ids
}

func readState(coll *ebpf.Collection, now time.Time) (*state, error) {
	s := &state{
		svc:      coll.Maps[edgeMapSvc],
		tables:   make(map[uint32]fingerprint),
		released: make(map[uint32]time.Time),
		retired:  make(map[uint32]time.Time),
	}
	var errs [7]error
	s.addr, errs[0] = newMirror[[16]byte, uint32](coll, edgeMapAddr)
	s.trusted, errs[1] = newMirror[[16]byte, uint32](coll, edgeMapTrusted)
	s.vip, errs[2] = newMirror[edgeVipKey, uint32](coll, edgeMapVip)
	s.serverID, errs[6] = newMirror[edgeServerKey, uint32](coll, edgeMapServerId)
	s.backend, errs[3] = newMirror[uint32, edgeBackend](coll, edgeMapBackend)
	s.backendNames, errs[4] = newMirror[uint32, edgeBackendName](coll, edgeMapBackendName)
	s.serviceNames, errs[5] = newMirror[uint32, edgeSvcName](coll, edgeMapSvcName)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for id := range s.serviceNames.have {
		var inner uint32
		switch err := s.svc.Lookup(id, &inner); {
		case err == nil:
			s.tables[id] = fingerprint{}
		case errors.Is(err, ebpf.ErrKeyNotExist):
			s.retired[id] = now
		default:
			return nil, fmt.Errorf("read table of service %d: %w", id, err)
		}
	}
	for id, b := range s.backend.have {
		if b.state() == stateNone {
			s.released[id] = now
		}
	}
	return s, nil
}

func (b edgeBackend) state() uint32 { return uint32(b.Life) }
func (b edgeBackend) gen() uint32   { return uint32(b.Life >> 32) }

func (b edgeBackend) in(state uint32) edgeBackend {
	b.Life = uint64(b.gen())<<32 | uint64(state)
	return b
}

// next is the same backend to which no flow has been sent yet.
func (b edgeBackend) next() edgeBackend {
	b.Life += 1 << 32
	return b
}

// name32 and nameOf turn names into the zero-padded form of the maps and back.
func name32(s string) (b [maxNameLen]byte) {
	copy(b[:], s)
	return b
}

func nameOf(b [maxNameLen]byte) string {
	return string(bytes.TrimRight(b[:], "\x00"))
}

// serviceName returns the name of a service id.
func (s *state) serviceName(id uint32) edge.ServiceID {
	return edge.ServiceID(nameOf(s.serviceNames.have[id].Name))
}

func (s *state) backendName(id uint32) edge.BackendID {
	return edge.BackendID(nameOf(s.backendNames.have[id].Name))
}

// idle returns the ids that a new owner may have, best first: those that nobody
// has had, then those that have rested longest, if that is long enough.
func idle(ids uint32, named func(uint32) bool, resting map[uint32]time.Time, now time.Time) []uint32 {
	var never, rested []uint32
	for id := uint32(1); id < ids; id++ {
		since, released := resting[id]
		switch {
		case !named(id):
			never = append(never, id)
		case released && now.Sub(since) >= quarantine:
			rested = append(rested, id)
		}
	}
	slices.SortStableFunc(rested, func(a, b uint32) int { return resting[a].Compare(resting[b]) })
	return append(never, rested...)
}
