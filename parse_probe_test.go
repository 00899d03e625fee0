package edge

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// A monitor compares probes to see which of them a reload has changed.
var _ map[Probe]bool

// TestProbes parses a file of probes of all kinds but those of other files.
func TestProbes(t *testing.T) {
	c, err := Parse("f", []byte(read(t, "testdata/health.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	addr, at, ms, s, h := netip.MustParseAddr, netip.MustParseAddrPort, time.Millisecond, time.Second, time.Hour
	want := []Probe{
		{Kind: ProbeUnit, Unit: "foo@a.service", Interval: 2 * s, FastInterval: 500 * ms},
		{Kind: ProbeTCP, Addr: at("10.9.0.1:25"), Source: addr("10.255.0.1"), Interval: 100 * ms, Timeout: 100 * ms, FastInterval: 50 * ms, Jitter: 10 * ms},
		{Kind: ProbeTLS, Addr: at("10.9.0.1:443"), Host: "www.example.net", CAFile: "/ca"},
		{Kind: ProbeHTTP, URL: "https://10.9.0.1/", Status: 204, Body: "ok", FullStatus: 429, KeepAlive: true, Insecure: true},
		{Kind: ProbeHTTP2, URL: "https://10.9.0.1/", Host: "h2.example.net", Status: 200, CAFile: "/ca"},
		{Kind: ProbeGRPC, Addr: at("10.9.0.1:50051"), GRPCService: "a.B", TLS: true, Insecure: true},
		{Kind: ProbeDNS, Addr: at("10.9.0.1:53"), Name: "example.net", RecordType: "TXT", Expect: "v=1", TCP: true},
		{Kind: ProbeICMP, Target: addr("fd00::1"), Source: addr("fd00::2")},
		{Kind: ProbeCommand, Command: "/bin/check\x00-n\x005\x00two words\x00"},
		{Kind: ProbeRoute, Net: netip.MustParsePrefix("0.0.0.0/0"), Interface: "eth0", Table: 100},
		{Kind: ProbeFile, File: "/var/stamp", MaxAge: h},
		{Kind: ProbeSocket, File: "/run/app.sock"},
		{Kind: ProbeClock, Addr: at("10.9.0.1:123"), MaxOffset: 50 * ms},
		{Kind: ProbeDisk, File: "/var", MinFreeBytes: 2 << 30, MinFreePercent: 5},
		{Kind: ProbePressure, Resource: "memory", SomeAvg10: 12.5, FullAvg10: 5},
		{Kind: ProbeExternal, URLs: "http://203.0.113.1/\x00https://probe.example.net/x", AtLeast: 2, Status: 200, CAFile: "/ca"},
		{Kind: ProbeBGP, AtLeast: 1},
		{Kind: ProbeBFD, AtLeast: 1},
		{Kind: ProbeRegions, AtLeast: 1},
	}
	names := []ProbeID{"unit", "tcp", "tls", "http", "http2", "grpc", "dns", "icmp", "command", "route", "file", "socket", "clock", "disk", "pressure", "outside", "bgp", "bfd", "regions"}
	for i := range want {
		p := &want[i]
		p.ID, p.Rise, p.Fall = names[i], 2, 3
		if p.Interval == 0 {
			p.Interval, p.FastInterval, p.Jitter = s, 200*ms, 100*ms
		}
		if p.Timeout == 0 {
			p.Timeout = 500 * ms
		}
	}
	if d := cmp.Diff(want, c.Fleet.Health.Probes, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if hc := c.Fleet.Health; hc.Hold != 5*s || hc.HoldMax != 600*s || hc.HoldHalfLife != 300*s {
		t.Errorf("hold %s, at most %s, halved in %s", hc.Hold, hc.HoldMax, hc.HoldHalfLife)
	}
	if got := c.Fleet.Services[0].Check; got.FastInterval != 50*ms || got.Jitter != 0 {
		t.Errorf("the check of a backend has fast interval %s and jitter %s", got.FastInterval, got.Jitter)
	}
}

// TestPace: what a probe says nothing of follows from its interval.
func TestPace(t *testing.T) {
	base := read(t, "testdata/health.yaml")
	for interval, want := range map[string][2]time.Duration{
		"50ms": {50 * time.Millisecond, 5 * time.Millisecond}, "100ms": {50 * time.Millisecond, 10 * time.Millisecond},
		"250ms": {50 * time.Millisecond, 25 * time.Millisecond}, "1s": {200 * time.Millisecond, 100 * time.Millisecond},
		"1h": {12 * time.Minute, 6 * time.Minute},
	} {
		c, err := Parse("f", []byte(strings.Replace(base, "interval: 2s, fast_interval: 500ms, jitter: 0s", "interval: "+interval, 1)))
		if err != nil {
			t.Errorf("%s: %v", interval, err)
			continue
		}
		if p := c.Fleet.Health.Probes[0]; p.FastInterval != want[0] || p.Jitter != want[1] {
			t.Errorf("%s: fast interval %s and jitter %s, want %s", interval, p.FastInterval, p.Jitter, want)
		}
	}
}

// TestProbeDefaults: the keys of a kind that may be left out.
func TestProbeDefaults(t *testing.T) {
	base := read(t, "testdata/health.yaml")
	for _, tt := range []struct {
		old, new string
		probe    int
		got      func(Probe) any
		want     any
	}{
		{", ca_file: /ca, expires_in: 0s", "", 2, func(p Probe) any { return p.ExpiresIn }, 168 * time.Hour},
		{", record_type: TXT, expect: \"v=1\", tcp: true", "", 6, func(p Probe) any { return p.RecordType }, "A"},
		{", interface: eth0, table: 100", "", 9, func(p Probe) any { return p.Interface == "" && p.Table == 0 }, true},
		{", max_age: 1h", "", 10, func(p Probe) any { return p.MaxAge }, time.Duration(0)},
		{"address: 10.9.0.1:123, max_offset: 50ms", "rise: 2", 12, func(p Probe) any { return p.MaxOffset }, 100 * time.Millisecond},
		{"full_status: 429, ", "", 3, func(p Probe) any { return p.FullStatus }, 0},
		{"at_least: 2, ", "", 15, func(p Probe) any { return p.AtLeast }, 1},
	} {
		if !strings.Contains(base, tt.old) {
			t.Fatalf("%q is not in the file", tt.old)
		}
		c, err := Parse("f", []byte(strings.Replace(base, tt.old, tt.new, 1)))
		if err != nil {
			t.Errorf("%s => %s: %v", tt.old, tt.new, err)
		} else if got := tt.got(c.Fleet.Health.Probes[tt.probe]); got != tt.want {
			t.Errorf("%s => %s: %v, want %v", tt.old, tt.new, got, tt.want)
		}
	}
}

func TestDiffProbes(t *testing.T) {
	src := read(t, "testdata/health.yaml")
	a, err := Parse("f", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse("f", []byte(strings.NewReplacer(
		"hold: 5s", "hold: 6s", "hold_max: 10m", "hold_max: 90s", "hold_half_life: 5m", "hold_half_life: 1m",
		"kind: tcp, interval: 10s, fast_interval: 50ms, jitter: 0s", "kind: tcp, interval: 10s",
		"unit: foo@a.service, interval: 2s", "unit: foo, interval: 3s", "source: 10.255.0.1, ", "", "expires_in: 0s", "expires_in: 24h", "full_status: 429, keep_alive: true, insecure: true", "keep_alive: false",
		"tls: true, insecure: true", "tls: false", "grpc_service: a.B", "host: a", "query: example.net, record_type: TXT", "query: example.org, record_type: NS", "tcp: true", "tcp: false",
		`command: [/bin/check, -n, 5, "two words", ""]`, "command: [/bin/check]", "prefix: 0.0.0.0/0, interface: eth0, table: 100", "prefix: ::/0",
		"max_age: 1h", "max_age: 90m", "address: 10.9.0.1:123, max_offset: 50ms", "max_offset: 1ms", "min_free: 2GiB, min_free_percent: 5", "min_free: 1536MiB",
		"some_avg10: 12.5, full_avg10: 5", "some_avg10: 20", `urls: ["http://203.0.113.1/", "https://probe.example.net/x"], at_least: 2`, `urls: ["https://probe.example.net/x"]`,
	).Replace(src)))
	if err != nil {
		t.Fatal(err)
	}
	there := strings.Split(strings.TrimSpace(read(t, "testdata/health-diff.txt")), "\n")
	if d := cmp.Diff(there, Diff(a, b)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
