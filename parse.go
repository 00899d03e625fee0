package edge

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
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
	c.Local.Speaker.Own = owned(fleet.Prefixes)
	o.done()
	return c
}

// node reads the section node. The fleet gives the defaults that are the same
// as what the other boxes know of this one.
func (r *reader) node(o *object, fleet *Fleet) Local {
	l := Local{ID: need(o, "name", name[NodeID]())}
	self := (&Config{Local: l, Fleet: *fleet}).Self()
	l.KeyFile = need(o, "key_file", file())
	l.RunDir = want(o, "run_dir", runDir(), or("/run/edge"))
	l.StateDir = want(o, "state_dir", file(), or("/var/lib/edge"))
	l.BPFDir = want(o, "bpf_dir", file(), or("/sys/fs/bpf/edge"))
	l.Management = want(o, "management", socket(true), or(netip.MustParseAddrPort("127.0.0.1:9180")))
	l.ProbeSource4 = want(o, "probe_source4", address(4), none[netip.Addr]())
	l.ProbeSource6 = want(o, "probe_source6", address(6), none[netip.Addr]())
	l.DrainFile = want(o, "drain_file", fileOrNone(), or(""))
	l.ProxyUser = want(o, "proxy_user", word("user name", 32), or(""))
	l.HostFirewall = section(o, "host_firewall", "optional", r.hostFirewall)
	l.ConfigVolumes = want(o, "config_volumes", choice(VolumesAlways, VolumesInRescue), or(VolumesAlways))
	l.GossipBind = want(o, "gossip_bind", socket(true), orElse(self.Gossip, "the gossip address of this node in fleet.nodes"))
	l.Forwarder = section(o, "forwarder", "required", r.forwarder)
	l.Speaker = section(o, "bgp", "required", func(o *object) Speaker { return r.speaker(o, self) })
	return l
}

// runDir leaves room for the names of the sockets: the path of a unix socket
// has at most 107 bytes.
func runDir() rule[string] {
	return shortFile(80, "the names of unix sockets must fit behind it")
}

// shortFile is an absolute path of at most so many bytes.
func shortFile(most int, why string) rule[string] {
	rule := file()
	rule.takes += fmt.Sprintf(" of at most %d bytes", most)
	inner := rule.parse
	rule.parse = func(s string) (string, error) {
		if len(s) > most {
			return "", fmt.Errorf("%s is longer than %d bytes: %s", quote(s), most, why)
		}
		return inner(s)
	}
	return rule
}

func (r *reader) forwarder(o *object) ForwarderConfig {
	const mi, gi, ti = 1 << 20, 1 << 30, 1 << 40
	return ForwarderConfig{
		Interfaces: list(o, "interfaces", interfaceName(), 1, "required"),
		Mode:       want(o, "mode", choice(XDPNative, XDPGeneric), or(XDPNative)),
		Flows:      want(o, "flows", number[int](1024, 16777216), or(1000000)),
		HalfFlows:  want(o, "half_flows", number[int](1024, 16777216), or(65536)),
		Memory:     want(o, "memory_limit", size(mi, ti), orElse[int64](gi, bytesText(gi))),
		Blocklist:  want(o, "blocklist_file", fileOrNone(), or("")),
	}
}

// interfaceName is what the kernel takes as the name of an interface.
func interfaceName() rule[string] {
	short := word("interface name", 15)
	odd := func(c rune) bool { return !strconv.IsPrint(c) || strings.ContainsRune("/: ", c) }
	return rule[string]{takes: short.takes, parse: func(s string) (string, error) {
		if s == "" || s == "." || s == ".." || strings.ContainsFunc(s, odd) {
			return "", fmt.Errorf("%s is not the name of an interface", quote(s))
		}
		return short.parse(s)
	}}
}

// has says whether a key stands in the file.
func (o *object) has(key string) bool {
	_, ok := o.values[key]
	return ok
}
