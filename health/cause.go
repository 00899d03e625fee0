package health

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// common is within how much time sites must have begun to fail the same to have it
// in common.
const common = time.Minute

// Witness is what one node says of the checks that fail there.
type Witness struct {
	Site edge.SiteID
	// Heard says that it is there, by a word of late.
	Heard bool
	// Fails are what failed when it was last heard of, and for how long by now.
	Fails map[edge.Cause]time.Duration
}

// Jury is all that is known of the checks of the fleet; this node is a witness too.
// It is not changed.
type Jury struct {
	// Sites are those of the configuration, each once.
	Sites     []edge.SiteID
	Witnesses []Witness
	// Trusted says whether an operator has a check believed; nil: none is.
	Trusted func(edge.ProbeID) bool
}

// Try counts the sites that fail the same: the most that began to within a minute.
// It is pure, and the more fail, or are silent, the more it counts: a site of which
// no node was heard counts as failing, and a node that has fallen silent goes on to
// fail what it failed.
func (j Jury) Try(c edge.Cause) edge.Suspect {
	out := edge.Suspect{Cause: c, Of: len(j.Sites), Trusted: j.Trusted != nil && j.Trusted(c.Check())}
	heard := make(map[edge.SiteID]bool, len(j.Sites))
	type fail struct {
		site edge.SiteID
		age  time.Duration
	}
	var fails []fail
	for _, w := range j.Witnesses {
		heard[w.Site] = heard[w.Site] || w.Heard
	}
	for _, id := range j.Sites {
		if !heard[id] {
			out.Silent = append(out.Silent, id)
		}
	}
	for _, w := range j.Witnesses {
		if age, ok := w.Fails[c]; ok && heard[w.Site] && slices.Contains(j.Sites, w.Site) {
			fails = append(fails, fail{w.Site, age})
		}
	}
	slices.SortFunc(fails, func(a, b fail) int { return cmp.Or(cmp.Compare(a.age, b.age), cmp.Compare(a.site, b.site)) })
	for i, first := range fails {
		var in []edge.SiteID
		for _, f := range fails[i:] {
			if f.age-first.age <= common && !slices.Contains(in, f.site) {
				in = append(in, f.site)
			}
		}
		if len(in) > len(out.Sites) {
			out.Sites = in
		}
	}
	slices.Sort(out.Sites)
	slices.Sort(out.Silent)
	return out
}

// Causes are the checks that fail here and could take a prefix away, by name, with
// the time since when their need is down. The configuration must be that of Evaluate.
func Causes(c *edge.Config, statuses []edge.Status, now time.Time) []edge.Failure {
	g := newGraph(c, statuses)
	ages := map[edge.Cause]time.Duration{}
	for _, of := range needsOf(&c.Fleet) {
		for _, n := range of.flat() {
			v := g.node(n.On)
			if n.Class == edge.Soft || v.state != edge.Down {
				continue
			}
			for _, r := range v.roots {
				cause := g.cause(r.id, n.On)
				ages[cause] = max(ages[cause], now.Sub(v.since), 0)
			}
		}
	}
	out := make([]edge.Failure, 0, len(ages))
	for cause, age := range ages {
		out = append(out, edge.Failure{Cause: cause, Age: age})
	}
	slices.SortFunc(out, func(a, b edge.Failure) int { return cmp.Compare(a.Cause, b.Cause) })
	return out
}

// cause is what a probe that fails has in common with that of other sites. The check
// of a backend is that of its service: a site has backends of its own.
func (g *graph) cause(id, need edge.ProbeID) edge.Cause {
	p := g.probes[id]
	if part := strings.Split(string(id), "/"); len(part) == 3 { // backend/SERVICE/BACKEND: no name of the file has a slash
		p, id = g.checks[edge.ServiceID(part[1])], edge.ProbeID(part[1]+"/backends")
	}
	return edge.MakeCause(id, definition(p), need)
}

// definition is a hash of how a probe is defined, without what is a node's own. What
// is not set is not in it, so that nodes of two versions agree.
func definition(p edge.Probe) string {
	p.ID, p.Interface = "", ""
	var b strings.Builder
	v := reflect.ValueOf(p)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() && v.Type().Field(i).Name != "Source" {
			fmt.Fprintf(&b, "%s=%v\n", v.Type().Field(i).Name, f.Interface())
		}
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:4])
}

// excuse is why a hard need that is down is not held against this site.
type excuse struct {
	roots []root
	// doubtful says that it would be if the sites that are silent were known to be well.
	doubtful bool
}

// excuse says what to think of a hard need: own is false if it is down for checks only
// that are suspect.
func (g *graph) excuse(need edge.ProbeID, v verdict, view View) (e excuse, own bool) {
	if v.state != edge.Down || view.Suspect == nil {
		return e, true
	}
	held, known := map[edge.ProbeID]bool{}, map[edge.ProbeID]bool{}
	for _, r := range v.roots {
		s := view.Suspect(g.cause(r.id, need))
		if s.Holds() {
			held[r.id] = true
			r.text += " (" + s.String() + ")"
		}
		if s.Known() {
			known[r.id] = true
		}
		e.roots = append(e.roots, r)
	}
	if len(held) == 0 || g.without(held).node(need).state == edge.Down {
		return e, true
	}
	e.doubtful = g.without(known).node(need).state == edge.Down
	return e, false
}

// trusted says whether an operator has every check believed that a need is down for.
func (g *graph) trusted(need edge.ProbeID, v verdict, view View) bool {
	return view.Suspect != nil && len(v.roots) > 0 && !slices.ContainsFunc(v.roots, func(r root) bool {
		return !view.Suspect(g.cause(r.id, need)).Trusted
	})
}

// without is g with some probes taken for up.
func (g *graph) without(excused map[edge.ProbeID]bool) *graph {
	out := *g
	out.excused, out.done = excused, map[edge.ProbeID]verdict{}
	return &out
}
