package health

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// maxRoots is how many failures a reason names before it only counts them.
const maxRoots = 4

// View is what is known beside the states of the probes.
type View struct {
	// Now is the time of the evaluation.
	Now time.Time
	// Others says how the other sites see a shared dependency. Nil: nothing is
	// known of them.
	Others func(edge.ProbeID) Others
	// Suspect says at how many sites a check fails. Nil: that is not asked.
	Suspect func(edge.Cause) edge.Suspect
}

// Others are the other sites' opinions of a shared dependency.
type Others struct {
	// Up and Down are how many other sites say so, of Roster other sites. Those
	// that say neither are not known.
	Up, Down, Roster int
	// Since is since when Fine has held without a break. Zero: it does not hold.
	Since time.Time
}

// Fine says that the others are known to be without this fault: few have it, and
// more than half say that they have not.
func (o Others) Fine() bool { return o.why() == "" }

func (o Others) why() string {
	switch many := max(sharedLeast, (sharedPercent*(o.Roster+1)+99)/100); {
	case o.Down+1 >= many:
		return fmt.Sprintf("shared: down at %d of %d other sites too", o.Down, o.Roster)
	case 2*o.Up <= o.Roster:
		return fmt.Sprintf("shared: only %d of %d other sites are known to be without this fault", o.Up, o.Roster)
	}
	return ""
}

// Figures of the rule for shared dependencies.
const (
	// sharedWait is how long a shared dependency must have been down here, with
	// the others without the fault, before it can count as this site's own: what
	// breaks, or is mended, everywhere is not so, nor told, in the same instant.
	// A probe that is slower than that gets the time that it needs to see it.
	sharedWait = 10 * time.Second
	// sharedPercent of all sites, and at least sharedLeast, make a failure that
	// is not this site's own.
	sharedPercent, sharedLeast = 30, 2
)

// ownFault says whether a shared dependency that has been down here since then is
// this site's own fault, and if not, why. Whatever is not known speaks against
// it: a site that hears nobody degrades.
func (o Others) ownFault(now, since time.Time, wait time.Duration) (bool, string) {
	if why := o.why(); why != "" {
		return false, why
	}
	if o.Since.After(since) {
		since = o.Since
	}
	if o.Since.IsZero() || now.Sub(since) < wait {
		return false, fmt.Sprintf("shared: not held against this site in the first %s", wait)
	}
	return true, ""
}

// Evaluate says how fit each configured prefix is, from the states of the
// probes. It is pure; the Since of its conditions is zero: Tracker sets it.
//
// A prefix needs what every prefix needs (c.Fleet.Health.Needs), what it needs
// itself, and what each service needs whose VIP it contains with the longest
// mask. Then, in this order: a hard need that is down, but for checks that are
// suspect, or a shared one that is so by this site's own fault or that an operator
// has believed, makes it Sick; a hard need that is unknown makes its health unknown;
// a soft or shared need that is down makes it degraded; any need that is full makes
// it full; else it is healthy, also without any need. A soft or shared need that is
// unknown counts as no failure, and is mentioned.
//
// The reason is the path to each failed probe with its last error, in the
// order of the configuration: "serving → web-vip is down: answered 503,
// expected 200". A probe or group without a status, or a group in a cycle, is
// unknown.
func Evaluate(c *edge.Config, statuses []edge.Status, view View) map[netip.Prefix]edge.Condition {
	g := newGraph(c, statuses)
	needs := needsOf(&c.Fleet)
	out := make(map[netip.Prefix]edge.Condition, len(c.Fleet.Prefixes))
	for _, p := range c.Fleet.Prefixes {
		out[p.Net] = g.condition(needs[p.Net], view)
	}
	return out
}

// SharedStates is how this node sees each shared dependency: what the other
// sites are told.
func SharedStates(c *edge.Config, statuses []edge.Status) map[edge.ProbeID]edge.ProbeState {
	g := newGraph(c, statuses)
	out := map[edge.ProbeID]edge.ProbeState{}
	for _, of := range needsOf(&c.Fleet) {
		for _, n := range of.flat() {
			if n.Class == edge.Shared {
				out[n.On] = g.node(n.On).state
			}
		}
	}
	return out
}

func newGraph(c *edge.Config, statuses []edge.Status) *graph {
	g := &graph{
		status: make(map[edge.ProbeID]edge.Status, len(statuses)),
		group:  make(map[edge.ProbeID]edge.Group, len(c.Fleet.Health.Groups)),
		probes: make(map[edge.ProbeID]edge.Probe, len(c.Fleet.Health.Probes)),
		checks: make(map[edge.ServiceID]edge.Probe, len(c.Fleet.Services)),
		done:   map[edge.ProbeID]verdict{},
	}
	for _, s := range c.Fleet.Services {
		g.checks[s.ID] = s.Check
	}
	for _, p := range c.Fleet.Health.Probes {
		g.probes[p.ID] = p
	}
	for _, s := range statuses {
		g.status[s.Probe] = s
	}
	for _, group := range c.Fleet.Health.Groups {
		g.group[group.ID] = group
	}
	return g
}

// graph is one evaluation: each node is worked out once.
type graph struct {
	status map[edge.ProbeID]edge.Status
	group  map[edge.ProbeID]edge.Group
	probes map[edge.ProbeID]edge.Probe
	checks map[edge.ServiceID]edge.Probe // of backends
	done   map[edge.ProbeID]verdict
	// excused are probes that count as up, though they are down: see without.
	excused map[edge.ProbeID]bool
}

// verdict is what a node of the graph says, and the roots of it: for a node
// that is down the probes that are, for an unknown one the unknown ones.
type verdict struct {
	state edge.ProbeState
	roots []root
	since time.Time // of down
}

// root is a probe that makes others down or unknown, and the path to it.
type root struct {
	id   edge.ProbeID
	path string // "" or "serving → "
	text string // "web-vip is down: connection refused"
}

// ownFault judges a shared need; only one that is down can be anybody's fault.
func (g *graph) ownFault(id edge.ProbeID, v verdict, view View) (bool, string) {
	if v.state != edge.Down {
		return false, "shared"
	}
	var others Others
	if view.Others != nil {
		others = view.Others(id)
	}
	if g.trusted(id, v, view) {
		return true, ""
	}
	return others.ownFault(view.Now, v.since, g.wait(v))
}

// wait is how long the probes that took a node down take at most to see that they
// are up again.
func (g *graph) wait(v verdict) time.Duration {
	wait := sharedWait
	for _, r := range v.roots {
		p := g.probes[r.id]
		wait = max(wait, time.Duration(p.Rise+1)*p.Interval+p.Timeout)
	}
	return wait
}

// tally collects the needs of one class, by their states.
type tally map[edge.ProbeState][]root

func (t *tally) add(v verdict, roots []root) {
	if *t == nil {
		*t = tally{}
	}
	(*t)[v.state] = append((*t)[v.state], roots...)
}

func summary(hard, soft tally) edge.Condition {
	mention := suffixed(soft[edge.Unknown], " (counts as no failure)")
	full := slices.Concat(hard[edge.Full], soft[edge.Full])
	switch {
	case len(hard[edge.Down]) > 0:
		return edge.Condition{Health: edge.Sick, Reason: reason(hard[edge.Down])}
	case len(hard[edge.Unknown]) > 0:
		return edge.Condition{Health: edge.HealthUnknown, Reason: reason(hard[edge.Unknown])}
	case len(soft[edge.Down]) > 0:
		return edge.Condition{Health: edge.HealthDegraded, Reason: reason(slices.Concat(soft[edge.Down], mention))}
	case len(full) > 0:
		return edge.Condition{Health: edge.HealthFull, Reason: reason(slices.Concat(full, mention))}
	}
	return edge.Condition{Health: edge.Healthy, Reason: reason(mention)}
}

// node works out one probe or group.
func (g *graph) node(id edge.ProbeID) verdict {
	if v, ok := g.done[id]; ok {
		return v
	}
	// Configurations with a cycle are refused; should one come this far, the
	// node that closes it is unknown instead of the end of the stack.
	g.done[id] = verdict{state: edge.Unknown, roots: []root{{id: id, text: fmt.Sprintf("%s is unknown: it depends on itself", id)}}}
	v := g.probe(id)
	if group, ok := g.group[id]; ok {
		v = g.combine(group)
	}
	g.done[id] = v
	return v
}

func (g *graph) probe(id edge.ProbeID) verdict {
	s, ok := g.status[id]
	text := s.LastErr
	switch {
	case ok && s.State == edge.Full && text == "":
		text = "it takes no more"
	case ok && s.State == edge.Up, g.excused[id]:
		return verdict{state: edge.Up}
	case !ok:
		text = "there is no such probe here"
	case text == "" && s.LastRun.IsZero():
		text = "it has not run yet"
	case text == "":
		text = "it has not run often enough yet"
	}
	return verdict{s.State, []root{{id: id, text: fmt.Sprintf("%s is %s: %s", id, s.State, text)}}, s.Since}
}

// combine is three-valued: a group is up, full or down only if it is so whatever
// its unknown members turn out to be. A full member is alive: it keeps a group
// from being down, but not from being full.
func (g *graph) combine(group edge.Group) verdict {
	count := map[edge.ProbeState]int{}
	roots := map[edge.ProbeState][]root{}
	var since []time.Time // of the members that are down
	for _, id := range group.Of {
		v := g.node(id)
		count[v.state]++
		if v.state == edge.Down {
			since = append(since, v.since)
		}
		for _, r := range v.roots {
			r.path = string(group.ID) + " → " + r.path
			roots[v.state] = append(roots[v.state], r)
		}
	}
	need := len(group.Of) // mode all
	switch group.Mode {
	case edge.Any:
		need = 1
	case edge.AtLeast:
		need = group.K
	}
	up, full, unknown := count[edge.Up], count[edge.Full], count[edge.Unknown]
	switch {
	case need > len(group.Of): // a mistake in the configuration takes no site down
		text := fmt.Sprintf("%s is unknown: it needs %d of %d members", group.ID, need, len(group.Of))
		return verdict{state: edge.Unknown, roots: []root{{id: group.ID, text: text}}}
	case up >= need:
		return verdict{state: edge.Up}
	case up+full >= need && up+unknown < need:
		return verdict{state: edge.Full, roots: roots[edge.Full]}
	case up+full+unknown < need:
		// Down since so many members were that too few were left.
		slices.SortFunc(since, time.Time.Compare)
		return verdict{edge.Down, roots[edge.Down], since[len(group.Of)-need]}
	}
	return verdict{state: edge.Unknown, roots: roots[edge.Unknown]}
}

// reason writes roots as one clause. A root that is reached by several paths is
// named once: one cause, one mention.
func reason(roots []root) edge.Reason {
	var parts []string
	seen := map[edge.ProbeID]bool{}
	for _, r := range roots {
		if !seen[r.id] {
			seen[r.id] = true
			parts = append(parts, r.path+r.text)
		}
	}
	if more := len(parts) - maxRoots; more > 0 {
		parts = append(parts[:maxRoots], fmt.Sprintf("and %d more", more))
	}
	return edge.Reason(strings.Join(parts, "; "))
}

func suffixed(roots []root, s string) []root {
	out := slices.Clone(roots)
	for i := range out {
		out[i].text += s
	}
	return out
}

// Tracker remembers since when each prefix has had its health. The zero value
// is ready. It must not be used by two goroutines at once.
type Tracker struct {
	last map[netip.Prefix]edge.Condition
}

// Update returns m with Since set: the time of the first Update in a row in
// which the prefix had this health. A new reason alone does not change it. A
// prefix that is not in m is forgotten.
func (t *Tracker) Update(now time.Time, m map[netip.Prefix]edge.Condition) map[netip.Prefix]edge.Condition {
	out := make(map[netip.Prefix]edge.Condition, len(m))
	for p, c := range m {
		c.Since = now
		if last, ok := t.last[p]; ok && last.Health == c.Health && last.Doubtful == c.Doubtful {
			c.Since = last.Since
		}
		out[p] = c
	}
	t.last = out
	return out
}
