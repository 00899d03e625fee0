package backbone

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// Row is one node's demand and its view of the regions, as every node has it.
type Row struct {
	Node edge.NodeID
	Load edge.LoadRow
}

// milli is the unit of the waterfall: thousandths of a request a second.
// Integers, so that every node gets the same numbers on every machine.
const milli = 1000

// Waterfall divides the capacity of the regions among the nodes and returns
// what each may send to each, in requests a second. It is pure, and does not
// depend on the order of its arguments: nodes that know the same rows compute
// the same, so nobody has to tell anybody.
//
// The pairs (node, region) are taken from the nearest to the farthest; each
// gets as much of the node's demand as the region has left. What a region has
// left in the end is split equally among the nodes that reach it, so that each
// can grow until the next round without asking. The sum for a region never
// exceeds its capacity, scaled by its health.
//
// A node that sees none of a region's upstreams up gets nothing there. A pair
// without a measured RTT comes last.
func Waterfall(regions []edge.Region, rows []Row) map[edge.NodeID]map[edge.RegionID]float64 {
	allowances, _ := divide(regions, rows)
	return allowances
}

// divide is Waterfall that also returns, in requests a second, how much of what
// a region has left is in the allowances of the others: for each node that
// reaches it the same number, since the rest is split equally.
func divide(regions []edge.Region, rows []Row) (allowances map[edge.NodeID]map[edge.RegionID]float64, spare map[edge.RegionID]float64) {
	w := newWaterfall(regions, rows)
	for _, p := range w.pairs {
		take := min(w.demand[p.node], w.left[p.region])
		w.given[p.node][p.region] += take
		w.demand[p.node] -= take
		w.left[p.region] -= take
	}
	spare = make(map[edge.RegionID]float64, len(regions))
	for region, share := range w.splitRest() {
		spare[region] = float64(w.left[region]-share) / milli
	}
	out := make(map[edge.NodeID]map[edge.RegionID]float64, len(rows))
	for node, given := range w.given {
		out[node] = make(map[edge.RegionID]float64, len(given))
		for region, n := range given {
			out[node][region] = float64(n) / milli
		}
	}
	return out, spare
}

// pair is a node that reaches a region.
type pair struct {
	node   edge.NodeID
	region edge.RegionID
	rtt    time.Duration
}

type waterfall struct {
	pairs  []pair
	demand map[edge.NodeID]int64
	left   map[edge.RegionID]int64
	given  map[edge.NodeID]map[edge.RegionID]int64
}

func newWaterfall(regions []edge.Region, rows []Row) *waterfall {
	w := &waterfall{
		demand: map[edge.NodeID]int64{}, left: map[edge.RegionID]int64{},
		given: map[edge.NodeID]map[edge.RegionID]int64{},
	}
	for _, row := range rows {
		w.demand[row.Node] = toMilli(row.Load.Demand)
		w.given[row.Node] = map[edge.RegionID]int64{}
	}
	for _, r := range regions {
		w.left[r.ID] = scaledCapacity(r, rows)
		for _, row := range rows {
			v, seen := view(row, r.ID)
			if seen && v.Up == 0 {
				continue
			}
			if v.RTT <= 0 {
				v.RTT = math.MaxInt64
			}
			w.pairs = append(w.pairs, pair{row.Node, r.ID, v.RTT})
		}
	}
	slices.SortFunc(w.pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.rtt, b.rtt), cmp.Compare(a.node, b.node), cmp.Compare(a.region, b.region))
	})
	return w
}

// splitRest gives each node its share of what the regions have left, and
// returns the shares.
func (w *waterfall) splitRest() map[edge.RegionID]int64 {
	reach := map[edge.RegionID]int64{}
	for _, p := range w.pairs {
		reach[p.region]++
	}
	share := make(map[edge.RegionID]int64, len(reach))
	for _, p := range w.pairs {
		share[p.region] = w.left[p.region] / reach[p.region]
		w.given[p.node][p.region] += share[p.region]
	}
	return share
}

// scaledCapacity is the capacity of a region times min(1, 1.4 * up/of): a
// region is expected to carry its load until 5 of 7 upstreams are left.
//
// Nodes may differ in what they see up. The lower median of those that reach
// the region is taken: like every function of the rows it is the same on all
// nodes, one node with a bad view of its own cannot shrink the region for
// everybody, and in doubt it is the smaller.
func scaledCapacity(r edge.Region, rows []Row) int64 {
	whole := toMilli(r.Capacity)
	var scaled []int64
	for _, row := range rows {
		if v, ok := view(row, r.ID); ok && v.Up > 0 && v.Of > 0 && v.Of <= maxUpstreams {
			up, of := int64(min(v.Up, v.Of)), int64(v.Of)
			if 14*up < 10*of {
				scaled = append(scaled, muldiv(whole, 14*up, 10*of))
				continue
			}
			scaled = append(scaled, whole)
		}
	}
	if len(scaled) == 0 {
		return whole
	}
	slices.Sort(scaled)
	return scaled[(len(scaled)-1)/2]
}

// maxUpstreams bounds what is believed of another node's count, so that the
// products of the scaling cannot overflow.
const maxUpstreams = 1 << 16

// muldiv is a*b/c without overflow for counts of upstreams b and c.
func muldiv(a, b, c int64) int64 { return a/c*b + a%c*b/c }

func view(row Row, id edge.RegionID) (edge.RegionView, bool) {
	for _, v := range row.Load.Regions {
		if v.Region == id {
			return v, true
		}
	}
	return edge.RegionView{}, false
}

// toMilli rounds down. What is no sensible rate (gossip can carry anything) is
// 0, what is too large is bounded so that sums over all nodes cannot overflow.
func toMilli(rate float64) int64 {
	if !(rate > 0) {
		return 0
	}
	return int64(min(rate, 1e12) * milli)
}
