package bfd

import (
	"math/rand/v2"
	"testing"
	"time"
)

// line2 is two machines, and between them a way with a delay and losses. Its
// clock is a number: minutes of BFD take milliseconds.
type line2 struct {
	t      *testing.T
	rng    *rand.Rand
	now    time.Time
	m      [2]*machine
	flight []flying
	loss   float64
	cut    [2]bool // in the direction to m[i]
	sent   [2]int
	gap    [2]time.Duration // the shortest between two periodic packets while up
	last   [2]time.Time
}

type flying struct {
	at time.Time
	to int
	p  packet
}

func newLine2(t *testing.T, seed uint64, a, b timers) *line2 {
	l := &line2{t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: epoch()}
	for i, want := range []timers{a, b} {
		l.m[i] = newMachine(l.now, uint32(i+1), want, l.rng.Float64)
		l.gap[i] = time.Hour
	}
	return l
}

func (l *line2) send(from int, answer bool) {
	m := l.m[from]
	if !answer {
		if m.state == Up && !l.last[from].IsZero() {
			l.gap[from] = min(l.gap[from], l.now.Sub(l.last[from]))
		}
		l.last[from] = time.Time{}
		if m.state == Up {
			l.last[from] = l.now
		}
	}
	p := m.compose(l.now, answer)
	if p.poll && p.final {
		l.t.Fatal("poll and final in one packet")
	}
	if m.state != Up && p.minTx < time.Second {
		l.t.Fatalf("%s, and a DesiredMinTx of %s", m.state, p.minTx)
	}
	l.sent[from]++
	if l.cut[1-from] || l.rng.Float64() < l.loss {
		return
	}
	l.flight = append(l.flight, flying{l.now.Add(time.Duration(l.rng.IntN(2000)) * time.Microsecond), 1 - from, p})
}

// pass lets d pass in steps of a millisecond.
func (l *line2) pass(d time.Duration) {
	for end := l.now.Add(d); l.now.Before(end); l.now = l.now.Add(ms) {
		kept := l.flight[:0]
		var landed []flying
		for _, f := range l.flight {
			if f.at.After(l.now) {
				kept = append(kept, f)
			} else {
				landed = append(landed, f)
			}
		}
		l.flight = kept
		for _, f := range landed {
			if f.p.yours != 0 && f.p.yours != l.m[f.to].local {
				continue
			}
			if r := l.m[f.to].receive(l.now, f.p); r != silence {
				l.send(f.to, r == final)
			}
		}
		for i, m := range l.m {
			if m.expire(l.now) || m.due(l.now) {
				l.send(i, false)
			}
		}
	}
}

// TestPair: any two ends come up within seconds, agree on their timers, keep
// the pace, and see each other's death in a detection time; whatever happened
// before.
func TestPair(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 2))
		pick := func() timers {
			return timers{time.Duration(50+rng.IntN(400)) * ms, time.Duration(50+rng.IntN(400)) * ms, uint8(2 + rng.IntN(4))}
		}
		a, b := pick(), pick()
		l := newLine2(t, seed, a, b)
		// Some disorder first.
		l.loss = 0.4
		for range rng.IntN(5) {
			l.cut = [2]bool{rng.IntN(3) == 0, rng.IntN(3) == 0}
			a = pick()
			l.m[0].set(a)
			l.m[1].admin(l.now, rng.IntN(4) == 0)
			l.pass(time.Duration(rng.IntN(5000)) * ms)
		}
		l.loss, l.cut = 0, [2]bool{}
		l.m[1].admin(l.now, false)
		l.pass(15 * time.Second)
		for i, m := range l.m {
			far := l.m[1-i]
			tx := max(m.want.minTx, far.want.minRx)
			if m.state != Up || m.interval() != tx || far.detection() != time.Duration(m.want.multiplier)*tx || m.poll {
				t.Fatalf("seed %d, end %d: %s, sends every %s (want %s), far end detects in %s, poll %v", seed, i, m.state, m.interval(), tx, far.detection(), m.poll)
			}
		}
		flaps := l.m[0].flaps + l.m[1].flaps
		l.sent, l.gap, l.last = [2]int{}, [2]time.Duration{time.Hour, time.Hour}, [2]time.Time{}
		l.pass(20 * time.Second)
		for i, m := range l.m {
			// 75 to 100 % of the interval: on average 87.5 %; 1 ms is the step.
			want := float64(20*time.Second) / (0.875 * float64(m.interval()))
			if got := float64(l.sent[i]); got < want*0.93 || got > want*1.07 || l.gap[i] < m.interval()*3/4 {
				t.Errorf("seed %d, end %d: %v packets in 20 s, want about %.0f; the shortest gap is %s of %s", seed, i, got, want, l.gap[i], m.interval())
			}
		}
		if n := l.m[0].flaps + l.m[1].flaps; n != flaps {
			t.Fatalf("seed %d: %d flaps at rest", seed, n-flaps)
		}
		// One way dies: the end that hears nothing is down by its detection
		// time, the other at once after, by its word.
		l.cut[0] = true
		detect := l.m[0].detection()
		l.pass(detect + 10*ms)
		if l.m[0].state != Down || l.m[0].diag != DiagExpired || l.m[1].state == Up || l.m[1].diag != DiagNeighbour || !l.m[0].lost || !l.m[1].lost {
			t.Errorf("seed %d: after a one-way cut %s (%s) and %s (%s)", seed, l.m[0].state, l.m[0].diag, l.m[1].state, l.m[1].diag)
		}
	}
}
