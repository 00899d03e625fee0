// Package maglev builds the ring: which backend takes each slot of a service's
// flow hash.
//
// It is pure: the ring depends on the seed and on the set of names and weights
// alone, so every node of the fleet computes the same one whatever the order
// of its configuration. It never looks at addresses or at node-local ids, and
// holds nothing between calls. edged runs it, through package xdp.
package maglev

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// Size is the number of slots of a ring: a prime, so that every stride walks
// all slots, and large enough for 1000 backends within 1 % of their share.
const Size = 65537

// MaxWeight is the largest weight of a backend.
const MaxWeight = 1000

// Empty is the value of every slot of a ring in which nobody has weight.
const Empty = -1

// Backend is one entry of a ring.
type Backend struct {
	// Name is unique within a ring.
	Name string
	// Weight is the share of slots, 0 to MaxWeight; 0 gets none. Each weight
	// above 0 gets one slot at least.
	Weight int
}

// walker is a backend on its way through its own permutation of the slots.
type walker struct {
	index      int32 // in the caller's slice
	weight     uint32
	phase      uint64 // when its turns are, between those of the others
	next, step uint32
}

// Build returns the ring: Size indexes into backends, each at least 0; or all
// Empty if no backend has weight. The result names the same backend in each
// slot whatever the order of the slice. It fails on a duplicate name, on a
// weight out of range, and on more backends with weight than slots.
//
// The algorithm is that of Maglev (Eisenbud and others, NSDI 2016, 3.4): in
// turns each backend takes the next free slot of its own permutation. How often
// a backend has its turn is its weight, and when does not depend on the others:
// one that leaves takes its turns along and leaves theirs in their order.
func Build(seed [16]byte, backends []Backend) ([]int32, error) {
	walkers, err := newWalkers(seed, backends)
	if err != nil {
		return nil, err
	}
	ring := slices.Repeat([]int32{Empty}, Size)
	if len(walkers) > 0 {
		fill(ring, walkers, turns(walkers))
	}
	return ring, nil
}

// newWalkers returns who has weight, in the order of what their names hash to.
func newWalkers(seed [16]byte, backends []Backend) ([]walker, error) {
	if len(backends) > Size {
		return nil, fmt.Errorf("build ring: %d backends are more than its %d slots", len(backends), Size)
	}
	all, order := make([]walker, len(backends)), make([]turn, len(backends))
	for i, b := range backends {
		if b.Weight < 0 || b.Weight > MaxWeight {
			return nil, fmt.Errorf("build ring: weight %d of backend %q is not 0 to %d", b.Weight, b.Name, MaxWeight)
		}
		all[i] = newWalker(seed, b)
		all[i].index = int32(i)
		order[i] = newTurn(all[i].phase>>whoBits, i)
	}
	sortTurns(order)
	walkers := make([]walker, len(backends))
	for i, t := range order {
		walkers[i] = all[t.who()]
	}
	// It is in order already, but for hashes that are nearly the same.
	slices.SortFunc(walkers, func(a, b walker) int {
		if a.phase != b.phase {
			return cmp.Compare(a.phase, b.phase)
		}
		return cmp.Compare(backends[a.index].Name, backends[b.index].Name)
	})
	for i := 1; i < len(walkers); i++ {
		if name := backends[walkers[i].index].Name; name == backends[walkers[i-1].index].Name {
			return nil, fmt.Errorf("build ring: backend %q is there twice", name)
		}
	}
	return slices.DeleteFunc(walkers, func(w walker) bool { return w.weight == 0 }), nil
}

// newWalker puts a backend where its name belongs. The hash is keyed: who knows
// the names must not be able to work out the ring.
func newWalker(seed [16]byte, b Backend) walker {
	lo, hi := sipHash(seed, b.Name)
	return walker{
		weight: uint32(b.Weight), phase: hi,
		next: below(Size, uint32(lo)),
		step: below(Size-1, uint32(lo>>32)) + 1,
	}
}

// below scales a random word to 0 .. n-1.
func below(n uint64, word uint32) uint32 {
	return uint32(uint64(word) * n >> 32)
}

// few is how many slots are left when it takes longer to stumble upon a free
// one than to try them all: the root of Size.
const few = 256

// fill hands out the slots, in the order of the turns.
func fill(ring []int32, walkers []walker, turns []turn) {
	// A bit for each slot fits the processor's nearest cache; the ring does not.
	var taken [Size/64 + 1]uint64
	for _, t := range turns[:Size-few] {
		w := &walkers[t.who()]
		at, step := w.next, w.step
		for taken[at>>6]>>(at&63)&1 != 0 {
			at = advance(at, step)
		}
		taken[at>>6] |= 1 << (at & 63)
		ring[at] = w.index
		w.next = at
	}
	fillLast(ring, walkers, turns[Size-few:Size])
}

// fillLast hands out the last free slots: the same ones to the same walkers as
// fill would have, which would walk for half of its time to find them.
func fillLast(ring []int32, walkers []walker, turns []turn) {
	free := make([]uint32, 0, few)
	for at, who := range ring {
		if who == Empty {
			free = append(free, uint32(at))
		}
	}
	for _, t := range turns {
		w := &walkers[t.who()]
		invert := inverse(w.step)
		nearest, steps := 0, uint32(Size)
		for i, at := range free {
			if n := mul(at+Size-w.next, invert); n < steps {
				nearest, steps = i, n
			}
		}
		w.next = free[nearest]
		ring[w.next] = w.index
		free[nearest] = free[len(free)-1]
		free = free[:len(free)-1]
	}
}

// advance takes one step around the ring, without a branch: nobody could predict
// it.
func advance(at, step uint32) uint32 {
	over := int32(at+step) - Size
	return uint32(over + over>>31&Size)
}

// mul multiplies modulo Size.
func mul(a, b uint32) uint32 { return uint32(uint64(a) * uint64(b) % Size) }

// inverse returns what a multiplies with to 1 modulo Size. By Fermat that is a
// to the power of Size-2, whose 16 bits are all ones.
func inverse(a uint32) uint32 {
	power := a
	for range bits.Len(Size-2) - 1 {
		power = mul(mul(power, power), a)
	}
	return power
}
