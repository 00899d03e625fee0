package wire

import (
	"encoding/binary"
	"fmt"
)

// Segments of an AS_PATH (RFC 4271 section 4.3, RFC 5065).
const (
	segmentSet            = 1
	segmentSequence       = 2
	segmentConfedSequence = 3
	segmentConfedSet      = 4
)

// width is the bytes of an AS number in AS_PATH and AGGREGATOR.
func (p *parser) width() int {
	if p.four {
		return 4
	}
	return 2
}

// checkPath returns the length of an AS_PATH or AS4_PATH as routing counts it: a
// set is one, a confederation none (RFC 4271 section 9.1.2.2, RFC 5065). what
// is wrong is said in words (RFC 7606 section 7.2).
func checkPath(v []byte, width int) (hops int, what string) {
	for len(v) > 0 {
		if len(v) < 2 {
			return 0, "ends with a byte that is no segment"
		}
		kind, n := v[0], int(v[1])
		switch {
		case kind < segmentSet || kind > segmentConfedSet:
			return 0, fmt.Sprintf("has a segment of type %d", kind)
		case n == 0:
			return 0, "has a segment without any AS"
		case n*width > len(v)-2:
			return 0, fmt.Sprintf("has a segment of %d AS numbers in %d bytes", n, len(v)-2)
		}
		for i := range n {
			if isZero(v[2+i*width : 2+(i+1)*width]) { // RFC 7607
				return 0, "has AS 0"
			}
		}
		hops += segmentHops(kind, n)
		v = v[2+n*width:]
	}
	return hops, ""
}

// segmentHops is what a segment of n AS numbers counts.
func segmentHops(kind uint8, n int) int {
	switch kind {
	case segmentSequence:
		return n
	case segmentSet:
		return 1
	}
	return 0
}

// asns returns the AS numbers of the path. A session with AS numbers of 2 bytes
// has the wide ones in AS4_PATH; what is in front of them was added by routers
// that know no wide ones (RFC 6793 section 4.2.3).
func (p *parser) asns() []uint32 {
	// Both are sound: they were checked as they came.
	hops, _ := checkPath(p.asPath, p.width())
	wide, _ := checkPath(p.as4Path, 4)
	if len(p.as4Path) == 0 || hops < wide {
		return appendPath(nil, p.asPath, p.width(), hops)
	}
	return appendPath(appendPath(nil, p.asPath, p.width(), hops-wide), p.as4Path, 4, wide)
}

// appendPath appends the AS numbers of the first hops of a path that has been
// checked, without confederations.
func appendPath(to []uint32, v []byte, width, hops int) []uint32 {
	for len(v) > 0 && hops > 0 {
		kind, n := v[0], int(v[1])
		take := 0
		switch kind {
		case segmentSequence:
			take = min(n, hops)
			hops -= take
		case segmentSet:
			take = n
			hops--
		}
		for i := range take {
			to = append(to, asNumber(v[2+i*width:], width))
		}
		v = v[2+n*width:]
	}
	return to
}

func asNumber(b []byte, width int) uint32 {
	if width == 2 {
		return uint32(binary.BigEndian.Uint16(b))
	}
	return binary.BigEndian.Uint32(b)
}
