package xdp

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/catchment-dev/edge/xdp/maglev"
)

// rings are those that one Apply has built: services with the same seed, names
// and weights share one, however their backends are ordered and numbered. The zero
// value has none. Its method may be called concurrently.
type rings struct {
	mu    sync.Mutex
	built map[[sha256.Size]byte]func() ([]int32, error)
}

// of returns the backend of each slot for a service, as an index into its
// backends, or maglev.Empty.
func (r *rings) of(s *tableSpec) (func(slot int) int, error) {
	order := s.byName()
	sorted := make([]maglev.Backend, len(order))
	for i, at := range order {
		sorted[i] = s.backends[at]
	}
	ring, err := r.build(s.seed, sorted)
	if err != nil {
		return nil, err
	}
	return func(slot int) int {
		if ring[slot] == maglev.Empty {
			return maglev.Empty
		}
		return order[ring[slot]]
	}, nil
}

func (r *rings) build(seed [16]byte, sorted []maglev.Backend) ([]int32, error) {
	key := seed[:]
	for _, b := range sorted {
		key = binary.AppendUvarint(key, uint64(len(b.Name)))
		key = append(key, b.Name...)
		key = binary.AppendVarint(key, int64(b.Weight))
	}
	sum := sha256.Sum256(key)
	r.mu.Lock()
	once, ok := r.built[sum]
	if !ok {
		if r.built == nil {
			r.built = make(map[[sha256.Size]byte]func() ([]int32, error))
		}
		once = sync.OnceValues(func() ([]int32, error) { return maglev.Build(seed, sorted) })
		r.built[sum] = once
	}
	r.mu.Unlock()
	return once()
}

// byName are the indexes of the backends, in the order of their names.
func (s *tableSpec) byName() []int {
	order := make([]int, len(s.backends))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return cmp.Compare(s.backends[x].Name, s.backends[y].Name) })
	return order
}
