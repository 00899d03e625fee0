package model

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/model/frame"
)

// query asks about the flow of a packet.
func query(p frame.Packet) Query {
	return Query{Flow: edge.Flow{Src: p.Src, Dst: p.Dst, Protocol: edge.Protocol(p.Proto)}}
}

// Explain says of a flow what Decide does with its next packet, and changes
// nothing.
func TestExplainAgrees(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 9))
	both(t, func(t *testing.T, f family) {
		l := newLab()
		for i := range 5000 {
			p := f.tcp(uint16(portGUE+rnd.IntN(24)), frame.ACK)
			if i%3 == 0 {
				p = f.udp(p.Dst.Port(), nil)
			}
			if i%7 == 0 {
				p.Dst = netip.AddrPortFrom(f.wild, 7)
				p.Proto = uint8(rnd.Uint32())
			}
			p.Src = netip.AddrPortFrom(f.client, uint16(rnd.IntN(40)))
			switch i % 13 {
			case 11: // from nobody
				p.Src = netip.AddrPortFrom(netip.IPv6Loopback(), 9)
				if !f.v6 {
					p.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{0, 0, 0, 1}), 9)
				}
			case 12: // from itself
				p.Src = netip.AddrPortFrom(p.Dst.Addr(), 9)
			}
			if p.Proto == frame.ICMP || p.Proto == frame.ICMPv6 || f.v6 && isExtension(p.Proto) {
				continue // ICMP needs a packet, and an extension header is no protocol
			}
			if i%5 == 0 && p.Proto == frame.TCP {
				p.Flags = frame.SYN
				l.send(p)
				p.Flags = frame.ACK
			}
			flows, half := maps.Clone(l.flows), maps.Clone(l.half)
			said := l.Explain(query(p), long)
			if !maps.Equal(flows, l.flows) || !maps.Equal(half, l.half) {
				t.Fatal("to explain has changed the tables")
			}
			did := l.send(p)
			if said.Verdict != did.Verdict || said.Backend != did.Backend || said.By != did.By || said.Slot != did.Slot ||
				said.Service != did.Service || said.Egress != did.Egress || said.Hash != did.Hash || said.Flow != did.Flow {
				t.Fatalf("said %+v\ndid %+v", said, did)
			}
		}
	})
}

func TestExplain(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		l := newLab()
		for _, c := range []struct {
			name  string
			query Query
			want  Verdict
			asked []string
		}{
			{"ring", query(f.tcp(portGUE, 0)), TXBackend, []string{"blocklist", "table", "half", "ring", "route"}},
			{"no service", query(f.tcp(9999, 0)), PassNoService, []string{"blocklist", "service"}},
			{"no table", query(f.tcp(portNoTable, 0)), DropNoTable, []string{"blocklist", "service"}},
			{"nobody", query(f.tcp(portEmpty, 0)), DropNoBackend, []string{"blocklist", "table", "half", "ring"}},
			{"this box", query(f.tcp(portLocal, 0)), PassLocal, []string{"blocklist", "table", "half", "ring", "backend"}},
			{"not tracked", query(f.udp(portGUE, nil)), TXBackend, []string{"blocklist", "ring", "route"}},
			{"no route", query(f.tcp(portBadRoute, 0)), DropFIBBlackhole, []string{"blocklist", "table", "half", "ring", "route"}},
			{"icmp", query(f.ping()), PassICMP, []string{"blocklist"}},
			{"not for a vip", query(f.answer(f.tcp(80, 0))), PassNotVIP, nil},
			{"for a tunnel address", Query{Flow: edge.Flow{Src: f.tcp(1, 0).Src, Dst: netip.AddrPortFrom(f.node, 80), Protocol: edge.TCP}}, PassNotVIP, nil},
			{"server id", Query{Flow: query(f.udp(portQUIC, nil)).Flow, ConnectionID: []byte{1, 7, 1}}, TXBackend, []string{"blocklist", "server_id", "route"}},
			{"unknown server id", Query{Flow: query(f.udp(portQUIC, nil)).Flow, ConnectionID: []byte{1, 1, 1}}, TXBackend, []string{"blocklist", "server_id", "ring", "route"}},
			{"fragment", Query{Flow: query(f.tcp(portGUE, 0)).Flow, Fragment: true}, DropFragmentPorts, []string{"blocklist", "service"}},
			{"fragment of udp", Query{Flow: query(f.udp(portGUE, nil)).Flow, Fragment: true}, TXBackend, []string{"blocklist", "ring", "route"}},
		} {
			o := l.Explain(c.query, long)
			want(t, c.name, o, c.want)
			var asked []string
			for _, s := range o.Why {
				asked = append(asked, s.Asked)
				if s.Answer == "" {
					t.Errorf("%s: %s has no answer", c.name, s.Asked)
				}
			}
			if !slices.Equal(asked, c.asked) {
				t.Errorf("%s: asked %v, want %v", c.name, asked, c.asked)
			}
			if o.Out != nil || c.want.Action() != TX && o.Egress != 0 {
				t.Errorf("%s: leaves by %d", c.name, o.Egress)
			}
		}
		blocked := query(f.tcp(portGUE, 0))
		blocked.Flow.Src = netip.AddrPortFrom(f.blocked, 1)
		want(t, "blocked", l.Explain(blocked, long), DropBlocked)
		if o := l.Explain(Query{Flow: query(f.udp(portQUIC, nil)).Flow, ConnectionID: []byte{1, 7, 1}}, long); o.By != ByServerID || o.Backend != f.backend(portQUIC)+1 {
			t.Errorf("server id: %d by %s", o.Backend, o.By)
		}
	})
}

// A flow whose backend has left says so.
func TestExplainStale(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		l := newLab()
		_, to := moved(l, f, portGUE, l.flows)
		state(0)(l, to)
		o := l.Explain(query(f.tcp(portGUE, 0)), long)
		if o.By != ByRing || !slices.Contains(o.Why, Step{"table", "its backend has left the service", to}) {
			t.Errorf("by %s: %v", o.By, o.Why)
		}
	})
}

// Even where nothing fits, nobody is told.
func TestExplainTooBig(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		l := newLab()
		l.mtu, l.TooBig = 60, Limit{time.Second, 0}
		for range 2 {
			want(t, "too big", l.Explain(query(f.tcp(portGUE, 0)), long), TXTooBig)
		}
		big := f.tcp(portGUE, frame.ACK)
		big.Payload = make([]byte, maxError6)
		want(t, "the first packet", l.send(big), TXTooBig)
		want(t, "the second", l.send(big), DropTooBigLimited)
	})
}
