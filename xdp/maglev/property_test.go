package maglev

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// mixed gives weights over the whole range, in no order.
func mixed(i int) int { return 1 + i*7919%MaxWeight }

// extremes gives each second backend the largest weight, and the others the
// smallest one.
func extremes(i int) int {
	if i%2 == 0 {
		return MaxWeight
	}
	return 1
}

// giant gives all the weight to one.
func giant(i int) int {
	if i == 0 {
		return MaxWeight
	}
	return 1
}

var mixes = []struct {
	name   string
	weight func(int) int
}{{"equal", one}, {"mixed", mixed}, {"extremes", extremes}, {"giant", giant}}

// simple is Maglev as one would write it down: sort by comparing, walk slot by
// slot. Build must give the very same.
func simple(walkers []walker) []int32 {
	sum := uint64(0)
	for _, w := range walkers {
		sum += uint64(w.weight)
	}
	type moment struct {
		at  uint64
		who int
	}
	var all []moment
	end := uint64(Size+len(walkers)) * unit / sum
	for i, w := range walkers {
		every := unit / uint64(w.weight)
		phase := new(big.Int).SetUint64(w.phase)
		phase.Rsh(phase.Mul(phase, new(big.Int).SetUint64(every)), 64)
		all = append(all, moment{0, i})
		for n := uint64(1); n*every+phase.Uint64() < end; n++ {
			all = append(all, moment{n*every + phase.Uint64(), i})
		}
	}
	slices.SortFunc(all, func(a, b moment) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.who, b.who)) })
	ring := slices.Repeat([]int32{Empty}, Size)
	for _, t := range all[:Size] {
		w := &walkers[t.who]
		for ring[w.next] != Empty {
			w.next = (w.next + w.step) % Size
		}
		ring[w.next] = w.index
	}
	return ring
}

func TestSameAsSimple(t *testing.T) {
	for _, mix := range mixes {
		for _, n := range []int{1, 2, 5, 150} {
			b := names(n, mix.weight)
			walkers, err := newWalkers(seed, b)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(build(t, seed, b), simple(walkers)) {
				t.Errorf("%s, %d backends: not the ring of the simple algorithm", mix.name, n)
			}
		}
	}
}

// However many there are, and whatever their weights, everybody has a slot.
func TestNobodyLeftOut(t *testing.T) {
	for _, mix := range mixes {
		for _, n := range []int{1000, 16383, Size} {
			if testing.Short() && n == Size {
				continue
			}
			for i, c := range shares(build(t, seed, names(n, mix.weight)), n) {
				if c == 0 {
					t.Fatalf("%s, %d backends: number %d has no slot", mix.name, n, i)
				}
			}
		}
	}
}

// Shares are those of the weights, to a slot or two; 0.1 % of the ring is 66.
func TestWeights(t *testing.T) {
	for _, weights := range [][]int{{1, 4}, {0, 2, 6}, {1000, 1}, {1, 1, 1}, {1000, 999, 500, 1}, {3, 3, 3, 1}} {
		sum := 0
		for _, w := range weights {
			sum += w
		}
		b := names(len(weights), func(i int) int { return weights[i] })
		for i, n := range shares(build(t, seed, b), len(b)) {
			want := float64(Size) * float64(weights[i]) / float64(sum)
			if math.Abs(float64(n)-want) > 2 {
				t.Errorf("weights %v: backend %d has %d slots, want %.1f", weights, i, n, want)
			}
			t.Logf("weights %v: backend %d has %.3f %%, ideal %.3f %%", weights, i, 100*float64(n)/Size, 100*want/Size)
		}
	}
}

// imbalance returns by which part the largest share is above its ideal, and how
// many slots a share is off its ideal at most.
func imbalance(ring []int32, b []Backend) (above, slots float64) {
	sum := 0
	for _, x := range b {
		sum += x.Weight
	}
	for i, n := range shares(ring, len(b)) {
		ideal := float64(Size) * float64(b[i].Weight) / float64(sum)
		above, slots = max(above, float64(n)/ideal-1), max(slots, math.Abs(float64(n)-ideal))
	}
	return above, slots
}

func TestBalance(t *testing.T) {
	for _, mix := range mixes {
		for _, n := range []int{10, 100, 1000, 4000} {
			b := names(n, mix.weight)
			above, slots := imbalance(build(t, seed, b), b)
			if mix.name != "equal" {
				// A part says nothing of a share that is less than one slot.
				t.Logf("%s weights, %d backends: a share is off its ideal by %.2f slots at most", mix.name, n, slots)
				if slots > 66 {
					t.Errorf("%s weights, %d backends: a share is off by %.2f slots, 0.1 %% are 66", mix.name, n, slots)
				}
				continue
			}
			t.Logf("equal weights, %d backends: the largest share is %.2f %% above ideal, %.2f slots", n, 100*above, slots)
			if slots > 1 || n <= 1000 && above > 0.01 {
				t.Errorf("equal weights, %d backends: the largest share is %.2f %% above ideal", n, 100*above)
			}
		}
	}
}

// disruption returns which part of the others' slots moves with the backend.
func disruption(t testing.TB, ring []int32, all []Backend, gone int) float64 {
	rest := slices.Delete(slices.Clone(all), gone, gone+1)
	moved, others := 0, 0
	for slot, at := range build(t, seed, rest) {
		if int(ring[slot]) == gone {
			continue
		}
		others++
		if rest[at].Name != all[ring[slot]].Name {
			moved++
		}
	}
	return float64(moved) / float64(others)
}

// Removing one backend must move hardly any slot that was not its own. What
// moves grows with the share of the one that leaves: that of the heaviest among
// 300 mixed weights is twice the mean.
func TestRemovalMovesLittle(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, mix := range mixes[:2] {
		for _, n := range []int{2, 10, 100, 300, 1000, 4000} {
			all := names(n, mix.weight)
			ring := build(t, seed, all)
			sum, most, tries := 0.0, 0.0, min(n, 6)
			for range tries {
				d := disruption(t, ring, all, rnd.IntN(n))
				sum, most = sum+d, max(most, d)
			}
			mean := sum / float64(tries)
			t.Logf("%s, %d backends: one that leaves moves %.2f %% of the others' slots, %.2f %% at most", mix.name, n, 100*mean, 100*most)
			if mean > 0.01 || most > 0.0125 || mix.name == "equal" && most > 0.01 {
				t.Errorf("%s, %d backends: %.2f %% of the others' slots moved, %.2f %% at most", mix.name, n, 100*mean, 100*most)
			}
		}
	}
}

// A weight that changes by little moves little too.
func TestReweighingMovesLittle(t *testing.T) {
	all := names(100, func(int) int { return 100 })
	before := build(t, seed, all)
	all[7].Weight = 99
	moved := 0
	for slot, at := range build(t, seed, all) {
		if at != before[slot] {
			moved++
		}
	}
	if share := float64(moved) / Size; share > 0.01 {
		t.Errorf("%.2f %% of the slots moved", 100*share)
	} else {
		t.Logf("one of 100 weights changed by 1 %%: %.2f %% of the slots moved", 100*share)
	}
}

func TestSipHash(t *testing.T) {
	// The vectors of the reference implementation for 128 bits: key 00 01 .. 0f,
	// input 00 01 .. of the length.
	var key [16]byte
	input := make([]byte, 15)
	for i := range key {
		key[i] = byte(i)
	}
	for i := range input {
		input[i] = byte(i)
	}
	for n, want := range map[int]string{
		0: "a3817f04ba25a8e66df67214c7550293",
		1: "da87c1d86b99af44347659119b22fc45",
	} {
		lo, hi := sipHash(key, string(input[:n]))
		got := ""
		for _, word := range []uint64{lo, hi} {
			for i := range 8 {
				got += fmt.Sprintf("%02x", byte(word>>(8*i)))
			}
		}
		if got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
}
