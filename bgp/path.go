package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/apiutil"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/catchment-dev/edge"
)

// defaultLocalPref is what an iBGP peer is sent if nothing is configured
// (RFC 4271 section 5.1.5 wants one; 100 is what all others take).
const defaultLocalPref = 100

// route is how one prefix is announced to the peers of a class. What it says is
// not changed; several goroutines may use it.
type route struct {
	nextHop netip.Addr
	attrs   edge.Attributes

	once  sync.Once
	built *api.Path
	err   error
}

// equal compares what is announced.
func (r *route) equal(o *route) bool {
	return r == o || r.nextHop == o.nextHop && r.attrs.Equal(o.attrs)
}

// path is r as GoBGP takes it, made once: net and asn are always the same.
func (r *route) path(net netip.Prefix, asn uint32) (*api.Path, error) {
	r.once.Do(func() { r.built, r.err = makePath(r.nextHop, r.attrs, net, asn) })
	return r.built, r.err
}

// makePath makes GoBGP's form of a route. eBGP adds asn once more when it is sent,
// so prepending n times makes the receiver see n+1.
func makePath(nextHop netip.Addr, a edge.Attributes, net netip.Prefix, asn uint32) (*api.Path, error) {
	nlri := nlriOf(net)
	attrs := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)}
	if a.Prepend > 0 {
		own := slices.Repeat([]uint32{asn}, a.Prepend)
		attrs = append(attrs, bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, own)}))
	}
	if nextHop.Is4() {
		attrs = append(attrs, bgp.NewPathAttributeNextHop(nextHop.String()))
	} else { // for IPv4 as well: RFC 8950
		attrs = append(attrs, bgp.NewPathAttributeMpReachNLRI(nextHop.String(), []bgp.AddrPrefixInterface{nlri}))
	}
	if a.MED != 0 {
		attrs = append(attrs, bgp.NewPathAttributeMultiExitDisc(a.MED))
	}
	if a.LocalPref != 0 {
		attrs = append(attrs, bgp.NewPathAttributeLocalPref(a.LocalPref))
	}
	attrs = append(attrs, communities(a)...)
	p, err := apiutil.NewPath(nlri, false, attrs, time.Time{})
	if err != nil {
		return nil, fmt.Errorf("make path of %s: %w", net, err)
	}
	return p, nil
}

func communities(a edge.Attributes) (attrs []bgp.PathAttributeInterface) {
	if len(a.Communities) > 0 {
		list := make([]uint32, len(a.Communities))
		for i, c := range a.Communities {
			list[i] = uint32(c)
		}
		attrs = append(attrs, bgp.NewPathAttributeCommunities(list))
	}
	if len(a.Large) > 0 {
		list := make([]*bgp.LargeCommunity, len(a.Large))
		for i, c := range a.Large {
			list[i] = &bgp.LargeCommunity{ASN: c.Global, LocalData1: c.Local1, LocalData2: c.Local2}
		}
		attrs = append(attrs, bgp.NewPathAttributeLargeCommunities(list))
	}
	return attrs
}

func nlriOf(p netip.Prefix) bgp.AddrPrefixInterface {
	if p.Addr().Is4() {
		return bgp.NewIPAddrPrefix(uint8(p.Bits()), p.Addr().String())
	}
	return bgp.NewIPv6AddrPrefix(uint8(p.Bits()), p.Addr().String())
}
