package model

import (
	"encoding/binary"
	"net/netip"
)

// tunnel is the outside of a packet to a tunnel address of ours.
type tunnel struct {
	src   netip.Addr
	proto uint8
	head  int // bytes of outer headers
	// bad says that lengths or version lie, so that payload is not known.
	bad, fragment bool
	payload       []byte
}

func parseOuter(b []byte, v6 bool) tunnel {
	t := tunnel{head: ip4Len}
	var total int
	if v6 {
		t.head, t.proto, t.src = ip6Len, b[6], netip.AddrFrom16([16]byte(b[8:24]))
		total = ip6Len + int(binary.BigEndian.Uint16(b[4:]))
		t.bad = b[0]>>4 != 6 || t.src.Is4In6()
	} else {
		more, offset := splitFragment4(b)
		t.proto, t.src, t.fragment = b[9], netip.AddrFrom4([4]byte(b[12:16])), more || offset != 0
		total = int(binary.BigEndian.Uint16(b[2:]))
		t.bad = b[0] != 4<<4|ip4Len/4 // options: none of our packets has any
	}
	t.bad = t.bad || total < t.head || total > len(b)
	if !t.bad {
		t.payload = b[t.head:total]
	}
	return t
}

// isGUE says whether UDP is for our tunnel port, as far as it can be told.
func (t tunnel) isGUE() bool {
	return t.proto == protoUDP && !t.bad && !t.fragment && len(t.payload) >= gueHeader &&
		binary.BigEndian.Uint16(t.payload[2:]) == guePort
}

// open takes the outer headers off, for traffic that may come in. All that is
// no tunnel traffic is the stack's: it may be BGP, or a probe.
func (w *World) open(t tunnel) (tunnel, Verdict) {
	gue := t.isGUE()
	switch {
	case !gue && t.proto != protoIPIP && t.proto != protoIPv6:
		return t, PassNotVIP
	case t.bad:
		return t, DropDecapMalformed
	case !w.Trusted[t.src.As16()]:
		return t, DropDecapUntrusted
	case t.fragment:
		return t, DropFragment
	case !gue:
		return t, Undecided
	}
	size := int(binary.BigEndian.Uint16(t.payload[4:]))
	if size < gueHeader || size > len(t.payload) {
		return t, DropDecapMalformed
	}
	t.head += gueHeader
	t.payload = t.payload[gueHeader:size]
	return t, Undecided
}

// family says whether the packet inside is IPv6; not ok if it is no packet, or
// not what the outer protocol says. GUE does not say: in its variant 1 the first
// bits are the variant and the version at once.
func (t tunnel) family() (v6, ok bool) {
	switch {
	case len(t.payload) < ip4Len:
		return false, false
	case t.payload[0]>>4 == 4:
		return false, t.proto != protoIPv6
	case t.payload[0]>>4 == 6:
		return true, t.proto != protoIPIP && len(t.payload) >= ip6Len
	}
	return false, false
}

// decapsulate judges a packet to a tunnel address. What comes out of a tunnel is
// for this box: it never goes back out, so two boxes cannot play ping-pong.
func (d *decision) decapsulate() Verdict {
	t, v := d.w.open(parseOuter(d.in.payload, d.in.v6))
	if v != Undecided {
		return v
	}
	v6, ok := t.family()
	if !ok {
		return DropDecapMalformed
	}
	if _, v := destination(t.payload, v6); v != Undecided {
		return DropDecapMalformed
	}
	if v := d.inside(t.payload, v6); v != PassDecap {
		return v
	}
	out := d.in
	out.v6 = v6
	d.Out = out.frame(d.in.payload[t.head:])
	return PassDecap
}

// inside judges the packet in a tunnel: it must be one that the node which sent
// it would forward.
func (d *decision) inside(b []byte, v6 bool) Verdict {
	p, v := parseIP(b, v6)
	if v == Undecided {
		v = p.parseTransport()
	}
	switch icmp := p.tuple.Proto == p.tuple.icmp(); {
	case v.Action() == Drop:
		return v
	case v != Undecided || d.w.Addrs[p.tuple.Dst]&AddrKind != AddrVIP || icmp && !p.isError():
		return DropDecapNotVIP
	case icmp:
		if v = p.followQuote(); v == PassICMP {
			return DropDecapNotVIP
		} else if v != Undecided {
			return v
		}
	}
	id, v := d.w.service(&p)
	if v == PassNoService {
		return DropDecapNotVIP
	}
	d.Service, d.Length = id, len(p.ip)
	d.ICMPError, d.Fragment = p.icmpError, p.fragment
	return PassDecap
}
