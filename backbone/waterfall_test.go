package backbone

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

const ms = time.Millisecond

func regionsOf(capacity ...float64) []edge.Region {
	var out []edge.Region
	for i, c := range capacity {
		out = append(out, edge.Region{ID: edge.RegionID(fmt.Sprintf("r%d", i)), Capacity: c})
	}
	return out
}

// rowOf is a node that sees two of two upstreams up in each region. An RTT
// below zero is a region that it cannot reach.
func rowOf(node edge.NodeID, demand float64, rtt ...time.Duration) Row {
	row := Row{Node: node, Load: edge.LoadRow{Demand: demand}}
	for i, d := range rtt {
		v := edge.RegionView{Region: edge.RegionID(fmt.Sprintf("r%d", i)), RTT: max(d, 0), Up: 2, Of: 2}
		if d < 0 {
			v.Up = 0
		}
		row.Load.Regions = append(row.Load.Regions, v)
	}
	return row
}

func halfUp(r Row, region int) Row {
	r.Load.Regions[region].Up = 1
	return r
}

func TestWaterfall(t *testing.T) {
	tests := map[string]struct {
		regions []edge.Region
		rows    []Row
		want    map[edge.NodeID]map[edge.RegionID]float64
	}{
		"one node takes its demand and may grow into the rest": {
			regionsOf(100, 100), []Row{rowOf("a", 30, ms, 2*ms)},
			map[edge.NodeID]map[edge.RegionID]float64{"a": {"r0": 100, "r1": 100}},
		},
		"the nearer node goes first, the surplus of the other spills": {
			regionsOf(100, 100), []Row{rowOf("b", 80, 2*ms, 9*ms), rowOf("a", 80, ms, 9*ms)},
			map[edge.NodeID]map[edge.RegionID]float64{"a": {"r0": 80, "r1": 20}, "b": {"r0": 20, "r1": 80}},
		},
		"equal RTTs are decided by the names": {
			regionsOf(100), []Row{rowOf("b", 100, ms), rowOf("a", 100, ms)},
			map[edge.NodeID]map[edge.RegionID]float64{"a": {"r0": 100}, "b": {"r0": 0}},
		},
		"what is not measured comes last": {
			regionsOf(50, 50), []Row{rowOf("a", 50, 0, 200*ms), rowOf("b", 50, ms, 300*ms)},
			map[edge.NodeID]map[edge.RegionID]float64{"a": {"r0": 0, "r1": 50}, "b": {"r0": 50, "r1": 0}},
		},
		"a region that a node cannot reach is for the others": {
			regionsOf(90, 60), []Row{rowOf("a", 40, -1, ms), rowOf("b", 40, ms, 2*ms)},
			map[edge.NodeID]map[edge.RegionID]float64{"a": {"r1": 50}, "b": {"r0": 90, "r1": 10}},
		},
		"half of the upstreams carry seven tenths": {
			regionsOf(100), []Row{halfUp(rowOf("a", 500, ms), 0)},
			map[edge.NodeID]map[edge.RegionID]float64{"a": {"r0": 70}},
		},
		"one node with a bad view does not shrink the region": {
			regionsOf(90), []Row{halfUp(rowOf("a", 0, ms), 0), rowOf("b", 0, ms), rowOf("c", 0, ms)},
			map[edge.NodeID]map[edge.RegionID]float64{"a": {"r0": 30}, "b": {"r0": 30}, "c": {"r0": 30}},
		},
		"more demand than capacity": {
			regionsOf(10, 10), []Row{rowOf("a", 100, ms, 2*ms), rowOf("b", 100, 2*ms, ms)},
			map[edge.NodeID]map[edge.RegionID]float64{"a": {"r0": 10, "r1": 0}, "b": {"r0": 0, "r1": 10}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := Waterfall(tt.regions, tt.rows)
			for node, want := range tt.want {
				for region, n := range want {
					if got[node][region] != n {
						t.Errorf("%s to %s: got %v, want %v", node, region, got[node][region], n)
					}
				}
			}
		})
	}
}

// randomCase makes a fleet of any shape, nonsense included.
func randomCase(rng *rand.Rand) ([]edge.Region, []Row) {
	var capacity []float64
	for range 1 + rng.IntN(5) {
		capacity = append(capacity, rng.Float64()*1000)
	}
	var rows []Row
	for n := range 1 + rng.IntN(8) {
		var rtt []time.Duration
		for range capacity {
			rtt = append(rtt, time.Duration(rng.IntN(6)-1)*ms) // ties, unmeasured and unreachable ones
		}
		row := rowOf(edge.NodeID(fmt.Sprintf("n%d", n)), rng.Float64()*600, rtt...)
		for i := range row.Load.Regions {
			v := &row.Load.Regions[i]
			if v.Up > 0 {
				v.Of = 1 + rng.IntN(4)
				v.Up = 1 + rng.IntN(v.Of)
			}
		}
		rows = append(rows, row)
	}
	return regionsOf(capacity...), rows
}

func TestWaterfallProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 5000 {
		regions, rows := randomCase(rng)
		got := Waterfall(regions, rows)
		checkSums(t, regions, rows, got)
		checkNoSurplus(t, regions, rows, got)
		rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		rng.Shuffle(len(regions), func(i, j int) { regions[i], regions[j] = regions[j], regions[i] })
		for _, r := range rows {
			v := r.Load.Regions
			rng.Shuffle(len(v), func(i, j int) { v[i], v[j] = v[j], v[i] })
		}
		if again := Waterfall(regions, rows); !reflect.DeepEqual(got, again) {
			t.Fatalf("case %d: depends on the order:\n%v\n%v", i, got, again)
		}
		if t.Failed() {
			t.Fatalf("case %d: regions %v rows %+v: %v", i, regions, rows, got)
		}
	}
}

const rounding = 0.1 // requests a second: integer thousandths, divided among at most 8

func checkSums(t *testing.T, regions []edge.Region, rows []Row, got map[edge.NodeID]map[edge.RegionID]float64) {
	for _, r := range regions {
		sum := 0.0
		for _, row := range rows {
			n := got[row.Node][r.ID]
			sum += n
			if v, _ := view(row, r.ID); v.Up == 0 && n > 0 {
				t.Errorf("%s may send %v to %s, which it cannot reach", row.Node, n, r.ID)
			}
		}
		if limit := float64(scaledCapacity(r, rows)) / milli; sum > limit+1e-6 || limit > r.Capacity {
			t.Errorf("%s: sum %v of capacity %v, scaled %v", r.ID, sum, r.Capacity, limit)
		}
	}
}

// checkNoSurplus: a node whose demand is not met sees no region with room.
func checkNoSurplus(t *testing.T, regions []edge.Region, rows []Row, got map[edge.NodeID]map[edge.RegionID]float64) {
	for _, row := range rows {
		sum := 0.0
		for _, n := range got[row.Node] {
			sum += n
		}
		if sum >= row.Load.Demand-rounding {
			continue
		}
		for _, r := range regions {
			if v, _ := view(row, r.ID); v.Up == 0 {
				continue
			}
			used := 0.0
			for _, other := range rows {
				used += got[other.Node][r.ID]
			}
			if free := float64(scaledCapacity(r, rows))/milli - used; free > rounding {
				t.Errorf("%s lacks %v while %s has %v free", row.Node, row.Load.Demand-sum, r.ID, free)
			}
		}
	}
}

func TestWaterfallTakesNonsense(t *testing.T) {
	huge := 1e300
	rows := []Row{rowOf("a", huge, ms), rowOf("b", -5, -1), rowOf("a", huge/huge*0, ms)}
	rows[0].Load.Regions[0].Of = 1 << 60
	rows[0].Load.Regions[0].Up = 1 << 59
	rows = append(rows, Row{Node: "c", Load: edge.LoadRow{Demand: nan()}})
	regions := []edge.Region{{ID: "r0", Capacity: huge}, {ID: "r0", Capacity: -1}, {ID: "x", Capacity: nan()}}
	for node, given := range Waterfall(regions, rows) {
		for region, n := range given {
			if !(n >= 0 && n <= 1e12) {
				t.Errorf("%s to %s: %v", node, region, n)
			}
		}
	}
	if got := Waterfall(nil, nil); len(got) != 0 {
		t.Errorf("nothing divided among nobody: %v", got)
	}
}

func nan() float64 { z := 0.0; return z / z }

func TestBucket(t *testing.T) {
	now := time.Unix(100, 0)
	var b bucket
	if b.take(now) {
		t.Error("a token without a rate")
	}
	b.setRate(now, 100)
	count := func() (n int) {
		for b.take(now) {
			n++
		}
		return n
	}
	steps := []struct {
		after time.Duration
		rate  float64
		want  int
	}{{0, 100, 100}, {0, 100, 0}, {50 * ms, 100, 5}, {10 * time.Second, 100, 100}, {0, 2, 0}, {400 * ms, 2, 0}, {100 * ms, 2, 1}, {time.Hour, 2, 2}, {time.Second, 0, 0}, {0, 10, 10}}
	var got, want []int
	for _, s := range steps {
		now = now.Add(s.after)
		b.setRate(now, s.rate)
		got, want = append(got, count()), append(want, s.want)
	}
	if !slices.Equal(got, want) {
		t.Errorf("tokens %v, want %v", got, want)
	}
}
