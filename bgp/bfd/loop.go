package bfd

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// burst is how many packets are read before the timers are looked at again:
	// a flood may not hold them up. The sockets that have some share it.
	burst = 512
	// backlog is how many packets at most are read before silence is believed:
	// more than a receive buffer holds.
	backlog = 8192
	// starved is a delay of the thread that is worth a warning, at most one
	// every starvedPause.
	starved, starvedPause = 25 * time.Millisecond, 10 * time.Second
)

// loop is what the thread of Run owns: no other goroutine touches it, but for
// the lines of the log. It makes system calls itself and not through Go's
// poller, so that a packet or a timer wakes this very thread.
type loop struct {
	log      *slog.Logger
	onChange func(Status)
	asks     <-chan ask
	lines    chan line

	epollFD, wakeFD int
	sessions        []*session
	byID            map[id]*session
	bySource        map[source]*session
	receivers       map[place]*receiver
	byFD            map[int32]*receiver
	ports           map[int]bool // source ports in use
	discriminators  map[uint32]bool
	unknown         [reasons]uint64 // packets of nobody

	next     time.Time // when something is to be done; zero: never
	warnedAt time.Time // of starvation
	events   [64]unix.EpollEvent
	payload  [256]byte // the Length of a packet has one byte
	control  [64]byte
	out      [packetLen]byte
}

// line is a record for the log. The thread does not write it itself: whoever
// reads the log may be slow.
type line struct {
	level slog.Level
	text  string
	args  []any
}

func newLoop(e *Engine) (*loop, error) {
	l := &loop{
		log: e.log, onChange: e.onChange, asks: e.asks, lines: make(chan line, 1024),
		byID: map[id]*session{}, bySource: map[source]*session{}, receivers: map[place]*receiver{}, byFD: map[int32]*receiver{},
		ports: map[int]bool{}, discriminators: map[uint32]bool{},
	}
	var err error
	if l.epollFD, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if l.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(l.epollFD)
		return nil, os.NewSyscallError("eventfd", err)
	}
	if err := l.watch(l.wakeFD); err != nil {
		unix.Close(l.wakeFD)
		unix.Close(l.epollFD)
		return nil, err
	}
	return l, nil
}

func (l *loop) watch(fd int) error {
	err := unix.EpollCtl(l.epollFD, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	return os.NewSyscallError("epoll_ctl", err)
}

// run turns until ctx ends.
func (l *loop) run(ctx context.Context) error {
	l.tick()
	for ctx.Err() == nil {
		if err := l.wait(); err != nil {
			return err
		}
		l.answerAsks()
		l.tick()
	}
	return nil
}

// wait waits for packets, an ask or the next deadline, and takes the packets.
func (l *loop) wait() error {
	n, err := unix.EpollWait(l.epollFD, l.events[:], l.timeout())
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for packets: %w", err)
	}
	share := burst / max(1, n)
	for _, ev := range l.events[:n] {
		if int(ev.Fd) == l.wakeFD {
			_, _ = unix.Read(l.wakeFD, l.payload[:8]) // asks are looked at in any case
		} else if r := l.byFD[ev.Fd]; r != nil {
			l.drain(r, share)
		}
	}
	return nil
}

// timeout is the time until the next deadline in milliseconds, rounded up: a
// look that comes too early would be a turn for nothing.
func (l *loop) timeout() int {
	if l.next.IsZero() {
		return -1
	}
	return max(0, int((time.Until(l.next)+time.Millisecond-1)/time.Millisecond))
}

// drain takes up to most packets that stand in the socket.
func (l *loop) drain(r *receiver, most int) {
	for range most {
		d, ok := r.read(l.payload[:], l.control[:])
		if !ok {
			return
		}
		l.take(r, d)
	}
}

// take takes in one packet.
func (l *loop) take(r *receiver, d datagram) {
	s := l.bySource[source{d.from, d.index}]
	if s == nil {
		l.unknown[unknownPeer]++
		return
	}
	p, why := s.check(r, d)
	if why != taken {
		s.dropped[why]++
		return
	}
	s.received++
	now, was := time.Now(), s.m.state
	answer := s.m.receive(now, p)
	l.changed(s, was)
	if answer != silence {
		l.send(s, now, answer == final)
	}
}

// tick does what is due, and finds the next deadline.
func (l *loop) tick() {
	now := time.Now()
	if !l.next.IsZero() && now.Sub(l.next) > starved && now.Sub(l.warnedAt) > starvedPause {
		l.warnedAt = now
		l.say(slog.LevelWarn, "bfd was late: the box or this process is overloaded", "late", now.Sub(l.next))
	}
	l.next = time.Time{}
	kept := l.sessions[:0]
	for _, s := range l.sessions {
		if at := s.next(); !at.IsZero() && !now.Before(at) {
			l.act(s, now)
		}
		if s.leaving && (s.rx == nil || s.m.farewell == 0) {
			l.remove(s)
			continue
		}
		kept = append(kept, s)
		if at := s.next(); !at.IsZero() && (l.next.IsZero() || at.Before(l.next)) {
			l.next = at
		}
	}
	if l.next.Before(now) && !l.next.IsZero() {
		l.next = now // known only now: nobody was late
	}
	clear(l.sessions[len(kept):])
	l.sessions = kept
}

// act does what is due for one session.
func (l *loop) act(s *session, now time.Time) {
	if s.stale {
		l.shut(s)
		s.stale, s.retryAt = false, now
	}
	if s.m.expired(now) {
		l.silent(s, now)
	}
	switch {
	case s.rx == nil:
		if !now.Before(s.retryAt) {
			l.open(s, now)
		}
	case s.m.due(now):
		l.send(s, now, false)
	}
}

// silent acts on a detection timer that has run out.
func (l *loop) silent(s *session, now time.Time) {
	// now was read before: all that came until then is seen. Our own pause must
	// not be taken for the far end's death. Once a turn is enough for all that
	// share the socket.
	if s.rx != nil && !s.rx.emptied.Equal(now) {
		s.rx.emptied = now
		l.drain(s.rx, backlog)
	}
	was := s.m.state
	if !s.m.expire(now) {
		return
	}
	l.changed(s, was)
	if s.rx != nil {
		l.send(s, now, false)
	}
}

// send sends one packet.
func (l *loop) send(s *session, now time.Time, answer bool) {
	s.m.compose(now, answer).put(&l.out)
	s.write(l.out[:])
	if s.m.state == Up || answer {
		return
	}
	// The session is not up, so there is time to look into what has gone wrong
	// with its sockets: an interface or an address may have come or gone.
	s.stale = s.sendErr != nil && s.cfg.Interface != ""
	if s.openErr != nil {
		s.openErr = s.oddity()
	}
	l.complain(s)
}

// changed reports a session whose state was another one.
func (l *loop) changed(s *session, was State) {
	if s.m.state == was {
		return
	}
	st := s.status()
	if !s.leaving {
		l.onChange(st)
	}
	level := slog.LevelInfo
	if st.Failed() {
		level = slog.LevelWarn
	}
	l.say(level, "bfd session changed", "peer", st.Peer, "from", was, "to", st.State, "reason", st.Diag, "remote_state", st.RemoteState, "remote_reason", st.RemoteDiag)
}

// complain logs what is wrong with a session's sockets once.
func (l *loop) complain(s *session) {
	text := s.lastErr()
	if text != "" && text != s.logged {
		l.say(slog.LevelWarn, "bfd session has a fault", "peer", s.peer, "err", text)
	}
	s.logged = text
}

// say hands a record to the writer of the log; if that is far behind, the
// record is lost.
func (l *loop) say(level slog.Level, text string, args ...any) {
	select {
	case l.lines <- line{level, text, args}:
	default:
	}
}

// writeLog is the one goroutine beside the thread.
func (l *loop) writeLog() {
	for r := range l.lines {
		l.log.Log(context.Background(), r.level, r.text, r.args...)
	}
}

// random are a discriminator and a port that nobody can guess (RFC 5880
// section 6.3, RFC 6056).
func random() uint32 {
	var b [4]byte
	_, _ = crand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}

func (l *loop) newDiscriminator() uint32 {
	for {
		if d := random(); d != 0 && !l.discriminators[d] {
			l.discriminators[d] = true
			return d
		}
	}
}

// pickPort returns a source port that no session of ours has.
func (l *loop) pickPort() int {
	for {
		if p := sourceFirst + int(random()%(sourceLast-sourceFirst+1)); !l.ports[p] {
			return p
		}
	}
}

// jitter need not be secret.
func jitter() float64 { return rand.Float64() }
