package edge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Community is a BGP community (RFC 1997): the AS in the upper, the value in
// the lower 16 bits.
type Community uint32

// GracefulShutdown is the well-known community 65535:0 (RFC 8326): receivers
// prefer any other path.
const GracefulShutdown Community = 0xffff0000

// wellKnown are the communities that IANA has named and that an originator may
// want to send. Blackhole is not among them: it asks for the traffic to be
// thrown away.
var wellKnown = map[string]Community{
	"graceful-shutdown":   GracefulShutdown,
	"no-export":           0xffffff01, // RFC 1997
	"no-advertise":        0xffffff02,
	"no-export-subconfed": 0xffffff03,
	"no-peer":             0xffffff04, // RFC 3765
}

// String returns the community as "AS:VALUE".
func (c Community) String() string { return fmt.Sprintf("%d:%d", uint32(c)>>16, uint32(c)&0xffff) }

// MarshalText implements encoding.TextMarshaler.
func (c Community) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Community) UnmarshalText(b []byte) error {
	v, err := ParseCommunity(string(b))
	if err != nil {
		return err
	}
	*c = v
	return nil
}

// ParseCommunity reads "AS:VALUE", each 0 to 65535 in decimal digits, or one of
// graceful-shutdown, no-export, no-advertise, no-export-subconfed and no-peer.
func ParseCommunity(s string) (Community, error) {
	if c, ok := wellKnown[s]; ok {
		return c, nil
	}
	left, right, ok := strings.Cut(s, ":")
	as, err1 := strconv.ParseUint(left, 10, 16)
	val, err2 := strconv.ParseUint(right, 10, 16)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("community %q is not AS:VALUE, each 0 to 65535, or a well-known name", s)
	}
	return Community(as<<16 | val), nil
}

// LargeCommunity is a BGP large community (RFC 8092).
type LargeCommunity struct {
	// Global is the AS that defines the two values.
	Global, Local1, Local2 uint32
}

// String returns the community as "GLOBAL:LOCAL1:LOCAL2" (RFC 8092 section 4).
func (c LargeCommunity) String() string {
	return fmt.Sprintf("%d:%d:%d", c.Global, c.Local1, c.Local2)
}

// MarshalText implements encoding.TextMarshaler.
func (c LargeCommunity) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *LargeCommunity) UnmarshalText(b []byte) error {
	v, err := ParseLargeCommunity(string(b))
	if err != nil {
		return err
	}
	*c = v
	return nil
}

// ParseLargeCommunity reads "GLOBAL:LOCAL1:LOCAL2", each 0 to 4294967295 in
// decimal digits.
func ParseLargeCommunity(s string) (LargeCommunity, error) {
	parts := strings.Split(s, ":")
	var v [3]uint32
	ok := len(parts) == len(v)
	for i := range v {
		if !ok {
			break
		}
		n, err := strconv.ParseUint(parts[i], 10, 32)
		v[i], ok = uint32(n), err == nil
	}
	if !ok {
		return LargeCommunity{}, fmt.Errorf("large community %q is not GLOBAL:LOCAL1:LOCAL2, each 0 to 4294967295", s)
	}
	return LargeCommunity{v[0], v[1], v[2]}, nil
}

// Compare orders by the three numbers, as slices.SortFunc wants it.
func (c LargeCommunity) Compare(o LargeCommunity) int {
	return slices.Compare([]uint32{c.Global, c.Local1, c.Local2}, []uint32{o.Global, o.Local1, o.Local2})
}

// Attributes are the BGP path attributes that we set. The zero value adds
// nothing to the path.
type Attributes struct {
	// Prepend is how many times our own AS is added to the path, on top of the
	// one that eBGP adds. 0 to 10. To an iBGP peer it is not sent: a path with
	// its own AS in it is a loop to the receiver (RFC 4271 section 9.1.2).
	Prepend int `json:"prepend,omitempty"`
	// MED is the multi-exit discriminator. 0 sends none.
	MED uint32 `json:"med,omitempty"`
	// LocalPref is the local preference that iBGP peers are sent; eBGP peers
	// never are (RFC 4271 section 5.1.5). 0 is 100.
	LocalPref uint32 `json:"local_pref,omitempty"`
	// Communities are sent in ascending order, and so are Large.
	Communities []Community      `json:"communities,omitempty"`
	Large       []LargeCommunity `json:"large_communities,omitempty"`
}

// Equal says whether two would be sent alike, both in order.
func (a Attributes) Equal(b Attributes) bool {
	return a.Prepend == b.Prepend && a.MED == b.MED && a.LocalPref == b.LocalPref &&
		slices.Equal(a.Communities, b.Communities) && slices.Equal(a.Large, b.Large)
}

// Plus returns a with what b adds: more prepends (at most MaxPrepend), all
// communities of both, and b's MED and local preference where it has one.
func (a Attributes) Plus(b Attributes) Attributes {
	a.Prepend = min(a.Prepend+b.Prepend, MaxPrepend)
	if b.MED != 0 {
		a.MED = b.MED
	}
	if b.LocalPref != 0 {
		a.LocalPref = b.LocalPref
	}
	a.Communities = slices.Compact(slices.Sorted(slices.Values(slices.Concat(a.Communities, b.Communities))))
	a.Large = slices.Concat(a.Large, b.Large)
	slices.SortFunc(a.Large, LargeCommunity.Compare)
	a.Large = slices.Compact(a.Large)
	return a
}
