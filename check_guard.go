package edge

import (
	"fmt"
	"math"
	"slices"
)

// guard: a promise must outlive the round that asks for it, and the policy must
// leave room for a site to go.
func (k *checker) guard() {
	g := k.c.Fleet.Guard
	if g.PromiseLease > 0 && g.AskTimeout*2 > g.PromiseLease {
		k.fail("fleet.guard.ask_timeout", "%s is more than half of promise_lease %s", short(g.AskTimeout), short(g.PromiseLease))
	}
	k.regionFloors()
	if !k.sitesWhole || k.bad["fleet.sites"] || k.bad["fleet.nodes"] || len(k.sites) == 0 {
		return
	}
	for i := range k.c.Fleet.Prefixes {
		p := &k.c.Fleet.Prefixes[i]
		path := fmt.Sprintf("fleet.prefixes[%d]", i)
		if p.MinSites > 0 && p.Net.IsValid() && !k.bad[path+".min_sites"] && !k.bad[path+".unconditional"] {
			k.mayLeave(p)
		}
	}
}

// failOnce reports the first prefix for which a value of the policy is wrong.
func (k *checker) failOnce(path, format string, args ...any) {
	if !k.bad[path] {
		k.fail(path, format, args...)
	}
}

// mayLeave refuses what would never let any site leave p: that is found out here
// rather than when one has to.
func (k *checker) mayLeave(p *Prefix) {
	const never = "no site could ever leave it"
	g, sites := k.c.Fleet.Guard.Of(*p), k.announcers(p)
	others := len(sites) - 1
	if others < 1 {
		return
	}
	if p.MinSites <= others && p.MinSites+g.SpareSites > others {
		k.failOnce("fleet.guard.spare_sites", "%d and min_sites %d of %s are more than the %d other sites that announce it: %s", g.SpareSites, p.MinSites, p.Net, others, never)
	}
	if n := int(math.Ceil(g.MinFraction*float64(len(k.sites)) - 1e-9)); n > others {
		k.failOnce("fleet.guard.min_fraction", "%v of %d sites are %d, and with one less %d announce %s: %s", g.MinFraction, len(k.sites), n, others, p.Net, never)
	}
	if g.MinHealthy > others {
		k.failOnce("fleet.guard.min_healthy", "%d is more than the %d other sites that announce %s: %s", g.MinHealthy, others, p.Net, never)
	}
	k.capacity(p, sites)
	for i, f := range g.Regions {
		n := 0
		for _, s := range sites {
			if s.Region == f.Region {
				n++
			}
		}
		if n > 0 && f.MinSites >= n {
			k.failOnce(fmt.Sprintf("fleet.guard.regions[%d].min_sites", i), "%d is not below %d, the sites of region %s that announce %s: none of them could ever leave it", f.MinSites, n, f.Region, p.Net)
		}
	}
}

// announcers are the sites with nodes that may announce p.
func (k *checker) announcers(p *Prefix) []Site {
	var out []Site
	for _, s := range k.c.Fleet.Sites {
		if _, elsewhere := p.AnnouncedAt(s.ID); elsewhere == "" && slices.Contains(k.sites, s.ID) {
			out = append(out, s)
		}
	}
	return out
}

// capacity: a site whose capacity is not known counts for nothing.
func (k *checker) capacity(p *Prefix, sites []Site) {
	g, key := k.c.Fleet.Guard.Of(*p), "min_capacity"
	if g.MinCapacity == 0 {
		key = "cover_demand"
	}
	if g.MinCapacity == 0 && !g.CoverDemand {
		return
	}
	sum, largest := 0.0, Site{}
	for _, s := range sites {
		if k.bad[fmt.Sprintf("fleet.sites[%d].capacity", k.siteIndex[s.ID])] {
			return
		}
		if s.Capacity == 0 {
			k.failOnce("fleet.guard."+key, "needs a capacity of every site in fleet.sites, and %s has none", s.ID)
			return
		}
		if sum += s.Capacity; s.Capacity > largest.Capacity {
			largest = s
		}
	}
	if left := sum - largest.Capacity; g.MinCapacity > left {
		k.failOnce("fleet.guard.min_capacity", "%v is more than the %v that is left for %s without %s: it could never leave", g.MinCapacity, left, p.Net, largest.ID)
	}
}

// regionFloors: a floor is for a region that there is.
func (k *checker) regionFloors() {
	const path = "fleet.guard.regions"
	floors := k.c.Fleet.Guard.Regions
	unique(k, path, ".region", floors, func(f RegionFloor) RegionID { return f.Region })
	for i, f := range floors {
		at := fmt.Sprintf("%s[%d].region", path, i)
		has := slices.ContainsFunc(k.c.Fleet.Sites, func(s Site) bool { return s.Region == f.Region && slices.Contains(k.sites, s.ID) })
		if !has && k.sitesWhole && f.Region != "" && !k.bad[at] && !k.siteBad("region") {
			k.fail(at, "no site with nodes in fleet.sites is of region %s", quote(string(f.Region)))
		}
	}
}

// siteBad says whether any site has an error at a key.
func (k *checker) siteBad(key string) bool {
	for i := range k.c.Fleet.Sites {
		if k.bad[fmt.Sprintf("fleet.sites[%d].%s", i, key)] {
			return true
		}
	}
	return false
}
