package edge

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// The checks of services, probes and groups: most of them follow a reference
// from one section to another.

func (k *checker) services() {
	f := &k.c.Fleet
	k.most("fleet.services", len(f.Services), MaxServices)
	k.backendCount()
	unique(k, "fleet.services", ".name", f.Services, func(s Service) ServiceID { return s.ID })
	type vip struct {
		addr  netip.AddrPort
		proto Protocol
	}
	seen := map[vip]int{}
	for i, s := range f.Services {
		path := fmt.Sprintf("fleet.services[%d]", i)
		k.vip(path+".vip", s.VIP.Addr())
		key := vip{s.VIP, s.Protocol}
		if first, twice := seen[key]; twice && s.VIP.IsValid() && s.Protocol != 0 {
			k.fail(path+".vip", "%s %s is already that of fleet.services[%d]", s.Protocol, s.VIP, first)
		} else {
			seen[key] = i
		}
		k.needs(path, s.Needs)
		if s.Proxied {
			k.proxiedService(path, s)
		} else {
			k.backends(path, s)
		}
	}
}

// vip must be inside a prefix, or no client ever reaches it.
func (k *checker) vip(path string, a netip.Addr) {
	if !a.IsValid() {
		return
	}
	if _, ok := k.c.Fleet.PrefixOf(a); !ok && k.prefixesWhole {
		k.fail(path, "%s is not inside any of fleet.prefixes", a)
	}
	for _, n := range k.c.Fleet.Nodes {
		if n.Addr4 == a || n.Addr6 == a {
			k.fail(path, "%s is also the address of node %s", a, n.ID)
		}
	}
}

func (k *checker) proxiedService(path string, s Service) {
	if s.Protocol == UDP {
		k.fail(path+".proxy", "a proxied service needs protocol tcp, not udp")
	}
	if len(s.Backends) > 0 {
		k.fail(path+".backends", "a proxied service has none: its backends are the nodes of the site")
	}
	if s.Check.Kind != "" || k.bad[path+".check"] {
		k.fail(path+".check", "a proxied service has none: its nodes answer on their health_port")
	}
}

// backends: a site that announces the VIP without a backend would draw traffic
// in to drop it.
func (k *checker) backends(path string, s Service) {
	if len(s.Backends) == 0 {
		if !k.bad[path+".backends"] && !k.bad[path+".proxy"] {
			k.fail(path, "needs backends: it is not proxied")
		}
		return
	}
	unique(k, path+".backends", ".name", s.Backends, func(b Backend) BackendID { return b.ID })
	unique(k, path+".backends", ".address", s.Backends, func(b Backend) netip.Addr { return b.Addr })
	k.damping(path+".check", s.Check)
	everywhere, served := false, map[SiteID]bool{}
	for i, b := range s.Backends {
		at := fmt.Sprintf("%s.backends[%d]", path, i)
		k.site(at+".site", b.Site)
		k.sender(at+".address", b)
		if b.Addr == s.VIP.Addr() && b.Addr.IsValid() {
			k.fail(at+".address", "%s is the VIP itself", b.Addr)
		}
		// A value that could not be read may be anything.
		if b.Weight > 0 || k.bad[at+".weight"] {
			everywhere = everywhere || b.Site == ""
			served[b.Site] = true
		}
	}
	for _, site := range k.sites {
		if !everywhere && !served[site] {
			k.fail(path+".backends", "site %s needs backends with a weight above 0: it announces the VIP and would drop all of its traffic", site)
		}
	}
}

// sender: a node sends to a backend from its own address of that family.
func (k *checker) sender(path string, b Backend) {
	lacks := k.without4
	if b.Addr.Is6() {
		lacks = k.without6
	}
	if node := lacks[b.Site]; b.Addr.IsValid() && node != "" {
		k.fail(path, "node %s uses this backend and has no address of the family of %s to send from", node, b.Addr)
	}
}

// backendCount: the forwarder of each node holds the backends that its site
// uses, of all services.
func (k *checker) backendCount() {
	nodes := map[SiteID]int{}
	for _, n := range k.c.Fleet.Nodes {
		nodes[n.Site]++
	}
	shared, proxied, own := 0, 0, map[SiteID]int{}
	for _, s := range k.c.Fleet.Services {
		if s.Proxied {
			proxied++
		}
		for _, b := range s.Backends {
			if b.Site == "" {
				shared++
			}
			own[b.Site]++
		}
	}
	for _, site := range k.sites {
		if n := shared + own[site] + proxied*nodes[site]; n > MaxBackends {
			k.fail("fleet.services", "site %s uses %d backends, a node counting once for each proxied service; expected at most %d", site, n, MaxBackends)
			return
		}
	}
}

// proxied checks what edgeproxy needs once there is a service for it.
func (k *checker) proxied() {
	f := &k.c.Fleet
	for i, s := range f.Services {
		path := fmt.Sprintf("fleet.services[%d].proxy", i)
		if !s.Proxied || k.bad[path] {
			continue
		}
		if s.TLS && len(f.Proxy.Certificates) == 0 && !k.bad["fleet.proxy.certificates"] {
			k.fail(path, "https needs a certificate in fleet.proxy.certificates")
		}
		if len(f.Proxy.Routes) == 0 && !k.bad["fleet.proxy.routes"] {
			k.fail(path, "a proxied service needs a route in fleet.proxy.routes")
		}
		if len(f.Regions) == 0 && !k.bad["fleet.regions"] {
			k.fail(path, "a proxied service needs a region in fleet.regions")
		}
	}
}

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
