package main

import (
	"encoding/binary"
	"net/netip"

	"github.com/catchment-dev/edge"
)

// vipMatch tells the packets of a service, to it or from it, in frames as they
// left: encapsulated, quoted in an ICMP error, or as they came. It is for people
// who look at packets, and rather shows one too many: of two services of one
// address it cannot tell the fragments, nor does it know that a service of a
// single port goes before one of all.
type vipMatch struct {
	addr     netip.Addr
	port     uint16        // 0: all
	protocol edge.Protocol // 0: all
}

// layersMost is how many packets can be in one another: an ICMP error in a
// tunnel quotes a packet.
const layersMost = 3

func (m vipMatch) inFrame(b []byte) bool {
	const tag, tagOuter, ip4, ip6 = 0x8100, 0x88a8, 0x0800, 0x86dd
	if len(b) < 14 {
		return false
	}
	kind := binary.BigEndian.Uint16(b[12:])
	b = b[14:]
	for range 2 {
		if (kind == tag || kind == tagOuter) && len(b) >= 4 {
			kind = binary.BigEndian.Uint16(b[2:])
			b = b[4:]
		}
	}
	if kind != ip4 && kind != ip6 {
		return false
	}
	for range layersMost {
		p, ok := parseIP(b)
		if !ok {
			return false
		}
		if m.inPacket(p) {
			return true
		}
		if b = p.inside(); b == nil {
			return false
		}
	}
	return false
}

func (m vipMatch) inPacket(p ipPacket) bool {
	if m.protocol != edge.AnyProtocol && m.protocol != p.protocol {
		return false
	}
	sport, dport, ok := p.ports()
	all := m.port == 0 || !ok
	return p.src == m.addr && (all || sport == m.port) || p.dst == m.addr && (all || dport == m.port)
}

// ipPacket is as much of a packet as was captured.
type ipPacket struct {
	src, dst netip.Addr
	protocol edge.Protocol
	fragment bool
	payload  []byte // behind the IP headers
}

func parseIP(b []byte) (p ipPacket, ok bool) {
	if len(b) < 20 {
		return p, false
	}
	switch b[0] >> 4 {
	case 4:
		n := int(b[0]&0xf) * 4
		if n < 20 || n > len(b) {
			return p, false
		}
		p.src, p.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		p.protocol, p.fragment = edge.Protocol(b[9]), binary.BigEndian.Uint16(b[6:])&0x3fff != 0
		p.payload = b[n:]
		return p, true
	case 6:
		if len(b) < 40 {
			return p, false
		}
		p.src, p.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		p.protocol, p.payload = edge.Protocol(b[6]), b[40:]
		p.walk()
		return p, true
	}
	return p, false
}

// walk goes over the extension headers of IPv6 (RFC 8200), as many as are there.
func (p *ipPacket) walk() {
	const hopByHop, routing, fragment, auth, destination = 0, 43, 44, 51, 60
	for b := p.payload; len(b) >= 8; b = p.payload {
		n := (int(b[1]) + 1) * 8
		switch p.protocol {
		case hopByHop, routing, destination:
		case auth:
			n = (int(b[1]) + 2) * 4 // RFC 4302: in words, less two
		case fragment:
			n = 8
			p.fragment = p.fragment || binary.BigEndian.Uint16(b[2:])&0xfff9 != 0
		default:
			return
		}
		if n > len(b) {
			return
		}
		p.protocol, p.payload = edge.Protocol(b[0]), b[n:]
		if p.fragment {
			return // what follows may be the middle of it
		}
	}
}

func (p ipPacket) ports() (src, dst uint16, ok bool) {
	if p.fragment || p.protocol != edge.TCP && p.protocol != edge.UDP || len(p.payload) < 4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(p.payload), binary.BigEndian.Uint16(p.payload[2:]), true
}

// inside returns the packet that is in this one, if any: in a tunnel of ours, or
// quoted.
func (p ipPacket) inside() []byte {
	const ipip, icmp, ip6in, icmp6 = 4, 1, 41, 58
	_, dport, ok := p.ports()
	switch {
	case p.fragment:
	case p.protocol == ipip, p.protocol == ip6in:
		return p.payload
	case p.protocol == icmp, p.protocol == icmp6, ok && p.protocol == edge.UDP && dport == edge.GUEPort:
		return p.payload[min(8, len(p.payload)):]
	}
	return nil
}
