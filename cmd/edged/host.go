package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/nft"
)

// routeProtocol marks the routes that edged adds, so that an operator can tell
// them ("ip route show proto 77").
const routeProtocol = 77

// prepareHost gives the kernel what the services need: the VIPs that this box
// serves on lo, a blackhole for the rest of each prefix (a packet to an address
// that nobody serves must not go back to the router that sent it here), the
// settings of the uplinks, and the rules of the packet filter. Everything stays
// when edged stops.
//
// That the rules are refused is no error here, since what they are for is not
// worth an outage. tidyHost, which follows whenever a configuration has come into
// force, sets them too and tells.
func prepareHost(c *edge.Config, guards ...nft.Guard) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	errs := []error{netlink.LinkSetUp(lo)}
	for _, s := range c.Fleet.Services {
		if servedHere(c, s) {
			errs = append(errs, addAddress(lo, s.VIP.Addr()))
		}
	}
	for _, p := range c.Fleet.Prefixes {
		errs = append(errs, blackhole(p.Net))
	}
	errs = append(errs, forward(c.Local))
	_ = filter(c, guards) // apply tries again, and tells
	return errors.Join(errs...)
}

// filter has the kernel hold the rules of the packet filter for c and no others.
// If it does already nothing is written, so it may be called at any time: a
// firewall that is loaded anew ("flush ruleset") takes our rules with it.
func filter(c *edge.Config, guards []nft.Guard) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	here, err := netlink.AddrList(lo, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of lo: %w", err)
	}
	mtu, err := uplinkMTU(c.Local.Forwarder.Interfaces)
	if err != nil {
		return err
	}
	return nft.Apply(filterRules(c, here, mtu), guards...)
}

// bfdPort is that of single-hop BFD (RFC 5881 section 4).
const bfdPort = 3784

// bgpGuards keep off what comes from further away than the peers with GTSM are
// (RFC 5082). With GTSM for every peer nobody else needs the port either. They are
// those of the settings in force: guards for a session that is still to be opened
// would end the one that runs.
func bgpGuards(s edge.Speaker) []nft.Guard {
	var out []nft.Guard
	all, lowest := len(s.Peers) > 0 && s.Listen != 0, 255
	direct := func(p edge.Peer) bool { return p.BFD != nil && p.Multihop == 0 }
	if slices.ContainsFunc(s.Peers, direct) {
		out = append(out, nft.Guard{UDP: true, Listen: bfdPort, MinTTL: 255})
	}
	for _, p := range s.Peers {
		if p.TTLSecurity == 0 {
			all = false
			continue
		}
		lowest = min(lowest, 256-p.TTLSecurity)
		bare := p.Addr.WithZone("")
		// The rules know no interface: of peers that share a link-local address, the
		// one that asks for least counts. Their sockets check what each asks for.
		laxer := func(o edge.Peer) bool {
			return o.Addr.WithZone("") == bare && (o.TTLSecurity == 0 || o.TTLSecurity > p.TTLSecurity)
		}
		if slices.ContainsFunc(s.Peers, laxer) {
			continue
		}
		out = append(out, nft.Guard{Peer: bare, Listen: uint16(s.Listen), MinTTL: uint8(256 - p.TTLSecurity)})
	}
	if all {
		out = append(out, nft.Guard{Listen: uint16(s.Listen), MinTTL: uint8(lowest)})
	}
	return out
}

// filterRules are the services whose VIP is one of the addresses of this box,
// those of lo. So a service keeps its rules for as long as its address is there:
// flows that drain from this box need them when it serves no longer.
//
// The MSS leaves room for the outer headers with which other boxes send us what
// is ours; mtu is that of the links between them, in bytes.
func filterRules(c *edge.Config, here []netlink.Addr, mtu int) nft.Rules {
	var rules nft.Rules
	outer6 := c.Self().Addr6.IsValid()
	for _, s := range c.Fleet.Services {
		vip := s.VIP.Addr()
		if !slices.ContainsFunc(here, func(a netlink.Addr) bool { return a.IP.Equal(vip.AsSlice()) }) {
			continue
		}
		mss := nft.MSS(mtu, nft.Overhead(s.Encap, outer6), vip)
		rules = append(rules, nft.Service{VIP: s.VIP, Protocol: s.Protocol, MSS: mss})
	}
	return rules
}

// uplinkMTU is the lowest MTU of the uplinks: a packet may come up any of them.
func uplinkMTU(names []string) (int, error) {
	lowest := 0
	for _, name := range names {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return 0, fmt.Errorf("find %s: %w", name, err)
		}
		if mtu := l.Attrs().MTU; lowest == 0 || mtu < lowest {
			lowest = mtu
		}
	}
	return lowest, nil
}

// servedHere says whether packets of s can be passed to this box's own stack.
func servedHere(c *edge.Config, s edge.Service) bool {
	for _, t := range targets(c, s) {
		if t.local {
			return true
		}
	}
	return false
}

func addAddress(l netlink.Link, a netip.Addr) error {
	err := netlink.AddrReplace(l, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen())), Flags: unix.IFA_F_NODAD})
	if err != nil {
		return fmt.Errorf("add %s to lo: %w", a, err)
	}
	return nil
}

// tidyHost takes back what before needed and next does not.
func tidyHost(before, next *edge.Config, guards ...nft.Guard) error {
	var errs []error
	for _, s := range before.Fleet.Services {
		used := slices.ContainsFunc(next.Fleet.Services, func(o edge.Service) bool { return o.VIP.Addr() == s.VIP.Addr() })
		if !used && servedHere(before, s) {
			errs = append(errs, removeAddress(s.VIP.Addr()))
		}
	}
	for _, p := range before.Fleet.Prefixes {
		if has(next.Fleet.Prefixes, p.Net) {
			continue
		}
		err := netlink.RouteDel(blackholeRoute(p.Net))
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("remove blackhole route for %s: %w", p.Net, err))
		}
	}
	errs = append(errs, filter(next, guards))
	return errors.Join(errs...)
}

// removeAddress takes a VIP off lo that no service uses any more.
func removeAddress(a netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	err = netlink.AddrDel(lo, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen()))})
	if err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("remove %s from lo: %w", a, err)
	}
	return nil
}

// blackholeRoute is the last choice of all routes for p.
func blackholeRoute(p netip.Prefix) *netlink.Route {
	return &netlink.Route{Dst: ipNet(p), Type: unix.RTN_BLACKHOLE, Protocol: routeProtocol, Priority: 1 << 20}
}

func blackhole(p netip.Prefix) error {
	err := netlink.RouteReplace(blackholeRoute(p))
	if err != nil {
		return fmt.Errorf("add blackhole route for %s: %w", p, err)
	}
	return nil
}

// forward sets what the kernel needs to look up a route for a packet that is
// not its own: bpf_fib_lookup answers "forwarding is off" else. An uplink that
// takes router advertisements goes on doing so (accept_ra 2), which forwarding
// would end.
//
// The answers to probes are forwarded from the uplinks to the vantage point.
// Where another node answers, the source is a VIP, which is a local address here
// too: accept_local keeps the kernel from calling it a martian. IPv6 forwards
// packets of the stack only with the switch of the whole host.
func forward(l edge.Local) error {
	names := slices.Clone(l.Forwarder.Interfaces)
	probes := l.ProbeSource4.IsValid() || l.ProbeSource6.IsValid()
	if probes {
		names = append(names, vantageNear)
	}
	var errs []error
	for _, name := range names {
		errs = append(errs,
			sysctl("ipv4/conf/"+name+"/forwarding", "1"),
			keepAdvertisements(name),
			sysctl("ipv6/conf/"+name+"/forwarding", "1"),
		)
		if probes {
			errs = append(errs, sysctl("ipv4/conf/"+name+"/accept_local", "1"), sysctl("ipv4/conf/"+name+"/rp_filter", "0"))
		}
	}
	if l.ProbeSource6.IsValid() {
		errs = append(errs, sysctl("ipv6/conf/all/forwarding", "1"))
	}
	return errors.Join(errs...)
}

func keepAdvertisements(name string) error {
	b, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "accept_ra"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read sysctl: %w", err)
	}
	if strings.TrimSpace(string(b)) != "1" {
		return nil
	}
	return sysctl("ipv6/conf/"+name+"/accept_ra", "2")
}

// sysctl sets a key below net. A kernel without IPv6 has no ipv6 keys, which is
// as good as off.
func sysctl(key, value string) error {
	path := filepath.Join("/proc/sys/net", key)
	err := os.WriteFile(path, []byte(value), 0o644)
	if errors.Is(err, os.ErrNotExist) && strings.HasPrefix(key, "ipv6/") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("set sysctl: %w", err)
	}
	return nil
}
