package edge

import (
	"encoding/base64"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// keyN is the public key of node n in testdata.
var keyN = NodeKey(must(base64.StdEncoding.DecodeString("t97pbH9cWWsc7TCZAli3SA0mwLuSlui/RrJoMDbmr0Q=")))

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// TestDefaults parses the smallest file and compares all of the result: every
// default is here.
func TestDefaults(t *testing.T) {
	c, err := Parse("f", []byte(read(t, "testdata/smallest.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	addr, ms, s := netip.MustParseAddr, time.Millisecond, time.Second
	check := Probe{Kind: ProbeTCP, Interval: s, Timeout: 500 * ms, Rise: 2, Fall: 3}
	own := check // of a backend: edged runs it
	own.Addr, own.FastInterval, own.Jitter = netip.MustParseAddrPort("0.0.0.0:53"), 200*ms, 100*ms
	http := Probe{Kind: ProbeHTTP, Path: "/", Status: 200, Interval: 200 * ms, Timeout: 200 * ms, Rise: 2, Fall: 3}
	want := &Config{
		Local: Local{
			ID: "n", KeyFile: "/n", RunDir: "/run/edge", StateDir: "/var/lib/edge", BPFDir: "/sys/fs/bpf/edge",
			Management: netip.MustParseAddrPort("127.0.0.1:9180"),
			GossipBind: netip.MustParseAddrPort("10.0.0.1:7946"), HostFirewall: HostFirewall{Mode: FirewallAuto, ManagementPorts: []uint16{22}}, ConfigVolumes: VolumesAlways,
			Forwarder: ForwarderConfig{Interfaces: []string{"eth0"}, Mode: XDPNative, Flows: 1000000, HalfFlows: 65536, Memory: 1 << 30},
			Speaker: Speaker{
				ASN: 64512, RouterID: addr("10.0.0.1"), Lease: 5 * s, Own: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
				Watch: Watch{MissingAfter: 600 * s}, Peers: []Peer{
					{
						ID: "r", Addr: addr("10.0.0.9"), ASN: 65001, Families: []Family{IPv4, IPv6},
						Hold: 9 * s, Keepalive: 3 * s, ConnectRetry: 2 * s, ImportLimit: 1000,
					},
					{
						ID: "r2", Addr: addr("fd00::9"), ASN: 65001, Families: []Family{IPv6},
						Hold: 4 * s, Keepalive: s, ConnectRetry: 2 * s, ImportLimit: 1000,
					},
				},
			},
		},
		Fleet: Fleet{
			Sites: []Site{{ID: "s"}},
			Nodes: []Node{{ID: "n", Site: "s", Addr4: addr("10.0.0.1"), Gossip: netip.MustParseAddrPort("10.0.0.1:7946"), HealthPort: 9181, PublicKey: keyN}},
			Prefixes: []Prefix{{
				Net: netip.MustParsePrefix("192.0.2.0/24"), WhenFull: SpreadFull,
				Degraded: Attributes{Prepend: 3, MED: 1000, Communities: []Community{GracefulShutdown}},
			}},
			Services: []Service{
				{
					ID: "dns", VIP: netip.MustParseAddrPort("192.0.2.53:53"), Protocol: UDP, Encap: EncapGUE, Check: own,
					Backends: []Backend{{ID: "b", Addr: addr("10.0.0.5"), Weight: 100}},
				},
				{ID: "web", VIP: netip.MustParseAddrPort("192.0.2.80:80"), Protocol: TCP, Encap: EncapGUE, Proxied: true},
			},
			Regions: []Region{
				{ID: "east", Capacity: 0.5, Upstreams: []Upstream{{ID: "u", Addr: netip.MustParseAddrPort("10.9.0.1:80")}}, Check: check},
				{ID: "west", Capacity: 1, Upstreams: []Upstream{{ID: "u", Addr: netip.MustParseAddrPort("10.9.0.2:80")}}, Check: http},
			},
			Proxy: Proxy{
				Routes:        []Route{{PathPrefix: "/"}},
				HeaderTimeout: 10 * s, IdleTimeout: 60 * s, UpstreamTimeout: 15 * s, DrainTimeout: 30 * s,
			},
			Guard: Guard{KeyFile: "/k", PromiseLease: 10 * s, AskTimeout: s, BackOff: 500 * ms, DrainTime: 10 * s, SickDrainTime: s, MaxCycles: 3, MaxPlanned: 1, MaxLeaves: 0.25},
			Health: HealthConfig{Hold: 10 * s, HoldMax: 3600 * s, HoldHalfLife: 900 * s,
				NodeCheck: Probe{Kind: ProbeHTTP, Interval: 500 * ms, Timeout: 400 * ms, Rise: 2, Fall: 2}},
			RingSeedFile: "/seed",
		},
		Hash: c.Hash,
	}
	for i := range want.Fleet.Services {
		v := &want.Fleet.Services[i]
		v.Affinity, v.Tracking, v.Persistence = AffinityNone, PerConnection, PersistByProtocol
		v.IdleTimeout, v.DrainTimeout = 60*s, 300*s
		v.SYNLimit = SYNLimit{Burst: 1, SourceBurst: 1}
	}
	if d := cmp.Diff(want, c, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestDegradedWhole: who writes the section writes all of it.
func TestDegradedWhole(t *testing.T) {
	src := strings.Replace(read(t, "testdata/smallest.yaml"), "prefix: 192.0.2.0/24", "prefix: 192.0.2.0/24, degraded: {prepend: 1}", 1)
	c, err := Parse("f", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	if d := c.Fleet.Prefixes[0].Degraded; d.Prepend != 1 || d.MED != 0 || len(d.Communities) != 0 {
		t.Errorf("degraded is %+v, want prepend 1 and nothing else", d)
	}
}

// TestMinSites: only a fleet of one site may, and must, have a floor of 0.
func TestMinSites(t *testing.T) {
	one := read(t, "testdata/smallest.yaml")
	two := strings.NewReplacer("sites: [{name: s}]", "sites: [{name: s}, {name: s2}]",
		"  nodes:", "  nodes:\n    - {name: n2, site: s2, address4: 10.0.0.2, gossip: \"10.0.0.2:7946\", public_key: pQlPzay3h6GMLhqq1do5o57KUTvM2+6N1dieJnzuPWU=}").Replace(one)
	empty := strings.Replace(one, "sites: [{name: s}]", "sites: [{name: s}, {name: s2}]", 1)
	for name, c := range map[string]struct {
		src, floor string
		want       int
		ok         bool
	}{
		"one":            {one, "", 0, true},
		"one, 0":         {one, "0", 0, true},
		"one, 1":         {one, "1", 0, false},
		"two":            {two, "", 1, true},
		"two, 0":         {two, "0", 0, true},
		"two, 1":         {two, "1", 1, true},
		"two, 2":         {two, "2", 0, false},
		"one of two":     {empty, "", 0, true},
		"one of two: 1 ": {empty, "1", 0, false},
	} {
		if c.floor != "" {
			c.src = strings.Replace(c.src, "prefix: 192.0.2.0/24", "prefix: 192.0.2.0/24, min_sites: "+c.floor, 1)
		}
		got, err := Parse("f", []byte(c.src))
		if (err == nil) != c.ok || c.ok && got.Fleet.Prefixes[0].MinSites != c.want {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

// TestReference holds reference.yaml against the parser: every key of the one
// is in the other, with what it takes and its default in the comment above.
func TestReference(t *testing.T) {
	src := read(t, "reference.yaml")
	_, r := parse("reference.yaml", []byte(src))
	if len(r.errs) > 0 {
		t.Fatal(r.sorted())
	}
	file, err := parseYAML([]byte(src), r.tokens)
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string][]string{}
	comments(file.Docs[0].Body, "", strings.Split(src, "\n"), documented)
	for key, all := range r.known {
		for _, takes := range all {
			if texts := documented[key]; len(texts) == 0 {
				t.Errorf("%s is not in reference.yaml; expected it with [%s]", key, takes)
			} else if !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, "["+takes+"]") }) {
				t.Errorf("%s: no comment says [%s]; found %q", key, takes, texts[0])
			}
		}
	}
	for key := range documented {
		if _, ok := r.known[key]; !ok {
			t.Errorf("%s is in reference.yaml, but the parser has never asked for it", key)
		}
	}
}

// comments collects the comment above each key, by its path without indices.
func comments(n ast.Node, path string, lines []string, out map[string][]string) {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, kv := range n.Values {
			at := strings.TrimPrefix(path+"."+kv.Key.GetToken().Value, ".")
			text := ""
			for i := kv.Key.GetToken().Position.Line - 2; i >= 0; i-- {
				words, ok := strings.CutPrefix(strings.TrimSpace(lines[i]), "# ")
				if !ok {
					break
				}
				text = words + " " + text
			}
			out[at] = append(out[at], text)
			comments(kv.Value, at, lines, out)
		}
	case *ast.SequenceNode:
		for _, item := range n.Values {
			comments(item, path+"[]", lines, out)
		}
	}
}

// TestReferenceDefaults: where the reference shows a default, leaving the key
// out changes nothing.
func TestReferenceDefaults(t *testing.T) {
	src := read(t, "reference.yaml")
	whole, err := Parse("f", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	lines, tried := strings.Split(src, "\n"), 0
	line := regexp.MustCompile(`^ +([a-z_0-9]+): (.+)$`)
	for i, l := range lines {
		m := line.FindStringSubmatch(l)
		if m == nil || !strings.HasSuffix(lines[i-1], "default "+strings.Trim(m[2], `"`)+"]") {
			continue
		}
		tried++
		less, err := Parse("f", []byte(strings.Join(slices.Concat(lines[:i], lines[i+1:]), "\n")))
		if err != nil {
			t.Errorf("line %d, %s: cannot be left out: %v", i+1, m[1], err)
		} else if changes := Diff(whole, less); len(changes) > 0 {
			t.Errorf("line %d, %s: leaving it out changes %q", i+1, m[1], changes)
		}
	}
	if tried < 30 {
		t.Errorf("only %d defaults were tried: has the form of the comments changed?", tried)
	}
}

// TestPlaces: the line and column of every scalar are where its text stands.
func TestPlaces(t *testing.T) {
	for _, name := range []string{"reference.yaml", "testdata/example.yaml", "testdata/forwarder.yaml", "testdata/bgp.yaml", "testdata/health.yaml", "testdata/guard.yaml"} {
		for ending, src := range map[string]string{"LF": read(t, name), "CRLF": strings.ReplaceAll(read(t, name), "\n", "\r\n")} {
			_, r := parse(name, []byte(src))
			lines := strings.Split(strings.ReplaceAll(src, "\r", ""), "\n")
			seen := 0
			for path, at := range r.at {
				if path == "" || at.line < 1 || at.line > len(lines) || at.column < 1 || at.column > len(lines[at.line-1]) {
					continue
				}
				line := lines[at.line-1]
				before, rest := line[:at.column-1], line[at.column-1:]
				if before != "" && !strings.HasSuffix(before, " ") && !strings.HasSuffix(before, "[") && !strings.HasSuffix(before, "{") || rest[0] == ' ' || rest[0] == ':' {
					t.Errorf("%s %s: %s is said to be at %d:%d, %q|%q", name, ending, path, at.line, at.column, before, rest)
				}
				seen++
			}
			if seen != len(r.at)-1 {
				t.Errorf("%s %s: %d of %d places are outside of the file", name, ending, len(r.at)-1-seen, len(r.at))
			}
		}
	}
}

func TestPlacesAfterOtherAlphabets(t *testing.T) {
	src := "node: {name: \"é漢字\", nam: 1} # ü\n# Ω\nfleet:\n  ÿ: 1\n"
	_, err := Parse("f", []byte(src))
	for _, want := range []string{`f:1:14: node.name: "é漢字" is not a name`, "f:1:21: node.nam: ", "f:4:3: fleet.ÿ: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
}

func TestDiff(t *testing.T) {
	src := read(t, "testdata/example.yaml")
	a, err := Parse("f", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	if got := Diff(a, a); len(got) != 0 {
		t.Errorf("no change gives %q", got)
	}
	src = strings.NewReplacer(
		"name: r-a\n", "name: r-b\n", "lease: 5s", "lease: 90s", "weight: 100", "weight: 0",
		"- {name: d2, address: 10.1.0.21, site: a}", "- {name: d3, address: 10.1.0.21}",
		"med: 1000", "med: 500", "capacity: 500 ", "capacity: 600 ", `access_log: ""`, "access_log: /log",
		"probe_source6: fd00:1::65", "#", "interfaces: [eth0]", "interfaces: [eth0, eth1]", "on: regions, class: soft", "on: regions, class: shared",
		"idle_timeout: 60s", "idle_timeout: 90s", "proxy: https", "proxy: http", "hosts: [\"www.example.net\"]", "hosts: []",
	).Replace(strings.Replace(src, "lease: 5s", "lease: 9s", 1))
	b, err := Parse("f", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(read(t, "testdata/diff.txt")), "\n")
	if d := cmp.Diff(want, Diff(a, b)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestDiffKeys: the names of the fields become the keys of the file.
func TestDiffKeys(t *testing.T) {
	_, r := parse("reference.yaml", []byte(read(t, "reference.yaml")))
	known := slices.Collect(maps.Keys(r.known))
	for _, field := range []string{"RunDir", "BPFDir", "ProbeSource4", "Speaker", "ASN", "RouterID", "LocalAddr", "PIDFile", "MED", "Addr", "Addr4", "HealthPort", "URL", "K", "VIP", "AtLeast", "MinSites",
		"HalfFlows", "Memory", "Blocklist", "IdleTimeout", "QUIC", "SYNLimit", "SourceBurst", "DropIfNone", "ServerID",
		"DrainFile", "RPKI", "RefuseInvalid", "Watch", "MissingAfter", "TTLSecurity", "LocalPref", "Large", "NextHop4", "AllowLonger", "ImportLimit", "DefaultRoute",
		"RestartTime", "BFD", "MinTx", "Multiplier", "WhenFull", "Unconditional", "DrainTime", "SickDrainTime", "MaxCycles", "KeyFile", "PublicKey", "Capacity", "SpareSites", "MinFraction", "MinHealthy", "MinCapacity", "CoverDemand", "Regions", "MaxPlanned", "MaxLeaves", "HoldMax", "HoldHalfLife", "FastInterval", "Jitter", "Source",
		"CAFile", "ExpiresIn", "FullStatus", "KeepAlive", "GRPCService", "TLS", "Name", "RecordType", "TCP", "Net", "MaxAge", "MaxOffset", "MinFreeBytes", "MinFreePercent",
		"SomeAvg10", "FullAvg10", "URLs"} {
		if !slices.ContainsFunc(known, func(path string) bool { return strings.HasSuffix(path, "."+key(field)) }) {
			t.Errorf("field %s becomes %q, which is no key", field, key(field))
		}
	}
}

// FuzzParse: whatever the bytes are, the answer is a configuration or errors
// with a place inside of the file.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"reference.yaml", "testdata/example.yaml", "testdata/smallest.yaml", "testdata/forwarder.yaml", "testdata/bgp.yaml", "testdata/health.yaml", "testdata/guard.yaml"} {
		f.Add([]byte(read(f, name)))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		c, err := Parse("f", src)
		if err == nil {
			if again := Diff(c, c); c.Self().ID == "" || len(again) > 0 {
				t.Errorf("taken, but the node is %q and the difference to itself %q", c.Self().ID, again)
			}
			return
		}
		lines := strings.Count(string(src), "\n") + 1
		for _, e := range err.(Errors) {
			if e.Line < 1 || e.Line > lines || e.Column < 1 || e.Msg == "" || strings.ContainsAny(e.Error(), "\n\r\x00") {
				t.Errorf("bad error: %q", e.Error())
			}
		}
	})
}
