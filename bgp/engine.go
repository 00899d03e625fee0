package bgp

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
)

// atOnce is how many peers are worked on at the same time: each has a server of
// its own, so one that does not answer keeps few others waiting.
const atOnce = 32

// How long Run waits for the workers; edged waits 2 s for all of it.
const (
	// patience is for what an intent changes. The rest goes on, and the state shows
	// what is pending.
	patience = 250 * time.Millisecond
	// withdrawLimit is for all servers to be told to withdraw a prefix. One that
	// changes a session may take a second to say goodbye.
	withdrawLimit = 1200 * time.Millisecond
	// confirmLimit is for withdrawals to be written.
	confirmLimit = 250 * time.Millisecond
)

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

// link is a hub, as the peers use it.
type link struct {
	relays   relays
	sessions sessions
}

// engine is all peers, each with a server and a relay. Run's goroutine uses it;
// what takes time is done by one worker of each peer, which it need not wait for.
type engine struct {
	log  *slog.Logger
	now  func() time.Time
	kick func() // makes Run look
	pool *pool
	link *link // the hub that runs; nil: none
	// secret is the key of TCP MD5 between the relays and the servers: nobody
	// else on this box can take the part of either.
	secret     string
	forwarding func() bool // nil: not known
	peerings   map[netip.Addr]*peering
	classes    *classes

	slots   chan struct{}
	calm    chan struct{} // a worker has ended; size 1
	workers sync.WaitGroup
}

// newEngine returns an engine without peers. Its hub is set with the first
// intent.
func newEngine(s *Speaker) *engine {
	return &engine{
		log: s.log, now: s.now, kick: s.kick, secret: rand.Text(), forwarding: s.forwarding,
		peerings: map[netip.Addr]*peering{}, classes: &classes{},
		slots: make(chan struct{}, atOnce), calm: make(chan struct{}, 1),
		pool: &pool{log: s.log, make: func(ctx context.Context) (*server, error) { return newServer(ctx, s.log, s.kick) }},
	}
}

// wish is what the peers are to be and to be sent. It is not changed.
type wish struct {
	speaker edge.Speaker
	key     serverKey
	link    *link
	// announcements are in the way that the lease lets them be announced.
	announcements []edge.Announcement
	refused       map[netip.Prefix]edge.Reason
	hops          map[netip.Addr]bool // the next hops of the announcements
	// version is another one whenever announcements or refused are.
	version uint64
	// restarting says whether a peer may be told that we have restarted. Several
	// goroutines may ask.
	restarting func(edge.Peer) bool
}

// set hands the wish to the workers, which bring it about; peers that are not in it
// are removed.
func (e *engine) set(ctx context.Context, w *wish) error {
	now, before := e.classes, (*classes)(nil)
	if now.version != w.version || now.asn != w.key.asn {
		now, before = &classes{version: w.version, asn: w.key.asn, list: map[string]*class{}}, e.classes
	}
	wanted := map[netip.Addr]bool{}
	for _, p := range w.speaker.Peers {
		k, err := now.of(p, w, before)
		if err != nil {
			return err
		}
		wanted[p.Addr] = true
		g := e.peerings[p.Addr]
		if g == nil {
			g = newPeering(p.Addr)
			e.peerings[p.Addr] = g
		}
		e.give(ctx, g, &aim{w: w, peer: p, class: k})
	}
	e.classes = now
	for addr, g := range e.peerings {
		if !wanted[addr] {
			e.give(ctx, g, &aim{w: w, gone: "the peer was removed"})
		}
	}
	return nil
}

// rest waits for the workers to be done, for limit at most, and returns what went
// wrong with announcements.
func (e *engine) rest(ctx context.Context, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for waits := true; waits && e.any(func(g *peering) bool { return g.busy }); {
		select {
		case <-e.calm:
		case <-timer.C:
			waits = false
		case <-ctx.Done():
			waits = false
		}
	}
	e.reap()
	return e.trouble()
}

// any says whether one of the peers is so, which f is asked with its lock held.
func (e *engine) any(f func(*peering) bool) bool {
	for _, g := range e.peerings {
		g.mu.Lock()
		yes := f(g)
		g.mu.Unlock()
		if yes {
			return true
		}
	}
	return false
}

// trouble is what could not be brought about of the announcements.
func (e *engine) trouble() error {
	var errs []error
	e.any(func(g *peering) bool {
		if g.err != nil {
			errs = append(errs, g.err)
		}
		return false
	})
	slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// retry says whether something is to be tried again.
func (e *engine) retry() bool {
	return e.any(func(g *peering) bool { return !g.busy && (g.err != nil || g.refusal != "" || g.silent) })
}

// reap forgets the peers that have been removed.
func (e *engine) reap() {
	for addr, g := range e.peerings {
		g.mu.Lock()
		done, id := g.removed && !g.busy, g.peer.ID
		g.mu.Unlock()
		if done {
			delete(e.peerings, addr)
			e.log.Info("peer removed", "peer", id, "address", addr)
		}
	}
}

// withdraw takes a prefix away from every peer. The error names those whose
// server could not be told in time. After it, all peers need another wish.
func (e *engine) withdraw(ctx context.Context, w edge.Withdrawal, asn uint32) error {
	o := &order{Withdrawal: w, asn: asn, now: e.now, replies: make(chan reply, len(e.peerings))}
	waits := map[*peering]edge.PeerID{}
	for _, g := range e.peerings {
		g.mu.Lock()
		// What it is at might announce the prefix again.
		g.aim = nil
		if _, stands := g.routes[w.Net]; stands || g.busy {
			g.order = o
			e.start(ctx, g)
			waits[g] = g.last.peer.ID
		}
		g.mu.Unlock()
	}
	errs := e.await(ctx, o, waits)
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
		return errors.Join(errs...)
	}
	e.log.Info("withdraw", "prefix", w.Net)
	return nil
}

// await waits for the replies to an order, and returns what is wrong with them.
func (e *engine) await(ctx context.Context, o *order, waits map[*peering]edge.PeerID) (errs []error) {
	timer := time.NewTimer(withdrawLimit)
	defer timer.Stop()
	for len(waits) > 0 {
		select {
		case r := <-o.replies:
			if r.err != nil {
				errs = append(errs, fmt.Errorf("peer %s: %w", waits[r.from], r.err))
			}
			delete(waits, r.from)
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		o.void.Store(true)
		for _, id := range waits {
			errs = append(errs, fmt.Errorf("peer %s: within %s: %w", id, withdrawLimit, errSilent))
		}
		break
	}
	return errs
}

// revive makes idle servers take connections again: see server.revive.
func (e *engine) revive(ctx context.Context) {
	e.any(func(g *peering) bool {
		if g.server != nil && g.server.tired.Load() {
			g.tired = true
			e.start(ctx, g)
		}
		return false
	})
}

// silent says whether a server has not answered its last call.
func (e *engine) silent() bool {
	return e.any(func(g *peering) bool { return g.silent })
}

// close makes no server listen any more. The context of the workers has ended.
func (e *engine) close(ctx context.Context) {
	e.workers.Wait()
	for _, g := range e.peerings {
		if g.server != nil && !g.silent {
			e.pool.put(g.server)
		}
	}
	e.pool.close(ctx)
}
