package backbone

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// world is a fleet whose time stands still between the steps of a test: real
// Selectors, no sockets.
type world struct {
	t     *testing.T
	now   time.Time
	nodes []*Selector
	// rows is what the gossip carries: last second's rows.
	rows   []edge.FleetRow
	demand []float64 // requests a second at each node
	due    []float64
	// sent[region] holds when requests arrived there.
	sent    map[edge.RegionID][]time.Time
	byNode  map[string]int
	refused int
}

// newWorld has nodes n0.. with the RTTs rtt[node][region].
func newWorld(t *testing.T, capacity []float64, rtt [][]time.Duration) *world {
	w := &world{t: t, now: time.Unix(1000, 0), demand: make([]float64, len(rtt)), due: make([]float64, len(rtt)),
		sent: map[edge.RegionID][]time.Time{}, byNode: map[string]int{}}
	regions := regionsOf(capacity...)
	for i := range regions {
		regions[i].Upstreams = []edge.Upstream{{ID: edge.UpstreamID(fmt.Sprintf("u%d", i))}}
		regions[i].Check = edge.Probe{Rise: 1, Fall: 1}
	}
	for i := range rtt {
		w.nodes = append(w.nodes, New(Options{
			Node: edge.NodeID(fmt.Sprintf("n%d", i)), Regions: regions, Probe: noProbe, Log: slog.New(slog.DiscardHandler),
			Now: func() time.Time { return w.now },
		}))
		for j, d := range rtt[i] {
			w.observe(i, j, d, nil)
		}
	}
	return w
}

func (w *world) observe(node, region int, rtt time.Duration, err error) {
	s := w.nodes[node]
	s.observe(s.regions[region].upstreams[0], rtt, err)
}

// run lets time pass in steps of 5 ms. The nodes' rounds are spread over the
// second; each knows of the others what they published before the last gossip.
func (w *world) run(d time.Duration) {
	const step = 5 * time.Millisecond
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(step)
		tick := int(w.now.UnixMilli()) % 1000
		if tick == 0 {
			w.gossip()
		}
		for i, s := range w.nodes {
			if tick == 100+250*i {
				s.round()
			}
			for w.due[i] += w.demand[i] * step.Seconds(); w.due[i] >= 1; w.due[i]-- {
				w.request(i)
			}
		}
	}
}

func (w *world) gossip() {
	for i, s := range w.nodes {
		var others []edge.FleetRow
		for _, r := range w.rows {
			if r.Node != s.node {
				others = append(others, r)
			}
		}
		w.nodes[i].SetFleet(edge.FleetLoad{Rows: others})
	}
	w.rows = nil
	for _, s := range w.nodes {
		w.rows = append(w.rows, edge.FleetRow{Node: s.node, Age: time.Second, Load: s.Load()})
	}
}

func (w *world) request(node int) {
	c, err := w.nodes[node].Pick(nil, nil)
	if err != nil {
		w.refused++
		return
	}
	w.sent[c.Region] = append(w.sent[c.Region], w.now)
	w.byNode[fmt.Sprintf("n%d>%s", node, c.Region)]++
	c.Done(nil)
}

func (w *world) forget() {
	clear(w.sent)
	clear(w.byNode)
	w.refused = 0
}

// within checks that no region got more than its capacity and one burst from
// each node in any second.
func (w *world) within(capacity []float64) {
	w.t.Helper()
	for i, c := range capacity {
		times := w.sent[edge.RegionID(fmt.Sprintf("r%d", i))]
		limit := int(c+c*burstTime.Seconds()) + len(w.nodes)
		first, worst := 0, 0
		for last := range times {
			for times[last].Sub(times[first]) >= time.Second {
				first++
			}
			worst = max(worst, last-first+1)
		}
		w.t.Logf("r%d: capacity %v, worst second %d", i, c, worst)
		if n := len(times); n > 0 {
			// What is saved up is used once: over a longer time it is no more than
			// the capacity.
			if most := c*times[n-1].Sub(times[0]).Seconds() + c*burstTime.Seconds() + float64(len(w.nodes)); float64(n) > most {
				w.t.Errorf("r%d got %d requests, want at most %.0f", i, n, most)
			}
		}
		if worst > limit {
			w.t.Errorf("r%d got %d requests in a second, capacity %v, limit %d", i, worst, c, limit)
		}
	}
}

// share checks what part of a node's requests went to a region.
func (w *world) share(node, region int, least, most float64) {
	w.t.Helper()
	all := 0
	for j := range w.nodes[node].regions {
		all += w.byNode[fmt.Sprintf("n%d>r%d", node, j)]
	}
	got := float64(w.byNode[fmt.Sprintf("n%d>r%d", node, region)]) / float64(max(all, 1))
	if got < least || got > most {
		w.t.Errorf("n%d sends %.2f to r%d, want %.2f to %.2f (%v)", node, got, region, least, most, w.byNode)
	}
}

var threeByThree = [][]time.Duration{
	{5 * ms, 20 * ms, 50 * ms},
	{25 * ms, 5 * ms, 20 * ms},
	{50 * ms, 25 * ms, 5 * ms},
}

func TestSimulationSpill(t *testing.T) {
	capacity := []float64{200, 200, 200}
	w := newWorld(t, capacity, threeByThree)
	w.demand = []float64{100, 100, 100}
	w.run(10 * time.Second)
	w.within(capacity)
	if w.refused > 0 {
		t.Errorf("%d refused at half load", w.refused)
	}
	w.forget()
	w.run(5 * time.Second)
	for i := range 3 {
		w.share(i, i, 1, 1)
	}

	t.Log("n0 gets 2.5 times the capacity of its own region")
	w.forget()
	w.demand[0] = 350
	w.run(10 * time.Second)
	w.within(capacity)
	w.forget()
	w.run(10 * time.Second)
	w.within(capacity)
	if w.refused > 0 {
		t.Errorf("%d of 5500 refused while the fleet has room", w.refused)
	}
	w.share(0, 0, 0.53, 0.60) // 200 of 350
	w.share(0, 1, 0.25, 0.32) // the 100 that n1 leaves
	w.share(0, 2, 0.10, 0.18) // the rest
	w.share(1, 1, 0.97, 1)    // the neighbours are not pushed out of theirs
	w.share(2, 2, 0.97, 1)

	t.Log("more than the whole fleet can serve")
	w.forget()
	w.demand[0] = 900
	w.run(20 * time.Second)
	w.within(capacity)
	if w.refused == 0 {
		t.Error("nothing refused beyond all capacity")
	}
}

func TestSimulationRegionDies(t *testing.T) {
	capacity := []float64{200, 200, 200}
	w := newWorld(t, capacity, threeByThree)
	w.demand = []float64{100, 100, 100}
	w.run(10 * time.Second)
	w.forget()
	for node := range 3 {
		w.observe(node, 0, 0, errors.New("connection refused"))
		w.run(100 * ms) // they do not see it at the same moment
	}
	w.run(10 * time.Second)
	w.within(capacity)
	if n := len(w.sent["r0"]); n > 0 {
		for _, at := range w.sent["r0"] {
			if at.After(time.Unix(1010, 0).Add(305 * ms)) {
				t.Fatalf("%d requests to a dead region", n)
			}
		}
	}
	if w.refused > 0 {
		t.Errorf("%d of 3000 refused when a region died although the others have room", w.refused)
	}
	w.share(0, 1, 0.9, 1)

	t.Log("it comes back")
	for node := range 3 {
		w.observe(node, 0, 5*ms, nil)
	}
	w.forget()
	w.run(10 * time.Second)
	w.within(capacity)
	w.share(0, 0, 0.97, 1)
}

// TestSimulationDemandBegins: a node that was idle gets requests, a third of
// what its nearest region can serve. The others have not heard of it yet; still
// nothing is refused, and hardly anything sent to a region that is farther.
func TestSimulationDemandBegins(t *testing.T) {
	w := newWorld(t, []float64{60, 60, 60}, append(threeByThree, []time.Duration{6 * ms, 26 * ms, 51 * ms}))
	w.demand = []float64{0, 0, 0, 0}
	w.run(10 * time.Second)
	w.demand[0] = 20
	w.run(20 * time.Second)
	if w.refused > 0 {
		t.Errorf("%d of 400 refused", w.refused)
	}
	w.share(0, 0, 0.99, 1)

	t.Log("from nothing to twice what the nearest region can serve")
	w.demand[0] = 0
	w.run(30 * time.Second)
	w.forget()
	w.demand[0] = 120
	w.run(10 * time.Second)
	if w.refused > 0 {
		t.Errorf("%d of 1200 refused", w.refused)
	}
	w.within([]float64{60, 60, 60})
	w.share(0, 0, 0.4, 0.6)
}

// TestSimulationNoGossip: with nobody to hear from, a node goes on alone.
func TestSimulationNoGossip(t *testing.T) {
	capacity := []float64{100, 100}
	w := newWorld(t, capacity, [][]time.Duration{{ms, 9 * ms}})
	w.demand = []float64{150}
	w.run(10 * time.Second)
	w.within(capacity)
	if w.refused > 0 {
		t.Errorf("%d refused", w.refused)
	}
	w.share(0, 0, 0.6, 0.75)
	w.share(0, 1, 0.25, 0.4)
}

// TestSimulationAlone: a node that is all there is never sends a region more
// than its capacity and one burst, however suddenly its demand begins.
func TestSimulationAlone(t *testing.T) {
	capacity := []float64{100, 100}
	w := newWorld(t, capacity, [][]time.Duration{{ms, 9 * ms}})
	w.demand = []float64{0}
	w.run(5 * time.Second)
	w.demand[0] = 900
	w.run(5 * time.Second)
	w.within(capacity)
	if n := len(w.sent["r0"]) + len(w.sent["r1"]); n < 1000 || w.refused < 3000 {
		t.Errorf("%d sent, %d refused", n, w.refused)
	}
}

// TestFleetRowsFade: the demand of a node that is not heard of any more is held
// for ten seconds and then goes down to nothing.
func TestFleetRowsFade(t *testing.T) {
	w := newWorld(t, []float64{100}, [][]time.Duration{{5 * ms}})
	s := w.nodes[0]
	s.SetFleet(edge.FleetLoad{Rows: []edge.FleetRow{
		{Node: "near", Load: rowOf("near", 100, ms).Load},
		{Node: "n0", Load: rowOf("n0", 100, ms).Load}, // an echo of ourselves
	}})
	// A row of the future is one of now, and makes room for the next.
	s.SetFleet(edge.FleetLoad{Rows: []edge.FleetRow{{Node: "near", Age: -time.Hour, Load: rowOf("near", 50, ms).Load}}})
	s.SetFleet(edge.FleetLoad{Rows: []edge.FleetRow{{Node: "near", Load: rowOf("near", 100, ms).Load}}})
	// An edged that has just started knows nobody, or only that a node is there.
	s.SetFleet(edge.FleetLoad{})
	s.SetFleet(edge.FleetLoad{Rows: []edge.FleetRow{{Node: "near"}}})
	for _, tt := range []struct {
		after time.Duration
		want  float64
	}{{9 * time.Second, 0}, {25 * time.Second, 25}, {39 * time.Second, 48}, {45 * time.Second, 100}} {
		w.now = time.Unix(1000, 0).Add(tt.after)
		for range settleRounds + 1 {
			w.now = w.now.Add(ms)
			s.round()
		}
		if got := s.Load().Regions[0].Allowance; got < tt.want-1 || got > tt.want+1 {
			t.Errorf("after %v: allowance %v, want %v", tt.after, got, tt.want)
		}
	}
}
