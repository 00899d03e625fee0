package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// openLimit is how long the router may take for its OPEN. RFC 4271 suggests
// four minutes; with that a router that dies at this moment would cost four
// minutes.
const openLimit = 15 * time.Second

// phase is the state of one connection.
type phase int

const (
	waiting phase = iota // for GoBGP to be ready
	opensent
	openconfirm
	established
	over
)

func (f phase) String() string {
	return [...]string{"waiting", "opensent", "openconfirm", "established", "over"}[f]
}

// session is one connection with the router, from its first OPEN to its end. One
// goroutine reads it; several write.
type session struct {
	p       *peer
	conn    *net.TCPConn
	dialled bool // by us
	r       *wire.Reader

	wmu sync.Mutex
	// parted is when goodbye was said; guarded by wmu.
	parted time.Time
	// broken: a message was cut off, nothing more can be said.
	broken  bool
	failed  atomic.Pointer[error] // why nothing can be written any more
	closing atomic.Bool           // a goodbye waits for wmu

	// The rest is guarded by p.mu.
	state        phase
	ours, remote wire.Open
	hold         time.Duration
	leg          *leg
	in, out      wire.Table
	default4     bool
	default6     bool
	notSent      map[netip.Prefix]string
	hop          *linkHop // set before it is established; nil: not link-local

	// Only the reader has these.
	fed       time.Time            // when GoBGP was last handed a KEEPALIVE
	ribs      map[edge.Family]bool // families whose End-of-RIB has come
	refreshes map[edge.Family]*refresh
}

func newSession(p *peer, conn *net.TCPConn, dialled bool) *session {
	s := &session{
		p: p, conn: conn, dialled: dialled, notSent: map[netip.Prefix]string{},
		ribs: map[edge.Family]bool{}, refreshes: map[edge.Family]*refresh{},
		r: wire.NewReader(bufio.NewReaderSize(conn, 16<<10)),
	}
	s.in.Limit = importLimit(p.config().Peer)
	return s
}

// run has the session from beginning to end.
func (s *session) run(ctx context.Context) {
	defer s.drain()
	if !s.waitForServer(ctx) || !s.sendOpen() || !s.readOpen() || !s.confirm(ctx) {
		return
	}
	defer s.stopRefreshes()
	for {
		m, ok := s.read(s.hold)
		if !ok || !s.fromRouter(m) {
			return
		}
	}
}

// waitForServer waits until GoBGP can take a session: for five seconds after a
// lost one it cannot. The router waits longer for our OPEN.
func (s *session) waitForServer(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	if s.p.await(ctx, func() bool { return s.p.leg != nil || s.state == over }) {
		return true
	}
	s.finish(farewell{why: "the BGP server of this peer takes no session", code: codeCease, subcode: ceaseRejected})
	return false
}

func (s *session) sendOpen() bool {
	open := s.p.open()
	s.p.mu.Lock()
	if s.state == over {
		s.p.mu.Unlock()
		return false
	}
	s.ours, s.state = open, opensent
	s.p.note()
	return s.say(open.Marshal())
}

// readOpen reads and judges the router's OPEN, resolves a collision, and
// confirms.
func (s *session) readOpen() bool {
	m, ok := s.expect(wire.TypeOpen, openLimit)
	if !ok {
		return false
	}
	remote, err := judge(m.Raw, s.p.config())
	if err != nil {
		s.fault("the router's OPEN: ", err)
		return false
	}
	if !s.p.collide(s, remote) {
		return false
	}
	return s.say(wire.Keepalive())
}

// confirm waits for the KEEPALIVE that makes the session, and joins it to GoBGP.
func (s *session) confirm(ctx context.Context) bool {
	_, ok := s.expect(wire.TypeKeepalive, s.hold)
	return ok && s.join(ctx)
}

// expect reads a message of one type. Any other ends the session.
func (s *session) expect(t wire.Type, limit time.Duration) (wire.Message, bool) {
	m, ok := s.read(limit)
	switch {
	case !ok:
	case m.Type == wire.TypeNotification:
		s.notified(m.Raw)
	case m.Type != t:
		s.unexpected(m.Type)
	default:
		return m, true
	}
	return wire.Message{}, false
}

// read returns the router's next message, which must be whole within limit. If
// there is none the session is ended with the reason.
func (s *session) read(limit time.Duration) (wire.Message, bool) {
	s.conn.SetReadDeadline(time.Now().Add(limit))
	if s.closing.Load() { // its deadline was shorter
		return wire.Message{}, false
	}
	m, err := s.r.Read()
	var bad *wire.Error
	switch {
	case err == nil:
		return m, true
	case errors.As(err, &bad):
		s.malformed()
		s.fault("the router sent garbage: ", err)
	case errors.Is(err, os.ErrDeadlineExceeded) && s.phase() == opensent:
		s.finish(farewell{why: fmt.Sprintf("no OPEN from the router within %s", limit), code: codeHold})
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.finish(farewell{why: holdExpired(limit), code: codeHold})
	default:
		s.finish(farewell{why: s.lossOf(err)})
	}
	return wire.Message{}, false
}

func (s *session) phase() phase {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.state
}

// write sends one message to the router within the hold time. It is whole on the
// wire or the session cannot go on.
func (s *session) write(b []byte) error {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if s.broken {
		return net.ErrClosed
	}
	limit := s.limit()
	s.conn.SetWriteDeadline(time.Now().Add(limit))
	if s.closing.Load() { // whose deadline has just been overwritten
		return net.ErrClosed
	}
	n, err := s.conn.Write(b)
	if err != nil {
		s.broken = n > 0
		s.failed.Store(&err)
	}
	return err
}

// limit is how long the router may leave us waiting with a message.
func (s *session) limit() time.Duration {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.state < openconfirm {
		return min(openLimit, s.p.c.Peer.Hold)
	}
	return s.hold
}

// send is write that ends the session if the router takes nothing; other
// failures are seen by the reader too, which may find a reason before them.
func (s *session) send(b []byte) bool {
	err := s.write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) { // RFC 9687, if there is room for it
		s.finish(farewell{why: takesNothing(s.limit()), code: codeSend})
	}
	return err == nil
}

// say is send for the reader itself: if it fails, the reason is looked for.
func (s *session) say(b []byte) bool {
	if s.send(b) {
		return true
	}
	m, ok := s.read(drainLimit)
	switch {
	case !ok:
	case m.Type == wire.TypeNotification:
		s.notified(m.Raw)
	default:
		s.finish(farewell{why: s.lossOf(io.EOF)})
	}
	return false
}

// malformed counts a message that is not as the standards say.
func (s *session) malformed() {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.rev++
	s.p.counts.Malformed++
}
