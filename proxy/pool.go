package proxy

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/proxy/http1"
)

const (
	// dialTimeout bounds the connecting to an upstream: a backbone's RTT plus
	// one lost SYN.
	dialTimeout = 3 * time.Second
	// idleUpstream is how long an unused connection is kept when the upstream
	// has not said how long it will keep it.
	idleUpstream = 30 * time.Second
	// maxIdle bounds the unused connections to one upstream.
	maxIdle = 128
	// reapEvery is how often unused connections are looked at.
	reapEvery = time.Second
)

// upstreamConn is one connection to an upstream.
type upstreamConn struct {
	net.Conn
	br     *bufio.Reader
	bw     *bufio.Writer
	addr   netip.AddrPort
	reused bool
	// expires is when the connection is too old to be used again.
	expires time.Time
}

// pool keeps the connections to upstreams that wait for a request. It may be
// used by several goroutines at once.
type pool struct {
	dialer net.Dialer
	// opened and taken count connections: new ones and reused ones.
	opened, taken atomic.Uint64

	mu     sync.Mutex
	idle   map[netip.AddrPort][]*upstreamConn
	closed bool
}

func newPool() *pool {
	return &pool{dialer: net.Dialer{Timeout: dialTimeout}, idle: map[netip.AddrPort][]*upstreamConn{}}
}

// get returns a connection to addr: the one used last if there is one that is
// alive, unless fresh asks for a new one.
func (p *pool) get(ctx context.Context, addr netip.AddrPort, fresh bool) (*upstreamConn, error) {
	for !fresh {
		u := p.pop(addr)
		if u == nil {
			break
		}
		if time.Now().Before(u.expires) && alive(u.Conn) {
			u.reused = true
			p.taken.Add(1)
			return u, nil
		}
		u.Close()
	}
	c, err := p.dialer.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	p.opened.Add(1)
	return &upstreamConn{Conn: c, addr: addr, br: bufio.NewReaderSize(c, 16<<10), bw: bufio.NewWriterSize(c, 8<<10)}, nil
}

func (p *pool) pop(addr netip.AddrPort) *upstreamConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[addr]
	if len(list) == 0 {
		return nil
	}
	u := list[len(list)-1]
	p.idle[addr] = list[:len(list)-1]
	return u
}

// put gives a connection back that is between two requests. keep is for how
// long it may wait.
func (p *pool) put(u *upstreamConn, keep time.Duration) {
	u.SetDeadline(time.Time{})
	u.expires = time.Now().Add(keep)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle[u.addr]) >= maxIdle {
		u.Close()
		return
	}
	p.idle[u.addr] = append(p.idle[u.addr], u)
}

// run closes what has waited too long or was closed by the upstream, until ctx
// ends; then everything.
func (p *pool) run(ctx context.Context) {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.reap(time.Now())
		case <-ctx.Done():
			p.close()
			return
		}
	}
}

func (p *pool) reap(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr, list := range p.idle {
		kept := list[:0]
		for _, u := range list {
			if now.Before(u.expires) && alive(u.Conn) {
				kept = append(kept, u)
			} else {
				u.Close()
			}
		}
		clear(list[len(kept):])
		p.idle[addr] = kept
		if len(kept) == 0 {
			delete(p.idle, addr)
		}
	}
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, list := range p.idle {
		for _, u := range list {
			u.Close()
		}
	}
	clear(p.idle)
}

// alive looks, without waiting, whether an idle connection is still good: the
// upstream has neither closed it nor sent what nobody asked for. It shortens
// the race in which a request meets the upstream's FIN, for methods that may
// not be repeated; nothing can close it.
func alive(c net.Conn) bool {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		quiet = err == unix.EAGAIN
		return true
	})
	return err == nil && quiet
}

// keepFor reads how long the upstream keeps the connection open for us
// (Keep-Alive: timeout=N). We let go a second earlier than it does.
func keepFor(h http1.Header) time.Duration {
	for _, t := range h.Tokens("Keep-Alive") {
		v, ok := strings.CutPrefix(t, "timeout=")
		if n, err := strconv.Atoi(v); ok && err == nil && n >= 0 {
			return min(max(0, time.Duration(min(n, 3600))*time.Second-time.Second), 2*idleUpstream)
		}
	}
	return idleUpstream
}
