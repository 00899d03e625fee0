package xdp

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/maglev"
)

// fingerprint identifies the contents of a service's table.
type fingerprint [sha256.Size]byte

// tableSpec is what a service's table is built from.
type tableSpec struct {
	seed     [16]byte
	head     edgeSvcTable // without slots
	backends []maglev.Backend
	ids      []uint32
	addrs    [][16]byte
}

// defaultIdle is how long a flow is remembered if the table does not say.
const defaultIdle = 60 * time.Second

func newTableSpec(t edge.Table, svc edge.TableService) tableSpec {
	s := tableSpec{seed: t.Seed}
	h := &s.head
	h.Seed = seedWords(t.Seed)
	h.Encap = encapGUE
	if svc.Encap == edge.EncapIPIP {
		h.Encap = encapIPIP
	}
	if t.Source4.IsValid() {
		a := t.Source4.Unmap().As4()
		h.Src4 = binary.NativeEndian.Uint32(a[:])
	}
	if t.Source6.IsValid() {
		h.Src6 = t.Source6.As16()
	}
	h.Affinity = affinityFields[svc.Affinity]
	if svc.Tracking == edge.PerSession {
		h.Flags |= svcPerSession
	}
	if q := svc.QUIC; q != nil {
		h.Flags |= svcQUIC
		h.QuicOffset, h.QuicLength = uint8(q.Offset), uint8(q.Length)
	}
	h.Idle = ticks(cmp.Or(svc.IdleTimeout, defaultIdle))
	h.Syn.Interval, h.Syn.Burst = limit(svc.SYNLimit.Rate, svc.SYNLimit.Burst)
	h.SynSource.Interval, h.SynSource.Burst = limit(svc.SYNLimit.SourceRate, svc.SYNLimit.SourceBurst)
	return s
}

// affinityFields is enum affinity of maps.h.
var affinityFields = map[edge.Affinity]uint8{
	"":                                 0,
	edge.AffinityNone:                  0,
	edge.AffinityClientIPNoDestination: 1,
	edge.AffinityClientIP:              2,
	edge.AffinityClientIPProto:         3,
	edge.AffinityClientIPPortProto:     5,
}

// ticks is a time in ticks of the flow tables, rounded up: at least one.
func ticks(d time.Duration) uint32 {
	return uint32((int64(d) + 1<<tickShift - 1) >> tickShift)
}

// limit turns a rate per second into a struct limit: the time between two, and
// how far ahead of it a burst may run. A rate of 0 does not limit.
func limit(rate, burst int) (interval, ahead uint64) {
	if rate == 0 {
		return 0, 0
	}
	interval = max(1, uint64(time.Second)/uint64(rate))
	return interval, interval * uint64(max(burst, 1)-1)
}

func (s *tableSpec) add(b edge.TableBackend, id uint32) {
	s.backends = append(s.backends, maglev.Backend{Name: string(b.ID), Weight: b.Weight})
	s.ids = append(s.ids, id)
	s.addrs = append(s.addrs, b.Addr.As16())
}

// fingerprint covers all that build depends on, in an order of its own: a
// table in another order is the same table.
func (s *tableSpec) fingerprint() fingerprint {
	return s.digest(func(i int) []byte {
		// The id stands for the name as long as nobody else gets it; who does
		// is told apart by the name.
		return binary.LittleEndian.AppendUint32(nil, s.ids[i])
	})
}

// likeness covers what a packet's way depends on: two services that are alike in
// it send the same packet to the same box.
func (s *tableSpec) likeness() fingerprint {
	return s.digest(func(i int) []byte { return s.addrs[i][:] })
}

func (s *tableSpec) digest(identity func(i int) []byte) fingerprint {
	h := sha256.New()
	h.Write(s.seed[:])
	h.Write(s.headBytes())
	for _, i := range s.byName() {
		name := name32(s.backends[i].Name)
		h.Write(name[:])
		h.Write(identity(i))
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(s.backends[i].Weight)))
	}
	return fingerprint(h.Sum(nil))
}

// headBytes are the fields of the policy.
func (s *tableSpec) headBytes() []byte {
	h := &s.head
	b := slices.Clone(h.Src6[:])
	for _, v := range []uint64{uint64(h.Src4), uint64(h.Idle), h.Syn.Interval, h.Syn.Burst, h.SynSource.Interval, h.SynSource.Burst} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return append(b, h.Encap, h.Affinity, h.Flags, h.QuicOffset, h.QuicLength)
}

// build fills in the ring, one of r if it has it.
func (s *tableSpec) build(r *rings) (*edgeSvcTable, error) {
	at, err := r.of(s)
	if err != nil {
		return nil, err
	}
	table := s.head
	table.N_backends = uint32(len(s.backends))
	for slot := range table.Slot {
		if i := at(slot); i != maglev.Empty {
			table.Slot[slot] = s.ids[i]
		}
	}
	return &table, nil
}
