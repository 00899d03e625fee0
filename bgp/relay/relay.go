// Package relay stands between each router and the GoBGP server of that peer.
//
// It owns the TCP connections to the routers: dialling and listening, TCP MD5,
// TTL security, source, interface. A router is known by its address, and by the
// interface where that is link-local: many have fe80::1 on every link. It does the opening of a session and the
// resolution of collisions itself (RFC 4271 section 6.8), and joins an
// established session to the server's connection on loopback. From a router
// only an OPEN that it has written anew, KEEPALIVE, NOTIFICATION, a plain
// ROUTE-REFRESH and the first End-of-RIB of a family reach GoBGP; UPDATEs are
// read, counted and go no further. What GoBGP sends is checked and noted as it
// is written: that is the Adj-RIB-Out.
//
// It never announces or withdraws anything of its own accord, never takes a
// router's word for a route, and never talks to a router in plain text whose
// key cannot be had. Only edgebgp runs it.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// bgpPort is the port of every router (RFC 4271 section 8).
const bgpPort = 179

// Options are what all peers have in common.
type Options struct {
	// Log is needed.
	Log *slog.Logger
	// Now is the clock of the times that are shown; nil: time.Now.
	Now func() time.Time
	// Listen is the TCP port, 1 to 65535; 0 only dials.
	Listen int
	// OnReceive gets every UPDATE of a router that could be read, nil: none. It
	// is called by the goroutine that reads the router and must not block.
	OnReceive func(edge.PeerID, wire.Update)
	// OnChange is told of every change of a peer's State.Session, nil: nobody is.
	// It must not block; it may call the Hub.
	OnChange func(netip.Addr)
}

// Config is one peer.
type Config struct {
	// Peer has the Interface or the zone of Addr, or both alike, if Addr is a
	// link-local one of IPv6.
	Peer edge.Peer
	// ASN and RouterID are ours.
	ASN      uint32
	RouterID netip.Addr
	// Key is the peer's TCP MD5 key (RFC 2385), at most 80 bytes; empty: none.
	Key string
	// Server is where the peer's GoBGP listens. Its neighbour is 127.0.0.1, from
	// where the relay connects, passive, with the peer's AS.
	Server netip.AddrPort
	// ServerKey is the TCP MD5 key of that connection, so that no other process
	// of this box can pose as the router; empty: none.
	ServerKey string
	// Restarting says that this process has been restarted, for the first session
	// of a peer with graceful restart (RFC 4724, the R bit).
	Restarting bool
	// Allowed says whether a prefix may be announced: the last check, made on
	// what goes to the wire. nil: none may. Called with no lock held, by any
	// goroutine; must not block.
	Allowed func(netip.Prefix) bool
	// KeepsForwarding says whether the data plane is proven alive (RFC 4724, the
	// F bit); nil: it is not.
	KeepsForwarding func() bool
}

// State is what is known of one peer.
type State struct {
	// Session is idle, connect, active, opensent, openconfirm or established
	// (RFC 4271 section 8.2.2). idle: the peer's GoBGP does not take a session
	// yet, or the peer was shut down.
	Session string
	// Since is when Session became so.
	Since time.Time
	// Flaps is how often an established session was lost.
	Flaps int
	// LastErr says why the last session was lost or the last attempt failed. It
	// stays after a recovery, and is empty if there never was a reason.
	LastErr   string
	LastErrAt time.Time
	// Local is our end, with a zone if it is link-local; Remote and Ours are the
	// OPENs of the session; zero while there is none.
	Local  netip.AddrPort
	Remote wire.Open
	Ours   wire.Open
	// Counts are those of all sessions since Add.
	Counts edge.MessageCounts
	// Held is what has been written on this established session and not been
	// withdrawn, in the order of the prefixes; nil if there is no session.
	Held []edge.HeldPrefix
	// Received is how many prefixes the router has sent, up to the limit;
	// OverLimit: they were more, which ends with the session only. Default: a
	// default route is among them, if Peer.DefaultRoute asks for it.
	Received           int
	OverLimit, Default bool
	// First are the first of them, in order, at most 20; nil if there are more
	// than 1,000, which would have to be put in order each time.
	First []netip.Prefix
	// NotSent are the prefixes that GoBGP would have announced on this session
	// and that were stopped, and why. GoBGP does not know: it does not repeat
	// them unless told to (a soft reset).
	NotSent map[netip.Prefix]string
}

// Hub holds the peers. All methods may be called concurrently.
type Hub struct {
	o     Options
	ready chan struct{}
	done  chan struct{}
	start chan *peer
	// inside runs a function where the sockets to the routers are made; the tests
	// put a network namespace there.
	inside func(func())

	mu        sync.Mutex
	peers     map[netip.Addr]*peer
	added     uint64               // peers, ever
	listeners []*listener          // for all peers; they stay while Run runs
	links     map[string]*listener // by interface
	troubles  map[string]string    // why there is none on an interface
	refusals  Refusals
	noted     time.Time // when a peer was last told of a refusal
}

// New returns a Hub without peers, which does nothing before Run.
func New(o Options) *Hub {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Hub{
		o: o, inside: func(f func()) { f() },
		ready: make(chan struct{}), done: make(chan struct{}), start: make(chan *peer),
		peers: map[netip.Addr]*peer{}, links: map[string]*listener{}, troubles: map[string]string{},
	}
}

// String is the name of the task.
func (h *Hub) String() string { return "bgp relay" }

// Ready is closed as soon as Run listens; Add works from then on.
func (h *Hub) Ready() <-chan struct{} { return h.ready }

// Run listens, and runs the peers until ctx ends; then it ends the sessions
// (without a NOTIFICATION where graceful restart was negotiated, with
// Cease/Administrative Shutdown otherwise), waits for all goroutines and returns
// nil. The GoBGP servers should outlive it: one that stops before sends a
// NOTIFICATION. It returns an error only if the port cannot be had. It may be
// called once.
func (h *Hub) Run(ctx context.Context) error {
	defer close(h.done)
	listeners, err := h.listen()
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.listeners = listeners
	h.mu.Unlock()
	var wg sync.WaitGroup
	serve := func(l *listener) { wg.Go(func() { h.accept(l) }) }
	for _, l := range listeners {
		serve(l)
	}
	close(h.ready)
	tick := time.NewTicker(tendPause)
	defer tick.Stop()
	for running := true; running; {
		select {
		case p := <-h.start:
			h.tend(serve)
			wg.Go(func() { p.run(ctx) })
		case <-tick.C:
			h.tend(serve)
		case <-ctx.Done():
			running = false
		}
	}
	h.deafen()
	wg.Wait()
	return nil
}

// Add starts a peer. An error says why the peer is refused, and nothing has
// begun then: its address is taken, a key cannot be installed on the sockets, or
// Run is not ready. An interface that is missing is no reason: it is tried again
// and shown.
func (h *Hub) Add(c Config) error {
	select {
	case <-h.ready:
	default:
		return errors.New("the relay is not ready")
	}
	a := c.Peer.Addr
	if !a.IsValid() || a.Is4In6() || !c.Server.Addr().Is4() {
		return fmt.Errorf("peer %q: address %s or server %s is none", c.Peer.ID, a, c.Server)
	}
	switch zone, link := a.Zone(), c.Peer.Interface; {
	case linkLocal(a) && zone == "" && link == "":
		return fmt.Errorf("peer %q: address %s is link-local, and no interface is given", c.Peer.ID, a)
	case zone != "" && (!linkLocal(a) || link != "" && link != zone):
		return fmt.Errorf("peer %q: the zone of address %s is not the interface %q of a link-local address", c.Peer.ID, a, link)
	}
	if err := testKeys(c); err != nil {
		return err
	}
	p := newPeer(h, c)
	if err := h.register(p); err != nil {
		return err
	}
	select {
	case h.start <- p:
		return nil
	case <-h.done:
		h.unregister(p)
		close(p.done) // a Remove may wait already
		return errors.New("the relay has ended")
	}
}

// register makes the peer known to the listeners, its key first: no connection
// of it may be taken without.
func (h *Hub) register(p *peer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.peers {
		if o.bare == p.bare && (o.link == p.link || !linkLocal(p.bare)) {
			return fmt.Errorf("there is a peer %s already", p.addr)
		}
	}
	for _, l := range h.ears() {
		if err := l.learn(p); err != nil {
			h.unlearn(p)
			return err
		}
	}
	h.peers[p.addr] = p
	// No peer has the revisions of one before it.
	h.added++
	p.rev = h.added << 32
	h.tune()
	return nil
}

// unregister takes back what register has done; false: another one stands there.
func (h *Hub) unregister(p *peer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.peers[p.addr] != p {
		return false
	}
	delete(h.peers, p.addr)
	h.unlearn(p)
	h.tune()
	return true
}

// unlearn takes the key of p off the listeners. h.mu is held.
func (h *Hub) unlearn(p *peer) {
	for _, l := range h.ears() {
		if err := l.forget(p); err != nil && !h.ended() {
			h.o.Log.Error("remove TCP MD5 key", "peer", p.addr, "err", err)
		}
	}
}

func (h *Hub) ended() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

func (h *Hub) peer(addr netip.Addr) *peer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.peers[addr]
}

// Update takes over what needs no new session: Allowed, KeepsForwarding,
// Restarting, and of the peer all but what is negotiated or belongs to the
// socket. It returns false, and has changed nothing, if a new session is needed
// (Remove, then Add) or the peer is not there.
func (h *Hub) Update(c Config) bool {
	p := h.peer(c.Peer.Addr)
	return p != nil && p.update(c)
}

// Remove ends the session with Cease/Peer De-configured and forgets the peer; why
// is for the log. It returns when nothing of the peer runs any more, within a
// second.
func (h *Hub) Remove(addr netip.Addr, why string) {
	p := h.peer(addr)
	if p == nil || !h.unregister(p) {
		return
	}
	p.remove(farewell{why: why, code: codeCease, subcode: ceaseDeconfigured})
}

// Shutdown ends the session with Cease/Administrative Shutdown and text
// (RFC 9003), of which 255 bytes are sent. The peer stays idle until it is
// removed and added again.
func (h *Hub) Shutdown(addr netip.Addr, text string) {
	if p := h.peer(addr); p != nil {
		p.shutdown(text)
	}
}

// Down ends the session at once because BFD says that the path is down: nothing
// is waited for, since nothing may get through. Cease/BFD Down (RFC 9384) is
// tried. Then the peer starts anew.
func (h *Hub) Down(addr netip.Addr, why string) {
	if p := h.peer(addr); p != nil {
		p.end(farewell{why: why, code: codeCease, subcode: ceaseBFDDown, hard: true})
	}
}

// State returns what is known of a peer; false: it is not there.
func (h *Hub) State(addr netip.Addr) (State, bool) {
	p := h.peer(addr)
	if p == nil {
		return State{}, false
	}
	return p.state(), true
}

// Revision is another number whenever State may say something else than before,
// at little cost: asked often, State of hundreds of peers with a thousand prefixes
// each is most of the work. It is 0 if the peer is not there. A State that is read
// behind a Revision is at least as new.
func (h *Hub) Revision(addr netip.Addr) uint64 {
	p := h.peer(addr)
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rev
}
