package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/catchment-dev/edge/bgp/wire"
)

const (
	// defaultRetry stands for a Peer.ConnectRetry of 0.
	defaultRetry = 5 * time.Second
	// probePause is how often a connection of a router whose session is up makes
	// us ask that session for a sign of life.
	probePause = time.Second
)

// dial connects to the router whenever there is no connection with it.
func (p *peer) dial(ctx context.Context) {
	wanted := func() bool { return p.leg != nil && !p.down && len(p.sessions) == 0 }
	var next time.Time
	for p.await(ctx, wanted) {
		if wait := time.Until(next); wait > 0 {
			if !pause(ctx, wait) {
				return
			}
			continue // the router may have come meanwhile
		}
		retry := p.config().Peer.ConnectRetry
		if retry <= 0 {
			retry = defaultRetry
		}
		// Between the beginnings of two attempts, so that the one that has to
		// time out does not delay the next. The jitter keeps two ends that both
		// dial from meeting for ever (RFC 4271 section 10).
		next = time.Now().Add(retry - time.Duration(rand.Int64N(int64(retry)/4+1)))
		if conn := p.connect(ctx); conn != nil {
			p.serve(ctx, conn, true)
		}
	}
}

// connect returns nil if it fails, and notes why.
func (p *peer) connect(ctx context.Context) *net.TCPConn {
	p.mu.Lock()
	p.dialling = true
	c := p.c
	p.note()
	var conn *net.TCPConn
	var err error
	p.h.inside(func() { conn, err = dialRouter(ctx, c) })
	p.mu.Lock()
	p.dialling = false
	if err != nil && ctx.Err() == nil {
		p.failed(dialFailure(c, err))
	}
	p.note()
	if err != nil {
		p.log.Debug("no connection", "err", err)
		return nil
	}
	return conn
}

// accepted takes a connection that the router has made.
func (p *peer) accepted(ctx context.Context, conn *net.TCPConn) {
	c := p.config()
	reason := ""
	if err := control(conn, func(fd int) error { return secure(fd, c) }); err != nil {
		reason = "take the router's connection: " + cause(err)
	}
	local := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().WithZone("")
	if want := c.Peer.LocalAddr; want.IsValid() && local != want.WithZone("") {
		reason = fmt.Sprintf("the router has connected to %s, the local address is %s", local, want)
	}
	if reason != "" {
		conn.Close()
		p.mu.Lock()
		p.failed(reason)
		p.note()
		return
	}
	p.serve(ctx, conn, false)
}

// serve runs a connection to its end, and closes it.
func (p *peer) serve(ctx context.Context, conn *net.TCPConn, dialled bool) {
	s := newSession(p, conn, dialled)
	defer conn.Close()
	if !p.admit(s) {
		return
	}
	// Nothing that can block listens to ctx itself.
	defer atEnd(ctx, func() { s.finish(p.parting()) })()
	s.run(ctx)
	p.mu.Lock()
	p.note()
}

// atEnd calls f when ctx ends. What it returns calls that off, or waits until f
// is through.
func atEnd(ctx context.Context, f func()) (leave func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { f(); close(done) })
	return func() {
		if !stop() {
			<-done
		}
	}
}

// admit adds a session. A router has one connection of its own at a time: of
// two that are not up, the older is a leftover. While a session is up, another
// connection means that one of us is wrong about it: the session is asked for a
// sign of life, which a router that has been restarted answers with a reset.
func (p *peer) admit(s *session) bool {
	p.mu.Lock()
	for _, o := range slices.Clone(p.sessions) {
		switch {
		case o.state == established:
			probe := time.Since(p.probed) >= probePause
			if probe {
				p.probed = time.Now()
			}
			p.mu.Unlock()
			if probe {
				o.write(wire.Keepalive())
			}
			return false
		case o.dialled == s.dialled:
			p.mu.Unlock()
			o.finish(farewell{hard: true})
			p.mu.Lock()
		}
	}
	if p.down {
		p.mu.Unlock()
		return false
	}
	p.sessions = append(p.sessions, s)
	p.note()
	return true
}

// pause blocks for d; false: ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
