package bfd

import "time"

const (
	// slowTx is the shortest interval at which a session that is not up sends
	// (RFC 5880 section 6.8.3).
	slowTx = time.Second
	// lateness is how late a look at the detection timer may be and still
	// count as evidence of silence.
	lateness = 5 * time.Millisecond
	// farewells is how many packets say AdminDown at the pace of a session that
	// was up: one alone may be lost, and would then be an outage at the far end.
	farewells = 3
)

// timers are what a session asks for.
type timers struct {
	minTx, minRx time.Duration // bfd.DesiredMinTxInterval while up, bfd.RequiredMinRxInterval
	multiplier   uint8         // bfd.DetectMult
}

// machine is one session without its sockets: packets and the time go in,
// packets and deadlines come out (RFC 5880 section 6.8). It takes the active
// role.
type machine struct {
	want   timers
	local  uint32         // bfd.LocalDiscr
	jitter func() float64 // random, in [0, 1)

	state State
	diag  Diag
	since time.Time
	lost  bool // see Status.Lost
	flaps int

	// What the far end has said last; see forget.
	remote       uint32
	remoteState  State
	remoteDiag   Diag
	remoteDemand bool
	remoteMinTx  time.Duration
	remoteMinRx  time.Duration
	remoteMult   uint8

	// tx and rx are the intervals in force. What is wanted is advertised at
	// once, but a longer tx and a shorter rx wait for the end of the Poll
	// Sequence (section 6.8.3): until then the far end counts on the old ones.
	tx, rx time.Duration
	poll   bool // a Poll Sequence is on
	again  bool // and the timers have changed since it began

	farewell      int // packets still to be sent every farewellEvery
	farewellEvery time.Duration

	lastTx, lastRx time.Time     // zero: none
	every          time.Duration // the interval from which txAt was made
	txAt           time.Time     // zero: no periodic packets
	detectAt       time.Time     // zero: nothing is expected
	excused        bool          // detectAt was put off since the last packet
}

// reply is what a received packet asks for.
type reply uint8

const (
	silence reply = iota
	speak         // a packet now, since its contents have changed
	final         // a packet now, with the F bit
)

func newMachine(now time.Time, local uint32, want timers, jitter func() float64) *machine {
	m := &machine{want: want, local: local, jitter: jitter, state: Down, since: now}
	m.forget()
	m.tx, m.rx = m.desired(), want.minRx
	m.schedule()
	return m
}

// forget resets what the far end has said: it has not been heard, or no longer.
// A RequiredMinRx of 1 us is the initial value of section 6.8.1.
func (m *machine) forget() {
	m.remote, m.remoteState, m.remoteDiag, m.remoteDemand = 0, Down, DiagNone, false
	m.remoteMinTx, m.remoteMinRx, m.remoteMult = 0, time.Microsecond, 0
	m.detectAt = time.Time{}
}

// desired is the DesiredMinTxInterval to advertise.
func (m *machine) desired() time.Duration {
	if m.state != Up {
		return max(m.want.minTx, slowTx)
	}
	return m.want.minTx
}

// interval is the time between periodic packets before jitter.
func (m *machine) interval() time.Duration {
	if m.farewell > 0 {
		return m.farewellEvery
	}
	return max(m.tx, m.remoteMinRx)
}

// remoteInterval is the time between the far end's packets before its jitter.
func (m *machine) remoteInterval() time.Duration { return max(m.rx, m.remoteMinTx) }

// detection is the Detection Time of section 6.8.4; 0 while nothing was heard.
func (m *machine) detection() time.Duration {
	return time.Duration(m.remoteMult) * m.remoteInterval()
}

// periodic says whether packets are sent without being asked for (section
// 6.8.7): not if the far end wants none, nor while its demand mode is active,
// but for a Poll Sequence.
func (m *machine) periodic() bool {
	demand := m.remoteDemand && m.state == Up && m.remoteState == Up
	return m.remoteMinRx > 0 && (!demand || m.poll)
}

// schedule sets the time of the next periodic packet from that of the last.
func (m *machine) schedule() {
	if !m.periodic() {
		m.every, m.txAt = 0, time.Time{}
		return
	}
	m.every = m.interval()
	m.txAt = m.lastTx.Add(jittered(m.every, m.want.multiplier, m.jitter()))
}

// reschedule does so if the interval has changed: a shorter one is honoured
// from the last packet on (section 6.8.3), and one draw of jitter per packet
// keeps the spread even.
func (m *machine) reschedule() {
	if !m.periodic() || m.every != m.interval() {
		m.schedule()
	}
	if m.remoteMult > 0 {
		m.detectAt = m.lastRx.Add(m.detection())
	}
}

// jittered shortens d by up to a quarter; with a multiplier of 1 by a tenth at
// least, lest the packet come after the far end's timer (section 6.8.7).
func jittered(d time.Duration, multiplier uint8, random float64) time.Duration {
	spread := 0.25
	if multiplier == 1 {
		spread = 0.15
	}
	return time.Duration(float64(d) * (0.75 + spread*random))
}

// to changes the state.
func (m *machine) to(now time.Time, s State, d Diag) {
	was, pace := m.state, m.interval()
	if s == was {
		return
	}
	m.state, m.diag, m.since = s, d, now
	// A Poll Sequence is for a session that is up. Coming up shortens our
	// interval, so it begins with one.
	m.poll, m.again = s == Up, false
	m.farewell = 0
	switch {
	case s == Up, s == AdminDown:
		m.lost = false
	case was == Up:
		m.lost = m.remoteState != AdminDown
	}
	if was == Up {
		if s == AdminDown {
			m.farewell, m.farewellEvery = farewells, pace
		} else {
			m.flaps++
		}
	}
	m.tx, m.rx = m.desired(), m.want.minRx
}

// receive takes a packet that parse has passed and that is of this session:
// the rest of section 6.8.6.
func (m *machine) receive(now time.Time, p packet) reply {
	m.remote, m.remoteState, m.remoteDiag = p.mine, p.state, p.diag
	m.remoteDemand = p.demand
	m.remoteMinTx, m.remoteMinRx, m.remoteMult = p.minTx, p.minRx, p.multiplier
	if p.final {
		m.pollEnded()
	}
	m.lastRx, m.excused = now, false
	was := m.state
	if was != AdminDown {
		m.advance(now, p.state)
	}
	m.reschedule()
	switch {
	case was == AdminDown:
		return silence // not even a Final: the packet counts as discarded
	case p.poll:
		return final
	case m.state != was:
		return speak
	}
	return silence
}

// advance is the table of section 6.8.6.
func (m *machine) advance(now time.Time, heard State) {
	if heard == AdminDown {
		m.lost = false
		m.to(now, Down, DiagNeighbour)
		return
	}
	switch m.state {
	case Down:
		switch heard {
		case Down:
			m.to(now, Init, m.diag)
		case Init:
			m.to(now, Up, DiagNone)
		}
	case Init:
		if heard == Init || heard == Up {
			m.to(now, Up, DiagNone)
		}
	case Up:
		if heard == Down {
			m.to(now, Down, DiagNeighbour)
		}
	}
}

// pollEnded takes a Final. If the timers have changed since the Poll began, the
// answer may be to the older ones: another Poll follows.
func (m *machine) pollEnded() {
	switch {
	case !m.poll:
	case m.again:
		m.again = false
	default:
		m.poll = false
		m.tx, m.rx = m.desired(), m.want.minRx
	}
}

// set changes the timers without a flap (section 6.8.3).
func (m *machine) set(want timers) {
	was := m.want
	m.want = want
	switch {
	case m.state != Up:
		m.tx, m.rx = m.desired(), want.minRx
	case was.minTx != want.minTx || was.minRx != want.minRx:
		m.again = m.poll
		m.poll = true
		m.tx, m.rx = min(m.tx, want.minTx), max(m.rx, want.minRx)
	}
	m.reschedule()
}

// admin switches the session off, or on again.
func (m *machine) admin(now time.Time, off bool) (changed bool) {
	switch {
	case off && m.state != AdminDown:
		m.to(now, AdminDown, DiagAdmin)
	case !off && m.state == AdminDown:
		m.to(now, Down, DiagNone)
	default:
		return false
	}
	m.reschedule()
	return true
}

// expired says whether the detection timer has run out at now.
func (m *machine) expired(now time.Time) bool {
	return !m.detectAt.IsZero() && !now.Before(m.detectAt)
}

// expire acts on a detection timer that has run out, and says whether the state
// has changed. The caller has taken in what stood in the socket at now.
//
// If this look comes late, we have slept, and so perhaps has the whole box with
// the kernel that would have queued the packets: the silence is not yet the far
// end's. So one more look follows, after as long a time as we were late, but
// not longer than the far end needs for one packet.
func (m *machine) expire(now time.Time) bool {
	if !m.expired(now) {
		return false
	}
	if late := now.Sub(m.detectAt); late > lateness && !m.excused {
		m.excused = true
		m.detectAt = now.Add(min(late, m.remoteInterval()))
		return false
	}
	was := m.state
	m.forget()
	if was == Init || was == Up {
		m.to(now, Down, DiagExpired)
	}
	m.reschedule()
	return m.state != was
}

// due says whether a periodic packet is to be sent.
func (m *machine) due(now time.Time) bool { return !m.txAt.IsZero() && !now.Before(m.txAt) }

// next is the next deadline; zero if there is none.
func (m *machine) next() time.Time {
	if m.txAt.IsZero() || !m.detectAt.IsZero() && m.detectAt.Before(m.txAt) {
		return m.detectAt
	}
	return m.txAt
}

// compose is the packet to be sent now. An answer to a Poll stands beside the
// periodic packets and does not move them.
func (m *machine) compose(now time.Time, answer bool) packet {
	p := packet{
		state: m.state, diag: m.diag, poll: m.poll && !answer, final: answer, multiplier: m.want.multiplier,
		mine: m.local, yours: m.remote, minTx: m.desired(), minRx: m.want.minRx,
	}
	if answer {
		return p
	}
	m.lastTx = now
	m.farewell = max(0, m.farewell-1)
	m.schedule()
	if m.txAt.IsZero() {
		m.farewell = 0
	}
	return p
}
