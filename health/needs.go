package health

import (
	"net/netip"
	"slices"

	"github.com/catchment-dev/edge"
)

// needs are those of a prefix: of all of it, then of each of its services.
type needs struct {
	whole    []edge.Need
	services [][]edge.Need
}

func (n needs) flat() []edge.Need { return slices.Concat(n.whole, slices.Concat(n.services...)) }

// needsOf collects the needs of each prefix: the fleet's, its own, then those
// of its services in the order of the configuration.
func needsOf(f *edge.Fleet) map[netip.Prefix]needs {
	out := make(map[netip.Prefix]needs, len(f.Prefixes))
	for _, p := range f.Prefixes {
		out[p.Net] = needs{whole: slices.Concat(f.Health.Needs, p.Needs)}
	}
	for _, s := range f.Services {
		if p, ok := f.PrefixOf(s.VIP.Addr()); ok {
			n := out[p.Net]
			n.services = append(n.services, s.Needs)
			out[p.Net] = n
		}
	}
	return out
}

// condition combines needs. A need that is listed twice counts once.
func (g *graph) condition(n needs, view View) edge.Condition {
	var t tallies
	whole := g.add(&t, n.whole, view)
	down, doubted := 0, 0
	for _, s := range n.services {
		switch g.add(&t, s, view) {
		case atFault:
			down++
		case inDoubt:
			doubted++
		}
	}
	c := summary(t.hard, t.soft)
	switch {
	case c.Health == edge.Sick && whole == atFault:
		c.Severity = edge.SeverityDown
	case c.Health == edge.Sick:
		c.Severity = edge.SeverityOf(down, len(n.services))
	case c.Health == edge.HealthDegraded && whole == inDoubt:
		c.Severity, c.Doubtful = edge.SeverityDown, true
	case c.Health == edge.HealthDegraded && doubted > 0:
		c.Severity, c.Doubtful = edge.SeverityOf(doubted, len(n.services)), true
	}
	return c
}

// tallies are those of the needs that take a prefix away, and of those that do not.
type tallies struct{ hard, soft tally }

// finding is what became of some needs: nothing that takes a prefix away, a failure
// that would if more were heard of other sites, or one that does.
type finding uint8

const (
	noFault finding = iota
	inDoubt
	atFault
)

// add puts needs where they belong and returns the worst finding.
func (g *graph) add(t *tallies, needs []edge.Need, view View) finding {
	worst := noFault
	for _, n := range needs {
		v := g.node(n.On)
		roots, own, found := v.roots, true, noFault
		switch n.Class {
		case edge.Soft:
			own = false
		case edge.Shared:
			var why string
			if own, why = g.ownFault(n.On, v, view); !own {
				roots = suffixed(v.roots, " ("+why+")")
			}
		default: // hard, or a class of a later version: the careful reading
			var e excuse
			if e, own = g.excuse(n.On, v, view); !own {
				roots = e.roots
				if e.doubtful {
					found = inDoubt
				}
			}
		}
		if !own {
			t.soft.add(v, roots)
		} else if t.hard.add(v, roots); v.state == edge.Down {
			found = atFault
		}
		worst = max(worst, found)
	}
	return worst
}
