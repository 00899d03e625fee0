package edge

import (
	"fmt"
	"net/netip"
	"slices"
)

// The checks of the BGP speaker. They follow those of the prefixes, which peers
// refer to.

// Bounds of what is only ever a handful.
const (
	maxCaches  = 16 // of the RPKI
	maxOrigins = 64
)

func (k *checker) speaker() {
	s := k.c.Local.Speaker
	k.most("node.bgp.peers", len(s.Peers), MaxPeers)
	unique(k, "node.bgp.peers", ".name", s.Peers, func(p Peer) PeerID { return p.ID })
	unique(k, "node.bgp.peers", ".address", s.Peers, func(p Peer) netip.Addr { return p.Addr })
	for i, p := range s.Peers {
		path := fmt.Sprintf("node.bgp.peers[%d]", i)
		k.transport(path, s, p)
		k.timing(path, p)
		k.outbound(path, s, p)
		k.longer(path, s, p)
	}
	k.most("node.bgp.rpki.servers", len(s.RPKI.Servers), maxCaches)
	unique(k, "node.bgp.rpki.servers", "", s.RPKI.Servers, func(a netip.AddrPort) netip.AddrPort { return a })
	k.most("node.bgp.watch.origins", len(s.Watch.Origins), maxOrigins)
	unique(k, "node.bgp.watch.origins", "", s.Watch.Origins, func(n uint32) uint32 { return n })
	k.most("node.bgp.watch.neighbours", len(s.Watch.Neighbours), maxOrigins)
	unique(k, "node.bgp.watch.neighbours", "", s.Watch.Neighbours, func(n uint32) uint32 { return n })
}

// isScoped says that a means nothing without an interface. Not IPv4: there the
// kernel has a route to link-local addresses as to any others.
func isScoped(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// transport checks the TCP connection of a session.
func (k *checker) transport(path string, s Speaker, p Peer) {
	if p.Addr.IsValid() && p.LocalAddr.IsValid() && p.Addr.Is4() != p.LocalAddr.Is4() {
		k.fail(path+".local_address", "%s is not of the family of the peer's address %s", p.LocalAddr, p.Addr)
	}
	if p.Addr.IsValid() && p.LocalAddr == p.Addr.WithZone("") {
		k.fail(path+".local_address", "%s is the address of the peer; expected one of this box", p.LocalAddr)
	}
	if isScoped(p.Addr) && p.Addr.Zone() == "" && !k.bad[path+".interface"] {
		k.fail(path+".address", "%s is link-local and needs interface: the one that the peer is on", p.Addr)
	}
	if isScoped(p.LocalAddr) && p.Addr.Is6() && !isScoped(p.Addr) {
		k.fail(path+".local_address", "%s is link-local, and the address of the peer is not", p.LocalAddr)
	}
	if isScoped(p.Addr) && p.Multihop > 0 {
		k.fail(path+".multihop", "%d is for a peer over several hops, and %s is link-local: one hop away", p.Multihop, p.Addr)
	}
	if p.TTLSecurity > 0 && p.Multihop > 0 {
		k.fail(path+".ttl_security", "%d and multihop %d exclude each other: one takes packets from at most so many hops away, the other sends them so far", p.TTLSecurity, p.Multihop)
	}
	if p.Passive && s.Listen == 0 && !k.bad["node.bgp.listen"] {
		k.fail(path+".passive", "waiting for the peer needs node.bgp.listen, which is 0")
	}
}

// timing checks the timers of a session and what watches it.
func (k *checker) timing(path string, p Peer) {
	if p.Keepalive*3 > p.Hold && p.Hold > 0 {
		k.fail(path+".keepalive", "%s is more than a third of the hold time %s", short(p.Keepalive), short(p.Hold))
	}
	if p.BFD == nil || k.bad[path+".bfd"] {
		return
	}
	if p.Multihop > 0 && !p.LocalAddr.IsValid() && !k.bad[path+".local_address"] {
		k.fail(path+".bfd", "needs local_address with multihop: the session is known by its two addresses (RFC 5883)")
	}
	if p.TTLSecurity > 1 {
		k.fail(path+".bfd", "needs a peer that is one hop away, and ttl_security is %d; expected ttl_security: 1, or multihop instead", p.TTLSecurity)
	}
}

// outbound checks what a peer is sent.
func (k *checker) outbound(path string, s Speaker, p Peer) {
	unique(k, path+".families", "", p.Families, func(f Family) Family { return f })
	unique(k, path+".prefixes", "", p.Prefixes, func(n netip.Prefix) netip.Prefix { return n })
	for i, n := range p.Prefixes {
		if n.IsValid() && k.prefixesWhole && !s.owns(n) {
			k.fail(fmt.Sprintf("%s.prefixes[%d]", path, i), "%s is not in fleet.prefixes", n)
		}
	}
	for key, hop := range map[string]netip.Addr{"next_hop4": p.NextHop4, "next_hop6": p.NextHop6} {
		family := IPv6
		if key == "next_hop4" {
			family = IPv4
		}
		if hop.IsValid() && !slices.Contains(p.Families, family) && !k.bad[path+"."+key] && !k.anyBad(path+".families", len(p.Families)) {
			k.fail(path+"."+key, "needs %s among families", family)
		}
		if hop.IsValid() && hop == p.Addr {
			k.fail(path+"."+key, "%s is the address of the peer; expected one of this box", hop)
		}
	}
	if p.ASN == 0 || s.ASN == 0 {
		return
	}
	k.attributes(path+".announce", s, p, p.Announce)
	if p.Degraded != nil {
		k.attributes(path+".degraded", s, p, *p.Degraded)
	}
}

// attributes checks what is said to one peer only, and would not be sent to it.
// What a prefix says goes to peers of both sorts.
func (k *checker) attributes(path string, s Speaker, p Peer, a Attributes) {
	if a.LocalPref != 0 && !s.Internal(p) {
		k.fail(path+".local_pref", "is for iBGP only, and peer %s is of AS %d, not of ours: use med, prepend or communities", p.ID, p.ASN)
	}
	if a.Prepend != 0 && s.Internal(p) {
		k.fail(path+".prepend", "is for eBGP only: to peer %s, which is of our own AS, the path would be a loop; use local_pref", p.ID)
	}
}

// anyBad says that a list of n items, or one of them, could not be read.
func (k *checker) anyBad(path string, n int) bool {
	for i := range n {
		if k.bad[fmt.Sprintf("%s[%d]", path, i)] {
			return true
		}
	}
	return k.bad[path]
}

// longer: most networks take nothing longer than a /24 or a /48 from outside, so
// that such a prefix looks announced and is not seen.
func (k *checker) longer(path string, s Speaker, p Peer) {
	if p.AllowLonger || p.Watch || p.ASN == 0 || s.ASN == 0 || s.Internal(p) ||
		k.bad[path+".allow_longer"] || k.bad[path+".watch"] || k.anyBad(path+".prefixes", len(p.Prefixes)) {
		return
	}
	all := s.Own
	if len(p.Prefixes) > 0 {
		all = p.Prefixes
	}
	var long []netip.Prefix
	for _, n := range all {
		family, most := IPv4, 24
		if n.Addr().Is6() {
			family, most = IPv6, 48
		}
		if n.Bits() > most && slices.Contains(p.Families, family) && s.owns(n) {
			long = append(long, n)
		}
	}
	if len(long) == 0 {
		return
	}
	what := long[0].String()
	if n := len(long) - 1; n > 0 {
		what += fmt.Sprintf(" and %d more", n)
	}
	k.fail(path, "would be sent %s, and networks take nothing longer than /24 or /48 from outside: say allow_longer: true if this one does, or leave it out of prefixes", what)
}

// owns says whether n is one of fleet.prefixes.
func (s Speaker) owns(n netip.Prefix) bool {
	_, ok := slices.BinarySearchFunc(s.Own, n, netip.Prefix.Compare)
	return ok
}
