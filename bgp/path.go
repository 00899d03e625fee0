package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/apiutil"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/catchment-dev/edge"
)

// route is how one prefix is announced now.
type route struct {
	nextHop netip.Addr
	attrs   edge.Attributes
	// unsure says that the last call about it has failed: the server may have
	// carried it out all the same, or do so later. All calls pass through one
	// channel, so what it is told now comes behind that.
	unsure bool
}

func routeOf(a edge.Announcement) route {
	if a.Degrade {
		return route{nextHop: a.NextHop, attrs: a.Degraded}
	}
	return route{nextHop: a.NextHop, attrs: a.Normal}
}

// equal compares what is announced, not how sure that is.
func (r route) equal(o route) bool {
	return r.nextHop == o.nextHop && r.attrs.Prepend == o.attrs.Prepend && r.attrs.MED == o.attrs.MED &&
		slices.Equal(r.attrs.Communities, o.attrs.Communities)
}

// path is r as GoBGP takes it. eBGP adds asn once more when it is sent, so
// prepending n times makes the receiver see n+1.
func (r route) path(net netip.Prefix, asn uint32) (*api.Path, error) {
	nlri, v6 := nlriOf(net)
	attrs := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)}
	if n := r.attrs.Prepend; n > 0 {
		own := slices.Repeat([]uint32{asn}, n)
		attrs = append(attrs, bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, own)}))
	}
	if v6 {
		attrs = append(attrs, bgp.NewPathAttributeMpReachNLRI(r.nextHop.String(), []bgp.AddrPrefixInterface{nlri}))
	} else {
		attrs = append(attrs, bgp.NewPathAttributeNextHop(r.nextHop.String()))
	}
	if r.attrs.MED != 0 {
		attrs = append(attrs, bgp.NewPathAttributeMultiExitDisc(r.attrs.MED))
	}
	if len(r.attrs.Communities) > 0 {
		list := make([]uint32, len(r.attrs.Communities))
		for i, c := range r.attrs.Communities {
			list[i] = uint32(c)
		}
		attrs = append(attrs, bgp.NewPathAttributeCommunities(list))
	}
	p, err := apiutil.NewPath(nlri, false, attrs, time.Time{})
	if err != nil {
		return nil, fmt.Errorf("make path of %s: %w", net, err)
	}
	return p, nil
}

func nlriOf(p netip.Prefix) (nlri bgp.AddrPrefixInterface, v6 bool) {
	if p.Addr().Is4() {
		return bgp.NewIPAddrPrefix(uint8(p.Bits()), p.Addr().String()), false
	}
	return bgp.NewIPv6AddrPrefix(uint8(p.Bits()), p.Addr().String()), true
}

// held reads a path of an Adj-RIB-Out back into our words: from the attributes
// that are there, not from what was asked for.
func held(p *api.Path, asn uint32) (edge.HeldPrefix, error) {
	var h edge.HeldPrefix
	nlri, err := apiutil.GetNativeNlri(p)
	if err != nil {
		return h, fmt.Errorf("read prefix of path: %w", err)
	}
	if h.Net, err = netip.ParsePrefix(nlri.String()); err != nil {
		return h, fmt.Errorf("read prefix of path: %w", err)
	}
	attrs, err := apiutil.GetNativePathAttributes(p)
	if err != nil {
		return h, fmt.Errorf("read attributes of %s: %w", h.Net, err)
	}
	own := 0
	for _, attr := range attrs {
		switch a := attr.(type) {
		case *bgp.PathAttributeNextHop:
			h.NextHop = addrOf(a.Value)
		case *bgp.PathAttributeMpReachNLRI:
			h.NextHop = addrOf(a.Nexthop)
		case *bgp.PathAttributeMultiExitDisc:
			h.MED = a.Value
		case *bgp.PathAttributeAsPath:
			own = countASN(a, asn)
		case *bgp.PathAttributeCommunities:
			for _, c := range a.Value {
				h.Communities = append(h.Communities, edge.Community(c))
			}
		}
	}
	h.Prepend = max(0, own-1) // one is eBGP's own
	slices.Sort(h.Communities)
	return h, nil
}

func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}

func countASN(path *bgp.PathAttributeAsPath, asn uint32) int {
	n := 0
	for _, segment := range path.Value {
		for _, as := range segment.GetAS() {
			if as == asn {
				n++
			}
		}
	}
	return n
}
