package bgp

import (
	"context"
	"log/slog"
	"slices"
	"sync"
)

// pool keeps the servers that no peer uses. GoBGP's main loop cannot be ended,
// so a server lives as long as the process: peers that come and go must find
// one again rather than start one more. Several goroutines may use it.
type pool struct {
	log  *slog.Logger
	make func(context.Context) (*server, error)

	mu    sync.Mutex
	spare []*server
}

// take returns a server for key, without neighbour and paths: one that speaks for
// it already, if there is one.
func (p *pool) take(ctx context.Context, key serverKey) (*server, error) {
	s := p.pick(key)
	if s == nil {
		var err error
		if s, err = p.make(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.listen(ctx, key); err != nil {
		if s.key == (serverKey{}) {
			p.put(s)
		} else {
			p.log.Error("a BGP server is given up", "address", s.addr, "err", err)
		}
		return nil, err
	}
	return s, nil
}

func (p *pool) pick(key serverKey) *server {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.spare) == 0 {
		return nil
	}
	i := max(0, slices.IndexFunc(p.spare, func(s *server) bool { return s.key == key }))
	s := p.spare[i]
	p.spare = slices.Delete(p.spare, i, i+1)
	return s
}

func (p *pool) put(s *server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spare = append(p.spare, s)
}

// give takes a server back. One that cannot be cleared is left to itself: it
// must never speak for another peer.
func (p *pool) give(ctx context.Context, s *server) {
	if err := s.clear(ctx); err != nil {
		p.log.Error("a BGP server is given up", "address", s.addr, "err", err)
		return
	}
	p.put(s)
}

// close ends the listeners of the spare servers.
func (p *pool) close(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.spare {
		if err := s.close(ctx); err != nil {
			p.log.Error("stop BGP server", "address", s.addr, "err", err)
		}
	}
}
