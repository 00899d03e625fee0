package lab

import (
	"errors"
	"fmt"
	"regexp"
	"time"
)

// RouterKind is the routing software of a router.
type RouterKind string

// The kinds of routers.
const (
	BIRD RouterKind = "bird"
	FRR  RouterKind = "frr"
)

// Topology declares a lab. Names are unique over all kinds, 1 to 13 characters
// of [a-z0-9-]: they become interface names. Addresses follow from the order.
type Topology struct {
	// Routers, at most 200. Each has an AS of its own, 65001 and up.
	Routers []RouterSpec
	// Cores are the links between routers; each carries an eBGP session. The
	// shorter delay is preferred where everything else is equal.
	Cores []CoreSpec
	// Sites, at most 9. All boxes are in AS 64512.
	Sites []SiteSpec
	// Regions, at most 19.
	Regions []RegionSpec
	// Servers, at most 49, are the backends of the L4 services "download" and
	// "download6", which are there if there is a server.
	Servers []ServerSpec
	// Clients, at most 99.
	Clients []ClientSpec
	// Shared is the router of the host "shared", whose origin every box probes
	// as a hard dependency. Empty: no such host.
	Shared string
	// BFD has every box and its router watch their link, 300 ms times 3.
	BFD bool
	// ProbeEvery, 50 ms to 1 minute, is the interval of the probes of the proxy
	// and of the VIPs; three bad runs in a row are a failure. 0: those of the
	// template, quick for the process, 1 s for the VIPs.
	ProbeEvery time.Duration
	// MinSites is the floor of both service prefixes, below the number of sites;
	// 0: 1, or none of a lab with one site.
	MinSites int
	// Apart has the routers keep the service prefixes to themselves: each has only
	// what its own boxes announce, however unattractive, so that its kernel says
	// whether they do. All else they tell each other.
	Apart bool
	// Edit, if not nil, may change the configuration of a box before it is
	// written.
	Edit func(box, yaml string) string
}

// RouterSpec is a router.
type RouterSpec struct {
	Name string
	Kind RouterKind
}

// CoreSpec is a link between the routers A and B.
type CoreSpec struct {
	A, B string
	// Delay is one way, 0 to 1 s.
	Delay time.Duration
}

// SiteSpec is a site with its boxes.
type SiteSpec struct {
	Name   string
	Router string
	Boxes  []BoxSpec
}

// BoxSpec is a box.
type BoxSpec struct {
	Name string
	// MD5 protects its BGP session by a password (RFC 2385).
	MD5 bool
}

// RegionSpec is a region: one host with a number of origins.
type RegionSpec struct {
	Name   string
	Router string
	// Origins, 1 to 100.
	Origins int
	// Capacity is in requests per second, for the boxes' configuration.
	Capacity int
}

// ServerSpec is a server.
type ServerSpec struct {
	Name   string
	Router string
}

// ClientSpec is a client.
type ClientSpec struct {
	Name   string
	Router string
}

// Default is the whole small internet: three sites (a has two boxes), three
// routers in a full mesh of 5, 10 and 15 ms, three regions and three clients,
// so that each client's nearest site and region are at its own router.
func Default() Topology {
	return Topology{
		Routers: []RouterSpec{{"r-a", BIRD}, {"r-b", FRR}, {"r-c", BIRD}},
		Cores: []CoreSpec{
			{"r-a", "r-b", 5 * time.Millisecond},
			{"r-b", "r-c", 10 * time.Millisecond},
			{"r-a", "r-c", 15 * time.Millisecond},
		},
		Sites: []SiteSpec{
			{"a", "r-a", []BoxSpec{{"a1", true}, {"a2", false}}},
			{"b", "r-b", []BoxSpec{{"b1", true}}},
			{"c", "r-c", []BoxSpec{{"c1", false}}},
		},
		Regions: []RegionSpec{
			{"east", "r-a", 2, 60},
			{"west", "r-b", 2, 60},
			{"south", "r-c", 2, 60},
		},
		Clients: []ClientSpec{{"client-a", "r-a"}, {"client-b", "r-b"}, {"client-c", "r-c"}},
		Shared:  "r-b",
	}
}

// Pair is one site whose two boxes share all traffic: one router spreads
// connections over them by their ports, and they over three servers.
func Pair(kind RouterKind) Topology {
	return Topology{
		Routers: []RouterSpec{{"r-a", kind}},
		Sites:   []SiteSpec{{"a", "r-a", []BoxSpec{{"a1", true}, {"a2", false}}}},
		Regions: []RegionSpec{{"east", "r-a", 1, 60}},
		Servers: []ServerSpec{{"s1", "r-a"}, {"s2", "r-a"}, {"s3", "r-a"}},
		Clients: []ClientSpec{{"client-a", "r-a"}},
	}
}

// sharedName is the host of Topology.Shared.
const sharedName = "shared"

var validName = regexp.MustCompile(`^[a-z0-9-]{1,13}$`)

// check returns every mistake at once.
func (t *Topology) check() error {
	c := checker{seen: map[string]bool{sharedName: t.Shared != ""}, routers: map[string]bool{}}
	c.limit("routers", len(t.Routers), 200)
	c.limit("cores", len(t.Cores), 250)
	c.limit("sites", len(t.Sites), 9)
	c.limit("regions", len(t.Regions), 19)
	c.limit("servers", len(t.Servers), 49)
	c.limit("clients", len(t.Clients), 99)
	for _, r := range t.Routers {
		c.name("router", r.Name)
		c.routers[r.Name] = true
		if r.Kind != BIRD && r.Kind != FRR {
			c.fail("router %s: kind %q is not bird or frr", r.Name, r.Kind)
		}
	}
	for _, k := range t.Cores {
		c.at("core", k.A)
		c.at("core", k.B)
		if k.A == k.B || k.Delay < 0 || k.Delay > time.Second {
			c.fail("core %s--%s: needs two routers and a delay of 0 to 1 s", k.A, k.B)
		}
	}
	for _, s := range t.Sites {
		c.at("site "+s.Name, s.Router)
		c.limit("boxes of site "+s.Name, len(s.Boxes), 200)
		for _, b := range s.Boxes {
			c.name("box", b.Name)
		}
	}
	for _, r := range t.Regions {
		c.name("region", r.Name)
		c.at("region "+r.Name, r.Router)
		if r.Origins < 1 || r.Origins > 100 || r.Capacity < 1 {
			c.fail("region %s: needs 1 to 100 origins and a capacity above 0", r.Name)
		}
	}
	for _, s := range t.Servers {
		c.name("server", s.Name)
		c.at("server "+s.Name, s.Router)
	}
	for _, k := range t.Clients {
		c.name("client", k.Name)
		c.at("client "+k.Name, k.Router)
	}
	if t.Shared != "" {
		c.at(sharedName, t.Shared)
	}
	if t.ProbeEvery != 0 && (t.ProbeEvery < 50*time.Millisecond || t.ProbeEvery > time.Minute) {
		c.fail("probes every %s: not 50 ms to 1 minute", t.ProbeEvery)
	}
	if t.MinSites < 0 || t.MinSites > 0 && t.MinSites >= len(t.Sites) {
		c.fail("a floor of %d: not 1 to %d", t.MinSites, len(t.Sites)-1)
	}
	return errors.Join(c.errs...)
}

// checker collects the mistakes of a topology.
type checker struct {
	seen, routers map[string]bool
	errs          []error
}

func (c *checker) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

func (c *checker) limit(what string, n, most int) {
	if n > most {
		c.fail("%s: %d are more than %d", what, n, most)
	}
}

func (c *checker) name(kind, name string) {
	if !validName.MatchString(name) || name == "lo" || name == uplink {
		c.fail("%s %q: a name is 1 to 13 characters of [a-z0-9-]", kind, name)
	}
	if c.seen[name] {
		c.fail("%s %s: the name is taken", kind, name)
	}
	c.seen[name] = true
}

func (c *checker) at(what, router string) {
	if !c.routers[router] {
		c.fail("%s: there is no router %q", what, router)
	}
}

// boxes lists the boxes of all sites, in order.
func (t *Topology) boxes() []string {
	var names []string
	for _, s := range t.Sites {
		for _, b := range s.Boxes {
			names = append(names, b.Name)
		}
	}
	return names
}
