package firewall

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// layout is what the table has in it. What the configuration lists are elements of
// sets, so that a packet costs the same whether there is one of them or a thousand.
type layout struct {
	sets   []set
	chains []chain
}

// chain without a hook is one that others jump to.
type chain struct {
	name  string
	hook  *nftables.ChainHook
	prio  *nftables.ChainPriority
	drops bool // what comes to its end
	rules []rule
}

// The counters, one for each reason to refuse a packet.
const (
	refusedBGP        = "refused_bgp_not_a_peer"
	refusedBGPTTL     = "refused_bgp_too_far"
	refusedBFD        = "refused_bfd_not_a_peer"
	refusedBFDTTL     = "refused_bfd_too_far"
	refusedGossip     = "refused_gossip_not_a_member"
	refusedTunnel     = "refused_tunnel_not_a_member"
	refusedHealth     = "refused_health_not_a_member"
	refusedManagement = "refused_management"
	refusedVIP        = "refused_vip_no_service"
	refusedEcho       = "refused_icmp_echo_rate"
	refusedICMP       = "refused_icmp_type"
	refusedInvalid    = "refused_invalid"
	refusedBroadcast  = "refused_broadcast"
	refusedRest       = "refused_rest"
	refusedForward    = "refused_forward"
)

func counters() []string {
	return []string{
		refusedBGP, refusedBGPTTL, refusedBFD, refusedBFDTTL, refusedGossip, refusedTunnel, refusedHealth, refusedManagement,
		refusedVIP, refusedEcho, refusedICMP, refusedInvalid, refusedBroadcast, refusedRest, refusedForward,
	}
}

// probeLink is edged's end of the link to the namespace from which VIPs are probed.
const probeLink = "edge-probe0"

// echoRate is how many pings a second are answered, echoBurst how many may come at
// once. Monitors of many networks ping a VIP; a flood is not worth the CPU.
const echoRate, echoBurst = 1000, 250

// The types of pings (RFC 792, RFC 4443).
const echoRequest4, echoRequest6 = 8, 128

// layout turns the plan into rules.
func (p plan) layout() layout {
	var s sets
	in := newChain("input", nftables.ChainHookInput, nftables.ChainPriorityFilter)
	in.drops = true
	in.add("", link(expr.MetaKeyIIFNAME, "lo"), accept())
	in.add("", protocol(unix.IPPROTO_ICMP), jump("icmp_in"))
	in.add("", protocol(unix.IPPROTO_ICMPV6), jump("icmp_in"))
	routers := p.routed(&s, &in)
	in.add("", state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept())
	served := p.served(&s, &in)
	p.fleet(&s, &in)
	managed := p.managed(&s, &in)
	in.add("DHCP", families()[0].only(), port(unix.IPPROTO_UDP, sourcePort, 67), port(unix.IPPROTO_UDP, destPort, 68), accept())
	in.add("DHCPv6", families()[1].within(linkLocal6()), port(unix.IPPROTO_UDP, destPort, 546), accept())
	in.add("", state(expr.CtStateBitINVALID), refuse(refusedInvalid))
	in.add("", broadcast(unix.PACKET_BROADCAST), refuse(refusedBroadcast))
	in.add("", broadcast(unix.PACKET_MULTICAST), refuse(refusedBroadcast))
	in.add("", refuse(refusedRest))

	before, after := p.notTracked(&s)
	chains := slices.Concat(routers, served, managed, []chain{icmp(), in, forward(), before, after})
	return layout{s.all, chains}
}

func newChain(name string, hook *nftables.ChainHook, prio *nftables.ChainPriority) chain {
	return chain{name: name, hook: hook, prio: prio}
}

func (c *chain) add(comment string, parts ...match) {
	c.rules = append(c.rules, newRule(comment, parts...))
}

func linkLocal6() netip.Prefix { return netip.MustParsePrefix("fe80::/10") }

func broadcast(kind byte) match {
	return equals(&expr.Meta{Key: expr.MetaKeyPKTTYPE, Register: 1}, kind)
}

// routed lets BGP and BFD in, from routers, and from no further away than they are.
// It goes before what connection tracking knows: a forged packet of a session that
// runs comes from far away too.
func (p plan) routed(s *sets, in *chain) []chain {
	bgp := guarded(s, "bgp", p.bgp, refusedBGPTTL, refusedBGP)
	bfd := guarded(s, "bfd", p.bfd, refusedBFDTTL, refusedBFD)
	far := guarded(s, "bfd_multihop", p.far, refusedBFDTTL, refusedBFD)
	if s.ports("bgp_port", p.bgpPorts...) {
		in.add("", ports(unix.IPPROTO_TCP, destPort, "bgp_port"), jump(bgp.name))
	}
	in.add("", port(unix.IPPROTO_TCP, sourcePort, bgpPort), answers(), jump(bgp.name))
	in.add("", port(unix.IPPROTO_UDP, destPort, bfdPort), jump(bfd.name))
	in.add("", port(unix.IPPROTO_UDP, destPort, bfdMultihop), jump(far.name))
	return []chain{bgp, bfd, far}
}

// guarded is a chain that takes packets from neighbours. All accepting rules go
// first: a neighbour may be in two groups while a change is brought about.
func guarded(s *sets, name string, all []neighbour, tooFar, unknown string) chain {
	c := chain{name: name + "_in"}
	var refused []rule
	for _, f := range families() {
		for _, g := range s.neighbours(name, f, all) {
			from := f.from(g.set)
			if g.links {
				from = f.fromLink(g.set)
			}
			c.add("", from, f.near(g.least), accept())
			if g.least != 0 {
				refused = append(refused, newRule("", from, refuse(tooFar)))
			}
		}
	}
	c.rules = append(c.rules, refused...)
	c.add("", refuse(unknown))
	return c
}

// served lets in what is for a service. By its destination alone: whatever brings
// it here, and whether or not the forwarder runs.
func (p plan) served(s *sets, in *chain) []chain {
	c := chain{name: "vip_in"}
	for _, f := range families() {
		v := s.vips(f, p.services)
		if v.all == "" {
			continue
		}
		in.add("", f.to(v.all), jump(c.name))
		if v.service != "" {
			c.add("", f.toService(v.service), accept())
		}
		if v.protocol != "" {
			c.add("", f.toProtocol(v.protocol), accept())
		}
		if v.any != "" {
			c.add("", f.to(v.any), accept())
		}
	}
	if len(c.rules) == 0 {
		return nil
	}
	c.add("", refuse(refusedVIP))
	return []chain{c}
}

// fleet lets in what boxes say to each other.
func (p plan) fleet(s *sets, in *chain) {
	sources := func(name string, all []netip.Addr) (from []match) {
		for _, f := range families() {
			if s.addresses(name+f.suffix, f, all) {
				from = append(from, f.from(name+f.suffix))
			}
		}
		return from
	}
	gossip, nodes := sources("gossip", p.gossip), sources("node", p.nodes)
	only := func(from []match, what match, counter string) {
		for _, m := range from {
			in.add("", what, m, accept())
		}
		in.add("", what, refuse(counter))
	}
	if s.ports("gossip_port", p.gossipPorts...) {
		only(gossip, ports(unix.IPPROTO_TCP, destPort, "gossip_port"), refusedGossip)
		only(gossip, ports(unix.IPPROTO_UDP, destPort, "gossip_port"), refusedGossip)
	}
	if s.ports("health_port", p.healthPorts...) {
		only(nodes, ports(unix.IPPROTO_TCP, destPort, "health_port"), refusedHealth)
	}
	// The forwarder has taken what is whole. What is left is for the kernel to
	// put together, or to refuse.
	only(nodes, port(unix.IPPROTO_UDP, destPort, edge.GUEPort), refusedTunnel)
	only(nodes, protocol(unix.IPPROTO_IPIP), refusedTunnel)
	only(nodes, protocol(unix.IPPROTO_IPV6), refusedTunnel)
}

// managed lets in who manages the box. Link-local addresses are no exception, though
// a box in rescue is reached by one: on the LAN of an exchange strangers have them.
//
// A network is a rule and not an element of a set: measured on Linux 6.18, a set of
// intervals that is being replaced does not find for a moment what it has, before
// and after.
func (p plan) managed(s *sets, in *chain) []chain {
	manage := chain{name: "management_in"}
	for _, n := range disjoint(p.nets) {
		manage.add("", familyOf(n.Addr()).within(n), accept())
	}
	what := ports(unix.IPPROTO_TCP, destPort, "management_port")
	switch made := s.ports("management_port", p.ports...); {
	case made && len(p.nets) == 0:
		in.add("", what, accept())
	case made:
		in.add("", what, jump(manage.name))
		in.add("", what, refuse(refusedManagement))
	}
	what = ports(unix.IPPROTO_TCP, destPort, "console_port")
	if s.ports("console_port", p.console...) {
		in.add("", what, jump(manage.name))
		in.add("", what, refuse(refusedManagement))
	}
	return []chain{manage}
}

// icmp takes the errors without which no MTU is found, what a link needs, the
// answers to our pings, and so many pings a second.
func icmp() chain {
	c := chain{name: "icmp_in"}
	const v4, v6 = unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6
	f := families()[1]
	for _, t := range []byte{0, 3, 11, 12} { // echo reply, unreachable, time exceeded, parameter problem
		c.add("", icmpType(v4, t), accept())
	}
	for _, t := range []byte{1, 2, 3, 4, 129} { // unreachable, too big, time exceeded, parameter problem, echo reply
		c.add("", icmpType(v6, t), accept())
	}
	// RFC 4861 section 6.1: what has passed a router is forged.
	for _, t := range []byte{134, 135, 136} { // router advertisement, neighbour solicitation, advertisement
		c.add("", icmpType(v6, t), f.only(), f.near(directHopTTL), accept())
	}
	for _, t := range []byte{130, 131, 132, 143} { // multicast listeners, for switches that look
		c.add("", icmpType(v6, t), f.within(linkLocal6()), accept())
	}
	for _, e := range []struct{ proto, request byte }{{v4, echoRequest4}, {v6, echoRequest6}} {
		within := match{&expr.Limit{Type: expr.LimitTypePkts, Rate: echoRate, Unit: expr.LimitTimeSecond, Burst: echoBurst}}
		c.add("", icmpType(e.proto, e.request), within, accept())
		c.add("", icmpType(e.proto, e.request), refuse(refusedEcho))
	}
	c.add("", refuse(refusedICMP))
	return c
}

// forward lets the answers to probes through, and what the probes ask. edged makes
// the box a router for that; the forwarder's packets are not seen here.
func forward() chain {
	c := newChain("forward", nftables.ChainHookForward, nftables.ChainPriorityFilter)
	c.drops = true
	c.add("", link(expr.MetaKeyIIFNAME, probeLink), accept())
	c.add("", link(expr.MetaKeyOIFNAME, probeLink), accept())
	c.add("", refuse(refusedForward))
	return c
}

// notTracked keeps what the box serves, and what is judged packet by packet, out of
// connection tracking, in both directions.
func (p plan) notTracked(s *sets) (in, out chain) {
	in = newChain("untracked_in", nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	out = newChain("untracked_out", nftables.ChainHookOutput, nftables.ChainPriorityRaw)
	for _, f := range families() {
		if name := "vip" + f.suffix; slices.ContainsFunc(s.all, func(o set) bool { return o.name == name }) {
			in.add("", f.to(name), untracked())
			out.add("", join(f.only(), match{f.load(f.source), lookup(name)}), untracked())
		}
	}
	for _, proto := range []byte{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, unix.IPPROTO_IPIP, unix.IPPROTO_IPV6} {
		in.add("", protocol(proto), untracked())
		out.add("", protocol(proto), untracked())
	}
	if s.ports("served_tcp", slices.Concat(p.bgpPorts, p.gossipPorts, p.healthPorts, p.ports, p.console)...) {
		in.add("", ports(unix.IPPROTO_TCP, destPort, "served_tcp"), untracked())
		out.add("", ports(unix.IPPROTO_TCP, sourcePort, "served_tcp"), untracked())
	}
	in.add("", port(unix.IPPROTO_TCP, sourcePort, bgpPort), answers(), untracked())
	out.add("", port(unix.IPPROTO_TCP, destPort, bgpPort), untracked())
	s.ports("served_udp", slices.Concat(p.gossipPorts, []uint16{bfdPort, bfdMultihop, edge.GUEPort})...)
	in.add("", ports(unix.IPPROTO_UDP, destPort, "served_udp"), untracked())
	out.add("", ports(unix.IPPROTO_UDP, destPort, "served_udp"), untracked())
	if len(p.gossipPorts) > 0 {
		out.add("", ports(unix.IPPROTO_UDP, sourcePort, "gossip_port"), untracked())
	}
	return in, out
}
