package edge

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestPolicy parses a file of services that say all that they can.
func TestPolicy(t *testing.T) {
	c, err := Parse("f", []byte(read(t, "testdata/forwarder.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	addr, at := netip.MustParseAddr, netip.MustParseAddrPort
	video := Service{
		ID: "video", VIP: at("192.0.2.44:443"), Protocol: UDP, Encap: EncapGUE, Affinity: AffinityNone, Tracking: PerConnection,
		Persistence: PersistByProtocol, IdleTimeout: time.Minute, DrainTimeout: 5 * time.Minute,
		QUIC: &QUIC{Offset: 1, Length: 2}, SYNLimit: SYNLimit{Burst: 1, SourceBurst: 1},
		Backends: []Backend{
			{ID: "v1", Addr: addr("10.9.0.4"), Weight: 100, ServerID: "\x0a\x1b"}, {ID: "v2", Addr: addr("10.9.0.5"), Weight: 100, ServerID: "\x0a\x1c"},
			{ID: "v3", Addr: addr("10.9.0.6"), Weight: 100},
		},
	}
	rest := video
	rest.ID, rest.VIP, rest.Protocol, rest.QUIC = "rest", at("192.0.2.44:0"), AnyProtocol, nil
	rest.Check = Probe{Kind: ProbeTCP, Addr: at("0.0.0.0:80"), Interval: time.Second, Timeout: time.Second / 2, Rise: 2, Fall: 3, FastInterval: time.Second / 5, Jitter: time.Second / 10}
	rest.Backends = []Backend{{ID: "r1", Addr: addr("10.9.0.7"), Weight: 1}}
	mail := video
	mail.ID, mail.VIP, mail.Protocol, mail.QUIC = "mail", at("192.0.2.25:25"), TCP, nil
	mail.Affinity, mail.Persistence, mail.IdleTimeout, mail.DrainTimeout = AffinityClientIP, PersistAlways, 10*time.Minute, 0
	mail.WeightFromCheck, mail.Failover = true, &Failover{Ratio: 0.5, DropIfNone: true}
	mail.SYNLimit = SYNLimit{Rate: 1000, Burst: 2000, SourceRate: 10, SourceBurst: 20}
	mail.Check = rest.Check
	mail.Check.Kind, mail.Check.Addr, mail.Check.Path, mail.Check.Status = ProbeHTTP, at("0.0.0.0:8025"), "/", 200
	mail.Backends = []Backend{
		{ID: "m1", Addr: addr("10.9.0.1"), Weight: 100},
		{ID: "m2", Addr: addr("10.9.0.2"), Weight: 100, Failover: true, Site: "a"},
		{ID: "m3", Addr: addr("10.9.0.3"), Weight: 100, Failover: true, Site: "b"},
	}
	if d := cmp.Diff([]Service{mail, video, rest}, c.Fleet.Services, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestPolicyDefaults: what a section does not say, and what follows from what it
// does say.
func TestPolicyDefaults(t *testing.T) {
	base := read(t, "testdata/forwarder.yaml")
	for _, tt := range []struct {
		old, new string
		got      func(Service) any
		want     any
	}{
		{"{ratio: 0.5, drop_if_none: true, drain: false}", "{}", func(s Service) any { return *s.Failover }, Failover{Drain: true}},
		{"burst: 2000, ", "", func(s Service) any { return s.SYNLimit }, SYNLimit{1000, 1000, 10, 20}},
		{"{rate: 1000, burst: 2000, source_rate: 10, source_burst: 20}", "{source_rate: 7}", func(s Service) any { return s.SYNLimit }, SYNLimit{0, 1, 7, 7}},
		{"weights: check", "weights: config", func(s Service) any { return s.WeightFromCheck }, false},
		{"port: 25\n", "port: all\n", func(s Service) any { return s.VIP.String() }, "192.0.2.25:0"},
	} {
		c, err := Parse("f", []byte(strings.Replace(base, tt.old, tt.new, 1)))
		if err != nil {
			t.Errorf("%s => %s: %v", tt.old, tt.new, err)
		} else if got := tt.got(c.Fleet.Services[0]); got != tt.want {
			t.Errorf("%s => %s: %+v, want %+v", tt.old, tt.new, got, tt.want)
		}
	}
}

// TestDocumentedServices: the example of docs/configure.md is taken as it is.
func TestDocumentedServices(t *testing.T) {
	_, rest, ok := strings.Cut(read(t, "docs/configure.md"), "```yaml\nservices:\n")
	example, _, ok2 := strings.Cut(rest, "```")
	head, _, ok3 := strings.Cut(read(t, "testdata/forwarder.yaml"), "services:\n")
	if !ok || !ok2 || !ok3 {
		t.Fatal("no example of services was found")
	}
	c, err := Parse("f", []byte(head+"services:\n  "+strings.ReplaceAll(example, "\n", "\n  ")))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(c.Fleet.Services); n != 3 {
		t.Errorf("it has %d services, want 3", n)
	}
}

// TestSize: a size is written as it is read, in the largest unit that is whole.
func TestSize(t *testing.T) {
	rule := size(0, 1<<50)
	for text, want := range map[string]int64{"0KiB": 0, "1KiB": 1 << 10, "1023MiB": 1023 << 20, "1GiB": 1 << 30, "1025GiB": 1025 << 30, "1024TiB": 1 << 50} {
		n, err := rule.parse(text)
		if err != nil || n != want {
			t.Errorf("%s is %d, want %d: %v", text, n, want, err)
		}
		if again, err := rule.parse(bytesText(n)); n != 0 && (err != nil || again != n) {
			t.Errorf("%d is written %s and read as %d: %v", n, bytesText(n), again, err)
		}
	}
	if got := bytesText(1536 << 20); got != "1536MiB" {
		t.Errorf("1.5 GiB is written %s", got)
	}
}

func TestDiffPolicy(t *testing.T) {
	src := read(t, "testdata/forwarder.yaml")
	a, err := Parse("f", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse("f", []byte(strings.NewReplacer(
		"half_flows: 65536", "half_flows: 1024", "memory_limit: 1GiB", "memory_limit: 1536MiB", `blocklist_file: ""`, "blocklist_file: /b",
		"port: 25\n", "port: 26\n", "affinity: client-ip", "affinity: none", "persistence: always", "persistence: never",
		"idle_timeout: 10m", "idle_timeout: 90s", "drain_timeout: 0s", "drain_timeout: 1m", "weights: check", "weights: config",
		"rate: 1000, burst: 2000", "rate: 500", "ratio: 0.5", "ratio: 0.25", "failover: true, site: a", "failover: true",
		"quic: {offset: 1, length: 2}", "#", ", server_id: 0a1b", "", ", server_id: 0A1C", "", "kind: tcp, port: 80", "kind: tcp, port: 81",
		"port: all", "port: 99", "protocol: any", "protocol: tcp",
	).Replace(src)))
	if err != nil {
		t.Fatal(err)
	}
	there := strings.Split(strings.TrimSpace(read(t, "testdata/forwarder-diff.txt")), "\n")
	if d := cmp.Diff(there, Diff(a, b)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	back := Diff(b, a)
	for _, want := range []string{"fleet.services[video].quic: added", `fleet.services[video].backends[v1].server_id: "" -> 0a1b`} {
		if !slices.Contains(back, want) {
			t.Errorf("back: no %q in %q", want, back)
		}
	}
	if again := Diff(a, a); len(again) > 0 {
		t.Errorf("no change gives %q", again)
	}
}
