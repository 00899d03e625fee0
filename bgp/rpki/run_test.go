package rpki

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestValidateAgainstAllVRPs holds Validate, which searches, against a look at
// every VRP, with many of them on one prefix.
func TestValidateAgainstAllVRPs(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	for range 200 {
		seen := map[VRP]bool{}
		var list []VRP
		for range 1 + rng.IntN(60) {
			bits := 8 + 8*rng.IntN(2)
			v := VRP{netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), bits), bits + rng.IntN(10), uint32(rng.IntN(20))}
			if !seen[v] {
				seen[v] = true
				list = append(list, v)
			}
		}
		set, err := NewSet(list)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), 8+rng.IntN(20))
			origin := uint32(rng.IntN(22))
			var match, long, other int
			for _, v := range list {
				switch {
				case v.Prefix.Bits() > p.Bits():
				case v.ASN != origin || origin == 0:
					other++
				case p.Bits() > v.MaxLength:
					long++
				default:
					match++
				}
			}
			want, n := NotFound, 0
			switch {
			case match > 0:
				want, n = Valid, match
			case long > 0:
				want, n = InvalidLength, long
			case other > 0:
				want, n = InvalidOrigin, other
			}
			got := set.Validate(p, origin)
			if got.Validity != want {
				t.Fatalf("%s of AS%d is %v, want %s; VRPs %v", p, origin, got, want, list)
			}
			if more := fmt.Sprintf(" and %d more", n-maxEvidence); n > maxEvidence && got.Evidence[len(got.Evidence)-len(more):] != more {
				t.Fatalf("%s of AS%d: evidence %q, want that of %d VRPs", p, origin, got.Evidence, n)
			}
		}
	}
}

// TestManyVRPsOnOnePrefix: a cache that has gone mad costs no time.
func TestManyVRPsOnOnePrefix(t *testing.T) {
	const n = 300_000
	list := make([]VRP, n)
	for i := range list {
		list[i] = VRP{netip.MustParsePrefix("10.0.0.0/8"), 24, uint32(i + 1)}
	}
	set, err := NewSet(list)
	if err != nil {
		t.Fatal(err)
	}
	steps := testing.AllocsPerRun(10, func() {
		if v := set.Validate(netip.MustParsePrefix("10.1.0.0/16"), n+1); v.Validity != InvalidOrigin {
			t.Fatal(v)
		}
	})
	if steps > 100 {
		t.Errorf("%v allocations", steps)
	}
	if v := set.Validate(netip.MustParsePrefix("10.1.0.0/16"), n/2); v.Validity != Valid {
		t.Error(v)
	}
}
