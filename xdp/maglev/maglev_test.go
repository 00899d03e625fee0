package maglev

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"
)

var seed = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

func names(n int, weight func(i int) int) []Backend {
	b := make([]Backend, n)
	for i := range b {
		b[i] = Backend{Name: fmt.Sprintf("backend-%d", i), Weight: weight(i)}
	}
	return b
}

func one(int) int { return 1 }

func build(t testing.TB, s [16]byte, b []Backend) []int32 {
	t.Helper()
	ring, err := Build(s, b)
	if err != nil {
		t.Fatal(err)
	}
	if len(ring) != Size {
		t.Fatalf("ring has %d slots, want %d", len(ring), Size)
	}
	return ring
}

func shares(ring []int32, n int) []int {
	count := make([]int, n)
	for _, at := range ring {
		count[at]++
	}
	return count
}

func TestNoHoles(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 1000, 4000} {
		b := names(n, func(i int) int { return 1 + i%7 })
		for slot, at := range build(t, seed, b) {
			if at < 0 || int(at) >= n {
				t.Fatalf("n=%d: slot %d holds %d", n, slot, at)
			}
		}
	}
}

func TestNobodyHasWeight(t *testing.T) {
	for _, b := range [][]Backend{nil, names(3, func(int) int { return 0 })} {
		for _, at := range build(t, seed, b) {
			if at != Empty {
				t.Fatalf("slot holds %d, want Empty", at)
			}
		}
	}
}

func TestBadInput(t *testing.T) {
	for _, b := range [][]Backend{
		{{"a", 1}, {"b", 1}, {"a", 2}},
		{{"a", -1}},
		{{"a", MaxWeight + 1}},
		names(Size+1, one),
	} {
		if _, err := Build(seed, b); err == nil {
			t.Errorf("%d backends, %v first: accepted", len(b), b[0])
		}
	}
}

// Every node must compute the same ring, whatever the order of its config.
func TestOrderDoesNotMatter(t *testing.T) {
	b := names(50, func(i int) int { return 1 + i*i%1000 })
	want := build(t, seed, b)
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		mixed := append([]Backend(nil), b...)
		rnd.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		for slot, at := range build(t, seed, mixed) {
			if mixed[at].Name != b[want[slot]].Name {
				t.Fatalf("slot %d is %s, and %s in another order", slot, b[want[slot]].Name, mixed[at].Name)
			}
		}
	}
}

// A ring that changes with a new version of this package would move flows
// between boxes of a fleet in the middle of an upgrade.
func TestGolden(t *testing.T) {
	h := sha256.New()
	for _, at := range build(t, seed, names(10, func(i int) int { return i })) {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(at)))
	}
	const want = "4430f6f2c05573c4"
	if got := hex.EncodeToString(h.Sum(nil)[:8]); got != want {
		t.Errorf("ring hashes to %s, want %s", got, want)
	}
}

func TestSeedMatters(t *testing.T) {
	b := names(10, one)
	x, y := build(t, seed, b), build(t, [16]byte{9}, b)
	same := 0
	for i := range x {
		if x[i] == y[i] {
			same++
		}
	}
	if same > Size/5 {
		t.Errorf("%d of %d slots are the same under another seed", same, Size)
	}
}
