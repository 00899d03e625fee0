package watch

import (
	"net/netip"
	"slices"
)

// covers are routes to what prefixes of ours are a part of, one to a prefix: they
// serve as evidence only.
type covers struct {
	routes  map[netip.Prefix]cover
	lengths [2][129]int // how many there are of a length, by family
}

type cover struct {
	from *spot
	path []uint32
}

func newCovers() covers { return covers{routes: map[netip.Prefix]cover{}} }

// put keeps what was told last. The caller has dropped what from had.
func (c *covers) put(from *spot, p netip.Prefix, path []uint32) {
	old, there := c.routes[p]
	switch {
	case there:
		old.from.covers--
		old.from.rest()
	case len(c.routes) >= maxCovers:
		from.rest()
		return
	default:
		c.lengths[family(p.Addr())][p.Bits()]++
	}
	c.routes[p] = cover{from, slices.Clone(tail(path))}
	from.covers++
}

// drop takes away the route of a vantage point.
func (c *covers) drop(from *spot, p netip.Prefix) {
	if from == nil || from.covers == 0 || c.routes[p].from != from {
		return
	}
	delete(c.routes, p)
	c.lengths[family(p.Addr())][p.Bits()]--
	from.covers--
	from.rest()
}

// lose takes away all routes of a vantage point.
func (c *covers) lose(from *spot) {
	if from.covers == 0 {
		return
	}
	for p := range c.routes {
		c.drop(from, p)
	}
}

// of returns the longest cover of a prefix.
func (c *covers) of(p netip.Prefix) (netip.Prefix, cover, bool) {
	for bits := p.Bits() - 1; bits >= 0; bits-- {
		if c.lengths[family(p.Addr())][bits] == 0 {
			continue
		}
		at := netip.PrefixFrom(p.Addr(), bits).Masked()
		if route, there := c.routes[at]; there {
			return at, route, true
		}
	}
	return netip.Prefix{}, cover{}, false
}

// family is the index of a family: 0 for IPv4, 1 for IPv6.
func family(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}
