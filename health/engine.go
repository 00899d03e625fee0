package health

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// The bounds of the engine.
const (
	// maxFlights is how many runs are in the air at once, less if this process
	// may not open twice as many files.
	maxFlights = 16 << 10
	// crowd is how many runs make it worth to let answers gather for a moment:
	// to be woken for each of forty answers costs more than to judge them. What
	// is paid is that Status.Took is true to about a millisecond only.
	crowd  = 8
	gather = time.Millisecond
)

// engine runs probes over plain TCP: kind tcp, and kind http without TLS. All
// of it belongs to the goroutine of the schedule, but for ring, which any may
// call. It makes no goroutine: a run is a few words and a non-blocking socket.
//
// Its epoll is itself watched by the poller of the runtime. To sleep in
// epoll_wait would be simpler and costs more: to the runtime that is a long
// system call, and its monitor thread wakes up twenty times in each to see
// whether it is over. Measured, 320 to 600 µs of CPU time for each sleep of 40 ms,
// and 140 this way. But each event of a socket that is armed wakes up a thread of
// the runtime, even one that comes while the engine is at work. So a run is tried
// first without: on this box a connection stands when connect returns, and an
// answer is there a moment later. Only what takes longer is armed, for one event.
type engine struct {
	epoll     int // file descriptor; -1 while not open
	file      *os.File
	conn      syscall.RawConn // of file
	limit     int             // of flights
	socks     []*sock
	freeSlots []int32
	pools     map[poolKey]*pool
	events    [256]unix.EpollEvent
	buf       [16 << 10]byte
	flights   int
	young     []*flight // in the air, not armed yet; some may have ended since
	ends      []ended
	// asleep says that somebody who wants the engine's attention must ring.
	asleep atomic.Bool
}

// ended is a run that is over.
type ended struct {
	e *entry
	r result
}

func newEngine() *engine {
	return &engine{epoll: -1, pools: map[poolKey]*pool{}}
}

// open makes what the engine needs for itself, if it has not got it.
func (g *engine) open() error {
	if g.epoll >= 0 {
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("%w: make epoll: %w", edge.ErrUnknown, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // or the runtime does not watch it
		unix.Close(fd)
		return fmt.Errorf("%w: make epoll: %w", edge.ErrUnknown, err)
	}
	file := os.NewFile(uintptr(fd), "epoll")
	conn, err := file.SyscallConn()
	if err == nil {
		err = file.SetReadDeadline(time.Time{})
	}
	if err != nil {
		file.Close()
		return fmt.Errorf("%w: watch epoll: %w", edge.ErrUnknown, err)
	}
	g.epoll, g.file, g.conn, g.limit = fd, file, conn, maxFlights
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		g.limit = int(min(maxFlights, files.Cur/2))
	}
	return nil
}

// close gives everything back. Runs in the air end without a result.
func (g *engine) close() {
	for _, s := range g.socks {
		if s != nil {
			g.discard(s)
		}
	}
	if g.file != nil {
		g.file.Close()
	}
}

// ring ends a wait, now or as soon as it begins.
func (g *engine) ring() {
	if g.asleep.Load() {
		_ = g.file.SetReadDeadline(time.Unix(1, 0))
	}
}

// begin starts a run. It may be over when begin returns: ends says so.
func (g *engine) begin(f *flight) {
	f.start = time.Now()
	f.kept, f.sent, f.looks, f.looked = f.sock != nil, 0, 0, 0
	f.headed = false
	g.flights++
	err := g.open()
	switch {
	case err != nil:
	case g.flights > g.limit:
		err = fmt.Errorf("%w: %d probes are in the air already", edge.ErrUnknown, g.limit)
	default:
		g.young = append(g.young, f)
		if f.kept {
			g.send(f, f.start)
		} else {
			g.connect(f, f.start)
		}
		return
	}
	g.end(f, result{err: fmt.Errorf("connect %s: %w", f.address, err), end: f.start}, false)
}

// connect begins with a new connection.
func (g *engine) connect(f *flight, now time.Time) {
	s, err := g.socket(f.key)
	if err != nil {
		g.end(f, result{err: fmt.Errorf("connect %s: %w", f.address, err), end: now}, false)
		return
	}
	s.flight, f.sock, f.phase = f, s, connecting
	g.step(f, now)
}

// step takes a run as far as it comes without waiting. To call it once too often
// does no harm.
func (g *engine) step(f *flight, now time.Time) {
	switch f.phase {
	case connecting:
		g.reach(f, now)
	case sending:
		g.send(f, now)
	case reading:
		g.read(f, now)
	}
}

// reach takes a connection as far as it comes. Whether one stands that has a
// request to carry, the sending of that says: it costs no call of its own.
func (g *engine) reach(f *flight, now time.Time) {
	err := connectTo(f.sock.fd, &f.to)
	switch {
	case err != nil && err != unix.EINPROGRESS && err != unix.EALREADY && err != unix.EINTR:
		g.broke(f, err, now)
	case f.request != nil:
		f.phase = sending
	case err != nil: // asked again it says how far it is
	case f.mirror && meetsItself(f.sock.fd, &f.to):
		g.broke(f, unix.ECONNREFUSED, now)
	default:
		g.end(f, result{end: now}, true)
	}
}

// send writes what is left of the request.
func (g *engine) send(f *flight, now time.Time) {
	f.phase = sending
	for f.sent < len(f.request) {
		n, err := send(f.sock.fd, f.request[f.sent:])
		switch {
		case err == unix.EAGAIN: // the connection does not stand yet, or is full
			return
		case err == unix.EINTR:
		case err != nil:
			g.broke(f, err, now)
			return
		default:
			f.sent += n
		}
	}
	f.phase = reading
}

// wait sleeps until runs have ended, the time is over, or somebody rings or has
// signalled wake.
func (g *engine) wait(until time.Time, wake <-chan struct{}) {
	g.advance()
	if len(g.young) >= crowd {
		nap(gather)
		g.advance()
	}
	for _, f := range g.young {
		g.arm(f)
	}
	clear(g.young)
	g.young = g.young[:0]
	if g.look(); len(g.ends) > 0 {
		return
	}
	_ = g.file.SetReadDeadline(until)
	g.asleep.Store(true) // from now on, who signals also rings; who did before, is heard
	defer g.asleep.Store(false)
	select {
	case <-wake:
		return
	default:
	}
	some := false
	_ = g.conn.Read(func(uintptr) bool { // an error is the end of the time
		some = g.look()
		return some
	})
	if some && g.flights >= crowd {
		nap(gather)
		g.look()
	}
}

// advance steps all that are young, and forgets those that are over.
func (g *engine) advance() {
	now := time.Now()
	left := g.young[:0]
	for _, f := range g.young {
		if g.step(f, now); f.phase != idle {
			left = append(left, f)
		}
	}
	clear(g.young[len(left):])
	g.young = left
}

// arm has the next event of a run reported, once.
func (g *engine) arm(f *flight) {
	if f.phase == idle {
		return
	}
	s := f.sock
	event := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(s.slot)}
	if f.phase == reading {
		event.Events = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT
	}
	op := unix.EPOLL_CTL_MOD
	if !s.watched {
		op = unix.EPOLL_CTL_ADD
	}
	if err := unix.EpollCtl(g.epoll, op, s.fd, &event); err != nil {
		g.end(f, result{err: fmt.Errorf("%w: watch socket: %w", edge.ErrUnknown, err), end: time.Now()}, false)
		return
	}
	s.watched, s.armed = true, true
}

// look steps the runs of which something is reported, and says whether there was
// one. That it is reported is not relied on: it may be of an earlier run.
func (g *engine) look() bool {
	n := ready(g.epoll, g.events[:])
	if n == 0 {
		return false
	}
	now := time.Now()
	for _, ev := range g.events[:n] {
		if s := g.socks[ev.Fd]; s != nil && s.flight != nil {
			g.step(s.flight, now)
			if s.flight != nil {
				g.arm(s.flight)
			}
		}
	}
	return true
}

// broke ends a run whose connection has failed; but if that was a kept one on
// which nothing has been heard, the far end had closed it while nobody asked,
// which it may: the run begins again, within its time.
func (g *engine) broke(f *flight, err error, now time.Time) {
	if f.kept && len(f.answer) == 0 {
		g.discard(f.sock)
		f.sock, f.kept, f.sent = nil, false, 0
		g.connect(f, now)
		return
	}
	g.fail(f, err, now)
}

// fail ends a run whose connection has failed, or whose time is over. What had
// come of an answer by then may decide it.
func (g *engine) fail(f *flight, err error, now time.Time) {
	if f.phase != reading || len(f.answer) == 0 || !g.judge(f, f.answer, err, now) {
		g.end(f, result{err: f.explain(err), end: now}, false)
	}
}

// expire ends a run whose time is over.
func (g *engine) expire(f *flight, now time.Time) {
	if f.phase != idle { // else it came just in time
		g.fail(f, os.ErrDeadlineExceeded, now)
	}
}

// abort ends a run without a result, and the connection that is kept.
func (g *engine) abort(f *flight) {
	if f.phase != idle {
		f.phase = idle
		g.flights--
	}
	f.answer = nil
	if f.sock != nil {
		g.discard(f.sock)
		f.sock = nil
	}
}

// end notes the result of a run. Its socket is used again if it is sound.
func (g *engine) end(f *flight, r result, sound bool) {
	r.took = r.end.Sub(f.start)
	g.ends = append(g.ends, ended{f.e, r})
	g.flights--
	f.phase, f.answer = idle, nil
	s := f.sock
	f.sock = nil
	switch {
	case s == nil:
	case sound:
		g.recycle(s)
	default:
		g.discard(s)
	}
}
