package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
)

// defaultLimit is the import limit where Peer.ImportLimit is 0.
const defaultLimit = 1000

// peer is one router: at most one connection that we have dialled, one that it
// has, and one to its GoBGP.
type peer struct {
	h    *Hub
	addr netip.Addr // Peer.Addr
	// What of the Config tells its connections from others', and does not change:
	// the address without a zone, the interface it is bound to or is on (empty:
	// none), the TCP MD5 key.
	bare    netip.Addr
	link    string
	key     string
	log     *slog.Logger
	accepts chan *net.TCPConn
	gone    chan farewell // Remove has been called
	done    chan struct{} // run has ended

	mu sync.Mutex
	// changed is closed, and replaced, whenever something below changes.
	changed chan struct{}
	c       Config
	// down: shut down until removed.
	down bool
	// leg is the connection to GoBGP as long as it waits for a session.
	leg      *leg
	dialling bool
	sessions []*session // those that are not over
	probed   time.Time
	// greeted: a session has been up, so the R bit has served its purpose.
	greeted bool

	word      string // State.Session
	since     time.Time
	flaps     int
	lastErr   string
	lastErrAt time.Time
	lost      string // why the last established session ended
	counts    edge.MessageCounts
	// rev is another one after each change of what State shows.
	rev uint64
}

// farewell is why a session ends, and what the router is told; code 0: nothing.
type farewell struct {
	why           string // for the operator; empty: nothing that went wrong
	code, subcode uint8
	data          []byte
	// server is the NOTIFICATION of the router that GoBGP is told; nil: none.
	server []byte
	// hard wants it over now, whatever is on its way.
	hard bool
}

func newPeer(h *Hub, c Config) *peer {
	return &peer{
		h: h, c: c, addr: c.Peer.Addr, bare: c.Peer.Addr.WithZone(""), link: device(c.Peer), key: c.Key,
		log:     h.o.Log.With("peer", c.Peer.ID, "address", c.Peer.Addr),
		accepts: make(chan *net.TCPConn, 4), gone: make(chan farewell, 1), done: make(chan struct{}),
		changed: make(chan struct{}), word: "idle", since: h.o.Now(),
	}
}

// run works until ctx ends or the peer is removed.
func (p *peer) run(ctx context.Context) {
	defer close(p.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { p.keepLeg(ctx) })
	if !p.c.Peer.Passive {
		wg.Go(func() { p.dial(ctx) })
	}
	var last farewell
	for running := true; running; {
		select {
		case conn := <-p.accepts:
			wg.Go(func() { p.accepted(ctx, conn) })
		case last = <-p.gone:
			running = false
		case <-ctx.Done():
			running, last = false, p.parting()
		}
	}
	p.end(last)
	cancel()
	// A session that came up since ends by itself as ctx has ended.
	wg.Wait()
	for len(p.accepts) > 0 {
		(<-p.accepts).Close()
	}
}

// parting is how the sessions end with this process. Where graceful restart was
// negotiated the router shall keep the routes, and any NOTIFICATION would drop
// them (RFC 4724 section 4).
func (p *peer) parting() farewell {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := farewell{why: "edgebgp stops", code: codeCease, subcode: ceaseShutdown}
	for _, s := range p.sessions {
		if s.state == established && s.ours.GracefulRestart != nil && s.remote.GracefulRestart != nil {
			f.code = 0
		}
	}
	return f
}

// remove ends run and waits for it.
func (p *peer) remove(f farewell) {
	p.gone <- f // has room: it is sent once
	<-p.done
}

func (p *peer) shutdown(text string) {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	p.end(farewell{
		why: fmt.Sprintf("shut down here: %q", text), code: codeCease, subcode: ceaseShutdown, data: communication(text),
	})
	p.mu.Lock()
	p.note()
}

// end ends all connections to the router.
func (p *peer) end(f farewell) {
	p.mu.Lock()
	all := slices.Clone(p.sessions)
	p.mu.Unlock()
	for _, s := range all {
		s.finish(f)
	}
}

func (p *peer) config() Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.c
}

// update takes c over unless it needs a new session.
func (p *peer) update(c Config) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !sameSession(p.c, c) {
		return false
	}
	p.rev++
	c.Restarting = p.c.Restarting
	p.c = c
	for _, s := range p.sessions {
		s.in.Limit = importLimit(c.Peer)
	}
	return true
}

// sameSession says whether a session with settings a can go on under b.
func sameSession(a, b Config) bool {
	p, q := a.Peer, b.Peer
	return a.ASN == b.ASN && a.RouterID == b.RouterID && a.Key == b.Key && a.Server == b.Server && a.ServerKey == b.ServerKey &&
		p.Addr == q.Addr && p.ASN == q.ASN && p.LocalAddr == q.LocalAddr && slices.Equal(p.Families, q.Families) &&
		p.Hold == q.Hold && p.Keepalive == q.Keepalive && p.Multihop == q.Multihop && p.TTLSecurity == q.TTLSecurity &&
		p.Interface == q.Interface && p.Passive == q.Passive && p.RestartTime == q.RestartTime &&
		extended(p) == extended(q)
}

func importLimit(p edge.Peer) int {
	if p.ImportLimit > 0 {
		return p.ImportLimit
	}
	return defaultLimit
}

// note works out the state in one word, wakes whoever waits for a change, and
// unlocks p.mu, which is held: OnChange is called without it.
func (p *peer) note() {
	word := "active"
	switch {
	case p.best() != nil:
		word = p.best().state.String()
	case p.down || p.leg == nil:
		word = "idle"
	case p.dialling:
		word = "connect"
	}
	p.rev++
	close(p.changed)
	p.changed = make(chan struct{})
	was := p.word
	if word != was {
		p.word, p.since = word, p.h.o.Now()
	}
	p.mu.Unlock()
	if word != was && p.h.o.OnChange != nil {
		p.h.o.OnChange(p.addr)
	}
}

// best is the session that has come furthest; nil: there is none. A connection
// that still waits for GoBGP counts for none. p.mu is held.
func (p *peer) best() *session {
	var best *session
	for _, s := range p.sessions {
		if s.state >= opensent && (best == nil || s.state > best.state) {
			best = s
		}
	}
	return best
}

// failed notes what went wrong, unless there is another connection, which may
// do better. p.mu is held.
func (p *peer) failed(why string) {
	if len(p.sessions) > 0 {
		return
	}
	if p.lost != "" && why != p.lost {
		why += "; the last session was lost: " + p.lost
	}
	p.lastErr, p.lastErrAt = why, p.h.o.Now()
	p.rev++
}

// await blocks until cond holds; false: ctx has ended. cond is called with p.mu
// held.
func (p *peer) await(ctx context.Context, cond func() bool) bool {
	for {
		p.mu.Lock()
		ok, changed := cond(), p.changed
		p.mu.Unlock()
		if ok {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// state is a copy of all that is known.
func (p *peer) state() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := State{
		Session: p.word, Since: p.since, Flaps: p.flaps, LastErr: p.lastErr, LastErrAt: p.lastErrAt, Counts: p.counts,
	}
	if s := p.best(); s != nil {
		s.describe(&st)
	}
	return st
}
