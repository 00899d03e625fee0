package bfd

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// retryPause is the time between two attempts to open a session's sockets.
const retryPause = time.Second

// session is a machine with its sockets and counters.
type session struct {
	id
	peer    netip.Addr // as configured
	cfg     Config     // normal
	m       *machine
	leaving bool // removed by Set; stays until the far end has been told

	rx      *receiver // nil: the sockets are not open
	tx      int
	port    int // of tx; kept over a reopening
	to      unix.Sockaddr
	source  source
	stale   bool      // the sockets may be of an interface that is no more
	retryAt time.Time // while rx is nil

	openErr error // why the sockets are not open, or what is odd with them
	sendErr error
	errno   unix.Errno // of sendErr
	logged  string

	sent, received uint64
	dropped        [reasons]uint64
}

// source is where a session's packets come from.
type source struct {
	from  netip.Addr
	index int // of the link, if from is link-local
}

// oddity is what is wrong with open sockets.
func (s *session) oddity() error {
	if s.rx != nil && s.cfg.Local.IsValid() && absent(s.cfg.Local, s.rx.index) {
		return fmt.Errorf("bfd to %s: local address %s is not on this box", s.peer, s.cfg.Local)
	}
	return nil
}

// next is the session's next deadline; zero if there is none.
func (s *session) next() time.Time {
	switch {
	case s.rx != nil:
		return s.m.next()
	case !s.m.detectAt.IsZero() && s.m.detectAt.Before(s.retryAt):
		return s.m.detectAt // heard before the sockets were closed
	}
	return s.retryAt
}

// check makes the checks of a packet that need the session; the order is that
// of RFC 5881 section 5 and RFC 5880 section 6.8.6.
func (s *session) check(r *receiver, d datagram) (packet, reason) {
	if r != s.rx {
		return packet{}, badAddress
	}
	least := ttl
	if s.cfg.Multihop {
		least = int(s.cfg.MinTTL)
	}
	if d.ttl < least {
		return packet{}, badTTL
	}
	p, why := parse(d.payload)
	if why == taken && p.yours != 0 && p.yours != s.m.local {
		why = badDiscriminator
	}
	return p, why
}

// write sends a packet and keeps what went wrong for Status.
func (s *session) write(b []byte) {
	err := unix.Sendto(s.tx, b, 0, s.to)
	if err == nil {
		s.sent++
		s.sendErr, s.errno = nil, 0
		return
	}
	var errno unix.Errno
	if errors.As(err, &errno) && errno == s.errno && s.sendErr != nil {
		return // as before: spare the allocation
	}
	s.errno = errno
	switch {
	case errno == unix.EINVAL && s.cfg.Local.IsValid():
		s.sendErr = fmt.Errorf("send to %s: local address %s is not on this box: %w", s.peer, s.cfg.Local, err)
	default:
		s.sendErr = fmt.Errorf("send to %s: %w", s.peer, err)
	}
}

// lastErr is the text of Status.LastErr.
func (s *session) lastErr() string {
	switch {
	case s.openErr != nil && s.m.state != Up:
		return s.openErr.Error()
	case s.sendErr != nil:
		return s.sendErr.Error()
	}
	return ""
}

func (s *session) status() Status {
	m := s.m
	st := Status{
		Peer: s.peer, State: m.state, RemoteState: m.remoteState, Since: m.since, Diag: m.diag, RemoteDiag: m.remoteDiag,
		Lost: m.lost, LastErr: s.lastErr(), Detect: m.detection(), Tx: m.interval(), Local: m.local, Remote: m.remote,
		Flaps: m.flaps, Sent: s.sent, Received: s.received, Dropped: counted(&s.dropped),
	}
	if m.remote != 0 {
		st.Rx = m.remoteInterval()
	}
	return st
}

// counted are the counters that are not 0; nil if all are.
func counted(n *[reasons]uint64) map[string]uint64 {
	out := map[string]uint64{}
	for r, n := range n {
		if n > 0 {
			out[reason(r).String()] = n
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
