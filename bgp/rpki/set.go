package rpki

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// VRP is a validated ROA payload: AS ASN may announce Prefix and what is in it,
// up to MaxLength bits long. ASN 0 means that nobody may (RFC 6483 section 4).
type VRP struct {
	Prefix    netip.Prefix
	MaxLength int
	ASN       uint32
}

// String is how evidence shows it.
func (v VRP) String() string { return fmt.Sprintf("%s max %d AS%d", v.Prefix, v.MaxLength, v.ASN) }

// Validity is the outcome of route origin validation. RFC 6811 has valid,
// invalid and not found; we tell why it is invalid, and when nothing is known.
type Validity string

const (
	Valid         Validity = "valid"
	InvalidLength Validity = "invalid-length" // a VRP of this AS covers it, but it is longer than that allows
	InvalidOrigin Validity = "invalid-origin" // only VRPs of other ASes cover it
	NotFound      Validity = "not-found"      // no VRP covers it
	Unknown       Validity = "unknown"        // no data: never synchronised, or expired
)

// Verdict is a Validity with its reason.
type Verdict struct {
	Validity Validity
	Evidence string // the VRPs that decided, at most four; never empty
}

// maxEvidence is how many VRPs a verdict shows.
const maxEvidence = 4

// record is a VRP in 24 bytes: there are hundreds of thousands.
type record struct {
	hi, lo    uint64 // the address, IPv4 in the upper 32 bits of hi
	asn       uint32
	bits, max uint8
	v6        bool
	withdraw  bool // in a list of changes: take it away
}

// compareKey orders by family, address and length: what a prefix is found by.
func compareKey(a, b record) int {
	switch {
	case a.v6 != b.v6 && b.v6:
		return -1
	case a.v6 != b.v6:
		return 1
	}
	return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo), cmp.Compare(a.bits, b.bits))
}

// compare orders records; withdraw does not count.
func compare(a, b record) int {
	if c := compareKey(a, b); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.max, b.max), cmp.Compare(a.asn, b.asn))
}

// key returns the record of a prefix alone. The prefix is valid.
func key(p netip.Prefix) record {
	r := record{bits: uint8(p.Bits()), v6: p.Addr().Is6()}
	if r.v6 {
		b := p.Addr().As16()
		r.hi, r.lo = binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	} else {
		b := p.Addr().As4()
		r.hi = uint64(binary.BigEndian.Uint32(b[:])) << 32
	}
	return r
}

// cut returns the key with bits bits: that of a covering prefix.
func (r record) cut(bits uint8) record {
	r.bits = bits
	if bits <= 64 {
		r.hi, r.lo = r.hi&^(^uint64(0)>>bits), 0
	} else {
		r.lo &^= ^uint64(0) >> (bits - 64)
	}
	return r
}

func (r record) vrp() VRP {
	var addr netip.Addr
	if r.v6 {
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], r.hi)
		binary.BigEndian.PutUint64(b[8:], r.lo)
		addr = netip.AddrFrom16(b)
	} else {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(r.hi>>32))
		addr = netip.AddrFrom4(b)
	}
	return VRP{Prefix: netip.PrefixFrom(addr, int(r.bits)), MaxLength: int(r.max), ASN: r.asn}
}

// toRecord checks a VRP: a valid prefix without host bits, and a maximum length
// from its own up to that of the family.
func toRecord(v VRP) (record, error) {
	switch p := v.Prefix; {
	case !p.IsValid() || p.Addr().Is4In6():
		return record{}, fmt.Errorf("VRP of AS%d: the prefix is not valid", v.ASN)
	case p != p.Masked():
		return record{}, fmt.Errorf("VRP %s: the prefix has host bits", v)
	case v.MaxLength < p.Bits() || v.MaxLength > p.Addr().BitLen():
		return record{}, fmt.Errorf("VRP %s: the maximum length is not between %d and %d", v, p.Bits(), p.Addr().BitLen())
	}
	r := key(v.Prefix)
	r.max, r.asn = uint8(v.MaxLength), v.ASN
	return r, nil
}

// Set is VRPs at one moment. It does not change: several goroutines may use it
// at once. The zero value has no data: every verdict is unknown.
type Set struct {
	records []record // sorted, each once
	lengths [2][]uint8
	known   bool
	why     string // it is not known; empty: never synchronised
}

// NewSet returns the Set of vrps, each of which may be there several times. A
// malformed one is an error.
func NewSet(vrps []VRP) (*Set, error) {
	records := make([]record, len(vrps))
	for i, v := range vrps {
		var err error
		if records[i], err = toRecord(v); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(records, compare)
	return sortedSet(slices.Compact(records)), nil
}

// sortedSet takes over records that are sorted and different.
func sortedSet(records []record) *Set {
	s := &Set{records: records, known: true}
	var seen [2][129]bool
	for _, r := range records {
		seen[family(r.v6)][r.bits] = true
	}
	for f := range seen {
		for bits, yes := range seen[f] {
			if yes {
				s.lengths[f] = append(s.lengths[f], uint8(bits))
			}
		}
	}
	return s
}

// run returns the records from i on that agree in prefix and maximal length: they
// are in the order of their ASes. Millions may stand on one prefix.
func (s *Set) run(i int) []record {
	n, _ := slices.BinarySearchFunc(s.records[i:], s.records[i], func(r, first record) int {
		if c := cmp.Or(compareKey(r, first), cmp.Compare(r.max, first.max)); c != 0 {
			return c
		}
		return -1 // behind all of the run
	})
	return s.records[i : i+n]
}

func family(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// Len is the number of VRPs.
func (s *Set) Len() int { return len(s.records) }

// Validate says what the VRPs say of prefix, announced by the AS origin (RFC
// 6811 section 2). Origin 0 is no AS: nothing makes it valid. One call takes
// some microseconds, whatever the size of the Set.
func (s *Set) Validate(prefix netip.Prefix, origin uint32) Verdict {
	switch {
	case !s.known && s.why != "":
		return Verdict{Unknown, s.why}
	case !s.known:
		return Verdict{Unknown, "no VRPs have been received"}
	case !prefix.IsValid() || prefix.Addr().Is4In6():
		return Verdict{Unknown, "not a prefix"}
	}
	var match, long, other evidence
	k := key(prefix)
	for _, bits := range s.lengths[family(k.v6)] {
		if bits > k.bits {
			break
		}
		at := k.cut(bits)
		i, _ := slices.BinarySearchFunc(s.records, at, compareKey)
		for i < len(s.records) && compareKey(s.records[i], at) == 0 {
			run := s.run(i)
			i += len(run)
			own, found := slices.BinarySearchFunc(run, origin, func(r record, asn uint32) int { return cmp.Compare(r.asn, asn) })
			switch {
			case !found || origin == 0:
				own = len(run)
			case k.bits > run[own].max:
				long.add(run[own])
			default:
				match.add(run[own])
			}
			other.addOthers(run, own)
		}
	}
	switch {
	case match.n > 0:
		return Verdict{Valid, match.String()}
	case long.n > 0:
		return Verdict{InvalidLength, long.String()}
	case other.n > 0:
		return Verdict{InvalidOrigin, other.String()}
	}
	return Verdict{NotFound, "no VRP covers " + prefix.Masked().String()}
}

// evidence is the first of n VRPs.
type evidence struct {
	n     int
	first [maxEvidence]record
}

func (e *evidence) add(r record) {
	if e.n < maxEvidence {
		e.first[e.n] = r
	}
	e.n++
}

// addOthers adds a run but for the record at own, without looking at all of it.
func (e *evidence) addOthers(run []record, own int) {
	n := len(run)
	if own < n {
		n--
	}
	for i := 0; i < len(run) && e.n < maxEvidence; i++ {
		if i != own {
			e.add(run[i])
			n--
		}
	}
	e.n += n
}

func (e *evidence) String() string {
	var all []string
	for _, r := range e.first[:min(e.n, maxEvidence)] {
		all = append(all, r.vrp().String())
	}
	text := strings.Join(all, ", ")
	if e.n > maxEvidence {
		text += fmt.Sprintf(" and %d more", e.n-maxEvidence)
	}
	return text
}
