package edge

import (
	"cmp"
	"net/netip"
	"time"
)

// The documents of this file are what the processes and edgectl exchange as
// JSON over unix sockets. Paths begin with /v1; a change that an older reader
// would misread gets /v2. Times are RFC 3339, keys that end in _ns are
// nanoseconds.

// Claim is what a node says of one prefix.
type Claim struct {
	Prefix netip.Prefix `json:"prefix"`
	// Announcing means: read back from the speaker, at least one established
	// peer holds the prefix from this node.
	Announcing bool      `json:"announcing"`
	Rung       Rung      `json:"rung"`
	Health     Health    `json:"health"`
	Since      time.Time `json:"since"`
	Reason     Reason    `json:"reason,omitempty"`
	// Drained says that an order takes the prefix off this node: the other nodes of
	// its site send it no new flows. Unserved says that it has stopped serving it.
	Drained  bool `json:"drained,omitempty"`
	Unserved bool `json:"unserved,omitempty"`
	// Severity is how much the node wants to leave, or wanted to when it left; Blocked
	// that it has been refused for five seconds.
	Severity int  `json:"severity,omitempty"`
	Blocked  bool `json:"blocked,omitempty"`
}

// Spared is a prefix that a node is drained of, and to which the node that says
// so sends nothing more of it.
type Spared struct {
	Node   NodeID       `json:"node"`
	Prefix netip.Prefix `json:"prefix"`
}

// Compare orders by node, then by prefix.
func (s Spared) Compare(o Spared) int {
	return cmp.Or(cmp.Compare(s.Node, o.Node), s.Prefix.Compare(o.Prefix))
}

// Report is what a node tells the fleet about itself; it spreads by gossip.
// The one with the higher (Boot, Seq) replaces the other.
type Report struct {
	Node NodeID `json:"node"`
	Site SiteID `json:"site"`
	// Boot is when the sending process started, in Unix nanoseconds.
	Boot int64   `json:"boot"`
	Seq  uint64  `json:"seq"`
	Says []Claim `json:"claims"`
	Load LoadRow `json:"load"`
	// Shared are the shared dependencies and how this node sees them.
	Shared map[ProbeID]ProbeState `json:"shared,omitempty"`
	// Prefer is the last order to move traffic that this node knows of, for each
	// prefix.
	Prefer []Preference `json:"prefer,omitempty"`
	// Spared are the drained nodes of this site that this one sends nothing more
	// to, by prefix: they may stop serving it.
	Spared []Spared `json:"spared,omitempty"`
	// Failing are the checks that could take a prefix away here, Trust the orders to
	// believe one, Forced the prefixes that were withdrawn here without a permit.
	Failing []Failure `json:"failing,omitempty"`
	Trust   []Trust   `json:"trust,omitempty"`
	Forced  []Forced  `json:"forced,omitempty"`
}

// LoadRow is one node's demand and its view of the regions.
type LoadRow struct {
	// Demand is how many requests a second arrive at this node.
	Demand  float64      `json:"demand_rps"`
	Regions []RegionView `json:"regions"`
}

// RegionView is how one node sees one region.
type RegionView struct {
	Region RegionID `json:"region"`
	// RTT is the smoothed round-trip time; 0 if not measured yet.
	RTT time.Duration `json:"rtt_ns"`
	// Up is how many of its upstreams answer, of Of.
	Up int `json:"up"`
	Of int `json:"of"`
	// Sent is how many requests a second this node sends there.
	Sent float64 `json:"sent_rps"`
	// Allowance is how many it may send, by the waterfall.
	Allowance float64 `json:"allowance_rps"`
	LastErr   string  `json:"last_error,omitempty"`
}

// FleetLoad is what edged tells edgeproxy of the other nodes: PUT /v1/fleet.
type FleetLoad struct {
	Rows []FleetRow `json:"rows"`
}

// FleetRow is another node's load and how old our knowledge of it is.
type FleetRow struct {
	Node NodeID        `json:"node"`
	Age  time.Duration `json:"age_ns"`
	Load LoadRow       `json:"load"`
}

// ProxyState is what edgeproxy answers to GET /v1/state.
type ProxyState struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	// ConfigHash is that of the configuration it runs.
	ConfigHash  string  `json:"config_hash"`
	Load        LoadRow `json:"load"`
	Connections int     `json:"connections"`
	Requests    uint64  `json:"requests"`
	// Responses counts answers by class: "2xx" and so on.
	Responses map[string]uint64 `json:"responses"`
	Listeners []string          `json:"listeners"`
	// TicketKeys are the names of the keys of TLS session tickets, the one that
	// encrypts first; none if they are the process's own. TicketErr says why those of
	// the file are not in use.
	TicketKeys []string `json:"ticket_keys,omitempty"`
	TicketErr  string   `json:"ticket_error,omitempty"`
}

// ProxyReload is the body of POST /v1/reload of edgeproxy.
type ProxyReload struct {
	// Keep are services that are no longer in the file but still announced:
	// they are served as long as they are in here.
	Keep []Service `json:"keep,omitempty"`
}

// MemberState is how the gossip sees another node.
type MemberState struct {
	Node NodeID `json:"node"`
	Site SiteID `json:"site"`
	// Alive is the failure detector's opinion: a hint, never counted, since whoever has
	// the gossip key can make it anything. Age says who is there.
	Alive bool `json:"alive"`
	// Age is how long ago its node itself said that its report stands, with a sign of
	// life; one that only others have passed on counts as old. Negative if there is
	// none.
	Age time.Duration `json:"age_ns"`
	// Said is how long ago its report was made, as far as that is known.
	Said   time.Duration `json:"said_ns"`
	Report Report        `json:"report"`
}

// Permit is the guard's answer to the wish to withdraw a prefix.
type Permit struct {
	OK bool `json:"ok"`
	// Until is when the permit ends, on this node's clock.
	Until time.Time `json:"until,omitzero"`
	// Promised are the sites that have promised, for this round, to stay.
	Promised []SiteID `json:"promised,omitempty"`
	// Needed is how many there must be, Lacks what else is missing; empty: nothing.
	Needed int    `json:"needed"`
	Lacks  Reason `json:"lacks,omitempty"`
	Reason Reason `json:"reason,omitempty"`
	// Refused says that a round has ended without enough promises, BlockedSince since
	// when; zero before that has lasted for five seconds.
	Refused      bool      `json:"refused"`
	BlockedSince time.Time `json:"blocked_since,omitzero"`
}

// GuardDecision is a round that is over: what was asked, who answered what, and
// what came of it.
type GuardDecision struct {
	Time   time.Time    `json:"time"`
	Prefix netip.Prefix `json:"prefix"`
	// Round counts those of the process, Opened is when it began.
	Round  uint64    `json:"round"`
	Opened time.Time `json:"opened"`
	// Severity and Wish are why the node wanted to leave, Needed how many sites
	// had to stay.
	Severity int    `json:"severity"`
	Wish     Reason `json:"wish"`
	Needed   int    `json:"needed"`
	// Promised, Nacked and Silent are the nodes that were asked, by their answer.
	Promised []NodeID          `json:"promised"`
	Nacked   map[NodeID]Reason `json:"nacked,omitempty"`
	Silent   []NodeID          `json:"silent,omitempty"`
	// Left says that the prefix was withdrawn, Reason how the round ended; Forced
	// that there was none.
	Left   bool   `json:"left"`
	Reason Reason `json:"reason"`
	Forced bool   `json:"forced,omitempty"`
}

// GuardState is what the guard shows of itself.
type GuardState struct {
	Members []MemberState `json:"members"`
	// Fresh is how old the word of a node may be, by its Age, to count.
	Fresh time.Duration `json:"fresh_ns"`
	// Isolated says that no node of another site has been heard for ten seconds:
	// nothing is withdrawn, nor let go of.
	Isolated bool `json:"isolated"`
	// Bound are the promises this node has given and not been released from.
	Bound []Binding `json:"bound"`
	// Asking are this node's own wishes.
	Asking map[netip.Prefix]Permit `json:"asking"`
	// Keys are the gossip keys, the one that encrypts first: the first 8 hex digits
	// of the SHA-256 of each.
	Keys []string `json:"keys,omitempty"`
	// Dropped counts gossip that was thrown away, by reason.
	Dropped map[string]uint64 `json:"dropped"`
	// Prefixes are how the fleet stands, Past the last rounds that are over, the
	// newest last: ten in a SystemStatus, all that are kept at /v1/guard/decisions.
	Prefixes []GuardedPrefix `json:"prefixes,omitempty"`
	Past     []GuardDecision `json:"past,omitempty"`
	// Suspects are checks that fail at many sites, Trust the orders that hold, Forced
	// what was forced off the air on this node within the hour. NodeKeys are the short
	// names of the nodes' public keys.
	Suspects []Suspect         `json:"suspects,omitempty"`
	Trust    []Trust           `json:"trust,omitempty"`
	Forced   []Forced          `json:"forced,omitempty"`
	NodeKeys map[NodeID]string `json:"node_keys,omitempty"`
}

// Binding is a promise to stay, given to a node.
type Binding struct {
	Prefix netip.Prefix `json:"prefix"`
	To     NodeID       `json:"to"`
	Until  time.Time    `json:"until"`
}

// Drain is an operator's order to leave: persisted, it survives restarts.
type Drain struct {
	// Prefix is what to leave, or Service the one whose prefix that is; neither:
	// the whole node.
	Prefix  netip.Prefix `json:"prefix,omitzero"`
	Service ServiceID    `json:"service,omitempty"`
	Reason  string       `json:"reason"`
	Since   time.Time    `json:"since"`
	// Until is when the order ends by itself; zero: never.
	Until time.Time `json:"until,omitzero"`
	// ByFile says that the drain file orders it: it ends with its line there.
	ByFile bool `json:"by_file,omitempty"`
	// Stop says that edgebgp orders it, since it is to stop: it ends when another one
	// answers.
	Stop bool `json:"stop,omitempty"`
	// Force withdraws at once and without the guard what is on the air when the order
	// is given. It is part of the order only, and not kept.
	Force bool `json:"force,omitempty"`
}

// Preference is an operator's order to move traffic: for a time, every site but
// those of Sites is made less attractive. It needs no permit, since a prefix that
// everybody prepends to is still there. It spreads through the fleet.
type Preference struct {
	Sites []SiteID `json:"sites"`
	// Prefix is what it concerns; the zero Prefix is all of them.
	Prefix netip.Prefix `json:"prefix,omitzero"`
	// Prepend and MED are added at the other sites.
	Prepend int       `json:"prepend,omitempty"`
	MED     uint32    `json:"med,omitempty"`
	Reason  string    `json:"reason"`
	By      NodeID    `json:"by"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
}

// Event is a change that an operator may want to read of later.
type Event struct {
	Time time.Time `json:"time"`
	// Kind is probe, prefix, peer, bfd, drain or prefer; Subject its name.
	Kind    string `json:"kind"`
	Subject string `json:"subject"`
	From    string `json:"from"`
	To      string `json:"to"`
	// Evidence is what made it change.
	Evidence string `json:"evidence,omitempty"`
}

// Events answers GET /v1/history?since=N: those after the first N of all, as far
// as they are still kept, and how many there have been.
type Events struct {
	Events []Event `json:"events"`
	Next   uint64  `json:"next"`
}

// WhatIf answers GET /v1/what-if?PROBE=STATE...: what would be announced if
// the probes had those states.
type WhatIf struct {
	Changed map[ProbeID]ProbeState `json:"changed"`
	Now     []Decision             `json:"now"`
	Then    []Decision             `json:"then"`
	// Health is what the graph would say.
	Health []PrefixHealth `json:"health"`
	Notes  []string       `json:"notes,omitempty"`
}

// SystemStatus is all that edged knows, as edgectl and the console show it:
// GET /v1/status, and as server-sent events on /v1/events.
type SystemStatus struct {
	Node       NodeID    `json:"node"`
	Site       SiteID    `json:"site"`
	Version    string    `json:"version"`
	Time       time.Time `json:"time"`
	Started    time.Time `json:"started"`
	Generation uint64    `json:"generation"`
	ConfigHash string    `json:"config_hash"`
	// ConfigErr says why the last reload was refused; empty after a good one.
	ConfigErr string `json:"config_error,omitempty"`
	// Alarms are the conditions that need a person, worst first.
	Alarms     []string       `json:"alarms"`
	Decisions  []Decision     `json:"decisions"`
	Conditions []PrefixHealth `json:"conditions"`
	Drains     []Drain        `json:"drains"`
	Prefers    []Preference   `json:"prefers,omitempty"`
	Probes     []Status       `json:"probes"`
	// Speaker is what edgebgp said last, SpeakerErr why it does not say more:
	// then Speaker is old.
	Speaker    SpeakerState     `json:"speaker"`
	SpeakerErr string           `json:"speaker_error,omitempty"`
	Guard      GuardState       `json:"guard"`
	Proxy      ProxyState       `json:"proxy"`
	Forwarder  ForwarderStats   `json:"forwarder"`
	Services   []ServiceSummary `json:"services"`
}

// PrefixHealth is the condition of one prefix.
type PrefixHealth struct {
	Prefix netip.Prefix `json:"prefix"`
	// MinSites is the floor.
	MinSites int `json:"min_sites"`
	Condition
}
