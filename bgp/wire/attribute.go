package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/catchment-dev/edge"
)

// Flags of a path attribute (RFC 4271 section 4.3). The lower four bits mean
// nothing, and Partial changes nothing for us.
const (
	flagOptional   = 0x80
	flagTransitive = 0x40
	flagExtended   = 0x10
)

// The path attributes that we know. Any other optional one is none of our
// business and is not looked into.
const (
	attrOrigin          = 1
	attrASPath          = 2
	attrNextHop         = 3
	attrMED             = 4
	attrLocalPref       = 5
	attrAtomicAggregate = 6
	attrAggregator      = 7
	attrCommunities     = 8
	attrOriginatorID    = 9
	attrClusterList     = 10
	attrMPReach         = 14
	attrMPUnreach       = 15
	attrExtCommunities  = 16
	attrAS4Path         = 17
	attrAS4Aggregator   = 18
	attrLarge           = 32
)

// attrName is the type of an attribute, shown with the name that IANA lists.
type attrName uint8

// String is called only for what is shown: a message may have a thousand bad
// attributes.
func (code attrName) String() string {
	names := [...]string{
		attrOrigin: "ORIGIN", attrASPath: "AS_PATH", attrNextHop: "NEXT_HOP", attrMED: "MULTI_EXIT_DISC", attrLocalPref: "LOCAL_PREF",
		attrAtomicAggregate: "ATOMIC_AGGREGATE", attrAggregator: "AGGREGATOR", attrCommunities: "COMMUNITIES",
		attrOriginatorID: "ORIGINATOR_ID", attrClusterList: "CLUSTER_LIST", attrMPReach: "MP_REACH_NLRI", attrMPUnreach: "MP_UNREACH_NLRI",
		attrExtCommunities: "EXTENDED COMMUNITIES", attrAS4Path: "AS4_PATH", attrAS4Aggregator: "AS4_AGGREGATOR", attrLarge: "LARGE_COMMUNITY",
	}
	if int(code) < len(names) && names[code] != "" {
		return names[code]
	}
	return fmt.Sprintf("attribute %d", uint8(code))
}

// attrKind returns the two upper flags that an attribute has; ok is false if we
// do not know it.
func attrKind(code uint8) (flags uint8, ok bool) {
	switch code {
	case attrOrigin, attrASPath, attrNextHop, attrLocalPref, attrAtomicAggregate:
		return flagTransitive, true
	case attrMED, attrOriginatorID, attrClusterList, attrMPReach, attrMPUnreach:
		return flagOptional, true
	case attrAggregator, attrCommunities, attrExtCommunities, attrAS4Path, attrAS4Aggregator, attrLarge:
		return flagOptional | flagTransitive, true
	}
	return 0, false
}

// attribute is one path attribute: all of it, and its value.
type attribute struct {
	flags, code uint8
	raw, value  []byte
}

// fault is an *Error with the attribute as its data.
func (a attribute) fault(subcode uint8, format string, args ...any) *Error {
	return &Error{codeUpdate, subcode, slices.Clone(a.raw), attrName(a.code).String() + " " + fmt.Sprintf(format, args...)}
}

// cutAttribute cuts off the first attribute; ok is false if there is no whole
// one (RFC 7606 section 4).
func cutAttribute(b []byte) (a attribute, rest []byte, ok bool) {
	head := 3
	if b[0]&flagExtended != 0 {
		head = 4
	}
	if len(b) < head {
		return a, nil, false
	}
	n := int(b[2])
	if head == 4 {
		n = int(binary.BigEndian.Uint16(b[2:]))
	}
	if n > len(b)-head {
		return a, nil, false
	}
	end := head + n
	return attribute{b[0], b[1], b[:end], b[head:end]}, b[end:], true
}

// attributes reads all attributes. An error ends the session.
func (p *parser) attributes(b []byte) *Error {
	for len(b) > 0 {
		a, rest, ok := cutAttribute(b)
		if !ok {
			p.others = true
			p.bad(&Error{Code: codeUpdate, Subcode: updateList, Text: fmt.Sprintf("the last %d bytes of the attributes are no attribute", len(b))})
			return nil
		}
		b = rest
		if bad := p.attribute(a); bad != nil {
			return bad
		}
	}
	return nil
}

func (p *parser) attribute(a attribute) *Error {
	mp := a.code == attrMPReach || a.code == attrMPUnreach
	if p.seen[a.code] {
		if mp {
			return &Error{Code: codeUpdate, Subcode: updateList, Text: attrName(a.code).String() + " is there twice"}
		}
		// RFC 7606 section 3(g): the first one counts.
		p.strange("%s is there twice: the second one is left out", attrName(a.code))
		return nil
	}
	p.seen[a.code] = true
	p.others = p.others || a.code != attrMPUnreach
	kind, known := attrKind(a.code)
	switch got := a.flags & (flagOptional | flagTransitive); {
	case known && got != kind:
		// Its prefixes are needed all the same, to be withdrawn.
		p.badAttribute(a, updateFlags, "has flags %#02x", a.flags)
		if !mp {
			return nil
		}
	case !known && got&flagOptional == 0:
		// RFC 4271 section 6.3 would end the session. The prefixes are known,
		// so withdrawing them is enough.
		p.badAttribute(a, updateUnknown, "is unknown and not optional")
		return nil
	}
	if mp {
		return p.multiprotocol(a)
	}
	p.value(a)
	return nil
}

// value reads the attributes that the path is made of (RFC 7606 section 7).
func (p *parser) value(a attribute) {
	v, path := a.value, &p.read
	switch a.code {
	case attrOrigin:
		if p.size(a, len(v) == 1) {
			if path.Origin = v[0]; v[0] > 2 {
				p.badAttribute(a, updateOrigin, "is %d", v[0])
			}
		}
	case attrASPath:
		if _, what := checkPath(v, p.width()); what != "" {
			p.badAttribute(a, updateASPath, "%s", what)
			return
		}
		p.asPath = v
	case attrNextHop:
		p.hop(a)
	case attrMED:
		path.MED = p.number(a)
	case attrLocalPref:
		path.LocalPref = p.number(a)
	case attrCommunities:
		if p.size(a, len(v) > 0 && len(v)%4 == 0) {
			p.communities = v
		}
	case attrLarge: // RFC 8092 section 6
		if p.size(a, len(v) > 0 && len(v)%12 == 0) {
			p.large = v
		}
	case attrOriginatorID:
		p.size(a, len(v) == 4)
	case attrClusterList:
		p.size(a, len(v) > 0 && len(v)%4 == 0)
	case attrExtCommunities:
		p.size(a, len(v) > 0 && len(v)%8 == 0)
	default:
		p.discardable(a)
	}
}

// discardable reads the attributes that a path can do without: a bad one is
// left out (RFC 7606 sections 7.6 and 7.7, RFC 6793 section 6).
func (p *parser) discardable(a attribute) {
	v, left := a.value, func(what string) { p.strange("%s %s: left out", attrName(a.code), what) }
	switch a.code {
	case attrAtomicAggregate:
		if len(v) != 0 {
			left(fmt.Sprintf("has %d bytes", len(v)))
		}
	case attrAggregator:
		if n := 4 + p.width(); len(v) != n {
			left(fmt.Sprintf("has %d bytes, not %d", len(v), n))
		} else if isZero(v[:p.width()]) { // RFC 7607
			left("names AS 0")
		}
	case attrAS4Aggregator, attrAS4Path:
		if p.four { // RFC 6793 section 4.1
			left("comes over a session with AS numbers of 4 bytes")
			return
		}
		if a.code == attrAS4Aggregator {
			if len(v) != 8 {
				left(fmt.Sprintf("has %d bytes, not 8", len(v)))
			}
			return
		}
		if _, what := checkPath(v, 4); what != "" {
			left(what)
			return
		}
		p.as4Path = v
	}
}

// size says whether the length of an attribute is good, and notes it if not.
func (p *parser) size(a attribute, good bool) bool {
	if !good {
		p.badAttribute(a, updateLength, "has %d bytes", len(a.value))
	}
	return good
}

// number reads an attribute of 4 bytes; nil if it is not.
func (p *parser) number(a attribute) *uint32 {
	if !p.size(a, len(a.value) == 4) {
		return nil
	}
	n := binary.BigEndian.Uint32(a.value)
	return &n
}

// hop reads NEXT_HOP. Whether a fault of it matters is known only later: with
// all prefixes in MP_REACH_NLRI it is not looked at (RFC 4760 section 3).
func (p *parser) hop(a attribute) {
	if len(a.value) != 4 {
		p.hopFault = a.fault(updateLength, "has %d bytes", len(a.value))
		return
	}
	p.nextHop = netip.AddrFrom4([4]byte(a.value))
	if !host(p.nextHop) {
		p.hopFault = a.fault(updateNextHop, "is no address of a host")
	}
}

// host says whether a packet can be sent to one machine at a (RFC 4271 section
// 6.3). 240.0.0.0/4 can: some networks number routers from it.
func host(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// communities reads a value that has been found to be whole.
func communities(v []byte) []edge.Community {
	if len(v) == 0 {
		return nil
	}
	out := make([]edge.Community, len(v)/4)
	for i := range out {
		out[i] = edge.Community(binary.BigEndian.Uint32(v[4*i:]))
	}
	return out
}

func largeCommunities(v []byte) []edge.LargeCommunity {
	if len(v) == 0 {
		return nil
	}
	out := make([]edge.LargeCommunity, len(v)/12)
	for i := range out {
		c := v[12*i:]
		out[i] = edge.LargeCommunity{
			Global: binary.BigEndian.Uint32(c), Local1: binary.BigEndian.Uint32(c[4:]), Local2: binary.BigEndian.Uint32(c[8:]),
		}
	}
	return out
}
