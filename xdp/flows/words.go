package flows

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"github.com/catchment-dev/edge"
)

// split returns the two halves of a word, in the order of their addresses.
func split(word uint64) (Tick, uint32) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], word)
	return Tick(binary.NativeEndian.Uint32(b[:])), binary.NativeEndian.Uint32(b[4:])
}

// join is split's reverse.
func join(a Tick, b uint32) uint64 {
	var w [8]byte
	binary.NativeEndian.PutUint32(w[:], uint32(a))
	binary.NativeEndian.PutUint32(w[4:], b)
	return binary.NativeEndian.Uint64(w[:])
}

func loadTuple(words *[5]uint64) Tuple {
	var b [40]byte
	for i := range words {
		binary.NativeEndian.PutUint64(b[8*i:], atomic.LoadUint64(&words[i]))
	}
	return tupleOf(b)
}

func storeTuple(words *[5]uint64, t Tuple) {
	b := t.bytes()
	for i := range words {
		atomic.StoreUint64(&words[i], binary.NativeEndian.Uint64(b[8*i:]))
	}
}

// tupleOf reads struct flow_tuple.
func tupleOf(b [40]byte) Tuple {
	return Tuple{
		Src:      addrPort([16]byte(b[:16]), binary.BigEndian.Uint16(b[32:])),
		Dst:      addrPort([16]byte(b[16:32]), binary.BigEndian.Uint16(b[34:])),
		Protocol: edge.Protocol(b[36]),
	}
}

func addrPort(a [16]byte, port uint16) netip.AddrPort {
	if a == ([16]byte{}) && port == 0 {
		return netip.AddrPort{} // left out
	}
	return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), port)
}

// bytes is tupleOf's reverse.
func (t Tuple) bytes() (b [40]byte) {
	for i, ap := range []netip.AddrPort{t.Src, t.Dst} {
		if ap.Addr().IsValid() {
			*(*[16]byte)(b[16*i:]) = ap.Addr().As16()
		}
		binary.BigEndian.PutUint16(b[32+2*i:], ap.Port())
	}
	b[36] = uint8(t.Protocol)
	return b
}
