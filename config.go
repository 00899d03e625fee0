package edge

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
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
	// KeyFile holds its private key: Ed25519, PEM of PKCS#8. Only its owner may
	// read it.
	KeyFile string
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
	// DrainFile, if it exists, drains what it names; see drains by file in the
	// docs. Empty: none.
	DrainFile string
	// ProxyUser is the user that edgeproxy becomes once it has its sockets.
	// Empty keeps the user it was started as.
	ProxyUser string
	// HostFirewall is who may reach this box beside its VIPs.
	HostFirewall HostFirewall
	// ConfigVolumes is when the appliance looks for volumes with a configuration.
	ConfigVolumes ConfigVolumes
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
	// Region is the part of the world that it is in, by any name; empty: none.
	Region RegionID
	// Capacity is how many requests a second it can serve; 0: it is not known.
	Capacity float64
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
	// PublicKey is its Ed25519 key: what it says to the other nodes is signed.
	PublicKey NodeKey
}

// NodeKey is an Ed25519 public key (RFC 8032), as the 32 bytes that it is.
type NodeKey [32]byte

// String returns the key in base64, as the configuration has it.
func (k NodeKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Prefix is what BGP carries.
type Prefix struct {
	Net netip.Prefix
	// MinSites is the floor: how many other sites must have promised to stay
	// before this one withdraws.
	MinSites int
	// Announce and Degraded are the attributes of the two ways to announce.
	Announce, Degraded Attributes
	// WhenFull says what becomes of it while its site is full.
	WhenFull FullPolicy
	// Unconditional are the sites that announce it whatever their health says; no
	// other site does. Empty: every site announces it, by its health.
	Unconditional []SiteID
	// Needs are the dependencies of this prefix alone, on top of those of the
	// site and of its services.
	Needs []Need
}

// AnnouncedAt says whether p is announced at site whatever the health, and if it
// is announced at other sites only, why not here.
func (p Prefix) AnnouncedAt(site SiteID) (unconditional bool, elsewhere Reason) {
	switch {
	case len(p.Unconditional) == 0:
		return false, ""
	case slices.Contains(p.Unconditional, site):
		return true, ""
	}
	return false, Reason(fmt.Sprintf("announced at %s only", joinSites(p.Unconditional)))
}

// NeedClass says what a failed dependency means.
type NeedClass string

// A failed hard dependency makes the site sick, a failed soft one degraded. A
// Shared one is the same thing for every site: as long as others miss it too, or
// may, its failure degrades; only where this site is alone with it, it is hard.
const (
	Hard   NeedClass = "hard"
	Soft   NeedClass = "soft"
	Shared NeedClass = "shared"
)

// FullPolicy says how a prefix is announced while its site is full.
type FullPolicy string

// Spread goes on as before, and the backbone takes the excess to other regions;
// DegradeFull makes the site less attractive too.
const (
	SpreadFull  FullPolicy = "spread"
	DegradeFull FullPolicy = "degrade"
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
	// TicketKeyFile holds the keys of TLS session tickets, one a line: 32 bytes,
	// base64. The first encrypts, all are accepted. Empty: each edgeproxy makes its
	// own, and nobody else takes its tickets.
	TicketKeyFile string
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

// MaxPromiseLease is the longest lease of a promise that a configuration may ask
// for.
const MaxPromiseLease = 5 * time.Minute

// Guard is the policy of leaving, the same on every box.
type Guard struct {
	// KeyFile holds the gossip keys, one a line: 32 bytes, base64. The first
	// encrypts, all are accepted.
	KeyFile string
	// PromiseLease is how long a promise to stay binds, at most MaxPromiseLease;
	// AskTimeout how long a round waits for promises; BackOff the pause after a
	// refused round.
	PromiseLease, AskTimeout, BackOff time.Duration
	// DrainTime is how long a planned withdrawal is announced degraded first, so
	// that the traffic moves before the route does; 0 asks at once. It ends early
	// when the traffic has gone.
	DrainTime time.Duration
	// SickDrainTime is the same for a withdrawal for sickness: long enough for the
	// routers to know of the other sites before the route of this one goes.
	SickDrainTime time.Duration
	// MaxCycles is how often in an hour a prefix may be withdrawn for sickness;
	// beyond it is degraded only.
	MaxCycles int
	// Beyond the MinSites of a prefix: SpareSites is how many sites more must stay,
	// for those that may be lost meanwhile; MinFraction which share of all sites, 0
	// to 1; MinHealthy how many that can serve at their best. A prefix whose
	// MinSites is 0 is not guarded at all.
	SpareSites, MinHealthy int
	MinFraction            float64
	// MinCapacity is what those that stay must be able to serve together, in
	// requests a second; CoverDemand says that it must be the fleet's demand too, as
	// it is now. A site without a capacity counts for nothing.
	MinCapacity float64
	CoverDemand bool
	// Regions are the floors of single regions.
	Regions []RegionFloor
	// MaxPlanned is how many sites at most may be leaving at a time by an order;
	// none may while one leaves for sickness.
	MaxPlanned int
	// MaxLeaves is which share of its prefixes a node may withdraw in a minute, 0 to
	// 1, or FreeLeaves of them if that is more.
	MaxLeaves float64
}

// Of is the policy for p. The floor of a prefix that only some sites announce is
// its MinSites alone: what is asked of all sites those few could never meet.
func (g Guard) Of(p Prefix) Guard {
	if len(p.Unconditional) > 0 {
		g.SpareSites, g.MinHealthy, g.MinFraction, g.MinCapacity, g.CoverDemand, g.Regions = 0, 0, 0, 0, false, nil
	}
	return g
}

// FreeLeaves is how many prefixes a node may withdraw in a minute whatever the
// share says: a small node could else not leave at all.
const FreeLeaves = 10

// RegionFloor is how many sites of a region must stay.
type RegionFloor struct {
	Region   RegionID
	MinSites int
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
