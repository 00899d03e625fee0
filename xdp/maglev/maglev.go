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
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// Size is the number of slots of a ring: a prime, so that every stride walks
// all slots, and large enough for 650 backends within 1 % of their share.
const Size = 65537

// MaxWeight is the largest weight of a backend.
const MaxWeight = 1000

// Empty is the value of every slot of a ring in which nobody has weight.
const Empty = -1

// Backend is one entry of a ring.
type Backend struct {
	// Name is unique within a ring.
	Name string
	// Weight is the share of slots, 0 to MaxWeight; 0 gets none.
	Weight int
}

// walker is a backend on its way through its own permutation of the slots.
type walker struct {
	index      int32 // in the caller's slice
	weight     int
	credit     int
	next, step uint32
}

// Build returns the ring: Size indexes into backends, each at least 0; or all
// Empty if no backend has weight. The result names the same backend in each
// slot whatever the order of the slice. It fails on a duplicate name and on a
// weight out of range.
func Build(seed [16]byte, backends []Backend) ([]int32, error) {
	walkers, err := sorted(seed, backends)
	if err != nil {
		return nil, err
	}
	ring := slices.Repeat([]int32{Empty}, Size)
	if len(walkers) > 0 {
		fill(ring, walkers)
	}
	return ring, nil
}

func sorted(seed [16]byte, backends []Backend) ([]walker, error) {
	order := make([]int32, len(backends))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(backends[a].Name, backends[b].Name) })
	var walkers []walker
	for i, at := range order {
		b := backends[at]
		if i > 0 && backends[order[i-1]].Name == b.Name {
			return nil, fmt.Errorf("build ring: backend %q is there twice", b.Name)
		}
		if b.Weight < 0 || b.Weight > MaxWeight {
			return nil, fmt.Errorf("build ring: weight %d of backend %q is not 0 to %d", b.Weight, b.Name, MaxWeight)
		}
		if b.Weight == 0 {
			continue
		}
		next, step := permutation(seed, b.Name)
		walkers = append(walkers, walker{index: at, weight: b.Weight, next: next, step: step})
	}
	return walkers, nil
}

// permutation returns where a backend starts and how far it steps. HMAC, not a
// plain hash: who knows the names must not be able to work out the ring.
func permutation(seed [16]byte, name string) (start, step uint32) {
	h := hmac.New(sha256.New, seed[:])
	h.Write([]byte(name))
	sum := h.Sum(nil)
	start = uint32(binary.LittleEndian.Uint64(sum) % Size)
	step = uint32(binary.LittleEndian.Uint64(sum[8:])%(Size-1)) + 1
	return start, step
}

// fill lets the walkers take turns: in each round every one earns its weight,
// and who has earned as much as the heaviest takes its next free slot.
func fill(ring []int32, walkers []walker) {
	heaviest := slices.MaxFunc(walkers, func(a, b walker) int { return cmp.Compare(a.weight, b.weight) }).weight
	for left := Size; ; {
		for i := range walkers {
			w := &walkers[i]
			w.credit += w.weight
			if w.credit < heaviest {
				continue
			}
			w.credit -= heaviest
			for ring[w.next] != Empty {
				w.advance()
			}
			ring[w.next] = w.index
			if left--; left == 0 {
				return
			}
		}
	}
}

func (w *walker) advance() {
	if w.next += w.step; w.next >= Size {
		w.next -= Size
	}
}
