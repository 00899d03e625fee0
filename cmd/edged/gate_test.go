package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/guard"
	"github.com/catchment-dev/edge/health"
)

// orderly is an edgebgp that does what the real one does with an intent: what is
// neither announced nor withdrawn makes it refuse the intent, and only an order to
// withdraw takes a prefix off the air. It notes those.
type orderly struct {
	faultySpeaker
	withdrawn []netip.Prefix
}

func (o *orderly) Set(ctx context.Context, in edge.Intent) (edge.SpeakerState, error) {
	for _, a := range o.held {
		named := slices.ContainsFunc(in.Announcements, func(b edge.Announcement) bool { return b.Net == a.Net })
		ordered := slices.ContainsFunc(in.Withdraw, func(w edge.Withdrawal) bool { return w.Net == a.Net })
		if !named && !ordered {
			return edge.SpeakerState{}, errors.New("intent is refused, nothing is withdrawn by being forgotten: " + a.Net.String())
		}
		if !named && ordered {
			o.withdrawn = append(o.withdrawn, a.Net)
		}
	}
	return o.faultySpeaker.Set(ctx, in)
}

// TestNoWayAround: each way in which a prefix could be taken off the air, with a guard
// that permits nothing. What is meant to go stays, asks, and is refused; what is not
// meant to stays as it is.
func TestNoWayAround(t *testing.T) {
	ordered := func(r *rig) { r.in.drain = func(netip.Prefix) *edge.Drain { return &edge.Drain{Reason: "work"} } }
	dropped := func(r *rig, left ...edge.Prefix) {
		old := r.in.config
		next := *old
		next.Fleet.Prefixes = left
		onAir := []edge.Announcement{{Net: p4}, {Net: p6}}
		l := carryOver(&next, old, onAir)
		r.in.config = l.with(&next)
		was := r.in.drain
		r.in.drain = func(p netip.Prefix) *edge.Drain {
			if has(l.prefixes, p) {
				return &edge.Drain{Prefix: p, Reason: "it is no longer in the configuration"}
			}
			return was(p)
		}
	}
	for name, c := range map[string]struct {
		do   func(*rig)
		asks bool
	}{
		"sickness":               {func(r *rig) { r.sick() }, true},
		"an operator's drain":    {ordered, true},
		"a drain while sick":     {func(r *rig) { ordered(r); r.sick() }, true},
		"removed, all":           {func(r *rig) { dropped(r) }, true},
		"removed, the guard too": {func(r *rig) { dropped(r); r.in.config.Fleet.Guard = edge.Guard{} }, true},
		"announced elsewhere now": {func(r *rig) {
			c := *r.in.config
			c.Fleet.Prefixes = slices.Clone(c.Fleet.Prefixes)
			for i := range c.Fleet.Prefixes {
				c.Fleet.Prefixes[i].Unconditional = []edge.SiteID{"b"}
			}
			r.in.config = &c
		}, true},
		"no backend any more": {func(r *rig) {
			for i := range r.in.statuses[1:] {
				r.in.statuses[i+1].State = edge.Down
			}
			r.sick()
		}, true},
		"all peers are removed": {func(r *rig) {
			c := *r.in.config
			c.Local.Speaker.Peers = nil
			r.in.config = &c
		}, false},
		"another AS": {func(r *rig) {
			c := *r.in.config
			c.Local.Speaker.ASN = 65099
			r.in.config = &c
		}, false},
		"a peer is not to be sent it any more": {func(r *rig) {
			c := *r.in.config
			c.Local.Speaker.Peers = slices.Clone(c.Local.Speaker.Peers)
			c.Local.Speaker.Peers[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
			r.in.config = &c
		}, false},
		"edgebgp is to stop": {func(r *rig) {
			r.loop.speaker.(*orderly).stopping = r.in.now
			r.in.drain = newStops(r).drain
		}, true},
		"edgebgp is to stop, edged anew": {func(r *rig) {
			r.loop.speaker.(*orderly).stopping = r.in.now
			r.loop = newLoop(r.loop.speaker, r.guard)
			r.in.drain = newStops(r).drain
		}, true},
		"the table is refused":    {func(r *rig) { r.in.notReady = "no table" }, false},
		"nothing is known":        {func(r *rig) { r.in.statuses = nil }, false},
		"edged is started anew":   {func(r *rig) { r.loop = newLoop(r.loop.speaker, r.guard); r.in.settled = false }, false},
		"edged anew, and is sick": {func(r *rig) { r.loop = newLoop(r.loop.speaker, r.guard); r.sick() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			sp := &orderly{}
			r.loop = newLoop(sp, r.guard)
			r.in.config.Local.Speaker.ASN = 65001
			r.in.config.Local.Speaker.Peers = []edge.Peer{{ID: "r", Addr: netip.MustParseAddr("192.0.2.254"), ASN: 65000}}
			peered := r.in.config.Local.Speaker
			r.step(t, 0)
			r.guard.permit = edge.Permit{Refused: true, Reason: "b: draining"}
			c.do(r)
			for range 40 {
				r.step(t, time.Second)
			}
			if len(sp.held) != 2 || len(sp.withdrawn) > 0 || r.loop.speakerErr != nil {
				t.Errorf("held %v, withdrawn %v, error %v", sp.held, sp.withdrawn, r.loop.speakerErr)
			}
			if c.asks != r.guard.wishes[p4].Want {
				t.Errorf("asks: %t (%+v), want %t", r.guard.wishes[p4].Want, r.loop.last[p4], c.asks)
			}
			if strings.Contains(name, "peer") || name == "another AS" {
				if r.loop.bgpWaits == "" || len(r.loop.bgp.Peers) != len(peered.Peers) || r.loop.bgp.ASN != peered.ASN {
					t.Errorf("the settings that end the session are in force: %q", r.loop.bgpWaits)
				}
			}
		})
	}
}

// racing is an edgebgp whose peers hold nothing when edged looks, and all when it is
// told: a session has come up in between.
type racing struct {
	orderly
	inForce edge.Speaker
	refused int
}

func (r *racing) State(ctx context.Context) (edge.SpeakerState, error) {
	st, err := r.orderly.State(ctx)
	st.Speaker = &r.inForce
	if r.refused == 0 && r.sets > 0 {
		st.Peers = nil
	}
	return st, err
}

func (r *racing) Set(ctx context.Context, in edge.Intent) (edge.SpeakerState, error) {
	if r.inForce.ASN != 0 {
		st, _ := r.orderly.State(ctx)
		st.Peers[0].Addr = netip.MustParseAddr("192.0.2.254")
		if why := edge.DropsRoutes(r.inForce, in.Speaker, st); why != "" {
			r.refused++
			return edge.SpeakerState{}, &socket.Refusal{Code: http.StatusConflict, Text: why}
		}
	}
	r.inForce = in.Speaker
	st, err := r.orderly.Set(ctx, in)
	st.Speaker = &r.inForce
	return st, err
}

// TestLostRace: edgebgp refuses settings that edged has found harmless a moment ago.
// Then those in force are told again, and the lease is renewed with them.
func TestLostRace(t *testing.T) {
	r := newRig(t)
	sp := &racing{}
	r.loop = newLoop(sp, r.guard)
	c := *r.in.config
	c.Local.Speaker.ASN = 65001
	c.Local.Speaker.Peers = []edge.Peer{{ID: "r", Addr: netip.MustParseAddr("192.0.2.254"), ASN: 65000}}
	r.in.config = &c
	r.step(t, 0)
	was := sp.sets
	next := c
	next.Local.Speaker.Peers = nil
	r.in.config = &next
	for range 5 {
		r.step(t, time.Second)
	}
	if sp.refused != 1 || len(sp.inForce.Peers) != 1 || len(sp.held) != 2 {
		t.Errorf("refused %d times, in force %+v, held %v", sp.refused, sp.inForce, sp.held)
	}
	if sp.sets != was+4 || r.loop.speakerErr != nil || r.loop.bgpWaits == "" {
		t.Errorf("told %d times, error %v, waits %q", sp.sets-was, r.loop.speakerErr, r.loop.bgpWaits)
	}
}

// TestEndWithdrawsNothing: when edged ends, nobody tells edgebgp anything more.
func TestEndWithdrawsNothing(t *testing.T) {
	sp := &orderly{}
	sp.held = []edge.Announcement{{Net: p4}}
	k := &leaseKeeper{announcer: sp}
	if _, err := k.Set(t.Context(), edge.Intent{Announcements: sp.held}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.run(ctx); err != nil || sp.sets != 1 || len(sp.held) != 1 {
		t.Errorf("%v, told %d times, held %v", err, sp.sets, sp.held)
	}
}

// forcingDaemon is a daemon with a guard that is real, and alone: nobody promises it
// anything.
func forcingDaemon(t *testing.T) (*daemon, *orderly) {
	t.Helper()
	c := testConfig()
	c.Fleet.Sites = []edge.Site{{ID: "a"}, {ID: "b"}}
	c.Fleet.Guard = edge.Guard{PromiseLease: 10 * time.Second, AskTimeout: time.Second, BackOff: time.Second}
	for i := range c.Fleet.Nodes {
		c.Fleet.Nodes[i].Gossip = netip.AddrPortFrom(c.Fleet.Nodes[i].Addr4, 7946)
		c.Fleet.Nodes[i].PublicKey = guard.PublicKey(ed25519.NewKeyFromSeed(slices.Repeat([]byte{byte(i)}, 32)))
	}
	sp := &orderly{}
	sp.held = []edge.Announcement{{Net: p4}, {Net: p6}}
	d := &daemon{
		keeper: newKeeper(t.TempDir(), slog.New(slog.DiscardHandler)), log: slog.New(slog.DiscardHandler),
		events: &health.Ring{}, monitor: health.New(health.Options{}), drains: nil, meter: newMeter(), started: time.Now(),
	}
	d.drains = &drains{keeper: d.keeper, file: newDrainReader()}
	d.leases = &leases{keeper: d.keeper, kept: c.Fleet.Guard.PromiseLease}
	d.cfg.Store(c)
	d.held.Store(&readBack{})
	d.off.Store(&map[edge.ServiceID]bool{})
	d.applied = edge.Table{Trusted: []netip.Addr{c.Fleet.Nodes[0].Addr4}}
	g, err := guard.New(guard.Options{
		Self: "a1", Roster: c.Fleet.Nodes, Prefixes: c.Fleet.Prefixes, Policy: c.Fleet.Guard,
		Keys: [][]byte{make([]byte, 32)}, NodeKey: ed25519.NewKeyFromSeed(make([]byte, 32)),
		Bind: netip.MustParseAddrPort("127.0.0.1:7946"), Held: func(netip.Prefix) bool { return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	d.guard = g
	d.loop = newLoop(sp, g)
	if !d.loop.adopt(t.Context()) {
		t.Fatal(d.loop.speakerErr)
	}
	return d, sp
}

// TestForceOut: the one way around. It needs a reason, is told to the fleet, kept,
// and not endless; and what was forced off does not come back by itself.
func TestForceOut(t *testing.T) {
	d, sp := forcingDaemon(t)
	for _, reason := range []string{"", "  ", noReason} {
		if err := d.mayForce(edge.Drain{Force: true, Reason: reason}); err == nil {
			t.Errorf("forced with the reason %q", reason)
		}
	}
	o := edge.Drain{Prefix: p4, Reason: "it eats its packets", Force: true, Since: time.Now()}
	if err := d.mayForce(o); err != nil {
		t.Fatal(err)
	}
	if err := d.forceOut(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(sp.withdrawn, []netip.Prefix{p4}) || d.loop.onAir[p4] || !d.loop.onAir[p6] || d.loop.last[p4].Rung != edge.Withdrawn {
		t.Errorf("withdrawn %v, on the air %v, %+v", sp.withdrawn, d.loop.onAir, d.loop.last[p4])
	}
	if len(d.forced.own) != 1 || d.forced.own[0].Prefix != p4 || d.forced.own[0].Reason != o.Reason {
		t.Errorf("told to the fleet: %+v", d.forced.own)
	}
	if past := d.guard.Past(); len(past) != 1 || !past[0].Forced || !past[0].Left || !strings.Contains(string(past[0].Reason), "it eats its packets") {
		t.Errorf("kept by the guard: %+v", past)
	}
	list, _ := d.events.Since(0)
	if n := len(list); n == 0 || list[n-1].Kind != "force" || list[n-1].Subject != p4.String() || list[n-1].Evidence != o.Reason {
		t.Errorf("history: %+v", list)
	}
	if a := d.forced.alarms(time.Now(), "a1"); len(a) != 1 || !strings.Contains(a[0], "198.51.100.0/24 was forced off the air at a1 without a permit") {
		t.Errorf("alarms: %q", a)
	}

	again, _ := forcingDaemon(t) // a restart
	mustDo(t, d.keeper.flush(time.Minute))
	mustDo(t, again.openForced(d.keeper.dir))
	if len(again.forced.own) != 1 || !again.forced.own[0].Equal(d.forced.own[0]) {
		t.Errorf("after a restart: %+v", again.forced.own)
	}
	sp.sticky = true
	for range edge.FreeLeaves - 1 {
		if err := d.forceOut(t.Context(), edge.Drain{Reason: "r", Force: true}); err == nil || !strings.Contains(err.Error(), "the drain is in force, but not all is off the air") {
			t.Fatalf("a router that does not let go: %v", err)
		}
	}
	if !d.loop.onAir[p6] {
		t.Error("what a peer still holds counts as gone")
	}
	if n := len(d.forced.own); n != edge.FreeLeaves || d.forced.own[n-1].Reason != "not all routers let go of it: r" {
		t.Errorf("what was tried is not on record: %+v", d.forced.own)
	}
	if err := d.forceOut(t.Context(), edge.Drain{Reason: "r", Force: true}); err == nil || !strings.Contains(err.Error(), "10 prefixes have been forced out") {
		t.Errorf("the eleventh: %v", err)
	}
}

// TestRestartForgetsNoLeaves: a restart is no way around max_leaves.
func TestRestartForgetsNoLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := forcingDaemon(t)
		c := *d.config()
		c.Fleet.Guard.MaxLeaves, d.keys.gossip = 0.01, [][]byte{make([]byte, 32)}
		d.updateGuard(&c)
		left := flaps{}
		for i := range edge.FreeLeaves {
			left[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16)] = edge.Flaps{}.Withdraw(time.Now(), time.Hour, false)
		}
		d.keeper.keep(flapsFile, "withdrawals", left)
		mustDo(t, d.keeper.flush(time.Minute))
		mustDo(t, d.watchLoop())
		d.guard.Publish(edge.Report{Says: []edge.Claim{{Prefix: p4, Announcing: true}}})
		for _, tt := range []struct {
			after time.Duration
			full  bool
		}{{11 * time.Second, true}, {50 * time.Second, false}} { // not before the promises of before are over
			time.Sleep(tt.after)
			out := d.guard.WhatIf([]netip.Prefix{p4}, []edge.SiteID{"a"})
			if len(out) != 1 || strings.Contains(string(out[0].Reason), "10 prefixes have left within a minute") != tt.full {
				t.Errorf("%s later: %+v, want the minute to be full: %t", tt.after, out, tt.full)
			}
		}
	})
}

// TestLeavesToOthers: who is to leave a prefix to another site does not before that one
// has promised, though the floor of that one alone is 0.
func TestLeavesToOthers(t *testing.T) {
	d, _ := forcingDaemon(t)
	d.keys.gossip = [][]byte{make([]byte, 32)}
	for _, tt := range []struct {
		sites    []edge.SiteID
		floor    int
		leaving  bool
		must     int
		question string
	}{
		{nil, 0, false, 0, "announced by all"},
		{[]edge.SiteID{"b"}, 0, false, 1, "announced by b only"},
		{[]edge.SiteID{"b"}, 2, false, 2, "announced by b only, a floor of its own"},
		{[]edge.SiteID{"a"}, 0, false, 0, "announced here only"},
		{[]edge.SiteID{"b"}, 0, true, 0, "retired"},
	} {
		c := *d.config()
		c.Fleet.Prefixes = slices.Clone(c.Fleet.Prefixes)
		c.Fleet.Prefixes[0].Unconditional, c.Fleet.Prefixes[0].MinSites = tt.sites, tt.floor
		d.leaving = leaving{}
		if tt.leaving {
			d.leaving.prefixes = c.Fleet.Prefixes[:1]
		}
		d.updateGuard(&c)
		if got := d.guard.Outlook([]netip.Prefix{c.Fleet.Prefixes[0].Net}); len(got) != 1 || got[0].Needed != tt.must {
			t.Errorf("%s: %+v, want %d to stay", tt.question, got, tt.must)
		}
	}
}

// TestHearsOfForce: every box tells of what another has forced out, once, and alarms
// for an hour.
func TestHearsOfForce(t *testing.T) {
	d, _ := forcingDaemon(t)
	now := time.Now()
	members := []edge.MemberState{{Node: "b1", Site: "b", Report: edge.Report{Forced: []edge.Forced{{Prefix: p6, At: now.Add(-time.Minute), Reason: "fire"}}}}}
	for range 3 {
		d.followForced(now, members)
	}
	if list, _ := d.events.Since(0); len(list) != 1 || list[0].Subject != "2001:db8:100::/48 at b1" || list[0].Evidence != "fire" {
		t.Errorf("history: %+v", list)
	}
	if a := d.forced.alarms(now, "a1"); len(a) != 1 || !strings.Contains(a[0], "forced off the air at b1") {
		t.Errorf("alarms: %q", a)
	}
	d.followForced(now.Add(edge.ForcedFor), members)
	if a := d.forced.alarms(now.Add(edge.ForcedFor), "a1"); len(a) != 0 {
		t.Errorf("after an hour: %q", a)
	}
}

// TestNothingElseForces: no method or path of the API but POST /v1/drain takes
// anything off the air.
func TestNothingElseForces(t *testing.T) {
	d, sp := forcingDaemon(t)
	h := d.handler()
	for _, c := range []struct{ method, path string }{
		{"DELETE", "/v1/drain"}, {"PUT", "/v1/drain"}, {"DELETE", "/v1/prefix"}, {"DELETE", "/v1/prefixes/198.51.100.0%2F24"},
		{"PUT", "/v1/intent"}, {"POST", "/v1/withdraw"}, {"POST", "/v1/force"}, {"POST", "/v1/guard/force"}, {"POST", "/v1/renew"},
		{"GET", "/v1/drain"}, {"DELETE", "/v1/guard/trust"}, {"POST", "/v1/status"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(`{"prefix":"198.51.100.0/24","reason":"r","force":true}`))
		r.Host = "127.0.0.1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusMethodNotAllowed && w.Code != http.StatusNotFound {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
	}
	if len(sp.withdrawn) > 0 || sp.sets > 0 {
		t.Errorf("withdrawn %v", sp.withdrawn)
	}
}
