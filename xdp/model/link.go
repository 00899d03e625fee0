package model

import (
	"encoding/binary"
	"slices"
)

const (
	ethLen = 14
	ip4Len = 20
	ip6Len = 40

	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
)

// link is the Ethernet header of a frame.
type link struct {
	dst, src [6]byte
	tags     []Tag
	v6       bool
	payload  []byte // from the IP header on, with what pads the frame
}

// splitEthernet takes a frame apart; the verdict is Undecided if it holds IP.
func splitEthernet(frame []byte) (link, Verdict) {
	if len(frame) < ethLen {
		return link{}, PassNotIP
	}
	l := link{dst: [6]byte(frame[:6]), src: [6]byte(frame[6:12])}
	if l.dst[0]&1 != 0 {
		return l, PassMulticastMAC
	}
	words := frame[12:]
	for isTag(binary.BigEndian.Uint16(words)) {
		// Behind the tag is the next ethertype.
		if len(l.tags) == 2 || len(words) < 6 {
			return l, PassVLAN
		}
		l.tags = append(l.tags, Tag{binary.BigEndian.Uint16(words), binary.BigEndian.Uint16(words[2:])})
		words = words[4:]
	}
	l.payload = words[2:]
	switch binary.BigEndian.Uint16(words) {
	case etherIPv4:
		return l, Undecided
	case etherIPv6:
		l.v6 = true
		return l, Undecided
	}
	return l, PassNotIP
}

func isTag(ethertype uint16) bool { return ethertype == 0x8100 || ethertype == 0x88a8 }

// key is how World.VLANIn knows the tags of a packet; not ok without any.
func (l link) key(ifindex uint32) (k VLANKey, ok bool) {
	k.Ifindex = ifindex
	for i, tag := range l.tags {
		id := tag.TCI & 0xfff
		if i == 0 {
			k.Outer = id
		} else {
			k.Inner = id
		}
	}
	return k, len(l.tags) > 0
}

// frame puts the link's header before an IP packet.
func (l link) frame(ip []byte) []byte {
	f := slices.Concat(l.dst[:], l.src[:])
	for _, tag := range l.tags {
		f = binary.BigEndian.AppendUint16(f, tag.Type)
		f = binary.BigEndian.AppendUint16(f, tag.TCI)
	}
	ethertype := uint16(etherIPv4)
	if l.v6 {
		ethertype = etherIPv6
	}
	return append(binary.BigEndian.AppendUint16(f, ethertype), ip...)
}

// back is the header of an answer: to where the frame came from.
func (l link) back() link {
	l.dst, l.src = l.src, l.dst
	return l
}
