package edge

import "net/netip"

// The rules of this file are those that more than one part applies: the
// configuration says where in the file a value is wrong, and the part that
// would have to use the value refuses it again, since it takes nothing on trust.

// Bounds of what a node is given. Those of the forwarder are the sizes of its
// maps.
const (
	// MaxPeers is the most peers of a node.
	MaxPeers = 256
	// MaxPrepend is how often a path can be prepended.
	MaxPrepend = 10
	// MaxCommunities keeps the attributes of a path far below the 4096 bytes of
	// an UPDATE.
	MaxCommunities = 64
	// MaxServices is the most services of a fleet.
	MaxServices = 512
	// MaxBackends is the most backends of a node, over all of its services.
	MaxBackends = 8192
	// MaxTrusted is the most addresses of nodes in a fleet.
	MaxTrusted = 2048
)

// asTrans stands for a 4-byte AS where only two bytes are understood (RFC 6793).
const asTrans = 23456

// IsASN says that n can be the number of an AS: 0 (RFC 7607), 65535 and
// 4294967295 (RFC 7300) are reserved, as is AS_TRANS.
func IsASN(n uint32) bool {
	return n != 0 && n != asTrans && n != 65535 && n != 1<<32-1
}

// IsHost says that a is the address of one host: no zone, not IPv4 in IPv6, not
// unspecified, multicast or broadcast.
func IsHost(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// IsReachable says that a is the address of one host that others can reach, so
// that it can be a next hop: neither loopback nor link-local.
func IsReachable(a netip.Addr) bool {
	return IsHost(a) && !a.IsLoopback() && !a.IsLinkLocalUnicast()
}

// IsAnnounceable says that p can be announced: it has no bits behind its
// length, is not the default route, and begins with a reachable address.
func IsAnnounceable(p netip.Prefix) bool {
	return p.IsValid() && p.Bits() > 0 && p == p.Masked() && IsReachable(p.Addr())
}
