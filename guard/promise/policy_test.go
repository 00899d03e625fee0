package promise

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// fleet are sites a to f: a, c and e in region west, the rest in east; a serves
// 100 requests a second, b 200, and so on; of f it is not known.
var fleet = func() map[edge.SiteID]edge.Site {
	m := map[edge.SiteID]edge.Site{}
	for i, id := range []edge.SiteID{"a", "b", "c", "d", "e", "f"} {
		s := edge.Site{ID: id, Region: []edge.RegionID{"west", "east"}[i%2], Capacity: float64(100 * (i + 1))}
		if id == "f" {
			s.Capacity = 0
		}
		m[id] = s
	}
	return m
}()

// staying reads "a b+": the sites a and b, b in good health.
func staying(text string) stay {
	in := stay{}
	for _, f := range strings.Fields(text) {
		in[edge.SiteID(strings.TrimSuffix(f, "+"))] = struct{ well bool }{strings.HasSuffix(f, "+")}
	}
	return in
}

func TestTerms(t *testing.T) {
	west := func(n int) []edge.RegionFloor { return []edge.RegionFloor{{Region: "west", MinSites: n}} }
	for _, c := range []struct {
		floor  int
		policy edge.Guard
		in     string
		want   string // what is lacking; "few": sites; empty: nothing
	}{
		{2, edge.Guard{}, "a b", ""},
		{2, edge.Guard{}, "a", "few"},
		{0, edge.Guard{SpareSites: 3, MinFraction: 1, MinHealthy: 3, MinCapacity: 1e9, Regions: west(3)}, "", ""},
		{2, edge.Guard{SpareSites: 1}, "a b", "few"},
		{2, edge.Guard{SpareSites: 1}, "a b c", ""},
		{1, edge.Guard{MinFraction: 0.5}, "a b", "few"},
		{1, edge.Guard{MinFraction: 0.5}, "a b c", ""},
		{1, edge.Guard{MinFraction: 0.51}, "a b c", "few"},
		{1, edge.Guard{MinFraction: 1. / 3}, "a b", ""}, // not three for what a float cannot hold
		{3, edge.Guard{MinFraction: 0.1}, "a b", "few"},
		{1, edge.Guard{MinFraction: 1}, "a b c d e", "few"}, // nobody ever leaves: a choice
		{1, edge.Guard{MinHealthy: 2}, "a+ b c d", "1 of those that stay are healthy, and 2 must be"},
		{1, edge.Guard{MinHealthy: 2}, "a+ b+", ""},
		{1, edge.Guard{MinCapacity: 300}, "a b", ""},
		{1, edge.Guard{MinCapacity: 301}, "a b", "those that stay serve 300 requests a second, and 301 are needed"},
		{1, edge.Guard{MinCapacity: 1}, "f", "those that stay serve 0 requests a second, and 1 are needed"},
		{1, edge.Guard{Regions: west(2)}, "a b d f", "1 sites of region west stay, and 2 must"},
		{1, edge.Guard{Regions: west(2)}, "a c", ""},
		{1, edge.Guard{Regions: slices.Concat(west(1), west(3))}, "a c", "2 sites of region west stay, and 3 must"},
		{1, edge.Guard{Regions: []edge.RegionFloor{{Region: "south", MinSites: 1}}}, "a b c", "0 sites of region south stay, and 1 must"},
		{1, edge.Guard{MinHealthy: 1, MinCapacity: 1000}, "a", "0 of those that stay are healthy, and 1 must be"}, // one at a time
	} {
		tm, in := termsOf(c.floor, c.policy, fleet), staying(c.in)
		if lack := string(tm.lack(in, fleet)); lack != c.want && c.want != "few" {
			t.Errorf("floor %d, %+v, %s stay: lacks %q, want %q", c.floor, c.policy, c.in, lack, c.want)
		}
		if tm.met(in, fleet) != (c.want == "") {
			t.Errorf("floor %d, %+v, %s stay: met %v", c.floor, c.policy, c.in, tm.met(in, fleet))
		}
	}
}

func TestDemand(t *testing.T) {
	tm := termsOf(1, edge.Guard{MinCapacity: 250}, fleet)
	for _, c := range []struct {
		load  float64
		known bool
		in    string
		want  string
	}{
		{100, true, "a b", ""}, // what is configured is more
		{100, true, "b", "those that stay serve 200 requests a second, and 250 are needed"},
		{301, true, "a b", "those that stay serve 300 requests a second, and 301 are needed"},
		{300, true, "a b", ""},
		{0, false, "a b c d e f", "the demand of the fleet is not known"},
	} {
		if got := string(tm.demand(c.load, c.known).lack(staying(c.in), fleet)); got != c.want {
			t.Errorf("load %v known %v, %s stay: lacks %q, want %q", c.load, c.known, c.in, got, c.want)
		}
	}
	if got := tm.lack(staying("a b"), fleet); got != "" {
		t.Errorf("the terms themselves have changed: %q", got)
	}
}

// anyTerms and anyStay draw what the properties are tried with.
func anyTerms(r *rand.Rand) terms {
	p := edge.Guard{SpareSites: r.IntN(2), MinHealthy: r.IntN(3), MinFraction: r.Float64() * 0.8, MinCapacity: float64(r.IntN(6) * 150), CoverDemand: r.IntN(3) == 0}
	for range r.IntN(3) {
		p.Regions = append(p.Regions, edge.RegionFloor{Region: []edge.RegionID{"west", "east"}[r.IntN(2)], MinSites: r.IntN(3)})
	}
	t := termsOf(r.IntN(4), p, fleet)
	if r.IntN(4) == 0 {
		t = t.demand(float64(r.IntN(1000)), r.IntN(3) > 0)
	}
	return t
}

func anyStay(r *rand.Rand) stay {
	in := stay{}
	for id := range fleet {
		if r.IntN(2) == 0 {
			in[id] = struct{ well bool }{r.IntN(2) == 0}
		}
	}
	return in
}

// TestTermsAreMonotone: a promise that is added, or one from a site in better
// health, never takes a permit away. On that rests that promises may be counted
// one by one.
func TestTermsAreMonotone(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	met := 0
	for range 20_000 {
		tm, in := anyTerms(r), anyStay(r)
		if !tm.met(in, fleet) {
			continue
		}
		met++
		for id := range fleet {
			was, on := in[id]
			in[id] = struct{ well bool }{was.well || r.IntN(2) == 0}
			if !tm.met(in, fleet) {
				t.Fatalf("%+v is met, and with %s no more (%v)", tm, id, in)
			}
			if !on && r.IntN(2) == 0 {
				delete(in, id)
			}
		}
	}
	if met < 1000 {
		t.Errorf("only %d were met: nothing is proved", met)
	}
}

// TestAnd: both terms are met exactly if what is made of the two is, whichever
// comes first, and neither is changed by it.
func TestAnd(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 2))
	for range 20_000 {
		a, b, in := anyTerms(r), anyTerms(r), anyStay(r)
		before := fmt.Sprint(a, b)
		both := a.met(in, fleet) && b.met(in, fleet)
		if a.and(b).met(in, fleet) != both || b.and(a).met(in, fleet) != both {
			t.Fatalf("%+v and %+v, %v stay: want %v", a, b, in, both)
		}
		if a.and(b).cover != (a.cover || b.cover) {
			t.Fatalf("%+v and %+v: the demand is forgotten", a, b)
		}
		if fmt.Sprint(a, b) != before {
			t.Fatalf("%s has become %s", before, fmt.Sprint(a, b))
		}
	}
}

// TestPermitEndsWithItsTerms: whatever the promises, a permit ends at the moment at
// which those that still count do not meet the terms any more.
func TestPermitEndsWithItsTerms(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 3))
	granted := 0
	for range 3000 {
		g := newRig(t, 1+rng.IntN(3), "a1", "a2", "b1", "b2", "c1", "d1", "e1", "f1")
		n := g.nodes["a1"]
		n.policy.MinHealthy, n.policy.MinCapacity, n.places = rng.IntN(3), float64(rng.IntN(4)*200), fleet
		g.wish("a1", edge.SeveritySick)
		s := n.seats[net1]
		n.open(g.now, s)
		for id := range n.sites {
			if rng.IntN(2) == 0 && id != "a1" && (id != "a2" || rng.IntN(4) == 0) {
				s.round.promised[id] = promised{g.now.Add(time.Duration(1+rng.IntN(5)) * time.Second), rng.IntN(2) == 0}
			}
		}
		got := n.tally(g.now, s)
		want := g.now
		for sec := range 6 { // of whole seconds the last at whose beginning it is met
			if at := g.now.Add(time.Duration(sec) * time.Second); metAt(n, s, at) {
				want = at.Add(time.Second)
			}
		}
		if got.ok != want.After(g.now) || got.ok && !got.until.Equal(want) {
			t.Fatalf("%v: permit %v until %s, want %s (%+v)", s.round.promised, got.ok, got.until, want, n.terms(s))
		}
		if got.ok {
			granted++
		}
	}
	if granted < 500 {
		t.Errorf("only %d permits: nothing is proved", granted)
	}
}

// metAt is tally, by the letter.
func metAt(n *Node, s *seat, at time.Time) bool {
	in := stay{}
	for id, p := range s.round.promised {
		if !at.Before(p.until) {
			continue
		}
		if n.sites[id] == n.site {
			return true
		}
		was := in[n.sites[id]]
		was.well = was.well || p.well
		in[n.sites[id]] = was
	}
	return n.terms(s).met(in, n.places)
}

// TestCoverPolicy: a prefix that only some sites announce is held by its own floor
// alone.
func TestCoverPolicy(t *testing.T) {
	all := edge.Guard{SpareSites: 1, MinHealthy: 1, MinFraction: 0.5, MinCapacity: 1, CoverDemand: true, Regions: []edge.RegionFloor{{Region: "eu", MinSites: 1}}}
	sites := map[edge.SiteID]edge.Site{"a": {ID: "a"}, "b": {ID: "b"}, "c": {ID: "c"}, "d": {ID: "d"}}
	cover := termsOf(1, all.Of(edge.Prefix{Unconditional: []edge.SiteID{"a", "b"}}), sites)
	if !cover.met(stay{"a": {}}, sites) {
		t.Errorf("one site does not suffice for a cover: %s", cover.lack(stay{"a": {}}, sites))
	}
	if termsOf(1, all.Of(edge.Prefix{}), sites).met(stay{"a": {}}, sites) {
		t.Error("one site suffices for a prefix of all")
	}
}
