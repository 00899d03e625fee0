// Package guard decides whether this node may withdraw a prefix: gossip tells
// it of the other nodes, direct questions get it their promises to stay.
//
// It owns the gossip membership, the spreading of reports, and the running of
// the promise protocol (package promise). It never withdraws anything itself,
// never counts gossip members as promises, and takes the roster and the floor
// from the configuration alone. Process edged runs it.
package guard

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

// askRow is how many letters of the protocol are read in a row while others wait: a flood
// of forged ones must leave time for signs of life.
const askRow = 4

// tickEvery is how often the protocol is told the time.
const tickEvery = 100 * time.Millisecond

// Options are what a Guard is made of.
type Options struct {
	// Self is this node; it must be in Roster, each node once.
	Self   edge.NodeID
	Roster []edge.Node
	// Sites say in which region each site is, and what it can serve.
	Sites []edge.Site
	// Prefixes are those of the configuration, with their floors.
	Prefixes []edge.Prefix
	Policy   edge.Guard
	// Keys are those of the gossip: of 32 bytes (AES-256) each, at least one and
	// at most MaxKeys. The first encrypts, all are accepted; see Rekey.
	Keys [][]byte
	// NodeKey signs what this node says. Its public half is in Roster.
	NodeKey ed25519.PrivateKey
	// Bind is the local UDP and TCP address. The others reach it at the
	// roster's gossip address of this node.
	Bind netip.AddrPort
	// LeaseBefore is the longest lease for which an earlier process of this node
	// may have promised to stay, if that is more than Policy's. 0: none.
	LeaseBefore time.Duration
	// Held says whether at least one established peer holds the prefix from
	// this node *now*, as last read back from edgebgp; false if that is not
	// known. It is called under the guard's lock: it must not block, nor call
	// the guard.
	Held func(netip.Prefix) bool
	// Log; nil logs nothing.
	Log *slog.Logger
}

// Guard is the guard of one node. All its methods may be called from several
// goroutines at once, also before and after Run.
type Guard struct {
	self  edge.NodeID
	bind  netip.AddrPort
	keys  *keyring
	log   *slog.Logger
	drops *counters
	up    *liveness

	roster  atomic.Pointer[roster]
	rumors  *memberlist.TransmitLimitedQueue
	asks    *mailbox      // of the protocol: they are read first
	inbox   *mailbox      // the rest
	kick    chan struct{} // there is something in outbox
	changed chan struct{}
	ready   chan struct{}
	running atomic.Bool

	mu      sync.Mutex
	core    *promise.Node
	version uint64 // of core, when Changed was last signalled
	shown   map[netip.Prefix]edge.Permit
	outbox  []promise.Message
	own     heard
	pending *edge.Report // published, but not sent yet
	key     ed25519.PrivateKey
	born    int64 // the boot id at the start; boot is higher if the clock went back
	boot    int64
	seq     uint64
	heard   map[edge.NodeID]*heard
	senders map[edge.NodeID]*sender
	peers   map[edge.NodeID]*peer
	late    map[edge.NodeID]*unread // the newest report of a node that came too soon after one before
	beats   uint64                  // pulses sent
	checks  [kindPulse + 1]pace     // signatures, by kind

	// Of Publish: when it was last called, when something was new, the report
	// that gossip carries, and how much may be sent.
	vouched, newsAt time.Time
	rumored         uint64
	news, loads     pace

	started time.Time
	carrier atomic.Pointer[transport] // while it runs
	tune    func(*memberlist.Config)  // nil but in tests
}

// roster is the configured fleet; it is replaced, never changed.
type roster struct {
	self   edge.Node
	byID   map[edge.NodeID]edge.Node
	others []edge.Node // in the order of the configuration
}

func newRoster(self edge.NodeID, nodes []edge.Node) (*roster, error) {
	r := &roster{byID: make(map[edge.NodeID]edge.Node, len(nodes))}
	keys := map[edge.NodeKey]edge.NodeID{}
	for _, n := range nodes {
		if other, twice := keys[n.PublicKey]; twice || n.PublicKey == (edge.NodeKey{}) {
			return nil, fmt.Errorf("read roster: node %q needs a public key of its own, not that of %q", n.ID, other)
		}
		keys[n.PublicKey] = n.ID
		if _, twice := r.byID[n.ID]; twice || n.ID == "" || n.Site == "" || !n.Gossip.IsValid() {
			return nil, fmt.Errorf("read roster: node %q needs a unique name, a site and a gossip address", n.ID)
		}
		r.byID[n.ID] = n
		if n.ID != self {
			r.others = append(r.others, n)
		}
	}
	var ok bool
	if r.self, ok = r.byID[self]; !ok {
		return nil, fmt.Errorf("read roster: this node, %q, is not in it", self)
	}
	return r, nil
}

// New returns a Guard that does not do anything yet, or an error that says
// which option cannot work.
func New(o Options) (*Guard, error) {
	switch {
	case !o.Bind.IsValid() || o.Bind.Port() == 0:
		return nil, fmt.Errorf("make guard: %q is not an address and port to bind", o.Bind)
	case o.Held == nil:
		return nil, errors.New("make guard: Held is needed")
	}
	r, err := newRoster(o.Self, o.Roster)
	if err != nil {
		return nil, fmt.Errorf("make guard: %w", err)
	}
	if err := CheckNodeKey(o.NodeKey, o.Self, o.Roster); err != nil {
		return nil, fmt.Errorf("make guard: %w", err)
	}
	keys, err := newKeyring(o.Keys)
	if err != nil {
		return nil, fmt.Errorf("make guard: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	started := time.Now()
	g := &Guard{
		self: o.Self, bind: o.Bind, keys: keys, key: o.NodeKey, log: o.Log,
		drops: &counters{by: map[string]uint64{}},
		asks:  newMailbox(), inbox: newMailbox(), kick: make(chan struct{}, 1),
		changed: make(chan struct{}, 1), ready: make(chan struct{}),
		shown: map[netip.Prefix]edge.Permit{}, heard: map[edge.NodeID]*heard{}, senders: map[edge.NodeID]*sender{}, peers: map[edge.NodeID]*peer{}, late: map[edge.NodeID]*unread{},
		boot: started.UnixNano(), born: started.UnixNano(), started: started,
	}
	g.roster.Store(r)
	g.up = &liveness{on: map[edge.NodeID]bool{}, changed: g.signal, log: o.Log}
	g.rumors = &memberlist.TransmitLimitedQueue{RetransmitMult: 4, NumNodes: func() int { return len(g.roster.Load().byID) }}
	g.core, err = promise.New(promise.Options{
		Self: o.Self, Boot: g.boot, Started: started, LeaseBefore: o.LeaseBefore,
		Settings: promise.Settings{Roster: o.Roster, Sites: o.Sites, Prefixes: o.Prefixes, Policy: o.Policy},
		Held:     o.Held, Sick: g.knownSick, Demand: g.demand, Drop: g.drops.add,
		Rand: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	})
	if err != nil {
		return nil, fmt.Errorf("make guard: %w", err)
	}
	return g, nil
}

// String names the task.
func (g *Guard) String() string { return "guard" }

// Ready is closed once the gossip port is open; whether anybody else is there
// does not matter.
func (g *Guard) Ready() <-chan struct{} { return g.ready }

// Changed signals that a permit, a member or a claim has changed since it was
// last received from; changes in between are one signal. New figures of load
// and signs of life do not signal: many nodes send some each second, and who
// publishes on each signal would make all others publish.
func (g *Guard) Changed() <-chan struct{} { return g.changed }

// Traffic returns how many bytes were sent and received since Run began, with the
// headers of IP, UDP and TCP.
func (g *Guard) Traffic() (sent, received int64) {
	if t := g.carrier.Load(); t != nil {
		sent, received = t.sent.bytes.Load(), t.received.bytes.Load()
	}
	return sent, received
}

func (g *Guard) signal() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Run gossips until ctx ends, then returns nil. It withdraws nothing and says
// no goodbye: a restart that is quick enough is not seen by the others. It can
// be run once.
func (g *Guard) Run(ctx context.Context) error {
	if !g.running.CompareAndSwap(false, true) {
		return errors.New("run guard: it has been run before")
	}
	group, ctx := errgroup.WithContext(ctx)
	tr, err := listen(ctx, g.bind, g.drops.add)
	if err != nil {
		return err
	}
	g.carrier.Store(tr)
	list, err := memberlist.Create(g.memberlistConfig(tr))
	if err != nil {
		tr.Shutdown() // memberlist leaves it open on some errors
		return fmt.Errorf("start gossip: %w", err)
	}
	// First of all at the end: it closes every connection, so that those who
	// wait for one can go.
	group.Go(func() error {
		<-ctx.Done()
		return list.Shutdown()
	})
	links := &links{send: list.SendReliable, seal: g.seal, sent: map[edge.NodeID]*atomic.Uint64{}, drop: g.drops.add, log: g.log, by: map[edge.NodeID]*link{}, spawn: group.Go}
	post := &courier{g: g, links: links, packet: list.SendBestEffort, log: g.log}
	group.Go(func() error { return g.serve(ctx, post) })
	group.Go(func() error { return g.rejoin(ctx, list, group.Go) })
	close(g.ready)
	g.log.Info("gossip is open", "bind", g.bind, "nodes", len(g.roster.Load().byID))
	return group.Wait()
}

// serve is the only goroutine that feeds the protocol with messages and time,
// and that sends what comes out of it.
func (g *Guard) serve(ctx context.Context, post *courier) error {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for row := 0; ; {
		first := g.asks
		if row >= askRow {
			row, first = 0, g.inbox
		}
		select { // the time comes first, then what is asked, then what is merely told
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			g.beat(now, post)
		default:
			select {
			case raw := <-first.ch:
				row++
				g.take(first.read(raw), post)
			default:
				select {
				case <-ctx.Done():
					return nil
				case now := <-tick.C:
					g.beat(now, post)
				case raw := <-g.asks.ch:
					g.take(g.asks.read(raw), post)
				case raw := <-g.inbox.ch:
					g.take(g.inbox.read(raw), post)
				case <-g.kick:
				}
			}
		}
		g.dispatch(post.links)
	}
}

// beat does what time alone makes due.
func (g *Guard) beat(now time.Time, post *courier) {
	g.do(func(now time.Time) []promise.Message {
		g.refresh(now)
		return g.core.Tick(now)
	})
	post.tick(now)
}

// do runs one step of the protocol under the lock, at the present time, and
// keeps what is to be sent.
func (g *Guard) do(step func(now time.Time) []promise.Message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	out := step(now)
	g.outbox = append(g.outbox, out...)
	if v := g.core.Version(); v != g.version {
		g.version = v
		g.tell(now)
		g.signal()
	}
	if len(out) > 0 {
		select {
		case g.kick <- struct{}{}:
		default:
		}
	}
}

// dispatch hands the outbox to the links.
func (g *Guard) dispatch(links *links) {
	g.mu.Lock()
	out := g.outbox
	g.outbox = nil
	g.mu.Unlock()
	r := g.roster.Load()
	for _, m := range out {
		to, ok := r.byID[m.To]
		if !ok {
			continue // it left the roster a moment ago
		}
		g.log.Debug("send", "kind", m.Kind, "to", m.To, "prefix", m.Prefix, "round", m.Round.N, "reason", m.Reason)
		links.to(to).push(m, messageLife)
	}
}
