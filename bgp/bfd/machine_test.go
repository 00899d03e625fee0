package bfd

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

const ms = time.Millisecond

// epoch is when the tests of the machine begin: its time is only passed in.
func epoch() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// steady draws no jitter: every interval is shortened by a quarter.
func steady() float64 { return 0 }

func fresh(want timers) *machine { return newMachine(epoch(), 1, want, steady) }

// standard are the timers of the tests' far end and of ours.
func standard() timers { return timers{300 * ms, 300 * ms, 3} }

// heard is a packet of the far end of a fresh machine.
func heard(s State) packet {
	return packet{state: s, multiplier: 3, mine: 2, yours: 1, minTx: 300 * ms, minRx: 300 * ms}
}

// in brings a fresh machine to a state by packets.
func in(t *testing.T, s State) *machine {
	t.Helper()
	m := fresh(standard())
	switch s {
	case AdminDown:
		m.admin(epoch(), true)
	case Init:
		m.receive(epoch(), heard(Down))
	case Up:
		m.receive(epoch(), heard(Init))
	}
	if m.state != s {
		t.Fatalf("the machine is %s, want %s", m.state, s)
	}
	return m
}

// TestTransitions is the table of RFC 5880 section 6.8.6, whole.
func TestTransitions(t *testing.T) {
	for _, c := range []struct {
		in, heard, want State
		diag            Diag
		lost            bool
		reply           reply
	}{
		{AdminDown, AdminDown, AdminDown, DiagAdmin, false, silence},
		{AdminDown, Down, AdminDown, DiagAdmin, false, silence},
		{AdminDown, Init, AdminDown, DiagAdmin, false, silence},
		{AdminDown, Up, AdminDown, DiagAdmin, false, silence},
		{Down, AdminDown, Down, DiagNone, false, silence},
		{Down, Down, Init, DiagNone, false, speak},
		{Down, Init, Up, DiagNone, false, speak},
		{Down, Up, Down, DiagNone, false, silence},
		{Init, AdminDown, Down, DiagNeighbour, false, speak},
		{Init, Down, Init, DiagNone, false, silence},
		{Init, Init, Up, DiagNone, false, speak},
		{Init, Up, Up, DiagNone, false, speak},
		{Up, AdminDown, Down, DiagNeighbour, false, speak},
		{Up, Down, Down, DiagNeighbour, true, speak},
		{Up, Init, Up, DiagNone, false, silence},
		{Up, Up, Up, DiagNone, false, silence},
	} {
		for _, poll := range []bool{false, true} {
			m := in(t, c.in)
			p := heard(c.heard)
			p.poll, p.diag, p.mine = poll, 5, 77
			reply := m.receive(epoch().Add(ms), p)
			want := c.reply
			if poll && c.in != AdminDown {
				want = final
			}
			if m.state != c.want || m.diag != c.diag || m.lost != c.lost || reply != want {
				t.Errorf("%s hears %s (poll %v): %s, %s, lost %v, reply %d; want %+v", c.in, c.heard, poll, m.state, m.diag, m.lost, reply, c)
			}
			if m.remoteState != c.heard || m.remoteDiag != 5 || m.remote != 77 {
				t.Errorf("%s hears %s: remembers %s, %s, %d", c.in, c.heard, m.remoteState, m.remoteDiag, m.remote)
			}
			if changed := m.since.After(epoch()); changed != (c.in != c.want) {
				t.Errorf("%s hears %s: since %s", c.in, c.heard, m.since)
			}
		}
	}
}

// TestExpiry: silence in each state (section 6.8.4, and 6.8.1 for the
// discriminator).
func TestExpiry(t *testing.T) {
	for _, c := range []struct {
		in, want State
		diag     Diag
		lost     bool
	}{
		{AdminDown, AdminDown, DiagAdmin, false}, {Down, Down, DiagNone, false}, {Init, Down, DiagExpired, false}, {Up, Down, DiagExpired, true},
	} {
		m := in(t, c.in)
		if c.in == AdminDown || c.in == Down {
			m.receive(epoch(), heard(AdminDown))
		}
		at := epoch().Add(900 * ms)
		if m.expired(at.Add(-1)) || m.expire(at.Add(-1)) {
			t.Errorf("%s: expired before its time", c.in)
		}
		if changed := m.expire(at); changed != (c.in != c.want) {
			t.Errorf("%s: changed is %v", c.in, changed)
		}
		if m.state != c.want || m.diag != c.diag || m.lost != c.lost || m.remote != 0 || m.remoteState != Down || !m.detectAt.IsZero() {
			t.Errorf("%s: is now %+v", c.in, m)
		}
		if m.expired(at.Add(time.Hour)) {
			t.Errorf("%s: expires twice", c.in)
		}
	}
}

// TestLost: what counts as a failure, through a session's life.
func TestLost(t *testing.T) {
	m := in(t, Up)
	now := epoch()
	step := func(what string, want bool, flaps int) {
		t.Helper()
		if m.lost != want || m.flaps != flaps {
			t.Errorf("%s: lost %v, %d flaps, want %v, %d", what, m.lost, m.flaps, want, flaps)
		}
	}
	m.expire(now.Add(900 * ms))
	step("silence", true, 1)
	m.receive(now, heard(Down))
	step("init again", true, 1)
	m.receive(now, heard(Init))
	step("up again", false, 1)
	m.receive(now, heard(Down))
	step("neighbour down", true, 2)
	m.receive(now, heard(AdminDown))
	step("then admin-down", false, 2)
	m.receive(now, heard(Down))
	m.receive(now, heard(Init))
	m.receive(now, heard(AdminDown))
	step("neighbour admin-down", false, 3)
	m.receive(now, heard(Down))
	m.receive(now, heard(Init))
	m.admin(now, true)
	step("our admin-down", false, 3)
	m.admin(now, false)
	step("and back", false, 3)
	for _, c := range []struct {
		s    Status
		want bool
	}{
		{Status{}, false}, {Status{State: Down}, false}, {Status{State: Down, Lost: true}, true}, {Status{State: Init, Lost: true}, true},
		{Status{State: Up, Lost: true}, false}, {Status{State: AdminDown, Lost: true}, false},
	} {
		if c.s.Failed() != c.want {
			t.Errorf("%+v: failed %v", c.s, c.s.Failed())
		}
	}
}

// TestLateLook: if we ourselves were late, the far end gets one more chance,
// and only one.
func TestLateLook(t *testing.T) {
	for _, c := range []struct{ late, more time.Duration }{
		{0, 0}, {5 * ms, 0}, {6 * ms, 6 * ms}, {100 * ms, 100 * ms}, {time.Hour, 300 * ms},
	} {
		m := in(t, Up)
		now := epoch().Add(900*ms + c.late)
		if down := m.expire(now); down != (c.more == 0) {
			t.Errorf("%s late: down is %v", c.late, down)
		}
		if c.more == 0 {
			continue
		}
		if m.expire(now.Add(c.more - 1)) {
			t.Errorf("%s late: down before the second look", c.late)
		}
		if !m.expire(now.Add(c.more+time.Hour)) || m.state != Down || m.diag != DiagExpired {
			t.Errorf("%s late: not down at the second look: %+v", c.late, m)
		}
		// A packet in time starts anew.
		m = in(t, Up)
		m.expire(now)
		m.receive(now.Add(1), heard(Up))
		if m.excused || m.expire(now.Add(900*ms)) || !m.expire(now.Add(901*ms)) {
			t.Errorf("%s late: after a packet: %+v", c.late, m)
		}
	}
}

// TestJitter: 75 to 100 %, and 75 to 90 % with a multiplier of 1 (section
// 6.8.7), over the whole range.
func TestJitter(t *testing.T) {
	for mult, most := range map[uint8]time.Duration{1: 900 * ms, 2: time.Second, 255: time.Second} {
		low, high := time.Hour, time.Duration(0)
		for range 10_000 {
			d := jittered(time.Second, mult, rand.Float64())
			low, high = min(low, d), max(high, d)
		}
		if low < 750*ms || high > most || low > 755*ms || high < most-5*ms {
			t.Errorf("multiplier %d: %s to %s", mult, low, high)
		}
	}
}

// TestIntervals: the transmit interval and the detection time (sections 6.8.2
// to 6.8.4).
func TestIntervals(t *testing.T) {
	m := fresh(timers{300 * ms, 200 * ms, 4})
	if p := m.compose(epoch(), false); p.minTx != time.Second || p.minRx != 200*ms || p.multiplier != 4 || p.mine != 1 || p.yours != 0 || p.state != Down {
		t.Errorf("down: %+v", p)
	}
	if got := m.txAt; got != epoch().Add(750*ms) {
		t.Errorf("down: the next packet is at %s", got)
	}
	if m.detection() != 0 || !m.detectAt.IsZero() {
		t.Error("something is expected before anything was heard")
	}
	slow := heard(Init)
	slow.minTx, slow.minRx, slow.multiplier = 500*ms, 400*ms, 5
	m.receive(epoch(), slow)
	if m.interval() != 400*ms || m.detection() != 2500*ms || m.remoteInterval() != 500*ms {
		t.Errorf("up: sends every %s, detects in %s", m.interval(), m.detection())
	}
	// The far end asks for faster packets: honoured from the last one on.
	fast := heard(Up)
	fast.minTx, fast.minRx, fast.multiplier = 50*ms, 50*ms, 1
	m.receive(epoch().Add(ms), fast)
	if m.interval() != 300*ms || m.detection() != 200*ms || m.txAt != epoch().Add(225*ms) || m.detectAt != epoch().Add(201*ms) {
		t.Errorf("up: sends every %s, detects in %s, sends at %s", m.interval(), m.detection(), m.txAt)
	}
	// A packet more does not draw the jitter anew.
	m.jitter = func() float64 { return 1 }
	m.receive(epoch().Add(2*ms), fast)
	if m.txAt != epoch().Add(225*ms) {
		t.Errorf("the next packet moved to %s", m.txAt)
	}
	// It wants none (section 6.8.7).
	fast.minRx = 0
	m.receive(epoch(), fast)
	if m.due(epoch().Add(time.Hour)) {
		t.Error("sends though the far end wants nothing")
	}
	m.expire(epoch().Add(200 * ms))
	if !m.due(epoch().Add(time.Hour)) || m.interval() != time.Second {
		t.Error("does not send again after the far end is gone")
	}
}

// TestComingUpPolls: the interval shortens from a second, so a Poll tells.
func TestComingUpPolls(t *testing.T) {
	m := in(t, Up)
	p := m.compose(epoch(), false)
	if !p.poll || p.final || p.minTx != 300*ms || p.yours != 2 || p.diag != DiagNone {
		t.Errorf("first packet %+v", p)
	}
	if p := m.compose(epoch(), true); p.poll || !p.final {
		t.Errorf("an answer to a poll during ours: %+v", p)
	}
	f := heard(Up)
	f.final = true
	if m.receive(epoch(), f) != silence || m.compose(epoch(), false).poll {
		t.Error("the final did not end the poll")
	}
	m.receive(epoch(), heard(Down))
	if m.compose(epoch(), false).poll {
		t.Error("polls while down")
	}
}

// TestTimersByPoll: what grows and what shrinks during a session that is up
// (section 6.8.3).
func TestTimersByPoll(t *testing.T) {
	f := heard(Up)
	f.final = true
	f.minTx, f.minRx = 50*ms, 50*ms
	for _, c := range []struct {
		want                       timers
		tx, detect, txEnd, rxEnded time.Duration
	}{
		{timers{600 * ms, 300 * ms, 3}, 300 * ms, 900 * ms, 600 * ms, 900 * ms},
		{timers{100 * ms, 300 * ms, 3}, 100 * ms, 900 * ms, 100 * ms, 900 * ms},
		{timers{300 * ms, 600 * ms, 3}, 300 * ms, 1800 * ms, 300 * ms, 1800 * ms},
		{timers{300 * ms, 100 * ms, 3}, 300 * ms, 900 * ms, 300 * ms, 300 * ms},
	} {
		m := in(t, Up)
		m.receive(epoch(), f)
		m.set(c.want)
		p := m.compose(epoch(), false)
		if !p.poll || p.minTx != c.want.minTx || p.minRx != c.want.minRx {
			t.Errorf("%+v: is told as %+v", c.want, p)
		}
		if m.interval() != c.tx || m.detection() != c.detect || m.detectAt != epoch().Add(c.detect) {
			t.Errorf("%+v: during the poll sends every %s, detects in %s", c.want, m.interval(), m.detection())
		}
		m.receive(epoch(), f)
		if m.poll || m.interval() != c.txEnd || m.detection() != c.rxEnded || m.state != Up || m.flaps != 0 {
			t.Errorf("%+v: after the poll sends every %s, detects in %s", c.want, m.interval(), m.detection())
		}
	}
	// A change during a poll makes another: the first final is for the first.
	m := in(t, Up)
	m.receive(epoch(), f)
	m.set(timers{600 * ms, 300 * ms, 3})
	m.set(timers{700 * ms, 300 * ms, 3})
	m.receive(epoch(), f)
	if !m.poll || m.interval() != 300*ms {
		t.Errorf("the first final ended both polls: every %s", m.interval())
	}
	m.receive(epoch(), f)
	if m.poll || m.interval() != 700*ms {
		t.Errorf("the second final did not end the poll: every %s", m.interval())
	}
	// The multiplier alone needs no poll; nor does any change while not up.
	m.set(timers{700 * ms, 300 * ms, 5})
	if m.poll || m.compose(epoch(), false).multiplier != 5 {
		t.Error("a multiplier polls, or is not told")
	}
	m = in(t, Down)
	m.set(timers{2 * time.Second, 300 * ms, 3})
	if m.poll || m.interval() != 2*time.Second {
		t.Errorf("down: poll %v, every %s", m.poll, m.interval())
	}
}

// TestDemand: the far end's demand mode (section 6.6) silences us but for polls
// and answers.
func TestDemand(t *testing.T) {
	m := in(t, Up)
	p := heard(Up)
	p.demand, p.final = true, true
	m.receive(epoch(), p)
	if m.due(epoch().Add(time.Hour)) {
		t.Error("sends in the far end's demand mode")
	}
	p.final, p.poll = false, true
	if m.receive(epoch(), p) != final {
		t.Error("a poll in demand mode was not answered")
	}
	p.poll = false
	m.set(timers{400 * ms, 300 * ms, 3})
	if !m.due(epoch().Add(time.Hour)) || !m.compose(epoch(), false).poll {
		t.Error("no poll in demand mode")
	}
	p.final = true
	m.receive(epoch(), p)
	if m.due(epoch().Add(time.Hour)) {
		t.Error("sends after the poll")
	}
	p.demand = false
	m.receive(epoch(), p)
	if !m.due(epoch().Add(time.Hour)) {
		t.Error("silent after demand mode")
	}
}

// TestFarewell: AdminDown is told three times at the pace of the session, then
// once a second.
func TestFarewell(t *testing.T) {
	m := in(t, Up)
	m.compose(epoch(), false)
	now := epoch()
	m.admin(now, true)
	var gaps []time.Duration
	for range 5 {
		p := m.compose(now, false)
		if p.state != AdminDown || p.diag != DiagAdmin || p.minTx != time.Second || p.poll {
			t.Fatalf("%+v", p)
		}
		gaps = append(gaps, m.txAt.Sub(now))
		now = m.txAt
	}
	if got := fmt.Sprint(gaps); got != "[225ms 225ms 750ms 750ms 750ms]" {
		t.Errorf("packets after %s", got)
	}
	if m = in(t, Down); !m.admin(now, true) || m.farewell != 0 {
		t.Error("a farewell of a session that was not up")
	}
}
