package health

import (
	"math/rand/v2"
	"testing"

	"github.com/catchment-dev/edge"
)

func TestDamper(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		rise, fall int
		results    string // + pass, - fail
		states     string // after each: ? unknown, U up, D down
		streaks    string // after each
	}{
		{"starts up", 2, 3, "++", "?U", "10"},
		{"starts down", 2, 3, "---", "??D", "120"},
		{"one is enough", 1, 1, "+-+", "UDU", "000"},
		{"undecided while it alternates", 2, 2, "+-+-", "????", "1111"},
		{"one bad run is forgiven", 1, 3, "+--+-", "UUUUU", "01201"},
		{"falls", 1, 3, "+---", "UUUD", "0120"},
		{"rises again", 2, 1, "-+-++", "DDDDU", "01010"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d damper
			for i, r := range c.results {
				before := d.state
				changed := d.add(r == '+', c.rise, c.fall)
				if changed != (before != d.state) {
					t.Errorf("run %d: changed is %v, state went from %s to %s", i, changed, before, d.state)
				}
				if got := "?UD"[d.state]; got != c.states[i] {
					t.Errorf("run %d: state %c, want %c", i, got, c.states[i])
				}
				if got := d.streak(); got != int(c.streaks[i]-'0') {
					t.Errorf("run %d: streak %d, want %c", i, got, c.streaks[i])
				}
			}
		})
	}
}

// TestDamperProperties compares the damper with the sentence that it stands
// for: the state is that of the last rise passes or fall fails in a row.
func TestDamperProperties(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		rise, fall := 1+rnd.IntN(5), 1+rnd.IntN(5)
		pass := rnd.Float64()
		var d damper
		var history []bool
		want := edge.Unknown
		for step := range 200 {
			ok := rnd.Float64() < pass
			history = append(history, ok)
			if lastAre(history, true, rise) {
				want = edge.Up
			}
			if lastAre(history, false, fall) {
				want = edge.Down
			}
			d.add(ok, rise, fall)
			if d.state != want {
				t.Fatalf("seed %d step %d rise %d fall %d: %s, want %s", seed, step, rise, fall, d.state, want)
			}
			if d.streak() >= max(rise, fall) || d.decided != (want != edge.Unknown) {
				t.Fatalf("seed %d step %d: streak %d, decided %v in state %s", seed, step, d.streak(), d.decided, want)
			}
		}
	}
}

func lastAre(history []bool, what bool, n int) bool {
	if len(history) < n {
		return false
	}
	for _, h := range history[len(history)-n:] {
		if h != what {
			return false
		}
	}
	return true
}
