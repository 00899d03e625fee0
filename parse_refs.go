package edge

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// The checks of probes and groups: most of them follow a reference from one
// section to another.

// damping: a run must end before the next one starts.
func (k *checker) damping(path string, p Probe) {
	if p.Timeout > p.Interval && p.Interval > 0 {
		k.fail(path+".timeout", "%s is more than the interval %s", short(p.Timeout), short(p.Interval))
	}
}

func (k *checker) probes() {
	h := k.c.Fleet.Health
	for i, p := range h.Probes {
		path := fmt.Sprintf("fleet.health.probes[%d]", i)
		k.damping(path, p)
		switch p.Kind {
		case ProbeVIP:
			k.vipProbe(path, p)
		case ProbeHTTP:
			if u, err := url.Parse(p.URL); p.Insecure && err == nil && u.Scheme == "http" {
				k.fail(path+".insecure", "true means nothing without https")
			}
		case ProbeRegions:
			if n := len(k.c.Fleet.Regions); p.AtLeast > n && !k.bad["fleet.regions"] {
				k.fail(path+".at_least", "%d is more than the %d of fleet.regions", p.AtLeast, n)
			}
		}
	}
}

func (k *checker) vipProbe(path string, p Probe) {
	if p.Service == "" {
		return
	}
	all := k.c.Fleet.Services
	i := slices.IndexFunc(all, func(s Service) bool { return s.ID == p.Service })
	if i < 0 {
		if !k.bad["fleet.services"] && !slices.ContainsFunc(all, func(s Service) bool { return s.ID == "" }) {
			k.fail(path+".service", "%s is not in fleet.services", quote(string(p.Service)))
		}
		return
	}
	if all[i].Protocol == UDP {
		k.fail(path+".service", "service %s is udp; a vip probe speaks HTTP over tcp", p.Service)
	} else if all[i].VIP.IsValid() && all[i].VIP.Port() == 0 {
		k.fail(path+".service", "service %s has all ports; a vip probe needs a service with one port", p.Service)
	}
	vip, l := all[i].VIP.Addr(), k.c.Local
	if vip.Is4() && !l.ProbeSource4.IsValid() && !k.bad["node.probe_source4"] {
		k.fail(path+".service", "the VIP %s needs node.probe_source4", vip)
	}
	if vip.Is6() && !l.ProbeSource6.IsValid() && !k.bad["node.probe_source6"] {
		k.fail(path+".service", "the VIP %s needs node.probe_source6", vip)
	}
}

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
	for path, needs := range k.allNeeds() {
		for i, n := range needs {
			known(fmt.Sprintf("%s[%d].on", path, i), n.On)
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
