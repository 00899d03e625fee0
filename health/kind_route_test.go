package health

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// TestRoute asks a real kernel, in a network namespace of its own, and on the
// thread that is in it.
func TestRoute(t *testing.T) {
	t.Parallel()
	apart(t, unix.CLONE_NEWNET, func() {
		for _, line := range []string{
			"ip link set lo up",
			"ip link add live type veth peer name live2", "ip link set live up", "ip link set live2 up",
			"ip link add cut type veth peer name cut2", "ip link set cut up",
			"ip addr add 10.9.0.1/24 dev live", "ip addr add 10.9.1.1/24 dev cut", "ip addr add fd09::1/64 dev live nodad",
			"ip route add default via 10.9.0.2", "ip route add 192.0.2.0/24 via 10.9.0.2",
			"ip route add 203.0.113.0/24 dev live table 100",
			"ip route add blackhole 198.51.100.0/24", "ip route add unreachable 198.51.101.0/24 metric 5",
			"ip route add 198.18.0.0/16 nexthop via 10.9.0.2 dev live nexthop via 10.9.1.2 dev cut onlink",
			"ip route add 2001:db8::/32 via fd09::2", "ip route add blackhole 2001:db8:9::/48", "ip route add default via fd09::2",
			"ip route add 192.0.2.0/25 via 10.9.1.2 dev cut onlink",
			"ip nexthop add id 7 via 10.9.0.2 dev live", "ip route add 198.19.0.0/16 nhid 7",
			"ip nexthop add id 8 group 7", "ip route add 198.20.0.0/16 nhid 8",
		} {
			tool(t, line)
		}
		routes(t, map[string]string{
			"0.0.0.0/0": "", "::/0": "", "192.0.2.0/24": "", "192.0.2.77/24": "", "10.9.0.0/24": "", "2001:db8::/32": "", "198.18.0.0/16": "", "198.19.0.0/16 live": "", "198.20.0.0/16 live": "",
			"0.0.0.0/0 live": "", "192.0.2.0/24 live": "", "198.18.0.0/16 live": "", "203.0.113.0/24 table 100": "", "10.9.0.0/24 table 254": "",
			"192.0.2.0/23":              "no route to 192.0.2.0/23",
			"192.0.2.1/32":              "no route to 192.0.2.1/32",
			"203.0.113.0/24":            "no route to 203.0.113.0/24",
			"192.0.2.0/24 table 100":    "no route to 192.0.2.0/24 in table 100",
			"192.0.2.0/24 table 999999": "no route to 192.0.2.0/24 in table 999999",
			"2001:db8::/33":             "no route to 2001:db8::/33",
			"0.0.0.0/1":                 "no route to 0.0.0.0/1",
			"198.51.100.0/24":           "route to 198.51.100.0/24 forwards nothing: it is not of type unicast",
			"198.51.101.0/24":           "route to 198.51.101.0/24 forwards nothing",
			"2001:db8:9::/48":           "route to 2001:db8:9::/48 forwards nothing",
			"192.0.2.0/25":              "route to 192.0.2.0/25 is dead: its link is down",
			"192.0.2.0/25 cut":          "route to 192.0.2.0/25 is dead: its link is down",
			"198.18.0.0/16 cut":         "route to 198.18.0.0/16 is dead: its link is down",
			"192.0.2.0/24 lo":           "route to 192.0.2.0/24 does not point to lo",
			"192.0.2.0/24 none":         "interface none does not exist",
		})
		tool(t, "ip link set live2 down")
		gateway := edge.Probe{Net: netip.MustParsePrefix("0.0.0.0/0")}
		eventually(t, "the kernel knows it", func() bool { return probeRoute(t.Context(), gateway) != nil })
		routes(t, map[string]string{"0.0.0.0/0": "route to 0.0.0.0/0 is dead: its link is down", "198.18.0.0/16": "is dead"})
		tool(t, "ip link del live")
		routes(t, map[string]string{"0.0.0.0/0": "no route to 0.0.0.0/0", "::/0": "no route to ::/0"})
		ctx, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		expect(t, probeRoute(ctx, edge.Probe{Net: netip.MustParsePrefix("1.2.3.0/24")}), "unknown: the routing table was not read in time")
	})
	expect(t, probeRoute(t.Context(), edge.Probe{}), "unknown: no prefix")
}

// routes runs rows of "prefix [interface | table number]".
func routes(t *testing.T, rows map[string]string) {
	t.Helper()
	for row, want := range rows {
		p := edge.Probe{Kind: edge.ProbeRoute}
		var prefix string
		if n, _ := fmt.Sscanf(row, "%s table %d", &prefix, &p.Table); n < 2 {
			_, _ = fmt.Sscanf(row, "%s %s", &prefix, &p.Interface)
		}
		p.Net = netip.MustParsePrefix(prefix)
		err := try(t, p)
		if expect(t, err, want); t.Failed() {
			t.Errorf("%s: %v", row, err)
			return
		}
	}
}

// TestRouteHops is about next hops that the kernel of a test does not show.
func TestRouteHops(t *testing.T) {
	t.Parallel()
	p := edge.Probe{Net: netip.MustParsePrefix("0.0.0.0/0"), Interface: "x"}
	for _, c := range []struct {
		hops []*netlink.NexthopInfo
		want string
	}{
		{[]*netlink.NexthopInfo{{LinkIndex: 1}, {LinkIndex: 2}}, ""},
		{[]*netlink.NexthopInfo{{LinkIndex: 1}, {LinkIndex: 2, Flags: unix.RTNH_F_DEAD}}, "is dead"},
		{[]*netlink.NexthopInfo{{LinkIndex: 1}}, "does not point to x"},
	} {
		s := routeSearch{net: p.Net, link: 2}
		s.look(netlink.Route{Type: unix.RTN_UNICAST, MultiPath: c.hops})
		expect(t, s.verdict(p), c.want)
	}
}
