package model

import (
	"encoding/binary"
	"net/netip"
)

// Protocol numbers (IANA).
const (
	protoHopByHop = 0
	protoICMP     = 1
	protoIPIP     = 4
	protoTCP      = 6
	protoUDP      = 17
	protoIPv6     = 41
	protoRouting  = 43
	protoFragment = 44
	protoGRE      = 47
	protoESP      = 50
	protoAH       = 51
	protoICMPv6   = 58
	protoDstOpts  = 60
)

// packet is an IP packet, as far as it was parsed.
type packet struct {
	ip       []byte // the whole packet without what pads its frame
	rest     []byte // what follows the headers parsed so far
	tuple    Tuple
	tos, ttl uint8
	// plain says that the IP header has neither options nor extension headers.
	plain bool
	// fragment is any fragment, later one that does not begin the datagram.
	fragment, later bool
	syn, rst        bool // of TCP; syn: opens a connection
	// icmpError says that the tuple is that of the flow which the packet quotes.
	icmpError bool
	// shortID are the bytes of UDP from the connection id of a QUIC short header
	// on; nil if there is none, as in fragments and errors.
	shortID []byte
}

// icmp is the protocol number of the family's ICMP.
func (t Tuple) icmp() uint8 {
	if t.V6 {
		return protoICMPv6
	}
	return protoICMP
}

// mapped returns the 16 bytes that stand for an IPv4 address.
func mapped(ip4 []byte) [16]byte { return netip.AddrFrom4([4]byte(ip4)).As16() }

// destination reads whom a packet is for, before anything else is believed.
func destination(b []byte, v6 bool) (dst [16]byte, v Verdict) {
	switch {
	case v6 && len(b) < ip6Len, !v6 && len(b) < ip4Len:
		return dst, PassTruncatedIP
	case !v6:
		return mapped(b[16:20]), Undecided
	}
	dst = [16]byte(b[24:40])
	if netip.AddrFrom16(dst).Is4In6() {
		// It would pass for the IPv4 address in our maps.
		return dst, PassNotVIP
	}
	return dst, Undecided
}

// parseIP parses the IP headers of a packet. b holds at least the fixed one, and
// perhaps more than the packet.
func parseIP(b []byte, v6 bool) (packet, Verdict) {
	if v6 {
		return parse6(b)
	}
	return parse4(b)
}

func parse4(b []byte) (packet, Verdict) {
	head, total := headLen(b), int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case b[0]>>4 != 4:
		return packet{}, DropBadVersion
	case head < ip4Len:
		return packet{}, DropBadHeader
	case total < head || total > len(b):
		return packet{}, DropBadLength
	case Tuple{Src: mapped(b[12:16]), Dst: mapped(b[16:20])}.badSource():
		return packet{}, DropBadSource
	}
	more, offset := splitFragment4(b)
	return packet{
		ip:       b[:total],
		rest:     b[head:total],
		tuple:    Tuple{Src: mapped(b[12:16]), Dst: mapped(b[16:20]), Proto: b[9]},
		tos:      b[1],
		ttl:      b[8],
		plain:    head == ip4Len,
		fragment: more || offset != 0,
		later:    offset != 0,
	}, Undecided
}

// headLen is the length of an IPv4 header, as it says itself.
func headLen(b []byte) int { return int(b[0]&15) * 4 }

// splitFragment4 reads "more fragments" and the fragment offset (RFC 791).
func splitFragment4(b []byte) (more bool, offset int) {
	word := int(binary.BigEndian.Uint16(b[6:]))
	return word&0x2000 != 0, word & 0x1fff
}

func parse6(b []byte) (packet, Verdict) {
	total := ip6Len + int(binary.BigEndian.Uint16(b[4:]))
	src := netip.AddrFrom16([16]byte(b[8:24]))
	switch {
	case b[0]>>4 != 6:
		return packet{}, DropBadVersion
	case total > len(b):
		return packet{}, DropBadLength
	case Tuple{V6: true, Src: src.As16(), Dst: [16]byte(b[24:40])}.badSource():
		return packet{}, DropBadSource
	}
	c, v := walk(b[6], b[ip6Len:total])
	return packet{
		ip:       b[:total],
		rest:     c.rest,
		tuple:    Tuple{V6: true, Src: src.As16(), Dst: [16]byte(b[24:40]), Proto: c.proto},
		tos:      b[0]<<4 | b[1]>>4,
		ttl:      b[7],
		plain:    c.headers == 0,
		fragment: c.fragment,
		later:    c.later,
	}, v
}

// chain is where a walk over IPv6 extension headers has come to.
type chain struct {
	proto           uint8
	rest            []byte
	headers         int
	fragment, later bool
}

// walk steps over extension headers to the protocol behind them. Of a fragment it
// ends at the fragment header: what that names is all that a later one says, and
// all must say the same. One that names an extension header cannot be placed.
func walk(proto uint8, b []byte) (chain, Verdict) {
	const most = 6
	c, split := chain{proto: proto, rest: b}, false
	for ; isExtension(c.proto); c.headers++ {
		size := extensionLen(c.proto, c.rest)
		switch {
		case c.headers == most || c.fragment:
			return c, DropExtHeaders
		case len(c.rest) < size:
			return c, DropTruncated
		case c.proto == protoFragment && split:
			return c, DropBadHeader
		}
		if c.proto == protoFragment {
			split = true
			word := binary.BigEndian.Uint16(c.rest[2:])
			c.later = word&0xfff8 != 0
			c.fragment = c.later || word&1 != 0
		}
		c.proto, c.rest = c.rest[0], c.rest[size:]
	}
	return c, Undecided
}

func isExtension(proto uint8) bool {
	switch proto {
	case protoHopByHop, protoRouting, protoFragment, protoAH, protoDstOpts:
		return true
	}
	return false
}

// extensionLen is the length of the extension header at the beginning of b, at
// least 8; it may be more than there is.
func extensionLen(proto uint8, b []byte) int {
	switch {
	case len(b) < 8 || proto == protoFragment:
		return 8
	case proto == protoAH:
		return (int(b[1]) + 2) * 4 // RFC 4302: words of 4 bytes, minus 2
	}
	return (int(b[1]) + 1) * 8
}

// parseTransport parses what follows the IP headers down to the ports.
func (p *packet) parseTransport() Verdict {
	icmp := p.tuple.Proto == p.tuple.icmp()
	switch {
	case p.fragment && icmp:
		return PassICMP
	case p.fragment:
		return Undecided
	case icmp && len(p.rest) < 8:
		return DropTruncated
	case p.tuple.Proto == protoTCP:
		return p.parseTCP()
	case p.tuple.Proto == protoUDP:
		return p.parseUDP()
	}
	return Undecided
}

func (p *packet) parseTCP() Verdict {
	if len(p.rest) < 20 {
		return DropTruncated
	}
	if head := int(p.rest[12]>>4) * 4; head < 20 || head > len(p.rest) {
		return DropBadTCP
	}
	const syn, rst, ack = 0x02, 0x04, 0x10
	flags := p.rest[13]
	p.syn, p.rst = flags&(syn|ack) == syn, flags&rst != 0
	p.readPorts()
	return Undecided
}

func (p *packet) parseUDP() Verdict {
	if len(p.rest) < 8 {
		return DropTruncated
	}
	size := int(binary.BigEndian.Uint16(p.rest[4:]))
	if size < 8 || size > len(p.rest) {
		return DropBadUDP
	}
	// A header without the uppermost bit is QUIC's short one (RFC 9000 section 17.3).
	if payload := p.rest[8:size]; len(payload) > 0 && payload[0]&0x80 == 0 {
		p.shortID = payload[1:]
	}
	p.readPorts()
	return Undecided
}

func (p *packet) readPorts() {
	p.tuple.SPort = binary.BigEndian.Uint16(p.rest)
	p.tuple.DPort = binary.BigEndian.Uint16(p.rest[2:])
}
