package lab

import (
	"net/netip"
	"reflect"
	"testing"
	"time"
)

const birdProtocol = `BIRD 2.0.12 ready.
Name       Proto      Table      State  Since         Info
box-a1     BGP        ---        up     05:47:09.981  Established   
  BGP state:          Established
  Channel ipv4
    Routes:         1 imported, 0 exported, 1 preferred
    Route change stats:     received   rejected   filtered    ignored   accepted
      Import updates:             10          0          0          0         10
      Import withdraws:            2          0        ---          0          0
      Export updates:             23         10         13        ---          0
  Channel ipv6
    Routes:         1 imported, 0 exported, 1 preferred
      Import updates:              4          0          0          0         10
      Import withdraws:            1          0        ---          0          0
`

func TestParseBIRDSession(t *testing.T) {
	at := func(day, hour int) time.Time { return time.Date(2026, 3, day, hour, 0, 0, 0, time.UTC) }
	since := time.Date(2026, 3, 2, 5, 47, 9, 981e6, time.UTC)
	want := Session{Established: true, Since: since, Updates: 14, Withdraws: 3, Paths: 2}
	for _, now := range []time.Time{at(2, 6), at(2, 23), at(3, 1)} {
		if got, err := parseBIRDSession(birdProtocol, now); err != nil || got != want {
			t.Errorf("at %s: %+v, %v; want %+v", now, got, err, want)
		}
	}
	if got, err := parseBIRDSession("BIRD 2.0.12 ready.\nbox-a1     BGP        ---        start  05:47:09.981  Active        Socket: Connection closed\n", at(2, 6)); err != nil || got.Established {
		t.Errorf("no session: %+v, %v", got, err)
	}
	if got, err := parseBIRDSession("BIRD 2.0.12 ready.\nsyntax error\n", at(2, 6)); err == nil {
		t.Errorf("no protocol: %+v", got)
	}
}

func TestParseFRRSession(t *testing.T) {
	now := time.Date(2026, 3, 2, 5, 0, 0, 0, time.UTC)
	const out = `{"fd00:1::2":{"bgpState":"Established","bgpTimerUpMsec":24000,"connectionsEstablished":3,
		"addressFamilyInfo":{"ipv4Unicast":{"acceptedPrefixCounter":1},"ipv6Unicast":{"acceptedPrefixCounter":2}}}}`
	want := Session{Established: true, Since: now.Add(-24 * time.Second), Opened: 3, Paths: 3}
	if got, err := parseFRRSession(out, netip.MustParseAddr("fd00:1::2"), now); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{out, `{"bgpNoSuchNeighbor":true}`, "% Unknown command"} {
		if got, err := parseFRRSession(bad, netip.MustParseAddr("10.1.0.2"), now); err == nil {
			t.Errorf("%s: %+v", bad, got)
		}
	}
}

func TestCountFRRLog(t *testing.T) {
	const log = `2026/11/30 05:47:10 BGP: [T5AAP-5GA85] 10.1.0.2(Unknown) rcvd UPDATE w/ attr: nexthop 10.1.0.2, origin i, path 64512
2026/11/30 05:47:10 BGP: [PCFFM-WMARW] 10.1.0.2(Unknown) rcvd UPDATE wlen 0 attrlen 20 alen 4
2026/11/30 05:47:10 BGP: [YCKEM-GB33T] 10.1.0.2(Unknown) rcvd 198.51.100.0/24 IPv4 unicast
2026/11/30 05:47:10 BGP: [YCKEM-GB33T] 10.1.0.2(Unknown) rcvd 2001:db8:100::/48 IPv6 unicast
2026/11/30 05:47:13 BGP: [PAPP6-VDAWM] 10.1.0.2(Unknown) rcvd UPDATE about 198.51.100.0/24 IPv4 unicast -- withdrawn
2026/11/30 05:47:14 BGP: [NJYMB-R5FFH] 10.1.0.2(Unknown) rcvd 198.51.100.0/24 IPv4 unicast...duplicate ignored
2026/11/30 05:47:14 BGP: [YCKEM-GB33T] 10.1.0.20(Unknown) rcvd 198.51.100.0/24 IPv4 unicast
2026/11/30 05:47:14 BGP: [YCKEM-GB33T] 110.1.0.2(Unknown) rcvd 198.51.100.0/24 IPv4 unicast
2026/11/30 05:47:15 BGP: [YCKEM-GB33T] fd00:1::2(Unknown) rcvd 198.51.100.0/24 IPv4 unicast
`
	if updates, withdraws := countFRRLog(log, netip.MustParseAddr("10.1.0.2")); updates != 3 || withdraws != 1 {
		t.Errorf("%d updates, %d withdraws; want 3 and 1", updates, withdraws)
	}
	if updates, withdraws := countFRRLog(log, netip.MustParseAddr("fd00:1::2")); updates != 1 || withdraws != 0 {
		t.Errorf("%d updates, %d withdraws; want 1 and 0", updates, withdraws)
	}
}

func TestParsePath(t *testing.T) {
	want := Path{ASPath: []uint32{64512, 64512}, MED: 19, Communities: []string{"65001:19", "65535:0"}}
	bird, err := parseBIRDPath(`Table master4:
198.51.100.0/24      unicast [box-a1 05:47:31.744] * (100) [AS64512i]
	via 10.1.0.2 on a1
	BGP.as_path: 64512 64512
	BGP.med: 19
	BGP.local_pref: 100
	BGP.community: (65001,19) (65535,0)
`)
	if err != nil || !reflect.DeepEqual(bird, want) {
		t.Errorf("BIRD: %+v, %v; want %+v", bird, err, want)
	}
	const out = `{"paths":[
		{"metric":1,"aspath":{"segments":[{"list":[65001,64512]}]},"peer":{"peerId":"10.255.0.1"}},
		{"metric":19,"aspath":{"segments":[{"list":[64512,64512]}]},"community":{"list":["65001:19","65535:0"]},"peer":{"peerId":"10.1.0.2"}}]}`
	frr, err := parseFRRPath(out, netip.MustParseAddr("10.1.0.2"))
	if err != nil || !reflect.DeepEqual(frr, want) {
		t.Errorf("FRR: %+v, %v; want %+v", frr, err, want)
	}
	if _, err := parseFRRPath(out, netip.MustParseAddr("10.1.0.3")); err == nil {
		t.Error("FRR has a path of a neighbour that sent none")
	}
	if _, err := parseBIRDPath("Network not found"); err == nil {
		t.Error("BIRD has a path that is not there")
	}
}
