package nft

import (
	"net/netip"

	"github.com/catchment-dev/edge"
)

const (
	ipv4Header = 20
	ipv6Header = 40
	udpHeader  = 8
	tcpHeader  = 20 // without options: those that a connection has, its ends take off themselves (RFC 6691)

	// leastMSS is what Linux takes for the least that a peer may announce
	// (TCP_MIN_MSS): a link that is too small for it is none for TCP.
	leastMSS = 88
	mostMSS  = 1<<16 - 1
)

// Overhead returns how many bytes the outer headers of an encapsulated packet
// have at the most. outer6 says that the receiving box has an IPv6 address: then
// the outer header may be IPv6, whatever is inside. That it is not so today does
// not count, since connections outlive a change of the configuration.
func Overhead(e edge.Encap, outer6 bool) int {
	n := ipv4Header
	if outer6 {
		n = ipv6Header
	}
	if e == edge.EncapGUE {
		n += udpHeader // variant 1 has no header of its own
	}
	return n
}

// MSS returns the largest MSS of a TCP connection to vip whose segments, with
// overhead bytes of outer headers, fit into packets of mtu bytes (RFC 6691: the
// MSS counts neither IP nor TCP options). It is 88 to 65535; an mtu of 0 is not
// known and gives 0.
func MSS(mtu, overhead int, vip netip.Addr) int {
	if mtu <= 0 {
		return 0
	}
	ip := ipv4Header
	if vip.Unmap().Is6() {
		ip = ipv6Header
	}
	return min(max(mtu-overhead-ip-tcpHeader, leastMSS), mostMSS)
}
