package edge

import (
	"net/netip"
	"time"
)

// Config is the whole typed configuration of one node. It is a value: nobody
// changes it once Parse has returned it. reference.yaml documents every key
// with its unit, range and default.
type Config struct {
	// Local is the section `node:`: this box.
	Local Local
	// Fleet is the section `fleet:`: the same on every box.
	Fleet Fleet
	// Hash identifies the bytes that were parsed (hex SHA-256, 64 digits).
	Hash string
}

// Local is this box.
type Local struct {
	ID NodeID
	// RunDir holds the unix sockets, StateDir what survives a reboot, BPFDir
	// (on a bpffs) the pinned programs, maps and links.
	RunDir, StateDir, BPFDir string
	// Management is where the console and the metrics are served.
	Management netip.AddrPort
	Forwarder  ForwarderConfig
	Speaker    Speaker
	// GossipBind is the local UDP and TCP address of the gossip.
	GossipBind netip.AddrPort
	// ProbeSource4 and ProbeSource6 are the addresses from which probes of kind
	// vip come: in no other use, and routed to this node by the site's
	// routers. Not valid when not configured.
	ProbeSource4, ProbeSource6 netip.Addr
	// ProxyUser is the user that edgeproxy becomes once it has its sockets.
	// Empty keeps the user it was started as.
	ProxyUser string
}

// XDPMode is how the program is attached.
type XDPMode string

// XDPNative runs in the driver, XDPGeneric in the stack (slow; only by choice).
const (
	XDPNative  XDPMode = "native"
	XDPGeneric XDPMode = "generic"
)

// ForwarderConfig is where and how the XDP program is attached.
type ForwarderConfig struct {
	// Interfaces are the names of the uplinks; at least one.
	Interfaces []string
	Mode       XDPMode
	// Flows is how many established flows the flow table has room for, HalfFlows
	// how many that have shown one packet only (half-open connections).
	Flows, HalfFlows int
	// Memory bounds what all maps take together, in bytes.
	Memory int64
	// Blocklist names a file of source prefixes, one a line, whose packets to any
	// VIP are dropped. Empty: none.
	Blocklist string
}

// Speaker is the BGP side of this node. It is handed to edgebgp as it is.
type Speaker struct {
	ASN      uint32     `json:"asn"`
	RouterID netip.Addr `json:"router_id"`
	// Listen is the local TCP port; 0 listens on none (only dials out).
	Listen int `json:"listen"`
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
	ID   PeerID     `json:"id"`
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
	// Multihop is the TTL of an eBGP session over more than one hop; 0 is a
	// direct session.
	Multihop int `json:"multihop,omitempty"`
	// Passive waits for the peer to connect.
	Passive bool `json:"passive,omitempty"`
}

// Fleet is what all boxes share.
type Fleet struct {
	Sites    []Site
	Nodes    []Node
	Prefixes []Prefix
	Services []Service
	Regions  []Region
	Proxy    Proxy
	Guard    Guard
	Health   HealthConfig
	// RingSeedFile holds the secret that the ring and the flow hash are keyed
	// with. The same on every box, or flows change backend between boxes.
	RingSeedFile string
}

// Site is a place that announces.
type Site struct {
	ID SiteID
}

// Node is one box of a site, as the other boxes need to know it.
type Node struct {
	ID   NodeID
	Site SiteID
	// Addr4 and Addr6 are where it takes encapsulated packets and probes, and
	// the next hop of what it announces. At least one is valid.
	Addr4, Addr6 netip.Addr
	// Gossip is where the other nodes reach its gossip.
	Gossip netip.AddrPort
	// HealthPort is the TCP port of Addr4 and Addr6 on which edgeproxy answers
	// GET /healthz.
	HealthPort uint16
}

// Prefix is what BGP carries.
type Prefix struct {
	Net netip.Prefix
	// MinSites is the floor: how many other sites must have promised to stay
	// before this one withdraws.
	MinSites int
	// Announce and Degraded are the attributes of the two ways to announce.
	Announce, Degraded Attributes
	// Needs are the dependencies of this prefix alone, on top of those of the
	// site and of its services.
	Needs []Need
}

// NeedClass says what a failed dependency means.
type NeedClass string

// A failed hard dependency makes the site sick, a failed soft one degraded.
const (
	Hard NeedClass = "hard"
	Soft NeedClass = "soft"
)

// Need is an edge of the dependency graph.
type Need struct {
	// On names a probe or a group.
	On    ProbeID
	Class NeedClass
}

// Encap is how a packet reaches a backend.
type Encap string

// EncapGUE is UDP with the inner packet directly behind it (GUE variant 1,
// draft-ietf-intarea-gue section 4, destination port 6080); EncapIPIP is IP in
// IP (RFC 2003, RFC 2473, RFC 4213), either family inside either.
const (
	EncapGUE  Encap = "gue"
	EncapIPIP Encap = "ipip"
)

// GUEPort is the UDP destination port of our GUE packets (IANA: gue).
const GUEPort = 6080

// Region is a group of upstreams that share a capacity.
type Region struct {
	ID RegionID
	// Capacity is how many requests a second the region can serve, from the
	// whole fleet.
	Capacity  float64
	Upstreams []Upstream
	// Check is how each upstream is probed by edgeproxy; its ID is not used.
	Check Probe
}

// Upstream is an L7 target.
type Upstream struct {
	ID   UpstreamID
	Addr netip.AddrPort
}

// Proxy is the L7 side, the same on every box.
type Proxy struct {
	Certificates []Certificate
	// Routes are tried in order; the first whose host and path match is taken.
	Routes []Route
	// HeaderTimeout bounds the reading of a request's head, IdleTimeout a
	// connection without a request, UpstreamTimeout the wait for the head of
	// the upstream's answer, DrainTimeout how long a stopping proxy waits.
	HeaderTimeout, IdleTimeout, UpstreamTimeout, DrainTimeout time.Duration
	// AccessLog is the file that gets a JSON line per request; empty: standard
	// output.
	AccessLog string
}

// Certificate is a certificate chain and its key, both PEM files.
type Certificate struct {
	CertFile, KeyFile string
}

// Route sends what matches to regions.
type Route struct {
	// Hosts are host names, lower case, a first label "*" matches one label.
	// Empty matches every host.
	Hosts []string
	// PathPrefix matches whole segments: "/a" matches "/a" and "/a/b" but not
	// "/ab". "/" matches all.
	PathPrefix string
	// Regions that may serve it; empty: all.
	Regions []RegionID
}

// Guard is the policy of leaving, the same on every box.
type Guard struct {
	// KeyFile holds the gossip key: 32 bytes, base64.
	KeyFile string
	// PromiseLease is how long a promise to stay binds; AskTimeout how long a
	// round waits for promises; BackOff the pause after a refused round.
	PromiseLease, AskTimeout, BackOff time.Duration
}

// HealthConfig is the probes and the graph that every box has.
type HealthConfig struct {
	Probes []Probe
	Groups []Group
	// Needs are the dependencies of every prefix of a site.
	Needs []Need
	// Hold is how long a sick prefix must have been healthy again before the
	// site comes back.
	Hold time.Duration
}

// ProbeKind is what a probe does.
type ProbeKind string

// The kinds of probes.
const (
	// ProbeProcess: the process of a pid file is alive.
	ProbeProcess ProbeKind = "process"
	// ProbeTCP: a TCP connection opens.
	ProbeTCP ProbeKind = "tcp"
	// ProbeHTTP: GET of a URL answers with the expected status and body.
	ProbeHTTP ProbeKind = "http"
	// ProbeVIP: a request to a service's VIP is answered through the local data
	// path: through XDP, the ring, the encapsulation and the proxy.
	ProbeVIP ProbeKind = "vip"
	// ProbeForwarder: the XDP program is attached to every uplink.
	ProbeForwarder ProbeKind = "forwarder"
	// ProbeRegions: at least AtLeast regions can be reached from edgeproxy.
	ProbeRegions ProbeKind = "regions"
)

// Probe is one probe and its damping.
type Probe struct {
	ID   ProbeID
	Kind ProbeKind
	// PIDFile (process) names the file that holds the pid.
	PIDFile string
	// Addr (tcp) is where to connect.
	Addr netip.AddrPort
	// URL (http) is asked with GET; its host is an address, so that no name
	// has to be looked up. Path is what a vip, a backend check or a region
	// check asks for instead of a whole URL.
	URL, Path string
	// Host is the Host header and, over TLS, the server name; empty uses the
	// address.
	Host string
	// Insecure (https) does not verify the certificate.
	Insecure bool
	// Status (http, vip) is the expected status; 0 is 200. Body, if not empty,
	// must be contained in the first 64 KiB of the answer.
	Status int
	Body   string
	// Service (vip) is whose VIP is asked.
	Service ServiceID
	// AtLeast (regions) is how many regions must be reachable.
	AtLeast int
	// Interval is between the starts of two runs, Timeout the limit of one.
	Interval, Timeout time.Duration
	// Rise and Fall are how many consecutive good or bad runs change the state.
	Rise, Fall int
}

// GroupMode is how a group combines its members.
type GroupMode string

// The modes of a group.
const (
	All     GroupMode = "all"
	Any     GroupMode = "any"
	AtLeast GroupMode = "at-least"
)

// Group is a node of the dependency graph made of others.
type Group struct {
	ID   ProbeID
	Mode GroupMode
	// K is how many members must be up in mode at-least.
	K int
	// Of are probes or groups; no cycle.
	Of []ProbeID
}

// Self returns this box as the fleet knows it. The zero Node if the
// configuration is not valid.
func (c *Config) Self() Node {
	for _, n := range c.Fleet.Nodes {
		if n.ID == c.Local.ID {
			return n
		}
	}
	return Node{}
}

// PrefixOf returns the longest configured prefix that contains a.
func (f *Fleet) PrefixOf(a netip.Addr) (Prefix, bool) {
	best, ok := Prefix{}, false
	for _, p := range f.Prefixes {
		if p.Net.Contains(a) && (!ok || p.Net.Bits() > best.Net.Bits()) {
			best, ok = p, true
		}
	}
	return best, ok
}

// Addr returns the node's address of the family of like, or, if it has none of
// that family, its other one.
func (n Node) Addr(like netip.Addr) netip.Addr {
	a, b := n.Addr4, n.Addr6
	if like.Is6() && !like.Is4In6() {
		a, b = b, a
	}
	if a.IsValid() {
		return a
	}
	return b
}
