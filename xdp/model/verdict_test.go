package model

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/catchment-dev/edge/xdp/model/frame"
)

// verdictCase is a frame and how it must leave.
type verdictCase struct {
	name  string
	frame []byte
	want  Verdict
}

// with returns a copy of b with bytes replaced at an offset.
func with(b []byte, at int, by ...byte) []byte {
	b = slices.Clone(b)
	copy(b[at:], by)
	return b
}

// eth puts an IP packet on the wire.
func eth(ip []byte) []byte { return inLink.Frame(ip) }

const ipAt = frame.EthernetLen

func TestEveryVerdict(t *testing.T) {
	reached := map[Verdict]bool{
		// The model knows no driver.
		DropNoHeadroom: true,
	}
	for _, f := range families() {
		cases := slices.Concat(linkCases(f), headerCases(f), serviceCases(f), icmpCases(f), tunnelCases(f), innerCases(f))
		if f.v6 {
			cases = append(cases, only6(f)...)
		} else {
			cases = append(cases, only4(f)...)
		}
		for _, c := range cases {
			was := slices.Clone(c.frame)
			o := newLab().Decide(c.frame, long)
			if o.Verdict != c.want {
				t.Errorf("v6 %v, %s: %v, want %v: %v\n% x", f.v6, c.name, o.Verdict, c.want, o.Why, c.frame)
			}
			if !bytes.Equal(c.frame, was) {
				t.Errorf("%s: the frame was written to", c.name)
			}
			invariants(t, c.frame, o)
			reached[o.Verdict] = true
		}
		for _, v := range limitedVerdicts(f) {
			reached[v] = true
		}
	}
	for _, v := range Verdicts() {
		if !reached[v] {
			t.Errorf("no case reaches %v", v)
		}
	}
}

// limitedVerdicts are those that a single frame does not reach.
func limitedVerdicts(f family) (all []Verdict) {
	for _, port := range []uint16{portService, portSource} {
		l := newLab()
		for range 3 {
			all = append(all, l.send(f.tcp(port, frame.SYN)).Verdict)
		}
	}
	l := newLab()
	l.TooBig = Limit{}
	big := f.tcp(portGUE, frame.ACK)
	big.Payload = make([]byte, 1440)
	return append(all, l.send(big).Verdict)
}

func linkCases(f family) []verdictCase {
	good := f.tcp(portGUE, frame.ACK).IP()
	wire := eth(good)
	other := f.tcp(portGUE, frame.ACK)
	other.Dst = netip.AddrPortFrom(f.client, 80)
	other.Src = netip.AddrPortFrom(f.vip, 80)
	fixed := ipAt + frame.IPv4Len
	if f.v6 {
		fixed = ipAt + frame.IPv6Len
	}
	tagged := func(ip []byte, tags ...frame.Tag) []byte {
		l := inLink
		l.Tags = tags
		return l.Frame(ip)
	}
	q, ad := frame.Tag{Type: 0x8100, TCI: 300}, frame.Tag{Type: 0x88a8, TCI: 301}
	return []verdictCase{
		{"good", wire, TXBackend},
		{"one tag", tagged(good, q), TXBackend},
		{"two tags", tagged(good, ad, q), TXBackend},
		{"three tags", tagged(good, ad, q, q), PassVLAN},
		{"a tag that is cut off", tagged(good, q)[:17], PassVLAN},
		{"a tag and no more", tagged(good, q)[:18], PassTruncatedIP},
		{"a tag before what is not ip", with(tagged(good, q), 16, 0x08, 0x06), PassNotIP},
		{"a second tag that is cut off", tagged(good, q, q)[:20], PassVLAN},
		{"no ethernet header", wire[:13], PassNotIP},
		{"nothing", nil, PassNotIP},
		{"arp", with(wire, 12, 0x08, 0x06), PassNotIP},
		{"multicast", with(wire, 0, 0x33, 0x33), PassMulticastMAC},
		{"broadcast", with(wire, 0, 255, 255, 255, 255, 255, 255), PassMulticastMAC},
		{"another box", with(wire, 5, 0xcc), PassForeignMAC},
		{"another address of this box", with(wire, 0, 2, 9, 9, 9, 9, 9), TXBackend},
		{"another box, not for a vip", with(eth(other.IP()), 5, 0xcc), PassNotVIP},
		{"another box, a tunnel", with(eth(frame.Tunnel(f.peer, f.node, true, good).IP()), 5, 0xcc), PassForeignMAC},
		{"only ethernet", wire[:ipAt], PassTruncatedIP},
		{"cut off in the fixed header", wire[:fixed-1], PassTruncatedIP},
		{"not for a vip", eth(other.IP()), PassNotVIP},
		{"not for a vip, and lying", with(eth(other.IP()), ipAt, 0x12), PassNotVIP},
		{"padded", frame.Pad(wire, 200), TXBackend},
	}
}

// headerCases are what can be wrong with headers of both families.
func headerCases(f family) []verdictCase {
	good := f.tcp(portGUE, frame.ACK).IP()
	udp := f.udp(portGUE, make([]byte, 32)).IP()
	l4 := frame.IPv4Len
	if f.v6 {
		l4 = frame.IPv6Len
	}
	from := func(src netip.Addr) []byte {
		p := f.tcp(portGUE, frame.ACK)
		p.Src = netip.AddrPortFrom(src, 1)
		return eth(p.IP())
	}
	ttl := func(n byte) []byte {
		at := 8
		if f.v6 {
			at = 7
		}
		return eth(with(good, at, n))
	}
	// short has the length of its IP header cut to n bytes of transport.
	short := func(ip []byte, n int) []byte {
		if f.v6 {
			return eth(with(ip, 4, 0, byte(n)))
		}
		return eth(with(ip, 2, 0, byte(l4+n)))
	}
	return []verdictCase{
		{"udp", eth(udp), TXBackend},
		{"version 5", with(eth(good), ipAt, 0x55), DropBadVersion},
		{"frame shorter than the packet", eth(good[:len(good)-1]), DropBadLength},
		{"from the vip itself", from(f.vip), DropBadSource},
		{"blocked", from(f.blocked), DropBlocked},
		{"blocked, and damaged behind the ip header", short(from(f.blocked)[ipAt:], 3), DropBlocked},
		{"blocked, and a wrong version", with(from(f.blocked), ipAt, 0x55), DropBadVersion},
		{"beside the blocked", from(f.other), TXBackend},
		{"tcp cut off", short(good, 19), DropTruncated},
		{"tcp with nothing", short(good, 0), DropTruncated},
		{"data offset 4", eth(with(good, l4+12, 4<<4)), DropBadTCP},
		{"data offset behind the end", eth(with(good, l4+12, 15<<4)), DropBadTCP},
		{"data offset at the end", eth(with(good, l4+12, 9<<4)), TXBackend},
		{"udp cut off", short(udp, 7), DropTruncated},
		{"udp length 7", eth(with(udp, l4+4, 0, 7)), DropBadUDP},
		{"udp length 8", eth(with(udp, l4+4, 0, 8)), TXBackend},
		{"udp length behind the end", eth(with(udp, l4+4, 0, 41)), DropBadUDP},
		{"ttl 0", ttl(0), DropTTL},
		{"ttl 1", ttl(1), DropTTL},
		{"ttl 2", ttl(2), TXBackend},
	}
}

func serviceCases(f family) []verdictCase {
	tcp := func(port uint16) []byte { return eth(f.tcp(port, frame.ACK).IP()) }
	wild := func(proto uint8) []byte {
		p := f.tcp(9, frame.ACK)
		p.Dst, p.Proto = netip.AddrPortFrom(f.wild, 9), proto
		return eth(p.IP())
	}
	gre := f.tcp(0, 0)
	gre.Proto = frame.GRE
	size := func(n int) []byte {
		p := f.tcp(portGUE, frame.ACK)
		p.Payload = nil
		p.Payload = make([]byte, n-len(p.IP()))
		return eth(p.IP())
	}
	room := routeMTU - 28
	if f.v6 {
		room = routeMTU - 48
	}
	part := func(proto uint8, n int) []byte {
		p := f.tcp(portGUE, frame.ACK)
		p.Proto, p.Payload = proto, make([]byte, 64)
		return eth(frame.Fragments(p.IP(), 5, 32)[n])
	}
	local := f.tcp(portLocal, frame.ACK).IP()
	lastHop := with(local, 8, 1)
	if f.v6 {
		lastHop = with(local, 7, 1)
	}
	cases := []verdictCase{
		{"ipip", tcp(portIPIP), TXBackend}, {"the other family outside", tcp(portCross), TXBackend},
		{"by another interface", tcp(portFar), RedirectBackend},
		{"by a vlan of the same interface", tcp(portVLAN), TXBackend},
		{"by a vlan of another interface", tcp(portQinQ), RedirectBackend},
		{"this box", tcp(portLocal), PassLocal}, {"this box, with its last hop", eth(lastHop), PassLocal},
		{"nobody", tcp(portEmpty), DropNoBackend}, {"a ring that is wrong", tcp(portStale), DropStaleBackend},
		{"no table", tcp(portNoTable), DropNoTable},
		{"no service", tcp(9999), PassNoService}, {"port 0", tcp(0), PassNoService},
		{"tcp where only udp is", tcp(portQUIC), PassNoService},
		{"udp where only tcp is", eth(f.udp(portIPIP, nil).IP()), PassNoService},
		{"gre", eth(gre.IP()), PassNoService},
		{"everything: tcp", wild(frame.TCP), TXBackend}, {"everything: udp", wild(frame.UDP), TXBackend},
		{"everything: gre", wild(frame.GRE), TXBackend}, {"everything: sctp", wild(frame.SCTP), TXBackend},
		{"just fits", size(room), TXBackend}, {"just does not fit", size(room + 1), TXTooBig},
		{"fragments whose services are one", part(frame.UDP, 1), TXBackend},
		{"first fragment whose services differ", part(frame.TCP, 0), DropFragmentPorts},
		{"later fragment whose services differ", part(frame.TCP, 1), DropFragmentPorts},
		{"fragment of a protocol without a service", part(frame.GRE, 1), PassNoService},
	}
	for i, v := range badRoutes() {
		cases = append(cases, verdictCase{"route " + v.String(), tcp(uint16(portBadRoute + i)), v})
	}
	return cases
}

func icmpCases(f family) []verdictCase {
	ping := f.ping()
	ip := ping.IP()
	pong := f.answer(f.tcp(portGUE, frame.ACK)).IP()
	other := ping
	other.Type = 13
	if f.v6 {
		other.Type = 135
	}
	wrong := ping // the other family's ICMP is a protocol like any other
	wrong.Proto = frame.ICMP + frame.ICMPv6 - ping.Proto
	wrong.Payload = append(slices.Clone(wrong.Payload), 0)
	short := with(ip, 2, 0, 27)
	if f.v6 {
		short = with(ip, 4, 0, 7)
	}
	pieces := frame.Fragments(ip, 4, 8)
	quote := func(q []byte) []byte {
		e := f.fail(pong)
		e.Payload = q
		return eth(e.IP())
	}
	return []verdictCase{
		{"echo", eth(ip), TXEcho}, {"echo, padded", frame.Pad(eth(ip), 90), TXEcho},
		{"other icmp", eth(other.IP()), PassICMP}, {"icmp cut off", eth(short), DropTruncated},
		{"echo in fragments", eth(pieces[0]), PassICMP}, {"echo in fragments, later", eth(pieces[1]), PassICMP},
		{"icmp of the other family", eth(wrong.IP()), PassNoService},
		{"error", quote(pong), TXBackend},
		{"error that quotes nothing", quote(nil), DropICMPQuote},
		{"error that quotes a packet to the vip", quote(f.tcp(portGUE, 0).IP()), DropICMPQuote},
		{"error about a ping of this box", quote(f.answer(f.ping()).IP()), PassICMP},
		{"error about no service", quote(f.answer(f.tcp(9999, 0)).IP()), PassNoService},
		{"error that is too big", quote(append(slices.Clone(pong), make([]byte, 1400)...)), DropTooBig},
	}
}

func only4(f family) []verdictCase {
	good := f.tcp(portGUE, frame.ACK)
	ip := good.IP()
	options := good
	options.Options = []byte{1, 1, 1, 1, 7, 3, 4, 0}
	ping := f.ping()
	ping.Options = []byte{1, 1, 1, 1}
	from := func(a ...byte) []byte { return eth(with(ip, 12, a...)) }
	return []verdictCase{
		{"options", eth(options.IP()), TXBackend},
		{"echo with options", eth(ping.IP()), PassICMP},
		{"ihl 4", eth(with(ip, 0, 0x44)), DropBadHeader},
		{"ihl 0", eth(with(ip, 0, 0x40)), DropBadHeader},
		{"length in the header", eth(with(ip, 2, 0, 19)), DropBadLength},
		{"length in the options", eth(with(options.IP(), 2, 0, 24)), DropBadLength},
		{"length behind the frame", eth(with(ip, 2, 5)), DropBadLength},
		{"a fragment from far behind", eth(with(ip, 6, 0x10)), DropFragmentPorts},
		{"the reserved bit is no fragment", eth(with(ip, 6, 0x80)), TXBackend},
		{"from 0.0.0.1", from(0, 0, 0, 1), DropBadSource}, {"from loopback", from(127), DropBadSource},
		{"from multicast", from(224), DropBadSource}, {"from broadcast", from(255, 255, 255, 255), DropBadSource},
		{"icmpv6", eth(with(ip, 9, frame.ICMPv6)), PassNoService},
	}
}

func only6(f family) []verdictCase {
	good := f.tcp(portGUE, frame.ACK)
	ip := good.IP()
	chain := func(headers ...frame.Header) []byte {
		p := good
		p.Headers = headers
		return p.IP()
	}
	opt, ah, atomic := frame.Option(frame.DstOpts), frame.Authentication(), frame.Atomic()
	first := frame.Header{Type: frame.FragmentHeader, Body: []byte{0, 0, 1, 0, 0, 0, 1}}
	later := frame.Header{Type: frame.FragmentHeader, Body: []byte{0, 0, 8, 0, 0, 0, 1}}
	endless := frame.Header{Type: frame.DstOpts, Body: []byte{200, 1, 4, 0, 0, 0, 0}}
	udp := f.udp(portGUE, make([]byte, 16))
	udp.Headers = []frame.Header{later, opt}
	ping := f.ping()
	ping.Headers = []frame.Header{opt}
	mapped := f.vip.As16()
	copy(mapped[:12], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff})
	from := func(a [16]byte) []byte { return eth(with(ip, 8, a[:]...)) }
	return []verdictCase{
		{"extension headers", eth(chain(frame.Option(frame.HopByHop), frame.Option(frame.Routing), opt, ah)), TXBackend},
		{"six", eth(chain(opt, opt, opt, opt, opt, opt)), TXBackend},
		{"seven", eth(chain(opt, opt, opt, opt, opt, opt, opt)), DropExtHeaders},
		{"seven, the last one cut off", eth(chain(opt, opt, opt, opt, opt, opt, endless)), DropExtHeaders},
		{"six and an atomic fragment", eth(chain(opt, opt, opt, atomic, opt, opt, opt)), DropExtHeaders},
		{"an atomic fragment", eth(chain(atomic)), TXBackend},
		{"an atomic fragment and more", eth(chain(opt, atomic, opt)), TXBackend},
		{"two fragment headers", eth(chain(atomic, atomic)), DropBadHeader},
		{"two fragment headers, one a fragment", eth(chain(atomic, first)), DropBadHeader},
		// Of two fragments of a datagram, the later one knows no more than that.
		{"a first fragment with a header behind", eth(chain(first, opt)), DropExtHeaders},
		{"a later fragment with a header behind", eth(udp.IP()), DropExtHeaders},
		{"a fragment header behind a fragment's", eth(chain(first, atomic)), DropExtHeaders},
		{"a header behind the end", eth(chain(endless)), DropTruncated},
		{"ah behind the end", eth(chain(frame.Header{Type: frame.AH, Body: []byte{60, 0, 0, 0, 0, 0, 0}})), DropTruncated},
		{"cut off in a header", eth(with(chain(opt), 4, 0, 7)), DropTruncated},
		{"cut off in a fragment header", eth(with(chain(later), 4, 0, 7)), DropTruncated},
		{"echo with an extension header", eth(ping.IP()), PassICMP},
		{"icmp", eth(with(ip, 6, frame.ICMP)), PassNoService},
		{"no next header", eth(with(ip, 6, 59)), PassNoService},
		{"from a mapped address", from(mapped), DropBadSource}, {"from multicast", from([16]byte{0xff, 2}), DropBadSource},
		{"from ::1", from([16]byte{15: 1}), DropBadSource}, {"from ::", from([16]byte{}), DropBadSource},
		// The VIP is an IPv4 one: this packet is not for it.
		{"to a mapped vip", eth(with(ip, 24, families()[0].vip16()...)), PassNotVIP},
	}
}

func (f family) vip16() []byte {
	a := f.vip.As16()
	return a[:]
}
