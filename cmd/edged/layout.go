package main

import (
	"net/netip"

	"github.com/catchment-dev/edge"
)

// layout is how prefixes, services and nodes of a configuration lie to each
// other. It is worked out once for each configuration: it is asked for a thousand
// prefixes several times a second.
type layout struct {
	// services are those whose VIPs are in a prefix and in no longer one, local those
	// of them that are served on this node.
	services, local map[netip.Prefix][]edge.Service
	// around are the shorter prefixes that a prefix is in, within those that are in
	// it, itself too.
	around map[netip.Prefix][]edge.Prefix
	within map[netip.Prefix][]netip.Prefix
	// shared are the prefixes of which other sites use this node as a backend,
	// fellows the nodes of other sites that this one uses.
	shared  map[netip.Prefix]bool
	fellows map[edge.NodeID]bool
	nodes   map[netip.Addr]edge.NodeID
}

// layout is that of the configuration in force.
func (d *daemon) layout() *layout {
	if c := d.config(); d.rest.layoutOf != c {
		d.rest.layoutOf, d.rest.layoutIs = c, newLayout(c)
	}
	return &d.rest.layoutIs
}

func newLayout(c *edge.Config) layout {
	l := layout{
		services: map[netip.Prefix][]edge.Service{}, local: map[netip.Prefix][]edge.Service{},
		around: map[netip.Prefix][]edge.Prefix{}, within: map[netip.Prefix][]netip.Prefix{},
		shared: map[netip.Prefix]bool{}, fellows: map[edge.NodeID]bool{}, nodes: nodesAt(c),
	}
	for _, p := range c.Fleet.Prefixes {
		for _, o := range c.Fleet.Prefixes {
			if p.Net.Bits() > o.Net.Bits() || !p.Net.Contains(o.Net.Addr()) {
				continue
			}
			l.within[p.Net] = append(l.within[p.Net], o.Net)
			if o.Net != p.Net {
				l.around[o.Net] = append(l.around[o.Net], p)
			}
		}
	}
	for _, s := range c.Fleet.Services {
		l.place(c, s)
	}
	return l
}

func (l *layout) place(c *edge.Config, s edge.Service) {
	p, ok := c.Fleet.PrefixOf(s.VIP.Addr())
	if !ok {
		return
	}
	l.services[p.Net] = append(l.services[p.Net], s)
	if servedHere(c, s) {
		l.local[p.Net] = append(l.local[p.Net], s)
	}
	for _, b := range s.Backends { // a backend of no site is one of all
		node, ok := l.nodes[b.Addr]
		switch {
		case b.Site != "" || !ok:
		case node == c.Local.ID:
			l.shared[p.Net] = true
		default:
			l.fellows[node] = true
		}
	}
}

// nodesAt are the nodes by their addresses.
func nodesAt(c *edge.Config) map[netip.Addr]edge.NodeID {
	out := make(map[netip.Addr]edge.NodeID, 2*len(c.Fleet.Nodes))
	for _, n := range c.Fleet.Nodes {
		for _, a := range []netip.Addr{n.Addr4, n.Addr6} {
			if a.IsValid() {
				out[a] = n.ID
			}
		}
	}
	return out
}

// servicesOf are the services whose VIPs are in p and in no longer prefix.
func (d *daemon) servicesOf(p netip.Prefix) []edge.Service { return d.layout().services[p] }
