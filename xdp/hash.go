package xdp

import (
	"encoding/binary"
	"math/bits"

	"github.com/catchment-dev/edge/xdp/maglev"
)

// sip is the state of SipHash (Aumasson and Bernstein, 2012).
type sip struct{ v0, v1, v2, v3 uint64 }

func (s *sip) round() {
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

func (s *sip) word(w uint64) {
	s.v3 ^= w
	s.round()
	s.v0 ^= w
}

// flowHash is flow_hash of flow.h: SipHash-1-3 of the 5-tuple's 40 bytes.
func flowHash(seed [2]uint64, k edgeFlowKey) uint64 {
	s := sip{
		v0: seed[0] ^ 0x736f6d6570736575,
		v1: seed[1] ^ 0x646f72616e646f6d,
		v2: seed[0] ^ 0x6c7967656e657261,
		v3: seed[1] ^ 0x7465646279746573,
	}
	le := binary.LittleEndian
	s.word(le.Uint64(k.Src[:8]))
	s.word(le.Uint64(k.Src[8:]))
	s.word(le.Uint64(k.Dst[:8]))
	s.word(le.Uint64(k.Dst[8:]))
	s.word(uint64(k.Sport) | uint64(k.Dport)<<16 | uint64(k.Proto)<<32)
	s.word(40 << 56)
	s.v2 ^= 0xff
	s.round()
	s.round()
	s.round()
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3
}

// seedWords splits a seed as the program reads it.
func seedWords(seed [16]byte) [2]uint64 {
	return [2]uint64{binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])}
}

// slotOf returns the slot of the ring for a flow.
func slotOf(hash uint64) uint32 { return uint32(hash) % maglev.Size }

// netOrder turns a port into the number that a __be16 of the program reads as
// on this little-endian machine, and back.
func netOrder(port uint16) uint16 { return port<<8 | port>>8 }
