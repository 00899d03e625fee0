package wire

import (
	"encoding/binary"
	"net/netip"

	"github.com/catchment-dev/edge"
)

// multiprotocol reads MP_REACH_NLRI and MP_UNREACH_NLRI (RFC 4760). An error
// ends the session: the prefixes cannot be found (RFC 7606 section 7.11).
func (p *parser) multiprotocol(a attribute) *Error {
	v := a.value
	shortest := 5 // AFI, SAFI, length of the next hop, reserved
	if a.code == attrMPUnreach {
		shortest = 3
	}
	if len(v) < shortest {
		return a.fault(updateOptional, "has %d bytes, at least %d", len(v), shortest)
	}
	afi, safi := binary.BigEndian.Uint16(v), v[2]
	f, ok := familyOf(afi, uint16(safi))
	if !ok {
		// Never negotiated, so nothing of it is known (RFC 4760 section 7).
		p.reaches = p.reaches || a.code == attrMPReach
		p.strange("%s of AFI %d, SAFI %d: left out", attrName(a.code), afi, safi)
		return nil
	}
	if a.code == attrMPUnreach {
		p.unreach = field{v[3:], f == edge.IPv6}
		if len(v) == 3 {
			p.emptied = f
		}
		return p.prefixes(a, p.unreach)
	}
	rest, bad := p.mpNextHop(a, f)
	if bad != nil {
		return bad
	}
	p.reach = field{rest, f == edge.IPv6}
	p.reaches = len(rest) > 0
	return p.prefixes(a, p.reach)
}

func (p *parser) prefixes(a attribute, f field) *Error {
	if what := f.check(); what != "" {
		return a.fault(updateOptional, "has %s", what)
	}
	return nil
}

// mpNextHop reads the next hop of MP_REACH_NLRI and returns the prefixes: 4
// bytes for IPv4; 16 for both, or 32 with a link-local address behind (RFC 2545
// section 3, RFC 8950 section 3).
func (p *parser) mpNextHop(a attribute, f edge.Family) (rest []byte, bad *Error) {
	n, v := int(a.value[3]), a.value[4:]
	if n > len(v)-1 || n != 16 && n != 32 && (n != 4 || f != edge.IPv4) {
		return nil, a.fault(updateOptional, "has a next hop of %d bytes", n)
	}
	if n == 4 {
		p.mpHop = netip.AddrFrom4([4]byte(v[:4]))
	} else {
		p.mpHop = netip.AddrFrom16([16]byte(v[:16]))
		if n == 32 && p.mpHop.IsUnspecified() {
			// A router without a global address on the link.
			p.mpHop = netip.AddrFrom16([16]byte(v[16:32]))
		}
	}
	if !host(p.mpHop) {
		p.badAttribute(a, updateNextHop, "has a next hop that is no address of a host")
	}
	return v[n+1:], nil // a reserved byte is between them
}
