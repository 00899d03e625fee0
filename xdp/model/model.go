// Package model says what the data plane does with a packet: the whole decision
// of the C program, written a second time in Go from the rules and not from the
// C, over whole slices.
//
// It owns the rules alone. It reads no map, no route and no clock: a World is
// given to it, and the time of each packet. It is the oracle of the tests of
// package xdp, and what edged asks to explain a flow. Nothing of it runs on the
// path of a packet. A World is for one goroutine at a time.
package model

import (
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
)

// RingSize is the number of slots of a ring.
const RingSize = 65537

// Flags of an address of ours, as in the map addr: the kind in the lower byte,
// which services with wildcards it has above.
const (
	AddrVIP          uint32 = 1
	AddrTunnel       uint32 = 2
	AddrKind         uint32 = 0xff
	AddrAllPorts     uint32 = 0x100
	AddrAllProtocols uint32 = 0x200
)

// VIPFragments marks an entry of World.VIPs that is there for fragments alone:
// it has port 0, and service 0 says that the services of that protocol differ.
const VIPFragments uint32 = 0x8000_0000

const vipID uint32 = 0xffff

// Affinity is the number of fields that choose a backend, as in enum affinity.
type Affinity uint8

// The affinities. AffinityNone is the 5-tuple too, but only TCP is tracked.
const (
	AffinityNone        Affinity = 0
	AffinitySrc         Affinity = 1
	AffinitySrcDst      Affinity = 2
	AffinitySrcDstProto Affinity = 3
	AffinityFiveTuple   Affinity = 5
)

// State is what a backend may be given, as in enum backend_state.
type State uint8

// The bits of a State. The SYN of a session needs both of the last two.
const (
	Member    State = 1 // of the service now
	KeepTCP   State = 2 // TCP flows that it has may follow it
	KeepOther State = 4 // flows of any other protocol
)

// World is all that a decision depends on besides the packet and the time.
// Addresses that are keys are 16 bytes, IPv4 as ::ffff:a.b.c.d. A nil map or
// function knows nothing; only Route is needed to send to a backend.
type World struct {
	// Ingress is the interface that packets come in on.
	Ingress uint32
	// MACs are those of this box.
	MACs    [][6]byte
	Addrs   map[[16]byte]uint32
	Trusted map[[16]byte]bool
	// VIPs holds service ids, perhaps with VIPFragments.
	VIPs map[VIPKey]uint32
	// Service returns a service, nil if it has no table.
	Service   func(id uint32) *Service
	Backends  map[uint32]Backend
	ServerIDs map[ServerKey]uint32
	// Blocked says whether packets from a source are dropped.
	Blocked func(src netip.Addr) bool
	VLANIn  map[VLANKey]uint32
	VLANOut map[uint32]VLANLink
	Route   func(RouteQuery) RouteAnswer
	// TooBig limits how many senders are told that their packet is too big; Interval
	// 0 tells none.
	TooBig Limit
	// Flows and Half are the flow tables: established flows, and those that have
	// shown one packet. Nil ones are empty and stay so.
	Flows, Half FlowTable

	due limits
}

// VIPKey names a service as packets do. Port 0 is all ports, Proto 0 all
// protocols.
type VIPKey struct {
	Addr  [16]byte
	Port  uint16
	Proto uint8
}

// Service is the policy of a service.
type Service struct {
	Seed [2]uint64
	// Source4 and Source6 are the outer sources; one that is not valid is all zero
	// in the packet.
	Source4, Source6 netip.Addr
	// GUE says that packets travel in GUE, else in IPIP.
	GUE      bool
	Affinity Affinity
	// PerSession says that flows are the affinity's, not the 5-tuple's.
	PerSession bool
	// Idle is how long a flow is remembered, in ticks of 2^30 ns.
	Idle uint32
	// SYN limits the new connections of the service, SYNSource those of one
	// source; Interval 0 does not.
	SYN, SYNSource Limit
	// QUIC is where the server id is; nil: not read.
	QUIC *edge.QUIC
	// Ring returns the backend id of a slot below RingSize; nil takes no new flows.
	Ring func(slot uint32) uint32
}

// Limit is a rate, as GCRA: one each Interval, and at once as many as bring the
// time at which the next one is due to Burst from now, and one more.
type Limit struct{ Interval, Burst time.Duration }

// Backend is one backend of one service.
type Backend struct {
	// Addr is where the outer header goes: its family is the outer family.
	Addr    netip.Addr
	Service uint32
	Local   bool
	// Generation tells it from others that had the same id before.
	Generation uint32
	State      State
}

// ServerKey is a server id of QUIC: as many bytes as the service reads.
type ServerKey struct {
	Service uint32
	ID      string
}

// VLANKey is how a packet of a VLAN sub-interface is known: the interface below
// and the VLAN ids, Inner 0 with one tag.
type VLANKey struct {
	Ifindex      uint32
	Outer, Inner uint16
}

// VLANLink is how a packet leaves by a VLAN sub-interface.
type VLANLink struct {
	Ifindex uint32 // of the interface below
	Tags    []Tag  // outer first
}

// Tag is a VLAN tag: its ethertype, and the 16 bits behind it.
type Tag struct{ Type, TCI uint16 }

// RouteQuery asks where an outer packet goes.
type RouteQuery struct {
	// Ifindex is where the packet came in: the sub-interface if that is known.
	Ifindex      uint32
	Src, Dst     netip.Addr
	Proto, TOS   uint8
	SPort, DPort uint16 // 0 with IPIP
	Length       int    // of the outer packet, in bytes
}

// RouteAnswer is what bpf_fib_lookup says.
type RouteAnswer struct {
	// Verdict is Undecided if the packet can go, else one of DropFIB*.
	Verdict Verdict
	Ifindex uint32
	SMAC    [6]byte
	DMAC    [6]byte
	// MTU is that of the route. It is judged before Verdict, as the kernel does
	// with a route that it finds; 0 is for a route that has none.
	MTU int
}

// By is what chose a backend.
type By string

// What chooses a backend; empty: nothing did.
const (
	ByTable    By = "table"
	ByHalf     By = "half"
	ByRing     By = "ring"
	ByServerID By = "server_id"
)

// Outcome is what became of a packet.
type Outcome struct {
	Verdict Verdict
	// Out is the frame as it leaves, nil if it does not. A frame that is passed
	// untouched is the very slice that came.
	Out []byte
	// Egress is the interface that it leaves by; 0 if it does not.
	Egress uint32
	// Service and Backend are ids; 0 is none. A backend is named also if the
	// packet did not reach it.
	Service, Backend uint32
	By               By
	// Slot is the slot of the ring, also if the ring did not decide.
	Slot uint32
	// Hash is the key of the flow tables, Flow what it was made of. Tracked says
	// whether packets like this one are looked up there.
	Hash    uint64
	Flow    Tuple
	Tracked bool
	// Length is that of the IP packet, which the counters count.
	Length int
	// ICMPError and Fragment say what kind of packet it was, Limited that it was a
	// SYN over a limit.
	ICMPError, Fragment, Limited bool
	// Opened says that its flow took a place in Half, Established that it went
	// from there to Flows.
	Opened, Established bool
	// Why is what was asked on the way, and what the answers were.
	Why []Step
}

// Step is one question of a decision.
type Step struct {
	// Asked is one of blocklist, service, limit, server_id, table, half, ring,
	// backend and route.
	Asked string `json:"asked"`
	// Answer is for people.
	Answer edge.Reason `json:"answer"`
	// Backend is the id that the answer named; 0 is none.
	Backend uint32 `json:"backend,omitempty"`
}

// Prefixes is a blocklist for World.Blocked.
type Prefixes []netip.Prefix

// Contains says whether a is in one of the prefixes.
func (p Prefixes) Contains(a netip.Addr) bool {
	for _, prefix := range p {
		if prefix.Contains(a) {
			return true
		}
	}
	return false
}
