package edge

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// checker judges what needs more than one value. It skips values that have an
// error already, so that one mistake is one line.
type checker struct {
	*reader
	c *Config
	// sites are the sites that have nodes.
	sites []SiteID
	// siteIndex has the sites, sitesWhole says that all of them could be read.
	siteIndex  map[SiteID]int
	sitesWhole bool
	// prefixesWhole says that all prefixes could be read.
	prefixesWhole bool
	// without4 and without6 have nodes that lack an address: see nodesWithout.
	without4, without6 map[SiteID]NodeID
}

// checkConfig checks c and fills in the defaults that depend on the whole.
func checkConfig(r *reader, c *Config) {
	k := &checker{reader: r, c: c}
	for _, n := range c.Fleet.Nodes {
		if !slices.Contains(k.sites, n.Site) && n.Site != "" {
			k.sites = append(k.sites, n.Site)
		}
	}
	k.local()
	k.nodes()
	k.prefixes()
	k.speaker()
	k.services()
	k.proxied()
	k.regions()
	k.guard()
	k.probes()
	k.graph()
}

// unique reports the second of two equal keys. Values that are not valid (the
// zero K) are skipped. It returns the set, and whether it is whole: a name in
// it that could not be read may be what a reference means.
func unique[T any, K comparable](k *checker, path, leaf string, all []T, of func(T) K) (set map[K]int, whole bool) {
	var zero K
	set, whole = map[K]int{}, !k.bad[path]
	for i, one := range all {
		key, at := of(one), fmt.Sprintf("%s[%d]%s", path, i, leaf)
		if key == zero {
			whole = false
			continue
		}
		if first, twice := set[key]; twice {
			k.fail(at, "%v is already that of %s[%d]", key, path, first)
			continue
		}
		set[key] = i
	}
	return set, whole
}

// local checks this box.
func (k *checker) local() {
	l, self := k.c.Local, k.c.Self()
	if l.ID != "" && self.ID == "" && !k.bad["fleet.nodes"] {
		k.fail("node.name", "%s is not in fleet.nodes", quote(string(l.ID)))
	}
	if self.ID != "" && !l.Speaker.RouterID.IsValid() && !k.bad["node.bgp.router_id"] && !k.nodeBad("address4") {
		k.fail("node.bgp.router_id", "missing; expected an IPv4 address, because node %s has no address4", self.ID)
	}
	unique(k, "node.forwarder.interfaces", "", l.Forwarder.Interfaces, func(s string) string { return s })
	k.probeSource("node.probe_source4", l.ProbeSource4)
	k.probeSource("node.probe_source6", l.ProbeSource6)
}

// nodeBad says whether any node has an error at a key.
func (k *checker) nodeBad(key string) bool {
	for i := range k.c.Fleet.Nodes {
		if k.bad[fmt.Sprintf("fleet.nodes[%d].%s", i, key)] {
			return true
		}
	}
	return false
}

// probeSource must be in no other use, or answers to probes get lost in it.
func (k *checker) probeSource(path string, a netip.Addr) {
	if !a.IsValid() {
		return
	}
	for _, n := range k.c.Fleet.Nodes {
		if n.Addr4 == a || n.Addr6 == a || n.Gossip.Addr() == a {
			k.fail(path, "%s is an address of node %s; expected one that nothing else uses", a, n.ID)
			return
		}
	}
	for _, s := range k.c.Fleet.Services {
		if s.VIP.Addr() == a {
			k.fail(path, "%s is the VIP of service %s; expected an address that nothing else uses", a, s.ID)
			return
		}
	}
}

// most reports a list of which the rest of the appliance takes fewer.
func (k *checker) most(path string, n, most int) {
	if n > most && !k.bad[path] {
		k.fail(path, "expected at most %d in this list, found %d", most, n)
	}
}

func (k *checker) nodes() {
	f := &k.c.Fleet
	k.trusted()
	k.siteIndex, k.sitesWhole = unique(k, "fleet.sites", ".name", f.Sites, func(s Site) SiteID { return s.ID })
	unique(k, "fleet.nodes", ".name", f.Nodes, func(n Node) NodeID { return n.ID })
	unique(k, "fleet.nodes", ".gossip", f.Nodes, func(n Node) netip.AddrPort { return n.Gossip })
	unique(k, "fleet.nodes", ".public_key", f.Nodes, func(n Node) NodeKey { return n.PublicKey })
	unique(k, "fleet.nodes", ".address4", f.Nodes, func(n Node) netip.Addr { return n.Addr4 })
	unique(k, "fleet.nodes", ".address6", f.Nodes, func(n Node) netip.Addr { return n.Addr6 })
	for i, n := range f.Nodes {
		path := fmt.Sprintf("fleet.nodes[%d]", i)
		k.site(path+".site", n.Site)
		if !n.Addr4.IsValid() && !n.Addr6.IsValid() && !k.bad[path] && !k.bad[path+".address4"] && !k.bad[path+".address6"] {
			k.fail(path, "needs an address: address4, address6 or both")
		}
	}
}

// trusted: every address of a node takes a place in each forwarder.
func (k *checker) trusted() {
	n := 0
	for _, node := range k.c.Fleet.Nodes {
		for _, a := range []netip.Addr{node.Addr4, node.Addr6} {
			if a.IsValid() {
				n++
			}
		}
	}
	if n > MaxTrusted {
		k.fail("fleet.nodes", "the nodes have %d addresses; expected at most %d", n, MaxTrusted)
	}
}

// site checks a reference to a site.
func (k *checker) site(path string, id SiteID) {
	if _, ok := k.siteIndex[id]; !ok && k.sitesWhole && id != "" {
		k.fail(path, "%s is not in fleet.sites", quote(string(id)))
	}
}

// prefixes also fills in the default of min_sites.
func (k *checker) prefixes() {
	f := &k.c.Fleet
	_, k.prefixesWhole = unique(k, "fleet.prefixes", ".prefix", f.Prefixes, func(p Prefix) netip.Prefix { return p.Net })
	k.without4, k.without6 = k.nodesWithout()
	for i := range f.Prefixes {
		p, path := &f.Prefixes[i], fmt.Sprintf("fleet.prefixes[%d]", i)
		k.needs(path, p.Needs)
		announce := k.unconditional(path, p)
		k.minSites(path+".min_sites", p, announce)
		if at := k.lacking(p, announce); p.Net.IsValid() && at != "" {
			k.fail(path+".prefix", "node %s has no address of this family and could not announce %s", at, p.Net)
		}
	}
}

// unconditional returns the sites that may announce p and have nodes: all, or
// those that do whatever their health says.
func (k *checker) unconditional(path string, p *Prefix) []SiteID {
	if len(p.Unconditional) == 0 {
		return k.sites
	}
	at := path + ".unconditional"
	unique(k, at, "", p.Unconditional, func(id SiteID) SiteID { return id })
	var out []SiteID
	for i, id := range p.Unconditional {
		k.site(fmt.Sprintf("%s[%d]", at, i), id)
		if slices.Contains(k.sites, id) && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	if len(out) == 0 && len(k.sites) > 0 && k.sitesWhole && !k.anyBad(at, len(p.Unconditional)) {
		k.fail(at, "none of these sites has a node; nobody would announce %s", p.Net)
	}
	if len(p.Needs) > 0 {
		k.fail(path+".needs", "an unconditional prefix has none: it is announced whatever the health says")
	}
	if p.WhenFull == DegradeFull {
		k.fail(path+".when_full", "means nothing for an unconditional prefix: it is announced whatever the health says")
	}
	return out
}

// lacking returns a node of those sites that could not announce p: the next hop
// of an announcement has the family of the prefix.
func (k *checker) lacking(p *Prefix, sites []SiteID) NodeID {
	without := k.without4
	if p.Net.Addr().Is6() {
		without = k.without6
	}
	if len(p.Unconditional) == 0 {
		return without[""]
	}
	for _, id := range sites {
		if without[id] != "" {
			return without[id]
		}
	}
	return ""
}

// nodesWithout returns, of each site, a node without an address of each family;
// under "" the first such node of all. Nodes that have an error there do not
// count.
func (k *checker) nodesWithout() (v4, v6 map[SiteID]NodeID) {
	v4, v6 = map[SiteID]NodeID{}, map[SiteID]NodeID{}
	for i, n := range k.c.Fleet.Nodes {
		at := fmt.Sprintf("fleet.nodes[%d]", i)
		if k.bad[at] {
			continue
		}
		for _, site := range []SiteID{"", n.Site} {
			if v4[site] == "" && !n.Addr4.IsValid() && !k.bad[at+".address4"] {
				v4[site] = n.ID
			}
			if v6[site] == "" && !n.Addr6.IsValid() && !k.bad[at+".address6"] {
				v6[site] = n.ID
			}
		}
	}
	return v4, v6
}

// minSites: a floor that the other sites cannot reach would never let any site
// go. A floor of 0 lets the last one go: that is how a prefix is retired, so it
// has to be written out.
func (k *checker) minSites(path string, p *Prefix, announce []SiteID) {
	most, of := len(announce)-1, ""
	if len(p.Unconditional) > 0 {
		of = " of unconditional"
	}
	if p.MinSites < 0 {
		p.MinSites = min(1, max(most, 0))
	}
	switch {
	case k.bad[path] || len(announce) == 0 || k.bad["fleet.nodes"]:
	case of != "" && k.anyBad(strings.TrimSuffix(path, ".min_sites")+".unconditional", len(p.Unconditional)):
	case most == 0 && p.MinSites > 0:
		k.fail(path, "%d is not 0: only one site%s has nodes, no other can stay", p.MinSites, of)
	case most > 0 && (p.MinSites > most):
		k.fail(path, "%d is not from 0 to %d: %d sites%s have nodes, one less can stay while one leaves", p.MinSites, most, len(announce), of)
	}
}

// needs checks one list of dependencies; the names are checked in graph.
func (k *checker) needs(path string, all []Need) {
	unique(k, path+".needs", ".on", all, func(n Need) ProbeID { return n.On })
}

func (k *checker) regions() {
	f := &k.c.Fleet
	regions, whole := unique(k, "fleet.regions", ".name", f.Regions, func(r Region) RegionID { return r.ID })
	for i, r := range f.Regions {
		path := fmt.Sprintf("fleet.regions[%d]", i)
		unique(k, path+".upstreams", ".name", r.Upstreams, func(u Upstream) UpstreamID { return u.ID })
		unique(k, path+".upstreams", ".address", r.Upstreams, func(u Upstream) netip.AddrPort { return u.Addr })
		k.damping(path+".check", r.Check)
	}
	for i, route := range f.Proxy.Routes {
		path := fmt.Sprintf("fleet.proxy.routes[%d]", i)
		unique(k, path+".hosts", "", route.Hosts, func(h string) string { return h })
		unique(k, path+".regions", "", route.Regions, func(id RegionID) RegionID { return id })
		for j, id := range route.Regions {
			if _, ok := regions[id]; !ok && whole && id != "" {
				k.fail(fmt.Sprintf("%s.regions[%d]", path, j), "%s is not in fleet.regions", quote(string(id)))
			}
		}
	}
}
