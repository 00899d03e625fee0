package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/catchment-dev/edge"
)

// updateLen is an UPDATE with nothing in it, with its header.
const updateLen = HeaderLen + 4

// Path is the part of a path's attributes that we look at.
type Path struct {
	// Origin is 0 (IGP), 1 (EGP) or 2 (incomplete).
	Origin uint8
	// ASPath are the AS numbers in the order of the message, those of sets too,
	// those of confederations not (they name no AS of the internet, RFC 5065).
	// The last one originated the prefix. Empty for a path from within the AS.
	ASPath []uint32
	// NextHop is of either family (RFC 8950). Of a global and a link-local
	// address it is the global one.
	NextHop netip.Addr
	// MED and LocalPref are nil if they are not in the message.
	MED, LocalPref *uint32
	// Communities and Large are in the order of the message, not sorted.
	Communities []edge.Community
	Large       []edge.LargeCommunity
}

// Update is what an UPDATE changes.
type Update struct {
	// Announced are the prefixes that have the Path now, first those of the NLRI
	// field, then those of MP_REACH_NLRI. They have no host bits. A prefix that
	// is in Withdrawn as well is announced (RFC 4271 section 4.3).
	Announced, Withdrawn []netip.Prefix
	// Path is the zero value if nothing is announced.
	Path Path
	// EndOfRIB is the family whose routes have all been sent (RFC 4724 section
	// 2); empty in any other message.
	EndOfRIB edge.Family
	// Strange are faults that the session survives (RFC 7606), in words without
	// any bytes of the peer: prefixes that are withdrawn because of a bad
	// attribute, attributes and families left out. At most 16.
	Strange []string

	// mpFirst is the index in Announced of the first prefix of MP_REACH_NLRI,
	// if that has another next hop, mpNextHop, than Path.
	mpFirst   int
	mpNextHop netip.Addr
}

// PathOf is the path of Announced[i]: Path, but with the next hop of its own
// part of the message (one message may carry IPv4 prefixes outside of
// MP_REACH_NLRI and others in it, each with a next hop; RFC 4760 section 3).
func (u *Update) PathOf(i int) Path {
	p := u.Path
	if u.mpNextHop.IsValid() && i >= u.mpFirst {
		p.NextHop = u.mpNextHop
	}
	return p
}

// maxStrange bounds Update.Strange.
const maxStrange = 16

// parser is the state of one ParseUpdate.
type parser struct {
	out Update
	// four: AS numbers in AS_PATH and AGGREGATOR have 4 bytes.
	four bool
	// seen is the set of attribute types met.
	seen [256]bool
	// fault is the first one that takes the path away from all prefixes.
	fault *Error
	// others: there is an attribute besides MP_UNREACH_NLRI.
	others bool

	withdrawn, nlri, reach, unreach field
	// reaches: MP_REACH_NLRI has prefixes, of our families or not.
	reaches bool
	// emptied is the family of an MP_UNREACH_NLRI without prefixes.
	emptied edge.Family

	// read is what is known of the path as the attributes come.
	read Path
	// asPath and as4Path are the values of the attributes, found to be sound.
	asPath, as4Path    []byte
	nextHop, mpHop     netip.Addr
	hopFault           *Error
	communities, large []byte
}

// ParseUpdate reads an UPDATE. fourOctet says whether both ends offered AS
// numbers of 4 bytes. The error is an *Error, and comes only if it cannot be
// known which prefixes the message is about: the lengths contradict each other,
// a prefix or a next hop field is no such thing, MP_REACH_NLRI is there twice,
// or an attribute is bad and no announced prefix was found that could be
// withdrawn instead (RFC 7606 sections 3, 5.2, 5.3 and 7.11). Every other fault
// is in Strange. Prefixes of up to 8 bits that are repeated are left out, so
// that a message of 1-byte prefixes costs no more than any other.
func ParseUpdate(raw []byte, fourOctet bool) (Update, error) {
	b, bad := body(raw, TypeUpdate)
	if bad != nil {
		return Update{}, bad
	}
	p := parser{four: fourOctet}
	attrs, bad := p.split(b)
	if bad != nil {
		return Update{}, bad
	}
	if bad := p.attributes(attrs); bad != nil {
		return Update{}, bad
	}
	if bad := p.judge(); bad != nil {
		return Update{}, bad
	}
	p.collect()
	if len(b) == 4 {
		p.out.EndOfRIB = edge.IPv4
	}
	return p.out, nil
}

// split cuts the body into its three fields and returns the attributes.
func (p *parser) split(b []byte) (attrs []byte, bad *Error) {
	list := func(what string) *Error {
		return &Error{Code: codeUpdate, Subcode: updateList, Text: what + " are said to be longer than the message"}
	}
	n := int(binary.BigEndian.Uint16(b))
	if n > len(b)-4 {
		return nil, list("the withdrawn routes")
	}
	p.withdrawn, b = field{b: b[2 : 2+n]}, b[2+n:]
	n = int(binary.BigEndian.Uint16(b))
	if n > len(b)-2 {
		return nil, list("the attributes")
	}
	attrs, p.nlri = b[2:2+n], field{b: b[2+n:]}
	for _, f := range []field{p.withdrawn, p.nlri} {
		if what := f.check(); what != "" {
			return nil, &Error{Code: codeUpdate, Subcode: updateNetwork, Text: what}
		}
	}
	return attrs, nil
}

// judge decides what becomes of the announced prefixes, once all is read.
func (p *parser) judge() *Error {
	announces := len(p.nlri.b) > 0 || p.reaches
	if p.hopFault != nil && (len(p.nlri.b) > 0 || !p.reaches) {
		p.bad(p.hopFault)
	}
	if announces {
		p.mandatory()
	}
	// Nothing to withdraw instead, although there are attributes, can also mean
	// that it was not found (RFC 7606 section 5.2).
	if p.fault != nil && p.others && !announces {
		p.fault.Text += ", and no announced prefix was found"
		return p.fault
	}
	if p.fault == nil && !p.others && len(p.withdrawn.b) == 0 && len(p.nlri.b) == 0 {
		p.out.EndOfRIB = p.emptied
	}
	return nil
}

// mandatory looks for the attributes that announced prefixes need (RFC 4271
// section 5). NEXT_HOP counts for the prefixes outside of MP_REACH_NLRI only
// (RFC 4760 section 3).
func (p *parser) mandatory() {
	for _, code := range []uint8{attrOrigin, attrASPath, attrNextHop} {
		if p.seen[code] || code == attrNextHop && len(p.nlri.b) == 0 {
			continue
		}
		p.bad(&Error{codeUpdate, updateMissing, []byte{code}, attrName(code).String() + " is missing"})
	}
}

// bad notes a fault because of which all announced prefixes are withdrawn.
func (p *parser) bad(e *Error) {
	if p.fault == nil {
		p.fault = e
	}
	p.strange("%s: treated as withdrawn", e.Text)
}

// badAttribute is bad for an attribute. It makes nothing that is thrown away.
func (p *parser) badAttribute(a attribute, subcode uint8, format string, args ...any) {
	if p.fault == nil || len(p.out.Strange) < maxStrange {
		p.bad(a.fault(subcode, format, args...))
	}
}

// strange notes a fault that is survived.
func (p *parser) strange(format string, args ...any) {
	switch n := len(p.out.Strange); {
	case n < maxStrange-1:
		p.out.Strange = append(p.out.Strange, fmt.Sprintf(format, args...))
	case n == maxStrange-1:
		p.out.Strange = append(p.out.Strange, "and more")
	}
}

// collect fills in the prefixes, and the path if any keeps it. All prefixes are
// in one slice of the size that is needed: with 32 bytes for one of 2 bytes,
// nothing else is large.
func (p *parser) collect() {
	announced := []field{p.nlri, p.reach}
	withdrawn := []field{p.withdrawn, p.unreach}
	var count, fill short
	// Those announced are counted first: a repeat among those withdrawn means
	// nothing.
	a := count.count(announced...)
	w := count.count(withdrawn...)
	if a+w == 0 {
		return
	}
	all := make([]netip.Prefix, 0, a+w)
	if p.fault != nil {
		p.out.Withdrawn = fill.append(all, append(announced, withdrawn...)...)
		return
	}
	if a > 0 {
		p.out.Announced = fill.append(all[:0:a], p.nlri)
		first := len(p.out.Announced)
		p.out.Announced = fill.append(p.out.Announced, p.reach)
		p.path(first)
	}
	if w > 0 {
		p.out.Withdrawn = fill.append(all[a:a:a+w], withdrawn...)
	}
}

// path makes the path of what is announced. The prefixes from index first on
// are those of MP_REACH_NLRI.
func (p *parser) path(first int) {
	p.out.Path = p.read
	path := &p.out.Path
	path.ASPath = p.asns()
	path.Communities = communities(p.communities)
	path.Large = largeCommunities(p.large)
	path.NextHop = p.nextHop
	switch {
	case first == 0: // NEXT_HOP means nothing then
		path.NextHop = p.mpHop
	case first < len(p.out.Announced):
		p.out.mpFirst, p.out.mpNextHop = first, p.mpHop
	}
}
