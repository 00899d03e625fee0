package xdp

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/vishvananda/netlink"
)

// The VIPs of the benchmarks, besides vip4 and vip6.
const (
	vipQUIC, vipWhole = "192.0.2.3", "192.0.2.4" // the second with all ports
	benchBackends     = 100
)

// Backends are behind a router that is behind up0.
func benchBackend4(i int) string { return fmt.Sprintf("10.1.%d.%d", i/256, i%256) }
func benchBackend6(i int) string { return fmt.Sprintf("fd01::%x", i+1) }

func benchServerID(i int) string { return fmt.Sprintf("%04d", i) }

func benchPool(n int, address func(int) string) []edge.TableBackend {
	all := make([]edge.TableBackend, n)
	for i := range all {
		all[i] = edge.TableBackend{ID: edge.BackendID(fmt.Sprint("b", i)), Addr: addr(address(i)), Weight: 1}
	}
	return all
}

// benchService tracks UDP too.
func benchService(id, vip string, p edge.Protocol, backends []edge.TableBackend) edge.TableService {
	return edge.TableService{ID: edge.ServiceID(id), VIP: addrPort(vip), Protocol: p, Encap: edge.EncapGUE,
		Affinity: edge.AffinityClientIPPortProto, Backends: backends}
}

func benchTableOf(services ...edge.TableService) edge.Table {
	return edge.Table{Source4: addr(node4), Source6: addr(node6), Seed: testSeed, Services: services}
}

func benchTable() edge.Table {
	t := benchTableOf(
		benchService("tcp4", vip4+":80", edge.TCP, benchPool(benchBackends, benchBackend4)),
		benchService("udp4", vip4+":80", edge.UDP, benchPool(benchBackends, benchBackend4)),
		benchService("tcp6", "["+vip6+"]:80", edge.TCP, benchPool(benchBackends, benchBackend6)),
		benchService("whole4", vipWhole+":0", edge.TCP, benchPool(benchBackends, benchBackend4)),
	)
	t.Trusted = []netip.Addr{addr(trust4)}
	quic := benchService("quic4", vipQUIC+":443", edge.UDP, benchPool(benchBackends, benchBackend4))
	quic.QUIC = &edge.QUIC{Length: 4}
	for i := range quic.Backends {
		quic.Backends[i].ServerID = benchServerID(i)
	}
	t.Services = append(t.Services, quic)
	return t
}

// benchBox is a namespace with a loaded forwarder and its routes.
func benchBox(b *testing.B, flows, halfFlows int) device {
	b.Helper()
	ns := newNS(b)
	sysctl(b, "ipv6/conf/default/disable_ipv6", "1")
	veth(b, "up0", "peer0")
	setMAC(b, "up0", ourMAC)
	sysctl(b, "ipv6/conf/up0/disable_ipv6", "0")
	addAddr(b, "up0", node4+"/24")
	addAddr(b, "up0", node6+"/64")
	addNeighbour(b, "up0", near4, nearMAC)
	addNeighbour(b, "up0", near6, nearMAC)
	for cidr, gw := range map[string]string{"10.1.0.0/16": near4, "fd01::/64": near6} {
		_, dst, err := net.ParseCIDR(cidr)
		check(b, err)
		check(b, netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(gw)}))
	}
	up0, err := netlink.LinkByName("up0")
	check(b, err)
	f := openForwarder(b, Options{Dir: bpffs(b) + "/edge", Interfaces: []string{"up0"}, Flows: flows, HalfFlows: halfFlows})
	apply(b, f, benchTable())
	return device{Forwarder: f, ingress: up0.Attrs().Index, ns: ns}
}

// forwarderCase is a benchCase with what must have become of its packets.
type forwarderCase struct {
	benchCase
	verdict edgeVerdict
	service string // whose counter by goes up with each packet
	by      string
}

// forwarderCases are the cases of the data plane. Their floor is a packet that
// is not IP: what the counting of a packet and the call of the program take.
func (d device) forwarderCases() []*forwarderCase {
	tcp := tcpPacket(client4+":1000", vip4+":80").frame()
	tcp6 := tcpPacket("["+client6+"]:1000", "["+vip6+"]:80").frame()
	back := tcpPacket(vip4+":80", client4+":1000").ip()
	inner := tcpPacket(client4+":1000", vip4+":80").ip()
	known := otherSource(tcp)
	floor := &forwarderCase{benchCase: benchCase{name: "floor", frame: always(with(tcp, 12, 0x08, 0x06))}, verdict: edgeVerdictPASS_NOT_IP}
	all := []*forwarderCase{
		floor,
		{benchCase{name: "pass_nonvip", frame: always(tcpPacket(client4+":1", "203.0.113.5:80").frame())}, edgeVerdictPASS_NOT_VIP, "", ""},
		{benchCase{name: "v4_tcp_hit", frame: always(tcp), against: "lower_bound_v4"}, edgeVerdictTX_BACKEND, "tcp4", "table"},
		{benchCase{name: "v6_tcp_hit", frame: always(tcp6), against: "lower_bound_v6"}, edgeVerdictTX_BACKEND, "tcp6", "table"},
		{benchCase{name: "v4_tcp_hit_spread", frame: func(i int) []byte { return known(i * 7919 % benchKnown) }, against: "v4_tcp_hit"}, edgeVerdictTX_BACKEND, "tcp4", "table"},
		{benchCase{name: "v4_tcp_miss", frame: inTurn(freshFlows(tcp, flagSYN)), against: "lower_bound_v4"}, edgeVerdictTX_BACKEND, "tcp4", "ring"},
		{benchCase{name: "v6_tcp_miss", frame: inTurn(freshFlows(tcp6, flagSYN)), against: "lower_bound_v6"}, edgeVerdictTX_BACKEND, "tcp6", "ring"},
		{benchCase{name: "v4_tcp_miss_spread", frame: freshFlows(tcp, flagSYN), against: "v4_tcp_miss"}, edgeVerdictTX_BACKEND, "tcp4", "ring"},
		{benchCase{name: "v6_tcp_miss_spread", frame: freshFlows(tcp6, flagSYN), against: "v6_tcp_miss"}, edgeVerdictTX_BACKEND, "tcp6", "ring"},
		{benchCase{name: "v4_tcp_miss_no_syn_spread", frame: freshFlows(with(tcp, srcAt4, 10), flagACK), against: "v4_tcp_miss"}, edgeVerdictTX_BACKEND, "tcp4", "ring"},
		{benchCase{name: "v4_udp_hit", frame: always(udpPacket(client4+":1000", vip4+":80").frame()), against: "lower_bound_v4"}, edgeVerdictTX_BACKEND, "udp4", "table"},
		{benchCase{name: "v4_icmp_error", frame: always(icmpError4(back[:28])), against: "lower_bound_v4"}, edgeVerdictTX_BACKEND, "tcp4", "table"},
		{benchCase{name: "v4_decap", frame: always(wrap(addr(trust4), addr(node4), true, inner))}, edgeVerdictPASS_DECAP, "", ""},
		{benchCase{name: "echo", frame: always(echo4(vip4))}, edgeVerdictTX_ECHO, "", ""},
		{benchCase{name: "fragment", frame: always(laterFragment4(vipWhole)), against: "lower_bound_v4"}, edgeVerdictTX_BACKEND, "whole4", "table"},
		{benchCase{name: "quic_short", frame: always(quicShort4(vipQUIC+":443", benchServerID(7))), against: "lower_bound_v4"}, edgeVerdictTX_BACKEND, "quic4", "server_id"},
	}
	return d.finish(all, floor)
}

// near is a client that is on no blocklist, but whose neighbours are.
const near = "50.1.2.3"

// blocklistCases are what a blocklist costs: with it every packet to a VIP is
// looked up there.
func (d device) blocklistCases(list []netip.Prefix) []*forwarderCase {
	tcp := tcpPacket(near+":1000", vip4+":80").frame()
	blocked := func(i int) []byte {
		return tcpPacket(netip.AddrPortFrom(list[i*7919%len(list)].Addr(), 1000).String(), vip4+":80").frame()
	}
	floor := &forwarderCase{benchCase: benchCase{name: "floor_blocklist", frame: always(with(tcp, 12, 0x08, 0x06))}, verdict: edgeVerdictPASS_NOT_IP}
	all := []*forwarderCase{
		floor,
		{benchCase{name: "drop_blocked", frame: always(blocked(0))}, edgeVerdictDROP_BLOCKED, "", ""},
		{benchCase{name: "drop_blocked_spread", frame: blocked, against: "drop_blocked"}, edgeVerdictDROP_BLOCKED, "", ""},
		{benchCase{name: "v4_tcp_hit_blocklist", frame: always(tcp), against: "v4_tcp_hit"}, edgeVerdictTX_BACKEND, "tcp4", "table"},
		{benchCase{name: "v4_tcp_miss_blocklist", frame: unlisted(tcp, list), against: "v4_tcp_miss_spread"}, edgeVerdictTX_BACKEND, "tcp4", "ring"},
	}
	return d.finish(all, floor)
}

func (d device) finish(all []*forwarderCase, floor *forwarderCase) []*forwarderCase {
	for _, c := range all {
		c.prog, c.xdp = d.program(), xdpCode[c.verdict>>6]
		if c != floor {
			c.floor = &floor.benchCase
		}
	}
	return all
}

// freshFlows is another flow each time, and none of the known ones.
func freshFlows(frame []byte, flags byte) func(int) []byte {
	at := portAt4 + 13
	if frame[12] == 0x86 {
		at = portAt6 + 13
	}
	f := with(frame, at, flags)
	adjust(f[at+3:], frame[at-1:at+1], f[at-1:at+1])
	source := otherSource(f)
	return func(i int) []byte { return source(benchKnown + i) }
}

// inTurn repeats the first flows, so that what they touch stays in the processor's
// cache within a batch, as it does with the one flow of a hit. A SYN is a new
// connection each time, whatever has had the same ports before.
func inTurn(frame func(int) []byte) func(int) []byte {
	return func(i int) []byte { return frame(i % 8) }
}

// unlisted is a new flow each time, from anywhere in the /8 of a frame but where the
// list has something in the same /24.
func unlisted(frame []byte, list []netip.Prefix) func(int) []byte {
	listed := make(map[[3]byte]bool)
	for _, p := range list {
		a := p.Addr().As4()
		listed[[3]byte(a[:])] = true
	}
	source, next := otherSource(with(frame, portAt4+13, flagACK)), uint32(0)
	return func(int) []byte {
		for {
			next += 0x9e3779b1
			if f := source(int(next >> 8)); !listed[[3]byte(f[srcAt4:])] {
				return f
			}
		}
	}
}

// establish opens the flows that are to be hit: the first packet of each puts
// it with the half-open ones, the second into the flow table.
func (d device) establish(b *testing.B) {
	feed := func(frame []byte) { newCall(d.program(), frame, d.ingress).run(b) }
	tcp := tcpPacket(client4+":1000", vip4+":80").frame()
	known := otherSource(tcp)
	for i := range benchKnown {
		feed(known(i))
		feed(known(i))
	}
	for range 2 {
		feed(tcp)
		feed(tcpPacket(near+":1000", vip4+":80").frame())
		feed(tcpPacket("["+client6+"]:1000", "["+vip6+"]:80").frame())
		feed(udpPacket(client4+":1000", vip4+":80").frame())
		feed(laterFragment4(vipWhole))
	}
}

// verify runs a batch of a case and fails unless the counters say that every
// packet went the way that is to be measured.
func (d device) verify(b *testing.B, c *forwarderCase) {
	b.Helper()
	by := func() uint64 {
		for _, s := range stats(b, d.Forwarder).Services {
			if string(s.Service) == c.service {
				return s.By[c.by]
			}
		}
		return 0
	}
	before, beforeBy := stats(b, d.Forwarder), by()
	calls := c.batch(d.ingress)
	for _, x := range calls {
		x.run(b)
	}
	want := d.name(c.verdict)
	left := uint64(0)
	for i, v := range stats(b, d.Forwarder).Verdicts {
		n := v.Count - before.Verdicts[i].Count
		if name := fmt.Sprintf("%s %s", v.Action, v.Reason); name == want {
			left = n
		} else if n > 0 {
			b.Errorf("%s: %d packets left as %s, want %s", c.name, n, name, want)
		}
	}
	if left != batchSize {
		b.Fatalf("%s: %d of %d packets left as %s", c.name, left, batchSize, want)
	}
	if n := by() - beforeBy; c.service != "" && n != batchSize {
		b.Fatalf("%s: %d of %d packets were decided by %s", c.name, n, batchSize, c.by)
	}
}
