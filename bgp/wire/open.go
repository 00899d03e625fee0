package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
)

// openLen is an OPEN without optional parameters, with its header.
const openLen = HeaderLen + 10

// asTrans stands in the 2-byte field for an AS that does not fit (RFC 6793).
const asTrans = 23456

// Optional parameters (RFC 4271 section 4.2, RFC 5492, RFC 9072).
const (
	paramCapabilities = 2
	paramExtended     = 255
)

// Open is an OPEN: who the other end is, and what it can do.
type Open struct {
	// ASN is the AS, of 4 bytes if FourOctet. Never 0 and never AS_TRANS (23456).
	ASN uint32
	// Hold is the hold time that is offered, in whole seconds: 0 (no keepalives)
	// or 3 to 65535.
	Hold time.Duration
	// ID is the BGP identifier, written as an IPv4 address; not 0.0.0.0.
	ID netip.Addr
	// Families are the families that are offered, sorted: at least one. A peer
	// that names no family at all offers edge.IPv4 (RFC 4760 section 8).
	Families []edge.Family
	// FourOctet: AS numbers in AS_PATH have 4 bytes, if we offer it too.
	FourOctet    bool
	RouteRefresh bool
	// ExtendedNextHop are the families whose prefixes may have an IPv6 next hop
	// (RFC 8950), sorted.
	ExtendedNextHop []edge.Family
	// GracefulRestart is nil if it is not offered.
	GracefulRestart *GracefulRestart
	// Unknown are the codes of the other capabilities, sorted, each once.
	Unknown []uint8
}

// GracefulRestart is the capability of RFC 4724.
type GracefulRestart struct {
	// Restarting: the session was lost because the other end restarted.
	Restarting bool
	// Notification: a NOTIFICATION does not end the restart (RFC 8538).
	Notification bool
	// Time is how long routes are to be kept: whole seconds, 0 to 4095.
	Time time.Duration
	// Families are those whose routes survive a restart; true: forwarding went
	// on during the last one.
	Families map[edge.Family]bool
}

// badOpen is a fault of an OPEN (RFC 4271 section 6.2).
func badOpen(subcode uint8, format string, args ...any) *Error {
	return &Error{Code: codeOpen, Subcode: subcode, Text: fmt.Sprintf(format, args...)}
}

// ParseOpen reads an OPEN. It is strict: every length must be exact, since what
// is read here is written anew by Marshal and what we did not understand is
// lost. The error is an *Error. A peer that offers neither IPv4 nor IPv6
// unicast is refused, with the two in the data (RFC 5492 section 5).
func ParseOpen(raw []byte) (Open, error) {
	b, bad := body(raw, TypeOpen)
	if bad != nil {
		return Open{}, bad
	}
	if b[0] != 4 {
		bad := badOpen(openVersion, "version %d", b[0])
		bad.Data = []byte{0, 4}
		return Open{}, bad
	}
	o := Open{
		ASN:  uint32(binary.BigEndian.Uint16(b[1:])),
		Hold: time.Duration(binary.BigEndian.Uint16(b[3:])) * time.Second,
		ID:   netip.AddrFrom4([4]byte(b[5:9])),
	}
	c := capabilities{open: &o}
	if bad := c.parameters(b[9], b[10:]); bad != nil {
		return Open{}, bad
	}
	if bad := c.resolve(); bad != nil {
		return Open{}, bad
	}
	if bad := o.check(); bad != nil {
		return Open{}, bad
	}
	return o, nil
}

// check judges the fixed fields, once the capabilities are known.
func (o *Open) check() *Error {
	switch {
	case o.ASN == 0: // RFC 7607
		return badOpen(openPeerAS, "AS 0")
	case o.ASN == asTrans: // RFC 6793 section 9: reserved
		return badOpen(openPeerAS, "AS %d (AS_TRANS) without an AS of 4 bytes", asTrans)
	case o.Hold == time.Second || o.Hold == 2*time.Second:
		return badOpen(openHold, "a hold time of %s", o.Hold)
	case o.ID.IsUnspecified(): // RFC 6286: anything else will do
		return badOpen(openID, "identifier 0.0.0.0")
	}
	return nil
}

// Marshal returns an OPEN with what o carries and nothing else: one parameter
// with the capabilities in ascending order. An AS of more than 2 bytes needs
// FourOctet. No families are written as edge.IPv4; Unknown is not written. What
// does not fit its field (Hold, the restart time) is set to the largest value.
func (o Open) Marshal() []byte {
	caps := o.appendCapabilities(nil)
	b := []byte{4}
	as := uint16(asTrans)
	if o.ASN <= 0xffff {
		as = uint16(o.ASN)
	}
	b = binary.BigEndian.AppendUint16(b, as)
	b = binary.BigEndian.AppendUint16(b, uint16(seconds(o.Hold, 0xffff)))
	id := o.ID.Unmap()
	if !id.Is4() {
		id = netip.IPv4Unspecified()
	}
	b = append(b, id.AsSlice()...)
	// At most 46 bytes: the extended length (RFC 9072) is never needed.
	b = append(b, byte(len(caps)+2), paramCapabilities, byte(len(caps)))
	return marshal(TypeOpen, b, caps)
}

// seconds is d in whole seconds, within 0 and most.
func seconds(d time.Duration, most int64) int64 { return min(max(int64(d/time.Second), 0), most) }
