package promise

import (
	"encoding/json"
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// -schedules 1000000 is the whole simulation: make sim-guard.
var (
	simSchedules = flag.Int("schedules", 20_000, "how many schedules of the guard to simulate")
	simSeed      = flag.Uint64("seed", 0, "seed of the first schedule")
	simOut       = flag.String("sim-guard", "", "file for the figures")
)

// figure is one of a file of out/bench.
type figure struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Against string  `json:"against"`
	Ratio   float64 `json:"ratio"`
}

// TestSimGuard: no schedule breaks a promise, and who may leave gets to it soon.
func TestSimGuard(t *testing.T) {
	var figures []figure
	t.Run("schedules", func(t *testing.T) { figures = append(figures, playAll(t, *simSchedules)...) })
	t.Run("time", func(t *testing.T) { figures = append(figures, timeToLeave(t, *simSchedules/200)...) })
	if *simOut == "" {
		return
	}
	b, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*simOut, append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// sums is what all schedules together amount to.
type sums struct {
	withdrawals, steps, violations atomic.Int64
	corners                        [corners]atomic.Int64

	mu    sync.Mutex
	first map[string]uint64 // a seed for each kind of violation
}

// playAll plays n schedules with every kind of fault.
func playAll(t *testing.T, n int) []figure {
	var next atomic.Uint64
	var done sync.WaitGroup
	all := &sums{first: map[string]uint64{}}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a schedule leaves little behind
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		done.Go(func() {
			for i := next.Add(1) - 1; i < uint64(n); i = next.Add(1) - 1 {
				all.add(*simSeed+i, play(randomPlan(*simSeed+i), none, ""))
			}
		})
	}
	done.Wait()
	took := time.Since(began)
	for kind, seed := range all.first {
		report(t, kind, seed)
	}
	if all.withdrawals.Load() < int64(n) {
		t.Errorf("only %d withdrawals: the schedules prove nothing", all.withdrawals.Load())
	}
	if *simCorner < 0 {
		all.checkCorners(t, n)
	}
	t.Logf("%d schedules, %d events, %d withdrawals, %d violations, %.0f schedules a second",
		n, all.steps.Load(), all.withdrawals.Load(), all.violations.Load(), float64(n)/took.Seconds())
	return []figure{
		{"schedules", float64(n), "1", "", 0},
		{"schedules a second", float64(n) / took.Seconds(), "1/s", "", 0},
		{"withdrawals", float64(all.withdrawals.Load()), "1", "", 0},
		{"violations", float64(all.violations.Load()), "1", "", 0},
	}
}

func (s *sums) add(seed uint64, w *world) {
	s.withdrawals.Add(int64(w.withdrawals))
	s.steps.Add(int64(w.steps))
	for c := range corners {
		if bit(w.met, int(c)) {
			s.corners[c].Add(1)
		}
	}
	if w.violation == "" {
		return
	}
	s.violations.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.first[w.violation[:1]]; !ok || seed < old {
		s.first[w.violation[:1]] = seed
	}
}

// report shrinks what has failed, keeps it, and says how to look at it.
func report(t *testing.T, kind string, seed uint64) {
	t.Helper()
	p, what := shrink(randomPlan(seed), none, kind)
	path, err := p.keep(simKept, what)
	if err != nil {
		t.Error(err)
	}
	t.Errorf("seed %d: %s\nkept in guard/promise/%s, replayed by TestKeptPlans, which tells all that happens in it:\n%s", seed, what, path, p)
}

// timeToLeave measures how long a sick site takes to be out, while enough others
// are well and reachable: 12 sites, floor 8, up to 4 of them sick within a second.
func timeToLeave(t *testing.T, n int) (out []figure) {
	for _, c := range []struct {
		name     string
		loss     float64
		p50, p99 time.Duration
	}{{"", 0, time.Second, 4 * time.Second}, {"_loss5", 0.05, 0, 8 * time.Second}} {
		var took []time.Duration
		for i := range max(n, 100) {
			p := calmPlan(uint64(i), 12, 8)
			p.Loss, p.DelayMin, p.DelayMax = c.loss, 10*time.Millisecond, 200*time.Millisecond
			p.sicken(1+i%4, time.Second)
			w := play(p, none, "")
			if w.violation != "" || w.withdrawals != 1+i%4 {
				t.Fatalf("seed %d: %d of %d have left: %s\n%s", i, w.withdrawals, 1+i%4, w.violation, p)
			}
			took = append(took, w.took...)
		}
		slices.Sort(took)
		p50, p99 := took[len(took)/2], took[len(took)*99/100]
		t.Logf("loss %.0f %%: p50 %s p99 %s, at most %s", 100*c.loss, p50, p99, took[len(took)-1])
		if c.p50 > 0 {
			out = append(out, limit("permit_p50"+c.name, p50, c.p50))
			if p50 > c.p50 {
				t.Errorf("loss %.0f %%: p50 %s, want at most %s", 100*c.loss, p50, c.p50)
			}
		}
		out = append(out, limit("permit_p99"+c.name, p99, c.p99))
		if p99 > c.p99 {
			t.Errorf("loss %.0f %%: p99 %s, want at most %s", 100*c.loss, p99, c.p99)
		}
	}
	return out
}

func limit(name string, value, most time.Duration) figure {
	return figure{name, float64(value.Microseconds()) / 1000, "ms", "the limit", value.Seconds() / most.Seconds()}
}

// calmPlan has nothing that goes wrong yet, and the settings that are the default.
func calmPlan(seed uint64, sites, floor int) *plan {
	return &plan{Seed: seed, Sites: sites, Nodes: sites, Nets: 1, For: time.Minute, DelayMax: 50 * time.Millisecond,
		Confs: []conf{{Floor: floor, Lease: 10 * time.Second, Ask: time.Second, BackOff: 500 * time.Millisecond}}}
}

// sicken makes n of the nodes sick, within a time.
func (p *plan) sicken(n int, within time.Duration) {
	d := newDraw(p.Seed)
	for _, node := range d.Perm(p.Nodes)[:n] {
		p.Faults = append(p.Faults, fault{At: d.upTo(within), Kind: faultSick, Node: node, Nets: 1})
	}
}

// TestKeptPlans replays what has failed once, with its seed and with others.
func TestKeptPlans(t *testing.T) {
	files, err := os.ReadDir(simKept)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(f.Name(), ".json"), func(t *testing.T) {
			p, err := readPlan(simKept + "/" + f.Name())
			if err != nil {
				t.Fatal(err)
			}
			for i := range uint64(100) {
				if play(p, none, "").violation != "" {
					w := newWorld(p, none)
					w.trace = t.Logf
					t.Fatalf("seed %d: %s", p.Seed, w.run().violation)
				}
				p.Seed = i
			}
		})
	}
}
