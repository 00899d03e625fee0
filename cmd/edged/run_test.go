package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// TestSleepEndsWithADrain: the guard is asked when the time to drain is over, not up to
// a beat later.
func TestSleepEndsWithADrain(t *testing.T) {
	now := time.Now()
	c := &edge.Config{}
	c.Fleet.Guard.DrainTime, c.Fleet.Guard.SickDrainTime = 10*time.Second, time.Second
	at := func(rung edge.Rung, severity int, ago time.Duration) edge.Decision {
		return edge.Decision{Rung: rung, Severity: severity, Since: now.Add(-ago)}
	}
	sick, order := edge.SeveritySick, edge.SeverityDrain
	for name, k := range map[string]struct {
		d    []edge.Decision
		want time.Duration
	}{
		"nothing":       {nil, beat},
		"begins":        {[]edge.Decision{at(edge.Draining, sick, 0)}, beat},
		"ends soon":     {[]edge.Decision{at(edge.Draining, sick, 900*time.Millisecond)}, 100 * time.Millisecond},
		"the first one": {[]edge.Decision{at(edge.Draining, sick, 900*time.Millisecond), at(edge.Draining, order, 9990*time.Millisecond)}, 10 * time.Millisecond},
		"of an order":   {[]edge.Decision{at(edge.Draining, order, 900*time.Millisecond)}, beat},
		"is over":       {[]edge.Decision{at(edge.Draining, sick, time.Second)}, beat},
		"does not":      {[]edge.Decision{at(edge.Leaving, sick, 900*time.Millisecond)}, beat},
	} {
		l := newLoop(nil, nil)
		for i, d := range k.d {
			l.last[[]netip.Prefix{p4, p6}[i]] = d
		}
		if got := l.sleep(c, now); got != k.want {
			t.Errorf("%s: %s, want %s", name, got, k.want)
		}
	}
}
