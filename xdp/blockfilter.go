package xdp

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The filter before the blocklist, as in bpf/maps.h and bpf/block.h.
const (
	blockOrder  = 24              // BLOCK_ORDER
	blockBits   = 1 << blockOrder // of each family, IPv4 first
	blockWords  = 2 * blockBits / 64
	blockSpread = 0x9e3779b97f4a7c15
	blockTell32 = 1 << 63 // BLOCK_TELL32

	// IPv6 prefixes of this length or longer are told by the /48 in them, shorter
	// ones by the /32, and those below the second length by all bits.
	blockLong6  = 40
	blockShort6 = 16
)

// blockFilter says of most sources that no prefix of a blocklist covers them. It
// never says so of one that is covered.
type blockFilter struct {
	words []uint64
	set6  int // how often one was set for IPv6
}

// add sets the bits of a prefix.
func (f *blockFilter) add(p edgePrefix) {
	if p.Bits >= 96 && netip.AddrFrom16(p.Addr).Is4In6() {
		first := binary.BigEndian.Uint32(p.Addr[12:]) >> 8
		f.setRange(first, 1<<max(0, 24-int(p.Bits-96)))
		return
	}
	inside := func(of int) int { return 1 << max(0, of-int(p.Bits)) }
	switch {
	case p.Bits >= blockLong6:
		f.set48(binary.BigEndian.Uint64(p.Addr[:])>>16, inside(48))
	case p.Bits >= blockShort6:
		f.set32(binary.BigEndian.Uint32(p.Addr[:]), inside(32))
	default:
		f.setAll6()
	}
}

func (f *blockFilter) set48(first uint64, n int) {
	for i := range f.within(n) {
		var a [8]byte
		binary.BigEndian.PutUint64(a[:], (first+uint64(i))<<16)
		f.set(bit48(a[:]))
	}
}

func (f *blockFilter) set32(first uint32, n int) {
	for i := range f.within(n) {
		f.set(bit32(first + uint32(i)))
	}
}

// within returns n as long as there are more bits than have been set. After that
// nothing would be ruled out any more, and there is nothing to set one by one.
func (f *blockFilter) within(n int) int {
	if f.set6 += n; f.set6 <= blockBits {
		return n
	}
	f.setAll6()
	return 0
}

func (f *blockFilter) setAll6() { f.setRange(blockBits, blockBits) }

func (f *blockFilter) set(bit uint32) { f.words[bit/64] |= 1 << (bit % 64) }

// setRange sets n bits, one or a multiple of what begins at first.
func (f *blockFilter) setRange(first uint32, n int) {
	if n < 64 {
		f.words[first/64] |= (1<<n - 1) << (first % 64)
		return
	}
	for i := range n / 64 {
		f.words[int(first/64)+i] = ^uint64(0)
	}
}

// bit48 is the bit of an IPv6 address for its first 48 bits.
func bit48(a []byte) uint32 {
	return bit6(binary.LittleEndian.Uint64(a) & (1<<48 - 1))
}

// bit32 is that for its first 32.
func bit32(first uint32) uint32 {
	return bit6(uint64(bits.ReverseBytes32(first)) | blockTell32)
}

func bit6(upper uint64) uint32 { return blockBits + uint32(upper*blockSpread>>(64-blockOrder)) }

// newBlockFilter makes the filter of a list; nil for an empty one.
func newBlockFilter(spec *ebpf.MapSpec, keys []edgePrefix) (*ebpf.Map, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("make filter: %w", err)
	}
	mem, err := unix.Mmap(m.FD(), 0, blockWords*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("map memory of filter: %w", err)
	}
	defer unix.Munmap(mem)
	f := blockFilter{words: unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), blockWords)}
	for _, k := range keys {
		f.add(k)
	}
	return m, nil
}
