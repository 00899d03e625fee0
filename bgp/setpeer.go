package bgp

import (
	"context"
	"fmt"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
)

// Why a session of ours was ended for another one.
const (
	newSettings = "reset: the settings of the peer were changed"
	newIdentity = "the speaker was restarted with another ASN or router id"
	newHub      = "the speaker was restarted with another port"
	newServerOf = "reset: the BGP server of this peer did not answer, and was replaced"
)

// A server that has not answered so often in a row is replaced, if another one
// answers, and not again before replacePause has passed: the old one cannot be
// ended.
const (
	maxStrikes   = 3
	replacePause = 10 * time.Minute
)

// setPeer adds or changes a peer: its paths first, then the relay, so that a
// session that opens finds every path in the table already. The error is about
// announcements; for the peer's own trouble there is its refusal.
func (e *engine) setPeer(ctx context.Context, g *peering, a *aim) error {
	p := a.peer
	key, err := g.keyOf(p)
	if g.link != nil && g.link != a.w.link {
		e.detach(g, newHub)
	}
	if g.server != nil && g.server.key != a.w.key {
		e.detach(g, newIdentity)
		e.pool.give(ctx, g.server)
		g.empty()
	}
	switch {
	case err != nil && g.link != nil && g.key != "":
		// The session that runs has a key: keeping it breaks no promise.
		e.refuse(g, p, fmt.Errorf("new settings refused, the session goes on with the old ones: %w", err))
		return e.follow(ctx, g, a)
	case err != nil:
		e.detach(g, newSettings)
		e.refuse(g, p, fmt.Errorf("peer refused: %w", err))
		return nil
	case g.link != nil && (g.key != key || !sameSession(g.peer, p)):
		e.detach(g, newSettings)
	}
	if err := e.awake(ctx, g, a); err != nil {
		if g.lacks(a.class) == 0 {
			return nil // nothing is missing; that it does not answer is shown
		}
		return err
	}
	if g.server == nil {
		srv, err := e.pool.take(ctx, a.w.key)
		if err != nil {
			e.refuse(g, p, err)
			return err
		}
		g.change(func() { g.server = srv })
	}
	if err := e.follow(ctx, g, a); err != nil {
		return err
	}
	if err := e.attach(ctx, g, a, key); err != nil {
		e.refuse(g, p, err)
		return nil
	}
	g.change(func() { g.refusal = "" })
	return nil
}

func (e *engine) follow(ctx context.Context, g *peering, a *aim) error {
	return g.follow(ctx, a, func() bool { return g.later(ctx, a) })
}

// attach adds the relay of a peer, or tells it of settings that need no new
// session.
func (e *engine) attach(ctx context.Context, g *peering, a *aim, key string) error {
	p, w := a.peer, a.w
	cfg := relay.Config{
		Peer: p, ASN: w.key.asn, RouterID: w.key.routerID, Key: key, Server: g.server.addr, ServerKey: e.secret,
		Allowed: g.mayPass, KeepsForwarding: e.forwarding, Restarting: w.restarting(p),
	}
	if g.link != nil && !w.link.relays.Update(cfg) {
		e.detach(g, newSettings)
	}
	if g.link != nil {
		g.change(func() { g.peer = p })
		return nil
	}
	if err := g.call(ctx, "prepare BGP server", func(ctx context.Context, s *server) error { return s.meet(ctx, p, e.secret) }); err != nil {
		return err
	}
	if err := w.link.relays.Add(cfg); err != nil {
		return fmt.Errorf("peer refused: %w", err)
	}
	g.change(func() { g.peer, g.key, g.link = p, key, w.link })
	e.log.Info("peer added", "peer", p.ID, "address", p.Addr, "asn", p.ASN, "md5", key != "")
	return nil
}

// detach ends the session of a peer. Its server keeps the paths.
func (e *engine) detach(g *peering, why string) {
	if g.link == nil {
		return
	}
	st, ok := g.link.sessions.State(g.addr)
	g.link.relays.Remove(g.addr, why)
	g.change(func() {
		if ok {
			g.note(st, why, e.now())
		}
		g.link, g.key, g.reached = nil, "", nil
	})
}

// remove ends the session of a peer and gives its server back.
func (e *engine) remove(ctx context.Context, g *peering, why string) {
	e.detach(g, why)
	if g.server != nil {
		e.pool.give(ctx, g.server)
	}
	g.empty()
	g.change(func() { g.refusal, g.flaps, g.lastErr, g.lastErrAt = "", 0, "", time.Time{} })
}

// awake makes sure that a server which has not answered does so again, or another
// one in its place.
func (e *engine) awake(ctx context.Context, g *peering, a *aim) error {
	if !g.silent {
		return nil
	}
	err := g.call(ctx, "list neighbour", func(ctx context.Context, s *server) error {
		_, err := s.session(ctx)
		return err
	})
	if g.silent && g.strikes >= maxStrikes && e.replace(ctx, g, a) {
		return nil
	}
	return err
}

// replace gives the peer another server in place of one that does not answer.
// Nothing is taken from the router before the new one has taken every path: if the
// box is so busy that no server answers, another one would not either, and the
// sessions are better than none.
func (e *engine) replace(ctx context.Context, g *peering, a *aim) bool {
	now := e.now()
	if !g.replaced.IsZero() && now.Sub(g.replaced) < replacePause {
		return false
	}
	srv, err := e.pool.take(ctx, a.w.key)
	if err != nil {
		e.log.Error("a BGP server does not answer and cannot be replaced", "peer", a.peer.ID, "err", err)
		return false
	}
	fresh := newPeering(g.addr)
	fresh.server = srv
	if err := fresh.follow(ctx, a, func() bool { return g.later(ctx, a) }); err != nil {
		e.log.Error("a BGP server does not answer and cannot be replaced", "peer", a.peer.ID, "err", err)
		e.pool.give(ctx, srv)
		return false
	}
	e.log.Error("a BGP server does not answer and is replaced: its session is reset", "peer", a.peer.ID, "address", g.server.addr)
	e.detach(g, newServerOf)
	g.empty()
	g.change(func() { g.server, g.routes, g.replaced = fresh.server, fresh.routes, now })
	g.hung = false
	return true
}

func (e *engine) refuse(g *peering, p edge.Peer, err error) {
	reason := edge.Reason(err.Error())
	if g.refusal == reason {
		return
	}
	e.log.Error("set peer", "peer", p.ID, "address", p.Addr, "reason", reason)
	g.change(func() { g.refusal = reason })
}
