package model

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/catchment-dev/edge"
)

const (
	gueHeader = 8 // the UDP header alone (GUE variant 1)
	guePort   = 6080
	ourTTL    = 64
	dscpMask  = 0xfc
	maxIPLen  = 65535
)

// leave sends a packet on to the backend that was chosen.
func (d *decision) leave() Verdict {
	b := d.w.Backends[d.Backend]
	switch {
	case b.Local:
		d.say("backend", "it is this box", d.Backend)
		return PassLocal
	case d.p.ttl <= 1:
		d.say("backend", "no hop is left to get there", d.Backend)
		return DropTTL
	}
	q := d.query(b)
	if q.Length > maxIPLen {
		return DropTooBig
	}
	a := d.w.Route(q)
	switch {
	case a.MTU != 0 && q.Length > a.MTU:
		d.say("route", "the packet does not fit with its outer headers", 0)
		return d.tooBig(a.MTU - overhead(d.svc, b))
	case a.Verdict != Undecided:
		d.say("route", edge.Reason(a.Verdict.String()), 0)
		return a.Verdict
	}
	d.say("route", "found", 0)
	out := d.exit(q.Ifindex, a)
	out.v6 = b.Addr.Is6()
	d.Out = out.frame(slices.Concat(d.outer(q), age(d.p)))
	if d.Egress == d.w.Ingress {
		return TXBackend
	}
	return RedirectBackend
}

// overhead is what is put before a packet to a backend, in bytes.
func overhead(s *Service, b Backend) int {
	n := ip4Len
	if b.Addr.Is6() {
		n = ip6Len
	}
	if s.GUE {
		n += gueHeader
	}
	return n
}

// source is the outer source of a family.
func (s *Service) source(v6 bool) netip.Addr {
	switch {
	case v6 && s.Source6.IsValid():
		return s.Source6
	case v6:
		return netip.IPv6Unspecified()
	case s.Source4.IsValid():
		return s.Source4
	}
	return netip.IPv4Unspecified()
}

// query is what the route of the outer packet is asked with.
func (d *decision) query(b Backend) RouteQuery {
	q := RouteQuery{
		Ifindex: d.w.Ingress, Src: d.svc.source(b.Addr.Is6()), Dst: b.Addr, Proto: protoIPIP,
		// DSCP alone: the receiving end takes no congestion marks over into the
		// packet, so none may be made (RFC 6040, compatibility mode).
		TOS:    d.p.tos & dscpMask,
		Length: len(d.p.ip) + overhead(d.svc, b),
	}
	if key, tagged := d.in.key(d.w.Ingress); tagged {
		if sub, ok := d.w.VLANIn[key]; ok {
			q.Ifindex = sub
		}
	}
	if d.p.tuple.V6 {
		q.Proto = protoIPv6
	}
	if d.svc.GUE {
		_, hash := d.hashes()
		q.Proto, q.SPort, q.DPort = protoUDP, 0xc000|uint16(hash>>32&0x3fff), guePort
	}
	return q
}

// exit says by which interface and with which tags a routed packet leaves, that
// was taken to have come in on the interface asked.
func (d *decision) exit(asked uint32, a RouteAnswer) link {
	out := link{dst: a.DMAC, src: a.SMAC}
	if below, ok := d.w.VLANOut[a.Ifindex]; ok {
		d.Egress, out.tags = below.Ifindex, below.Tags
		return out
	}
	d.Egress = a.Ifindex
	if a.Ifindex == d.w.Ingress && asked == d.w.Ingress {
		// Back into the same VLAN, of which this box knows nothing.
		out.tags = d.in.tags
	}
	return out
}

// outer are the headers around a packet.
func (d *decision) outer(q RouteQuery) []byte {
	h := header{proto: q.Proto, tos: q.TOS, src: q.Src, dst: q.Dst, dontFragment: true}
	size := q.Length - ip4Len
	if q.Dst.Is6() {
		// The flow label is entropy for routers (RFC 6438).
		_, hash := d.hashes()
		h.label, size = uint32(hash>>40&0xfffff), q.Length-ip6Len
	}
	b := h.bytes(size)
	if d.svc.GUE {
		// No checksum: the packet inside has its own (RFC 6935).
		for _, field := range []uint16{q.SPort, q.DPort, uint16(size), 0} {
			b = binary.BigEndian.AppendUint16(b, field)
		}
	}
	return b
}

// header is an IP header of ours, of the family of its addresses: TTL 64, no
// options, and in IPv4 no identification, for it is never fragmented (RFC 6864).
type header struct {
	proto, tos   uint8
	label        uint32 // of IPv6
	src, dst     netip.Addr
	dontFragment bool // of IPv4
}

// bytes returns the header before so many bytes of payload.
func (h header) bytes(payload int) []byte {
	if h.dst.Is6() {
		b := binary.BigEndian.AppendUint32(nil, 6<<28|uint32(h.tos)<<20|h.label)
		b = append(binary.BigEndian.AppendUint16(b, uint16(payload)), h.proto, ourTTL)
		return slices.Concat(b, h.src.AsSlice(), h.dst.AsSlice())
	}
	b := binary.BigEndian.AppendUint16([]byte{4<<4 | ip4Len/4, h.tos}, uint16(ip4Len+payload))
	flags := byte(0)
	if h.dontFragment {
		flags = 0x40
	}
	b = append(b, 0, 0, flags, 0, ourTTL, h.proto, 0, 0)
	b = slices.Concat(b, h.src.AsSlice(), h.dst.AsSlice())
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return b
}

// age takes one hop off a packet.
func age(p packet) []byte {
	b := slices.Clone(p.ip)
	if p.tuple.V6 {
		b[7]--
		return b
	}
	was := binary.BigEndian.Uint16(b[8:])
	b[8]--
	binary.BigEndian.PutUint16(b[10:], mend(binary.BigEndian.Uint16(b[10:]), was, binary.BigEndian.Uint16(b[8:])))
	return b
}

// checksum is the Internet checksum of b (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint64(0)
	for ; len(b) >= 2; b = b[2:] {
		sum += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	return ^fold(sum)
}

func fold(sum uint64) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// mend is the checksum after one word has changed (RFC 1624, equation 3): what
// was wrong stays wrong.
func mend(sum, was, is uint16) uint16 {
	return ^fold(uint64(^sum) + uint64(^was) + uint64(is))
}
