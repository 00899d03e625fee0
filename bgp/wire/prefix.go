package wire

import (
	"fmt"
	"iter"
	"net/netip"
)

// field is a list of prefixes as it is in a message, of one family: a length in
// bits, then as many bytes as that takes (RFC 4271 section 4.3).
type field struct {
	b  []byte
	v6 bool
}

func (f field) bits() int {
	if f.v6 {
		return 128
	}
	return 32
}

// check says what is wrong with the field, empty if nothing is (RFC 7606
// section 5.3).
func (f field) check() string {
	for b := f.b; len(b) > 0; {
		bits := int(b[0])
		n := 1 + (bits+7)/8
		switch {
		case bits > f.bits():
			return fmt.Sprintf("a prefix of %d bits, at most %d", bits, f.bits())
		case n > len(b):
			return fmt.Sprintf("a prefix of %d bits is cut off", bits)
		}
		b = b[n:]
	}
	return ""
}

// all yields the prefixes of a field that has been checked. Bits beyond the
// length mean nothing (RFC 4271 section 4.3) and are cleared.
func (f field) all() iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for b := f.b; len(b) > 0; {
			bits := int(b[0])
			n := 1 + (bits+7)/8
			var a [16]byte
			copy(a[:], b[1:n])
			addr := netip.AddrFrom16(a)
			if !f.v6 {
				addr = netip.AddrFrom4([4]byte(a[:4]))
			}
			if !yield(netip.PrefixFrom(addr, bits).Masked()) {
				return
			}
			b = b[n:]
		}
	}
}

// short are the prefixes of up to 8 bits that were met, of either family: 511
// each. They take 1 or 2 bytes of a message and 32 of memory; all others take
// 3 bytes and more.
type short [2][8]uint64

// repeated says whether p is short and was met before.
func (s *short) repeated(p netip.Prefix) bool {
	bits := p.Bits()
	if bits > 8 {
		return false
	}
	family, first := 0, byte(0)
	if p.Addr().Is4() {
		first = p.Addr().As4()[0]
	} else {
		family, first = 1, p.Addr().As16()[0]
	}
	i := 1<<bits | int(first)>>(8-bits) // 1 to 511
	word, bit := &s[family][i/64], uint64(1)<<(i%64)
	met := *word&bit != 0
	*word |= bit
	return met
}

// count counts the prefixes of the fields, without repeated short ones.
func (s *short) count(fields ...field) (n int) {
	for _, f := range fields {
		for p := range f.all() {
			if !s.repeated(p) {
				n++
			}
		}
	}
	return n
}

// append appends what count counts.
func (s *short) append(to []netip.Prefix, fields ...field) []netip.Prefix {
	for _, f := range fields {
		for p := range f.all() {
			if !s.repeated(p) {
				to = append(to, p)
			}
		}
	}
	return to
}
