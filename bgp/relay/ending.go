package relay

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/bgp/wire"
)

const (
	// byeLimit bounds the writing of the last message, drainLimit the wait for the
	// router to close: closing with its bytes unread would reset the connection,
	// and the NOTIFICATION could be lost with it.
	byeLimit   = 200 * time.Millisecond
	drainLimit = 500 * time.Millisecond
)

func holdExpired(hold time.Duration) string {
	return fmt.Sprintf("hold timer expired: nothing from the router for %s", hold)
}

// lossOf says in an operator's words why the connection is gone.
func (s *session) lossOf(err error) string {
	when := ""
	if s.phase() < openconfirm {
		when = " before its OPEN"
	}
	if failed := s.failed.Load(); errors.Is(err, io.EOF) && failed != nil {
		err = *failed // the kernel tells the real reason once
	}
	switch {
	case errors.Is(err, io.EOF):
		return "the router closed the connection" + when
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the router closed the connection within a message"
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return "connection reset by the router" + when
	case errors.Is(err, unix.ETIMEDOUT):
		return takesNothing(s.limit())
	}
	return "connection lost: " + cause(err)
}

// takesNothing is the reason for a message that could not be written, or was not
// acknowledged (TCP_USER_TIMEOUT), whichever is noticed first.
func takesNothing(limit time.Duration) string {
	return fmt.Sprintf("the router takes nothing: what it is sent has waited for %s", limit)
}

// unexpected ends the session for a message that has no place in its state
// (RFC 6608).
func (s *session) unexpected(t wire.Type) {
	state := s.phase()
	s.malformed()
	s.finish(farewell{
		why: fmt.Sprintf("the router sent %s in state %s", t, state), code: codeFSM, subcode: uint8(state - opensent + 1), data: []byte{byte(t)},
	})
}

// fault ends the session for a fault of a message.
func (s *session) fault(what string, err error) {
	f := farewell{why: what + err.Error(), code: codeCease, subcode: ceaseRejected}
	var bad *wire.Error
	if errors.As(err, &bad) {
		f.why, f.code, f.subcode, f.data = what+bad.Text, bad.Code, bad.Subcode, bad.Data
	}
	s.finish(f)
}

// notified ends the session as the router has asked for, and lets GoBGP know.
func (s *session) notified(raw []byte) {
	f := farewell{why: "the router sent a NOTIFICATION that cannot be read"}
	if n, err := wire.ParseNotification(raw); err == nil {
		f.why = "the router sent " + n.String()
		f.server = wire.Notify(n.Code, n.Subcode, n.Data)
	}
	s.finish(f)
}

// finish ends the session, once: the first reason counts. It does not wait for
// the reader, which then returns, and it is quick whatever the router does.
func (s *session) finish(f farewell) {
	p := s.p
	p.mu.Lock()
	if s.state == over {
		p.mu.Unlock()
		return
	}
	was, l := s.state, s.leg
	s.state, s.leg = over, nil
	p.sessions = slices.DeleteFunc(p.sessions, func(o *session) bool { return o == s })
	if was == established {
		p.flaps++
		p.lost = f.why
	}
	if f.why != "" {
		p.failed(f.why)
	}
	p.note()
	if was == established {
		p.log.Warn("session lost", "reason", f.why)
	} else if f.why != "" {
		p.log.Debug("no session", "reason", f.why, "state", was.String())
	}
	if l != nil {
		if f.server != nil {
			l.write(f.server) // it closes the connection for it: not before the reason is noted
		}
		l.conn.Close()
	}
	s.part(f)
}

// part says goodbye. Whoever is writing or reading is interrupted.
func (s *session) part(f farewell) {
	s.closing.Store(true)
	s.conn.SetWriteDeadline(time.Now())
	s.wmu.Lock()
	defer s.wmu.Unlock()
	s.parted = time.Now()
	// A router with GTSM would not hear that we go, and wait in a dead session. If
	// this fails, it waits.
	_ = control(s.conn, func(fd int) error { return setTTL(fd, s.p.addr.Is6(), maxTTL, 0) })
	limit := byeLimit
	if f.hard {
		// What does not leave at once is thrown away with the connection.
		limit = byeLimit / 20
		s.conn.SetLinger(0)
	}
	if f.code != 0 && !s.broken {
		s.conn.SetWriteDeadline(time.Now().Add(limit))
		s.conn.Write(wire.Notify(f.code, f.subcode, f.data))
	}
	s.broken = true
	if f.hard {
		s.conn.Close()
		return
	}
	s.conn.CloseWrite()
	s.conn.SetReadDeadline(s.parted.Add(drainLimit))
}

// drain reads what the router still sends until it closes, and for a while at
// most.
func (s *session) drain() {
	s.finish(farewell{why: "the session ended"}) // not without a reason: it has been
	s.wmu.Lock()
	began := s.parted // one wait, whoever began it
	s.wmu.Unlock()
	if began.IsZero() {
		began = time.Now() // somebody is about to say goodbye: not to be closed beneath him
	}
	s.conn.SetReadDeadline(began.Add(drainLimit))
	io.Copy(io.Discard, s.conn)
}
