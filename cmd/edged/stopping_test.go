package main

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/health"
)

// stops follows what the edgebgp of a rig says of its stopping, as the daemon does.
type stops struct{ *daemon }

func newStops(r *rig) stops {
	return stops{&daemon{loop: r.loop, drains: &drains{}, events: &health.Ring{}, log: slog.New(slog.DiscardHandler)}}
}

// drain is asked for each prefix in each turn.
func (s stops) drain(p netip.Prefix) *edge.Drain {
	s.followStop()
	return s.drains.of(p, nowhere)
}

// TestSpeakerStops: an edgebgp that is to stop is a drain of the node, until another
// one answers that is not; nobody has to take it back.
func TestSpeakerStops(t *testing.T) {
	r := newRig(t)
	sp := &orderly{}
	r.loop = newLoop(sp, r.guard)
	s := newStops(r)
	r.in.drain = s.drain
	r.in.config.Fleet.Guard.DrainTime = 5 * time.Second
	r.step(t, 0)
	want := func(rung edge.Rung, why string) {
		t.Helper()
		if d := r.loop.last[p4]; d.Rung != rung || !strings.Contains(string(d.Reason), why) {
			t.Errorf("%s: %s, want %s: %s", d.Rung, d.Reason, rung, why)
		}
	}
	want(edge.Announced, "")

	sp.stopping = r.in.now
	r.step(t, 2*time.Second) // hears of it
	r.step(t, time.Second)
	want(edge.Draining, "drained: edgebgp is to stop")
	if !r.loop.sent.Announcements[0].Shutdown || len(s.drains.all()) != 1 || s.drains.node() {
		t.Errorf("announced %+v, drains %+v", r.loop.sent.Announcements, s.drains.all())
	}
	r.guard.permit = edge.Permit{Refused: true, Reason: "b has not answered"}
	for range 30 {
		r.step(t, time.Second)
	}
	want(edge.LastResort, "drained: edgebgp is to stop; may not withdraw: b has not answered")
	if len(sp.held) != 2 || len(sp.withdrawn) > 0 {
		t.Errorf("held %v, withdrawn %v", sp.held, sp.withdrawn)
	}

	r.guard.permit = edge.Permit{OK: true}
	r.step(t, time.Second)
	want(edge.Withdrawn, "edgebgp is to stop")
	if !slices.Equal(sp.withdrawn, []netip.Prefix{p4, p6}) {
		t.Errorf("withdrawn %v", sp.withdrawn)
	}
	sp.fail = errors.New("connection refused") // it has stopped
	for range 30 {
		r.step(t, time.Second)
	}
	want(edge.Withdrawn, "edgebgp is to stop")

	sp.fail, sp.stopping = nil, time.Time{} // another one is there
	r.step(t, time.Second)
	r.step(t, 250*time.Millisecond)
	want(edge.Announced, "")
	if len(sp.held) != 2 || sp.held[0].Degrade || len(s.drains.all()) > 0 {
		t.Errorf("announced %+v, drains %+v", sp.held, s.drains.all())
	}
	list, _ := s.events.Since(0)
	if len(list) != 2 || list[0].Subject != "edgebgp" || list[0].To != "is to stop" || list[1].To != "runs" {
		t.Errorf("history: %+v", list)
	}
}

// TestSpeakerStopsInVain: one that is killed while it waits is as one that has left.
func TestSpeakerStopsInVain(t *testing.T) {
	r := newRig(t)
	sp := &orderly{}
	r.loop = newLoop(sp, r.guard)
	r.in.drain = newStops(r).drain
	r.step(t, 0)
	sp.stopping = r.in.now
	r.guard.permit = edge.Permit{Refused: true, Reason: "b has not answered"}
	for range 15 { // longer than the hold
		r.step(t, time.Second)
	}
	if r.loop.last[p4].Rung != edge.LastResort {
		t.Fatalf("%+v", r.loop.last[p4])
	}
	sp.stopping = time.Time{}
	for range 2 {
		r.step(t, time.Second)
	}
	if d := r.loop.last[p4]; d.Rung != edge.Announced || sp.held[0].Degrade || len(sp.withdrawn) > 0 || r.guard.wishes[p4].Want {
		t.Errorf("%+v, held %+v, wish %+v", d, sp.held, r.guard.wishes[p4])
	}
}

// TestStopAmongDrains: an operator's order outranks that of edgebgp, and outlives it.
func TestStopAmongDrains(t *testing.T) {
	d := &drains{stop: &edge.Drain{Reason: speakerStops}}
	why := func(p netip.Prefix) string {
		if o := d.of(p, nowhere); o != nil {
			return o.Reason
		}
		return ""
	}
	if why(p4) != speakerStops {
		t.Errorf("alone: %q", why(p4))
	}
	d.list = []edge.Drain{{Prefix: p4, Reason: "new fan"}}
	if why(p4) != "new fan" || why(p6) != speakerStops {
		t.Errorf("beside the order for one: %q, %q", why(p4), why(p6))
	}
	d.byFile = []edge.Drain{{Reason: "by file"}}
	if why(p6) != "by file" {
		t.Errorf("beside the order for the node: %q", why(p6))
	}
	d.stop = nil
	if len(d.all()) != 2 || why(p4) != "new fan" || why(p6) != "by file" {
		t.Errorf("after it: %+v", d.all())
	}
}

// TestStopAlarm: there is one while the guard refuses, and it says why.
func TestStopAlarm(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		stopping time.Time
		rung     edge.Rung
		err      string
		want     string
	}{
		"runs":             {time.Time{}, edge.LastResort, "", ""},
		"drains":           {since, edge.Draining, "", ""},
		"refused":          {since, edge.LastResort, "", "edgebgp is to stop since 03:04:05 UTC, and goes on announcing 198.51.100.0/24, which may not leave: b has not answered; a second SIGTERM"},
		"refused, but off": {since, edge.LastResort, "connection refused", ""},
	} {
		st := &edge.SystemStatus{
			Speaker: edge.SpeakerState{Stopping: c.stopping}, SpeakerErr: c.err,
			Decisions: []edge.Decision{{Prefix: p4, Rung: c.rung}},
		}
		st.Guard.Asking = map[netip.Prefix]edge.Permit{p4: {Refused: true, Reason: "b has not answered"}}
		if got := stopAlarm(st); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}
