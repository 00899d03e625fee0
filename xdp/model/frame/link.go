package frame

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Link is the Ethernet header of a frame.
type Link struct {
	Dst, Src [6]byte
	Tags     []Tag // outer first
}

// Tag is a VLAN tag: its ethertype, and the 16 bits behind it.
type Tag struct{ Type, TCI uint16 }

// Frame puts an IP packet on the wire.
func (l Link) Frame(ip []byte) []byte {
	f := slices.Concat(l.Dst[:], l.Src[:])
	for _, t := range l.Tags {
		f = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(f, t.Type), t.TCI)
	}
	ethertype := uint16(0x0800)
	if len(ip) > 0 && ip[0]>>4 == 6 {
		ethertype = 0x86dd
	}
	return append(binary.BigEndian.AppendUint16(f, ethertype), ip...)
}

// Pad fills a frame up to n bytes, as Ethernet does.
func Pad(frame []byte, n int) []byte {
	return append(slices.Clone(frame), make([]byte, max(0, n-len(frame)))...)
}

// Error returns an ICMP error that quotes the first n bytes of a packet, from a
// router to the packet's source.
func Error(router netip.Addr, kind, code uint8, quote []byte) Packet {
	p := Packet{Src: netip.AddrPortFrom(router, 0), Proto: ICMP, Type: kind, Code: code, Payload: quote}
	if quote[0]>>4 == 6 {
		p.Proto = ICMPv6
		p.Dst = netip.AddrPortFrom(netip.AddrFrom16([16]byte(quote[8:24])), 0)
	} else {
		p.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(quote[12:16])), 0)
	}
	return p
}

// GUEPort is the destination port of GUE (IANA).
const GUEPort = 6080

// Tunnel puts an IP packet into GUE (variant 1) or IPIP.
func Tunnel(src, dst netip.Addr, gue bool, inner []byte) Packet {
	p := Packet{Src: netip.AddrPortFrom(src, 0xc123), Dst: netip.AddrPortFrom(dst, GUEPort), Proto: 4, Payload: inner}
	switch {
	case gue:
		p.Proto = UDP
	case len(inner) > 0 && inner[0]>>4 == 6:
		p.Proto = 41
	}
	return p
}

// ShortHeader is the payload of a QUIC packet with a short header (RFC 9000
// section 17.3), LongHeader of an Initial packet.
func ShortHeader(connection []byte, payload int) []byte {
	return slices.Concat([]byte{0x40}, connection, make([]byte, payload))
}

// LongHeader is the payload of a QUIC Initial packet (RFC 9000 section 17.2).
func LongHeader(connection []byte, payload int) []byte {
	head := []byte{0xc0, 0, 0, 0, 1, byte(len(connection))}
	return slices.Concat(head, connection, []byte{0}, make([]byte, payload))
}
