package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
)

// looker answers every look-up with the same, and keeps what it was asked.
type looker struct {
	say   edge.FlowVerdict
	fail  error
	asked string
}

func (l *looker) Lookup(f edge.Flow, cid []byte) (edge.FlowVerdict, error) {
	l.asked = fmt.Sprintf("%s %s %s %s", f.Protocol, f.Src, f.Dst, hex.EncodeToString(cid))
	return l.say, l.fail
}

func TestParseFlow(t *testing.T) {
	for what, want := range map[string]string{
		"tcp 192.0.2.1:40000 198.51.100.10:443":            "tcp 192.0.2.1:40000 198.51.100.10:443 ",
		"TCP\t192.0.2.1:40000  [::ffff:198.51.100.10]:443": "tcp 192.0.2.1:40000 198.51.100.10:443 ",
		"6 192.0.2.1:40000 198.51.100.10:443":              "tcp 192.0.2.1:40000 198.51.100.10:443 ",
		"udp [2001:db8::1]:4 [2001:db8::2]:443 cid=0a1B2c": "udp [2001:db8::1]:4 [2001:db8::2]:443 0a1b2c",
		"gre 192.0.2.1 198.51.100.10":                      "protocol-47 192.0.2.1:0 198.51.100.10:0 ",
		"esp 2001:db8::1 2001:db8::2":                      "protocol-50 [2001:db8::1]:0 [2001:db8::2]:0 ",
		"protocol-50 2001:db8::1 2001:db8::2":              "protocol-50 [2001:db8::1]:0 [2001:db8::2]:0 ",
		"255 192.0.2.1 198.51.100.10":                      "protocol-255 192.0.2.1:0 198.51.100.10:0 ",
		"sctp 192.0.2.1 ::ffff:198.51.100.10":              "protocol-132 192.0.2.1:0 198.51.100.10:0 ",
	} {
		l := &looker{}
		if _, err := explainFlow(l, what, nobody); err != nil || l.asked != want {
			t.Errorf("%s is read as %q, want %q: %v", what, l.asked, want, err)
		}
	}
}

// TestBadFlows: each is refused with what is wrong of it.
func TestBadFlows(t *testing.T) {
	for what, want := range map[string]string{
		"tcp 192.0.2.1:40000":                                     "is not PROTOCOL SOURCE DESTINATION",
		"udp 192.0.2.1:4 198.51.100.10:443 cid=00 x":              "is not PROTOCOL SOURCE DESTINATION",
		"quic 192.0.2.1:4 198.51.100.10:443":                      `protocol "quic" is not tcp, udp, esp`,
		"256 192.0.2.1 198.51.100.10":                             `protocol "256" is not`,
		"0 192.0.2.1 198.51.100.10":                               "a flow has one protocol",
		"any 192.0.2.1 198.51.100.10":                             "a flow has one protocol",
		"tcp 192.0.2.1 198.51.100.10:443":                         `read source of flow: "192.0.2.1" is not ADDRESS:PORT`,
		"tcp 192.0.2.1:1 198.51.100.10":                           `read destination of flow: "198.51.100.10" is not ADDRESS:PORT`,
		"gre 192.0.2.1:1 198.51.100.10":                           `"192.0.2.1:1" is not an address; protocol-47 has no ports`,
		"tcp 192.0.2.1:1 [2001:db8::1]:443":                       "mixes IPv4 and IPv6",
		"udp 192.0.2.1:4 198.51.100.10:443 0a":                    `"0a" is not cid= and 1 to 20 bytes`,
		"udp 192.0.2.1:4 198.51.100.10:443 cid=":                  "1 to 20 bytes",
		"udp 192.0.2.1:4 198.51.100.10:443 cid=abc":               "1 to 20 bytes",
		"udp 192.0.2.1:4 198.51.100.10:443 cid=" + twentyOneBytes: "1 to 20 bytes",
		"tcp 192.0.2.1:4 198.51.100.10:443 cid=0a":                "QUIC is udp",
	} {
		l := &looker{}
		if _, err := explainFlow(l, what, nobody); err == nil || !strings.Contains(err.Error(), want) || l.asked != "" {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	if _, err := explainFlow(&looker{fail: errors.New("closed")}, "gre 192.0.2.1 198.51.100.10", nobody); err == nil {
		t.Error("an error of the forwarder is none")
	}
}

// nobody is a host without a firewall.
func nobody(f edge.Flow) string {
	return hostFirewall(nil, func() (bool, error) { return false, nil }, f)
}

var twentyOneBytes = strings.Repeat("00", 21)

func TestExplainFlow(t *testing.T) {
	for _, c := range []struct {
		say  edge.FlowVerdict
		want []string
	}{
		{edge.FlowVerdict{Action: "pass", Reason: "not_vip"}, []string{"pass: not_vip", "host firewall: off"}},
		{edge.FlowVerdict{Action: "tx", Reason: "backend", Service: "web", Backend: "a1", By: "table", Slot: 7},
			[]string{"tx: backend", "service web", "backend a1: the flow table remembers it; in the ring it has slot 7 of 65537"}},
		{edge.FlowVerdict{Action: "tx", Reason: "backend", Service: "web", Backend: "a1", By: "half"},
			[]string{"tx: backend", "service web", "backend a1: the table of flows that have shown one packet remembers it; in the ring it has slot 0 of 65537"}},
		{edge.FlowVerdict{Action: "pass", Reason: "local", Service: "web", Backend: "a1", By: "ring", Slot: 65536},
			[]string{"pass: local", "service web", "backend a1: the ring chooses it, by slot 65536 of 65537; no table remembers the flow", "host firewall: off"}},
		{edge.FlowVerdict{Action: "redirect", Reason: "backend", Service: "h3", Backend: "a1", By: "server_id", Slot: 3},
			[]string{"redirect: backend", "service h3", "backend a1: the server id in the connection id names it; in the ring the flow has slot 3 of 65537"}},
		{edge.FlowVerdict{Action: "drop", Reason: "no_backend", Service: "web", Slot: 3},
			[]string{"drop: no_backend", "service web", "backend none: nothing chooses one"}},
	} {
		e, err := explainFlow(&looker{say: c.say}, "tcp 192.0.2.1:40000 198.51.100.10:443", nobody)
		if err != nil || e.Kind != "flow" {
			t.Errorf("%+v: %v", e, err)
		}
		if diff := cmp.Diff(c.want, e.Lines); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c.say, diff)
		}
	}
}

func FuzzParseFlow(f *testing.F) {
	f.Add("udp 192.0.2.1:40000 198.51.100.10:443 cid=0a1b2c")
	f.Add("gre 2001:db8::1 2001:db8::2")
	f.Fuzz(func(t *testing.T, s string) {
		flow, cid, err := parseFlow(s)
		if err != nil {
			return
		}
		if !flow.Src.IsValid() || !flow.Dst.IsValid() || flow.Src.Addr().Is4() != flow.Dst.Addr().Is4() || flow.Protocol == edge.AnyProtocol || len(cid) > 20 {
			t.Errorf("%q is read as %+v, cid %x", s, flow, cid)
		}
	})
}
