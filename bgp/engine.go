package bgp

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
)

// atOnce is how many peers are worked on at the same time: each has a server of
// its own, so one that does not answer keeps the others waiting once only.
const atOnce = 32

// confirmLimit bounds how long an answer waits for withdrawals to be written.
const confirmLimit = 250 * time.Millisecond

// newSettings is why a session of ours was ended for another one.
const newSettings = "reset: the settings of the peer were changed"

// relays is the part of the hub that has to do with its peers.
type relays interface {
	Add(relay.Config) error
	Update(relay.Config) bool
	Remove(peer netip.Addr, why string)
}

// sessions is the part of the hub that has to do with the sessions.
type sessions interface {
	State(peer netip.Addr) (relay.State, bool)
	Shutdown(peer netip.Addr, text string)
	Down(peer netip.Addr, why string)
}

// engine is all peers, each with a server and a relay. Run's goroutine uses it;
// it hands each peering to one worker at a time and waits for them.
type engine struct {
	log      *slog.Logger
	now      func() time.Time
	pool     *pool
	relays   relays
	sessions sessions
	// secret is the key of TCP MD5 between the relays and the servers: nobody
	// else on this box can take the part of either.
	secret     string
	forwarding func() bool // nil: not known
	key        serverKey
	peerings   map[netip.Addr]*peering
}

// newEngine returns an engine without peers. Its hub is set with the first
// intent.
func newEngine(s *Speaker) *engine {
	return &engine{
		log: s.log, now: s.now, secret: rand.Text(), forwarding: s.forwarding, peerings: map[netip.Addr]*peering{},
		pool: &pool{log: s.log, make: func(ctx context.Context) (*server, error) { return newServer(ctx, s.log, s.kick) }},
	}
}

// wish is what the peers are to be and to be sent.
type wish struct {
	speaker edge.Speaker
	key     serverKey
	// announcements are in the way that the lease lets them be announced.
	announcements []edge.Announcement
	refused       map[netip.Prefix]edge.Reason
	// version is another one whenever announcements or refused are.
	version uint64
	// restarting says whether a peer may be told that we have restarted.
	restarting func(edge.Peer) bool
}

// offers are the routes that p is to be sent, and why not the others.
func (w *wish) offers(p edge.Peer) (map[netip.Prefix]route, map[netip.Prefix]edge.Reason) {
	want, not := map[netip.Prefix]route{}, map[netip.Prefix]edge.Reason{}
	for _, a := range w.announcements {
		r, why := offer(w.speaker, p, a)
		if refused := w.refused[a.Net]; refused != "" {
			why = refused
		}
		if why != "" {
			not[a.Net] = why
		} else {
			want[a.Net] = r
		}
	}
	return want, not
}

// each calls f for every peering of list, several at once, and joins the errors.
func each(list []*peering, f func(*peering) error) error {
	var mu sync.Mutex
	var errs []error
	var work sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, g := range list {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			if err := f(g); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	work.Wait()
	slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

func (e *engine) all() []*peering { return slices.Collect(maps.Values(e.peerings)) }

// set brings about the wish: of each peer the paths, then the relay, so that a
// session that opens finds every path in the table already. One that fails does
// not keep the others back. It removes no peer. The error is about announcements;
// of a peer its state tells.
func (e *engine) set(ctx context.Context, w *wish) error {
	if e.key != w.key {
		e.removeAll(ctx, "the speaker was restarted with another ASN or router id", nil)
		e.key = w.key
	}
	list := make([]*peering, len(w.speaker.Peers))
	settings := map[*peering]edge.Peer{}
	for i, p := range w.speaker.Peers {
		if e.peerings[p.Addr] == nil {
			e.peerings[p.Addr] = newPeering()
		}
		list[i] = e.peerings[p.Addr]
		settings[list[i]] = p
	}
	return each(list, func(g *peering) error {
		if err := e.setPeer(ctx, g, settings[g], w); err != nil {
			return fmt.Errorf("peer %s: %w", settings[g].ID, err)
		}
		return nil
	})
}

// setPeer adds or changes a peer.
func (e *engine) setPeer(ctx context.Context, g *peering, p edge.Peer, w *wish) error {
	key, err := g.keyOf(p)
	switch {
	case err != nil && g.relayed && g.key != "":
		// The session that runs has a key: keeping it breaks no promise.
		e.refuse(g, p, fmt.Errorf("new settings refused, the session goes on with the old ones: %w", err))
		return g.follow(ctx, p, w)
	case err != nil:
		e.detach(g, p.Addr, newSettings)
		e.refuse(g, p, fmt.Errorf("peer refused: %w", err))
		return nil
	case g.relayed && (g.key != key || !sameSession(g.peer, p)):
		e.detach(g, p.Addr, newSettings)
	}
	if g.server == nil {
		if g.server, err = e.pool.take(ctx, w.key); err != nil {
			e.refuse(g, p, err)
			return err
		}
	}
	if err := g.follow(ctx, p, w); err != nil {
		return err
	}
	if err := e.attach(ctx, g, p, key, w); err != nil {
		e.refuse(g, p, err)
		return nil
	}
	g.refusal = ""
	return nil
}

// attach adds the relay of a peer, or tells it of settings that need no new
// session.
func (e *engine) attach(ctx context.Context, g *peering, p edge.Peer, key string, w *wish) error {
	cfg := relay.Config{
		Peer: p, ASN: w.key.asn, RouterID: w.key.routerID, Key: key, Server: g.server.addr, ServerKey: e.secret,
		Allowed: g.mayPass, KeepsForwarding: e.forwarding, Restarting: w.restarting(p),
	}
	if g.relayed && !e.relays.Update(cfg) {
		e.detach(g, p.Addr, newSettings)
	}
	if g.relayed {
		g.peer = p
		return nil
	}
	if err := g.call(ctx, "prepare BGP server", func(ctx context.Context, s *server) error { return s.meet(ctx, p, e.secret) }); err != nil {
		return err
	}
	if err := e.relays.Add(cfg); err != nil {
		return fmt.Errorf("peer refused: %w", err)
	}
	g.peer, g.key, g.relayed = p, key, true
	e.log.Info("peer added", "peer", p.ID, "address", p.Addr, "asn", p.ASN, "md5", key != "")
	return nil
}

// detach ends the session of a peer. Its server keeps the paths.
func (e *engine) detach(g *peering, addr netip.Addr, why string) {
	if !g.relayed {
		return
	}
	if st, ok := e.sessions.State(addr); ok {
		g.note(st, why, e.now())
	}
	e.relays.Remove(addr, why)
	g.relayed, g.key = false, ""
}

func (e *engine) detachAll(why string) {
	for addr, g := range e.peerings {
		e.detach(g, addr, why)
	}
}

// close makes no server listen any more.
func (e *engine) close(ctx context.Context) {
	each(e.all(), func(g *peering) error {
		if g.server != nil && !g.hung {
			e.pool.put(g.server)
		}
		return nil
	})
	e.pool.close(ctx)
}

// remove ends the session of a peer and gives its server back.
func (e *engine) remove(ctx context.Context, g *peering, addr netip.Addr, why string) {
	e.detach(g, addr, why)
	if g.server != nil {
		e.pool.give(ctx, g.server)
	}
	g.server, g.hung, g.version = nil, false, 0
	clear(g.routes)
}

// removeAll removes every peer for good but those that keep says, several at
// once.
func (e *engine) removeAll(ctx context.Context, why string, keep map[netip.Addr]bool) {
	var gone []*peering
	addrs := map[*peering]netip.Addr{}
	for addr, g := range e.peerings {
		if !keep[addr] {
			gone = append(gone, g)
			addrs[g] = addr
		}
	}
	each(gone, func(g *peering) error { e.remove(ctx, g, addrs[g], why); return nil })
}

// trim removes the peers that are not wanted any more.
func (e *engine) trim(ctx context.Context, list []edge.Peer) {
	want := map[netip.Addr]bool{}
	for _, p := range list {
		want[p.Addr] = true
	}
	e.removeAll(ctx, "the peer was removed", want)
	for addr, g := range e.peerings {
		if !want[addr] {
			delete(e.peerings, addr)
			e.log.Info("peer removed", "peer", g.wanted.ID, "address", addr)
		}
	}
}

// withdraw takes a prefix away from every peer. The error names those whose
// server could not be told.
func (e *engine) withdraw(ctx context.Context, net netip.Prefix) error {
	err := each(e.all(), func(g *peering) error {
		if err := g.withdraw(ctx, e.key.asn, net); err != nil {
			return fmt.Errorf("peer %s: %w", g.wanted.ID, err)
		}
		return nil
	})
	if err == nil {
		e.log.Info("withdraw", "prefix", net)
	}
	return err
}

// confirm waits for as long as confirmLimit until the routers have been sent the
// withdrawals: the servers have been told, and their words are on the way. A
// router that does not read is not waited for any longer; the state shows what it
// holds.
func (e *engine) confirm(ctx context.Context, gone []netip.Prefix) {
	ctx, cancel := context.WithTimeout(ctx, confirmLimit)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for addr, g := range e.peerings {
		for g.relayed && len(gone) > 0 && e.holdsAny(addr, gone) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}
}

func (e *engine) holdsAny(addr netip.Addr, nets []netip.Prefix) bool {
	st, _ := e.sessions.State(addr)
	return slices.ContainsFunc(st.Held, func(h edge.HeldPrefix) bool { return slices.Contains(nets, h.Net) })
}

// revive makes idle servers take connections again: see server.revive.
func (e *engine) revive(ctx context.Context) {
	each(e.all(), func(g *peering) error {
		if g.server == nil || g.hung {
			return nil
		}
		err := g.call(ctx, "revive BGP server", func(ctx context.Context, s *server) error { return s.revive(ctx) })
		if err != nil {
			e.log.Error("revive BGP server", "peer", g.wanted.ID, "err", err)
		}
		return nil
	})
}

// wakeUp forgets which servers did not answer.
func (e *engine) wakeUp() {
	for _, g := range e.peerings {
		g.hung = false
	}
}

func (e *engine) hangs() bool {
	return slices.ContainsFunc(e.all(), func(g *peering) bool { return g.hung })
}

func (e *engine) refuse(g *peering, p edge.Peer, err error) {
	if reason := edge.Reason(err.Error()); g.refusal != reason {
		e.log.Error("set peer", "peer", p.ID, "address", p.Addr, "reason", reason)
		g.refusal = reason
	}
}

// refused says whether a peer is not as it should be.
func (e *engine) refused() bool {
	return slices.ContainsFunc(e.all(), func(g *peering) bool { return g.refusal != "" })
}
