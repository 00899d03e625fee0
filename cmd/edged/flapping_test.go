package main

import (
	"encoding/json"
	"flag"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// flapRig is a day of a flapping dependency, in virtual time.
type flapRig struct {
	*rig
	withdrawn []time.Time // of p4
	updates   []time.Time // changes of how p4 is announced, without those
	returns   int
}

func newFlapRig(t *testing.T, class edge.NeedClass) *flapRig {
	r := newRig(t)
	c := *r.in.config
	c.Fleet.Health.Needs = []edge.Need{{On: "web", Class: class}}
	c.Fleet.Health.Hold, c.Fleet.Health.HoldMax, c.Fleet.Health.HoldHalfLife = 10*time.Second, time.Hour, 15*time.Minute
	c.Fleet.Guard.MaxCycles = 3
	r.in.config = &c
	r.guard.permit = edge.Permit{OK: true}
	return &flapRig{rig: r}
}

// step notes what the routers would see of it.
func (r *flapRig) step(t *testing.T, after time.Duration) {
	was, on := r.announced()
	r.rig.step(t, after)
	is, still := r.announced()
	switch {
	case on && !still:
		r.withdrawn = append(r.withdrawn, r.in.now)
	case !on && still:
		r.returns++
	case on && still && was.Degrade != is.Degrade:
		r.updates = append(r.updates, r.in.now)
	}
}

func (r *flapRig) announced() (edge.Announcement, bool) {
	for _, a := range r.speaker.held {
		if a.Net == p4 {
			return a, true
		}
	}
	return edge.Announcement{}, false
}

// most returns how many of the times lie within one hour at most.
func most(list []time.Time) int {
	n := 0
	for i := range list {
		j := i
		for j < len(list) && list[j].Sub(list[i]) < time.Hour {
			j++
		}
		n = max(n, j-i)
	}
	return n
}

// -hours 24 -patterns 99 is the whole simulation: make sim-flapping.
var (
	flapHours    = flag.Int("hours", 4, "hours of flapping to simulate")
	flapPatterns = flag.Int("patterns", 2, "how many patterns of flapping to simulate")
	flapOut      = flag.String("flapping", "", "file for the figures")
)

// flapPattern says at which seconds a dependency is down.
type flapPattern struct {
	name string
	down func(sec int) bool
}

func flapPatternsOf(rng *rand.Rand) []flapPattern {
	every := func(n int) func(int) bool { return func(s int) bool { return s/n%2 == 0 } }
	return []flapPattern{
		{"half a minute", every(30)},
		{"at random", func(int) bool { return rng.IntN(8) == 0 }},
		{"every second", every(1)},
		{"ten seconds", every(10)},
		{"as long as the hold", every(11)},
		{"five minutes", every(300)},
		{"twenty minutes", every(1200)},
		{"one minute in eleven", func(s int) bool { return s/60%11 == 0 }},
		{"rarely", func(int) bool { return rng.IntN(300) == 0 }},
		{"down for good", func(int) bool { return true }},
	}
}

// figure is one of a file of out/bench.
type figure struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Against string  `json:"against"`
	Ratio   float64 `json:"ratio"`
}

// TestDayOfFlapping: whatever a dependency does for a day, the routers see at
// most three withdrawals in any hour and few updates, and the prefix is where it
// should be once the flapping is over.
func TestDayOfFlapping(t *testing.T) {
	const mayWithdraw, mayUpdate = 3, 2*(2*3+3) + 2
	var figures []figure
	patterns := flapPatternsOf(rand.New(rand.NewPCG(24, 60)))
	for _, p := range patterns[:min(*flapPatterns, len(patterns))] {
		for _, class := range []edge.NeedClass{edge.Hard, edge.Soft} {
			r := newFlapRig(t, class)
			for s := range *flapHours * 3600 {
				if p.down(s) {
					r.sick()
				} else {
					r.healthy()
				}
				r.step(t, time.Second)
			}
			t.Logf("%s, %s: %d withdrawals (%d in an hour), %d updates (%d in an hour)", p.name, class, len(r.withdrawn), most(r.withdrawn), len(r.updates), most(r.updates))
			figures = append(figures,
				figure{p.name + ", " + string(class) + ": withdrawals in an hour", float64(most(r.withdrawn)), "1", "the limit", float64(most(r.withdrawn)) / mayWithdraw},
				figure{p.name + ", " + string(class) + ": updates in an hour", float64(most(r.updates)), "1", "the limit", float64(most(r.updates)) / mayUpdate})
			if n := most(r.withdrawn); n > mayWithdraw || class == edge.Soft && n > 0 {
				t.Errorf("%s, %s: %d withdrawals within an hour", p.name, class, n)
			}
			if n := most(r.updates); n > mayUpdate {
				t.Errorf("%s, %s: %d updates within an hour", p.name, class, n)
			}
			r.healthy()
			for range 2 * 3600 {
				r.step(t, time.Second)
			}
			if d := r.loop.last[p4]; d.Rung != edge.Announced {
				t.Errorf("%s, %s: two hours later it stands at %s: %s", p.name, class, d.Rung, d.Reason)
			}
		}
	}
	if *flapOut == "" {
		return
	}
	b, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*flapOut, append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestFlapsOverRestart: a new process knows how often the one before has
// withdrawn.
func TestFlapsOverRestart(t *testing.T) {
	r := newFlapRig(t, edge.Hard)
	var kept flaps
	r.loop.keepFlaps = func(f flaps) { kept = f }
	r.step(t, 0)
	for range 3 {
		r.sick()
		r.step(t, time.Second)
		r.healthy()
		for range 60 {
			r.step(t, time.Second)
		}
	}
	if len(r.withdrawn) != 3 || len(kept[p4].Withdrawn) != 3 {
		t.Fatalf("%d withdrawals, %d kept", len(r.withdrawn), len(kept[p4].Withdrawn))
	}
	next := newLoop(r.speaker, r.guard)
	next.flaps = kept
	r.loop = next
	r.sick()
	r.step(t, time.Second)
	if d := r.loop.last[p4]; d.Rung != edge.Degraded {
		t.Errorf("after the restart the fourth withdrawal stands at %s: %s", d.Rung, d.Reason)
	}
}

// TestDrainTime: a drain is announced with GRACEFUL_SHUTDOWN first, withdrawn
// when the traffic has gone or the time is over, and BFD rests after it.
func TestDrainTime(t *testing.T) {
	r := newRig(t)
	c := *r.in.config
	c.Fleet.Guard.DrainTime = 30 * time.Second
	r.in.config = &c
	quiet := false
	r.in.quiet = func(netip.Prefix) bool { return quiet }
	r.step(t, 0)
	r.guard.permit = edge.Permit{OK: true}
	r.in.drain = func(netip.Prefix) *edge.Drain { return &edge.Drain{Reason: "work"} }
	r.in.resting = true
	r.step(t, time.Second)
	r.want(t, edge.Draining, true)
	for _, a := range r.speaker.held {
		if !a.Degrade || !a.Shutdown {
			t.Errorf("a draining prefix is announced as %+v", a)
		}
	}
	if r.guard.wishes[p4].Want {
		t.Error("the guard is asked before the traffic has moved")
	}
	r.step(t, 29*time.Second)
	r.want(t, edge.Draining, true)
	if r.loop.sent.Speaker.Resting {
		t.Error("BFD rests while the prefixes are announced")
	}
	quiet = true
	r.step(t, 0)
	r.want(t, edge.Withdrawn, false)
	r.step(t, time.Second)
	if !r.loop.sent.Speaker.Resting {
		t.Error("BFD does not rest in a drained node")
	}
}

// TestPrefersInIntent: an order to move traffic changes how a prefix is sent, and
// never makes a degraded one more attractive.
func TestPrefersInIntent(t *testing.T) {
	r := newRig(t)
	c := *r.in.config
	c.Fleet.Prefixes = []edge.Prefix{{Net: p4, Degraded: edge.Attributes{MED: 1000, Prepend: 3}}}
	r.in.config = &c
	r.in.prefers = []edge.Preference{{Sites: []edge.SiteID{"b"}, Prepend: 2, MED: 50, Until: r.in.now.Add(time.Hour), Reason: "load"}}
	r.step(t, 0)
	a := r.speaker.held[0]
	if sent := (edge.Peer{}).Sent(a); sent.Prepend != 2 || sent.MED != 50 || a.Reason == "" {
		t.Errorf("announced as %+v", a)
	}
	a.Degrade = true
	if sent := (edge.Peer{}).Sent(a); sent.Prepend != 5 || sent.MED != 1000 {
		t.Errorf("degraded as %+v", sent)
	}
	n := r.speaker.sets
	r.step(t, renew/4)
	if r.speaker.sets != n {
		t.Error("an unchanged intent was sent again")
	}
	r.in.prefers = nil
	r.step(t, renew/4)
	if a := r.speaker.held[0]; a.More.Prepend != 0 {
		t.Errorf("after the order: %+v", a)
	}
}
