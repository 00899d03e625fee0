package edge

import (
	"net/netip"
	"time"
)

// HealthConfig is the probes and the graph that every box has.
type HealthConfig struct {
	Probes []Probe
	Groups []Group
	// NodeCheck is how the nodes of a site ask each other, and themselves, whether
	// edgeproxy serves; it has no name and no URL.
	NodeCheck Probe
	// Needs are the dependencies of every prefix of a site.
	Needs []Need
	// Hold is how long a sick prefix must have been healthy again before the
	// site comes back. Each withdrawal doubles it, up to HoldMax, and each
	// HoldHalfLife without one takes half of that back (the shape of RFC 2439).
	Hold, HoldMax, HoldHalfLife time.Duration
}

// ProbeKind is what a probe does.
type ProbeKind string

// The kinds of probes.
const (
	// ProbeProcess: the process of a pid file is alive.
	ProbeProcess ProbeKind = "process"
	// ProbeUnit: the control group of a systemd unit has a live process.
	ProbeUnit ProbeKind = "unit"
	// ProbeTCP: a TCP connection opens.
	ProbeTCP ProbeKind = "tcp"
	// ProbeTLS: a TLS handshake succeeds and the certificate is good for a while.
	ProbeTLS ProbeKind = "tls"
	// ProbeHTTP: GET of a URL answers with the expected status and body.
	ProbeHTTP ProbeKind = "http"
	// ProbeHTTP2: the same over HTTP/2.
	ProbeHTTP2 ProbeKind = "http2"
	// ProbeGRPC: grpc.health.v1.Health/Check answers SERVING.
	ProbeGRPC ProbeKind = "grpc"
	// ProbeDNS: a server answers a query.
	ProbeDNS ProbeKind = "dns"
	// ProbeICMP: an echo is answered.
	ProbeICMP ProbeKind = "icmp"
	// ProbeCommand: a command ends with 0.
	ProbeCommand ProbeKind = "command"
	// ProbeRoute: the kernel has a route.
	ProbeRoute ProbeKind = "route"
	// ProbeFile: a file is young enough.
	ProbeFile ProbeKind = "file"
	// ProbeSocket: somebody listens on a unix socket.
	ProbeSocket ProbeKind = "socket"
	// ProbeClock: the clock is right.
	ProbeClock ProbeKind = "clock"
	// ProbeDisk: a file system has room.
	ProbeDisk ProbeKind = "disk"
	// ProbePressure: processes do not wait too long for a resource (PSI).
	ProbePressure ProbeKind = "pressure"
	// ProbeExternal: vantage points elsewhere say that they can reach us.
	ProbeExternal ProbeKind = "external"
	// ProbeVIP: a request to a service's VIP is answered through the local data
	// path: through XDP, the ring, the encapsulation and the proxy.
	ProbeVIP ProbeKind = "vip"
	// ProbeForwarder: the XDP program is attached to every uplink, and counts.
	ProbeForwarder ProbeKind = "forwarder"
	// ProbeRegions: at least AtLeast regions can be reached from edgeproxy.
	ProbeRegions ProbeKind = "regions"
	// ProbeBGP: at least AtLeast BGP sessions are established.
	ProbeBGP ProbeKind = "bgp"
	// ProbeBFD: at least AtLeast BFD sessions are up.
	ProbeBFD ProbeKind = "bfd"
)

// Probe is one probe and its damping.
type Probe struct {
	ID   ProbeID
	Kind ProbeKind
	// PIDFile (process) names the file that holds the pid.
	PIDFile string
	// Unit (unit) is the name of a systemd service.
	Unit string
	// Addr (tcp, tls, grpc, dns, clock) is where to connect.
	Addr netip.AddrPort
	// URL (http, http2) is asked with GET; its host is an address, so that no name
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
	// FullStatus (http, http2, vip) is the status that says "alive but full"; 0:
	// none does.
	FullStatus int
	// KeepAlive (http) asks over one connection that stays open.
	KeepAlive bool
	// CAFile (tls, http2, grpc) holds the roots that are trusted; empty: those of
	// the system. ExpiresIn is how long the certificate must be valid for (tls).
	CAFile    string
	ExpiresIn time.Duration
	// TLS and GRPCService (grpc).
	TLS         bool
	GRPCService string
	// Name, RecordType and Expect (dns): what is asked, and the text of a record
	// that must be among the answers; empty: any. TCP asks over TCP at once.
	Name, RecordType, Expect string
	TCP                      bool
	// Target (icmp) is whom to ping.
	Target netip.Addr
	// Command (command) is the argument vector, joined by zero bytes.
	Command string
	// Net, Interface and Table (route): the exact prefix, where it must point to
	// (empty: anywhere) and the routing table (0: main).
	Net       netip.Prefix
	Interface string
	Table     int
	// File (file, socket, disk) is a path, MaxAge (file) how old it may be.
	File   string
	MaxAge time.Duration
	// MaxOffset (clock) is how far off the clock may be.
	MaxOffset time.Duration
	// MinFreeBytes and MinFreePercent (disk) are what must be free, of bytes and
	// of inodes; 0: not looked at.
	MinFreeBytes   int64
	MinFreePercent int
	// Resource (pressure) is memory, cpu or io; SomeAvg10 and FullAvg10 the share
	// of the last ten seconds, in percent, in which some or all processes may
	// have waited for it; 0: not looked at.
	Resource             string
	SomeAvg10, FullAvg10 float64
	// URLs (external) are the vantage points, joined by zero bytes.
	URLs string
	// AtLeast (regions, bgp, bfd, external) is how many are needed.
	AtLeast int
	// Source is the local address of the probe's packets; not valid: any.
	Source netip.Addr
	// Interval is between the starts of two runs, Timeout the limit of one.
	// FastInterval is the interval while a change is pending (0: Interval), Jitter
	// the part of time by which a start is moved at random (0: none).
	Interval, Timeout, FastInterval, Jitter time.Duration
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
