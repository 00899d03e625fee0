package promise

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// Standing is how a site stands with a prefix, as far as is known.
type Standing struct {
	// Announces says that it does, Well that it can serve at its best.
	Announces, Well bool
	// Silent says that it was not heard of within the lease of a promise: it counts
	// for nothing.
	Silent bool
}

// Outlook says how the fleet stands with p, and how many sites may leave it: an
// estimate from what is heard, on which nothing depends. The sites are those of the
// configuration; one that is not in it counts for nothing.
func (n *Node) Outlook(now time.Time, p netip.Prefix, at map[edge.SiteID]Standing) (edge.GuardedPrefix, bool) {
	s := n.seats[p.Masked()]
	if s == nil {
		return edge.GuardedPrefix{}, false
	}
	t := n.terms(s)
	out := edge.GuardedPrefix{
		Prefix: s.prefix, Floor: s.floor, Needed: t.sites, Healthy: t.healthy, Capacity: t.capacity, Regions: maps.Clone(t.regions),
		Sites: []edge.SiteID{}, Round: s.open(now),
	}
	for _, id := range slices.Sorted(maps.Keys(n.places)) {
		switch {
		case at[id].Silent:
			out.Silent = append(out.Silent, id)
		case at[id].Announces:
			out.Sites = append(out.Sites, id)
		}
	}
	in := n.staying(at)
	for {
		leaver, ok := t.spare(in, n.places)
		if !ok {
			break
		}
		delete(in, leaver)
		out.MayLeave++
	}
	if len(in) > 0 {
		out.Lacks = t.missing(len(in)-1, n.best(t, in), n.places)
	}
	return out, true
}

// Lease is for how long a promise binds.
func (n *Node) Lease() time.Duration { return n.policy.PromiseLease }

// staying are the sites that announce, of those of the configuration.
func (n *Node) staying(at map[edge.SiteID]Standing) stay {
	in := stay{}
	for id := range n.places {
		if s := at[id]; s.Announces && !s.Silent {
			in[id] = struct{ well bool }{s.Well}
		}
	}
	return in
}

// spare is the site that may leave and is missed the least: one that is not well
// before one that is, then the smallest, then by name.
func (t terms) spare(in stay, places map[edge.SiteID]edge.Site) (edge.SiteID, bool) {
	for _, id := range slices.SortedFunc(maps.Keys(in), func(a, b edge.SiteID) int { return t.missed(in, places, a, b) }) {
		if t.met(without(in, id), places) {
			return id, true
		}
	}
	return "", false
}

func (terms) missed(in stay, places map[edge.SiteID]edge.Site, a, b edge.SiteID) int {
	rank := func(id edge.SiteID) int {
		if in[id].well {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(places[a].Capacity, places[b].Capacity), cmp.Compare(a, b))
}

// best is what would stay if the one left that is missed the least.
func (n *Node) best(t terms, in stay) stay {
	first := slices.MinFunc(slices.Collect(maps.Keys(in)), func(a, b edge.SiteID) int { return t.missed(in, n.places, a, b) })
	return without(in, first)
}

func without(in stay, id edge.SiteID) stay {
	out := maps.Clone(in)
	delete(out, id)
	return out
}

// missing says what is missing if so many sites stay, in.
func (t terms) missing(sites int, in stay, places map[edge.SiteID]edge.Site) edge.Reason {
	if sites < t.sites {
		return edge.Reason(fmt.Sprintf("%d other sites would stay, and %d must", sites, t.sites))
	}
	return t.lack(in, places)
}

// WhatIf says whether sites could leave p one after the other, if all that announce
// and are heard of promised to stay. Who may not stays, and counts for those after.
func (n *Node) WhatIf(now time.Time, p netip.Prefix, leave []edge.SiteID, at map[edge.SiteID]Standing) []edge.GuardOutcome {
	s := n.seats[p.Masked()]
	if s == nil {
		return nil
	}
	t, in := n.terms(s), n.staying(at)
	var out []edge.GuardOutcome
	for _, id := range leave {
		o := edge.GuardOutcome{Prefix: s.prefix, Site: id}
		rest := without(in, id)
		_, announces := in[id]
		switch {
		case n.places[id].ID == "":
			o.Reason = "it is not a site of the configuration"
		case at[id].Silent:
			o.Reason = "it is not heard of: who is cut off gets no promises"
		case !announces:
			o.OK, o.Reason = true, "it does not announce the prefix"
		case id == n.site && n.barred(now, s) != "":
			o.Reason = n.barred(now, s)
		case !t.met(rest, n.places):
			o.Reason = t.missing(len(rest), rest, n.places)
		default:
			o.OK, o.Reason = true, edge.Reason(fmt.Sprintf("%s stay, %d must", names(rest), t.sites))
			in = rest
		}
		out = append(out, o)
	}
	return out
}

// barred is bar, as if this node wanted to leave.
func (n *Node) barred(now time.Time, s *seat) edge.Reason {
	asking := *s
	asking.wish.Want = true
	return n.bar(now, &asking)
}

func names(in stay) string {
	const most = 8 // a fleet can be larger than a line
	var out []string
	for _, id := range slices.Sorted(maps.Keys(in)) {
		out = append(out, string(id))
	}
	if len(out) == 0 {
		return "none"
	}
	if more := len(out) - most; more > 0 {
		out = append(out[:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}

// open is the round that is open; nil: none is.
func (s *seat) open(now time.Time) *edge.OpenRound {
	r := s.round
	if r == nil {
		return nil
	}
	out := &edge.OpenRound{N: r.id.N, Opened: r.opened, Nacked: maps.Clone(r.nacked)}
	for _, id := range slices.Sorted(maps.Keys(r.asked)) {
		p, yes := r.promised[id]
		_, no := r.nacked[id]
		switch {
		case yes && now.Before(p.until):
			out.Held = append(out.Held, edge.Promised{Node: id, Until: p.until})
		case !yes && !no:
			out.Waiting = append(out.Waiting, id)
		}
	}
	return out
}
