package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// Uplinks is one site with one box, and two routers that it can have sessions
// with: r-a, BIRD, on its link, and r-b, FRR, one hop behind r-a; see AddPeer.
// There is a client at each router.
func Uplinks() Topology {
	return Topology{
		Routers: []RouterSpec{{"r-a", BIRD}, {"r-b", FRR}},
		Cores:   []CoreSpec{{"r-a", "r-b", 0}},
		Sites:   []SiteSpec{{"a", "r-a", []BoxSpec{{"a1", true}}}},
		Regions: []RegionSpec{{"east", "r-a", 1, 500}},
		Servers: []ServerSpec{{"s1", "r-a"}, {"s2", "r-b"}},
		Clients: []ClientSpec{{"client-a", "r-a"}, {"client-b", "r-b"}},
	}
}

// Tell enters lines into the configuration of a router of the kind FRR, as after
// "configure terminal".
func (r *Router) Tell(ctx context.Context, lines ...string) error {
	if r.plan.Kind != FRR {
		return fmt.Errorf("configure %s: it does not run FRR", r.name)
	}
	args := []string{"-c", "configure terminal"}
	for _, line := range lines {
		args = append(args, "-c", line)
	}
	out, err := r.Run(ctx, "vtysh", args...)
	if err != nil {
		return fmt.Errorf("configure %s: %w", r.name, err)
	}
	// vtysh ends with 0 whatever it was told.
	if strings.Contains(string(out), "%") {
		return fmt.Errorf("configure %s: %s", r.name, out)
	}
	return nil
}

// AddPeer has a router of the kind FRR take sessions from addresses that are not
// on its link, as it does from its own boxes: it accepts the service prefixes
// and sends nothing. It no longer sends the service prefixes to the routers
// between: the path of a box may become longer than theirs, and packets would go
// round.
func (r *Router) AddPeer(ctx context.Context, peers ...netip.Addr) error {
	lines := []string{
		// A route-map that is read makes bgpd ask all peers for everything again, 5 s
		// later. This has it done at once.
		"bgp route-map delay-timer 0",
		"route-map not-service4 deny 10", "match ip address prefix-list service4", "route-map not-service4 permit 20",
		"route-map not-service6 deny 10", "match ipv6 address prefix-list service6", "route-map not-service6 permit 20",
		fmt.Sprintf("router bgp %d", r.plan.ASN),
	}
	for _, p := range peers {
		lines = append(lines,
			fmt.Sprintf("neighbor %s remote-as %d", p, boxASN), fmt.Sprintf("neighbor %s passive", p),
			fmt.Sprintf("neighbor %s ebgp-multihop 2", p), fmt.Sprintf("neighbor %s advertisement-interval 0", p))
	}
	for _, family := range []string{"4", "6"} {
		lines = append(lines, fmt.Sprintf("address-family ipv%s unicast", family))
		for _, p := range peers {
			lines = append(lines, fmt.Sprintf("neighbor %s activate", p),
				fmt.Sprintf("neighbor %s route-map from-box%s in", p, family), fmt.Sprintf("neighbor %s route-map none out", p))
		}
		for _, c := range r.plan.Cores {
			lines = append(lines, fmt.Sprintf("neighbor %s route-map not-service%s out", c.Peer, family))
		}
		lines = append(lines, "exit-address-family")
	}
	return r.Tell(ctx, lines...)
}

// CoreAddrs are the router's own addresses on its link to another one.
func (r *Router) CoreAddrs(to string) (v4, v6 netip.Addr, err error) {
	for _, c := range r.plan.Cores {
		if c.Name == to {
			return c.Local, c.Local6, nil
		}
	}
	return v4, v6, fmt.Errorf("%s has no link to %s", r.name, to)
}
