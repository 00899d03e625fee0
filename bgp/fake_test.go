package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/apiutil"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
)

// faulty stands in for the servers and the hub of an engine where their calls
// must fail: it says which prefixes and peers it was called for, and its fault
// answers.
type faulty struct {
	mu      sync.Mutex
	session api.PeerState_SessionState // of each neighbour; 0: it waits
	calls   []string
	fault   func(call string) error
	states  map[netip.Addr]relay.State
	hub     map[netip.Addr]relay.Config
}

func (f *faulty) call(call string) error {
	f.mu.Lock()
	f.calls = append(f.calls, call)
	f.mu.Unlock()
	if f.fault == nil {
		return nil
	}
	return f.fault(call)
}

// one is one server of f: its calls are named by the peer that it is for.
type one struct {
	*faulty
	name string
}

func (o one) AddPath(_ context.Context, r *api.AddPathRequest) (*api.AddPathResponse, error) {
	nlri, err := apiutil.GetNativeNlri(r.Path)
	return nil, errors.Join(err, o.call(o.name+"add "+nlri.String()))
}

func (o one) DeletePath(_ context.Context, r *api.DeletePathRequest) error {
	if r.Path == nil {
		return o.call(o.name + "clear")
	}
	nlri, err := apiutil.GetNativeNlri(r.Path)
	return errors.Join(err, o.call(o.name+"delete "+nlri.String()))
}

func (o one) AddPeer(_ context.Context, r *api.AddPeerRequest) error {
	return o.call(fmt.Sprintf("%smeet AS%d", o.name, r.Peer.Conf.PeerAsn))
}

func (o one) DeletePeer(context.Context, *api.DeletePeerRequest) error {
	return o.call(o.name + "leave")
}

func (o one) ListPeer(_ context.Context, _ *api.ListPeerRequest, f func(*api.Peer)) error {
	f(&api.Peer{State: &api.PeerState{SessionState: cmp.Or(o.session, api.PeerState_ACTIVE)}})
	return o.call(o.name + "list")
}

func (f *faulty) Add(c relay.Config) error {
	f.mu.Lock()
	f.hub[c.Peer.Addr] = c
	f.mu.Unlock()
	return f.call("relay " + string(c.Peer.ID))
}

func (f *faulty) Update(c relay.Config) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.hub[c.Peer.Addr]
	f.hub[c.Peer.Addr] = c
	return ok
}

func (f *faulty) Remove(addr netip.Addr, why string) {
	f.mu.Lock()
	delete(f.hub, addr)
	f.mu.Unlock()
	f.call("unrelay " + addr.String() + ": " + why)
}

func (f *faulty) State(addr netip.Addr) (relay.State, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st, ok := f.states[addr]
	return st, ok
}

func (f *faulty) Down(netip.Addr, string)     {}
func (f *faulty) Shutdown(netip.Addr, string) {}

// did returns the calls since the last time.
func (f *faulty) did() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := strings.Join(f.calls, ", ")
	f.calls = nil
	return out
}

var (
	p4 = netip.MustParsePrefix("198.51.100.0/24")
	p6 = netip.MustParsePrefix("2001:db8::/32")
)

// plainIntent is goodIntent with one peer that needs neither key nor port.
func plainIntent() edge.Intent {
	in := normal(goodIntent())
	in.Speaker.Listen = 0
	in.Speaker.Peers[0].PasswordFile, in.Speaker.Peers[0].Passive = "", false
	return in
}

// spare puts a server into the pool, with its calls named.
func (f *faulty) spare(s *Speaker, name string) *server {
	o := one{f, name}
	srv := &server{paths: o, peers: o, key: serverKey{64500, netip.MustParseAddr("192.0.2.1")}}
	s.engine.pool.put(srv)
	return srv
}

// unstarted returns a Speaker whose hub and servers are f.
func (f *faulty) unstarted() *Speaker {
	s := New(Options{})
	f.hub, f.states = map[netip.Addr]relay.Config{}, map[netip.Addr]relay.State{}
	s.engine.link = &link{f, f}
	s.engine.pool.make = func(context.Context) (*server, error) { return nil, errors.New("no more servers") }
	s.hub = &hub{}
	return s
}

// speakerOf returns a Speaker with f for its hub and server that runs
// plainIntent.
func speakerOf(t *testing.T, f *faulty) *Speaker {
	t.Helper()
	s := f.unstarted()
	f.spare(s, "")
	if err := s.accept(t.Context(), plainIntent()); err != nil {
		t.Fatalf("first intent: %v", err)
	}
	if did := f.did(); did != "add 198.51.100.0/24, add 2001:db8::/32, meet AS64501, relay a" {
		t.Fatalf("first intent: did %s", did)
	}
	return s
}

// retry is what Run does a second after something has failed, and waits for it.
func (s *Speaker) retry() error {
	s.tick(context.Background())
	return s.engine.rest(context.Background(), time.Minute)
}
