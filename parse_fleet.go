package edge

import (
	"fmt"
	"net/netip"
	"path"
	"strings"
	"time"
)

func (r *reader) fleet(o *object) Fleet {
	return Fleet{
		RingSeedFile: need(o, "ring_seed_file", file()),
		Sites:        each(o, "sites", 1, r.site),
		Nodes:        each(o, "nodes", 1, r.fleetNode),
		Prefixes:     r.prefixes(o),
		Services:     each(o, "services", 0, r.service),
		Regions:      each(o, "regions", 0, r.region),
		Proxy:        section(o, "proxy", "optional", r.proxy),
		Guard:        section(o, "guard", "required", r.guard),
		Health:       section(o, "health", "optional", r.health),
	}
}

func (r *reader) site(o *object) Site {
	return Site{
		ID:       need(o, "name", name[SiteID]()),
		Region:   want(o, "region", name[RegionID](), none[RegionID]()),
		Capacity: want(o, "capacity", rate(), none[float64]()),
	}
}

func (r *reader) fleetNode(o *object) Node {
	return Node{
		ID:         need(o, "name", name[NodeID]()),
		Site:       need(o, "site", name[SiteID]()),
		Addr4:      want(o, "address4", nodeAddress(4), none[netip.Addr]()),
		Addr6:      want(o, "address6", nodeAddress(6), none[netip.Addr]()),
		Gossip:     need(o, "gossip", socket(false)),
		HealthPort: want(o, "health_port", port[uint16](), or(uint16(9181))),
		PublicKey:  need(o, "public_key", nodeKey()),
	}
}

// nodeAddress is an address of a node: the other boxes send to it, and routers
// that are told of it as a next hop.
func nodeAddress(version int) rule[netip.Addr] {
	host := address(version)
	takes := host.takes + ", neither loopback nor link-local"
	return rule[netip.Addr]{takes: takes, parse: func(s string) (netip.Addr, error) {
		a, err := host.parse(s)
		if err == nil && !IsReachable(a) {
			return netip.Addr{}, fmt.Errorf("%s cannot be reached from elsewhere: expected an %s", s, takes)
		}
		return a, err
	}}
}

// prefixes reads the prefixes. The default of min_sites is filled in by the
// check, which knows the number of sites.
func (r *reader) prefixes(o *object) []Prefix {
	return each(o, "prefixes", 1, func(o *object) Prefix {
		p := Prefix{
			Net:      need(o, "prefix", network()),
			MinSites: want(o, "min_sites", number[int](0, 1000), orElse(-1, "1, in a fleet of one site 0")),
			Announce: section(o, "announce", "optional", r.attributes),
			Degraded: section(o, "degraded", "default {prepend: 3, med: 1000, communities: [\"65535:0\"]}", r.attributes),
			WhenFull: want(o, "when_full", choice(SpreadFull, DegradeFull), or(SpreadFull)),
			Needs:    r.needs(o),
		}
		p.Unconditional = list(o, "unconditional", name[SiteID](), 0, "default []")
		// The defaults hold for the section as a whole: who writes it chooses all.
		if !o.has("degraded") {
			p.Degraded = Attributes{Prepend: 3, MED: 1000, Communities: []Community{GracefulShutdown}}
		}
		return p
	})
}

func (r *reader) needs(o *object) []Need {
	return each(o, "needs", 0, func(o *object) Need {
		return Need{On: need(o, "on", name[ProbeID]()), Class: need(o, "class", choice(Hard, Soft, Shared))}
	})
}

func (r *reader) region(o *object) Region {
	return Region{
		ID:        need(o, "name", name[RegionID]()),
		Capacity:  need(o, "capacity", rate()),
		Upstreams: each(o, "upstreams", 1, r.upstream),
		// A region without a check is dialled: its round-trip time is needed.
		Check: r.check(o, checkRule{absent: standardCheck(), says: "default {kind: tcp}"}),
	}
}

func (r *reader) upstream(o *object) Upstream {
	return Upstream{ID: need(o, "name", name[UpstreamID]()), Addr: need(o, "address", socket(false))}
}

func (r *reader) proxy(o *object) Proxy {
	ms, s, m := time.Millisecond, time.Second, time.Minute
	return Proxy{
		Certificates: each(o, "certificates", 0, func(o *object) Certificate {
			return Certificate{CertFile: need(o, "cert_file", file()), KeyFile: need(o, "key_file", file())}
		}),
		TicketKeyFile:   want(o, "ticket_key_file", fileOrNone(), or("")),
		Routes:          each(o, "routes", 0, r.route),
		HeaderTimeout:   want(o, "header_timeout", duration(s, 5*m, 0), or(10*s)),
		IdleTimeout:     want(o, "idle_timeout", duration(s, 60*m, 0), or(60*s)),
		UpstreamTimeout: want(o, "upstream_timeout", duration(100*ms, 10*m, 0), or(15*s)),
		DrainTimeout:    want(o, "drain_timeout", duration(0, 60*m, 0), or(30*s)),
		AccessLog:       want(o, "access_log", fileOrNone(), or("")),
	}
}

func (r *reader) route(o *object) Route {
	return Route{
		Hosts:      list(o, "hosts", hostPattern(), 0, "default []"),
		PathPrefix: want(o, "path_prefix", pathPrefix(), or("/")),
		Regions:    list(o, "regions", name[RegionID](), 0, "default []"),
	}
}

// pathPrefix is a path as it is after cleaning, or it would never match.
func pathPrefix() rule[string] {
	return rule[string]{takes: "URL path without a query", parse: func(s string) (string, error) {
		plain := s == "/" || path.Clean(s) == strings.TrimSuffix(s, "/")
		if _, err := urlPath().parse(s); err != nil || !plain || strings.Contains(s, "?") {
			return "", fmt.Errorf("%s is not a URL path that begins with /, without a query and without . or .. in it", quote(s))
		}
		return s, nil
	}}
}

// hostPattern is a host name in lower case, without a port; its first label
// may be "*".
func hostPattern() rule[string] {
	return rule[string]{takes: "host name, its first label may be *", parse: func(s string) (string, error) {
		if _, err := netip.ParseAddr(s); err == nil {
			return s, nil
		}
		rest := strings.TrimPrefix(s, "*.")
		ok := rest != "" && len(s) <= 253
		for label := range strings.SplitSeq(rest, ".") {
			ok = ok && label != "" && len(label) <= 63 && strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
		}
		if !ok {
			return "", fmt.Errorf("%s is not a host name in lower case, without a port (its first label may be *)", quote(s))
		}
		return s, nil
	}}
}
