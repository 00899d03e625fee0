package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
)

// peering is one peer: its server with what stands in there, and its relay. One
// worker at a time drives it (see work.go); Run's goroutine tells the worker what
// to do, and reads what is.
type peering struct {
	addr netip.Addr
	// allowed is what the relay lets through: asked by its goroutines.
	allowed atomic.Pointer[allowed]
	// hung: the server has not answered in this job. Only the worker uses it.
	hung bool

	mu sync.Mutex
	// What is to be done, the latest of each kind: guarded by mu.
	aim   *aim
	last  *aim // the last one that was given, done or not
	order *order
	tired bool // the server is to be revived
	busy  bool // a worker is at it

	// What is. Only the worker changes it, with mu; it may read it without. rev is
	// another one after each change, here or of aim.
	rev     uint64
	peer    edge.Peer // as the relay has it, while relayed
	key     string    // of TCP MD5, while relayed
	link    *link     // the hub that has the peer; nil: it has not
	server  *server   // nil: none yet
	routes  map[netip.Prefix]standing
	notSent map[netip.Prefix]edge.Reason
	reached *aim // the last one that was brought about wholly; nil: none, or not any more
	// refusal says why the peer cannot be added or changed, err what of its
	// announcements could not be brought about.
	refusal edge.Reason
	err     error
	// silent: the server has not answered the last call, strikes how often in a row.
	silent   bool
	strikes  int
	replaced time.Time // when the server was, last
	removed  bool

	// What happened in sessions before that of the relay's present record.
	flaps     int
	lastErr   string
	lastErrAt time.Time
}

// standing is a route in the server.
type standing struct {
	*route
	// unsure says that a call about it is under way, or has failed: the server may
	// have carried it out all the same, or do so later. All calls pass through one
	// channel, so what it is told now comes behind that.
	unsure bool
}

// is says that it is surely announced as r says.
func (s standing) is(r *route) bool { return s.route != nil && !s.unsure && s.equal(r) }

// allowed are the prefixes that may pass the relay.
type allowed struct {
	want map[netip.Prefix]*route
	// leaving stand in the server, and are not wanted: their withdrawal has to pass.
	leaving map[netip.Prefix]bool
}

func newPeering(addr netip.Addr) *peering {
	return &peering{addr: addr, routes: map[netip.Prefix]standing{}}
}

// change makes a change of what is.
func (g *peering) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	g.rev++
}

// call is a call of the server of g. Once it does not answer, the rest of the job
// is not waited for.
func (g *peering) call(ctx context.Context, what string, f func(context.Context, *server) error) error {
	if g.hung {
		return fmt.Errorf("%s: not tried: %w", what, errSilent)
	}
	srv := g.server // a late call still has it
	err := do(ctx, what, func(ctx context.Context) error { return f(ctx, srv) })
	g.hung = hangs(err)
	switch {
	case g.hung && ctx.Err() == nil:
		g.change(func() { g.silent, g.strikes = true, g.strikes+1 })
	case g.silent && !g.hung:
		g.change(func() { g.silent, g.strikes = false, 0 })
	}
	return err
}

var (
	errSilent = errors.New("the BGP server does not answer")
	// errLater is of a job that has given way to another one.
	errLater = errors.New("something newer is to be done")
)

// atATime is how many paths a server is told in one call: a worker looks for
// something newer in between.
const atATime = 32

// word is what a server is to be told of one prefix: a route, or nil to withdraw it.
type word struct {
	net   netip.Prefix
	route *route
}

// follow makes the paths those that the peer is to be sent by a. An error leaves
// the rest done; what stands is remembered, so the next call goes on from there.
// later says whether something else is to be done first.
func (g *peering) follow(ctx context.Context, a *aim, later func() bool) error {
	want, notSent := a.class.offers()
	g.allow(want)
	var words []word
	g.change(func() {
		g.notSent = notSent
		for _, announcement := range a.w.announcements {
			net := announcement.Net
			r := want[net]
			old, stands := g.routes[net]
			switch {
			case old.route == r && !old.unsure:
			case r != nil && old.is(r):
				g.routes[net] = standing{route: r} // equal ones are shared with other peers
			case r != nil || stands: // if not wanted, the settings of the peer do not send it any more
				words = append(words, word{net, r})
			}
		}
	})
	var errs []error
	for some := range slices.Chunk(words, atATime) {
		if later() {
			return errLater
		}
		// A worker and its server hand each other the CPU for 10 ms at a time. With
		// dozens of such pairs, who wants to answer edged would wait for a second.
		runtime.Gosched()
		if err := g.tell(ctx, a.w.key.asn, some); err != nil {
			errs = append(errs, err)
		}
		if g.hung {
			break
		}
	}
	return errors.Join(errs...)
}

// tell adds paths to the server, replaces them, which is an implicit update, so the
// router sees no withdrawal, or deletes them.
func (g *peering) tell(ctx context.Context, asn uint32, words []word) error {
	paths := make([]*api.Path, len(words))
	errs := make([]error, len(words))
	g.change(func() {
		// Whatever comes of it: if a prefix is to stay after all, follow has to look.
		g.reached = nil
		for i, w := range words {
			r := w.route
			if r == nil {
				r = g.routes[w.net].route
			}
			if paths[i], errs[i] = r.path(w.net, asn); errs[i] == nil {
				g.routes[w.net] = standing{r, true}
			}
		}
	})
	what := words[0].what()
	if n := len(words) - 1; n > 0 {
		what += fmt.Sprintf(" and %d more", n)
	}
	err := g.call(ctx, what, func(ctx context.Context, s *server) error {
		for i, w := range words {
			if errs[i] != nil {
				continue
			}
			if errs[i] = s.tell(ctx, w.route == nil, paths[i]); hangs(errs[i]) || ctx.Err() != nil {
				return cmp.Or(errs[i], ctx.Err())
			}
		}
		return nil
	})
	if err != nil {
		return err // it may be at it still: nothing is sure
	}
	g.change(func() {
		for i, w := range words {
			switch {
			case errs[i] != nil:
				errs[i] = fmt.Errorf("%s: %w", w.what(), errs[i])
			case w.route == nil:
				delete(g.routes, w.net)
			default:
				g.routes[w.net] = standing{route: w.route}
			}
		}
	})
	return errors.Join(errs...)
}

func (w word) what() string {
	if w.route == nil {
		return "withdraw " + w.net.String()
	}
	return "announce " + w.net.String()
}

// allow lets the relay pass on want, and what stands by now.
func (g *peering) allow(want map[netip.Prefix]*route) {
	all := &allowed{want: want}
	for net := range g.routes {
		if want[net] != nil {
			continue
		}
		if all.leaving == nil {
			all.leaving = map[netip.Prefix]bool{}
		}
		all.leaving[net] = true
	}
	g.allowed.Store(all)
}

// mayPass is the relay's Allowed.
func (g *peering) mayPass(net netip.Prefix) bool {
	all := g.allowed.Load()
	return all != nil && (all.want[net] != nil || all.leaving[net])
}

// withdraw deletes the path. One that was never added needs no call.
func (g *peering) withdraw(ctx context.Context, asn uint32, net netip.Prefix) error {
	if _, stands := g.routes[net]; !stands {
		return nil
	}
	return g.tell(ctx, asn, []word{{net, nil}})
}

// empty forgets the server.
func (g *peering) empty() {
	g.change(func() {
		g.server, g.routes, g.reached, g.notSent = nil, map[netip.Prefix]standing{}, nil, nil
		g.silent, g.strikes = false, 0
	})
}

// pending is how many changes are still to be brought about. The caller has mu.
func (g *peering) pending() int {
	if g.last == nil || g.last.class == nil || g.reached == g.last {
		return 0
	}
	if !g.last.class.ready.Load() {
		return len(g.last.w.announcements)
	}
	return g.lacks(g.last.class)
}

// lacks is how many paths are not as c wants them. The caller has mu, or is the
// worker.
func (g *peering) lacks(c *class) int {
	want, not := c.offers()
	n := 0
	for net, r := range want {
		if !g.routes[net].is(r) {
			n++
		}
	}
	for net := range not {
		if _, stands := g.routes[net]; stands {
			n++
		}
	}
	return n
}

// note keeps what the record of a relay that is about to end says, since a
// change of its settings makes no other peer. The caller has mu.
func (g *peering) note(st relay.State, why string, now time.Time) {
	g.flaps += st.Flaps
	if st.Session == established {
		g.flaps++
	}
	g.lastErr, g.lastErrAt = why, now
}

// sameSession says that a session with settings a need not end for b. What the
// paths and the relay can do without a new OPEN is not looked at, nor is the file
// of the key: the key itself is compared beside this.
func sameSession(a, b edge.Peer) bool {
	a, b = a.Session(), b.Session()
	a.KeyStamp, b.KeyStamp = "", ""
	return reflect.DeepEqual(a, b)
}
