package promise

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/catchment-dev/edge"
)

// terms are what the sites that stay with a prefix must amount to before one
// more leaves it. Each can only be met better by more of them, so a promise that
// is added never takes a permit away.
type terms struct {
	sites, healthy int
	capacity       float64
	regions        map[edge.RegionID]int
	cover          bool // the demand too
	// unknown says what the terms cannot be known without: then nobody leaves.
	unknown edge.Reason
}

// stay is how a site stays: well says that it can serve at its best.
type stay map[edge.SiteID]struct{ well bool }

// termsOf are those of a prefix whose floor is this, in a fleet of these sites.
// Without a floor there are none.
func termsOf(floor int, p edge.Guard, sites map[edge.SiteID]edge.Site) terms {
	if floor == 0 {
		return terms{}
	}
	t := terms{
		// A share is rounded up, but not for what a float cannot hold exactly.
		sites:    max(floor+p.SpareSites, int(math.Ceil(p.MinFraction*float64(len(sites))-1e-9))),
		healthy:  p.MinHealthy,
		capacity: p.MinCapacity,
		cover:    p.CoverDemand,
	}
	for _, r := range p.Regions {
		if t.regions == nil {
			t.regions = map[edge.RegionID]int{}
		}
		t.regions[r.Region] = max(t.regions[r.Region], r.MinSites)
	}
	return t
}

// demand raises the capacity to what the fleet has to serve now.
func (t terms) demand(rps float64, known bool) terms {
	if !known {
		t.unknown = "the demand of the fleet is not known"
	}
	t.capacity = max(t.capacity, rps)
	return t
}

// lack says what is missing if these sites stay; empty: nothing is. The number of
// sites is not in it: that is told with names.
func (t terms) lack(in stay, sites map[edge.SiteID]edge.Site) edge.Reason {
	healthy, capacity, regions := 0, 0.0, map[edge.RegionID]int{}
	for id, s := range in {
		if s.well {
			healthy++
		}
		capacity += sites[id].Capacity
		regions[sites[id].Region]++
	}
	switch {
	case t.unknown != "":
		return t.unknown
	case healthy < t.healthy:
		return edge.Reason(fmt.Sprintf("%d of those that stay are healthy, and %d must be", healthy, t.healthy))
	case capacity < t.capacity:
		return edge.Reason(fmt.Sprintf("those that stay serve %.0f requests a second, and %.0f are needed", capacity, t.capacity))
	}
	for _, r := range slices.Sorted(maps.Keys(t.regions)) {
		if regions[r] < t.regions[r] {
			return edge.Reason(fmt.Sprintf("%d sites of region %s stay, and %d must", regions[r], r, t.regions[r]))
		}
	}
	return ""
}

// met says whether it is enough that these stay.
func (t terms) met(in stay, sites map[edge.SiteID]edge.Site) bool {
	return len(in) >= t.sites && t.lack(in, sites) == ""
}

// and are the terms that meet both: those a round was opened with go on to count,
// and so do stricter ones that have come since.
func (t terms) and(o terms) terms {
	out := terms{
		sites: max(t.sites, o.sites), healthy: max(t.healthy, o.healthy), capacity: max(t.capacity, o.capacity),
		cover: t.cover || o.cover, unknown: cmp.Or(t.unknown, o.unknown), regions: maps.Clone(t.regions),
	}
	for r, n := range o.regions {
		if out.regions == nil {
			out.regions = map[edge.RegionID]int{}
		}
		out.regions[r] = max(out.regions[r], n)
	}
	return out
}
