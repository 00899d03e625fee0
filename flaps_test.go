package edge

import (
	"strings"
	"testing"
	"time"
)

func TestHoldGrowsAndDecays(t *testing.T) {
	h := HealthConfig{Hold: 10 * time.Second, HoldMax: time.Minute, HoldHalfLife: 15 * time.Minute}
	var f Flaps
	if got := f.Hold(h); got != 10*time.Second {
		t.Errorf("never withdrawn: hold %s, want the configured one", got)
	}
	for i, want := range []time.Duration{10, 20, 40, 60, 60} {
		if i%2 == 1 { // an outage that was announced as such first counts as one
			f = f.Worsen(testNow, h.HoldHalfLife)
		}
		f = f.Withdraw(testNow, h.HoldHalfLife, i%2 == 1)
		if got := f.Hold(h).Round(time.Millisecond); got != want*time.Second {
			t.Errorf("after %d withdrawals: hold %s, want %s", i+1, got, want*time.Second)
		}
	}
	// The hold does not change by itself: it is in reasons.
	later := f.Withdraw(testNow.Add(15*time.Minute), h.HoldHalfLife, false)
	if h.HoldMax = time.Hour; later.Hold(h).Round(time.Second) != 57*time.Second { // 10 s x 2^(5/2+1-1)
		t.Errorf("a half-life later: hold %s", later.Hold(h))
	}
	if got := f.Withdraw(testNow.Add(24*time.Hour), h.HoldHalfLife, false).Hold(h).Round(time.Second); got != 10*time.Second {
		t.Errorf("a day later: hold %s", got)
	}
	if got := f.Withdraw(testNow.Add(-time.Hour), h.HoldHalfLife, false).Hold(h); got < f.Hold(h) {
		t.Errorf("with the clock set back: hold %s", got)
	}
	h.HoldMax = 0
	if got := f.Hold(h); got != h.Hold {
		t.Errorf("without a maximum: hold %s, want the configured one", got)
	}
}

func TestTooOften(t *testing.T) {
	var f Flaps
	for i := range 3 {
		at := testNow.Add(time.Duration(i) * 10 * time.Minute)
		if why := f.TooOften(at, 3); why != "" {
			t.Fatalf("after %d withdrawals: %s", i, why)
		}
		f = f.Withdraw(at, time.Minute, false)
	}
	at := testNow.Add(59 * time.Minute)
	if why := f.TooOften(at, 3); !strings.Contains(string(why), "withdrawn 3 times within an hour already: degraded instead, until 04:04:05") {
		t.Errorf("in the hour: %q", why)
	}
	if why := f.TooOften(testNow.Add(time.Hour), 3); why != "" {
		t.Errorf("after the hour: %q", why)
	}
	if why := f.TooOften(at, 0); why != "" {
		t.Errorf("without a limit: %q", why)
	}
	for range 6 {
		f = f.Worsen(at, time.Minute)
	}
	if why := f.Restless(at, 3); !strings.Contains(string(why), "became worse 6 times") {
		t.Errorf("restless: %q", why)
	}
	if f.Restless(at, 4) != "" || f.Restless(at.Add(time.Hour), 3) != "" {
		t.Error("restless beyond its limits")
	}
}

// TestFlapsAreBounded: whoever flaps for days costs no memory.
func TestFlapsAreBounded(t *testing.T) {
	var f Flaps
	for i := range 10_000 {
		at := testNow.Add(time.Duration(i) * 10 * time.Millisecond)
		f = f.Withdraw(at, time.Minute, false).Worsen(at, time.Minute)
	}
	if len(f.Withdrawn) > maxRemembered || len(f.Worsened) > maxRemembered {
		t.Errorf("remembers %d and %d", len(f.Withdrawn), len(f.Worsened))
	}
}
