package edge

import (
	"fmt"
	"math"
	"net/netip"
	"time"
)

// This file and its siblings read the sections of the file, one function for
// each mapping. They are the only place that knows the keys, their ranges and
// their defaults; reference.yaml repeats them and a test compares. What needs
// more than one value to be judged is in check.go.

// config reads the whole file.
func (r *reader) config(root value) *Config {
	c := &Config{}
	o := r.object(root)
	fleet := section(o, "fleet", "required", r.fleet)
	c.Fleet = fleet
	c.Local = section(o, "node", "required", func(o *object) Local { return r.node(o, &fleet) })
	o.done()
	return c
}

// node reads the section node. The fleet gives the defaults that are the same
// as what the other boxes know of this one.
func (r *reader) node(o *object, fleet *Fleet) Local {
	l := Local{ID: need(o, "name", name[NodeID]())}
	self := (&Config{Local: l, Fleet: *fleet}).Self()
	l.RunDir = want(o, "run_dir", runDir(), or("/run/edge"))
	l.StateDir = want(o, "state_dir", file(), or("/var/lib/edge"))
	l.BPFDir = want(o, "bpf_dir", file(), or("/sys/fs/bpf/edge"))
	l.Management = want(o, "management", socket(true), or(netip.MustParseAddrPort("127.0.0.1:9180")))
	l.ProbeSource4 = want(o, "probe_source4", address(4), none[netip.Addr]())
	l.ProbeSource6 = want(o, "probe_source6", address(6), none[netip.Addr]())
	l.ProxyUser = want(o, "proxy_user", word("user name", 32), or(""))
	l.GossipBind = want(o, "gossip_bind", socket(true), orElse(self.Gossip, "the gossip address of this node in fleet.nodes"))
	l.Forwarder = section(o, "forwarder", "required", r.forwarder)
	l.Speaker = section(o, "bgp", "required", func(o *object) Speaker { return r.speaker(o, self) })
	return l
}

// runDir leaves room for the names of the sockets: the path of a unix socket
// has at most 107 bytes.
func runDir() rule[string] {
	rule := file()
	rule.takes += " of at most 80 bytes"
	inner := rule.parse
	rule.parse = func(s string) (string, error) {
		if len(s) > 80 {
			return "", fmt.Errorf("%s is longer than 80 bytes: the names of unix sockets must fit behind it", quote(s))
		}
		return inner(s)
	}
	return rule
}

func (r *reader) forwarder(o *object) ForwarderConfig {
	const mi, gi, ti = 1 << 20, 1 << 30, 1 << 40
	return ForwarderConfig{
		Interfaces: list(o, "interfaces", word("interface name", 15), 1, "required"),
		Mode:       want(o, "mode", choice(XDPNative, XDPGeneric), or(XDPNative)),
		Flows:      want(o, "flows", number[int](1024, 16777216), or(1000000)),
		HalfFlows:  want(o, "half_flows", number[int](1024, 16777216), or(65536)),
		Memory:     want(o, "memory_limit", size(mi, ti), orElse[int64](gi, bytesText(gi))),
		Blocklist:  want(o, "blocklist_file", fileOrNone(), or("")),
	}
}

// asn is an AS number (RFC 6793).
func asn() rule[uint32] {
	const takes = "AS number 1 to 4294967294, not 23456 or 65535"
	digits := number[uint32](0, math.MaxUint32)
	return rule[uint32]{takes: takes, bare: true, parse: func(s string) (uint32, error) {
		n, err := digits.parse(s)
		if err != nil || !IsASN(n) {
			return 0, fmt.Errorf("%s is not an AS number from 1 to 4294967294; 23456 and 65535 are reserved", asWritten(s))
		}
		return n, nil
	}}
}

func (r *reader) speaker(o *object, self Node) Speaker {
	return Speaker{
		ASN:      need(o, "asn", asn()),
		RouterID: want(o, "router_id", address(4), orElse(self.Addr4, "address4 of this node in fleet.nodes")),
		Listen:   want(o, "listen", number[int](0, 65535), or(0)),
		Lease:    want(o, "lease", duration(2*time.Second, time.Minute, 0), or(5*time.Second)),
		Peers:    each(o, "peers", 0, r.peer),
	}
}

// peer reads one neighbour. Its timers are whole seconds because the hold time
// is, on the wire (RFC 4271 section 4.2).
func (r *reader) peer(o *object) Peer {
	p := Peer{
		ID:        need(o, "name", name[PeerID]()),
		Addr:      need(o, "address", address(0)),
		ASN:       need(o, "asn", asn()),
		LocalAddr: want(o, "local_address", address(0), none[netip.Addr]()),
		Hold:      want(o, "hold", duration(3*time.Second, 65535*time.Second, time.Second), or(9*time.Second)),
	}
	p.Families = list(o, "families", choice(IPv4, IPv6), 1, "default [ipv4, ipv6]")
	if !o.has("families") {
		p.Families = []Family{IPv4, IPv6}
	}
	third := max((p.Hold / 3).Truncate(time.Second), time.Second)
	p.Keepalive = want(o, "keepalive", duration(time.Second, 21845*time.Second, time.Second), orElse(third, "hold / 3"))
	p.ConnectRetry = want(o, "connect_retry", duration(time.Second, 2*time.Minute, time.Second), or(2*time.Second))
	p.PasswordFile = want(o, "password_file", file(), none[string]())
	p.Multihop = want(o, "multihop", number[int](0, 255), or(0))
	p.Passive = want(o, "passive", boolean(), or(false))
	return p
}

// has says whether a key stands in the file.
func (o *object) has(key string) bool {
	_, ok := o.values[key]
	return ok
}
