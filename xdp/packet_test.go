package xdp

import (
	"bytes"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// packetCase is one packet and how it must leave.
type packetCase struct {
	name  string
	frame []byte
	want  edgeVerdict
}

func TestEveryVerdict(t *testing.T) {
	d := oneBox(t)
	reached := make(map[edgeVerdict]bool)
	for _, cases := range [][]packetCase{
		plainCases(false), plainCases(true), tunnelCases(addr(trust4), addr(node4)), tunnelCases(addr(trust6), addr(node6)),
		onlyIPv4(), onlyIPv6(),
	} {
		for _, c := range cases {
			r := d.run(t, c.frame)
			if r.verdict != c.want {
				t.Errorf("%s: %s, want %s", c.name, d.name(r.verdict), d.name(c.want))
			}
			if c.want>>6 == 0 && c.want != edgeVerdictPASS_DECAP && !bytes.Equal(r.out, c.frame) {
				t.Errorf("%s: passed, but not untouched", c.name)
			}
			reached[r.verdict] = true
		}
	}
	for _, v := range brokenCases(t, d) {
		reached[v] = true
	}
	balanced(t, d.Forwarder)
	for _, v := range d.verdicts {
		if !reached[v.value] {
			t.Errorf("no test reaches %s %s", v.action, v.reason)
		}
	}
}

// family returns the addresses of a family, joined to a port by appending it.
func family(v6 bool) (client, vip string) {
	if v6 {
		return "[" + client6 + "]:4321", "[" + vip6 + "]:"
	}
	return client4 + ":4321", vip4 + ":"
}

// plainCases are packets that are not in a tunnel.
func plainCases(v6 bool) []packetCase {
	client, vip := family(v6)
	good := tcpPacket(client, vip+portRemote).frame()
	udp := udpPacket(client, vip+portRemote).frame()
	l4 := ethLen + ip4Len
	if v6 {
		l4 = ethLen + ip6Len
	}
	icmp := packet{src: addrPort(client), dst: addrPort(vip + "1"), proto: 1, ttl: 64, payload: 24}
	if v6 {
		icmp.proto = 58
	}
	gre, oldTTL, lastTTL := icmp, tcpPacket(client, vip+portRemote), tcpPacket(client, vip+portRemote)
	gre.proto = 47
	oldTTL.ttl, lastTTL.ttl = 0, 1
	big := tcpPacket(client, vip+portRemote)
	big.payload = 1440
	other := tcpPacket(client, client)
	echo, report, quoted := byte(8), byte(3), ip4Len+8
	blocked := tcpPacket(blocked4+":1", vip+portRemote)
	if v6 {
		echo, report, quoted = 128, 1, ip6Len+8
		blocked = tcpPacket("["+blocked6+"]:1", vip+portRemote)
	}
	syn := func(port string) []byte {
		p := tcpPacket(client, vip+port)
		p.flags = flagSYN
		return p.frame()
	}
	foreign := tcpPacket(vip+portRemote, client) // an error about it is not about our VIP's packet
	bigQuote := answerTo(big, 1475)
	cases := []packetCase{
		{"tcp", good, edgeVerdictTX_BACKEND},
		{"udp", udp, edgeVerdictTX_BACKEND},
		{"ipip", tcpPacket(client, vip+portIPIP).frame(), edgeVerdictTX_BACKEND},
		{"gue in the other family", tcpPacket(client, vip+portCross).frame(), edgeVerdictTX_BACKEND},
		{"ipip in the other family", tcpPacket(client, vip+portCrossIPIP).frame(), edgeVerdictTX_BACKEND},
		{"behind another interface", tcpPacket(client, vip+portFar).frame(), edgeVerdictREDIRECT_BACKEND},
		{"local", tcpPacket(client, vip+portLocal).frame(), edgeVerdictPASS_LOCAL},
		{"no backend", tcpPacket(client, vip+portEmpty).frame(), edgeVerdictDROP_NO_BACKEND},
		{"not ip", with(good, 12, 0x08, 0x06), edgeVerdictPASS_NOT_IP},
		{"vlan", tagged(good, 0x8100, 7), edgeVerdictTX_BACKEND},
		{"qinq", tagged(tagged(good, 0x8100, 7), 0x88a8, 8), edgeVerdictTX_BACKEND},
		{"three tags", tagged(tagged(tagged(good, 0x8100, 7), 0x8100, 8), 0x88a8, 8), edgeVerdictPASS_VLAN},
		{"tag cut off", tagged(good, 0x8100, 7)[:16], edgeVerdictPASS_VLAN},
		{"not ip in a vlan", tagged(with(good, 12, 0x08, 0x06), 0x8100, 7), edgeVerdictPASS_NOT_IP},
		{"for another box", with(good, 5, 0xbc), edgeVerdictPASS_FOREIGN_MAC},
		{"not for a vip, for another box", with(other.frame(), 5, 0xbc), edgeVerdictPASS_NOT_VIP},
		{"echo request", ethernet(icmpPacket(client, vip+"0", echo, make([]byte, 56))), edgeVerdictTX_ECHO},
		{"echo request in a vlan", tagged(ethernet(icmpPacket(client, vip+"0", echo, make([]byte, 56))), 0x8100, 9), edgeVerdictTX_ECHO},
		{"error that quotes 8 bytes", ethernet(icmpPacket(client, vip+"0", report, answerTo(tcpPacket(client, vip+portRemote), quoted))), edgeVerdictTX_BACKEND},
		{"error that quotes the ports", ethernet(icmpPacket(client, vip+"0", report, answerTo(tcpPacket(client, vip+portRemote), quoted-4))), edgeVerdictTX_BACKEND},
		{"error that quotes half a port", ethernet(icmpPacket(client, vip+"0", report, answerTo(tcpPacket(client, vip+portRemote), quoted-5))), edgeVerdictDROP_ICMP_QUOTE},
		{"error about a local flow", ethernet(icmpPacket(client, vip+"0", report, answerTo(tcpPacket(client, vip+portLocal), quoted))), edgeVerdictPASS_LOCAL},
		{"error about another's packet", ethernet(icmpPacket(client, vip+"0", report, answerTo(foreign, quoted))), edgeVerdictDROP_ICMP_QUOTE},
		{"error about no service", ethernet(icmpPacket(client, vip+"0", report, answerTo(tcpPacket(client, vip+"9999"), quoted))), edgeVerdictPASS_NO_SERVICE},
		{"error that is too big", ethernet(icmpPacket(client, vip+"0", report, bigQuote)), edgeVerdictDROP_TOO_BIG},
		{"icmp ends in its header", ethernet(icmpPacket(client, vip+"0", echo, nil))[:l4+8], edgeVerdictTX_ECHO},
		{"blocked", blocked.frame(), edgeVerdictDROP_BLOCKED},
		{"from the vip", tcpPacket(vip+"7", vip+portRemote).frame(), edgeVerdictDROP_BAD_SOURCE},
		{"first new connection", syn(portLimited), edgeVerdictTX_BACKEND},
		{"one too many of the service", syn(portLimited), edgeVerdictDROP_SYN_LIMIT_SERVICE},
		{"first of a source", syn(portLimitedSource), edgeVerdictTX_BACKEND},
		{"one too many of the source", syn(portLimitedSource), edgeVerdictDROP_SYN_LIMIT_SOURCE},
		{"multicast", with(good, 0, 0x33), edgeVerdictPASS_MULTICAST_MAC},
		{"broadcast", with(good, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), edgeVerdictPASS_MULTICAST_MAC},
		{"no room for whom it is for", good[:l4-1], edgeVerdictPASS_TRUNCATED_IP},
		{"only ethernet", good[:ethLen], edgeVerdictPASS_TRUNCATED_IP},
		{"not for a vip", other.frame(), edgeVerdictPASS_NOT_VIP},
		{"not for a vip, lying", with(other.frame(), ethLen, 0x12), edgeVerdictPASS_NOT_VIP},
		{"icmp", icmp.frame(), edgeVerdictPASS_ICMP},
		{"other protocol", gre.frame(), edgeVerdictPASS_NO_SERVICE},
		{"other port", tcpPacket(client, vip+"9999").frame(), edgeVerdictPASS_NO_SERVICE},
		{"tcp port, udp packet", udpPacket(client, vip+portIPIP).frame(), edgeVerdictPASS_NO_SERVICE},
		{"version 5", with(good, ethLen, 0x55), edgeVerdictDROP_BAD_VERSION},
		{"frame shorter than packet", good[:len(good)-1], edgeVerdictDROP_BAD_LENGTH},
		{"tcp data offset 4", with(good, l4+12, 4<<4), edgeVerdictDROP_BAD_TCP},
		{"tcp data offset behind the end", with(good, l4+12, 14<<4), edgeVerdictDROP_BAD_TCP},
		{"udp length 7", with(udp, l4+4, 0, 7), edgeVerdictDROP_BAD_UDP},
		{"udp length behind the end", with(udp, l4+4, 0, 41), edgeVerdictDROP_BAD_UDP},
		{"ttl 1", lastTTL.frame(), edgeVerdictDROP_TTL},
		{"ttl 0", oldTTL.frame(), edgeVerdictDROP_TTL},
		{"no room for outer headers", big.frame(), edgeVerdictTX_TOO_BIG},
		{"padded", append(slices.Clone(good), make([]byte, 9)...), edgeVerdictTX_BACKEND},
	}
	for i, bad := range badRoutes {
		frame := tcpPacket(client, vip+strconv.Itoa(portFirstBadRoute+i)).frame()
		cases = append(cases, packetCase{"backend " + bad.v4, frame, bad.want})
	}
	for i := range cases {
		cases[i].name = map[bool]string{false: "ipv4 ", true: "ipv6 "}[v6] + cases[i].name
	}
	return cases
}

func onlyIPv4() []packetCase {
	good := tcpPacket(client4+":4321", vip4+":"+portRemote).frame()
	udp := udpPacket(client4+":4321", vip4+":"+portRemote).frame()
	bigUDP := udpPacket(client4+":4321", vip4+":"+portRemote)
	bigUDP.payload = 1460
	options := tcpPacket(client4+":4321", vip4+":"+portRemote)
	options.options = []byte{1, 1, 1, 1, 7, 3, 4, 0}
	short := tcpPacket(client4+":4321", vip4+":"+portRemote).ip()[:ip4Len+10]
	be.PutUint16(short[2:], uint16(len(short)))
	return []packetCase{
		{"options", options.frame(), edgeVerdictTX_BACKEND},
		{"ihl 4", with(good, ethLen, 0x44), edgeVerdictDROP_BAD_HEADER},
		{"total length in the header", with(good, ethLen+2, 0, 19), edgeVerdictDROP_BAD_LENGTH},
		{"total length behind the frame", with(good, ethLen+2, 5), edgeVerdictDROP_BAD_LENGTH},
		{"ends in the tcp header", ethernet(short), edgeVerdictDROP_TRUNCATED},
		{"first fragment, of services that differ", with(good, ethLen+6, 0x20, 0), edgeVerdictDROP_FRAGMENT_PORTS},
		{"later fragment, of services that differ", with(good, ethLen+6, 0, 1), edgeVerdictDROP_FRAGMENT_PORTS},
		{"first fragment", with(udp, ethLen+6, 0x20, 0), edgeVerdictTX_BACKEND},
		{"later fragment", with(udp, ethLen+6, 0, 1), edgeVerdictTX_BACKEND},
		{"fragment of icmp", with(good, ethLen+6, 0x20, 0, 64, 1), edgeVerdictPASS_ICMP},
		{"fragment that is too big", with(bigUDP.frame(), ethLen+6, 0, 1), edgeVerdictDROP_TOO_BIG},
		{"from 0.0.0.1", with(good, ethLen+12, 0, 0, 0, 1), edgeVerdictDROP_BAD_SOURCE},
		{"from loopback", with(good, ethLen+12, 127), edgeVerdictDROP_BAD_SOURCE},
		{"from multicast", with(good, ethLen+12, 224), edgeVerdictDROP_BAD_SOURCE},
		{"from broadcast", with(good, ethLen+12, 255, 255, 255, 255), edgeVerdictDROP_BAD_SOURCE},
		{"proto of icmpv6", with(good, ethLen+9, 58), edgeVerdictPASS_NO_SERVICE},
	}
}

func onlyIPv6() []packetCase {
	base := tcpPacket("["+client6+"]:4321", "["+vip6+"]:"+portRemote)
	good := base.frame()
	chain := func(first uint8, headers ...[]byte) []byte {
		p := base
		p.extType, p.ext = first, slices.Concat(headers...)
		return p.frame()
	}
	ext := func(next uint8) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }
	ah := func(next uint8) []byte { return append([]byte{next, 1}, make([]byte, 10)...) }
	mapped := [16]byte{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1}
	loopback := [16]byte{15: 1}
	return []packetCase{
		{"extension headers", chain(0, ext(43), ext(60), ext(51), ah(6)), edgeVerdictTX_BACKEND},
		{"six extension headers", chain(60, ext(60), ext(60), ext(60), ext(60), ext(60), ext(6)), edgeVerdictTX_BACKEND},
		{"seven", chain(60, ext(60), ext(60), ext(60), ext(60), ext(60), ext(60), ext(6)), edgeVerdictDROP_EXT_HEADERS},
		{"extension header behind the end", chain(60, []byte{6, 200, 0, 0, 0, 0, 0, 0}), edgeVerdictDROP_TRUNCATED},
		{"ends in an extension header", with(chain(60, ext(6)), ethLen+4, 0, 7), edgeVerdictDROP_TRUNCATED},
		{"ends in the tcp header", with(good, ethLen+4, 0, 19), edgeVerdictDROP_TRUNCATED},
		{"no payload", with(good, ethLen+4, 0, 0), edgeVerdictDROP_TRUNCATED},
		{"payload behind the frame", with(good, ethLen+4, 1), edgeVerdictDROP_BAD_LENGTH},
		{"fragment, of services that differ", chain(44, []byte{6, 0, 0, 1, 0, 0, 0, 1}), edgeVerdictDROP_FRAGMENT_PORTS},
		{"fragment behind another header", chain(60, ext(44), []byte{6, 0, 0, 1, 0, 0, 0, 1}), edgeVerdictDROP_FRAGMENT_PORTS},
		{"first fragment", chain(44, []byte{17, 0, 0, 1, 0, 0, 0, 1}), edgeVerdictTX_BACKEND},
		{"later fragment", chain(44, []byte{17, 0, 0, 8, 0, 0, 0, 1}), edgeVerdictTX_BACKEND},
		{"fragment that is whole", chain(44, []byte{6, 0, 0, 0, 0, 0, 0, 1}), edgeVerdictTX_BACKEND},
		{"two fragment headers", chain(44, []byte{44, 0, 0, 0, 0, 0, 0, 1}, []byte{6, 0, 0, 0, 0, 0, 0, 1}), edgeVerdictDROP_BAD_HEADER},
		{"proto of icmp", with(good, ethLen+6, 1), edgeVerdictPASS_NO_SERVICE},
		{"from a mapped address", with(good, ethLen+8, mapped[:]...), edgeVerdictDROP_BAD_SOURCE},
		{"from multicast", with(good, ethLen+8, 0xff), edgeVerdictDROP_BAD_SOURCE},
		{"from loopback", with(good, ethLen+8, loopback[:]...), edgeVerdictDROP_BAD_SOURCE},
		// No IPv4 address that is trusted, whatever it looks like.
		{"tunnel from a mapped address", wrap(netip.AddrFrom16(addr(trust4).As16()), addr(node6), false, base.ip()), edgeVerdictDROP_DECAP_MALFORMED},
		// The VIP is an IPv4 one: this packet is not for it.
		{"to a mapped vip", with(good, ethLen+24, mapped[:]...), edgeVerdictPASS_NOT_VIP},
	}
}

// tunnelCases are packets in a tunnel from a trusted address, both families
// inside, GUE and IPIP.
func tunnelCases(from, to netip.Addr) []packetCase {
	outer := ethLen + ip4Len
	stranger := addr("10.0.0.78")
	if to.Is6() {
		outer, stranger = ethLen+ip6Len, addr("fd00::78")
	}
	client, vip := family(false)
	inner := tcpPacket(client, vip+portRemote).ip()
	inner6 := tcpPacket("["+client6+"]:1", "["+vip6+"]:"+portRemote).ip()
	gue, ipip := wrap(from, to, true, inner), wrap(from, to, false, inner)
	fragment := slices.Clone(inner)
	fragment[6] = 0x20
	mapped := slices.Clone(inner6)
	copy(mapped[24:], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1})
	plain := packet{src: netip.AddrPortFrom(from, 6080), dst: netip.AddrPortFrom(to, 53), proto: 17, ttl: 64}
	bgp := plain
	bgp.proto = 6
	cases := []packetCase{
		{"gue", gue, edgeVerdictPASS_DECAP},
		{"ipip", ipip, edgeVerdictPASS_DECAP},
		{"gue with ipv6 inside", wrap(from, to, true, inner6), edgeVerdictPASS_DECAP},
		{"ipip with ipv6 inside", wrap(from, to, false, inner6), edgeVerdictPASS_DECAP},
		{"padded", append(slices.Clone(gue), 0, 0, 0), edgeVerdictPASS_DECAP},
		{"udp to another port", plain.frame(), edgeVerdictPASS_NOT_VIP},
		{"tcp to us", bgp.frame(), edgeVerdictPASS_NOT_VIP},
		{"ends in the udp header", gue[:outer+4], edgeVerdictPASS_NOT_VIP},
		{"gue from a stranger", wrap(stranger, to, true, inner), edgeVerdictDROP_DECAP_UNTRUSTED},
		{"ipip from a stranger", wrap(stranger, to, false, inner), edgeVerdictDROP_DECAP_UNTRUSTED},
		{"udp length behind the end", with(gue, outer+4, 5), edgeVerdictDROP_DECAP_MALFORMED},
		{"udp length 7", with(gue, outer+4, 0, 7), edgeVerdictDROP_DECAP_MALFORMED},
		{"nothing inside", with(gue, outer+4, 0, 8), edgeVerdictDROP_DECAP_MALFORMED},
		{"inner longer than udp", with(gue, outer+4, 0, 40), edgeVerdictDROP_BAD_LENGTH},
		{"gue variant 0", with(gue, outer+8, 0x05), edgeVerdictDROP_DECAP_MALFORMED},
		{"other family than the protocol says", with(ipip, outer, 0x65), edgeVerdictDROP_DECAP_MALFORMED},
		{"frame cut off", ipip[:len(ipip)-1], edgeVerdictDROP_DECAP_MALFORMED},
		{"inner lies", with(gue, outer+8+2, 9), edgeVerdictDROP_BAD_LENGTH},
		{"inner fragment", wrap(from, to, true, fragment), edgeVerdictPASS_DECAP},
		{"inner error", wrap(from, to, true, icmpPacket(client, vip+"0", 3, answerTo(tcpPacket(client, vip+portRemote), ip4Len+8))), edgeVerdictPASS_DECAP},
		{"inner error about no service", wrap(from, to, true, icmpPacket(client, vip+"0", 3, answerTo(tcpPacket(client, vip+"9"), ip4Len+8))), edgeVerdictDROP_DECAP_NOT_VIP},
		{"inner error without a quote", wrap(from, to, true, icmpPacket(client, vip+"0", 3, nil)), edgeVerdictDROP_ICMP_QUOTE},
		{"inner echo request", wrap(from, to, true, icmpPacket(client, vip+"0", 8, nil)), edgeVerdictDROP_DECAP_NOT_VIP},
		{"in a vlan", tagged(gue, 0x8100, 7), edgeVerdictPASS_DECAP},
		{"inner for another port", wrap(from, to, true, tcpPacket(client, vip+"9").ip()), edgeVerdictDROP_DECAP_NOT_VIP},
		{"inner for no vip", wrap(from, to, true, tcpPacket(client, node4+":1").ip()), edgeVerdictDROP_DECAP_NOT_VIP},
		{"tunnel in a tunnel", wrap(from, to, true, gue[ethLen:]), edgeVerdictDROP_DECAP_NOT_VIP},
		{"inner to a mapped vip", wrap(from, to, true, mapped), edgeVerdictDROP_DECAP_MALFORMED},
	}
	for i := range cases {
		cases[i].name = "tunnel to " + to.String() + ": " + cases[i].name
	}
	return cases
}

// brokenCases break the machine or the maps and returns what was reached.
func brokenCases(t *testing.T, d device) []edgeVerdict {
	t.Helper()
	good := tcpPacket(client4+":4321", vip4+":"+portBroken)
	expect := func(what string, frame []byte, want edgeVerdict) {
		t.Helper()
		if r := d.run(t, frame); r.verdict != want {
			t.Errorf("%s: %s, want %s", what, d.name(r.verdict), d.name(want))
		}
	}
	if r := d.runMeta(t, good.frame(), 216); r.verdict != edgeVerdictDROP_NO_HEADROOM {
		t.Errorf("no headroom: %s", d.name(r.verdict))
	}
	// A VLAN's interface that has gone since we looked: the lookup fails.
	gone := edgeVlanKey{Ifindex: uint32(d.ingress), Outer: 77}
	check(t, d.coll.Maps[edgeMapVlanIn].Put(gone, uint32(999_999)))
	expect("interface is gone", tagged(good.frame(), 0x8100, 77), edgeVerdictDROP_FIB_ERROR)
	check(t, d.coll.Maps[edgeMapVlanIn].Delete(gone))
	d.tellRarely(t)
	big := tcpPacket(client4+":4321", vip4+":"+portRemote)
	big.payload = 1440
	expect("the one that is told", big.frame(), edgeVerdictTX_TOO_BIG)
	expect("told no more", big.frame(), edgeVerdictDROP_TOO_BIG_LIMITED)
	fragment := wrap(addr(trust4), addr(node4), false, good.ip())
	fragment[ethLen+6] = 0x20
	expect("outer fragment", fragment, edgeVerdictDROP_FRAGMENT)
	sysctl(t, "ipv4/conf/up0/forwarding", "0")
	expect("forwarding off", good.frame(), edgeVerdictDROP_FIB_FORWARDING_OFF)
	sysctl(t, "ipv4/conf/up0/forwarding", "1")

	id := d.state.vip.have[edgeVipKey{Addr: good.dst.Addr().As16(), Port: netOrder(good.dst.Port()), Proto: 6}]
	for bid, b := range d.state.backend.have {
		if b.Svc == id {
			check(t, d.state.backend.m.Put(bid, b.in(stateNone)))
		}
	}
	expect("removed backend in the ring", good.frame(), edgeVerdictDROP_STALE_BACKEND)
	check(t, d.state.svc.Delete(id))
	expect("no table", good.frame(), edgeVerdictDROP_NO_TABLE)
	return []edgeVerdict{edgeVerdictDROP_NO_HEADROOM, edgeVerdictDROP_FIB_FORWARDING_OFF,
		edgeVerdictDROP_STALE_BACKEND, edgeVerdictDROP_NO_TABLE, edgeVerdictDROP_TOO_BIG_LIMITED, edgeVerdictDROP_FRAGMENT,
		edgeVerdictDROP_FIB_ERROR}
}

// tellRarely has each CPU tell one sender a minute that its packet is too big.
func (d device) tellRarely(t *testing.T) {
	t.Helper()
	want := d.host
	want.TooBig.Interval, want.TooBig.Burst = uint64(time.Minute), 0
	check(t, d.putHost(want))
	cpus, err := ebpf.PossibleCPU()
	check(t, err)
	check(t, d.coll.Maps[edgeMapTooBigDue].Put(uint32(0), make([]uint64, cpus)))
	// On one CPU: each has its own.
	var set unix.CPUSet
	set.Set(0)
	check(t, unix.SchedSetaffinity(0, &set))
}
