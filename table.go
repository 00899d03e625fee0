package edge

import (
	"net/netip"
	"time"
)

// Table is all that the forwarder needs; it is applied whole.
type Table struct {
	// Source4 and Source6 are the outer source of what this node sends, and
	// the addresses on which it takes encapsulated packets.
	Source4, Source6 netip.Addr
	// Trusted are the addresses from which encapsulated packets are taken.
	Trusted []netip.Addr
	// Seed keys the ring and the flow hash; the same on every node.
	Seed [16]byte
	// Services are in no particular order.
	Services []TableService
}

// TableService is one VIP with its policy and its backends.
type TableService struct {
	ID ServiceID
	// VIP with port 0 is all ports, Protocol AnyProtocol all protocols.
	VIP      netip.AddrPort
	Protocol Protocol
	Encap    Encap
	// Affinity "" is AffinityNone, Tracking "" PerConnection.
	Affinity Affinity
	Tracking Tracking
	// IdleTimeout of 0 is 60 s; it is kept in steps of 1.07 s, rounded up.
	IdleTimeout time.Duration
	// Pool names the backends that new flows go to now, for a service with
	// failover. If ClearOnSwitch, all flows of the service end when it is another
	// than in the table before, also if that was another process's.
	Pool          Pool
	ClearOnSwitch bool
	QUIC          *QUIC
	SYNLimit      SYNLimit
	// Backends may be empty: new flows are dropped with a reason.
	Backends []TableBackend
}

// Pool is one of the two sets of backends of a service with failover.
type Pool string

// The pools. A service without failover has only the first.
const (
	PoolPrimary  Pool = ""
	PoolFailover Pool = "failover"
)

// TableBackend is a backend of a service, with what this node sends it.
type TableBackend struct {
	ID   BackendID
	Addr netip.Addr
	// Weight is the share of new flows. One with 0 is in no ring.
	Weight int
	// Local is this box: the packet is passed to the stack.
	Local bool
	// KeepTCP and KeepOther let the flows that it has follow it though it gets no
	// new ones: those of TCP, those of every other protocol. One in the ring
	// keeps all.
	KeepTCP, KeepOther bool
	// ServerID is that of QUIC; empty: none.
	ServerID string
}

// ForwarderStats are the counters of the data plane since it was loaded.
type ForwarderStats struct {
	// Mode is how the program is attached: native or generic.
	Mode       string   `json:"mode"`
	Interfaces []string `json:"interfaces"`
	// Received is exactly the sum of the verdicts.
	Received uint64 `json:"received"`
	// Verdicts counts packets by how they left.
	Verdicts []VerdictCount `json:"verdicts"`
	Services []ServiceCount `json:"services"`
	Backends []BackendCount `json:"backends"`
	// Flows and HalfFlows are the sizes of the flow tables, in entries, Memory
	// what all maps take, in bytes, Blocked how many prefixes are blocked.
	Flows     int   `json:"flows"`
	HalfFlows int   `json:"half_flows"`
	Memory    int64 `json:"memory_bytes"`
	Blocked   int   `json:"blocked"`
}

// VerdictCount counts one way out of the data plane.
type VerdictCount struct {
	// Action is pass, tx, redirect or drop.
	Action string `json:"action"`
	Reason Reason `json:"reason"`
	Count  uint64 `json:"count"`
}

// ServiceCount counts the packets of one service.
type ServiceCount struct {
	Service ServiceID `json:"service"`
	Packets uint64    `json:"packets"`
	Bytes   uint64    `json:"bytes"`
	// By counts packets by what chose their backend, and what else happened to
	// them. What chose: table, half (the table of half-open connections), ring,
	// server_id. What else: icmp_error, fragment, limited (a SYN over the limit).
	By map[string]uint64 `json:"by"`
	// New counts flows that took a place in the table of half-open connections,
	// Established those that went from there to the flow table, Evicted live
	// flows that lost their place to another.
	New         uint64 `json:"new_flows"`
	Established uint64 `json:"established_flows"`
	Evicted     uint64 `json:"evicted_flows"`
}

// BackendCount counts the packets sent to one backend of a service.
type BackendCount struct {
	Service ServiceID `json:"service"`
	Backend BackendID `json:"backend"`
	Packets uint64    `json:"packets"`
	Bytes   uint64    `json:"bytes"`
}

// FlowVerdict explains where a flow goes.
type FlowVerdict struct {
	Service ServiceID `json:"service,omitempty"`
	Backend BackendID `json:"backend,omitempty"`
	// By is what chooses the backend: table, half, ring or server_id; empty if
	// nothing does.
	By string `json:"by,omitempty"`
	// Slot is the flow's slot of the ring, also if the ring does not decide.
	Slot   int    `json:"slot"`
	Action string `json:"action"`
	Reason Reason `json:"reason"`
}

// FlowEntry is one entry of the flow tables.
type FlowEntry struct {
	Service ServiceID `json:"service"`
	Backend BackendID `json:"backend"`
	// Src and Dst are what is remembered: parts that the service's tracking
	// leaves out are zero.
	Src      netip.AddrPort `json:"source"`
	Dst      netip.AddrPort `json:"destination"`
	Protocol Protocol       `json:"protocol"`
	// Half says that it has shown one packet only.
	Half bool `json:"half"`
	// Left is how long it is remembered if no packet comes, in steps of 1.07 s.
	Left time.Duration `json:"left_ns"`
}
