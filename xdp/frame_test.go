package xdp

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

var be = binary.BigEndian

// Offsets into the frames built here.
const (
	ethLen = 14
	ip4Len = 20
	ip6Len = 40
)

const (
	flagFIN = 1
	flagSYN = 2
	flagRST = 4
	flagACK = 16
)

var (
	routerMAC = []byte{2, 0, 0, 0, 0, 0xaa}
	ourMAC    = []byte{2, 0, 0, 0, 0, 0xbb}
)

// packet describes a frame; its zero fields take sensible values.
type packet struct {
	src, dst netip.AddrPort
	proto    uint8
	flags    byte // TCP
	payload  int
	ttl      uint8
	tos      uint8
	ext      []byte // raw IPv6 extension headers; the first's type is extType
	extType  uint8
	options  []byte // IPv4, a multiple of 4
}

func tcpPacket(src, dst string) packet {
	return packet{src: addrPort(src), dst: addrPort(dst), proto: 6, flags: flagACK, payload: 32, ttl: 64}
}

func udpPacket(src, dst string) packet {
	return packet{src: addrPort(src), dst: addrPort(dst), proto: 17, payload: 32, ttl: 64}
}

func (p packet) v6() bool { return p.dst.Addr().Is6() }

// frame returns the packet on the wire.
func (p packet) frame() []byte { return ethernet(p.ip()) }

func ethernet(ip []byte) []byte {
	f := slices.Concat(ourMAC, routerMAC, []byte{0x08, 0x00}, ip)
	if ip[0]>>4 == 6 {
		be.PutUint16(f[12:], 0x86dd)
	}
	return f
}

func (p packet) ip() []byte {
	l4 := p.transport()
	if p.v6() {
		return ip6Header(p, slices.Concat(p.ext, l4))
	}
	return ip4Header(p, l4)
}

func ip4Header(p packet, payload []byte) []byte {
	h := make([]byte, ip4Len, ip4Len+len(p.options)+len(payload))
	h = append(h, p.options...)
	h[0] = 0x40 | byte(len(h)/4)
	h[1] = p.tos
	be.PutUint16(h[2:], uint16(len(h)+len(payload)))
	h[6] = 0x40
	h[8], h[9] = p.ttl, p.proto
	src, dst := p.src.Addr().As4(), p.dst.Addr().As4()
	copy(h[12:], src[:])
	copy(h[16:], dst[:])
	be.PutUint16(h[10:], ^sum(0, h))
	return append(h, payload...)
}

func ip6Header(p packet, payload []byte) []byte {
	h := make([]byte, ip6Len, ip6Len+len(payload))
	be.PutUint32(h, 6<<28|uint32(p.tos)<<20)
	be.PutUint16(h[4:], uint16(len(payload)))
	h[6], h[7] = p.proto, p.ttl
	if len(p.ext) > 0 {
		h[6] = p.extType
	}
	src, dst := p.src.Addr().As16(), p.dst.Addr().As16()
	copy(h[8:], src[:])
	copy(h[24:], dst[:])
	return append(h, payload...)
}

func (p packet) transport() []byte {
	var h []byte
	at := 0 // of the checksum
	switch p.proto {
	case 6:
		h, at = make([]byte, 20+p.payload), 16
		h[12], h[13] = 5<<4, p.flags
		be.PutUint16(h[14:], 0xffff)
	case 17:
		h, at = make([]byte, 8+p.payload), 6
		be.PutUint16(h[4:], uint16(len(h)))
	default:
		return make([]byte, 8+p.payload)
	}
	be.PutUint16(h, p.src.Port())
	be.PutUint16(h[2:], p.dst.Port())
	pseudo := binary.BigEndian.AppendUint16(nil, uint16(len(h)))
	pseudo = append(pseudo, 0, p.proto)
	pseudo = append(append(pseudo, p.src.Addr().AsSlice()...), p.dst.Addr().AsSlice()...)
	be.PutUint16(h[at:], ^sum(sum(0, pseudo), h))
	return h
}

// sum is the Internet checksum's sum (RFC 1071), not inverted.
func sum(start uint16, b []byte) uint16 {
	s := uint32(start)
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(be.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// wrap puts an IP packet into a tunnel.
func wrap(src, dst netip.Addr, gue bool, inner []byte) []byte {
	p := packet{src: netip.AddrPortFrom(src, 0xc123), dst: netip.AddrPortFrom(dst, 6080), proto: 4, ttl: 64}
	if inner[0]>>4 == 6 {
		p.proto = 41
	}
	payload := inner
	if gue {
		p.proto = 17
		udp := make([]byte, 8)
		be.PutUint16(udp, p.src.Port())
		be.PutUint16(udp[2:], p.dst.Port())
		be.PutUint16(udp[4:], uint16(8+len(inner)))
		payload = append(udp, inner...)
	}
	if dst.Is6() {
		return ethernet(ip6Header(p, payload))
	}
	return ethernet(ip4Header(p, payload))
}

// with returns a copy of a frame with bytes replaced at an offset.
func with(frame []byte, at int, b ...byte) []byte {
	f := slices.Clone(frame)
	copy(f[at:], b)
	return f
}

// tagged puts a VLAN tag in front of the others.
func tagged(f []byte, ethertype, tci uint16) []byte {
	tag := be.AppendUint16(be.AppendUint16(nil, ethertype), tci)
	return slices.Insert(slices.Clone(f), 12, tag...)
}

// icmpPacket is an ICMP packet from a client, of the family of dst.
func icmpPacket(src, dst string, kind byte, body []byte) []byte {
	p := packet{src: addrPort(src), dst: addrPort(dst), proto: 1, ttl: 64}
	icmp := append([]byte{kind, 0, 0, 0, 0, 7, 0, 9}, body...)
	if p.v6() {
		p.proto = 58
		pseudo := slices.Concat(p.src.Addr().AsSlice(), p.dst.Addr().AsSlice(), be.AppendUint32(nil, uint32(len(icmp))), []byte{0, 0, 0, 58})
		be.PutUint16(icmp[2:], ^sum(sum(0, pseudo), icmp))
		return ip6Header(p, icmp)
	}
	be.PutUint16(icmp[2:], ^sum(0, icmp))
	return ip4Header(p, icmp)
}

// answerTo is the first bytes of the answer to a packet, as an error quotes it.
func answerTo(p packet, n int) []byte {
	p.src, p.dst = p.dst, p.src
	return p.ip()[:n]
}
