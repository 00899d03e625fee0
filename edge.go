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

// ErrFull marks an answer of a target that is alive but takes no more: the
// probe passes, and its state is Full instead of Up.
var ErrFull = errors.New("alive but full")

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
	// Shutdown adds GRACEFUL_SHUTDOWN (RFC 8326) to whatever degraded is: a
	// planned withdrawal comes.
	Shutdown bool `json:"shutdown,omitempty"`
	// More is added for every peer, after what is the peer's own: prepends, and a
	// MED if it is higher.
	More Attributes `json:"more,omitzero"`
	// Reason says why it is degraded.
	Reason Reason `json:"reason,omitempty"`
}

// Sent is how a peer is sent the announcement: in its own way if it has one. It
// shares no memory with a or p.
func (p Peer) Sent(a Announcement) Attributes {
	out := p.policy(a)
	out.Prepend = min(out.Prepend+a.More.Prepend, MaxPrepend)
	out.MED = max(out.MED, a.More.MED)
	return out
}

func (p Peer) policy(a Announcement) Attributes {
	if !a.Degrade {
		return a.Normal.Plus(p.Announce)
	}
	out := a.Degraded
	if p.Degraded != nil {
		out = *p.Degraded
	}
	if a.Shutdown {
		out = out.Plus(Attributes{Communities: []Community{GracefulShutdown}})
	}
	// The other way round: a MED or a local preference of its own must not undo
	// the degrading.
	return p.Announce.Plus(out)
}

// Flow is one connection as the forwarder sees it: the 5-tuple.
type Flow struct {
	Src, Dst netip.AddrPort
	Protocol Protocol
}

// ProbeState is the damped state of a probe.
type ProbeState uint8

// A probe is Unknown until it has run; then Up, Down or Full: alive, with no
// room for more.
const (
	Unknown ProbeState = iota
	Up
	Down
	Full
)

// Alive says whether the target answers: Up or Full.
func (s ProbeState) Alive() bool { return s == Up || s == Full }

// String returns "unknown", "up", "down" or "full".
func (s ProbeState) String() string {
	return [...]string{"unknown", "up", "down", "full"}[min(s, Full)]
}

// MarshalText implements encoding.TextMarshaler.
func (s ProbeState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *ProbeState) UnmarshalText(b []byte) error {
	for v := Unknown; v <= Full; v++ {
		if v.String() == string(b) {
			*s = v
			return nil
		}
	}
	return fmt.Errorf("probe state %q is not unknown, up, down or full", b)
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

// HealthUnknown changes nothing; HealthFull serves but has no room for more, so
// the load is spread; HealthDegraded is a failed soft dependency; Sick a failed
// hard one.
const (
	HealthUnknown Health = iota
	Healthy
	HealthFull
	HealthDegraded
	Sick
)

// Serves says whether the prefix can be served, be it at its best or not.
func (h Health) Serves() bool { return h == Healthy || h == HealthFull || h == HealthDegraded }

// String returns "unknown", "healthy", "full", "degraded" or "sick".
func (h Health) String() string {
	return [...]string{"unknown", "healthy", "full", "degraded", "sick"}[min(h, Sick)]
}

// MarshalText implements encoding.TextMarshaler.
func (h Health) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Health) UnmarshalText(b []byte) error {
	for v := HealthUnknown; v <= Sick; v++ {
		if v.String() == string(b) {
			*h = v
			return nil
		}
	}
	return fmt.Errorf("health %q is not unknown, healthy, full, degraded or sick", b)
}

// Condition is a health with its reason: the path through the dependency graph
// to the failed probe and that probe's last error.
type Condition struct {
	Health Health    `json:"health"`
	Since  time.Time `json:"since"`
	Reason Reason    `json:"reason,omitempty"`
	// Severity says how sick: SeveritySick for the least, SeverityDown if nothing of
	// the prefix can be served.
	Severity int `json:"severity,omitempty"`
	// Doubtful says that it would be sick, but too little is heard of other sites to
	// hold it against this one: it is degraded, and no reason to come on the air.
	Doubtful bool `json:"doubtful,omitempty"`
}
