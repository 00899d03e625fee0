package edge

import (
	"fmt"
	"slices"
	"strings"
)

// The checks of the dependency graph: most of them follow a reference from one
// section to another.

// graph checks the names that dependencies and groups use, and the groups
// themselves.
func (k *checker) graph() {
	h := k.c.Fleet.Health
	probes, whole := unique(k, "fleet.health.probes", ".name", h.Probes, func(p Probe) ProbeID { return p.ID })
	groups, whole2 := unique(k, "fleet.health.groups", ".name", h.Groups, func(g Group) ProbeID { return g.ID })
	known := func(path string, id ProbeID) {
		_, a := probes[id]
		_, b := groups[id]
		if id != "" && !a && !b && whole && whole2 {
			k.fail(path, "%s is neither in fleet.health.probes nor in fleet.health.groups", quote(string(id)))
		}
	}
	beyond := k.beyond()
	for path, needs := range k.allNeeds() {
		for i, n := range needs {
			known(fmt.Sprintf("%s[%d].on", path, i), n.On)
			if p := beyond[n.On]; n.Class == Hard && p.ID != "" {
				where := ""
				if n.On != p.ID {
					where = fmt.Sprintf(", which is in group %s,", n.On)
				}
				k.fail(fmt.Sprintf("%s[%d].class", path, i), "hard is not for what lies beyond the site, since it fails for all sites at once: probe %s%s is of kind %s; expected soft or shared", p.ID, where, p.Kind)
			}
		}
	}
	k.needs("fleet.health", h.Needs)
	for i, g := range h.Groups {
		path := fmt.Sprintf("fleet.health.groups[%d]", i)
		if j, taken := probes[g.ID]; taken {
			k.fail(path+".name", "%s is already that of fleet.health.probes[%d]: probes and groups share their names", g.ID, j)
		}
		unique(k, path+".of", "", g.Of, func(id ProbeID) ProbeID { return id })
		for j, id := range g.Of {
			known(fmt.Sprintf("%s.of[%d]", path, j), id)
		}
		if g.K > len(g.Of) && !k.bad[path+".of"] {
			k.fail(path+".k", "%d is more than the %d members of the group", g.K, len(g.Of))
		}
	}
	k.cycles(groups)
}

// beyond returns, for each probe and group, the first probe in it that looks
// beyond the site. Groups with a cycle are reported elsewhere.
func (k *checker) beyond() map[ProbeID]Probe {
	h := k.c.Fleet.Health
	found := map[ProbeID]Probe{}
	for _, p := range h.Probes {
		if p.ID != "" && (p.Kind == ProbeRegions || p.Kind == ProbeExternal) {
			found[p.ID] = p
		}
	}
	in := map[ProbeID][]ProbeID{} // the groups that have it
	for _, g := range h.Groups {
		for _, id := range g.Of {
			in[id] = append(in[id], g.ID)
		}
	}
	var up []ProbeID
	for _, p := range h.Probes {
		if _, ok := found[p.ID]; ok {
			up = append(up, p.ID)
		}
	}
	for len(up) > 0 {
		id := up[0]
		up = up[1:]
		for _, group := range in[id] {
			if _, known := found[group]; !known && group != "" {
				found[group] = found[id]
				up = append(up, group)
			}
		}
	}
	return found
}

// allNeeds returns every list of dependencies by its path.
func (k *checker) allNeeds() map[string][]Need {
	f := &k.c.Fleet
	all := map[string][]Need{"fleet.health.needs": f.Health.Needs}
	for i, p := range f.Prefixes {
		all[fmt.Sprintf("fleet.prefixes[%d].needs", i)] = p.Needs
	}
	for i, s := range f.Services {
		all[fmt.Sprintf("fleet.services[%d].needs", i)] = s.Needs
	}
	return all
}

// cycles reports each cycle among the groups once, with its path.
func (k *checker) cycles(groups map[ProbeID]int) {
	all := k.c.Fleet.Health.Groups
	const entered, left = 1, 2
	state := make([]int, len(all))
	var trail []string
	var visit func(i int)
	visit = func(i int) {
		state[i] = entered
		trail = append(trail, string(all[i].ID))
		for j, id := range all[i].Of {
			next, isGroup := groups[id]
			switch {
			case !isGroup || state[next] == left:
			case state[next] == entered:
				from := slices.Index(trail, string(id))
				k.fail(fmt.Sprintf("fleet.health.groups[%d].of[%d]", i, j), "a group cannot depend on itself: %s",
					clip(strings.Join(append(slices.Clone(trail[from:]), string(id)), " -> "), 400))
			default:
				visit(next)
			}
		}
		trail = trail[:len(trail)-1]
		state[i] = left
	}
	for i := range all {
		if state[i] == 0 {
			visit(i)
		}
	}
}
