package backbone

import "time"

// burstTime is how much of a rate may come at once. Arrivals are not evenly
// spaced, and a node whose demand begins is known to the others, and so has its
// allowance, only after a second or two: until then it lives on what it saved.
const burstTime = time.Second

// bucket is a token bucket. The zero value has no tokens and no rate.
type bucket struct {
	rate   float64 // tokens a second
	tokens float64
	at     time.Time // when tokens was right
}

func (b *bucket) burst() float64 {
	if b.rate <= 0 {
		return 0
	}
	return max(1, b.rate*burstTime.Seconds())
}

// setRate changes the rate from now on. A bucket that had none begins full: a
// node that may send nothing until then must not wait for its first token.
func (b *bucket) setRate(now time.Time, rate float64) {
	b.refill(now)
	if b.rate <= 0 {
		b.rate = rate
		b.tokens = b.burst()
		return
	}
	b.rate = rate
	b.tokens = min(b.tokens, b.burst())
}

func (b *bucket) refill(now time.Time) {
	if dt := now.Sub(b.at); dt > 0 {
		b.tokens = min(b.burst(), b.tokens+b.rate*dt.Seconds())
		b.at = now
	}
}

// take takes a token if there is one.
func (b *bucket) take(now time.Time) bool {
	b.refill(now)
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
