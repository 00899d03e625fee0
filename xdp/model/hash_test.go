package model

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// words spells bytes as SipHash does: padded, the length in the last byte.
func words(b []byte) []uint64 {
	text := append([]byte{}, b...)
	for len(text)%8 != 7 {
		text = append(text, 0)
	}
	text = append(text, byte(len(b)))
	var out []uint64
	for ; len(text) > 0; text = text[8:] {
		out = append(out, binary.LittleEndian.Uint64(text))
	}
	return out
}

// The core is SipHash: vectors of the reference implementation, of SipHash-2-4
// by key 00..0f and message 00.., and of SipHash-1-3 by key 0.
func TestSipHash(t *testing.T) {
	counting := make([]byte, 64)
	for i := range counting {
		counting[i] = byte(i)
	}
	key := [2]uint64{0x0706050403020100, 0x0f0e0d0c0b0a0908}
	for _, c := range []struct {
		key  [2]uint64
		text []byte
		c, d int
		want uint64
	}{
		{key, nil, 2, 4, 0x726fdb47dd0e0e31},
		{key, counting[:1], 2, 4, 0x74f839c593dc67fd},
		{key, counting[:7], 2, 4, 0xab0200f58b01d137},
		{key, counting[:8], 2, 4, 0x93f5f5799a932462},
		{key, counting[:15], 2, 4, 0xa129ca6149be45e5},
		{key, counting[:63], 2, 4, 0x958a324ceb064572},
		{[2]uint64{}, nil, 1, 3, 0xd1fba762150c532c},
		{[2]uint64{}, []byte("siphash"), 1, 3, 0x8264ceeccb16bcbe},
		{[2]uint64{}, []byte("digest-sip_hash"), 1, 3, 0xce31007e34130c0a},
		{key, nil, 1, 3, 0xabac0158050fc4dc},
	} {
		if got := sipHash(c.key, words(c.text), c.c, c.d); got != c.want {
			t.Errorf("SipHash-%d-%d of %d bytes: %#x, want %#x", c.c, c.d, len(c.text), got, c.want)
		}
	}
}

// Golden vectors, computed by a program in another language: whoever changes
// them moves every flow of the fleet.
func TestHash(t *testing.T) {
	seed := [2]uint64{0x0706050403020100, 0x0f0e0d0c0b0a0908}
	const src4, dst4, src6, dst6 = "198.51.100.9", "192.0.2.1", "2001:db8:c::9", "2001:db8::1"
	for _, c := range []struct {
		src, dst     string
		sport, dport uint16
		proto        uint8
		hash         uint64
		slot         uint32
		flow         uint64 // of service 7
	}{
		{src4, dst4, 4321, 443, 6, 0x8bb508bad4a91d9c, 18676, 0xd8315ca8afa0790f},
		{src4, dst4, 0, 0, 17, 0xc6bf2a163108467c, 5492, 0x953b7e044a0122ef},
		{src4, "", 0, 0, 0, 0xd8663fff8a49352b, 43747, 0x8be26bedf14051b8},
		{src6, dst6, 4321, 443, 6, 0xc10555c5644643fd, 57272, 0x928101d71f4f276e},
		{src6, dst6, 0, 0, 50, 0x04574275793b1da1, 42087, 0x57d3166702327932},
		{src6, "", 0, 0, 0, 0x26810411c030d3a5, 4981, 0x75055003bb39b736},
		// An IPv6 packet never hashes as the IPv4 one does.
		{"::ffff:" + src4, "::ffff:" + dst4, 4321, 443, 6, 0xda92206495b00f4d, 31134, 0x89167476eeb96bde},
	} {
		src := netip.MustParseAddr(c.src)
		tuple := Tuple{V6: src.Is6(), Src: src.As16(), SPort: c.sport, DPort: c.dport, Proto: c.proto}
		if c.dst != "" {
			tuple.Dst = netip.MustParseAddr(c.dst).As16()
		}
		hash := Hash(seed, tuple)
		if hash != c.hash || Slot(hash) != c.slot || FlowHash(hash, 7) != c.flow {
			t.Errorf("%s -> %s: %#x, slot %d, flow %#x; want %#x, %d, %#x",
				c.src, c.dst, hash, Slot(hash), FlowHash(hash, 7), c.hash, c.slot, c.flow)
		}
	}
	const golden = 0x9e3779b97f4a7c15
	if got := FlowHash(golden, 1); got != 1 {
		t.Errorf("a hash that comes out as 0 is %d, want 1: 0 says that a place is free", got)
	}
}
