package firewall

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
)

// asked is a packet of a test as Judge is asked for it.
func (p packet) asked(t *testing.T) Packet {
	t.Helper()
	at := func(text string) netip.AddrPort {
		if a, err := netip.ParseAddrPort(text); err == nil {
			return netip.AddrPortFrom(a.Addr().WithZone(""), a.Port())
		}
		return netip.AddrPortFrom(netip.MustParseAddr(text).WithZone(""), 40000)
	}
	out := Packet{From: at(p.from), To: at(p.to)}
	_, number, _ := strings.Cut(p.network, ":")
	if number == "" {
		number = strings.TrimSuffix(p.network, "6")
	}
	if err := out.Protocol.UnmarshalText([]byte(number)); err != nil {
		switch number {
		case "4":
			out.Protocol = 4
		case "41":
			out.Protocol = 41
		case "47":
			out.Protocol = 47
		default:
			t.Fatal(err)
		}
	}
	return out
}

// agrees holds what Judge says of a packet against what is expected of the kernel,
// which is sent the same one.
func agrees(t *testing.T, r Ruleset, one packet, counter string) {
	t.Helper()
	got := r.Judge(one.asked(t))
	if one.ttl != 0 && uint8(one.ttl) < got.TTL || got.Link != "" && got.Link != "eth0" {
		got.LetIn = false
	}
	if got.LetIn != (counter == "") || counter != "" && got.Refused != counter && counter != refusedBGPTTL && counter != refusedBFDTTL {
		t.Errorf("%s: judged %+v, want counter %q", one, got, counter)
	}
}

func TestJudge(t *testing.T) {
	rules := Build(busyConfig(t))
	at := netip.MustParseAddrPort
	for name, c := range map[string]struct {
		packet Packet
		want   Fate
	}{
		"a service":            {Packet{edge.TCP, at("203.0.113.9:40000"), at("198.51.100.10:443")}, Fate{LetIn: true}},
		"no service":           {Packet{edge.TCP, at("203.0.113.9:40000"), at("198.51.100.10:22")}, Fate{Refused: refusedVIP, Answers: true}},
		"ssh, managed":         {Packet{edge.TCP, at("10.9.9.9:40000"), at("10.1.0.2:22")}, Fate{LetIn: true}},
		"ssh, a stranger":      {Packet{edge.TCP, at("203.0.113.9:40000"), at("10.1.0.2:22")}, Fate{Refused: refusedManagement, Answers: true}},
		"a neighbour by ssh":   {Packet{edge.TCP, at("[fe80::9]:40000"), at("[fe80::2]:22")}, Fate{Refused: refusedManagement, Answers: true}},
		"a peer with GTSM":     {Packet{edge.TCP, at("10.1.0.1:40000"), at("10.1.0.2:179")}, Fate{LetIn: true, TTL: 255, Link: "eth0", Refused: refusedBGP}},
		"a peer hops away":     {Packet{edge.TCP, at("10.0.0.1:40000"), at("10.1.0.2:179")}, Fate{LetIn: true}},
		"no peer":              {Packet{edge.TCP, at("203.0.113.9:40000"), at("10.1.0.2:179")}, Fate{Refused: refusedBGP}},
		"BFD over IPv6":        {Packet{edge.UDP, at("[fe80::1]:49152"), at("[fe80::2]:3784")}, Fate{LetIn: true, TTL: 255, Link: "eth0", Refused: refusedBFD}},
		"an answer, perhaps":   {Packet{edge.UDP, at("9.9.9.9:53"), at("10.1.0.2:40000")}, Fate{Refused: refusedRest, Answers: true}},
		"gossip of a member":   {Packet{edge.UDP, at("10.2.0.2:7946"), at("10.1.0.2:7946")}, Fate{LetIn: true}},
		"gossip of others":     {Packet{edge.UDP, at("203.0.113.9:7946"), at("10.1.0.2:7946")}, Fate{Refused: refusedGossip, Answers: true}},
		"a ping":               {Packet{1, at("203.0.113.9:0"), at("10.1.0.2:0")}, Fate{LetIn: true}},
		"a ping over IPv6":     {Packet{58, at("[2001:db8::9]:0"), at("[fd00:1::2]:0")}, Fate{LetIn: true}},
		"a tunnel of a box":    {Packet{4, at("10.2.0.2:0"), at("10.1.0.2:0")}, Fate{LetIn: true}},
		"a tunnel of others":   {Packet{4, at("203.0.113.9:0"), at("10.1.0.2:0")}, Fate{Refused: refusedTunnel, Answers: true}},
		"any protocol there":   {Packet{47, at("203.0.113.9:0"), at("198.51.100.53:0")}, Fate{LetIn: true}},
		"a protocol elsewhere": {Packet{47, at("203.0.113.9:0"), at("10.1.0.2:0")}, Fate{Refused: refusedRest, Answers: true}},
	} {
		if d := cmp.Diff(c.want, rules.Judge(c.packet)); d != "" {
			t.Errorf("%s: (-want +got)\n%s", name, d)
		}
	}
	if got := Rescue().Judge(Packet{edge.TCP, at("203.0.113.9:40000"), at("10.1.0.2:22")}); !got.LetIn {
		t.Errorf("ssh in rescue: %+v", got)
	}
}
