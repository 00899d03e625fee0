package model

import (
	"fmt"
	"strings"
)

// Verdict is how a packet leaves: the action in the upper two bits, the reason
// in the lower six. The values are those of enum verdict in reasons.h.
type Verdict uint8

// Undecided is no way to leave; no packet does.
const Undecided Verdict = 0

// The packet is the stack's, as it came except with PassDecap.
const (
	PassNotIP        Verdict = 0x00 + 1 + iota // neither IPv4 nor IPv6, or no whole Ethernet header
	PassVLAN                                   // more than two tags, or one that is cut off
	PassMulticastMAC                           // for more than us: never forwarded
	PassTruncatedIP                            // too short to say whom it is for
	PassNotVIP                                 // the destination is no VIP, or our own and no tunnel
	PassICMP                                   // to a VIP: neither an echo request nor an error
	PassNoService                              // a VIP's address, no service on that port and protocol
	PassLocal                                  // the backend is this box
	PassDecap                                  // came in a tunnel, for a service
	PassForeignMAC                             // for another box: never forwarded
)

// The packet leaves where it came in.
const (
	TXBackend Verdict = 0x40 + 1 + iota // encapsulated, out where it came in
	TXEcho                              // an echo request to a VIP, answered
	TXTooBig                            // "fragmentation needed" or "packet too big", answered
)

// The packet leaves by another interface.
const (
	RedirectBackend Verdict = 0x80 + 1 + iota // encapsulated, out of another interface
)

// The packet is dropped.
const (
	DropBadVersion       Verdict = 0xc0 + 1 + iota // the version is not that of the ethertype
	DropBadHeader                                  // IPv4 header shorter than 20 bytes
	DropBadLength                                  // the IP length is not that of the frame
	DropTruncated                                  // ends inside a header
	DropBadSource                                  // a source that no host has
	DropBadTCP                                     // data offset out of the packet
	DropBadUDP                                     // UDP length out of the packet
	DropExtHeaders                                 // more than six IPv6 extension headers, or one in fragments
	DropFragment                                   // tunnel traffic in fragments
	DropNoTable                                    // a VIP without a table: cannot happen
	DropNoBackend                                  // nobody takes new flows
	DropStaleBackend                               // the ring names a removed one: cannot happen
	DropTTL                                        // would be zero at the backend: a loop
	DropTooBig                                     // does not fit with its outer headers, and none may be told
	DropNoHeadroom                                 // the driver leaves no room for outer headers
	DropFIBBlackhole                               // of the route to the backend, as are the rest
	DropFIBUnreachable                             // ICMP-unreachable route, or none
	DropFIBProhibit                                // administratively prohibited
	DropFIBNotForwarded                            // ends on this box, or there is none (IPv6)
	DropFIBForwardingOff                           // forwarding is off on the ingress interface
	DropFIBTunnel                                  // the route encapsulates by itself
	DropFIBNoNeighbour                             // the next hop's MAC address is not known
	DropFIBError                                   // the lookup itself failed
	DropDecapUntrusted                             // tunnel traffic from a stranger
	DropDecapMalformed                             // tunnel traffic that does not hold a packet
	DropDecapNotVIP                                // held a packet for no service of ours
	DropBlocked                                    // its source is in the blocklist
	DropSYNLimitService                            // more new connections than the service may have
	DropSYNLimitSource                             // more new connections than one source may open
	DropTooBigLimited                              // too big, and enough have been told for now
	DropFragmentPorts                              // its services differ, and a fragment names no port
	DropICMPQuote                                  // an error that does not quote a packet of that VIP
)

// Action is what the driver is told to do with a packet.
type Action uint8

// The actions, in the order of enum action in reasons.h.
const (
	Pass Action = iota
	TX
	Redirect
	Drop
)

// String returns "pass", "tx", "redirect" or "drop".
func (a Action) String() string { return [...]string{"pass", "tx", "redirect", "drop"}[a&3] }

// Action returns the action of the verdict.
func (v Verdict) Action() Action { return Action(v >> 6) }

// String returns the name of the verdict in reasons.h, or a number.
func (v Verdict) String() string {
	names := reasons()[v.Action()]
	if i := int(v&0x3f) - 1; i >= 0 && i < len(names) {
		return strings.ToUpper(v.Action().String() + "_" + names[i])
	}
	return fmt.Sprintf("VERDICT_%#02x", uint8(v))
}

// Verdicts returns every way to leave, in ascending order.
func Verdicts() []Verdict {
	var all []Verdict
	for action, names := range reasons() {
		for i := range names {
			all = append(all, Verdict(action<<6+i+1))
		}
	}
	return all
}

// reasons are the names of the reasons of each action, from reason 1 on.
func reasons() [4][]string {
	return [4][]string{
		{
			"not_ip", "vlan", "multicast_mac", "truncated_ip", "not_vip", "icmp", "no_service", "local",
			"decap", "foreign_mac",
		},
		{
			"backend", "echo", "too_big",
		},
		{
			"backend",
		},
		{
			"bad_version", "bad_header", "bad_length", "truncated", "bad_source", "bad_tcp", "bad_udp",
			"ext_headers", "fragment", "no_table", "no_backend", "stale_backend", "ttl", "too_big",
			"no_headroom", "fib_blackhole", "fib_unreachable", "fib_prohibit", "fib_not_forwarded",
			"fib_forwarding_off", "fib_tunnel", "fib_no_neighbour", "fib_error", "decap_untrusted",
			"decap_malformed", "decap_not_vip", "blocked", "syn_limit_service", "syn_limit_source",
			"too_big_limited", "fragment_ports", "icmp_quote",
		},
	}
}
