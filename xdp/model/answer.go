package model

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

const (
	icmpLen = 8
	// What an error may be at most, so that it gets through anywhere: RFC 1812
	// section 4.3.2.3, RFC 4443 section 2.4.
	maxError4 = 576
	maxError6 = 1280
)

// echo answers an echo request in place.
func (d *decision) echo() Verdict {
	if !d.p.plain {
		return PassICMP // what it carries in options, the stack knows to answer
	}
	b, icmp := slices.Clone(d.p.ip), ip4Len
	if d.p.tuple.V6 {
		icmp = ip6Len
		b[7] = ourTTL
		copy(b[8:], slices.Concat(b[24:40], b[8:24]))
	} else {
		b[8] = ourTTL
		copy(b[12:], slices.Concat(b[16:20], b[12:16]))
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], checksum(b[:ip4Len]))
	}
	message := b[icmp:]
	was := binary.BigEndian.Uint16(message)
	message[0] = 0
	if d.p.tuple.V6 {
		message[0] = 129
	}
	is := binary.BigEndian.Uint16(message)
	binary.BigEndian.PutUint16(message[2:], mend(binary.BigEndian.Uint16(message[2:]), was, is))
	return d.answer(b, TXEcho)
}

// answer sends a packet back to where the frame came from.
func (d *decision) answer(ip []byte, v Verdict) Verdict {
	d.Out, d.Egress = d.in.back().frame(ip), d.w.Ingress
	return v
}

// tooBig tells the sender what fits to the backend, in bytes.
func (d *decision) tooBig(fits int) Verdict {
	switch {
	case d.p.later || d.p.icmpError:
		// Of those nobody may be told (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
		return DropTooBig
	case d.still:
		return TXTooBig
	case len(d.p.ip) < d.p.leastError():
		// No answer is longer than what it answers.
		return DropTooBig
	case !d.w.tellTooBig(d.now):
		return DropTooBigLimited
	}
	if d.p.tuple.V6 {
		return d.answer(d.packetTooBig(max(fits, maxError6)), TXTooBig)
	}
	return d.answer(d.fragmentationNeeded(max(fits, 0)), TXTooBig)
}

// leastError is the length of an answer that says "too big", which quotes as much
// as may be.
func (p packet) leastError() int {
	if p.tuple.V6 {
		return maxError6
	}
	return maxError4
}

// fragmentationNeeded is ICMP type 3 code 4 (RFC 1191 section 4).
func (d *decision) fragmentationNeeded(mtu int) []byte {
	message := []byte{3, 4, 0, 0, 0, 0}
	message = binary.BigEndian.AppendUint16(message, uint16(mtu))
	message = append(message, d.p.ip[:maxError4-ip4Len-icmpLen]...)
	binary.BigEndian.PutUint16(message[2:], checksum(message))
	return d.reply(protoICMP, message)
}

// packetTooBig is ICMPv6 type 2 (RFC 4443 section 3.2).
func (d *decision) packetTooBig(mtu int) []byte {
	message := []byte{2, 0, 0, 0}
	message = binary.BigEndian.AppendUint32(message, uint32(mtu))
	message = append(message, d.p.ip[:maxError6-ip6Len-icmpLen]...)
	pseudo := slices.Concat(d.p.tuple.Dst[:], d.p.tuple.Src[:])
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(message)))
	pseudo = append(pseudo, 0, 0, 0, protoICMPv6)
	binary.BigEndian.PutUint16(message[2:], checksum(append(pseudo, message...)))
	return d.reply(protoICMPv6, message)
}

// reply is a packet from the VIP to the sender.
func (d *decision) reply(proto uint8, message []byte) []byte {
	h := header{
		proto: proto,
		src:   netip.AddrFrom16(d.p.tuple.Dst).Unmap(),
		dst:   netip.AddrFrom16(d.p.tuple.Src).Unmap(),
	}
	return append(h.bytes(len(message)), message...)
}
