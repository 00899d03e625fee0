package frame

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

// Mutate returns a copy of a frame that is damaged in one to three places. It
// has 14 bytes at least and never grows by more than 200.
func Mutate(rnd *rand.Rand, frame []byte) []byte {
	f := slices.Clone(frame)
	for range 1 + rnd.IntN(3) {
		if len(f) < EthernetLen+1 {
			return f
		}
		f = damage(rnd, f)
	}
	return f
}

// damage changes one thing. Most of what a program could trip over is in the
// first headers, so most of the damage is there.
func damage(rnd *rand.Rand, f []byte) []byte {
	at := rnd.IntN(min(len(f), 160))
	switch rnd.IntN(12) {
	case 0: // cut off
		return f[:max(EthernetLen, at)]
	case 1: // cut off near the end
		return f[:max(EthernetLen, len(f)-1-rnd.IntN(20))]
	case 2: // padded
		return append(f, make([]byte, rnd.IntN(60))...)
	case 3: // a field at its edge
		edges := []uint16{0, 1, 7, 8, 19, 20, 21, 27, 28, 39, 40, 41, 0x1fff, 0x2000, 0x3fff, 0x4000, 0x7fff, 0x8100, 0x88a8, 0xffff,
			uint16(len(f)), uint16(len(f) - EthernetLen), uint16(len(f) - EthernetLen - IPv4Len), uint16(len(f) - EthernetLen - IPv6Len)}
		if at+2 <= len(f) {
			binary.BigEndian.PutUint16(f[at:], pick(rnd, edges))
		}
	case 4: // a piece of another place
		copy(f[at:], f[rnd.IntN(len(f)):])
	case 5:
		f[at] ^= 1 << rnd.IntN(8)
	case 6:
		return retag(rnd, f)
	case 7:
		damageIP(rnd, f)
	default:
		f[EthernetLen+rnd.IntN(min(64, len(f)-EthernetLen))] = byte(rnd.Uint32())
	}
	return f
}

// retag adds or removes a VLAN tag.
func retag(rnd *rand.Rand, f []byte) []byte {
	if kind := binary.BigEndian.Uint16(f[12:]); len(f) >= EthernetLen+4 && (kind == 0x8100 || kind == 0x88a8) && one(rnd, 2) {
		return slices.Delete(f, 12, 16)
	}
	tag := binary.BigEndian.AppendUint16(nil, pick(rnd, []uint16{0x8100, 0x88a8}))
	return slices.Insert(f, 12, binary.BigEndian.AppendUint16(tag, uint16(rnd.Uint32()))...)
}

// damageIP sets a field of the IP header to what somebody might send.
func damageIP(rnd *rand.Rand, f []byte) {
	ip := f[EthernetLen:]
	if len(ip) < IPv6Len {
		return
	}
	protocols := []byte{HopByHop, ICMP, 4, TCP, UDP, 41, Routing, FragmentHeader, GRE, ESP, AH, ICMPv6, 59, DstOpts, SCTP, 255}
	if ip[0]>>4 == 6 {
		switch rnd.IntN(4) {
		case 0:
			ip[6] = pick(rnd, protocols)
		case 1:
			ip[7] = byte(rnd.IntN(3))
		case 2: // the protocol behind the first extension header, or a port
			if len(ip) > IPv6Len {
				ip[IPv6Len] = pick(rnd, protocols)
			}
		default: // from the very host that it is for
			copy(ip[8:24], ip[24:40])
		}
		return
	}
	switch rnd.IntN(6) {
	case 0:
		ip[9] = pick(rnd, protocols)
	case 1:
		ip[8] = byte(rnd.IntN(3))
	case 2: // fragments
		binary.BigEndian.PutUint16(ip[6:], pick(rnd, []uint16{0x2000, 0x2001, 0x0001, 0x1fff, 0x4000, 0x8000, 0x6000}))
	case 3:
		ip[0] = 0x40 | byte(rnd.IntN(16))
	case 4:
		copy(ip[12:16], ip[16:20])
	default: // from where nobody is
		ip[12] = pick(rnd, []byte{0, 127, 224, 255})
	}
}
