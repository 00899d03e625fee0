// Package frame builds the frames that the data plane is tested with: good ones
// of every kind, random ones, and damaged ones.
//
// It is for tests alone, and shares no code with what it tests: package model
// parses, this builds. It holds nothing between calls.
package frame

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Protocol numbers (IANA).
const (
	ICMP     = 1
	TCP      = 6
	UDP      = 17
	GRE      = 47
	ESP      = 50
	ICMPv6   = 58
	SCTP     = 132
	HopByHop = 0
	Routing  = 43
	AH       = 51
	DstOpts  = 60
	// FragmentHeader is the extension header of IPv6; see Fragments.
	FragmentHeader = 44
)

// Flags of TCP.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// Lengths of headers, in bytes.
const (
	EthernetLen = 14
	IPv4Len     = 20
	IPv6Len     = 40
)

// Packet describes an IP packet of the family of Dst. Its zero fields are zero
// on the wire but for lengths, checksums and TTL 0, which is 64.
type Packet struct {
	Src, Dst netip.AddrPort
	Proto    uint8
	TTL, TOS uint8
	ID       uint16 // of IPv4
	// DontFragment is of IPv4.
	DontFragment bool
	Flags        byte // of TCP
	// Type, Code and Rest are of ICMP and ICMPv6.
	Type, Code uint8
	Rest       [4]byte
	// Payload is what follows the headers that are known here: those of TCP, UDP,
	// ICMP, and GRE and ESP with 8 bytes.
	Payload []byte
	Options []byte   // of IPv4, a multiple of 4
	Headers []Header // of IPv6: extension headers
}

// Header is an IPv6 extension header. Body is all of it but the first byte, the
// protocol of the next.
type Header struct {
	Type uint8
	Body []byte
}

// Option returns a hop-by-hop, routing or destination header of 8 bytes that
// says nothing.
func Option(kind uint8) Header { return Header{kind, []byte{0, 1, 4, 0, 0, 0, 0}} }

// Authentication returns an AH header of 12 bytes.
func Authentication() Header { return Header{AH, append([]byte{1}, make([]byte, 10)...)} }

// Atomic returns a fragment header of a whole datagram.
func Atomic() Header { return Header{FragmentHeader, make([]byte, 7)} }

// IP returns the packet from the IP header on.
func (p Packet) IP() []byte {
	if p.TTL == 0 {
		p.TTL = 64
	}
	if p.Dst.Addr().Is6() {
		return p.ip6(p.transport())
	}
	return p.ip4(p.transport())
}

func (p Packet) ip4(payload []byte) []byte {
	h := append(make([]byte, IPv4Len), p.Options...)
	h[0] = 0x40 | byte(len(h)/4)
	h[1] = p.TOS
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(payload)))
	binary.BigEndian.PutUint16(h[4:], p.ID)
	if p.DontFragment {
		h[6] = 0x40
	}
	h[8], h[9] = p.TTL, p.Proto
	src, dst := p.Src.Addr().As4(), p.Dst.Addr().As4()
	copy(h[12:], src[:])
	copy(h[16:], dst[:])
	return append(SumIPv4(h), payload...)
}

// SumIPv4 makes the header checksum of an IPv4 packet valid, in place.
func SumIPv4(ip []byte) []byte {
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^Sum(ip[:min(len(ip), int(ip[0]&15)*4)]))
	return ip
}

func (p Packet) ip6(payload []byte) []byte {
	h := binary.BigEndian.AppendUint32(nil, 6<<28|uint32(p.TOS)<<20)
	proto, chain := p.Proto, payload
	for _, e := range slices.Backward(p.Headers) {
		chain = slices.Concat([]byte{proto}, e.Body, chain)
		proto = e.Type
	}
	h = binary.BigEndian.AppendUint16(h, uint16(len(chain)))
	h = append(h, proto, p.TTL)
	return slices.Concat(h, p.Src.Addr().AsSlice(), p.Dst.Addr().AsSlice(), chain)
}

func (p Packet) transport() []byte {
	var b []byte
	sum := -1 // where the checksum is
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, p.Src.Port()), p.Dst.Port())
	switch p.Proto {
	case TCP:
		b, sum = slices.Concat(ports, make([]byte, 8), []byte{5 << 4, p.Flags, 0xff, 0xff, 0, 0, 0, 0}), 16
	case UDP:
		b, sum = append(binary.BigEndian.AppendUint16(ports, uint16(8+len(p.Payload))), 0, 0), 6
	case ICMP, ICMPv6:
		b, sum = append([]byte{p.Type, p.Code, 0, 0}, p.Rest[:]...), 2
	case GRE, ESP:
		b = make([]byte, 8)
	}
	b = append(b, p.Payload...)
	if sum < 0 {
		return b
	}
	var pseudo []byte
	if p.Proto != ICMP { // the only one without a pseudo header
		pseudo = slices.Concat(p.Src.Addr().AsSlice(), p.Dst.Addr().AsSlice(), []byte{0, p.Proto, byte(len(b) >> 8), byte(len(b))})
	}
	binary.BigEndian.PutUint16(b[sum:], ^Sum(slices.Concat(pseudo, b)))
	return b
}

// Sum is the sum of the Internet checksum (RFC 1071), not inverted: 0xffff of
// what holds a valid one.
func Sum(b []byte) uint16 {
	s := uint32(0)
	for i, v := range b {
		if i%2 == 0 {
			s += uint32(v) << 8
		} else {
			s += uint32(v)
		}
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// Fragments cuts a packet into fragments with at most size bytes of payload
// each, a multiple of 8. It takes no IPv6 packet with extension headers.
func Fragments(ip []byte, id uint32, size int) [][]byte {
	head := IPv6Len
	if ip[0]>>4 == 4 {
		head = int(ip[0]&15) * 4
	}
	var all [][]byte
	payload := ip[head:]
	for at := 0; at == 0 || at < len(payload); at += size {
		end := min(at+size, len(payload))
		all = append(all, fragment(ip[:head], payload[at:end], place{id, at, end < len(payload)}))
	}
	return all
}

// place is where a fragment belongs.
type place struct {
	id     uint32
	offset int // bytes
	more   bool
}

func fragment(head, payload []byte, p place) []byte {
	f := slices.Clone(head)
	if head[0]>>4 == 4 {
		binary.BigEndian.PutUint16(f[2:], uint16(len(f)+len(payload)))
		binary.BigEndian.PutUint16(f[4:], uint16(p.id))
		word := uint16(p.offset / 8)
		if p.more {
			word |= 0x2000
		}
		binary.BigEndian.PutUint16(f[6:], word)
		return append(SumIPv4(f), payload...)
	}
	word := uint16(p.offset)
	if p.more {
		word |= 1
	}
	ext := binary.BigEndian.AppendUint16([]byte{f[6], 0}, word)
	ext = binary.BigEndian.AppendUint32(ext, p.id)
	f[6] = FragmentHeader
	binary.BigEndian.PutUint16(f[4:], uint16(len(ext)+len(payload)))
	return slices.Concat(f, ext, payload)
}
