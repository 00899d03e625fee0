package bgp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/catchment-dev/edge"
)

// offer is what p is to be sent of a: a route, or why it is none. It depends on
// nothing but the intent, and of p on nothing but its policy: see policyOf. What the
// router can take is known only when its session is up: see unfit.
func offer(s edge.Speaker, p edge.Peer, a edge.Announcement) (*route, edge.Reason) {
	if why := s.Unsent(p, a.Net); why != "" {
		return nil, why
	}
	r := &route{nextHop: p.NextHop(a), attrs: p.Sent(a)}
	if r.nextHop == p.Addr {
		return nil, edge.Reason(fmt.Sprintf("the next hop %s is the peer itself: set an address of this node", r.nextHop))
	}
	if s.Internal(p) {
		// Our own AS in the path is a loop to a router of the same AS.
		r.attrs.Prepend = 0
		if r.attrs.LocalPref == 0 {
			r.attrs.LocalPref = defaultLocalPref
		}
	} else {
		r.attrs.LocalPref = 0
	}
	return r, ""
}

// contains says that net is one of own or a part of one.
func contains(own []netip.Prefix, net netip.Prefix) bool {
	return slices.ContainsFunc(own, func(o netip.Prefix) bool { return o.Bits() <= net.Bits() && o.Contains(net.Addr()) })
}
