// Package flows is the layout of the flow tables, over the memory in which they
// are: struct flow_bucket, flow_detail and half_flow of bpf/maps.h.
//
// It owns the placement of a flow and the order in which an entry is read and
// written, both as in bpf/table.h. It never maps memory, hashes a packet or
// knows what a backend is. Package xdp uses it, in edged.
package flows

import (
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/catchment-dev/edge"
)

// Ways is how many flows a bucket has room for. The sizes are in bytes: of a
// bucket, of a detail, of which there is one for each way, and of a place in a
// Half.
const (
	Ways       = 8
	BucketSize = int(unsafe.Sizeof(bucket{}))
	DetailSize = int(unsafe.Sizeof(detail{}))
	HalfSize   = int(unsafe.Sizeof(halfFlow{}))
)

// Buckets returns how many buckets hold n flows that come and go without a live
// one losing its place: 1.8 ways a flow, 130 bytes. Measured, of five million
// puts at 1.6 ways a flow 103 took the place of a live one, at 1.7 five, at 1.8
// none; while a table is only filled, 1.6 is enough.
func Buckets(n int) int { return max(1, (n*9+5*Ways-1)/(5*Ways)) }

// Room returns how many flows so many buckets hold: the largest n of which
// Buckets returns no more.
func Room(buckets int) int { return buckets * 5 * Ways / 9 }

// Places returns how many places a Half for n flows has: two a flow, 128 bytes.
// A flow then keeps its place, while n others come, with a probability of 61 %.
func Places(n int) int { return max(1, 2*n) }

// HalfRoom returns how many flows so many places are for: the largest n of which
// Places returns no more.
func HalfRoom(places int) int { return places / 2 }

// Tick counts steps of 2^30 ns of CLOCK_MONOTONIC, 1.07 s. It wraps after 146
// years, and the difference of two is signed.
type Tick uint32

const tickShift = 30

// TickAt returns the tick of a time of CLOCK_MONOTONIC.
func TickAt(monotonic time.Duration) Tick { return Tick(monotonic >> tickShift) }

// Entry is a remembered flow.
type Entry struct {
	// Backend is the id of a backend, from 1 to 65,535; Generation is that of its
	// id: ids are used again.
	Backend, Generation uint32
	// Until is the last tick at which the entry counts.
	Until Tick
	// Service is a service's id. Unlike the backend it may be another flow's, if
	// two CPUs have written the entry at the same time.
	Service uint32
	// Tuple is for people, and may be another flow's just so.
	Tuple Tuple
}

// Tuple is what is remembered of a packet; what does not count is zero.
type Tuple struct {
	Src, Dst netip.AddrPort
	Protocol edge.Protocol
}

// Alive says whether the entry counts at now.
func (e Entry) Alive(now Tick) bool { return int32(e.Until-now) >= 0 }

// Left is how long the entry still counts, to a tick; 0 if it does no more.
func (e Entry) Left(now Tick) time.Duration {
	return time.Duration(max(0, int32(e.Until-now))) << tickShift
}

// over returns n elements at the start of mem, which is named in errors.
func over[T any](mem []byte, n int, name string) ([]T, error) {
	var one T
	if n < 1 || len(mem)/int(unsafe.Sizeof(one)) < n {
		return nil, fmt.Errorf("view %s: %d elements do not fit into %d bytes, or are none", name, n, len(mem))
	}
	at := unsafe.Pointer(unsafe.SliceData(mem))
	if uintptr(at)%unsafe.Alignof(one) != 0 {
		return nil, fmt.Errorf("view %s: its memory is not aligned to %d bytes", name, unsafe.Alignof(one))
	}
	return unsafe.Slice((*T)(at), n), nil
}

// oneOf is which of n a hash names, by its upper half: the ring takes the lower.
func oneOf(hash uint64, n int) int { return int(hash >> 32 * uint64(n) >> 32) }
