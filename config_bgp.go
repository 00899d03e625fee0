package edge

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Speaker is the BGP side of this node. It is handed to edgebgp as it is.
type Speaker struct {
	ASN      uint32     `json:"asn"`
	RouterID netip.Addr `json:"router_id"`
	// Listen is the local TCP port; 0 listens on none (only dials out).
	Listen int `json:"listen"`
	// Own are the prefixes that may be announced at all (fleet.prefixes).
	Own []netip.Prefix `json:"own,omitempty"`
	// Resting says that the node is drained: BFD says admin-down, so that no
	// router takes what follows for a failure.
	Resting bool `json:"resting,omitempty"`
	// RPKI is where it is read whether our announcements are valid.
	RPKI RPKI `json:"rpki,omitzero"`
	// Watch is where it is read what the world sees of our prefixes.
	Watch Watch `json:"watch,omitzero"`
	// Lease is how long edgebgp goes on with the announcements as they are
	// when edged does not renew them.
	Lease time.Duration `json:"lease_ns"`
	Peers []Peer        `json:"peers"`
}

// Family is an address family of BGP.
type Family string

// The families: unicast, AFI 1 and 2 (RFC 4760).
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
)

// Peer is a BGP neighbour of this node.
type Peer struct {
	ID PeerID `json:"id"`
	// Addr has the interface as its zone if it is link-local (IPv6).
	Addr netip.Addr `json:"address"`
	ASN  uint32     `json:"asn"`
	// LocalAddr is the source of the session; not valid lets the kernel choose.
	LocalAddr netip.Addr `json:"local_address,omitzero"`
	// Families are the address families that are negotiated.
	Families []Family `json:"families"`
	// Hold is the hold time offered (RFC 4271 section 4.2), Keepalive the
	// interval of keepalives, ConnectRetry the pause between connects.
	Hold         time.Duration `json:"hold_ns"`
	Keepalive    time.Duration `json:"keepalive_ns"`
	ConnectRetry time.Duration `json:"connect_retry_ns"`
	// PasswordFile holds the key of TCP MD5 (RFC 2385); empty uses none.
	PasswordFile string `json:"password_file,omitempty"`
	// KeyStamp is another one whenever that file has been written (Load fills it
	// in), so that a new key is a new setting: it needs a new session.
	KeyStamp string `json:"key_stamp,omitempty"`
	// Multihop is the TTL of a session over more than one hop; 0 is a direct
	// session (eBGP: TTL 1).
	Multihop int `json:"multihop,omitempty"`
	// TTLSecurity is how many hops away the peer is at most (RFC 5082): 0 does
	// not check, 1 takes only packets with TTL 255. Excludes Multihop.
	TTLSecurity int `json:"ttl_security,omitempty"`
	// Interface is the one that the session is bound to (SO_BINDTODEVICE); needed
	// for a link-local address. Empty: not bound.
	Interface string `json:"interface,omitempty"`
	// Passive waits for the peer to connect.
	Passive bool `json:"passive,omitempty"`
	// Watch makes the session receive only: nothing is announced, and what the
	// peer sends is judged as a view of the world.
	Watch bool `json:"watch,omitempty"`
	// Prefixes are those that the peer is sent; empty: all.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
	// Announce is added to what the prefixes say, in either way of announcing;
	// Degraded, if not nil, replaces how they are announced degraded.
	Announce Attributes  `json:"announce,omitzero"`
	Degraded *Attributes `json:"degraded,omitempty"`
	// NextHop4 and NextHop6 replace the next hop of the announcements of that
	// family; not valid: the announcement's. NextHop4 may be IPv6 (RFC 8950).
	NextHop4 netip.Addr `json:"next_hop4,omitzero"`
	NextHop6 netip.Addr `json:"next_hop6,omitzero"`
	// AllowLonger takes prefixes longer than /24 or /48 to an eBGP peer.
	AllowLonger bool `json:"allow_longer,omitempty"`
	// ImportLimit is how many prefixes the peer may send before it is an alarm;
	// none of them is ever used, whatever it sends. 0: 1000.
	ImportLimit int `json:"import_limit,omitempty"`
	// DefaultRoute says whether it is noted if the peer sends a default route.
	DefaultRoute bool `json:"default_route,omitempty"`
	// RestartTime of graceful restart (RFC 4724), in whole seconds; 0: off, which
	// is the default, since it keeps a dead speaker in the routers.
	RestartTime time.Duration `json:"restart_time_ns,omitempty"`
	// BFD, if not nil, watches the path to the peer.
	BFD *BFD `json:"bfd,omitempty"`
}

// Internal says whether the peer is of our own AS (iBGP).
func (s Speaker) Internal(p Peer) bool { return p.ASN == s.ASN }

// NextHop returns the next hop that the peer is sent for a.
func (p Peer) NextHop(a Announcement) netip.Addr {
	own := p.NextHop6
	if a.Net.Addr().Is4() {
		own = p.NextHop4
	}
	if own.IsValid() {
		return own
	}
	return a.NextHop
}

// BFD is how the path to a peer is watched (RFC 5880). Whether it is a single
// hop (RFC 5881) or several (RFC 5883) follows from the peer's Multihop.
type BFD struct {
	// MinTx and MinRx are the intervals offered, Multiplier how many packets may
	// be missed.
	MinTx      time.Duration `json:"min_tx_ns"`
	MinRx      time.Duration `json:"min_rx_ns"`
	Multiplier int           `json:"multiplier"`
}

// RPKI is a source of validated ROA payloads: servers that speak RTR (RFC 8210),
// in the order in which they are tried, or a file. The zero value has none.
type RPKI struct {
	Servers []netip.AddrPort `json:"servers,omitempty"`
	File    string           `json:"file,omitempty"`
	// RefuseInvalid keeps a prefix that is invalid from being announced anew. One
	// that is announced is never taken away.
	RefuseInvalid bool `json:"refuse_invalid,omitempty"`
}

// Watch is a feed of what route collectors see, as lines of JSON; at most one of
// URL and File. The zero value has none.
type Watch struct {
	URL  string `json:"url,omitempty"`
	File string `json:"file,omitempty"`
	// Origins are ASes beside our own that may originate our prefixes,
	// Neighbours those that may stand next to us in a path; empty: any.
	Origins    []uint32 `json:"origins,omitempty"`
	Neighbours []uint32 `json:"neighbours,omitempty"`
	// MissingAfter is how long a prefix may be announced and seen nowhere.
	MissingAfter time.Duration `json:"missing_after_ns,omitempty"`
}

// Session returns what of p a session depends on: two peers that agree in it can
// go on with the one that runs. The rest is a matter of the paths that are sent.
// The name of a peer and of its key file do not count; that the file has been
// written does.
func (p Peer) Session() Peer {
	p.ID, p.PasswordFile, p.Families = "", "", slices.Sorted(slices.Values(p.Families))
	p.ConnectRetry, p.Prefixes, p.Announce, p.Degraded = 0, nil, Attributes{}, nil
	p.AllowLonger, p.ImportLimit, p.DefaultRoute, p.BFD = false, 0, false, nil
	if p.NextHop4.Is6() {
		p.NextHop4 = netip.IPv6Unspecified() // any asks for the same capability
	} else {
		p.NextHop4 = netip.Addr{}
	}
	p.NextHop6 = netip.Addr{}
	return p
}

// The longest prefixes that the internet takes, by family.
const (
	longest4 = 24
	longest6 = 48
)

// Unsent says why the peer is not sent a prefix, as far as the configuration
// goes; empty: it is.
func (s Speaker) Unsent(p Peer, net netip.Prefix) Reason {
	limit, family := longest6, IPv6
	if net.Addr().Is4() {
		limit, family = longest4, IPv4
	}
	switch {
	case p.Watch:
		return "the peer is only watched"
	case len(p.Families) > 0 && !slices.Contains(p.Families, family):
		return Reason(fmt.Sprintf("the session does not carry %s: add it to the peer's families", family))
	case len(p.Prefixes) > 0 && !slices.Contains(p.Prefixes, net):
		return "not among the peer's prefixes"
	case net.Bits() > limit && !s.Internal(p) && !p.AllowLonger:
		return Reason(fmt.Sprintf("longer than /%d, to an external peer: set allow_longer on the peer if it takes it", limit))
	}
	return ""
}
