package flows

import (
	"math/rand/v2"
	"testing"
)

// TestCapacity: as many live flows as the table is made for lose none, whether
// it was empty, is full of dead ones, or has them come and go.
func TestCapacity(t *testing.T) {
	const flows, idle = 8000, 56
	for _, c := range []struct {
		name string
		dead int // entries put before, that count no more
		turn int // how often all are replaced, a part at each tick
	}{{"into an empty table", 0, 0}, {"into a table of dead flows", 10 * flows, 0}, {"coming and going ten times", 0, 10}} {
		t.Run(c.name, func(t *testing.T) {
			_, _, table := memory(t, Buckets(flows))
			rng := rand.New(rand.NewPCG(1, 2))
			now, evicted := Tick(0xffffffc0), 0
			put := func(n int) {
				for range n {
					if table.Put(rng.Uint64()|1, Entry{Backend: 1, Until: now + idle}, now) {
						evicted++
					}
				}
			}
			put(c.dead)
			if c.dead > 0 {
				now += idle + 1
			}
			evicted = 0 // the dead ones pushed each other out
			want := flows
			if c.turn == 0 {
				put(flows)
			} else {
				// Those of the last idle + 1 ticks are alive.
				want = flows / (idle + 1) * (idle + 1)
			}
			for i := range (idle + 1) * c.turn {
				if i > 0 {
					now++
				}
				put(flows / (idle + 1))
			}
			n := 0
			for _, e := range table.All() {
				if e.Alive(now) {
					n++
				}
			}
			t.Logf("%d ways: %d live flows, %d evicted", table.Len(), n, evicted)
			if evicted > 0 || n != want {
				t.Errorf("%d evicted, %d live flows, want 0 and %d", evicted, n, want)
			}
		})
	}
}

// TestBuckets: a million flows take at most 128 MiB.
func TestBuckets(t *testing.T) {
	for n, want := range map[int]int{0: 1, 1: 1, 4: 1, 5: 2, 40: 9, 1_000_000: 225_000} {
		if got := Buckets(n); got != want {
			t.Errorf("%d flows: %d buckets, want %d", n, got, want)
		}
	}
	if got := Buckets(1_000_000) * (BucketSize + Ways*DetailSize); got > 128<<20 {
		t.Errorf("a million flows take %d bytes", got)
	}
}

// TestBeyondCapacity: a table that is too small loses the flows that have been
// quiet for longest.
func TestBeyondCapacity(t *testing.T) {
	_, _, table := memory(t, 64)
	rng := rand.New(rand.NewPCG(3, 4))
	evicted := 0
	for now := range Tick(2 * 64 * Ways) {
		if table.Put(rng.Uint64()|1, Entry{Backend: 1, Until: now + 100000}, now) {
			evicted++
		}
	}
	n := 0
	youngest := Tick(100000 + 64*Ways/2)
	for _, e := range table.All() {
		n++
		if e.Until < youngest {
			t.Errorf("a flow of tick %d is still there", e.Until-100000)
		}
	}
	if n+evicted != 2*64*Ways || n < 60*Ways {
		t.Errorf("%d are there, %d evicted", n, evicted)
	}
}

func TestRoom(t *testing.T) {
	for n := range 5000 {
		b := n + 1
		if r := Room(b); Buckets(r) > b || Buckets(r+1) <= b {
			t.Errorf("%d buckets have room for %d flows, which need %d buckets, one more %d", b, r, Buckets(r), Buckets(r+1))
		}
	}
	for places := range 5000 {
		if r := HalfRoom(places + 2); Places(r) > places+2 || Places(r+1) <= places+2 {
			t.Errorf("%d places are for %d flows, which need %d places, one more %d", places+2, r, Places(r), Places(r+1))
		}
	}
}
