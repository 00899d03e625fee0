package model

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/catchment-dev/edge/xdp/model/frame"
)

// tunnelCases are what can be wrong with the outside.
func tunnelCases(f family) []verdictCase {
	inner := f.tcp(portGUE, frame.ACK).IP()
	wrap := func(gue bool) []byte { return frame.Tunnel(f.peer, f.node, gue, inner).IP() }
	udp, length, version := frame.IPv4Len, 2, byte(0x55)
	if f.v6 {
		udp, length, version = frame.IPv6Len, 4, 0x50
	}
	stranger := func(gue bool) []byte { return frame.Tunnel(f.other, f.node, gue, inner).IP() }
	plain := func(proto uint8, port uint16) []byte {
		return frame.Packet{Src: netip.AddrPortFrom(f.peer, 5), Dst: netip.AddrPortFrom(f.node, port), Proto: proto, Payload: inner}.IP()
	}
	cases := []verdictCase{
		{"gue", eth(wrap(true)), PassDecap}, {"ipip", eth(wrap(false)), PassDecap},
		{"gue, padded", frame.Pad(eth(wrap(true)), 150), PassDecap},
		{"bgp to us", eth(plain(frame.TCP, 179)), PassNotVIP}, {"udp to another port", eth(plain(frame.UDP, 53)), PassNotVIP},
		{"ping to us", eth(plain(frame.ICMP, 0)), PassNotVIP},
		{"cut off in the udp header", eth(with(wrap(true), length, 0, 7)), PassNotVIP},
		{"gue with a wrong version", with(eth(wrap(true)), ipAt, version), PassNotVIP},
		{"ipip with a wrong version", with(eth(wrap(false)), ipAt, version), DropDecapMalformed},
		{"ipip behind the frame", eth(with(wrap(false), length, 9, 0)), DropDecapMalformed},
		{"gue from a stranger", eth(stranger(true)), DropDecapUntrusted},
		{"ipip from a stranger", eth(stranger(false)), DropDecapUntrusted},
		{"udp length 7", eth(with(wrap(true), udp+4, 0, 7)), DropDecapMalformed},
		{"udp length behind the packet", eth(with(wrap(true), udp+4, 9, 0)), DropDecapMalformed},
	}
	for i, ip := range frame.Fragments(wrap(false), 9, 32) {
		if f.v6 {
			// The header chain of IPv6 is not ours: none of our packets has one.
			cases = append(cases, verdictCase{"outer fragment", eth(ip), PassNotVIP})
		} else if i < 2 {
			cases = append(cases, verdictCase{"outer fragment", eth(ip), DropFragment})
		}
	}
	if !f.v6 {
		options := frame.Tunnel(f.peer, f.node, false, inner)
		options.Options = []byte{0x45, 1, 1, 1} // as if the packet began there
		fragment := frame.Fragments(wrap(true), 9, 32)[1]
		cases = append(cases, verdictCase{"outer options", eth(options.IP()), DropDecapMalformed},
			verdictCase{"gue in fragments", eth(fragment), PassNotVIP})
	}
	return cases
}

// innerCases are what can be inside, of both families, in both tunnels.
func innerCases(f family) (cases []verdictCase) {
	for _, in := range families() {
		for _, c := range inside(in) {
			for _, gue := range []bool{false, true} {
				cases = append(cases, verdictCase{"inside: " + c.name, eth(frame.Tunnel(f.peer, f.node, gue, c.frame).IP()), c.want})
			}
		}
	}
	inner := f.tcp(portGUE, frame.ACK).IP()
	lying := frame.Tunnel(f.peer, f.node, false, inner)
	lying.Proto = 4 + 41 - lying.Proto
	mapped := families()[1].tcp(portGUE, frame.ACK).IP()
	mapped = with(mapped, 24, families()[0].vip16()...)
	return append(cases,
		verdictCase{"ipip of the other family", eth(lying.IP()), DropDecapMalformed},
		verdictCase{"to a mapped vip inside", eth(frame.Tunnel(f.peer, f.node, true, mapped).IP()), DropDecapMalformed})
}

// inside are IP packets, with what becomes of them when they come in a tunnel.
func inside(f family) []verdictCase {
	good := f.tcp(portGUE, frame.ACK)
	ip := good.IP()
	change := func(with func(*frame.Packet)) []byte {
		p := good
		with(&p)
		return p.IP()
	}
	error := func(about frame.Packet) []byte { return f.fail(f.answer(about).IP()).IP() }
	bad := f.fail(f.answer(good).IP())
	bad.Payload = ip
	stray := bad
	stray.Dst = netip.AddrPortFrom(f.client, 0)
	other := f.tcp(portGUE, 0)
	other.Dst = netip.AddrPortFrom(f.client, portGUE)
	other.Src = netip.AddrPortFrom(f.vip, 1)
	expired := with(ip, 8, 0)
	if f.v6 {
		expired = with(ip, 7, 0)
	}
	return []verdictCase{
		{"good", ip, PassDecap}, {"udp", f.udp(portGUE, nil).IP(), PassDecap},
		{"nothing", nil, DropDecapMalformed}, {"cut off", ip[:19], DropDecapMalformed}, {"version 5", with(ip, 0, 0x55), DropDecapMalformed},
		{"blocked", change(func(p *frame.Packet) { p.Src = netip.AddrPortFrom(f.blocked, 1) }), PassDecap},
		{"ttl 0", expired, PassDecap}, {"over a limit", f.tcp(portService, frame.SYN).IP(), PassDecap},
		{"no backend", f.tcp(portEmpty, 0).IP(), PassDecap},
		{"a longer packet than there is", append(with(ip, 2, 1), 0)[:len(ip)], map[bool]Verdict{false: DropBadLength, true: PassDecap}[f.v6]},
		{"from the vip", change(func(p *frame.Packet) { p.Src = netip.AddrPortFrom(f.vip, 1) }), DropBadSource},
		{"no service", f.tcp(9999, 0).IP(), DropDecapNotVIP}, {"not for a vip", other.IP(), DropDecapNotVIP},
		{"for a tunnel address", change(func(p *frame.Packet) { p.Dst = netip.AddrPortFrom(f.node, portGUE) }), DropDecapNotVIP},
		{"echo", f.ping().IP(), DropDecapNotVIP}, {"echo in fragments", frame.Fragments(f.ping().IP(), 1, 8)[1], DropDecapNotVIP},
		{"error", error(good), PassDecap}, {"error about no service", error(f.tcp(9999, 0)), DropDecapNotVIP},
		{"error about a ping", error(f.ping()), DropDecapNotVIP}, {"error about a stranger", bad.IP(), DropICMPQuote},
		{"error to a stranger", stray.IP(), DropDecapNotVIP},
		{"fragment of services that are one", frame.Fragments(f.udp(portGUE, make([]byte, 64)).IP(), 1, 32)[1], PassDecap},
		{"fragment of services that differ", frame.Fragments(ip, 1, 8)[1], PassDecap},
		{"fragment of no service", frame.Fragments(change(func(p *frame.Packet) { p.Proto = frame.GRE }), 1, 8)[1], DropDecapNotVIP},
		{"gre for everything", change(func(p *frame.Packet) { p.Proto, p.Dst = frame.GRE, netip.AddrPortFrom(f.wild, 0) }), PassDecap},
		{"gre for a port", change(func(p *frame.Packet) { p.Proto = frame.GRE }), DropDecapNotVIP},
	}
}

// What comes out is the packet that went in, with the tags of the frame.
func TestDecap(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		for _, in := range families() {
			for _, gue := range []bool{false, true} {
				inner := in.tcp(portGUE, frame.ACK).IP()
				link := inLink
				link.Tags = []frame.Tag{{Type: 0x8100, TCI: 100}}
				padding := []byte{1, 2, 3}
				got := newLab().Decide(append(link.Frame(frame.Tunnel(f.peer, f.node, gue, inner).IP()), padding...), long)
				if want := append(link.Frame(inner), padding...); !bytes.Equal(got.Out, want) {
					t.Errorf("gue %v: % x\nwant % x", gue, got.Out, want)
				}
				if got.Service != in.id(portGUE) || got.Egress != 0 {
					t.Errorf("gue %v: service %d, egress %d", gue, got.Service, got.Egress)
				}
			}
		}
	})
}

// Nobody takes anything from a peer whose address is not trusted, whichever
// family its address seems to be.
func TestDecapMappedPeer(t *testing.T) {
	four, six := families()[0], families()[1]
	inner := four.tcp(portGUE, frame.ACK).IP()
	ip := frame.Tunnel(six.peer, six.node, false, inner).IP()
	peer := four.peer.As16()
	want(t, "ipip", newLab().Decide(eth(with(ip, 8, peer[:]...)), long), DropDecapMalformed)
	if slices.Equal(peer[:], ip[8:24]) {
		t.Error("the test changes nothing")
	}
}
