package guard

import "time"

// demandAge is how old a report may be for the demand in it to be known; a node
// that is dead for longer serves nobody.
const demandAge = 30 * time.Second

// demand is what the fleet serves together, in requests a second, and whether
// that is known: of each node that is alive there must be a report of late, and
// of each other one some report. The lock is held.
func (g *Guard) demand() (float64, bool) {
	own := g.own.report
	if g.pending != nil {
		own = *g.pending
	} else if g.own.raw == nil {
		return 0, false
	}
	sum, of := own.Load.Demand, max(demandAge, g.fresh())
	for _, n := range g.roster.Load().others {
		h := g.heard[n.ID]
		old := h != nil && time.Since(h.at) > of
		if h == nil || old && g.up.is(n.ID) {
			return 0, false
		}
		if !old {
			sum += h.report.Load.Demand
		}
	}
	return sum, true
}
