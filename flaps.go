package edge

import (
	"fmt"
	"math"
	"time"
)

// FlapWindow is the time in which the withdrawals of a prefix are counted.
const FlapWindow = time.Hour

// Flaps remembers how often a prefix was withdrawn, or announced worse, because of
// its health. The zero value is that of one that never was. It is a value: its
// methods return what they change.
type Flaps struct {
	// Penalty grows by one with each withdrawal, by a half with each change for
	// the worse, and decays by half in each half-life (the shape of RFC 2439); it
	// was so much at At.
	Penalty float64   `json:"penalty"`
	At      time.Time `json:"at"`
	// Withdrawn are the last withdrawals, Worsened the last times that the prefix
	// was announced worse; the oldest first, none older than FlapWindow before
	// the last.
	Withdrawn []time.Time `json:"withdrawn,omitempty"`
	Worsened  []time.Time `json:"worsened,omitempty"`
}

// maxRemembered bounds the lists: the configuration allows no more cycles.
const maxRemembered = 2000

// Withdraw returns f with a withdrawal at now. worsened says that it follows a
// change for the worse that was counted: the two are one.
func (f Flaps) Withdraw(now time.Time, halfLife time.Duration, worsened bool) Flaps {
	f.Penalty, f.At = f.decayed(now, halfLife)+1, now
	if worsened {
		f.Penalty -= 0.5
	}
	f.Withdrawn = remember(f.Withdrawn, now)
	return f
}

// Worsen returns f with a change for the worse at now.
func (f Flaps) Worsen(now time.Time, halfLife time.Duration) Flaps {
	f.Penalty, f.At = f.decayed(now, halfLife)+0.5, now
	f.Worsened = remember(f.Worsened, now)
	return f
}

func remember(list []time.Time, now time.Time) []time.Time {
	var out []time.Time
	for _, t := range list {
		if now.Sub(t) < FlapWindow {
			out = append(out, t)
		}
	}
	out = append(out, now)
	return out[max(0, len(out)-maxRemembered):]
}

// decayed is the penalty at now. A clock that was set back decays nothing.
func (f Flaps) decayed(now time.Time, halfLife time.Duration) float64 {
	age := max(0, now.Sub(f.At))
	if f.Penalty == 0 || halfLife <= 0 {
		return f.Penalty
	}
	return f.Penalty * math.Exp2(-float64(age)/float64(halfLife))
}

// Hold returns how long a prefix must be healthy before it comes back: the
// configured time after a first withdrawal, twice as long for each that was not
// forgotten by the last one, at most HoldMax (or Hold, if that is more).
func (f Flaps) Hold(h HealthConfig) time.Duration {
	more := max(0, f.Penalty-1)
	grown := float64(h.Hold) * math.Exp2(more)
	return time.Duration(min(grown, float64(max(h.Hold, h.HoldMax))))
}

// TooOften says why the prefix may not be withdrawn for sickness at now: it has
// been, limit times within the last hour. Empty: it may. A limit below 1 is none.
func (f Flaps) TooOften(now time.Time, limit int) Reason {
	n, oldest := recent(f.Withdrawn, now)
	if limit < 1 || n < limit {
		return ""
	}
	return Reason(fmt.Sprintf("withdrawn %d times within an hour already: degraded instead, until %s",
		n, oldest.Add(FlapWindow).UTC().Format(time.TimeOnly)))
}

// Restless says why the prefix may not be announced at its best at now: it has
// become worse twice as often as limit within the last hour. Empty: it may.
func (f Flaps) Restless(now time.Time, limit int) Reason {
	n, oldest := recent(f.Worsened, now)
	if limit < 1 || n < 2*limit {
		return ""
	}
	return Reason(fmt.Sprintf("became worse %d times within an hour: kept degraded until %s",
		n, oldest.Add(FlapWindow).UTC().Format(time.TimeOnly)))
}

// recent counts the times within the last FlapWindow, and finds the first.
func recent(list []time.Time, now time.Time) (n int, oldest time.Time) {
	for _, t := range list {
		if now.Sub(t) >= FlapWindow || t.After(now) {
			continue
		}
		if n++; oldest.IsZero() {
			oldest = t
		}
	}
	return n, oldest
}
