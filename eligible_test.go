package edge

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// candidates reads a line of backends: "p" a primary, "f" a failover, then its
// state (+ up, ? unknown, - down) and its weight: "p+1 p-1 f+0".
func candidates(t testing.TB, line string) []Candidate {
	t.Helper()
	var out []Candidate
	for _, word := range strings.Fields(line) {
		c := Candidate{ID: BackendID(word), Failover: word[0] == 'f', State: map[byte]ProbeState{'+': Up, '?': Unknown, '-': Down}[word[1]]}
		if _, err := fmt.Sscan(word[2:], &c.Weight); err != nil {
			t.Fatalf("%q: %v", word, err)
		}
		out = append(out, c)
	}
	return out
}

// chosen writes down who has a share.
func chosen(in []Candidate, c Choice) string {
	var out []string
	for i, w := range c.Shares {
		if w > 0 {
			out = append(out, string(in[i].ID))
		}
	}
	return strings.Join(out, " ")
}

// eligibility is one line of a table of issue 3: who is there and who gets new
// flows. f is nil in the tables without failover.
type eligibility struct {
	rule, in, want string
	f              *Failover
}

func (e eligibility) run(t *testing.T) {
	t.Helper()
	in := candidates(t, e.in)
	c := Eligible(in, e.f)
	if got := chosen(in, c); got != e.want {
		t.Errorf("%s: %q gives %q, want %q (%s)", e.rule, e.in, got, e.want, c.Reason)
	}
	if want := e.f != nil && e.want == "" && e.in != ""; c.Dropped != want {
		t.Errorf("%s: %q: dropped is %t", e.rule, e.in, c.Dropped)
	}
	if want := e.f != nil && strings.HasPrefix(e.want, "f"); (c.Pool == PoolFailover) != want {
		t.Errorf("%s: %q: pool is %q", e.rule, e.in, c.Pool)
	}
	planned := e.want != "" && !strings.ContainsAny(e.want, "-?") && c.Pool == PoolPrimary && !strings.HasSuffix(e.want, "0")
	if (c.Reason == "") != planned {
		t.Errorf("%s: %q: reason %q", e.rule, e.in, c.Reason)
	}
}

func TestEligibleWithoutFailover(t *testing.T) {
	for _, e := range []eligibility{
		{"nobody", "", "", nil},
		// Unweighted: healthy, else all.
		{"all healthy", "p+1 p+1", "p+1 p+1", nil},
		{"healthy", "p+1 p-1", "p+1", nil},
		{"else all", "p-1 p-1", "p-1 p-1", nil},
		{"the weight does not matter if it is the same", "p+7 p-7", "p+7", nil},
		// Weighted: the first set that is not empty.
		{"healthy with a weight", "p+5 p-9 p+0 p-0", "p+5", nil},
		{"unhealthy with a weight", "p-5 p-9 p+0 p-0", "p-5 p-9", nil},
		{"healthy of weight 0", "p+0 p-0 p+0", "p+0 p+0", nil},
		{"unhealthy of weight 0", "p-0 p-0", "p-0 p-0", nil},
		// Unknown stands between up and down.
		{"a new one waits while another is up", "p+1 p?1 p-1", "p+1", nil},
		{"a new one before one that is down", "p?1 p-1", "p?1", nil},
		{"nothing is known", "p?1 p?2", "p?1 p?2", nil},
		{"a new one with a weight before one of weight 0", "p?1 p+0", "p?1", nil},
		{"of weight 0", "p+0 p?0 p-0", "p+0", nil},
		{"of weight 0, new", "p?0 p-0", "p?0", nil},
		// Without a policy there is one pool.
		{"failover without a policy", "f+1 p-1", "f+1", nil},
		{"failover without a policy counts as any", "f+1 p+1", "f+1 p+1", nil},
	} {
		e.run(t)
	}
}

func TestEligibleWithFailover(t *testing.T) {
	policy := func(ratio float64) *Failover { return &Failover{Ratio: ratio} }
	drop := &Failover{Ratio: 0.5, DropIfNone: true}
	for _, e := range []eligibility{
		{"nobody", "", "", policy(0)},
		// Unweighted.
		{"no healthy primary", "p-1 p-1 f+1 f-1", "f+1", policy(0)},
		{"no healthy primary, whatever the ratio", "p-1 f+1", "f+1", policy(1)},
		{"no healthy failover", "p+1 p-1 p-1 f-1", "p+1", policy(1)},
		{"no failover at all", "p+1 p-1", "p+1", policy(1)},
		{"ratio 0: one healthy primary will do", "p+1 p-1 p-1 p-1 f+1", "p+1", policy(0)},
		{"at the ratio", "p+1 p-1 f+1", "p+1", policy(0.5)},
		{"above the ratio", "p+1 p+1 p-1 f+1", "p+1 p+1", policy(0.5)},
		{"below the ratio", "p+1 p-1 p-1 f+1", "f+1", policy(0.5)},
		{"ratio 1, all healthy", "p+1 p+1 f+1", "p+1 p+1", policy(1)},
		{"ratio 1, one down", "p+1 p-1 f+1", "f+1", policy(1)},
		{"failovers do not count in the ratio", "p+1 p-1 f+1 f+1 f-1", "p+1", policy(0.5)},
		{"14 of 25 are 0.56", strings.Repeat("p+1 ", 14) + strings.Repeat("p-1 ", 11) + "f+1", strings.TrimSpace(strings.Repeat("p+1 ", 14)), policy(0.56)},
		{"three of ten are 0.3", "p+1 p+1 p+1 p-1 p-1 p-1 p-1 p-1 p-1 p-1 f+1", "p+1 p+1 p+1", policy(0.3)},
		{"none healthy: all primaries", "p-1 p-1 f-1", "p-1 p-1", policy(0.5)},
		{"none healthy: drop", "p-1 p-1 f-1", "", drop},
		{"drop, but a failover is healthy", "p-1 f+1", "f+1", drop},
		{"drop, but a primary is healthy", "p+1 p-1 p-1 f-1", "p+1", drop},
		// Weighted: the same over weight > 0 ...
		{"no healthy primary with a weight", "p+0 p-3 f+2 f+0", "f+2", policy(0)},
		{"no healthy failover with a weight", "p+3 p-3 p-3 f+0 f-2", "p+3", policy(1)},
		{"ratio 0 with weights", "p+3 p-2 p+0 f+2", "p+3", policy(0)},
		{"weight 0 does not count among all primaries", "p+3 p-0 p+0 p-0 f+2", "p+3", policy(1)},
		{"weight 0 does not count among the healthy ones", "p+3 p-3 p-3 p+0 p+0 f+2", "f+2", policy(0.5)},
		{"no healthy one with a weight: drop", "p-3 f-2 p+0 f+0", "", drop},
		{"only weight 0: drop", "p+0 f+0", "", drop},
		// ... and then, one after the other:
		{"unhealthy primaries with a weight", "p-1 f-2 p+0 f+0 p-0 f-0", "p-1", policy(0.5)},
		{"unhealthy failovers with a weight", "f-2 p+0 f+0 p-0 f-0", "f-2", policy(0.5)},
		{"healthy primaries of weight 0", "p+0 f+0 p-0 f-0", "p+0", policy(0.5)},
		{"healthy failovers of weight 0", "f+0 p-0 f-0", "f+0", policy(0.5)},
		{"unhealthy primaries of weight 0", "p-0 p-0 f-0", "p-0 p-0", policy(0.5)},
		{"unhealthy failovers of weight 0", "f-0", "f-0", policy(0.5)},
		// Unknown.
		{"nothing is known", "p?1 f?1", "p?1", policy(0.5)},
		{"nothing is known: not dropped", "p?1 p-1 f?1", "p?1", drop},
		{"a new failover before a drop", "p-1 f?1", "f?1", drop},
		{"a new failover before a primary that is down", "p-1 f?1", "f?1", policy(0)},
		{"a healthy failover before a new primary", "p?1 f+1", "f+1", policy(0)},
		{"to add primaries is no failover", "p+1 p?1 p?1 p?1 f+1", "p+1", policy(0.5)},
		{"new ones aside, below the ratio", "p+1 p-1 p-1 p?1 f+1", "f+1", policy(0.5)},
		{"new with a weight before healthy of weight 0", "f?1 p+0", "f?1", policy(0)},
		{"of weight 0, new", "p?0 f?0 p-0", "p?0", policy(0)},
		{"of weight 0, new failovers", "f?0 p-0", "f?0", policy(0)},
	} {
		e.run(t)
	}
}

// TestEligibleShares: they are the weights, and those of a set of weight 0 are alike.
func TestEligibleShares(t *testing.T) {
	for in, want := range map[string][]int{
		"p+1 p+4":           {1, 4},
		"p+0 p+2 p+6":       {0, 2, 6},
		"p-3 p-5 p+0":       {3, 5, 0},
		"p+0 p+0 p-0":       {1, 1, 0},
		"p+1000 p+1 p-1000": {1000, 1, 0},
	} {
		if got := Eligible(candidates(t, in), nil).Shares; !slices.Equal(got, want) {
			t.Errorf("%q: shares %v, want %v", in, got, want)
		}
	}
}

// standing is where a set stands in the list for one candidate, written down
// a second time; lower is better. Sets of the two healthy pools are one place
// here: which of them comes first depends on the ratio.
func standing(c Candidate, f *Failover) int {
	failover := f != nil && c.Failover
	down := map[ProbeState]int{Up: 0, Unknown: 1, Down: 2}[c.State]
	p := 2 * down
	if c.Weight == 0 {
		p += 6
	}
	if failover && !(c.State == Up && c.Weight > 0) {
		p++
	}
	return p
}

// TestEligibleProperties throws random services at the rule (R28: whatever fails
// at once, nobody is chosen who may not be).
func TestEligibleProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		in := make([]Candidate, rng.IntN(8))
		for i := range in {
			in[i] = Candidate{
				ID: BackendID(fmt.Sprint("b", i)), State: ProbeState(rng.IntN(3)),
				Weight: []int{0, 0, 1, 4, MaxWeight}[rng.IntN(5)], Failover: rng.IntN(3) == 0,
			}
		}
		var f *Failover
		if rng.IntN(3) > 0 {
			f = &Failover{Ratio: []float64{0, 0.3, 0.5, 1}[rng.IntN(4)], DropIfNone: rng.IntN(2) == 0}
		}
		c := Eligible(in, f)
		if msg := breach(in, f, c); msg != "" {
			t.Fatalf("%+v with %+v gives %+v: %s", in, f, c, msg)
		}
		order := rng.Perm(len(in))
		shuffled := make([]Candidate, len(in))
		for to, from := range order {
			shuffled[to] = in[from]
		}
		again := Eligible(shuffled, f)
		for to, from := range order {
			if again.Shares[to] != c.Shares[from] || again.Pool != c.Pool || again.Dropped != c.Dropped || again.Reason != c.Reason {
				t.Fatalf("%+v gives %+v, in another order %+v", in, c, again)
			}
		}
	}
}

// breach says which property c breaks.
func breach(in []Candidate, f *Failover, c Choice) string {
	best, dropOK := 1<<30, f != nil && f.DropIfNone
	for _, b := range in {
		best = min(best, standing(b, f))
		if b.Weight > 0 && b.State != Down {
			dropOK = false
		}
	}
	some := false
	for i, b := range in {
		if c.Shares[i] == 0 {
			continue
		}
		some = true
		switch failover := f != nil && b.Failover; {
		case standing(b, f) != best:
			return string(b.ID) + " is of a worse set than another"
		case failover != (c.Pool == PoolFailover):
			return string(b.ID) + " is not of the pool"
		case c.Shares[i] != max(b.Weight, 1):
			return string(b.ID) + " has another share than its weight"
		}
	}
	for i, b := range in {
		failover := f != nil && b.Failover
		if some && c.Shares[i] == 0 && standing(b, f) == best && failover == (c.Pool == PoolFailover) {
			return string(b.ID) + " is left out of its set"
		}
	}
	switch {
	case len(c.Shares) != len(in):
		return "not a share for each"
	case !some && len(in) > 0 && !dropOK:
		return "nobody is chosen"
	case some && dropOK:
		return "the policy drops"
	case c.Dropped != (!some && len(in) > 0):
		return "dropped is wrong"
	}
	return ""
}

func TestWeighByCheck(t *testing.T) {
	none := -1 // says nothing
	for _, tt := range []struct {
		name, in string
		said     []int
		want     []int
		alike    bool
	}{
		{"all say", "p+100 p+100 p+100", []int{0, 2, 6}, []int{0, 2, 6}, false},
		{"one that is up says nothing", "p+100 p+100 p+100", []int{0, 2, none}, []int{1, 1, 1}, true},
		{"one that is up says too much", "p+100 p+100", []int{5, MaxWeight + 1}, []int{1, 1}, true},
		{"one that is down says nothing", "p+100 p-100", []int{5, none}, []int{5, 1}, false},
		{"one that is new says nothing", "p+100 p?100", []int{5, none}, []int{5, 1}, false},
		{"one that is down said 7 before", "p+100 p-100", []int{5, 7}, []int{5, 7}, false},
		{"the operator's 0 stays", "p+0 p+100", []int{9, 7}, []int{0, 7}, false},
		{"the operator's 0 needs no weight", "p+0 p+100", []int{none, 7}, []int{0, 7}, false},
		{"the operator's 0 stays if all count alike", "p+0 p+100 p+100", []int{none, none, 7}, []int{0, 1, 1}, true},
		{"nobody", "", nil, nil, false},
	} {
		in := candidates(t, tt.in)
		said := make([]*int, len(in))
		for i := range said {
			if tt.said[i] != none {
				said[i] = &tt.said[i]
			}
		}
		before := slices.Clone(in)
		out, why := WeighByCheck(in, said)
		var got []int
		for _, c := range out {
			got = append(got, c.Weight)
		}
		if !slices.Equal(got, tt.want) || (why != "") != tt.alike {
			t.Errorf("%s: weights %v (%q), want %v", tt.name, got, why, tt.want)
		}
		if !slices.Equal(in, before) {
			t.Errorf("%s: the caller's candidates have changed", tt.name)
		}
	}
}
