package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/health"
)

// sixSites is a daemon of a fleet of six sites, and what the other five say: fails, if
// not 0, is for how long the check of this node has failed there.
func sixSites(t *testing.T) (*daemon, sight, func(fails ...time.Duration) []edge.MemberState) {
	t.Helper()
	c := testConfig()
	c.Fleet.Nodes = nil
	for _, s := range []string{"a", "b", "c", "d", "e", "f"} {
		c.Fleet.Nodes = append(c.Fleet.Nodes, edge.Node{ID: edge.NodeID(s + "1"), Site: edge.SiteID(s), Addr4: netip.MustParseAddr("192.0.2.1"), HealthPort: 1})
		c.Fleet.Sites = append(c.Fleet.Sites, edge.Site{ID: edge.SiteID(s)})
	}
	c.Fleet.Guard = edge.Guard{PromiseLease: 10 * time.Second, MaxCycles: 3}
	d := &daemon{loop: newLoop(&faultySpeaker{}, &permitting{}), events: &health.Ring{}, log: slog.New(slog.DiscardHandler)}
	d.keeper = newKeeper(t.TempDir(), d.log)
	d.cfg.Store(c)
	now := time.Now()
	statuses := webIs(edge.Down)
	statuses[0].Since = now.Add(-time.Second)
	statuses = statuses[:2]
	s := sight{now: now, statuses: statuses, failing: health.Causes(d.loop.graph(c), statuses, now)}
	if len(s.failing) != 1 || s.failing[0].Cause.Check() != "web" {
		t.Fatalf("failing: %+v", s.failing)
	}
	return d, s, func(fails ...time.Duration) []edge.MemberState {
		var out []edge.MemberState
		for i, f := range fails {
			n := c.Fleet.Nodes[i+1]
			m := edge.MemberState{Node: n.ID, Site: n.Site, Alive: true, Age: time.Second, Said: time.Second}
			switch {
			case f < 0:
				m.Age = -1
			case f > 0:
				m.Report.Failing = []edge.Failure{{Cause: s.failing[0].Cause, Age: f - time.Second}}
			}
			out = append(out, m)
		}
		return out
	}
}

// calledDead are members of whom somebody with the gossip key says that they are dead.
func calledDead(all []edge.MemberState) []edge.MemberState {
	for i := range all {
		all[i].Alive = false
	}
	return all
}

// TestCommonCauseDegrades: what fails at many sites is not held against this one, nor
// is anything while it hears nobody; an order has it believed all the same.
func TestCommonCauseDegrades(t *testing.T) {
	d, s, others := sixSites(t)
	r := newRig(t)
	r.in.config = d.config()
	r.in.statuses = s.statuses
	r.loop.adopt(t.Context())
	r.loop.onAir[p4], r.loop.onAir[p6] = true, true
	for _, c := range []struct {
		members []edge.MemberState
		rung    edge.Rung
		reason  string
		listed  int
	}{
		{others(0, 0, 0, 0, 0), edge.Leaving, "web is down: refused", 0},
		{others(5*time.Second, 0, 0, 0, 0), edge.Leaving, "web is down: refused", 0},
		{others(5*time.Second, 9*time.Second, 30*time.Second, 2*time.Second, 0), edge.Degraded, "common cause: web at 5 of 6 sites)", 1},
		{others(5*time.Minute, 9*time.Hour, 0, 0, 0), edge.Leaving, "web is down: refused", 0},
		{others(-1, -1, -1, -1, -1), edge.Degraded, "common cause: web at 6 of 6 sites, 5 of them not heard of", 1},
		{others(0, 0, 0, 0, -1), edge.Leaving, "web is down", 0},
		{calledDead(others(0, 0, 0, 0, 0)), edge.Leaving, "web is down", 0},
	} {
		s.members = c.members
		r.in.suspect = d.jury(s).Try
		r.step(t, time.Second)
		if got := r.loop.last[p4]; got.Rung != c.rung || !strings.Contains(string(got.Reason), c.reason) {
			t.Errorf("%s: %s; want %s, %q", got.Rung, got.Reason, c.rung, c.reason)
		}
		if w := r.guard.wishes[p4]; w.Want != c.rung.WantsOut() {
			t.Errorf("%s, and the guard is told %+v", c.rung, w)
		}
		if got := d.suspects(s); len(got) != c.listed || c.listed > 0 && !got[0].Here {
			t.Errorf("suspects: %+v", got)
		}
	}
	s.members = others(time.Second, time.Second, time.Second, 0, 0)
	now := time.Now().UTC()
	d.setTrusts([]edge.Trust{{Check: "web", Since: now, Until: now.Add(time.Hour), By: "b1", Reason: "it is right"}})
	r.in.suspect = d.jury(s).Try
	r.step(t, time.Second)
	if got := r.loop.last[p4]; got.Rung != edge.Leaving {
		t.Errorf("trusted: %+v", got)
	}
	if got := d.suspects(s); len(got) != 1 || !got[0].Trusted {
		t.Errorf("trusted: %+v", got)
	}
	st := &edge.SystemStatus{Time: now, Node: "a1", Guard: edge.GuardState{Suspects: d.suspects(s)}}
	if a := d.guardAlarms(st); len(a) > 0 {
		t.Errorf("alarms about what is trusted: %q", a)
	}
	d.trusts = nil
	st.Guard.Suspects = d.suspects(s)
	if a := d.guardAlarms(st); len(a) != 1 || !strings.HasPrefix(a[0], "common cause: web at 4 of 6 sites: it fails here too") {
		t.Errorf("alarms: %q", a)
	}
}

// TestTrust: an order to believe a check is kept, spreads, ends, and is taken back.
func TestTrust(t *testing.T) {
	d, s, others := sixSites(t)
	now := time.Now().UTC()
	give := func(check edge.ProbeID, length time.Duration) error {
		_, err := d.trust(edge.Trust{Check: check, Reason: "r", By: "a1", Since: now, Until: now.Add(length)})
		return err
	}
	if err := give("nothing", time.Hour); err == nil || !strings.Contains(err.Error(), "not a check of the configuration") {
		t.Errorf("an unknown check: %v", err)
	}
	if err := give("web", 0); err == nil || !strings.Contains(err.Error(), "not trusted by an order") {
		t.Errorf("taken back before it was given: %v", err)
	}
	mustDo(t, give("web", time.Hour))
	mustDo(t, give("web/backends", time.Hour))
	mustDo(t, d.keeper.flush(time.Minute))
	kept, err := openTrusts(d.keeper.dir)
	if err != nil || len(kept) != 2 || !kept[0].Equal(d.trusts[0]) {
		t.Errorf("kept: %+v, %v", kept, err)
	}
	other, _, _ := sixSites(t)
	heard := others(0)
	heard[0].Report.Trust = d.trusts
	other.followTrusts(now, heard)
	if len(other.trusts) != 2 || !other.jury(s).Trusted("web") {
		t.Errorf("heard: %+v", other.trusts)
	}
	mustDo(t, give("web", 0)) // at the same instant: the last word counts
	if d.jury(s).Trusted("web") || !d.jury(s).Trusted("web/backends") {
		t.Errorf("taken back: %+v", d.trusts)
	}
	heard[0].Report.Trust = d.trusts
	other.followTrusts(now, heard)
	if other.jury(s).Trusted("web") {
		t.Errorf("taken back, heard: %+v", other.trusts)
	}
	s.now = now.Add(2 * time.Hour)
	if d.jury(s).Trusted("web/backends") {
		t.Error("an order does not end")
	}
	for _, body := range []string{`{"check":"Web!"}`, `{"check":"web","reason":"r","until":"2099-01-01T00:00:00Z"}`, `{`} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		if d.serveTrust(w, r); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
}

// TestSwap: a site that is off the air comes back for a worse one, the least sick
// first, and no sooner than the others have had their time.
func TestSwap(t *testing.T) {
	d, s, others := sixSites(t)
	s.members = others(0, 0, 0)
	now := s.now
	if w := d.worse(now, s.members)(p4, 4); w != (edge.Worse{}) {
		t.Errorf("nobody is worse: %+v", w)
	}
	s.members[0].Report.Says = []edge.Claim{{Prefix: p4, Announcing: true, Rung: edge.LastResort, Severity: 9, Blocked: true}}
	if w := d.worse(now, s.members)(p4, 4); w.Site != "b" {
		t.Errorf("b is worse, and nobody had better go: %+v", w)
	}
	s.members[1].Report.Says = []edge.Claim{{Prefix: p4, Rung: edge.Withdrawn, Severity: 2}}
	if w := d.worse(now, s.members)(p4, 4); w != (edge.Worse{}) {
		t.Errorf("c had better come back: %+v", w)
	}
	if w := d.worse(now.Add(edge.SwapWait), s.members)(p4, 4); w.Site != "b" {
		t.Errorf("c has not: %+v", w)
	}
	r := newRig(t)
	r.step(t, 0)
	r.sick()
	r.guard.permit = edge.Permit{OK: true}
	r.step(t, time.Second)
	r.want(t, edge.Withdrawn, false)
	r.guard.permit = edge.Permit{}
	asked := 0
	r.in.worse = func(p netip.Prefix, severity int) edge.Worse {
		if asked++; severity != edge.SeverityDown {
			t.Errorf("asked with severity %d", severity)
		}
		return edge.Worse{Site: "b", Severity: edge.SeverityDown + 1}
	}
	r.step(t, time.Second)
	r.want(t, edge.Withdrawn, false) // a flap otherwise
	asked = 0
	r.step(t, 2*time.Second)
	r.want(t, edge.LastResort, true)
	if asked != 2 {
		t.Errorf("asked %d times for two prefixes", asked)
	}
	r.step(t, time.Second)
	if asked != 2 || r.loop.last[p4].Rung != edge.Leaving {
		t.Errorf("on the air it is asked %d times, %s", asked, r.loop.last[p4].Rung)
	}
}

// TestBlocked: who has been refused for long says so.
func TestBlocked(t *testing.T) {
	r := newRig(t)
	r.step(t, 0)
	r.sick()
	for _, since := range []time.Time{{}, time.Unix(1, 0)} {
		r.guard.permit = edge.Permit{Refused: true, Reason: "b: draining", BlockedSince: since}
		r.step(t, time.Second)
		r.step(t, time.Second)
		if c := r.loop.claims(r.in.config)[0]; c.Blocked == since.IsZero() || c.Severity != edge.SeverityDown || c.Rung != edge.LastResort {
			t.Errorf("%+v", c)
		}
		if !r.speaker.held[0].Degrade || !r.speaker.held[0].Shutdown {
			t.Errorf("not announced at its worst: %+v", r.speaker.held[0])
		}
	}
}
