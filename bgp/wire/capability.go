package wire

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// Capabilities (RFC 5492; IANA).
const (
	capMultiprotocol = 1  // RFC 4760
	capRouteRefresh  = 2  // RFC 2918
	capExtNextHop    = 5  // RFC 8950
	capRestart       = 64 // RFC 4724
	capFourOctet     = 65 // RFC 6793
)

// Flags of the graceful restart capability.
const (
	restartRestarting   = 0x8 << 4 // in the byte above the restart time
	restartNotification = 0x4 << 4
	restartForwarding   = 0x80 // of a family
	maxRestartTime      = 4095
)

// capabilities collects what the optional parameters of an OPEN say.
type capabilities struct {
	open *Open
	// named: the peer names at least one family, ours or not.
	named bool
	asn   uint32
	// unknown is a set of codes.
	unknown [256]bool
}

// parameters walks over the optional parameters b, of which the OPEN says that
// they are size bytes.
func (c *capabilities) parameters(size uint8, b []byte) *Error {
	length, extended := int(size), false
	// RFC 9072 section 2: the type decides, and then the first length means
	// nothing, if only it is not 0.
	if size != 0 && len(b) > 0 && b[0] == paramExtended {
		if len(b) < 3 {
			return badOpen(openUnspecific, "the extended length of the parameters is cut off")
		}
		length, extended, b = int(binary.BigEndian.Uint16(b[1:])), true, b[3:]
	}
	if length != len(b) {
		return badOpen(openUnspecific, "the parameters are said to be %d bytes and are %d", length, len(b))
	}
	for len(b) > 0 {
		head := 2
		if extended {
			head = 3
		}
		if len(b) < head {
			return badOpen(openUnspecific, "a parameter of %d bytes", len(b))
		}
		kind, n := b[0], int(b[1])
		if extended {
			n = int(binary.BigEndian.Uint16(b[1:]))
		}
		if b = b[head:]; n > len(b) {
			return badOpen(openUnspecific, "parameter %d is said to be %d bytes and %d are left", kind, n, len(b))
		}
		if kind != paramCapabilities {
			return badOpen(openParameter, "parameter %d", kind)
		}
		if bad := c.list(b[:n]); bad != nil {
			return bad
		}
		b = b[n:]
	}
	return nil
}

// list walks over the capabilities of one parameter (RFC 5492 section 4).
func (c *capabilities) list(b []byte) *Error {
	for len(b) > 0 {
		if len(b) < 2 || int(b[1]) > len(b)-2 {
			return badOpen(openUnspecific, "a capability is cut off")
		}
		n := 2 + int(b[1])
		if bad := c.one(b[0], b[2:n]); bad != nil {
			return bad
		}
		b = b[n:]
	}
	return nil
}

// one reads one capability. What is there several times adds up, except where
// the RFC says otherwise.
func (c *capabilities) one(code uint8, v []byte) *Error {
	wrong := func(want string) *Error {
		return badOpen(openUnspecific, "capability %d has %d bytes, not %s", code, len(v), want)
	}
	switch code {
	case capMultiprotocol:
		if len(v) != 4 {
			return wrong("4")
		}
		c.named = true
		if f, ok := familyOf(binary.BigEndian.Uint16(v), uint16(v[3])); ok {
			c.open.Families = append(c.open.Families, f)
		}
	case capRouteRefresh:
		if len(v) != 0 {
			return wrong("0")
		}
		c.open.RouteRefresh = true
	case capExtNextHop:
		if len(v)%6 != 0 {
			return wrong("a multiple of 6")
		}
		c.nextHops(v)
	case capRestart:
		if len(v) < 2 || (len(v)-2)%4 != 0 {
			return wrong("2 and a multiple of 4")
		}
		c.restart(v)
	case capFourOctet:
		if len(v) != 4 {
			return wrong("4")
		}
		return c.fourOctet(binary.BigEndian.Uint32(v))
	default:
		c.unknown[code] = true
	}
	return nil
}

func (c *capabilities) nextHops(v []byte) {
	for t := range slices.Chunk(v, 6) {
		f, ok := familyOf(binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:]))
		if ok && binary.BigEndian.Uint16(t[4:]) == afiIPv6 {
			c.open.ExtendedNextHop = append(c.open.ExtendedNextHop, f)
		}
	}
}

// restart replaces what an earlier instance said: the last one counts
// (RFC 4724 section 3).
func (c *capabilities) restart(v []byte) {
	g := &GracefulRestart{
		Restarting:   v[0]&restartRestarting != 0,
		Notification: v[0]&restartNotification != 0,
		Time:         time.Duration(binary.BigEndian.Uint16(v)&maxRestartTime) * time.Second,
	}
	for t := range slices.Chunk(v[2:], 4) {
		if f, ok := familyOf(binary.BigEndian.Uint16(t), uint16(t[2])); ok {
			if g.Families == nil {
				g.Families = map[edge.Family]bool{}
			}
			g.Families[f] = t[3]&restartForwarding != 0
		}
	}
	c.open.GracefulRestart = g
}

func (c *capabilities) fourOctet(asn uint32) *Error {
	switch {
	case asn == 0 || asn == asTrans:
		return badOpen(openPeerAS, "AS %d as an AS of 4 bytes", asn)
	case c.open.FourOctet && c.asn != asn:
		return badOpen(openPeerAS, "AS %d and AS %d at once", c.asn, asn)
	}
	c.open.FourOctet, c.asn = true, asn
	return nil
}

// resolve makes the values of what all parameters together have said.
func (c *capabilities) resolve() *Error {
	o := c.open
	if c.open.FourOctet {
		// The field of 2 bytes has the same AS if it fits, else AS_TRANS
		// (RFC 6793 section 4.1). Some send AS_TRANS for one that fits.
		if o.ASN != asTrans && o.ASN != c.asn {
			return badOpen(openPeerAS, "AS %d with AS %d as an AS of 4 bytes", o.ASN, c.asn)
		}
		o.ASN = c.asn
	}
	if len(o.Families) == 0 {
		if c.named {
			bad := badOpen(openCapability, "neither IPv4 nor IPv6 unicast is offered")
			bad.Data = Open{Families: []edge.Family{edge.IPv4, edge.IPv6}}.appendCapabilities(nil)
			return bad
		}
		o.Families = []edge.Family{edge.IPv4}
	}
	o.Families = sorted(o.Families)
	o.ExtendedNextHop = sorted(o.ExtendedNextHop)
	for code, set := range c.unknown {
		if set {
			o.Unknown = append(o.Unknown, uint8(code))
		}
	}
	return nil
}

// sorted returns each family once, in a slice that is no larger than it must be.
func sorted(f []edge.Family) []edge.Family {
	slices.Sort(f)
	return slices.Clone(slices.Compact(f))
}

// appendCapabilities appends the capabilities of o in ascending order.
func (o Open) appendCapabilities(b []byte) []byte {
	families := o.Families
	if len(families) == 0 {
		families = []edge.Family{edge.IPv4}
	}
	for _, f := range families {
		b = append(b, capMultiprotocol, 4)
		b = binary.BigEndian.AppendUint16(b, afiOf(f))
		b = append(b, 0, safiUnicast)
	}
	if o.RouteRefresh {
		b = append(b, capRouteRefresh, 0)
	}
	if len(o.ExtendedNextHop) > 0 {
		b = append(b, capExtNextHop, byte(6*len(o.ExtendedNextHop)))
		for _, f := range o.ExtendedNextHop {
			b = binary.BigEndian.AppendUint16(b, afiOf(f))
			b = append(b, 0, safiUnicast, 0, afiIPv6)
		}
	}
	if g := o.GracefulRestart; g != nil {
		b = g.appendCapability(b)
	}
	if o.FourOctet {
		b = append(b, capFourOctet, 4)
		b = binary.BigEndian.AppendUint32(b, o.ASN)
	}
	return b
}

func (g *GracefulRestart) appendCapability(b []byte) []byte {
	head := uint16(seconds(g.Time, maxRestartTime))
	if g.Restarting {
		head |= restartRestarting << 8
	}
	if g.Notification {
		head |= restartNotification << 8
	}
	b = append(b, capRestart, byte(2+4*len(g.Families)))
	b = binary.BigEndian.AppendUint16(b, head)
	for _, f := range slices.Sorted(maps.Keys(g.Families)) {
		b = binary.BigEndian.AppendUint16(b, afiOf(f))
		var flags byte
		if g.Families[f] {
			flags = restartForwarding
		}
		b = append(b, safiUnicast, flags)
	}
	return b
}
