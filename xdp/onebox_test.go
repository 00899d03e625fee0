package xdp

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Addresses of the one-box namespace: up0 is the uplink, up1 another interface.
const (
	node4, node6       = "10.0.0.1", "fd00::1"
	near4, near6       = "10.0.0.2", "fd00::2"   // behind up0
	far4, far6         = "10.0.1.2", "fd00:1::2" // behind up1
	trust4, trust6     = "10.0.0.77", "fd00::77" // may send us tunnels
	client4, client6   = "198.51.100.9", "2001:db8:c::9"
	vip4, vip6         = "192.0.2.1", "2001:db8::1"
	blocked4, blocked6 = "203.0.113.7", "2001:db8:bad::7"
	nearMAC, farMAC    = "02:00:00:00:00:02", "02:00:00:00:01:02"
	portRemote         = "80" // TCP and UDP, GUE, near
	portIPIP           = "81" // TCP, IPIP, near
	portCross          = "82" // TCP, GUE, near of the other family
	portCrossIPIP      = "83" // TCP, IPIP, near of the other family
	portFar            = "84" // TCP, GUE, far
	portLocal          = "85" // TCP, this box
	portEmpty          = "86" // TCP, no backend
	portBroken         = "87" // TCP, near; the tests break it
	portLimited        = "88" // TCP, near, one SYN a second
	portLimitedSource  = "89" // TCP, near, one SYN a second of a source
	portFirstBadRoute  = 100  // TCP, GUE, one port per bad route
)

// badRoutes are backends that the kernel's routes do not reach.
var badRoutes = []struct {
	v4, v6 string
	want   edgeVerdict
}{
	{"10.9.1.1", "fd09:1::1", edgeVerdictDROP_FIB_BLACKHOLE},
	{"10.9.2.1", "fd09:2::1", edgeVerdictDROP_FIB_UNREACHABLE},
	{"10.9.3.1", "fd09:3::1", edgeVerdictDROP_FIB_PROHIBIT},
	{"10.0.0.5", "fd00::5", edgeVerdictDROP_FIB_NOT_FORWARDED}, // another address of this box
	{"10.9.4.1", "fd09:4::1", edgeVerdictDROP_FIB_TUNNEL},
	{"10.0.0.99", "fd00::99", edgeVerdictDROP_FIB_NO_NEIGHBOUR},
}

// oneBox makes a namespace with a loaded forwarder that has every kind of
// service, and static neighbours, so that no packet ever leaves.
func oneBox(t testing.TB) device {
	t.Helper()
	ns := newNS(t)
	// The peers must not say a word: each packet of a test is counted.
	sysctl(t, "ipv6/conf/default/disable_ipv6", "1")
	veth(t, "up0", "peer0")
	setMAC(t, "up0", ourMAC)
	veth(t, "up1", "peer1")
	sysctl(t, "ipv6/conf/up0/disable_ipv6", "0")
	sysctl(t, "ipv6/conf/up1/disable_ipv6", "0")
	for dev, cidrs := range map[string][]string{
		"up0": {node4 + "/24", node6 + "/64", "10.0.0.5/24", "fd00::5/64"},
		"up1": {"10.0.1.1/24", "fd00:1::1/64"},
	} {
		for _, cidr := range cidrs {
			addAddr(t, dev, cidr)
		}
	}
	addNeighbour(t, "up0", near4, nearMAC)
	addNeighbour(t, "up0", near6, nearMAC)
	addNeighbour(t, "up1", far4, farMAC)
	addNeighbour(t, "up1", far6, farMAC)
	for i, kind := range []int{unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT} {
		for _, a := range []string{badRoutes[i].v4, badRoutes[i].v6} {
			check(t, netlink.RouteAdd(&netlink.Route{Dst: host(a), Type: kind}))
		}
	}
	up0, err := netlink.LinkByName("up0")
	check(t, err)
	segments := &netlink.SEG6Encap{Mode: nl.SEG6_IPTUN_MODE_ENCAP, Segments: []net.IP{net.ParseIP(near6)}}
	for _, a := range []string{badRoutes[4].v4, badRoutes[4].v6} {
		check(t, netlink.RouteAdd(&netlink.Route{Dst: host(a), LinkIndex: up0.Attrs().Index, Encap: segments}))
	}
	f := openForwarder(t, Options{Dir: bpffs(t) + "/edge", Interfaces: []string{"up0"}, HalfFlows: roomyHalf})
	apply(t, f, oneBoxTable())
	check(t, f.Block(t.Context(), []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:bad::/48")}))
	up1, err := netlink.LinkByName("up1")
	check(t, err)
	return device{f, up0.Attrs().Index, up1.Attrs(), ns}
}

func setMAC(t testing.TB, name string, mac []byte) {
	t.Helper()
	dev, err := netlink.LinkByName(name)
	check(t, err)
	check(t, netlink.LinkSetHardwareAddr(dev, mac))
}

func host(a string) *net.IPNet {
	ip := addr(a)
	return &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
}

func oneBoxTable() edge.Table {
	t := edge.Table{
		Source4: addr(node4), Source6: addr(node6), Seed: testSeed,
		Trusted: []netip.Addr{addr(trust4), addr(trust6)},
	}
	for _, v := range []struct{ vip, near, cross, far, tag string }{
		{vip4, near4, near6, far4, "4"}, {"[" + vip6 + "]", near6, near4, far6, "6"},
	} {
		add := func(port string, p edge.Protocol, e edge.Encap, backends ...edge.TableBackend) {
			id := edge.ServiceID(p.String() + "-" + port + "-" + v.tag)
			t.Services = append(t.Services, edge.TableService{
				ID: id, VIP: addrPort(v.vip + ":" + port), Protocol: p, Encap: e, Backends: backends})
		}
		to := func(a string) edge.TableBackend { return edge.TableBackend{ID: "b", Addr: addr(a), Weight: 1} }
		add(portRemote, edge.TCP, edge.EncapGUE, to(v.near))
		add(portRemote, edge.UDP, edge.EncapGUE, to(v.near))
		add(portIPIP, edge.TCP, edge.EncapIPIP, to(v.near))
		add(portCross, edge.TCP, edge.EncapGUE, to(v.cross))
		add(portCrossIPIP, edge.TCP, edge.EncapIPIP, to(v.cross))
		add(portFar, edge.TCP, edge.EncapGUE, to(v.far))
		add(portLocal, edge.TCP, edge.EncapGUE, edge.TableBackend{ID: "b", Addr: addr(v.near), Weight: 1, Local: true})
		add(portEmpty, edge.TCP, edge.EncapGUE)
		add(portBroken, edge.TCP, edge.EncapGUE, to(v.near))
		add(portLimited, edge.TCP, edge.EncapGUE, to(v.near))
		t.Services[len(t.Services)-1].SYNLimit = edge.SYNLimit{Rate: 1, Burst: 1}
		add(portLimitedSource, edge.TCP, edge.EncapGUE, to(v.near))
		t.Services[len(t.Services)-1].SYNLimit = edge.SYNLimit{SourceRate: 1, SourceBurst: 1}
		for i, bad := range badRoutes {
			a := bad.v4
			if v.tag == "6" {
				a = bad.v6
			}
			add(strconv.Itoa(portFirstBadRoute+i), edge.TCP, edge.EncapGUE, to(a))
		}
	}
	return t
}
