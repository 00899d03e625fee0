package xdp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/maglev"
)

// specOf is a service of these backends, with ids from first on.
func specOf(seed byte, all []maglev.Backend, first uint32) tableSpec {
	s := newTableSpec(edge.Table{Seed: [16]byte{seed}}, edge.TableService{})
	for i, b := range all {
		s.add(edge.TableBackend{ID: edge.BackendID(b.Name), Addr: netip.IPv4Unspecified(), Weight: b.Weight}, first+uint32(i))
	}
	return s
}

// Services that differ in the order and the ids of their backends alone share a
// ring; those that differ in seed, name or weight do not. Each has the ring that
// it would have by itself.
func TestRingsAreShared(t *testing.T) {
	var all []maglev.Backend
	for i := range 20 {
		all = append(all, maglev.Backend{Name: fmt.Sprint("b", i), Weight: i % 4})
	}
	change := func(f func(b []maglev.Backend)) []maglev.Backend {
		b := append([]maglev.Backend(nil), all...)
		f(b)
		return b
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	shuffled := change(func(b []maglev.Backend) { rnd.Shuffle(len(b), func(i, j int) { b[i], b[j] = b[j], b[i] }) })
	r := new(rings)
	var wg sync.WaitGroup
	for name, s := range map[string]tableSpec{
		"as it is": specOf(1, all, 100), "other ids": specOf(1, all, 300), "another order": specOf(1, shuffled, 500),
		"another seed":   specOf(2, all, 100),
		"another name":   specOf(1, change(func(b []maglev.Backend) { b[7].Name = "b77" }), 100),
		"another weight": specOf(1, change(func(b []maglev.Backend) { b[7].Weight++ }), 100),
		"one fewer":      specOf(1, all[1:], 100),
		"nobody":         specOf(1, nil, 100),
	} {
		wg.Go(func() {
			got, err := s.build(r)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			want, err := maglev.Build(s.seed, s.backends)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			for slot, at := range want {
				id := uint32(0)
				if at != maglev.Empty {
					id = s.ids[at]
				}
				if got.Slot[slot] != id {
					t.Errorf("%s: slot %d has backend %d, want %d", name, slot, got.Slot[slot], id)
					return
				}
			}
		})
	}
	wg.Wait()
	if len(r.built) != 6 {
		t.Errorf("%d rings were built, want 6", len(r.built))
	}
}

// Of services that share a ring which cannot be built, each is told.
func TestRingsThatFail(t *testing.T) {
	r := new(rings)
	for range 2 {
		s := specOf(1, []maglev.Backend{{Name: "a", Weight: 1}, {Name: "a", Weight: 1}}, 1)
		if _, err := s.build(r); err == nil || !strings.Contains(err.Error(), `backend "a" is there twice`) {
			t.Errorf("two of one name: %v", err)
		}
	}
}
