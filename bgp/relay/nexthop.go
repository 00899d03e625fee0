package relay

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/catchment-dev/edge/bgp/wire"
)

const (
	attrMPReach  = 14   // RFC 4760 section 3
	flagExtended = 0x10 // the length has two bytes (RFC 4271 section 4.3)
	maxMessage   = 4096 // RFC 4271 section 4.1
)

// linkHop is the next hop of a session over link-local addresses. The router
// need not share more than the link with us, and the global address that GoBGP
// names is of use to it only if it is of a subnet of the link: BIRD and FRR refuse
// one that they are not connected to. Our own address of the session always is.
type linkHop struct {
	own      netip.Addr     // without a zone
	subnets  []netip.Prefix // those of the link that are not link-local
	external bool           // eBGP
}

// newLinkHop returns nil for a session over other addresses. The subnets are
// those at this moment: what is sent stays right if they change, since our own
// address is always in it.
func newLinkHop(s *session) *linkHop {
	own := s.conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().WithZone("")
	if !linkLocal(own) {
		return nil
	}
	c := s.p.config()
	out := &linkHop{own: own, external: c.Peer.ASN != c.ASN}
	s.p.h.inside(func() {
		link, err := net.InterfaceByName(s.p.link)
		if err != nil {
			return // gone: so is the session, soon
		}
		addrs, _ := link.Addrs()
		for _, a := range addrs {
			if n, err := netip.ParsePrefix(a.String()); err == nil && n.Addr().Is6() && !linkLocal(n.Addr()) && n.Bits() < 128 {
				out.subnets = append(out.subnets, n.Masked())
			}
		}
	})
	return out
}

// of is what is sent in the place of a next hop: it and our own address if the
// router is on a subnet with it (RFC 2545 section 3), else our own address in both
// places, as FRR does it. (RFC 2545 has no word for that case. BIRD and FRR also
// take it once, or behind an unspecified address.) In iBGP a next hop is looked up
// in the routes of the AS, so it stays.
func (l *linkHop) of(hop netip.Addr) []netip.Addr {
	switch {
	case slices.ContainsFunc(l.subnets, func(n netip.Prefix) bool { return n.Contains(hop) }):
		return []netip.Addr{hop, l.own}
	case l.external:
		return []netip.Addr{l.own, l.own}
	}
	return []netip.Addr{hop}
}

// apply returns an UPDATE of GoBGP with the next hop of its MP_REACH_NLRI, if it
// has one of 16 bytes, made that of the link. GoBGP v3 would write one address
// only, and does not know the one of the session.
func (l *linkHop) apply(raw []byte) []byte {
	lens := wire.HeaderLen
	if len(raw) < lens+4 {
		return raw
	}
	lens += 2 + int(binary.BigEndian.Uint16(raw[lens:])) // behind the withdrawn routes
	if len(raw) < lens+2 {
		return raw
	}
	end := min(len(raw), lens+2+int(binary.BigEndian.Uint16(raw[lens:])))
	for pos := lens + 2; pos+4 <= end; {
		value, size := pos+3, int(raw[pos+2])
		if raw[pos]&flagExtended != 0 {
			value, size = pos+4, int(binary.BigEndian.Uint16(raw[pos+2:]))
		}
		next := value + size
		if next > end {
			break
		}
		if raw[pos+1] == attrMPReach && size > 20 && raw[value+3] == 16 {
			hops := l.of(netip.AddrFrom16([16]byte(raw[value+4 : value+20])))
			out := replaceHop(raw, lens, [3]int{pos, value, next}, hops)
			if len(out) > maxMessage { // no room: the one that is always right
				out = replaceHop(raw, lens, [3]int{pos, value, next}, hops[1:])
			}
			return out
		}
		pos = next
	}
	return raw
}

// replaceHop puts hops in the place of the next hop of an MP_REACH_NLRI, of which
// at are the places where it begins, where its value does, and where it ends. The
// length of all attributes is at lens.
func replaceHop(raw []byte, lens int, at [3]int, hops []netip.Addr) []byte {
	start, value, end := at[0], at[1], at[2]
	size := end - value + 16*(len(hops)-1)
	out := append(slices.Clone(raw[:start]), raw[start], attrMPReach, byte(size))
	if value-start == 4 || size > 255 {
		out[start] |= flagExtended
		out = append(out[:start+2], byte(size>>8), byte(size))
	}
	out = append(out, raw[value:value+3]...) // AFI, SAFI
	out = append(out, byte(16*len(hops)))
	for _, hop := range hops {
		out = append(out, hop.AsSlice()...)
	}
	out = append(out, raw[value+20:]...)
	grown := len(out) - len(raw)
	binary.BigEndian.PutUint16(out[lens:], binary.BigEndian.Uint16(raw[lens:])+uint16(grown))
	binary.BigEndian.PutUint16(out[wire.HeaderLen-3:], uint16(len(out)))
	return out
}
