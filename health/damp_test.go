package health

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/catchment-dev/edge"
)

func TestDamper(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		rise, fall int
		results    string // + pass, - fail, o full
		states     string // after each: ? unknown, U up, D down, F full
		streaks    string // after each
	}{
		{"starts up", 2, 3, "++", "?U", "10"},
		{"starts down", 2, 3, "---", "??D", "120"},
		{"starts full", 2, 3, "oo", "?F", "10"},
		{"one is enough", 1, 1, "+-+o-o", "UDUFDF", "000000"},
		{"undecided while it alternates", 2, 2, "+-+-", "????", "1111"},
		{"undecided while full alternates with fails", 2, 2, "o-o-", "????", "1111"},
		{"one bad run is forgiven", 1, 3, "+--+-", "UUUUU", "01201"},
		{"falls", 1, 3, "+---", "UUUD", "0120"},
		{"rises again", 2, 1, "-+-++", "DDDDU", "01010"},
		{"one odd answer changes nothing", 2, 3, "++o+o+oo", "?UUUUUUF", "10101010"},
		{"full is alive", 3, 3, "---++o", "??DDDF", "120120"},
		{"and so is a pass", 3, 3, "---oo+", "??DDDU", "120120"},
		{"full falls", 1, 2, "o--", "FFD", "010"},
		{"full recovers", 2, 2, "oo+o++", "?FFFFU", "101010"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d damper
			for i, r := range c.results {
				before := d.state
				changed := d.add(map[rune]edge.ProbeState{'+': edge.Up, '-': edge.Down, 'o': edge.Full}[r], c.rise, c.fall)
				if changed != (before != d.state) {
					t.Errorf("run %d: changed is %v, state went from %s to %s", i, changed, before, d.state)
				}
				if got := "?UDF"[d.state]; got != c.states[i] {
					t.Errorf("run %d: state %c, want %c", i, got, c.states[i])
				}
				if got := d.streak(); got != int(c.streaks[i]-'0') {
					t.Errorf("run %d: streak %d, want %c", i, got, c.streaks[i])
				}
			}
		})
	}
}

// TestDamperProperties compares the damper with the sentences that it stands
// for.
func TestDamperProperties(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		rise, fall := 1+rnd.IntN(5), 1+rnd.IntN(5)
		pass, full := rnd.Float64(), rnd.Float64()*float64(seed%2)
		var d damper
		history, want := "", edge.Unknown
		for step := range 200 {
			result := edge.Down
			if rnd.Float64() < pass {
				result = edge.Up
				if rnd.Float64() < full {
					result = edge.Full
				}
			}
			history += string("?+-o"[result])
			switch {
			case endsIn(history, "-", fall):
				want = edge.Down
			case endsIn(history, "+o", rise) && !want.Alive(), result != edge.Down && endsIn(history, "?+-o"[result:result+1], rise):
				want = result
			}
			d.add(result, rise, fall)
			if d.state != want {
				t.Fatalf("seed %d step %d rise %d fall %d: %s, want %s", seed, step, rise, fall, d.state, want)
			}
			if d.streak() >= max(rise, fall) || d.decided != (want != edge.Unknown) {
				t.Fatalf("seed %d step %d: streak %d, decided %v in state %s", seed, step, d.streak(), d.decided, want)
			}
		}
	}
}

// endsIn says whether the last n results are all of what.
func endsIn(history, what string, n int) bool {
	return len(history) >= n && strings.Trim(history[len(history)-n:], what) == ""
}
