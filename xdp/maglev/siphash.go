package maglev

import (
	"encoding/binary"
	"math/bits"
)

// sip is the state of SipHash (Aumasson and Bernstein, 2012).
type sip struct{ v0, v1, v2, v3 uint64 }

func (s *sip) rounds(n int) {
	for range n {
		s.v0 += s.v1
		s.v1 = bits.RotateLeft64(s.v1, 13) ^ s.v0
		s.v0 = bits.RotateLeft64(s.v0, 32)
		s.v2 += s.v3
		s.v3 = bits.RotateLeft64(s.v3, 16) ^ s.v2
		s.v0 += s.v3
		s.v3 = bits.RotateLeft64(s.v3, 21) ^ s.v0
		s.v2 += s.v1
		s.v1 = bits.RotateLeft64(s.v1, 17) ^ s.v2
		s.v2 = bits.RotateLeft64(s.v2, 32)
	}
}

func (s *sip) word(w uint64) {
	s.v3 ^= w
	s.rounds(2)
	s.v0 ^= w
}

// sipHash is SipHash-2-4 with 128 bits of output: the two halves.
func sipHash(seed [16]byte, name string) (lo, hi uint64) {
	k0, k1 := binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])
	s := sip{
		v0: k0 ^ 0x736f6d6570736575,
		v1: k1 ^ 0x646f72616e646f6d ^ 0xee,
		v2: k0 ^ 0x6c7967656e657261,
		v3: k1 ^ 0x7465646279746573,
	}
	last := uint64(len(name)) << 56
	for ; len(name) >= 8; name = name[8:] {
		s.word(littleEndian(name[:8]))
	}
	s.word(last | littleEndian(name))
	s.v2 ^= 0xee
	s.rounds(4)
	lo = s.v0 ^ s.v1 ^ s.v2 ^ s.v3
	s.v1 ^= 0xdd
	s.rounds(4)
	return lo, s.v0 ^ s.v1 ^ s.v2 ^ s.v3
}

// littleEndian returns up to eight bytes as a number.
func littleEndian(b string) uint64 {
	n := uint64(0)
	for i := len(b) - 1; i >= 0; i-- {
		n = n<<8 | uint64(b[i])
	}
	return n
}
