package edge

import (
	"net/netip"
	"time"
)

// Service is a VIP (address, port, protocol) with its policy.
type Service struct {
	ID ServiceID
	// VIP with port 0 is all ports of the address.
	VIP netip.AddrPort
	// Protocol AnyProtocol is all protocols; only with all ports.
	Protocol Protocol
	Encap    Encap
	// Proxied services are terminated by edgeproxy on the nodes of the site;
	// their backends are those nodes.
	Proxied bool
	// TLS tells edgeproxy to terminate TLS on this VIP.
	TLS bool
	// Backends are the L4 targets of a service that is not proxied.
	Backends []Backend
	// Check is how each backend is probed; its ID is not used. Kind "" probes
	// nothing: every backend counts as up.
	Check Probe
	// Needs are the dependencies of this service: they are needed by the
	// prefix that contains its VIP.
	Needs []Need

	Affinity    Affinity
	Tracking    Tracking
	Persistence Persistence
	// IdleTimeout is how long a flow that shows no packet is remembered.
	IdleTimeout time.Duration
	// DrainTimeout is how long TCP flows follow a backend that has left the
	// configuration, or the pool that a failover has left. 0 moves them at once.
	DrainTimeout time.Duration
	// Failover is how its backends are split in two pools; nil: one pool.
	Failover *Failover
	// WeightFromCheck takes each backend's weight from the header
	// X-Load-Balancing-Endpoint-Weight of the answer to its check.
	WeightFromCheck bool
	// QUIC is where the server id is in the connection ids of a UDP service that
	// speaks QUIC; nil: not read.
	QUIC     *QUIC
	SYNLimit SYNLimit
}

// Backend is an L4 target.
type Backend struct {
	ID   BackendID
	Addr netip.Addr
	// Site is the only site that uses it; empty: every site does.
	Site SiteID
	// Weight is its share of new flows, 0 to MaxWeight; 0 gets none.
	Weight int
	// Failover puts it into the failover pool, not the primary one.
	Failover bool
	// ServerID is what its connection ids carry, QUIC.Length raw bytes (not hex);
	// empty: none.
	ServerID string
}

// MaxWeight is the largest weight of a backend.
const MaxWeight = 1000

// VIPText is the VIP of a service as an operator reads it: "tcp 192.0.2.1:80",
// "udp 192.0.2.1 all ports", "192.0.2.1 all ports and protocols".
func VIPText(vip netip.AddrPort, p Protocol) string {
	switch {
	case vip.Port() != 0:
		return p.String() + " " + vip.String()
	case p == AnyProtocol:
		return vip.Addr().String() + " all ports and protocols"
	}
	return p.String() + " " + vip.Addr().String() + " all ports"
}

// Affinity says which fields of a packet choose its backend: packets that agree
// in them get the same one as long as the ring stays.
type Affinity string

// The affinities, with the fields that count. A fragment and a packet of a
// protocol without ports has none: then the 3-tuple counts at most. AffinityNone
// is the 5-tuple too, but UDP, ESP and GRE are not tracked.
const (
	AffinityNone                  Affinity = "none"
	AffinityClientIPPortProto     Affinity = "client-ip-port-proto"     // source, destination, ports, protocol
	AffinityClientIPProto         Affinity = "client-ip-proto"          // source, destination, protocol
	AffinityClientIP              Affinity = "client-ip"                // source, destination
	AffinityClientIPNoDestination Affinity = "client-ip-no-destination" // source
)

// Tracking says what the flow table remembers.
type Tracking string

// PerConnection remembers the 5-tuple, and a TCP SYN is always a new connection.
// PerSession remembers the tuple of the affinity, and a SYN is new only where
// that is the 5-tuple.
const (
	PerConnection Tracking = "per-connection"
	PerSession    Tracking = "per-session"
)

// Persistence says which flows stay on a backend that has become unhealthy.
type Persistence string

// PersistByProtocol keeps TCP flows with PerConnection, or with a 5-tuple
// affinity, and nothing else. PersistAlways wants PerConnection.
const (
	PersistByProtocol Persistence = "default-for-protocol"
	PersistNever      Persistence = "never"
	PersistAlways     Persistence = "always"
)

// Failover is the policy of a service with a primary and a failover pool.
type Failover struct {
	// Ratio: with fewer than this share of the primaries healthy, 0 to 1, new
	// flows go to the failover pool; 0 needs a single healthy primary.
	Ratio float64
	// DropIfNone drops new flows when nobody is healthy, instead of trying the
	// primaries all the same.
	DropIfNone bool
	// Drain keeps TCP flows on the pool that is left for the drain timeout.
	// Without it a switch ends all flows of the service.
	Drain bool
}

// QUIC is where a connection id carries the server id, in bytes. The id must be
// in the first 20 bytes, which are all that a connection id can have (RFC 9000).
type QUIC struct {
	Offset int // from the start of the connection id, 0 to 19
	Length int // 1 to MaxServerID
}

// Bounds of QUIC, in bytes, and of the rates and bursts of SYNLimit.
const (
	MaxConnectionID = 20
	MaxServerID     = 8
	MaxSYNRate      = 100_000_000
)

// SYNLimit limits new TCP connections, in SYNs a second at each node. A rate of
// 0 does not limit. A burst is how many may come at once, at least 1.
type SYNLimit struct {
	Rate, Burst             int // of the service
	SourceRate, SourceBurst int // of one source: an IPv4 address, an IPv6 /64
}
