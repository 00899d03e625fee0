package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"sync/atomic"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
)

// peering is one peer: its server with what stands in there, and its relay. One
// goroutine at a time uses it, but for allowed.
type peering struct {
	peer    edge.Peer // as the relay has it, while relayed
	key     string    // of TCP MD5, while relayed
	server  *server   // nil: none yet
	routes  map[netip.Prefix]route
	notSent map[netip.Prefix]edge.Reason
	// allowed is what the relay lets through: asked by its goroutines.
	allowed atomic.Pointer[map[netip.Prefix]bool]

	relayed bool // the hub has the peer
	refusal edge.Reason
	hung    bool // the server has not answered since the last look at the intent

	// wanted and version are those of the intent that the paths follow.
	wanted  edge.Peer
	version uint64

	// What happened in sessions before that of the relay's present record.
	flaps     int
	lastErr   string
	lastErrAt time.Time
}

func newPeering() *peering {
	return &peering{routes: map[netip.Prefix]route{}, notSent: map[netip.Prefix]edge.Reason{}}
}

// call is a call of the server of g. Once it does not answer, the rest is not
// waited for.
func (g *peering) call(ctx context.Context, what string, f func(context.Context, *server) error) error {
	if g.hung {
		return fmt.Errorf("%s: not tried: %w", what, errSilent)
	}
	err := do(ctx, what, func(ctx context.Context) error { return f(ctx, g.server) })
	g.hung = hangs(err)
	return err
}

var errSilent = errors.New("the BGP server does not answer")

// follow makes the paths those that the peer is to be sent of the wish. An
// error leaves the rest done; what stands is remembered, so the next call goes on
// from there.
func (g *peering) follow(ctx context.Context, p edge.Peer, w *wish) error {
	if g.version == w.version && reflect.DeepEqual(g.wanted, p) {
		return nil
	}
	want, notSent := w.offers(p)
	g.allow(want)
	var errs []error
	for _, a := range w.announcements {
		r, sent := want[a.Net]
		var err error
		if sent {
			err = g.announce(ctx, w.key.asn, a, r)
		} else {
			// The settings of the peer do not send it any more.
			err = g.withdraw(ctx, w.key.asn, a.Net)
		}
		if err != nil {
			errs = append(errs, err)
		}
		if g.hung {
			break
		}
	}
	g.notSent = notSent
	if len(errs) == 0 {
		g.version, g.wanted = w.version, p
	}
	return errors.Join(errs...)
}

// allow lets the relay pass on want, and what stands by now: its withdrawal has
// to pass too.
func (g *peering) allow(want map[netip.Prefix]route) {
	m := make(map[netip.Prefix]bool, len(want))
	for net := range want {
		m[net] = true
	}
	for net := range g.routes {
		m[net] = true
	}
	g.allowed.Store(&m)
}

// mayPass is the relay's Allowed.
func (g *peering) mayPass(net netip.Prefix) bool {
	m := g.allowed.Load()
	return m != nil && (*m)[net]
}

// announce adds the path, or replaces it: an implicit update, so the router
// sees no withdrawal.
func (g *peering) announce(ctx context.Context, asn uint32, a edge.Announcement, r route) error {
	old, stands := g.routes[a.Net]
	if stands && !old.unsure && old.equal(r) {
		return nil
	}
	p, err := r.path(a.Net, asn)
	if err != nil {
		return err
	}
	err = g.call(ctx, "announce "+a.Net.String(), func(ctx context.Context, s *server) error {
		_, err := s.paths.AddPath(ctx, &api.AddPathRequest{TableType: api.TableType_GLOBAL, Path: p})
		return err
	})
	r.unsure = err != nil
	g.routes[a.Net] = r
	return err
}

// withdraw deletes the path. One that was never added needs no call.
func (g *peering) withdraw(ctx context.Context, asn uint32, net netip.Prefix) error {
	r, stands := g.routes[net]
	if !stands {
		return nil
	}
	// Whatever comes of it: if the prefix is to stay after all, follow has to look.
	g.version = 0
	p, err := r.path(net, asn)
	if err != nil {
		return err
	}
	err = g.call(ctx, "withdraw "+net.String(), func(ctx context.Context, s *server) error {
		return s.paths.DeletePath(ctx, &api.DeletePathRequest{TableType: api.TableType_GLOBAL, Path: p})
	})
	if err != nil {
		r.unsure = true
		g.routes[net] = r
		return err
	}
	delete(g.routes, net)
	return nil
}

// note keeps what the record of a relay that is about to end says, since a
// change of its settings makes no other peer.
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
