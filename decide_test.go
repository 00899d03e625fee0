package edge

import (
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
		{"withdrawn, and enough others announce", Facts{Settled: true, Floor: 1, Others: 1, Last: Decision{Rung: Withdrawn}, Condition: sick}, Withdrawn, "web-vip is down"},
		{"drained and sick, and the others have died", Facts{Settled: true, Floor: 1, Last: Decision{Rung: Withdrawn}, Drain: drain, Condition: sick}, Withdrawn, "web-vip is down"},
		{"drained, and the others have died", Facts{Settled: true, Floor: 1, Last: Decision{Rung: Withdrawn}, Drain: drain, Condition: condition(Healthy, 0, "")}, Withdrawn, "drained"},
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

// TestDecideNeverWithdrawsOnAir tries every combination of facts: whatever they
// are, a prefix that is on the air stays on the air, since only the act of
// withdrawing under a permit takes it off.
func TestDecideNeverWithdrawsOnAir(t *testing.T) {
	rungs := []Rung{"", Withheld, Announced, Degraded, Leaving, LastResort, Withdrawn}
	drains := []*Drain{nil, {Reason: "x"}}
	n := 0
	for _, last := range rungs {
		for h := range Sick + 1 {
			for bits := range 16 {
				for _, dr := range drains {
					f := Facts{
						Now: testNow, Last: Decision{Rung: last}, OnAir: true, Hold: time.Minute, Drain: dr,
						Settled: bits&1 != 0, SentDegraded: bits&2 != 0,
						Permit:    Permit{OK: bits&4 != 0, Refused: bits&8 != 0},
						Condition: Condition{Health: h, Since: testNow},
					}
					n++
					if d := Decide(testPrefix, f); !d.Rung.OnAir() {
						t.Fatalf("Decide(%+v) = %s", f, d.Rung)
					}
				}
			}
		}
	}
	if want := len(rungs) * int(Sick+1) * 16 * len(drains); n != want {
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
