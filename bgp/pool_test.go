package bgp

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	api "github.com/osrg/gobgp/v3/api"
)

// lifeless stands in for the part of a server that starts, stops and has
// policies.
type lifeless struct{ *faulty }

func (l lifeless) StartBgp(_ context.Context, r *api.StartBgpRequest) error {
	if a := r.Global.ListenAddresses; len(a) != 1 || a[0] != "127.0.0.1" || r.Global.ListenPort <= 0 {
		return errors.New("it would listen for all the world")
	}
	return l.call("start")
}
func (l lifeless) StopBgp(context.Context, *api.StopBgpRequest) error     { return l.call("stop") }
func (l lifeless) AddPolicy(context.Context, *api.AddPolicyRequest) error { return l.call("policy") }
func (l lifeless) SetPolicyAssignment(context.Context, *api.SetPolicyAssignmentRequest) error {
	return nil
}

// TestPool: a server is used again, never with the policies, paths or neighbour
// of somebody else, and never without policies.
func TestPool(t *testing.T) {
	f := &faulty{}
	made := 0
	p := &pool{log: slog.New(slog.DiscardHandler), make: func(context.Context) (*server, error) {
		made++
		return &server{paths: one{f, ""}, peers: one{f, ""}, policies: lifeless{f}, life: lifeless{f}}, nil
	}}
	a := serverKey{64500, netip.MustParseAddr("192.0.2.1")}
	b := serverKey{64501, netip.MustParseAddr("192.0.2.1")}
	ctx := t.Context()
	take := func(key serverKey, did string) *server {
		t.Helper()
		s, err := p.take(ctx, key)
		if err != nil || s.key != key || s.addr.Addr() != loopback || s.addr.Port() == 0 {
			t.Fatalf("take: %+v, %v", s, err)
		}
		if got := f.did(); got != did {
			t.Errorf("take: did %s, want %s", got, did)
		}
		return s
	}
	one, two := take(a, "start, policy"), take(a, "start, policy")
	p.give(ctx, one)
	p.give(ctx, two)
	if did := f.did(); did != "clear, clear" {
		t.Errorf("given back: did %s", did)
	}
	one = take(a, "")
	two = take(b, "stop, start, policy")
	if err := two.meet(ctx, goodIntent().Speaker.Peers[0], "key"); err != nil {
		t.Error(err)
	}
	p.give(ctx, two)
	if did := f.did(); did != "meet AS64501, leave, clear" || made != 2 {
		t.Errorf("given back: did %s, %d made", did, made)
	}
	// What cannot be cleared is not used again, nor what has no policies.
	f.fault = func(call string) error {
		if call == "clear" || call == "policy" {
			return errors.New("no")
		}
		return nil
	}
	p.give(ctx, one)
	f.did()
	if _, err := p.take(ctx, a); err == nil || !strings.HasPrefix(f.did(), "stop, start, policy, stop") {
		t.Errorf("take: %v", err)
	}
	f.fault = nil
	take(a, "start, policy")
	if len(p.spare) != 0 || made != 2 {
		t.Errorf("%d spare, %d made", len(p.spare), made)
	}
}

// TestRevive: only an idle neighbour is made anew, and not one that is idle
// because it is new: that would end the session that it is about to have.
func TestRevive(t *testing.T) { synctest.Test(t, revive) }

func revive(t *testing.T) {
	f := &faulty{}
	kicked := make(chan struct{}, 1)
	s := &server{peers: one{f, ""}, kick: func() { kicked <- struct{}{} }}
	s.tired.Store(true)
	if err := s.revive(t.Context()); err != nil || f.did() != "" {
		t.Errorf("without a neighbour: %v", err)
	}
	if err := s.meet(t.Context(), goodIntent().Speaker.Peers[0], "key"); err != nil {
		t.Error(err)
	}
	f.did()
	s.tired.Store(true)
	if err := s.revive(t.Context()); err != nil || f.did() != "list" {
		t.Errorf("with a neighbour that waits: %v", err)
	}
	f.session = api.PeerState_IDLE
	if err := s.revive(t.Context()); err != nil || f.did() != "" {
		t.Errorf("not told: %v", err)
	}
	s.tired.Store(true)
	if err := s.revive(t.Context()); err != nil || f.did() != "list" {
		t.Errorf("with a new neighbour: %v", err)
	}
	<-kicked
	if err := s.revive(t.Context()); err != nil || f.did() != "list, leave, meet AS64501" {
		t.Errorf("with an idle neighbour: %v", err)
	}
}
