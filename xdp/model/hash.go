package model

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// Tuple is what a hash is made of. Parts that are left out are zero.
type Tuple struct {
	// V6 is the family of the packet: it says how the tuple is spelled, so that
	// no IPv4 flow hashes as an IPv6 one does.
	V6           bool
	Src, Dst     [16]byte
	SPort, DPort uint16
	Proto        uint8
}

// keep returns the part of the tuple that an affinity looks at.
func (t Tuple) keep(a Affinity) Tuple {
	switch a {
	case AffinitySrc:
		return Tuple{V6: t.V6, Src: t.Src}
	case AffinitySrcDst:
		return Tuple{V6: t.V6, Src: t.Src, Dst: t.Dst}
	case AffinitySrcDstProto:
		return Tuple{V6: t.V6, Src: t.Src, Dst: t.Dst, Proto: t.Proto}
	}
	return t
}

// reversed is the tuple of the other direction.
func (t Tuple) reversed() Tuple {
	t.Src, t.Dst, t.SPort, t.DPort = t.Dst, t.Src, t.DPort, t.SPort
	return t
}

// spell writes the tuple as the words that are hashed: the bytes as they are in
// the packet, little-endian. The last word begins with the ports and tells the
// families apart.
func (t Tuple) spell() []uint64 {
	from, family := 12, byte(4)
	if t.V6 {
		from, family = 0, 6
	}
	text := slices.Concat(t.Src[from:], t.Dst[from:])
	text = binary.BigEndian.AppendUint16(text, t.SPort)
	text = binary.BigEndian.AppendUint16(text, t.DPort)
	text = append(text, t.Proto, family, 0, 0)
	words := make([]uint64, len(text)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(text[8*i:])
	}
	return words
}

// Hash returns SipHash-1-3 of a tuple, without the length that ends it in the
// standard: the last word says which of two lengths it is.
func Hash(seed [2]uint64, t Tuple) uint64 { return sipHash(seed, t.spell(), 1, 3) }

// FlowHash makes the key of the flow tables of the hash of a service's flow.
// It is never 0.
func FlowHash(hash uint64, service uint32) uint64 {
	if hash ^= uint64(service) * 0x9e3779b97f4a7c15; hash != 0 {
		return hash
	}
	return 1
}

// Slot returns the slot of the ring of a hash.
func Slot(hash uint64) uint32 { return uint32(hash) % RingSize }

// sipHash is SipHash-c-d (Aumasson and Bernstein, 2012) of whole words.
func sipHash(seed [2]uint64, words []uint64, c, d int) uint64 {
	v := [4]uint64{
		seed[0] ^ 0x736f6d6570736575, seed[1] ^ 0x646f72616e646f6d,
		seed[0] ^ 0x6c7967656e657261, seed[1] ^ 0x7465646279746573,
	}
	for _, w := range words {
		v[3] ^= w
		v = sipRounds(v, c)
		v[0] ^= w
	}
	v[2] ^= 0xff
	v = sipRounds(v, d)
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}

func sipRounds(v [4]uint64, n int) [4]uint64 {
	rotl := bits.RotateLeft64
	for range n {
		v[0], v[2] = v[0]+v[1], v[2]+v[3]
		v[1], v[3] = rotl(v[1], 13)^v[0], rotl(v[3], 16)^v[2]
		v[0] = rotl(v[0], 32)
		v[2], v[0] = v[2]+v[1], v[0]+v[3]
		v[1], v[3] = rotl(v[1], 17)^v[2], rotl(v[3], 21)^v[0]
		v[2] = rotl(v[2], 32)
	}
	return v
}
