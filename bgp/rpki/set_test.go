package rpki

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func vrp(prefix string, length int, asn uint32) VRP {
	return VRP{netip.MustParsePrefix(prefix), length, asn}
}

func mustSet(t testing.TB, vrps ...VRP) *Set {
	t.Helper()
	s, err := NewSet(vrps)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestValidate is RFC 6811 section 2, and what we tell of it.
func TestValidate(t *testing.T) {
	set := mustSet(t,
		vrp("192.0.2.0/24", 24, 64500),
		vrp("198.51.100.0/22", 24, 64500),
		vrp("198.51.100.0/22", 22, 64501),
		vrp("203.0.113.0/24", 24, 0),
		vrp("203.0.113.0/25", 32, 64502),
		vrp("10.0.0.0/8", 8, 1), vrp("10.0.0.0/8", 9, 2), vrp("10.0.0.0/8", 10, 3), vrp("10.0.0.0/8", 11, 4), vrp("10.0.0.0/9", 12, 5), vrp("10.0.0.0/9", 12, 6),
		vrp("2001:db8::/32", 48, 64500),
		vrp("2001:db8:1::/48", 128, 64501),
		vrp("::/0", 0, 64777),
	)
	for _, test := range []struct {
		prefix   string
		origin   uint32
		want     Validity
		evidence string
	}{
		{"192.0.2.0/24", 64500, Valid, "192.0.2.0/24 max 24 AS64500"},
		{"192.0.2.0/24", 64501, InvalidOrigin, "192.0.2.0/24 max 24 AS64500"},
		{"192.0.2.0/25", 64500, InvalidLength, "192.0.2.0/24 max 24 AS64500"},
		{"192.0.2.0/25", 64501, InvalidOrigin, "192.0.2.0/24 max 24 AS64500"},
		{"192.0.0.0/16", 64500, NotFound, "no VRP covers 192.0.0.0/16"}, // a less specific is not covered
		{"192.0.3.0/24", 64500, NotFound, "no VRP covers 192.0.3.0/24"},
		{"198.51.100.0/22", 64501, Valid, "198.51.100.0/22 max 22 AS64501"},
		{"198.51.101.0/24", 64500, Valid, "198.51.100.0/22 max 24 AS64500"},
		{"198.51.101.0/24", 64501, InvalidLength, "198.51.100.0/22 max 22 AS64501"},
		{"198.51.101.0/24", 64502, InvalidOrigin, "198.51.100.0/22 max 22 AS64501, 198.51.100.0/22 max 24 AS64500"},
		// AS 0: nobody may, and nobody is AS 0.
		{"203.0.113.0/24", 64502, InvalidOrigin, "203.0.113.0/24 max 24 AS0"},
		{"203.0.113.0/24", 0, InvalidOrigin, "203.0.113.0/24 max 24 AS0"},
		{"203.0.113.0/25", 64502, Valid, "203.0.113.0/25 max 32 AS64502"},
		{"192.0.2.0/24", 0, InvalidOrigin, "192.0.2.0/24 max 24 AS64500"},
		{"203.0.113.7/32", 64502, Valid, "203.0.113.0/25 max 32 AS64502"},
		{"203.0.113.200/32", 64502, InvalidOrigin, "203.0.113.0/24 max 24 AS0"},
		// No more than four.
		{"10.0.0.0/24", 9, InvalidOrigin, "10.0.0.0/8 max 8 AS1, 10.0.0.0/8 max 9 AS2, 10.0.0.0/8 max 10 AS3, 10.0.0.0/8 max 11 AS4 and 2 more"},
		// IPv6; the families do not meet.
		{"2001:db8:2::/48", 64500, Valid, "2001:db8::/32 max 48 AS64500"},
		{"2001:db8:1::/48", 64500, Valid, "2001:db8::/32 max 48 AS64500"},
		{"2001:db8:1:2::/64", 64500, InvalidLength, "2001:db8::/32 max 48 AS64500"},
		{"2001:db8:1:2::3/128", 64501, Valid, "2001:db8:1::/48 max 128 AS64501"},
		{"2001:db9::/32", 64500, InvalidOrigin, "::/0 max 0 AS64777"},
		{"::/0", 64777, Valid, "::/0 max 0 AS64777"},
		{"::/1", 64777, InvalidLength, "::/0 max 0 AS64777"},
		{"0.0.0.0/0", 64777, NotFound, "no VRP covers 0.0.0.0/0"},
		{"192.0.2.9/24", 64500, Valid, "192.0.2.0/24 max 24 AS64500"}, // host bits do not matter
		{"::ffff:192.0.2.0/120", 64500, Unknown, "not a prefix"},
	} {
		got := set.Validate(netip.MustParsePrefix(test.prefix), test.origin)
		if diff := cmp.Diff(Verdict{test.want, test.evidence}, got); diff != "" {
			t.Errorf("%s of AS%d (-want +got):\n%s", test.prefix, test.origin, diff)
		}
	}
}

func TestValidateWithoutData(t *testing.T) {
	p := netip.MustParsePrefix("192.0.2.0/24")
	for _, test := range []struct {
		set  *Set
		want Verdict
	}{
		{&Set{}, Verdict{Unknown, "no VRPs have been received"}},
		{&Set{why: "gone"}, Verdict{Unknown, "gone"}},
		{mustSet(t), Verdict{NotFound, "no VRP covers 192.0.2.0/24"}}, // a cache that has none
	} {
		if got := test.set.Validate(p, 64500); got != test.want {
			t.Errorf("got %v, want %v", got, test.want)
		}
	}
	if got := mustSet(t).Validate(netip.Prefix{}, 1); got.Validity != Unknown {
		t.Errorf("no prefix: %v", got)
	}
}

func TestNewSetRefuses(t *testing.T) {
	for _, test := range []struct {
		vrp  VRP
		want string
	}{
		{VRP{}, "not valid"},
		{VRP{netip.PrefixFrom(netip.MustParseAddr("192.0.2.1"), 24), 24, 1}, "host bits"},
		{vrp("192.0.2.0/24", 23, 1), "not between 24 and 32"},
		{vrp("192.0.2.0/24", 33, 1), "not between 24 and 32"},
		{vrp("2001:db8::/32", 129, 1), "not between 32 and 128"},
		{vrp("::ffff:192.0.2.0/120", 120, 1), "not valid"},
	} {
		if _, err := NewSet([]VRP{test.vrp}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want %q", test.vrp, err, test.want)
		}
	}
}

// naive is RFC 6811 by a walk through all.
func naive(vrps []VRP, p netip.Prefix, origin uint32) Validity {
	out := NotFound
	for _, v := range vrps {
		if v.Prefix.Bits() > p.Bits() || !v.Prefix.Contains(p.Addr()) {
			continue
		}
		switch ours := v.ASN == origin && origin != 0; {
		case ours && p.Bits() <= v.MaxLength:
			return Valid
		case ours:
			out = InvalidLength
		case out == NotFound:
			out = InvalidOrigin
		}
	}
	return out
}

// randomVRPs are crowded into a few bits, so that they cover each other.
func randomVRPs(r *rand.Rand, n int) []VRP {
	var out []VRP
	for range n {
		p := randomPrefix(r)
		out = append(out, VRP{p, p.Bits() + r.IntN(p.Addr().BitLen()-p.Bits()+1), r.Uint32N(4)})
	}
	return out
}

func randomPrefix(r *rand.Rand) netip.Prefix {
	if r.IntN(2) == 0 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, byte(r.IntN(4)), 0, byte(r.IntN(4))}), r.IntN(33)).Masked()
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0x20, 7: byte(r.IntN(4)), 8: byte(r.IntN(256)), 15: byte(r.IntN(4))}), r.IntN(129)).Masked()
}

func TestValidateIsRFC6811(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[Validity]int{}
	for range 300 {
		vrps := randomVRPs(r, r.IntN(40))
		set := mustSet(t, vrps...)
		for range 100 {
			p, origin := randomPrefix(r), r.Uint32N(4)
			got, want := set.Validate(p, origin), naive(vrps, p, origin)
			if got.Validity != want {
				t.Fatalf("%s of AS%d is %v, want %s by %v", p, origin, got, want, vrps)
			}
			seen[want]++
		}
	}
	for _, v := range []Validity{Valid, InvalidLength, InvalidOrigin, NotFound} {
		if seen[v] < 100 {
			t.Errorf("%s was met %d times only", v, seen[v])
		}
	}
}

// TestMerge compares with a map that takes one change after the other.
func TestMerge(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	outcomes := map[string]int{}
	for range 3000 {
		model := map[record]bool{}
		for _, v := range randomVRPs(r, r.IntN(30)) {
			rec, _ := toRecord(v)
			model[rec] = true
		}
		old := sorted(model)
		before := slices.Clone(old)
		changes := randomChanges(r, old)
		want := ""
		for _, c := range changes {
			plain := c
			plain.withdraw = false
			switch {
			case c.withdraw && !model[plain]:
				want = "withdrawal"
			case !c.withdraw && model[plain]:
				want = "announcement"
			}
			if want != "" {
				break
			}
			if model[plain] = true; c.withdraw {
				delete(model, plain)
			}
		}
		got, err := merge(old, changes)
		outcomes[want]++
		switch {
		case !slices.Equal(old, before):
			t.Fatal("merge has changed what others read")
		case want == "" && (err != nil || !slices.Equal(got, sorted(model))):
			t.Fatalf("got %v, %v; want %v", got, err, sorted(model))
		case want != "" && err == nil:
			t.Fatalf("no error, want a wrong %s", want)
		}
	}
	for what, n := range outcomes {
		if n < 100 {
			t.Errorf("outcome %q %d times only", what, n)
		}
	}
}

// randomChanges mostly fit to old.
func randomChanges(r *rand.Rand, old []record) []record {
	var out []record
	there := map[record]bool{}
	for _, rec := range old {
		there[rec] = true
	}
	for range r.IntN(12) {
		v := randomVRPs(r, 1)[0]
		rec, _ := toRecord(v)
		if len(old) > 0 && r.IntN(2) == 0 {
			rec = old[r.IntN(len(old))]
		}
		fits := there[rec]
		there[rec] = !there[rec]
		rec.withdraw = fits
		if r.IntN(30) == 0 {
			rec.withdraw = !fits
		}
		out = append(out, rec)
	}
	return out
}

func sorted(model map[record]bool) []record {
	var out []record
	for rec := range model {
		out = append(out, rec)
	}
	slices.SortFunc(out, compare)
	return out
}

// internet is about as many VRPs as there are.
func internet(n int) []record {
	r := rand.New(rand.NewPCG(5, 6))
	var out []record
	for i := range n {
		rec := record{hi: uint64(r.Uint32()) << 32, bits: uint8(12 + r.IntN(13)), max: 24, asn: r.Uint32N(400000)}
		if i%4 == 0 {
			rec = record{v6: true, hi: 0x2000<<48 | r.Uint64()>>3, bits: uint8(28 + r.IntN(21)), max: 48, asn: r.Uint32N(400000)}
		}
		out = append(out, rec.cut(rec.bits))
	}
	slices.SortFunc(out, compare)
	return slices.Compact(out)
}

func BenchmarkMergeAll(b *testing.B) {
	all := internet(700_000)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for b.Loop() {
		if _, err := merge(nil, slices.Clone(all)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMergeTen(b *testing.B) {
	all := internet(700_000)
	changes := slices.Clone(all[1000:1010])
	for i := range changes {
		changes[i].withdraw = true
	}
	for b.Loop() {
		if _, err := merge(all, slices.Clone(changes)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValidate(b *testing.B) {
	set := sortedSet(internet(700_000))
	for _, p := range []string{"192.0.2.0/24", "2001:db8::/48"} {
		prefix := netip.MustParsePrefix(p)
		b.Run(fmt.Sprintf("v6=%v", prefix.Addr().Is6()), func(b *testing.B) {
			for b.Loop() {
				set.Validate(prefix, 64500)
			}
		})
	}
}
