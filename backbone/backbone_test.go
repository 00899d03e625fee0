package backbone

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/catchment-dev/edge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errRefused = errors.New("connection refused")

// twoRegions is near (two upstreams) and far (one); nothing has been measured.
func twoRegions() []edge.Region {
	check := edge.Probe{Kind: edge.ProbeTCP, Interval: time.Second, Timeout: 500 * ms, Rise: 2, Fall: 3}
	return []edge.Region{
		{ID: "near", Capacity: 1000, Check: check, Upstreams: []edge.Upstream{
			{ID: "n1", Addr: netip.MustParseAddrPort("192.0.2.1:80")}, {ID: "n2", Addr: netip.MustParseAddrPort("192.0.2.2:80")},
		}},
		{ID: "far", Capacity: 1000, Check: check, Upstreams: []edge.Upstream{{ID: "f1", Addr: netip.MustParseAddrPort("192.0.2.3:80")}}},
	}
}

func newSelector(regions []edge.Region) *Selector {
	return New(Options{Node: "me", Regions: regions, Probe: noProbe, Log: slog.New(slog.DiscardHandler)})
}

// noProbe is for selectors whose checks are all of kind tcp, or are not run.
func noProbe(context.Context, edge.Probe) error { panic("asked for more than a connect") }

func mustPick(t *testing.T, s *Selector, allowed []edge.RegionID, tried ...edge.UpstreamID) Choice {
	t.Helper()
	c, err := s.Pick(allowed, tried)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPickBeforeAnythingIsMeasured(t *testing.T) {
	s := newSelector(twoRegions())
	if c := mustPick(t, s, nil); c.Region != "near" || c.Spill != "" {
		t.Errorf("got %+v, want the first of the configuration", c)
	}
	if c := mustPick(t, s, []edge.RegionID{"far"}); c.Region != "far" || c.Spill != "" {
		t.Errorf("got %+v, want the only one allowed", c)
	}
	if _, err := s.Pick([]edge.RegionID{"nowhere"}, nil); !errors.Is(err, ErrDown) {
		t.Errorf("unknown region: %v", err)
	}
}

func TestPickLeavesOutWhatWasTried(t *testing.T) {
	s := newSelector(twoRegions())
	for range 20 {
		if c := mustPick(t, s, nil, "n1"); c.Upstream.ID != "n2" {
			t.Fatalf("got %s", c.Upstream.ID)
		}
	}
	if c := mustPick(t, s, nil, "n1", "n2"); c.Upstream.ID != "f1" || c.Spill != "region near is down" {
		t.Errorf("got %+v", c)
	}
	if _, err := s.Pick(nil, []edge.UpstreamID{"n1", "n2", "f1"}); !errors.Is(err, ErrDown) {
		t.Errorf("everything tried: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offered != 0 {
		t.Errorf("second tries count as %d requests", s.offered)
	}
}

func TestPickTakesTheLessBusy(t *testing.T) {
	s := newSelector(twoRegions())
	counts := map[edge.UpstreamID]int{}
	var open []Choice
	for range 100 { // none of them ends
		c := mustPick(t, s, []edge.RegionID{"near"})
		counts[c.Upstream.ID]++
		open = append(open, c)
	}
	if counts["n1"] != 50 || counts["n2"] != 50 {
		t.Errorf("of two, the less busy one is taken each time: %v", counts)
	}
	for _, c := range open {
		c.Done(nil)
		c.Done(nil) // the second call does nothing
	}
	for _, u := range s.upstreams() {
		if u.busy != 0 {
			t.Errorf("%s: busy %d after the end of all", u.ID, u.busy)
		}
	}
}

func TestDialErrorsBringAnUpstreamDown(t *testing.T) {
	s := newSelector(twoRegions())
	only := []edge.RegionID{"far"}
	far := s.regions[1].upstreams[0]
	s.observe(far, 9*ms, nil)
	mustPick(t, s, only).Done(errRefused)
	mustPick(t, s, only).Done(errRefused)
	mustPick(t, s, only).Done(nil) // not in a row
	for range dialErrors {
		mustPick(t, s, only).Done(errRefused)
	}
	if _, err := s.Pick(only, nil); !errors.Is(err, ErrDown) {
		t.Fatalf("after %d errors in a row: %v", dialErrors, err)
	}
	if v := s.Load().Regions[1]; v.Up != 0 || v.LastErr != "f1: connection refused" || v.Allowance != 0 {
		t.Errorf("view %+v", v)
	}
	s.observe(far, 9*ms, nil)
	if _, err := s.Pick(only, nil); err == nil {
		t.Error("up again after one good check, rise is 2")
	}
	s.observe(far, 9*ms, nil)
	mustPick(t, s, only)
}

func TestObserveDamps(t *testing.T) {
	s := newSelector(twoRegions())
	u := s.regions[1].upstreams[0]
	steps := []struct {
		err  error
		want edge.ProbeState
	}{
		{nil, edge.Up}, {errRefused, edge.Up}, {errRefused, edge.Up}, {nil, edge.Up}, {errRefused, edge.Up}, {errRefused, edge.Up},
		{edge.ErrUnknown, edge.Up}, {errRefused, edge.Down}, {nil, edge.Down}, {errRefused, edge.Down}, {nil, edge.Down}, {nil, edge.Up},
	}
	for i, step := range steps {
		if s.observe(u, ms, step.err); u.state != step.want {
			t.Fatalf("step %d: %s, want %s", i, u.state, step.want)
		}
	}
	other := s.regions[0].upstreams[0]
	if s.observe(other, 0, errRefused); other.state != edge.Down {
		t.Errorf("the first result decides: %s", other.state)
	}
}

func TestRTTIsTheLeastAndDoesNotFlap(t *testing.T) {
	s := newSelector(twoRegions())
	near, far := s.regions[0].upstreams[0], s.regions[1].upstreams[0]
	s.observe(near, 10*ms, nil)
	s.observe(far, 10*ms+10*time.Microsecond, nil)
	for i := range 50 { // noise upwards is not the path's
		noise := time.Duration(i%7) * ms
		s.observe(near, 10*ms+noise, nil)
		s.observe(far, 10*ms+noise/2, nil)
		s.publish()
		if s.order[0].ID != "near" {
			t.Fatalf("round %d: the order has changed: %v", i, s.Load().Regions)
		}
	}
	for range 2 * rttWindow { // the path of near has become longer
		s.observe(near, 30*ms, nil)
		s.publish()
	}
	if c := mustPick(t, s, nil); c.Region != "far" {
		t.Errorf("the nearest is %s: %v", c.Region, s.Load().Regions)
	}
}

// publish is the part of a round that is about RTTs.
func (s *Selector) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.regions {
		r.publishRTT()
	}
	s.sortRegions()
}

func TestSetRegionsKeepsWhatStays(t *testing.T) {
	s := newSelector(twoRegions())
	kept := s.regions[1].upstreams[0]
	s.observe(kept, 9*ms, nil)
	next := twoRegions()
	next[0].Upstreams = next[0].Upstreams[:1]
	next[0].Upstreams[0].Addr = netip.MustParseAddrPort("192.0.2.9:80")
	next[1].Capacity = 5
	s.SetRegions(next)
	if s.regions[1].upstreams[0] != kept || s.regions[1].rtt != 9*ms {
		t.Error("an upstream that stayed has been forgotten")
	}
	if u := s.regions[0].upstreams; len(u) != 1 || u[0].Addr.Addr().String() != "192.0.2.9" {
		t.Errorf("upstreams %v", u)
	}
	if a := s.Load().Regions[1].Allowance; a != 5 {
		t.Errorf("allowance %v, want the new capacity", a)
	}
}

// TestSetRegionsGivesNothingAway: a reload refills no bucket and forgets no
// request of the round.
func TestSetRegionsGivesNothingAway(t *testing.T) {
	now := time.Unix(1000, 0)
	regions := regionsOf(10)
	regions[0].Upstreams = []edge.Upstream{{ID: "u"}}
	s := New(Options{Node: "me", Regions: regions, Probe: noProbe, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }})
	s.SetFleet(edge.FleetLoad{Rows: []edge.FleetRow{{Node: "other", Load: rowOf("other", 0, ms).Load}}})
	s.SetRegions(regions)
	taken := 0
	for range 20 { // reloads
		for {
			if _, err := s.Pick(nil, nil); err != nil {
				break
			}
			taken++
		}
		s.SetRegions(regions)
	}
	if taken != 10 {
		t.Errorf("%d requests at once to a region of 10 a second", taken)
	}
	now = now.Add(time.Second)
	s.round()
	if sent := s.Load().Regions[0].Sent; sent < 4 {
		t.Errorf("sent %v: the reloads have forgotten the requests before them", sent)
	}
}

// TestRise: an early round is too short to tell a rate.
func TestRise(t *testing.T) {
	for _, tt := range []struct {
		rate        float64
		n           int
		dt          float64
		least, most float64
	}{{0, 100, 1, 90, 90}, {100, 0, 1, 50, 52}, {0, 2, 0.001, 0, 2}, {0, 200, 2, 90, 100}, {50, 50, 1, 50, 50}} {
		if got := rise(tt.rate, tt.n, tt.dt); got < tt.least || got > tt.most {
			t.Errorf("rise(%v, %d, %v) = %v, want %v to %v", tt.rate, tt.n, tt.dt, got, tt.least, tt.most)
		}
	}
}

// TestRun runs the whole on synctest's clock, with the network faked.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSelector(twoRegions())
		var dead atomic.Bool
		var asked atomic.Int64
		s.dial = func(ctx context.Context, at netip.AddrPort) (time.Duration, error) {
			asked.Add(1)
			if at.Addr() == netip.MustParseAddr("192.0.2.3") {
				time.Sleep(5 * ms)
				return 5 * ms, nil
			}
			if dead.Load() {
				<-ctx.Done() // no answer at all
				return 0, ctx.Err()
			}
			time.Sleep(40 * ms)
			return 40 * ms, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		<-s.Ready()
		time.Sleep(1500 * ms)
		if c := mustPick(t, s, nil); c.Region != "far" {
			t.Errorf("picked %s, want the one with the lesser RTT", c.Region)
		}
		dead.Store(true)
		time.Sleep(4 * time.Second) // fall is 3
		if v := s.Load().Regions[0]; v.Up != 0 || v.Of != 2 {
			t.Errorf("near is %+v", v)
		}
		for range 60 {
			mustPick(t, s, nil).Done(nil)
			time.Sleep(100 * ms)
		}
		if d := s.Load().Demand; d < 9 || d > 11 {
			t.Errorf("demand %v, want 10", d)
		}
		s.SetRegions(twoRegions()[1:])
		time.Sleep(ms)
		before := asked.Load()
		time.Sleep(10 * time.Second)
		if n := asked.Load() - before; n < 9 || n > 11 {
			t.Errorf("%d checks in 10 s of the one upstream that is left", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		mustPick(t, s, nil) // by the last measurements
	})
}

func TestCollector(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := newSelector(twoRegions())
	if err := reg.Register(s.Collector()); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 7 {
		t.Errorf("%d families, %v", len(families), err)
	}
}
