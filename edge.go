// Package edge is the vocabulary of the appliance: the identities, the typed
// configuration, the documents that the processes exchange, and the pure
// decision what to announce.
//
// It owns no socket, no goroutine and no clock: time is passed in. Every
// process imports it; it imports none of the other packages.
package edge

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Identities. Each is the name given in the configuration, unique in its kind,
// made of [a-z0-9-], 1 to 32 characters. The zero value names nothing.
type (
	// SiteID names a site (a PoP).
	SiteID string
	// NodeID names a node: one box of a site.
	NodeID string
	// RegionID names a region: a group of upstreams with a capacity.
	RegionID string
	// ServiceID names a service: a VIP with its policy.
	ServiceID string
	// PeerID names a BGP peer of this node.
	PeerID string
	// BackendID names an L4 target of a service. The ring is built from it.
	BackendID string
	// UpstreamID names an L7 target of a region.
	UpstreamID string
	// ProbeID names a probe, or a group of probes: they share one name space.
	ProbeID string
)

// Reason is the word an operator reads beside a "no": one clause, lower case,
// no full stop. Empty means that there is nothing to explain.
type Reason string

// ErrUnknown marks a probe that could not be run (no socket, no memory, its
// own deadline missed): its result is unknown, which changes nothing.
var ErrUnknown = errors.New("probe could not run")

// Protocol is an IP protocol number that a service can have.
type Protocol uint8

// The protocols of a service, by IANA protocol number; AnyProtocol is all.
const (
	AnyProtocol Protocol = 0
	TCP         Protocol = 6
	UDP         Protocol = 17
)

// String returns "any", "tcp", "udp" or the number.
func (p Protocol) String() string {
	switch p {
	case AnyProtocol:
		return "any"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return fmt.Sprintf("protocol-%d", uint8(p))
}

// MarshalText implements encoding.TextMarshaler.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; it takes what String
// returns.
func (p *Protocol) UnmarshalText(b []byte) error {
	switch string(b) {
	case "any":
		*p = AnyProtocol
	case "tcp":
		*p = TCP
	case "udp":
		*p = UDP
	default:
		number, _ := strings.CutPrefix(string(b), "protocol-")
		n, err := strconv.ParseUint(number, 10, 8)
		if err != nil || Protocol(n).String() != string(b) {
			return fmt.Errorf("protocol %q is not tcp, udp or any", b)
		}
		*p = Protocol(n)
	}
	return nil
}

// Community is a BGP community (RFC 1997): the AS in the upper, the value in
// the lower 16 bits.
type Community uint32

// GracefulShutdown is the well-known community 65535:0 (RFC 8326): receivers
// prefer any other path.
const GracefulShutdown Community = 0xffff0000

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

// ParseCommunity reads "AS:VALUE", each 0 to 65535 in decimal digits.
func ParseCommunity(s string) (Community, error) {
	left, right, ok := strings.Cut(s, ":")
	as, err1 := strconv.ParseUint(left, 10, 16)
	val, err2 := strconv.ParseUint(right, 10, 16)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("community %q is not AS:VALUE, each 0 to 65535", s)
	}
	return Community(as<<16 | val), nil
}

// Attributes are the BGP path attributes that we set. The zero value adds
// nothing to the path.
type Attributes struct {
	// Prepend is how many times our own AS is added to the path, on top of the
	// one that eBGP adds. 0 to 10.
	Prepend int `json:"prepend,omitempty"`
	// MED is the multi-exit discriminator. 0 sends none.
	MED uint32 `json:"med,omitempty"`
	// Communities are sent in ascending order.
	Communities []Community `json:"communities,omitempty"`
}

// Announcement is one prefix that this node tells its peers about.
type Announcement struct {
	Net netip.Prefix `json:"prefix"`
	// NextHop has the family of Net.
	NextHop netip.Addr `json:"next_hop"`
	// Normal and Degraded are the two ways to send the prefix. The speaker
	// holds both, so that it can degrade by itself when the lease runs out.
	Normal   Attributes `json:"normal"`
	Degraded Attributes `json:"degraded"`
	// Degrade chooses Degraded.
	Degrade bool `json:"degrade"`
	// Reason says why it is degraded.
	Reason Reason `json:"reason,omitempty"`
}

// Flow is one connection as the forwarder sees it: the 5-tuple.
type Flow struct {
	Src, Dst netip.AddrPort
	Protocol Protocol
}

// ProbeState is the damped state of a probe.
type ProbeState uint8

// A probe is Unknown until it has run; then Up or Down.
const (
	Unknown ProbeState = iota
	Up
	Down
)

// String returns "unknown", "up" or "down".
func (s ProbeState) String() string {
	return [...]string{"unknown", "up", "down"}[min(s, Down)]
}

// MarshalText implements encoding.TextMarshaler.
func (s ProbeState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *ProbeState) UnmarshalText(b []byte) error {
	for _, v := range []ProbeState{Unknown, Up, Down} {
		if v.String() == string(b) {
			*s = v
			return nil
		}
	}
	return fmt.Errorf("probe state %q is not unknown, up or down", b)
}

// Status is what the prober knows of one probe.
type Status struct {
	Probe ProbeID    `json:"probe"`
	State ProbeState `json:"state"`
	// Since is when State was entered; zero while Unknown from the start.
	Since time.Time `json:"since"`
	// LastErr is the text of the last failed run, kept after a recovery so
	// that an operator can read what it was. Empty if none ever failed.
	LastErr string `json:"last_error,omitempty"`
	// LastErrAt is when LastErr happened.
	LastErrAt time.Time `json:"last_error_at,omitzero"`
	// LastRun is when the last run ended; zero if none has.
	LastRun time.Time `json:"last_run,omitzero"`
	// Took is how long the last run took.
	Took time.Duration `json:"took_ns,omitempty"`
	// Streak counts the consecutive results that disagree with State: how far
	// the damping has come towards a change.
	Streak int `json:"streak,omitempty"`
	// Weight is what the last good answer said of the target's weight, 0 to
	// MaxWeight; nil if it said nothing, or nothing that can be read.
	Weight *int `json:"weight,omitempty"`
}

// Health is what the dependency graph says of one prefix, from best to worst.
type Health uint8

// HealthUnknown changes nothing; Degraded is a failed soft dependency; Sick a
// failed hard one.
const (
	HealthUnknown Health = iota
	Healthy
	HealthDegraded
	Sick
)

// String returns "unknown", "healthy", "degraded" or "sick".
func (h Health) String() string {
	return [...]string{"unknown", "healthy", "degraded", "sick"}[min(h, Sick)]
}

// MarshalText implements encoding.TextMarshaler.
func (h Health) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Health) UnmarshalText(b []byte) error {
	for _, v := range []Health{HealthUnknown, Healthy, HealthDegraded, Sick} {
		if v.String() == string(b) {
			*h = v
			return nil
		}
	}
	return fmt.Errorf("health %q is not unknown, healthy, degraded or sick", b)
}

// Condition is a health with its reason: the path through the dependency graph
// to the failed probe and that probe's last error.
type Condition struct {
	Health Health    `json:"health"`
	Since  time.Time `json:"since"`
	Reason Reason    `json:"reason,omitempty"`
}
