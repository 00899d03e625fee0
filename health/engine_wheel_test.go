package health

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestWheel compares the wheel with a list.
func TestWheel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		base := time.Unix(1e9, 0)
		w, now := wheel{base: base}, base
		var all []*entry
		for range 300 {
			switch rnd.IntN(4) {
			case 0, 1: // up to five rounds ahead, and a little into the past
				e := &entry{index: -1}
				at := now.Add(rand.N(5*slots*slotWidth) >> rnd.IntN(12)).Add(-2 * slotWidth)
				w.put(e, at)
				all = append(all, e)
			case 2:
				if len(all) > 0 {
					i := rnd.IntN(len(all))
					remove(all[i])
					all = slices.Delete(all, i, i+1)
				}
			case 3:
				now = now.Add(time.Duration(rnd.Int64N(int64(slots*slotWidth)>>rnd.IntN(12) + 1)))
				due := w.take(now, nil)
				for _, e := range due {
					i := slices.Index(all, e)
					if i < 0 || e.at.After(now) || e.wheel != nil {
						t.Fatalf("seed %d: took an entry that is not due, or not there", seed)
					}
					all = slices.Delete(all, i, i+1)
				}
			}
			first, ok := w.next()
			if w.n != len(all) || ok != (len(all) > 0) {
				t.Fatalf("seed %d: %d entries, want %d; has a next is %v", seed, w.n, len(all), ok)
			}
			for _, e := range all {
				if e.at.Before(first) || e.wheel != &w {
					t.Fatalf("seed %d: next is %s, though there is one at %s", seed, first.Sub(base), e.at.Sub(base))
				}
			}
			if left := slices.IndexFunc(all, func(e *entry) bool { return !e.at.After(now.Add(-2*slotWidth - 1)) }); left >= 0 {
				t.Fatalf("seed %d: an entry was forgotten", seed)
			}
		}
	}
}
