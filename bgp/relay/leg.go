package relay

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/catchment-dev/edge/bgp/wire"
)

const (
	// legPause is between two attempts to reach GoBGP: for five seconds after a
	// lost session it closes every connection.
	legPause = 100 * time.Millisecond
	// legLimit bounds the connect, the wait for GoBGP's OPEN and every write.
	legLimit = 2 * time.Second
	// legReturn is how long a session that is made waits for a GoBGP that has gone
	// just then.
	legReturn = 2 * time.Second
	// legPatience is after how long without GoBGP somebody should know.
	legPatience = 8 * time.Second
)

// leg is a connection to the peer's GoBGP, whose goroutine reads it to its end.
type leg struct {
	conn net.Conn
	// session is what it is joined to; p.mu guards it.
	session *session
}

// keepLeg has a connection to GoBGP ready whenever GoBGP takes one. It comes
// before the router's: where GoBGP is not ready there is no point in a session.
func (p *peer) keepLeg(ctx context.Context) {
	missing := time.Now()
	for ctx.Err() == nil {
		err := p.oneLeg(ctx, &missing)
		if time.Since(missing) >= legPatience && ctx.Err() == nil {
			missing = time.Now()
			p.mu.Lock()
			p.failed(fmt.Sprintf("the BGP server of this peer (%s) takes no session: %s", p.c.Server, cause(err)))
			p.note()
			p.log.Warn("no connection to the BGP server", "err", err)
		}
		if !pause(ctx, legPause) {
			return
		}
	}
}

// oneLeg connects to GoBGP and reads until the connection ends. missing becomes
// the time at which it ended if it was ready.
func (p *peer) oneLeg(ctx context.Context, missing *time.Time) error {
	c := p.config()
	d := dialer(func(fd int) error {
		if c.ServerKey == "" {
			return nil
		}
		return setKey(fd, c.Server.Addr(), c.ServerKey)
	})
	d.Timeout = legLimit
	conn, err := d.DialContext(ctx, "tcp", c.Server.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	l := &leg{conn: conn}
	defer atEnd(ctx, func() { p.dropLeg(l) })()
	conn.SetReadDeadline(time.Now().Add(legLimit))
	r := wire.NewReader(conn)
	m, err := r.Read()
	if err != nil {
		return err
	}
	if m.Type != wire.TypeOpen {
		return fmt.Errorf("its first message is %s", m.Type)
	}
	conn.SetReadDeadline(time.Time{})
	p.mu.Lock()
	if ctx.Err() == nil { // else dropLeg has been
		p.leg = l
	}
	p.note()
	p.forward(l, r)
	*missing = time.Now()
	return net.ErrClosed
}

// dropLeg closes the connection to GoBGP because the relay ends. The session
// goes first: it would take a closed connection for a fault, and tell the router.
func (p *peer) dropLeg(l *leg) {
	p.mu.Lock()
	if p.leg == l {
		p.leg = nil
	}
	s := l.session
	p.mu.Unlock()
	if s != nil {
		s.finish(p.parting())
	}
	l.conn.Close()
}

// forward hands what GoBGP says to the session, until the connection ends.
func (p *peer) forward(l *leg, r *wire.Reader) {
	for {
		m, err := r.Read()
		p.mu.Lock()
		s := l.session
		if s == nil { // it has given up waiting
			p.leg = nil
			p.note()
			return
		}
		p.mu.Unlock()
		if err != nil {
			s.finish(farewell{why: "the BGP server of this peer closed its connection: " + cause(err), code: codeCease, subcode: ceaseShutdown})
			return
		}
		s.fromServer(m)
	}
}

// write sends to GoBGP; false: it does not read.
func (l *leg) write(b []byte) bool {
	l.conn.SetWriteDeadline(time.Now().Add(legLimit))
	_, err := l.conn.Write(b)
	return err == nil
}

// join makes the session: GoBGP gets the router's OPEN and KEEPALIVE. Every
// other connection with the router ends.
func (s *session) join(ctx context.Context) bool {
	p := s.p
	ctx, cancel := context.WithTimeout(ctx, legReturn)
	defer cancel()
	p.await(ctx, func() bool { return p.leg != nil || s.state == over })
	hop := newLinkHop(s)
	p.mu.Lock()
	if s.state != openconfirm {
		p.mu.Unlock()
		return false
	}
	l := p.leg
	if l == nil {
		p.mu.Unlock()
		s.finish(farewell{why: "the BGP server of this peer takes no session", code: codeCease, subcode: ceaseRejected})
		return false
	}
	p.leg, l.session = nil, s
	s.hop = hop
	s.leg, s.state = l, established
	p.greeted, p.lost = true, ""
	open := forServer(s.ours, s.remote)
	var others []*session
	for _, o := range p.sessions {
		if o != s {
			others = append(others, o)
		}
	}
	p.note()
	for _, o := range others {
		o.finish(farewell{code: codeCease, subcode: ceaseCollision})
	}
	p.log.Info("session up", "id", s.remote.ID, "hold", s.hold, "families", open.Families, "dialled", s.dialled)
	s.fed = time.Now()
	return s.toServer(append(open.Marshal(), wire.Keepalive()...))
}
