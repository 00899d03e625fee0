package xdp

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
)

func filterOf(t testing.TB, list []netip.Prefix) *blockFilter {
	t.Helper()
	keys, err := blockKeys(list)
	check(t, err)
	f := &blockFilter{words: make([]uint64, blockWords)}
	for _, k := range keys {
		f.add(k)
	}
	return f
}

func (f *blockFilter) has(bit uint32) bool { return f.words[bit/64]>>(bit%64)&1 != 0 }

// rulesOut says what the program makes of the filter.
func (f *blockFilter) rulesOut(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()
		return !f.has(be.Uint32(b[:]) >> 8)
	}
	b := a.As16()
	return !f.has(bit48(b[:])) && !f.has(bit32(be.Uint32(b[:])))
}

// anyPrefix is a prefix of any length that a list may have.
func anyPrefix(rnd *rand.Rand) netip.Prefix {
	for {
		a := randomSource(rnd, rnd.IntN(2) == 0)
		p := netip.PrefixFrom(a, rnd.IntN(a.BitLen()+1)).Masked()
		if a.Is4() || !p.Overlaps(mapped) {
			return p
		}
	}
}

// inside is an address in a prefix: its first, its last or any.
func inside(rnd *rand.Rand, p netip.Prefix) netip.Addr {
	b, how := p.Addr().AsSlice(), rnd.IntN(3)
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		if how == 2 || how == 1 && rnd.IntN(2) == 0 {
			b[bit/8] |= 0x80 >> (bit % 8)
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// The filter never rules out what the list has: whatever the lengths, of lists
// of one prefix and of many.
func TestBlockFilterMissesNobody(t *testing.T) {
	rnd := rand.New(rand.NewPCG(21, 22))
	for round := range 300 {
		list := make([]netip.Prefix, 1+rnd.IntN(1+round%40))
		for i := range list {
			list[i] = anyPrefix(rnd)
		}
		f := filterOf(t, list)
		for range 200 {
			p := list[rnd.IntN(len(list))]
			if a := inside(rnd, p); f.rulesOut(a) {
				t.Fatalf("the filter of %v rules out %s, which is in %s", list, a, p)
			}
		}
	}
}

// It rules out nearly all others, also if the list has prefixes that are shorter
// than what has a bit.
func TestBlockFilterRulesOut(t *testing.T) {
	rnd := rand.New(rand.NewPCG(23, 24))
	many, _ := manyPrefixes(rnd, 100_000)
	for name, c := range map[string]struct {
		list   []netip.Prefix
		v4, v6 float64 // the part that is let through at most
	}{
		"short ones": {prefixes("20.0.0.0/8", "2000:100::/24", "2001:0:100::/40", "2001:300::/32"), 0, 0.001},
		"long ones":  {prefixes("20.1.2.9/32", "2001::/48", "2001:1::/64"), 0.001, 0.001},
		"many":       {many[:20_000], 0.02, 0.3},
		"more":       {many, 0.02, 0.8},
		"one family": {prefixes("0.0.0.0/0"), 0, 0},
		"the other":  {prefixes("2000::/3"), 0, 0},
	} {
		f, through, set := filterOf(t, c.list), [2]float64{}, make(map[netip.Prefix]bool)
		for _, p := range c.list {
			set[p] = true
		}
		const each = 20_000
		for range each {
			for i := range through {
				if a := randomSource(rnd, i == 1); !contains(set, a) && !f.rulesOut(a) {
					through[i] += 1.0 / each
				}
			}
		}
		t.Logf("%s: %.4f of IPv4 and %.4f of IPv6 are let through", name, through[0], through[1])
		if through[0] > c.v4 || through[1] > c.v6 {
			t.Errorf("%s: %.4f of IPv4 and %.4f of IPv6 are let through", name, through[0], through[1])
		}
	}
}

// More /32 than have bits: all IPv6 is let through, after no more work than that.
func TestBlockFilterGivesUp(t *testing.T) {
	f := &blockFilter{words: make([]uint64, blockWords)}
	for i := range uint16(blockBits/0x10000 + 1) {
		var a [16]byte
		binary.BigEndian.PutUint16(a[:], 0x2000|i)
		f.add(edgePrefix{Bits: 16, Addr: a})
	}
	if slices.ContainsFunc(f.words[blockWords/2:], func(w uint64) bool { return w != ^uint64(0) }) {
		t.Error("some IPv6 is ruled out")
	}
	if slices.ContainsFunc(f.words[:blockWords/2], func(w uint64) bool { return w != 0 }) {
		t.Error("some IPv4 is not ruled out")
	}
}

// The program with its filter judges as netip does: lists of prefixes of any
// length, sources inside and outside of them. An empty list has no filter.
func TestProgramBlocksAsNetip(t *testing.T) {
	d := blockBox(t)
	rnd := rand.New(rand.NewPCG(25, 26))
	feed, n := d.feeder(), [2]int{}
	udp := [][]byte{udpTo(bothVIPs(53)[0]), udpTo(bothVIPs(53)[1])}
	for round := range 150 {
		list := make([]netip.Prefix, round%20)
		for i := range list {
			list[i] = anyPrefix(rnd)
		}
		check(t, d.Block(t.Context(), list))
		var id ebpf.MapID
		err := d.coll.Maps[edgeMapBlockFilter].Lookup(uint32(0), &id)
		if errors.Is(err, ebpf.ErrKeyNotExist) != (len(list) == 0) {
			t.Fatalf("filter of %d prefixes: %v", len(list), err)
		}
		for i := range 100 {
			a := randomSource(rnd, i%2 == 0)
			if i%4 < 2 && len(list) > 0 {
				a = inside(rnd, list[rnd.IntN(len(list))])
			}
			if a.Is4() && (a.As4()[0] == 0 || a.As4()[0] == 127 || a.As4()[0] > 223) || a.Is6() && (a.As16()[0] == 0 || a.As16()[0] == 0xff) {
				continue // no source
			}
			at, f := src4At, udp[0]
			if a.Is6() {
				at, f = src6At, udp[1]
			}
			copy(f[at:], a.AsSlice())
			want := slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
			if got := feed.to(t, f) == nowhere; got != want {
				t.Fatalf("%v: source %s is blocked: %t, want %t", list, a, got, want)
			}
			if want {
				n[a.BitLen()/128]++
			}
		}
	}
	t.Logf("%v were blocked", n)
	if n[0] < 1000 || n[1] < 1000 {
		t.Errorf("only %v were blocked", n)
	}
	balanced(t, d.Forwarder)
}
