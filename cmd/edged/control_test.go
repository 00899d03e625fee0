package main

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard"
)

var (
	p4 = netip.MustParsePrefix("198.51.100.0/24")
	p6 = netip.MustParsePrefix("2001:db8:100::/48")
)

// faultySpeaker stands for edgebgp where a fault has to be injected: it keeps
// what it is told and fails on demand. That edgebgp itself does so is shown by
// its own tests and end to end.
type faultySpeaker struct {
	held   []edge.Announcement
	fail   error
	sticky bool // peers go on holding what was withdrawn
	sets   int
	// stopping is since when it says that it is to stop.
	stopping time.Time
}

func (f *faultySpeaker) Set(_ context.Context, in edge.Intent) (edge.SpeakerState, error) {
	if f.fail != nil {
		return edge.SpeakerState{}, f.fail
	}
	f.sets++
	if !f.sticky {
		f.held = in.Announcements
	}
	return f.state(in.Announcements), nil
}

func (f *faultySpeaker) State(context.Context) (edge.SpeakerState, error) {
	return f.state(f.held), f.fail
}

func (f *faultySpeaker) state(told []edge.Announcement) edge.SpeakerState {
	peer := edge.PeerState{ID: "r", Session: "established"}
	for _, a := range f.held {
		peer.Held = append(peer.Held, edge.HeldPrefix{Net: a.Net, NextHop: a.NextHop})
	}
	return edge.SpeakerState{Announcements: told, Peers: []edge.PeerState{peer}, Stopping: f.stopping}
}

// permitting is a guard whose answer the test chooses.
type permitting struct {
	permit edge.Permit
	wishes map[netip.Prefix]guard.Wish
}

func (g *permitting) Wish(p netip.Prefix, w guard.Wish) { g.wishes[p] = w }
func (g *permitting) Permit(p netip.Prefix) edge.Permit { return g.permit }
func (g *permitting) Leave(ctx context.Context, _ netip.Prefix, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return do(ctx)
}

// rig is a loop with its surroundings.
type rig struct {
	speaker *faultySpeaker
	guard   *permitting
	loop    *loop
	in      inputs
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{speaker: &faultySpeaker{}, guard: &permitting{wishes: map[netip.Prefix]guard.Wish{}}}
	r.loop = newLoop(r.speaker, r.guard)
	r.in = inputs{
		now: time.Unix(1000, 0), config: testConfig(), generation: 1, settled: true,
		statuses: webIs(edge.Up),
		drain:    func(netip.Prefix) *edge.Drain { return nil },
		others:   func(netip.Prefix) int { return 2 },
	}
	return r
}

func testConfig() *edge.Config {
	return &edge.Config{
		Local: edge.Local{ID: "a1", Speaker: edge.Speaker{Lease: 2 * time.Second}},
		Fleet: edge.Fleet{
			Nodes: []edge.Node{
				{ID: "a1", Site: "a", Addr4: netip.MustParseAddr("192.0.2.1"), Addr6: netip.MustParseAddr("2001:db8::1"), HealthPort: 9181},
				{ID: "a2", Site: "a", Addr4: netip.MustParseAddr("192.0.2.2"), Addr6: netip.MustParseAddr("2001:db8::2"), HealthPort: 9181},
				{ID: "b1", Site: "b", Addr4: netip.MustParseAddr("192.0.2.3")},
			},
			Prefixes: []edge.Prefix{{Net: p4, MinSites: 1}, {Net: p6, MinSites: 1}},
			Services: []edge.Service{{ID: "web", VIP: netip.MustParseAddrPort("198.51.100.10:443"), Protocol: edge.TCP, Proxied: true, TLS: true}},
			Health: edge.HealthConfig{
				NodeCheck: edge.Probe{Kind: edge.ProbeHTTP},
				Hold:      10 * time.Second,
				Needs:     []edge.Need{{On: "web", Class: edge.Hard}},
				Probes:    []edge.Probe{{ID: "web", Kind: edge.ProbeTCP}},
			},
		},
	}
}

func (r *rig) step(t *testing.T, after time.Duration) {
	t.Helper()
	r.in.now = r.in.now.Add(after)
	if !r.loop.adopted && !r.loop.adopt(t.Context()) {
		return
	}
	r.loop.step(t.Context(), r.in)
}

// webIs are the states of all probes, with that of web.
func webIs(s edge.ProbeState) []edge.Status {
	out := []edge.Status{{Probe: "web", State: s}, {Probe: "backend/web/a1", State: edge.Up}, {Probe: "backend/web/a2", State: edge.Down, LastErr: "it is old"}}
	if s == edge.Down {
		out[0].LastErr = "refused"
	}
	return out
}

func (r *rig) sick()    { r.in.statuses = webIs(edge.Down) }
func (r *rig) healthy() { r.in.statuses = webIs(edge.Up) }

// TestNoBackendLeft: a prefix of which no backend is up is not announced, though
// no probe was configured for that.
func TestNoBackendLeft(t *testing.T) {
	r := newRig(t)
	r.step(t, 0)
	r.want(t, edge.Announced, true)
	r.in.statuses[1].State, r.in.statuses[1].LastErr = edge.Down, "refused"
	r.step(t, time.Second)
	if d := r.loop.last[p4]; d.Rung != edge.Leaving || d.Reason != "web/backends → backend/web/a1 is down: refused; web/backends → backend/web/a2 is down: it is old" {
		t.Errorf("%s: %s", d.Rung, d.Reason)
	}
	if d := r.loop.last[p6]; d.Rung != edge.Announced {
		t.Errorf("a prefix without that service is %s: %s", d.Rung, d.Reason)
	}
	c := *r.in.config
	c.Fleet.Services = []edge.Service{{ID: "web", VIP: c.Fleet.Services[0].VIP, Protocol: edge.TCP, Backends: []edge.Backend{{ID: "b", Addr: netip.MustParseAddr("192.0.2.7"), Weight: 1}}}}
	r.in.config = &c
	r.step(t, time.Second)
	if got := r.loop.conditions[p4].Health; got != edge.Healthy {
		t.Errorf("with backends that are not checked it is %s", got)
	}
}

func (r *rig) want(t *testing.T, rung edge.Rung, onAir bool) {
	t.Helper()
	for _, p := range []netip.Prefix{p4, p6} {
		if got := r.loop.last[p].Rung; got != rung {
			t.Errorf("%s stands at %s (%s), want %s", p, got, r.loop.last[p].Reason, rung)
		}
		if got := len(r.speaker.held) == 2; got != onAir {
			t.Errorf("on the air: %t, want %t", got, onAir)
		}
	}
}

func TestLadder(t *testing.T) {
	r := newRig(t)
	r.step(t, 0)
	r.want(t, edge.Announced, true)
	if nh := r.speaker.held[1].NextHop; !nh.Is6() {
		t.Errorf("next hop of an IPv6 prefix is %s", nh)
	}
	r.sick()
	r.step(t, time.Second)
	r.want(t, edge.Leaving, true)
	if !r.speaker.held[0].Degrade {
		t.Error("a leaving prefix is not degraded")
	}
	if w := r.guard.wishes[p4]; !w.Want || w.Severity != edge.SeverityDown || w.Reason == "" {
		t.Errorf("wish at the guard: %+v", w)
	}
	r.guard.permit = edge.Permit{Refused: true, Reason: "b: draining"}
	r.step(t, time.Second)
	r.want(t, edge.LastResort, true)
	r.guard.permit = edge.Permit{OK: true}
	r.step(t, time.Second)
	r.want(t, edge.Withdrawn, false)
	r.guard.permit = edge.Permit{}
	r.healthy()
	r.step(t, time.Second)
	r.want(t, edge.Withdrawn, false)
	r.step(t, 11*time.Second)
	r.want(t, edge.Announced, true)
	if r.guard.wishes[p4].Want {
		t.Error("the wish to leave was not taken back")
	}
}

// TestWithdrawalThatDoesNotHappen: whatever goes wrong in the act, the prefix
// counts as announced.
func TestWithdrawalThatDoesNotHappen(t *testing.T) {
	for name, fault := range map[string]func(*faultySpeaker){
		"edgebgp refuses":       func(s *faultySpeaker) { s.fail = errors.New("refused") },
		"a peer still holds it": func(s *faultySpeaker) { s.sticky = true },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.step(t, 0)
			r.sick()
			r.guard.permit = edge.Permit{OK: true}
			fault(r.speaker)
			r.step(t, time.Second)
			if !r.loop.onAir[p4] || !r.loop.last[p4].Rung.OnAir() {
				t.Errorf("on air %t, rung %s", r.loop.onAir[p4], r.loop.last[p4].Rung)
			}
		})
	}
}

// TestRestartKeeps: a new process finds the prefixes on the air and must not
// touch them before its probes have settled.
func TestRestartKeeps(t *testing.T) {
	r := newRig(t)
	r.speaker.held = []edge.Announcement{{Net: p4}, {Net: p6, Degrade: true}}
	r.in.settled, r.in.statuses = false, nil
	r.step(t, 0)
	if len(r.speaker.held) != 2 || r.speaker.held[0].Degrade || !r.speaker.held[1].Degrade {
		t.Errorf("after the restart: %+v", r.speaker.held)
	}
}

// TestSpeakerAway: nothing is decided before edgebgp has answered once.
func TestSpeakerAway(t *testing.T) {
	r := newRig(t)
	r.speaker.fail = errors.New("no such file")
	r.step(t, 0)
	if len(r.loop.last) != 0 || r.speaker.sets != 0 {
		t.Errorf("decided %v without edgebgp", r.loop.last)
	}
	r.speaker.fail = nil
	r.step(t, time.Second)
	r.want(t, edge.Announced, true)
}

// TestLeaseIsRenewed: with nothing new, the intent is sent once a second.
func TestLeaseIsRenewed(t *testing.T) {
	r := newRig(t)
	r.step(t, 0)
	n := r.speaker.sets
	r.step(t, renew/4)
	if r.speaker.sets != n {
		t.Error("an unchanged intent was sent before its time")
	}
	r.step(t, renew)
	if r.speaker.sets != n+1 {
		t.Error("the lease was not renewed")
	}
}

// TestFloorBrokenByDeaths: a site that has left comes back, still sick, when the
// sites that stayed for it have died, and leaves again once others announce.
func TestFloorBrokenByDeaths(t *testing.T) {
	r := newRig(t)
	r.step(t, 0)
	r.sick()
	r.guard.permit = edge.Permit{OK: true}
	r.step(t, time.Second)
	r.want(t, edge.Withdrawn, false)
	r.guard.permit = edge.Permit{Refused: true, Reason: "nobody answers"}
	r.in.others = func(netip.Prefix) int { return 0 }
	r.step(t, 2*time.Second)
	r.want(t, edge.LastResort, true)
	if !r.speaker.held[0].Degrade {
		t.Error("the last resort is not degraded")
	}
	r.step(t, time.Second)
	r.want(t, edge.LastResort, true)
	r.in.others = func(netip.Prefix) int { return 1 }
	r.guard.permit = edge.Permit{OK: true}
	r.step(t, time.Second)
	r.want(t, edge.Withdrawn, false)
}

// TestHoldOverRestart: a new process finds a prefix off the air and holds it as
// the old one would have.
func TestHoldOverRestart(t *testing.T) {
	r := newRig(t)
	r.loop.adopt(t.Context())
	r.loop.state.Speaker = &edge.Speaker{}
	r.loop.wasOff(r.in.config, r.in.now)
	r.step(t, 0)
	r.want(t, edge.Withdrawn, false)
	r.step(t, 11*time.Second)
	r.want(t, edge.Announced, true)
}

// TestStuckWithdrawal: a withdrawal that one router does not take is not tried,
// and taken back, again and again: that would be a flap for all others.
func TestStuckWithdrawal(t *testing.T) {
	r := newRig(t)
	r.step(t, 0)
	r.sick()
	r.guard.permit = edge.Permit{OK: true}
	r.speaker.sticky = true
	r.step(t, time.Second)
	tried := r.speaker.sets
	for range 10 {
		r.step(t, time.Second)
	}
	if n := r.speaker.sets - tried; n > 11 { // one for each renewal of the lease
		t.Errorf("%d intents in 10 s", n)
	}
	if !r.loop.onAir[p4] {
		t.Error("it counts as withdrawn")
	}
	r.speaker.sticky = false
	r.step(t, unstick)
	r.want(t, edge.Withdrawn, false)
}
