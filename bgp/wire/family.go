package wire

import (
	"encoding/binary"

	"github.com/catchment-dev/edge"
)

// What we speak of the address families (RFC 4760, IANA).
const (
	afiIPv4     = 1
	afiIPv6     = 2
	safiUnicast = 1
)

// refreshLen is a ROUTE-REFRESH with its header (RFC 2918 section 3).
const refreshLen = HeaderLen + 4

// familyOf returns the family of an AFI and a SAFI; ok is false for all but
// unicast.
func familyOf(afi uint16, safi uint16) (f edge.Family, ok bool) {
	switch {
	case safi != safiUnicast:
	case afi == afiIPv4:
		return edge.IPv4, true
	case afi == afiIPv6:
		return edge.IPv6, true
	}
	return "", false
}

// afiOf is the AFI of a family; ipv4 for an unknown one.
func afiOf(f edge.Family) uint16 {
	if f == edge.IPv6 {
		return afiIPv6
	}
	return afiIPv4
}

// EndOfRIB returns the UPDATE that says that all of a family has been sent
// (RFC 4724 section 2). A family that is not edge.IPv6 is taken for edge.IPv4.
func EndOfRIB(f edge.Family) []byte {
	if f != edge.IPv6 {
		return marshal(TypeUpdate, []byte{0, 0, 0, 0})
	}
	return marshal(TypeUpdate, []byte{0, 0, 0, 6, flagOptional, attrMPUnreach, 3, 0, afiIPv6, safiUnicast})
}

// ParseRouteRefresh returns the family that a ROUTE-REFRESH asks for. ok only
// for a plain request (RFC 2918) of IPv4 or IPv6 unicast: no message subtype
// (RFC 7313), no outbound route filter (RFC 5291). Such a message has no other
// spelling, so raw may be passed on as it is.
func ParseRouteRefresh(raw []byte) (f edge.Family, ok bool) {
	b, bad := body(raw, TypeRouteRefresh)
	if bad != nil || len(b) != 4 || b[2] != 0 {
		return "", false
	}
	return familyOf(binary.BigEndian.Uint16(b), uint16(b[3]))
}
