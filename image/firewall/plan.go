package firewall

import (
	"net/netip"
	"slices"

	"github.com/catchment-dev/edge"
)

// sshPort is what a box in rescue is reached by.
const sshPort = 22

// The ports of the protocols that have one (RFC 4271, RFC 5881, RFC 5883).
const (
	bgpPort      = 179
	bfdPort      = 3784
	bfdMultihop  = 4784
	directHopTTL = 255
)

// plan is what is let in, still without a word of nftables. Ports are those of this
// box.
type plan struct {
	services []service
	// bgp are the peers of BGP, bfd those that are watched over one hop, far those
	// watched over several.
	bgp, bfd, far []neighbour
	// bgpPorts are the ports that edgebgp listens on; empty: it only dials.
	bgpPorts []uint16
	// gossip are the addresses that members may speak from, nodes those that boxes
	// send packets and probes from.
	gossip, nodes []netip.Addr
	// healthPorts are those of edgeproxy's /healthz, and of the checks of services
	// of which this box is a backend.
	gossipPorts, healthPorts []uint16
	// nets may reach ports, and console; with none of them everybody may reach
	// ports. console is empty where it listens on loopback only.
	nets           []netip.Prefix
	ports, console []uint16
}

// service is what of a VIP is served: port 0 is all ports, AnyProtocol all
// protocols.
type service struct {
	vip      netip.AddrPort
	protocol edge.Protocol
}

// neighbour is where packets of a router come from.
type neighbour struct {
	addr netip.Addr // without a zone
	// link is the interface that they come in by; empty: any.
	link string
	// least is the lowest TTL or hop limit that is taken; 0: any.
	least uint8
}

// newPlan lets in what the configurations need; managed says how the box is managed,
// nil: as in rescue.
func newPlan(managed *edge.Local, all []*edge.Config) plan {
	p := plan{ports: []uint16{sshPort}}
	if managed != nil {
		p.manage(*managed)
	}
	for _, c := range all {
		for _, s := range c.Fleet.Services {
			p.services = append(p.services, service{netip.AddrPortFrom(s.VIP.Addr().Unmap(), s.VIP.Port()), s.Protocol})
		}
		p.routers(c.Local.Speaker)
		p.members(c)
	}
	p.gossip, p.nodes = sortedAddrs(p.gossip), sortedAddrs(p.nodes)
	for _, ports := range []*[]uint16{&p.bgpPorts, &p.gossipPorts, &p.healthPorts, &p.ports, &p.console} {
		slices.Sort(*ports)
		*ports = slices.Compact(*ports)
	}
	return p
}

// manage takes over how the box is managed.
func (p *plan) manage(l edge.Local) {
	p.ports, p.nets = slices.Clone(l.HostFirewall.ManagementPorts), slices.Clone(l.HostFirewall.ManagementNets)
	if !l.Management.Addr().IsLoopback() {
		p.console = []uint16{l.Management.Port()}
	}
}

// routers takes the peers of BGP. A session over one hop asks for the TTL only
// where both sides have agreed to it (ttl_security); BFD over one hop always does
// (RFC 5881 section 5).
func (p *plan) routers(s edge.Speaker) {
	if s.Listen != 0 {
		p.bgpPorts = append(p.bgpPorts, uint16(s.Listen))
	}
	for _, peer := range s.Peers {
		n := neighbour{addr: peer.Addr.WithZone("").Unmap(), link: peer.Interface}
		if zone := peer.Addr.Zone(); zone != "" {
			n.link = zone
		}
		direct := n
		direct.least = directHopTTL
		if peer.TTLSecurity > 0 {
			n.least = uint8(256 - peer.TTLSecurity)
		}
		p.bgp = append(p.bgp, n)
		switch {
		case peer.BFD == nil:
		case peer.Multihop == 0:
			p.bfd = append(p.bfd, direct)
		default:
			p.far = append(p.far, neighbour{addr: n.addr, link: n.link})
		}
	}
}

// members takes the boxes of the fleet. A member speaks from the address that the
// others know its gossip by, or, where it is bound to any, from that of its route.
func (p *plan) members(c *edge.Config) {
	for _, n := range c.Fleet.Nodes {
		for _, a := range []netip.Addr{n.Addr4, n.Addr6} {
			if a.IsValid() {
				p.nodes, p.gossip = append(p.nodes, a), append(p.gossip, a)
			}
		}
		p.gossip = append(p.gossip, n.Gossip.Addr().Unmap())
	}
	if port := c.Local.GossipBind.Port(); port != 0 {
		p.gossipPorts = append(p.gossipPorts, port)
	}
	self := c.Self()
	if self.HealthPort != 0 {
		p.healthPorts = append(p.healthPorts, self.HealthPort)
	}
	for _, s := range c.Fleet.Services {
		p.checked(s, self)
	}
}

// checked lets the other boxes ask for this one's health where it is a backend: at
// its own address, on the port of the check.
func (p *plan) checked(s edge.Service, self edge.Node) {
	local := func(b edge.Backend) bool { return b.Addr == self.Addr4 || b.Addr == self.Addr6 }
	if port := s.Check.Addr.Port(); port != 0 && slices.ContainsFunc(s.Backends, local) {
		p.healthPorts = append(p.healthPorts, port)
	}
}

// links are the interfaces that some routers are bound to, in ascending order.
func (p plan) links() []string {
	var out []string
	for _, n := range slices.Concat(p.bgp, p.bfd, p.far) {
		if n.link != "" {
			out = append(out, n.link)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func sortedAddrs(all []netip.Addr) []netip.Addr {
	all = slices.DeleteFunc(all, func(a netip.Addr) bool { return !a.IsValid() })
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// disjoint are the networks of all without those that lie in another one, in
// ascending order.
func disjoint(all []netip.Prefix) []netip.Prefix {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if c := a.Masked().Addr().Compare(b.Masked().Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var out []netip.Prefix
	for _, n := range all {
		if len(out) == 0 || !out[len(out)-1].Contains(n.Addr()) {
			out = append(out, n.Masked())
		}
	}
	return out
}
