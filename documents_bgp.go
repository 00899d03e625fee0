package edge

import (
	"net/netip"
	"slices"
	"time"
)

// The documents of this file are what edged and edgebgp tell each other; see
// documents.go for their form.

// Intent is everything edged wants of edgebgp: PUT /v1/intent. It is whole, but
// nothing is withdrawn by being forgotten: a prefix that is announced must be in
// Announcements or in Withdraw, and one that goes on being announced must keep a
// session that carries it (see DropsRoutes), else the whole intent is refused.
type Intent struct {
	// Generation counts the configurations that edged has applied.
	Generation    uint64         `json:"generation"`
	Speaker       Speaker        `json:"speaker"`
	Announcements []Announcement `json:"announcements"`
	// Withdraw are the prefixes to take off the air, each under a permit. One
	// that is not announced is ignored.
	Withdraw []Withdrawal `json:"withdraw,omitempty"`
}

// Withdrawal is an order to withdraw a prefix before its permit ends.
type Withdrawal struct {
	Net netip.Prefix `json:"prefix"`
	// Until is the end of the permit: edgebgp does not begin to withdraw after
	// it, however late it comes to it.
	Until time.Time `json:"until"`
	// UntilBoot is the same on CLOCK_BOOTTIME of the box, which nobody sets; the
	// earlier of the two counts. 0: not known, as an older edged does not say it.
	UntilBoot time.Duration `json:"until_boot_ns,omitempty"`
}

// SpeakerState is what edgebgp answers: to PUT /v1/intent and GET /v1/state.
type SpeakerState struct {
	Generation uint64    `json:"generation"`
	Started    time.Time `json:"started"`
	// Stopping is since when edgebgp is to stop and waits until nobody holds anything
	// of it any more; zero: it is not to.
	Stopping time.Time `json:"stopping,omitzero"`
	// Speaker are the settings in force; nil before the first intent.
	Speaker *Speaker `json:"speaker,omitempty"`
	// LeaseLeft is how long until the announcements are degraded; 0 when they
	// are, or when there has been no intent yet.
	LeaseLeft time.Duration `json:"lease_left_ns"`
	// Refused counts the connections to the BGP port that were refused, by reason;
	// LastRefused tells of the last one.
	Refused     map[string]uint64 `json:"refused,omitempty"`
	LastRefused string            `json:"last_refused,omitempty"`
	// Expired says that the lease has run out and everything is degraded.
	Expired       bool           `json:"expired"`
	Announcements []Announcement `json:"announcements"`
	Peers         []PeerState    `json:"peers"`
	// Origins are what the RPKI says of our announcements, RPKI its source.
	Origins []Origin    `json:"origins,omitempty"`
	RPKI    SourceState `json:"rpki,omitzero"`
	// Sightings are what Watch, and peers that are watched, see wrong.
	Sightings []Sighting  `json:"sightings,omitempty"`
	Watch     SourceState `json:"watch,omitzero"`
	// Version is another one whenever something that may be left out of a
	// SpeakerChange has changed. Renewal names the intent in force if it was
	// accepted as a whole: POST /v1/renew?intent=RENEWAL is as good as that intent.
	Version string `json:"version,omitempty"`
	Renewal string `json:"renewal,omitempty"`
	// KeepErr says why the intent in force is not in the state file: after a restart
	// edgebgp would announce an older one. Empty: it is.
	KeepErr string `json:"keep_error,omitempty"`
}

// PeerState is one peer as the speaker sees it.
type PeerState struct {
	ID   PeerID     `json:"id"`
	Addr netip.Addr `json:"address"`
	ASN  uint32     `json:"asn"`
	// Session is the state of the FSM (RFC 4271 section 8.2.2), lower case:
	// idle, connect, active, opensent, openconfirm, established.
	Session string    `json:"session"`
	Since   time.Time `json:"since,omitzero"`
	// Flaps counts how often an established session was lost.
	Flaps   int    `json:"flaps"`
	LastErr string `json:"last_error,omitempty"`
	// LastErrAt is when that was.
	LastErrAt time.Time `json:"last_error_at,omitzero"`
	// Local is our end of the session.
	Local netip.AddrPort `json:"local,omitzero"`
	// Hold and Keepalive are those negotiated, RemoteID is the peer's router id.
	Hold      time.Duration `json:"hold_ns,omitempty"`
	Keepalive time.Duration `json:"keepalive_ns,omitempty"`
	RemoteID  netip.Addr    `json:"remote_id,omitzero"`
	Families  []Family      `json:"families,omitempty"`
	// Held are the prefixes of the peer's Adj-RIB-Out while established: what
	// was written to it, with its attributes, in the order of netip.Prefix.Compare.
	Held []HeldPrefix `json:"held,omitempty"`
	// NotSent are announcements that this peer is not sent, and why. Pending is how
	// many changes edgebgp has accepted and not brought about for it yet.
	NotSent []NotSent `json:"not_sent,omitempty"`
	Pending int       `json:"pending,omitempty"`
	// Received is how many prefixes the peer has sent, of which none is used;
	// OverLimit that they are more than its limit; Default whether a default
	// route is among them, if that is asked for.
	Received  int  `json:"received"`
	OverLimit bool `json:"over_limit,omitempty"`
	Default   bool `json:"default,omitempty"`
	// FirstReceived are the first of what it has sent, at most 20, unless there
	// are thousands.
	FirstReceived []netip.Prefix `json:"first_received,omitempty"`
	// Messages count what went over the wire in all sessions with this peer.
	Messages MessageCounts `json:"messages"`
	// BFD is the session that watches the path; nil: none.
	BFD *BFDState `json:"bfd,omitempty"`
}

// MessageCounts count messages of BGP since the speaker has started.
type MessageCounts struct {
	UpdatesSent uint64 `json:"updates_sent"`
	// WithdrawsSent are the prefixes withdrawn by those, not the messages.
	WithdrawsSent   uint64 `json:"withdraws_sent"`
	UpdatesReceived uint64 `json:"updates_received"`
	// Malformed are messages of the peer that are not as the standards say,
	// survivable or not.
	Malformed uint64 `json:"malformed"`
}

// NotSent is an announcement that a peer is not sent.
type NotSent struct {
	Net    netip.Prefix `json:"prefix"`
	Reason Reason       `json:"reason"`
}

// BFDState is the BFD session with a peer.
type BFDState struct {
	// State and Remote are admin-down, down, init or up; Diag and RemoteDiag
	// say why (RFC 5880 section 4.1).
	State      string    `json:"state"`
	Remote     string    `json:"remote_state"`
	Since      time.Time `json:"since,omitzero"`
	Diag       string    `json:"diag,omitempty"`
	RemoteDiag string    `json:"remote_diag,omitempty"`
	LastErr    string    `json:"last_error,omitempty"`
	// Detect is after how much silence the path is down.
	Detect time.Duration `json:"detect_ns,omitempty"`
	Flaps  int           `json:"flaps"`
}

// HeldPrefix is a prefix that a peer holds from us.
type HeldPrefix struct {
	Net     netip.Prefix `json:"prefix"`
	NextHop netip.Addr   `json:"next_hop"`
	Attributes
}

// Origin is what the RPKI says of one of our announcements.
type Origin struct {
	Net netip.Prefix `json:"prefix"`
	// Validity is valid, invalid-length, invalid-origin, not-found or unknown.
	Validity string `json:"validity"`
	Evidence string `json:"evidence,omitempty"`
}

// Sighting is something that the world sees of our prefixes and should not, or
// does not see and should.
type Sighting struct {
	// Kind is unexpected-origin, more-specific, missing or leak.
	Kind     string       `json:"kind"`
	Net      netip.Prefix `json:"prefix"`
	Seen     netip.Prefix `json:"seen,omitzero"`
	Evidence string       `json:"evidence"`
	Since    time.Time    `json:"since"`
	Last     time.Time    `json:"last"`
}

// SourceState is a source of knowledge beside BGP: the RPKI cache, a feed.
type SourceState struct {
	// Source is where from; empty: none is configured.
	Source  string    `json:"source,omitempty"`
	Updated time.Time `json:"updated,omitzero"`
	Items   int       `json:"items"`
	LastErr string    `json:"last_error,omitempty"`
}

// Holders returns how many established peers hold p.
func (s SpeakerState) Holders(p netip.Prefix) int {
	n := 0
	for _, peer := range s.Peers {
		if peer.Session == "established" && holds(peer.Held, p) {
			n++
		}
	}
	return n
}

// holds looks p up in a table that is in order: edged asks for a thousand prefixes
// at hundreds of peers, several times a second.
func holds(table []HeldPrefix, p netip.Prefix) bool {
	_, ok := slices.BinarySearchFunc(table, p, func(h HeldPrefix, p netip.Prefix) int { return h.Net.Compare(p) })
	return ok
}
