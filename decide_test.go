package edge

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var (
	testPrefix = netip.MustParsePrefix("198.51.100.0/24")
	testNow    = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

func condition(h Health, since time.Duration, why Reason) Condition {
	return Condition{Health: h, Since: testNow.Add(-since), Reason: why}
}

// TestDecide walks the ladder: each row is one prefix at one moment.
func TestDecide(t *testing.T) {
	sick := condition(Sick, time.Second, "web-vip is down")
	drain := &Drain{Reason: "maintenance"}
	for _, tt := range []struct {
		name   string
		facts  Facts
		rung   Rung
		reason string // must be contained in the reason
	}{
		{"boot, first round not over", Facts{Condition: condition(Healthy, 0, "")}, Withheld, "first round"},
		{"boot, healthy", Facts{Settled: true, Condition: condition(Healthy, 0, "")}, Announced, ""},
		{"boot, sick", Facts{Settled: true, Condition: sick}, Withheld, "web-vip is down"},
		{"boot, sick then healthy", Facts{Settled: true, Last: Decision{Rung: Withheld}, Condition: condition(Healthy, 0, "")}, Announced, ""},
		{"boot, unknown", Facts{Settled: true, Condition: Condition{Reason: "web-vip has not run"}}, Withheld, "web-vip has not run"},
		{"restart on the air", Facts{OnAir: true}, Announced, "kept as it was"},
		{"restart on the air, degraded", Facts{OnAir: true, SentDegraded: true}, Degraded, "kept degraded"},
		{"restart on the air, sick", Facts{OnAir: true, Settled: true, Condition: sick}, Leaving, "web-vip is down"},
		{"unknown changes nothing", Facts{OnAir: true, Settled: true, Last: Decision{Rung: Degraded, Reason: "kept"}}, Degraded, "kept"},
		{"unknown keeps up no wish", Facts{OnAir: true, Settled: true, Last: Decision{Rung: LastResort}, Permit: Permit{OK: true}}, Degraded, "health is not known"},
		{"drained while unknown", Facts{OnAir: true, Settled: true, Drain: drain}, Leaving, "drained: maintenance"},
		{"drained while unknown, gone", Facts{Settled: true, Drain: drain, Last: Decision{Rung: Leaving}}, Withdrawn, "drained: maintenance"},
		{"healthy, but no table", Facts{Settled: true, NotReady: "no table", Condition: condition(Healthy, 0, "")}, Withheld, "no table"},
		{"on the air without a table", Facts{OnAir: true, Settled: true, NotReady: "no table", Condition: condition(Healthy, 0, "")}, Announced, ""},
		{"unknown keeps withdrawn", Facts{Settled: true, Last: Decision{Rung: Withdrawn, Reason: "kept"}}, Withdrawn, "kept"},
		{"soft failure", Facts{OnAir: true, Settled: true, Condition: condition(HealthDegraded, 0, "regions is down")}, Degraded, "regions is down"},
		{"hard failure", Facts{OnAir: true, Settled: true, Condition: sick}, Leaving, "web-vip is down"},
		{"refused", Facts{OnAir: true, Settled: true, Condition: sick, Permit: Permit{Refused: true, Reason: "b: draining"}}, LastResort, "may not withdraw: b: draining"},
		{"permitted but still on the air", Facts{OnAir: true, Settled: true, Condition: sick, Permit: Permit{OK: true, Refused: true}}, Leaving, "web-vip"},
		{"withdrawn", Facts{Settled: true, Last: Decision{Rung: Leaving}, Condition: sick}, Withdrawn, "web-vip is down"},
		{"withdrawn, healthy for less than the hold", Facts{Settled: true, Hold: 10 * time.Second, Last: Decision{Rung: Withdrawn}, Condition: condition(Healthy, 9*time.Second, "")}, Withdrawn, "comes back after 10s"},
		{"withdrawn, healthy for the hold", Facts{Settled: true, Hold: 10 * time.Second, Last: Decision{Rung: Withdrawn}, Condition: condition(Healthy, 10*time.Second, "")}, Announced, ""},
		{"withdrawn, only degraded for the hold", Facts{Settled: true, Hold: time.Second, Last: Decision{Rung: Withdrawn}, Condition: condition(HealthDegraded, time.Minute, "soft")}, Degraded, "soft"},
		{"drained", Facts{OnAir: true, Settled: true, Drain: drain, Condition: condition(Healthy, 0, "")}, Leaving, "drained: maintenance"},
		{"drained and gone", Facts{Settled: true, Last: Decision{Rung: Leaving}, Drain: drain, Condition: condition(Healthy, 0, "")}, Withdrawn, "drained: maintenance"},
		{"drained at boot", Facts{Settled: true, Drain: drain, Condition: condition(Healthy, 0, "")}, Withheld, "drained: maintenance"},
		{"withdrawn, and the others have died", Facts{Settled: true, Floor: 1, Last: Decision{Rung: Withdrawn}, Condition: sick}, LastResort, "0 other sites announce it, and 1 must"},
		{"sick since the boot, and nobody announces", Facts{Settled: true, Floor: 1, Last: Decision{Rung: Withheld}, Condition: sick}, LastResort, "announced all the same"},
		{"sick since the boot, nobody heard yet", Facts{Settled: true, Floor: 1, Others: -1, Condition: sick}, Withheld, "web-vip is down"},
		{"withdrawn a moment ago, and the others are not heard of yet", Facts{Settled: true, Floor: 1, Last: Decision{Rung: Withdrawn, Since: testNow.Add(-hearsay + 1)}, Condition: sick}, Withdrawn, "web-vip is down"},
		{"withdrawn just now, and the others are not heard of yet", Facts{Settled: true, Floor: 1, Last: Decision{Rung: LastResort, Since: testNow.Add(-time.Hour)}, Condition: sick}, Withdrawn, "web-vip is down"},
		{"withdrawn, and enough others announce", Facts{Settled: true, Floor: 1, Others: 1, Last: Decision{Rung: Withdrawn}, Condition: sick}, Withdrawn, "web-vip is down"},
		{"drained and sick, and the others have died", Facts{Settled: true, Floor: 1, Last: Decision{Rung: Withdrawn}, Drain: drain, Condition: sick}, Withdrawn, "web-vip is down"},
		{"drained, and the others have died", Facts{Settled: true, Floor: 1, Last: Decision{Rung: Withdrawn}, Drain: drain, Condition: condition(Healthy, 0, "")}, Withdrawn, "drained"},
		{"drained, the traffic moves first", Facts{OnAir: true, Settled: true, Drain: drain, DrainTime: time.Minute, Condition: condition(Healthy, 0, "")}, Draining, "drained: maintenance"},
		{"drained, the traffic still moves", Facts{OnAir: true, Settled: true, Drain: drain, DrainTime: time.Minute, Last: Decision{Rung: Draining, Since: testNow.Add(-59 * time.Second)}, Condition: condition(Healthy, 0, "")}, Draining, "drained"},
		{"drained, the time is over", Facts{OnAir: true, Settled: true, Drain: drain, DrainTime: time.Minute, Last: Decision{Rung: Draining, Since: testNow.Add(-time.Minute)}, Condition: condition(Healthy, 0, "")}, Leaving, "drained"},
		{"drained, the traffic has gone", Facts{OnAir: true, Settled: true, Drain: drain, DrainTime: time.Minute, Quiet: true, Last: Decision{Rung: Draining, Since: testNow}, Condition: condition(Healthy, 0, "")}, Leaving, "drained"},
		{"drained and asking, refused", Facts{OnAir: true, Settled: true, Drain: drain, DrainTime: time.Minute, Last: Decision{Rung: Leaving}, Permit: Permit{Refused: true, Reason: "b"}, Condition: condition(Healthy, 0, "")}, LastResort, "may not withdraw: b"},
		{"sick, and the traffic is given time", Facts{OnAir: true, Settled: true, SickDrainTime: time.Minute, Condition: sick}, Draining, "web-vip is down"},
		{"sick, the time is over", Facts{OnAir: true, Settled: true, SickDrainTime: time.Minute, Last: Decision{Rung: Draining, Since: testNow.Add(-time.Minute)}, Condition: sick}, Leaving, "web-vip is down"},
		{"sick, in the time of a drain", Facts{OnAir: true, Settled: true, DrainTime: time.Minute, Condition: sick}, Leaving, "web-vip is down"},
		{"sick while it drains", Facts{OnAir: true, Settled: true, Drain: drain, DrainTime: time.Minute, Last: Decision{Rung: Draining, Since: testNow}, Condition: sick}, Leaving, "web-vip is down"},
		{"sick too often", Facts{OnAir: true, Settled: true, TooOften: "withdrawn 3 times", Condition: sick}, Degraded, "web-vip is down; withdrawn 3 times"},
		{"drained, however often it was sick", Facts{OnAir: true, Settled: true, TooOften: "withdrawn 3 times", Drain: drain, Condition: condition(Healthy, 0, "")}, Leaving, "drained: maintenance"},
		{"drained, and sick too often", Facts{OnAir: true, Settled: true, TooOften: "withdrawn 3 times", Drain: drain, Condition: sick}, Leaving, "web-vip is down"},
		{"sick too often, but asking already", Facts{OnAir: true, Settled: true, TooOften: "withdrawn 3 times", Last: Decision{Rung: Leaving}, Condition: sick}, Leaving, "web-vip is down"},
		{"withdrawn, well, and no table", Facts{Settled: true, NotReady: "no table", Last: Decision{Rung: Withdrawn}, Condition: condition(Healthy, time.Hour, "")}, Withdrawn, "no table"},
		{"unconditional, and no table", Facts{Unconditional: true, NotReady: "no table"}, Withheld, "no table"},
		{"full", Facts{OnAir: true, Settled: true, Condition: condition(HealthFull, 0, "web is full")}, Announced, "web is full; it stays"},
		{"full, and to degrade", Facts{OnAir: true, Settled: true, WhenFull: DegradeFull, Condition: condition(HealthFull, 0, "web is full")}, Degraded, "web is full"},
		{"full is well enough to come back", Facts{Settled: true, Hold: time.Second, Last: Decision{Rung: Withdrawn}, Condition: condition(HealthFull, time.Minute, "web is full")}, Announced, "web is full"},
		{"well again, not for long", Facts{OnAir: true, Settled: true, Hold: time.Minute, Last: Decision{Rung: Degraded, PlainSince: testNow.Add(-59 * time.Second)}, Condition: condition(Healthy, 0, "")}, Degraded, "announced at its best after 1m0s"},
		{"well again for the hold", Facts{OnAir: true, Settled: true, Hold: time.Minute, Last: Decision{Rung: LastResort, PlainSince: testNow.Add(-time.Minute)}, Condition: condition(Healthy, 0, "")}, Announced, ""},
		{"well again, but restless", Facts{OnAir: true, Settled: true, Restless: "became worse 6 times", Last: Decision{Rung: Degraded, PlainSince: testNow.Add(-time.Hour)}, Condition: condition(Healthy, 0, "")}, Degraded, "became worse 6 times"},
		{"the order to drain is taken back", Facts{OnAir: true, Settled: true, Hold: time.Minute, Last: Decision{Rung: Draining, PlainSince: testNow.Add(-time.Hour)}, Condition: condition(Healthy, 0, "")}, Announced, ""},
		{"unconditional, at the boot", Facts{Unconditional: true}, Announced, "unconditional"},
		{"unconditional and sick", Facts{Unconditional: true, OnAir: true, Settled: true, Condition: sick}, Announced, "unconditional"},
		{"unconditional and drained", Facts{Unconditional: true, OnAir: true, Settled: true, Drain: drain, Condition: sick}, Leaving, "drained"},
		{"announced elsewhere only", Facts{Elsewhere: "announced at a only", Settled: true, Condition: condition(Healthy, 0, "")}, Withheld, "announced at a only"},
		{"announced elsewhere only, and still here", Facts{Elsewhere: "announced at a only", OnAir: true, Settled: true, Condition: condition(Healthy, 0, "")}, Leaving, "announced at a only"},
		{"withdrawn, and a worse site may not leave", Facts{Settled: true, Others: 3, Worse: Worse{"b", 10}, Last: Decision{Rung: Withdrawn}, Condition: sick}, LastResort, "back so that b, which is worse and may not leave, can go"},
		{"withdrawn a moment ago, and a worse site may not leave", Facts{Settled: true, Others: 3, Worse: Worse{"b", 10}, Now: testNow, Last: Decision{Rung: Withdrawn, Since: testNow.Add(-time.Second)}, Condition: sick}, Withdrawn, "web-vip is down"},
		{"withdrawn, and a site as sick may not leave", Facts{Settled: true, Others: 3, Worse: Worse{"b", 2}, Last: Decision{Rung: Withdrawn}, Condition: sick}, Withdrawn, "web-vip is down"},
		{"withdrawn and drained, and a worse site may not leave", Facts{Settled: true, Others: 3, Drain: drain, Worse: Worse{"b", 10}, Last: Decision{Rung: Withdrawn}, Condition: sick}, Withdrawn, "web-vip is down"},
		{"withheld since the boot, and a worse site may not leave", Facts{Settled: true, Others: 3, Worse: Worse{"b", 10}, Last: Decision{Rung: Withheld}, Condition: sick}, Withheld, "web-vip is down"},
		{"withdrawn, well, in its hold, and a sick site may not leave", Facts{Settled: true, Hold: time.Minute, Worse: Worse{"b", 2}, Last: Decision{Rung: Withdrawn}, Condition: condition(Healthy, time.Second, "")}, Degraded, "back so that b"},
		{"the same, and no table", Facts{Settled: true, Hold: time.Minute, NotReady: "no table", Worse: Worse{"b", 2}, Last: Decision{Rung: Withdrawn}, Condition: condition(Healthy, time.Second, "")}, Withdrawn, "comes back after 1m0s"},
		{"well, in its hold, and one that is drained may not leave", Facts{Settled: true, Hold: time.Minute, Worse: Worse{"b", 1}, Last: Decision{Rung: Withdrawn}, Condition: condition(Healthy, time.Second, "")}, Withdrawn, "comes back after 1m0s"},
		{"a suspect check, on the air", Facts{OnAir: true, Settled: true, Last: Decision{Rung: Leaving}, Condition: Condition{Health: HealthDegraded, Doubtful: true, Reason: "common cause: x"}}, Degraded, "common cause: x"},
		{"a check that is suspect for silence, off the air", Facts{Settled: true, Others: 3, Last: Decision{Rung: Withdrawn, WellSince: testNow.Add(-time.Hour)}, Condition: Condition{Health: HealthDegraded, Doubtful: true, Severity: 4, Reason: "common cause: x"}}, Withdrawn, "common cause: x"},
		{"a check that is suspect for silence, at the boot", Facts{Settled: true, Others: 3, Condition: Condition{Health: HealthDegraded, Doubtful: true, Reason: "common cause: x"}}, Withheld, "common cause: x"},
		{"a check that is suspect for failures, off the air, after the hold", Facts{Settled: true, Hold: time.Second, Last: Decision{Rung: Withdrawn}, Condition: condition(HealthDegraded, time.Minute, "common cause: x")}, Degraded, "common cause: x"},
		{"sick outranks drained", Facts{OnAir: true, Settled: true, Drain: drain, Condition: sick}, Leaving, "web-vip is down"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.facts.Now = testNow
			d := Decide(testPrefix, tt.facts)
			if d.Rung != tt.rung || !strings.Contains(string(d.Reason), tt.reason) {
				t.Errorf("Decide = %s (%q), want %s with %q", d.Rung, d.Reason, tt.rung, tt.reason)
			}
			if d.Rung != Announced && d.Reason == "" {
				t.Errorf("rung %s has no reason", d.Rung)
			}
		})
	}
}

// TestWishOfDecision: those who are asked hear why it wants to leave, not what the last
// of them has answered.
func TestWishOfDecision(t *testing.T) {
	f := Facts{Now: testNow, OnAir: true, Settled: true, Others: 3, Last: Decision{Rung: LastResort}, Condition: condition(Sick, time.Minute, "web is down"),
		Permit: Permit{Refused: true, Reason: "0 of 1; a1: no answer"}}
	d := Decide(netip.MustParsePrefix("192.0.2.0/24"), f)
	if d.Rung != LastResort || d.Reason != "web is down; may not withdraw: 0 of 1; a1: no answer" || d.Wish() != "web is down" {
		t.Errorf("%s: %q wishes %q", d.Rung, d.Reason, d.Wish())
	}
	if d := (Decision{Reason: "drained: work"}); d.Wish() != d.Reason {
		t.Errorf("%q wishes %q", d.Reason, d.Wish())
	}
}

// TestDecideNeverWithdrawsOnAir tries every combination of facts: whatever they
// are, a prefix that is on the air stays on the air, since only the act of
// withdrawing under a permit takes it off.
func TestDecideNeverWithdrawsOnAir(t *testing.T) {
	rungs := []Rung{"", Withheld, Announced, Degraded, Draining, Leaving, LastResort, Withdrawn}
	drains := []*Drain{nil, {Reason: "x"}}
	n := 0
	for _, last := range rungs {
		for h := range Sick + 1 {
			for bits := range 512 {
				for _, dr := range drains {
					f := Facts{
						Now: testNow, Last: Decision{Rung: last}, OnAir: true, Hold: time.Minute, Drain: dr,
						Settled: bits&1 != 0, SentDegraded: bits&2 != 0,
						Permit:    Permit{OK: bits&4 != 0, Refused: bits&8 != 0},
						Condition: Condition{Health: h, Since: testNow},
						Quiet:     bits&16 != 0, Unconditional: bits&32 != 0,
					}
					if bits&64 != 0 {
						f.TooOften, f.Restless = "often", "restless"
					}
					if bits&128 != 0 {
						f.Elsewhere = "elsewhere"
					}
					if bits&256 != 0 {
						f.DrainTime, f.SickDrainTime, f.WhenFull = time.Minute, time.Minute, DegradeFull
					}
					n++
					if d := Decide(testPrefix, f); !d.Rung.OnAir() {
						t.Fatalf("Decide(%+v) = %s", f, d.Rung)
					}
				}
			}
		}
	}
	if want := len(rungs) * int(Sick+1) * 512 * len(drains); n != want {
		t.Fatalf("tried %d combinations, want %d", n, want)
	}
}

// TestDecideHoldOverFlaps: a soft dependency that flaps faster than the hold
// must not keep a withdrawn site away, and a relapse starts the hold again.
func TestDecideHoldOverFlaps(t *testing.T) {
	f := Facts{Now: testNow, Settled: true, Hold: 10 * time.Second, Last: Decision{Rung: Withdrawn}}
	for i := range 11 {
		f.Now = testNow.Add(time.Duration(i) * time.Second)
		f.Condition = Condition{Health: Healthy, Since: f.Now}
		if i%2 == 1 {
			f.Condition = Condition{Health: HealthDegraded, Since: f.Now, Reason: "soft"}
		}
		f.Last = Decide(testPrefix, f)
		if onAir := f.Last.Rung.OnAir(); onAir != (i == 10) {
			t.Fatalf("after %d s: %s", i, f.Last.Rung)
		}
	}
	f.Condition = Condition{Health: Sick, Since: f.Now, Reason: "down"}
	f.Last.Rung = Withdrawn
	if f.Last = Decide(testPrefix, f); !f.Last.WellSince.IsZero() {
		t.Error("a sick prefix counts as well")
	}
}

// TestDecideSince keeps the time of the rung while it does not change.
func TestDecideSince(t *testing.T) {
	earlier := testNow.Add(-time.Hour)
	f := Facts{Now: testNow, OnAir: true, Settled: true, Condition: condition(Healthy, 0, ""), Last: Decision{Rung: Announced, Since: earlier}}
	if d := Decide(testPrefix, f); !d.Since.Equal(earlier) {
		t.Errorf("unchanged rung: since %v, want %v", d.Since, earlier)
	}
	f.Condition = condition(Sick, 0, "x")
	if d := Decide(testPrefix, f); !d.Since.Equal(testNow) {
		t.Errorf("changed rung: since %v, want %v", d.Since, testNow)
	}
}

// TestDecideProperties draws facts at random and holds three sentences against
// the decisions: no prefix with a failed hard dependency is plainly announced;
// what is not known changes nothing; a better condition never gives a worse rung.
func TestDecideProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 2))
	badness := map[Rung]int{Announced: 0, Degraded: 1, Draining: 2, Leaving: 3, LastResort: 3, Withdrawn: 4, Withheld: 4}
	rungs := []Rung{"", Withheld, Announced, Degraded, Draining, Leaving, LastResort, Withdrawn}
	for range 200_000 {
		f := Facts{
			Now: testNow, OnAir: rng.IntN(2) == 0, Settled: rng.IntN(4) > 0, SentDegraded: rng.IntN(2) == 0,
			Permit: Permit{OK: rng.IntN(2) == 0, Refused: rng.IntN(2) == 0}, Quiet: rng.IntN(2) == 0,
			Hold: time.Duration(rng.IntN(3)) * time.Minute, DrainTime: time.Duration(rng.IntN(2)) * time.Minute, SickDrainTime: time.Duration(rng.IntN(2)) * time.Minute,
			Floor: rng.IntN(3), Others: rng.IntN(4) - 1,
			Last: Decision{
				Rung: rungs[rng.IntN(len(rungs))], Since: testNow.Add(-time.Duration(rng.IntN(200)) * time.Second), Reason: "before",
				WellSince: testNow.Add(-time.Duration(rng.IntN(200)) * time.Second), PlainSince: testNow.Add(-time.Duration(rng.IntN(200)) * time.Second),
			},
			WhenFull: []FullPolicy{SpreadFull, DegradeFull}[rng.IntN(2)],
		}
		if rng.IntN(4) == 0 {
			f.Drain = &Drain{Reason: "drain"}
		}
		if rng.IntN(4) == 0 {
			f.TooOften = "too often"
		}
		at := func(h Health) Decision {
			f.Condition = Condition{Health: h, Since: testNow.Add(-time.Hour), Reason: "cause"}
			return Decide(testPrefix, f)
		}
		if d := at(Sick); d.Rung == Announced && f.Settled {
			t.Fatalf("sick and plainly announced: %+v", f)
		}
		worst := 0
		for _, h := range []Health{Healthy, HealthFull, HealthDegraded, Sick} {
			d := at(h)
			if b := badness[d.Rung]; b < worst && f.Settled && !(d.Rung == LastResort && !f.OnAir) && !(h == Sick && f.Drain != nil) && (f.TooOften == "" || f.Drain != nil) {
				t.Fatalf("%s stands at %s, better than what is healthier: %+v", h, d.Rung, f)
			} else {
				worst = max(worst, b)
			}
		}
		d := at(HealthUnknown)
		if f.Drain == nil && d.Rung.OnAir() != f.OnAir {
			t.Fatalf("unknown health moved the prefix to %s: %+v", d.Rung, f)
		}
		if f.Drain == nil && f.OnAir && (f.Last.Rung == Announced || f.Last.Rung == Degraded) && d.Rung != f.Last.Rung {
			t.Fatalf("unknown health changed %s to %s", f.Last.Rung, d.Rung)
		}
	}
}

// TestSeverityOf: the more of its services are down the sicker, and any sickness is
// worse than an order.
func TestSeverityOf(t *testing.T) {
	for _, c := range []struct{ down, of, want int }{
		{1, 1, 10}, {0, 0, 10}, {1, 2, 6}, {1, 100, 2}, {99, 100, 9}, {100, 100, 10}, {3, 4, 8}, {5, 4, 10},
	} {
		if got := SeverityOf(c.down, c.of); got != c.want {
			t.Errorf("%d of %d: %d, want %d", c.down, c.of, got, c.want)
		}
	}
	for of := 1; of < 40; of++ {
		for down := 1; down <= of; down++ {
			if s := SeverityOf(down, of); s <= SeverityDrain || s > SeverityDown || down > 1 && s < SeverityOf(down-1, of) {
				t.Fatalf("%d of %d: %d", down, of, s)
			}
		}
	}
}

// TestSeverityRanks: what the condition says is what the guard is told, and what is
// claimed after the withdrawal.
func TestSeverityRanks(t *testing.T) {
	c := condition(Sick, time.Second, "web-vip is down")
	c.Severity = 7
	for _, f := range []Facts{
		{OnAir: true, Settled: true, Condition: c},
		{OnAir: true, Settled: true, Condition: c, Permit: Permit{Refused: true}},
		{OnAir: true, Settled: true, Condition: c, SickDrainTime: time.Minute},
		{Settled: true, Last: Decision{Rung: Leaving}, Condition: c},
	} {
		f.Now = testNow
		if d := Decide(testPrefix, f); d.Severity != 7 {
			t.Errorf("%s has severity %d", d.Rung, d.Severity)
		}
	}
}
