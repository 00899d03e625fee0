package health

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// The canary's figures. For canaryMemory after it was in trouble no failure of
// another probe is believed. canaryPatience is how long it may fail in a row
// though the schedule is on time: then it is not this box that lacks time, but
// something that lasts keeps it from its own loopback, and failures count again.
const (
	canaryInterval = time.Second
	canaryTimeout  = 250 * time.Millisecond
	canaryMemory   = 3 * time.Second
	canaryPatience = time.Minute
)

// errLate is what the canary fails with if it was late.
var errLate = fmt.Errorf("late by more than %s", canaryTimeout)

// canary is a probe that always passes unless this box is at fault: each second
// a connection to a socket of this process, by the engine that runs the others.
// Its entry is in no set. Guarded by Monitor.mu, except as said.
type canary struct {
	entry    *entry // its flight and the listener belong to the schedule
	listener int    // -1: not open
	// due is when the run that is not over yet was to start.
	due time.Time
	// sane says that it has passed once: before that its failure means nothing.
	sane bool
	// trouble is when it last failed or was late, failing since when it has
	// failed in a row though it was not late; zero: never, not.
	trouble, failing time.Time
}

func newCanary(start time.Time) canary {
	p := edge.Probe{ID: "canary", Kind: edge.ProbeTCP, Interval: canaryInterval, Timeout: canaryTimeout, Rise: 1, Fall: 1}
	return canary{entry: newEntry(p, nil), listener: -1, due: start}
}

// open makes the listener, unless it is there: over IPv4, or IPv6 where there is
// no other.
func (c *canary) open() error {
	if c.listener >= 0 {
		return nil
	}
	var errs []error
	for _, to := range []unix.Sockaddr{
		&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}},
		&unix.SockaddrInet6{Addr: netip.IPv6Loopback().As16()},
	} {
		fd, at, err := listenOn(to)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.listener = fd
		e := *c.entry // the probe of an entry never changes
		e.probe.Addr = at
		c.entry.flight = newFlight(&e)
		c.entry.flight.e = c.entry
		return nil
	}
	return fmt.Errorf("%w: open the canary's socket: %w", edge.ErrUnknown, errors.Join(errs...))
}

func listenOn(to unix.Sockaddr) (int, netip.AddrPort, error) {
	family := unix.AF_INET
	if _, ok := to.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, netip.AddrPort{}, err
	}
	err = unix.Bind(fd, to)
	if err == nil {
		err = unix.Listen(fd, 16)
	}
	var at unix.Sockaddr
	if err == nil {
		at, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, netip.AddrPort{}, err
	}
	switch a := at.(type) {
	case *unix.SockaddrInet4:
		return fd, netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil
	case *unix.SockaddrInet6:
		return fd, netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), nil
	}
	unix.Close(fd)
	return -1, netip.AddrPort{}, unix.EAFNOSUPPORT
}

// drain takes the connections of runs that are over out of the listener's queue:
// a full one would answer no more.
func (c *canary) drain() {
	for c.listener >= 0 {
		fd, _, err := unix.Accept4(c.listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			return
		}
		unix.Close(fd)
	}
}

func (c *canary) close() {
	if c.listener >= 0 {
		unix.Close(c.listener)
		c.listener = -1
	}
}

// overslept takes in that the schedule itself has woken up too late, whatever for.
func (c *canary) overslept(now time.Time) (result, bool) {
	c.trouble = now
	r := result{err: errLate, end: now}
	return r, c.entry.record(r)
}

// land takes in a run, and returns it as it counts and whether what the canary
// shows has changed.
func (c *canary) land(r result) (result, bool) {
	began := r.end.Add(-r.took)
	late := began.Sub(c.due) > canaryTimeout
	if r.err == nil && (late || r.took > canaryTimeout) {
		r.err = errLate
	}
	unknown := errors.Is(r.err, edge.ErrUnknown)
	switch {
	case r.err == nil:
		c.sane, c.failing = true, time.Time{}
	case late:
		c.trouble = r.end
	case unknown: // it says nothing, and neither do the others
	case c.failing.IsZero():
		c.failing, c.trouble = r.end, r.end
	case r.end.Sub(c.failing) < canaryPatience:
		c.trouble = r.end
	}
	c.due = r.end.Add(canaryInterval)
	r.took = min(r.took, canaryTimeout) // what is late is no less a fail here
	remove(c.entry)
	return r, c.entry.record(r)
}

// startCanary has the canary's run begun when it is due. The caller holds m.mu.
func (m *Monitor) startCanary(now time.Time, t *turn) {
	c := &m.canary
	if f := c.entry.flight; f != nil && f.phase != idle {
		return // when its time is over is known
	}
	if wait := c.due.Sub(now); wait > 0 {
		t.wait = min(t.wait, wait)
		return
	}
	t.wait = min(t.wait, canaryTimeout)
	if err := c.open(); err != nil {
		c.land(result{err: err, end: now})
		return
	}
	m.begun = append(m.begun, c.entry)
}

// watch has the canary take in what take says, and tells if it changes its
// state. The caller holds m.mu.
func (m *Monitor) watch(t *turn, take func(*canary) (result, bool)) {
	e := m.canary.entry
	from := e.damp.state
	r, changed := take(&m.canary)
	if !changed {
		return
	}
	c := m.event(e, from, r)
	if c.canary = true; from != edge.Unknown {
		t.changes = append(t.changes, c)
	}
}

// starved says whether this box has been too busy, a moment ago or right now, to
// judge others.
func (c *canary) starved(now time.Time) bool {
	if !c.sane {
		return false
	}
	return now.Sub(c.due) > canaryTimeout || !c.trouble.IsZero() && now.Sub(c.trouble) < canaryMemory
}

// Canary returns the state of the monitor's own probe: each second a connection
// to itself, within 250 ms. It also fails when the schedule wakes up later than
// that. While it has failed or was late in the last three seconds, what other probes fail counts as unknown: a box without CPU time must
// not take its own time-outs for the faults of others. It is Unknown before Run
// and where there is no loopback: then it has no say. Nor has it after it has
// failed for a minute though the schedule ran on time.
func (m *Monitor) Canary() edge.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.canary.entry.status
}
