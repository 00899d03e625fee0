package edge

import (
	"encoding/json"
	"net/netip"
	"testing"
)

func TestParseCommunity(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Community
		ok   bool
	}{
		{"65535:0", GracefulShutdown, true},
		{"0:1", 1, true},
		{"64512:65535", 64512<<16 | 65535, true},
		{"65536:0", 0, false},
		{"1:65536", 0, false},
		{"1", 0, false},
		{"1:2:3", 0, false},
		{"-1:2", 0, false},
		{"+1:2", 0, false},
		{" 1:2", 0, false},
		{"1:2 ", 0, false},
		{"1:2\t", 0, false},
		{"1:2\n", 0, false},
		{"", 0, false},
	} {
		got, err := ParseCommunity(tt.in)
		if (err == nil) != tt.ok || got != tt.want {
			t.Errorf("ParseCommunity(%q) = %v, %v; want %v, ok %v", tt.in, got, err, tt.want, tt.ok)
		}
	}
}

func TestProtocol(t *testing.T) {
	for n := range 256 {
		text, err := Protocol(n).MarshalText()
		var back Protocol
		if err2 := back.UnmarshalText(text); err != nil || err2 != nil || back != Protocol(n) {
			t.Errorf("%d is written %q, and read back as %d: %v, %v", n, text, back, err, err2)
		}
	}
	for _, s := range []string{"", "TCP", "6", "icmp", "protocol-", "protocol-6", "protocol-0", "protocol-050", "protocol-256", "protocol--1", "protocol-+1", "any ", "protocol-1 "} {
		var p Protocol
		if err := p.UnmarshalText([]byte(s)); err == nil {
			t.Errorf("%q is taken for protocol %d", s, p)
		}
	}
}

func TestVIPText(t *testing.T) {
	for want, s := range map[string]Service{
		"tcp 192.0.2.1:80":                    {VIP: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: TCP},
		"udp [2001:db8::1]:80":                {VIP: netip.MustParseAddrPort("[2001:db8::1]:80"), Protocol: UDP},
		"udp 192.0.2.1 all ports":             {VIP: netip.MustParseAddrPort("192.0.2.1:0"), Protocol: UDP},
		"2001:db8::1 all ports and protocols": {VIP: netip.MustParseAddrPort("[2001:db8::1]:0"), Protocol: AnyProtocol},
	} {
		if got := VIPText(s.VIP, s.Protocol); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestDocumentsRoundTrip: what one process writes, another reads back alike.
func TestDocumentsRoundTrip(t *testing.T) {
	in := SystemStatus{
		Decisions:  []Decision{{Prefix: netip.MustParsePrefix("2001:db8::/32"), Rung: LastResort, Reason: "why"}},
		Conditions: []PrefixHealth{{Condition: Condition{Health: Sick}}},
		Drains:     []Drain{{Reason: "all"}},
		Probes:     []Status{{Probe: "p", State: Down}},
		Guard:      GuardState{Asking: map[netip.Prefix]Permit{netip.MustParsePrefix("192.0.2.0/24"): {Needed: 2}}},
		Services:   []ServiceSummary{{Protocol: UDP}},
		Speaker: SpeakerState{Peers: []PeerState{{Session: "established", Held: []HeldPrefix{{
			Net: netip.MustParsePrefix("192.0.2.0/24"), Attributes: Attributes{Communities: []Community{GracefulShutdown}},
		}}}}},
	}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out SystemStatus
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != string(again) {
		t.Errorf("round trip:\n%s\n%s", b, again)
	}
	if out.Speaker.Holders(netip.MustParsePrefix("192.0.2.0/24")) != 1 {
		t.Error("an established peer that holds the prefix is not counted")
	}
}

func TestPrefixOf(t *testing.T) {
	f := Fleet{Prefixes: []Prefix{{Net: netip.MustParsePrefix("198.51.0.0/16")}, {Net: netip.MustParsePrefix("198.51.100.0/24")}}}
	if p, ok := f.PrefixOf(netip.MustParseAddr("198.51.100.9")); !ok || p.Net.Bits() != 24 {
		t.Errorf("longest prefix: got %v, %v", p.Net, ok)
	}
	if _, ok := f.PrefixOf(netip.MustParseAddr("2001:db8::1")); ok {
		t.Error("an IPv6 address is in an IPv4 prefix")
	}
}

func TestNodeAddr(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	both, only4 := Node{Addr4: v4, Addr6: v6}, Node{Addr4: v4}
	if both.Addr(v6) != v6 || both.Addr(v4) != v4 || only4.Addr(v6) != v4 {
		t.Error("the node's address is not of the family asked for, or the other")
	}
}
