package model

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/catchment-dev/edge/xdp/model/frame"
)

// What is sent to a backend: the packet that came, one hop older, in the outer
// headers that the service asks for.
func TestEncapsulation(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		for _, c := range []struct {
			port   uint16
			gue    bool
			cross  bool
			egress uint32
			tags   []frame.Tag
		}{
			{portGUE, true, false, up0, nil}, {portIPIP, false, false, up0, nil},
			{portCross, true, true, up0, nil}, {portCrossIP, false, true, up0, nil},
			{portFar, true, false, up1, nil},
			{portVLAN, true, false, up0, []frame.Tag{{Type: 0x8100, TCI: 100}}},
			{portQinQ, true, false, up1, []frame.Tag{{Type: 0x88a8, TCI: 200}, {Type: 0x8100, TCI: 7}}},
		} {
			l, p := newLab(), f.tcp(c.port, frame.ACK)
			p.TOS = 0xb8 | 3 // EF, and a congestion mark
			o := l.Decide(frame.Pad(inLink.Frame(p.IP()), 150), long)
			if o.Length != len(p.IP()) {
				t.Errorf("port %d: counts %d bytes, want %d", c.port, o.Length, len(p.IP()))
			}
			link, outer := open(t, o.Out)
			if link.Dst != nextMAC || link.Src != upMAC || !slices.Equal(link.Tags, c.tags) || o.Egress != c.egress {
				t.Errorf("port %d: by %d, %+v", c.port, o.Egress, link)
			}
			if outer.src.Is6() != (f.v6 != c.cross) {
				t.Errorf("port %d: outer header from %s", c.port, outer.src)
			}
			checkOuter(t, l, o, outer)
			inner := outer.payload
			if c.gue {
				inner = checkGUE(t, o, outer.payload)
			} else if want := map[bool]int{false: 4, true: 41}[f.v6]; outer.proto != want {
				t.Errorf("port %d: protocol %d, want %d", c.port, outer.proto, want)
			}
			p.TTL = 63
			if !bytes.Equal(inner, p.IP()) {
				t.Errorf("port %d: % x\nwant % x", c.port, inner, p.IP())
			}
		}
	})
}

func flowHash(o Outcome) uint64 { return o.Hash ^ FlowHash(0, o.Service) }

func checkOuter(t *testing.T, l *lab, o Outcome, outer decoded) {
	t.Helper()
	b := l.Backends[o.Backend]
	source := addr("10.0.0.1")
	if outer.src.Is6() {
		source = addr("fd00::1")
		if want := int(flowHash(o) >> 40 & 0xfffff); outer.label != want {
			t.Errorf("flow label %#x, want %#x", outer.label, want)
		}
	}
	if outer.src != source || outer.dst != b.Addr || outer.ttl != 64 || outer.tos != 0xb8 || !outer.dontFragment || outer.offset != 0 ||
		outer.id != 0 || !outer.headerSumIsGood || outer.length != len(outer.all) {
		t.Errorf("outer header %+v", outer)
	}
}

// checkGUE checks the UDP header and returns what is behind it.
func checkGUE(t *testing.T, o Outcome, udp []byte) []byte {
	t.Helper()
	want := []uint16{0xc000 | uint16(flowHash(o)>>32)&0x3fff, 6080, uint16(len(udp)), 0}
	for i, v := range want {
		if got := binary.BigEndian.Uint16(udp[2*i:]); got != v {
			t.Errorf("word %d of UDP is %#x, want %#x", i, got, v)
		}
	}
	return udp[8:]
}

// same says whether two one's complement sums are: there are two zeros.
func same(a, b uint16) bool { return a%0xffff == b%0xffff }

// The checksum of IPv4 follows the TTL whatever it was: what was valid stays
// valid, what was off by something is off by it still.
func TestAgeChecksum(t *testing.T) {
	f := families()[0]
	l := newLab()
	wire := inLink.Frame(f.tcp(portGUE, frame.ACK).IP())
	for sum := range 0x10000 {
		binary.BigEndian.PutUint16(wire[ipAt+10:], uint16(sum))
		wire[ipAt+8] = byte(2 + sum*7%254)
		out := l.Decide(wire, long).Out
		inner := out[len(out)-len(wire)+ipAt:]
		if inner[8] != wire[ipAt+8]-1 || !same(frame.Sum(inner[:20]), frame.Sum(wire[ipAt:ipAt+20])) {
			t.Fatalf("checksum %#x: % x\nfrom % x", sum, inner[:20], wire[ipAt:ipAt+20])
		}
		// Of the two zeros, RFC 1624 equation 3 gives the one that a sender writes.
		if binary.BigEndian.Uint16(inner[10:]) == 0xffff {
			t.Fatalf("checksum %#x became 0xffff", sum)
		}
	}
}

// Tags: a known VLAN is a sub-interface to the route, an unknown one is kept if
// the packet goes back there.
func TestVLAN(t *testing.T) {
	known, unknown := frame.Tag{Type: 0x8100, TCI: 3<<13 | 100}, frame.Tag{Type: 0x8100, TCI: 300}
	outer := frame.Tag{Type: 0x88a8, TCI: 301}
	both(t, func(t *testing.T, f family) {
		for _, c := range []struct {
			name     string
			tags     []frame.Tag
			port     uint16
			asked    uint32
			wantTags []frame.Tag
		}{
			{"untagged", nil, portGUE, up0, nil},
			{"known, to the interface below", []frame.Tag{known}, portGUE, up0v, nil},
			{"known, back", []frame.Tag{known}, portVLAN, up0v, []frame.Tag{{Type: 0x8100, TCI: 100}}},
			{"known, to another interface", []frame.Tag{known}, portFar, up0v, nil},
			{"unknown, back", []frame.Tag{unknown}, portGUE, up0, []frame.Tag{unknown}},
			{"two unknown, back", []frame.Tag{outer, unknown}, portGUE, up0, []frame.Tag{outer, unknown}},
			{"unknown, to a vlan", []frame.Tag{unknown}, portVLAN, up0, []frame.Tag{{Type: 0x8100, TCI: 100}}},
			{"unknown, to another interface", []frame.Tag{unknown}, portFar, up0, nil},
			{"known outer, unknown inner", []frame.Tag{known, unknown}, portFar, up0, nil},
		} {
			link := inLink
			link.Tags = c.tags
			l := newLab()
			o := l.Decide(link.Frame(f.tcp(c.port, frame.ACK).IP()), long)
			out, _ := open(t, o.Out)
			if !slices.Equal(out.Tags, c.wantTags) || l.asked.Ifindex != c.asked {
				t.Errorf("%s: leaves with %v, asked with interface %d", c.name, out.Tags, l.asked.Ifindex)
			}
			for _, p := range []frame.Packet{f.ping(), f.tcp(portGUE, frame.ACK)} {
				p.Payload = make([]byte, 1440)
				o := newLab().Decide(link.Frame(p.IP()), long)
				out, _ := open(t, o.Out)
				if o.Verdict != TXEcho && o.Verdict != TXTooBig || o.Egress != up0 || !slices.Equal(out.Tags, c.tags) {
					t.Errorf("%s: %v with %v by %d", c.name, o.Verdict, out.Tags, o.Egress)
				}
			}
		}
	})
}

// What the route is asked with is what is then sent.
func TestRouteQuery(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		for _, port := range []uint16{portGUE, portIPIP, portCross, portCrossIP} {
			l, p := newLab(), f.tcp(port, frame.ACK)
			p.TOS = 0x2b
			o := l.send(p)
			_, outer := open(t, o.Out)
			got := RouteQuery{Ifindex: up0, Src: outer.src, Dst: outer.dst, Proto: uint8(outer.proto), TOS: uint8(outer.tos), Length: len(outer.all)}
			if got.Proto == frame.UDP {
				got.SPort, got.DPort = binary.BigEndian.Uint16(outer.payload), binary.BigEndian.Uint16(outer.payload[2:])
			}
			if l.asked != got {
				t.Errorf("port %d: asked %+v, sent %+v", port, l.asked, got)
			}
		}
	})
}

// A node without an address of the family sends from none, and does not stumble.
func TestNoSource(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		for _, port := range []uint16{portGUE, portCross} {
			l := newLab()
			l.services[f.id(port)].Source4, l.services[f.id(port)].Source6 = netip.Addr{}, netip.Addr{}
			if _, outer := open(t, l.send(f.tcp(port, frame.ACK)).Out); !outer.src.IsUnspecified() || outer.length != len(outer.all) {
				t.Errorf("from %s, %d bytes of %d", outer.src, outer.length, len(outer.all))
			}
		}
	})
}

// All fragments of a datagram reach one backend, in whatever order they come,
// with and without a memory of them.
func TestFragmentsTogether(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		rnd := rand.New(rand.NewPCG(5, 5))
		for _, affinity := range []Affinity{AffinityNone, AffinitySrc, AffinityFiveTuple} {
			for n := range 30 {
				l := newLab()
				l.services[f.first+offWild].Affinity = affinity
				p := f.udp(53, make([]byte, 400+rnd.IntN(2000)))
				p.Src, p.Dst = netip.AddrPortFrom(f.client, uint16(n)), netip.AddrPortFrom(f.wild, 53)
				p.Proto = []uint8{frame.UDP, frame.TCP, frame.ESP}[n%3]
				pieces := frame.Fragments(p.IP(), uint32(n), 8*(1+rnd.IntN(40)))
				rnd.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
				var to []uint32
				for _, ip := range append(pieces, pieces...) {
					o := l.Decide(inLink.Frame(ip), long)
					want(t, "fragment", o, TXBackend)
					if !o.Fragment {
						t.Error("not seen to be a fragment")
					}
					to = append(to, o.Backend)
				}
				if len(slices.Compact(to)) != 1 {
					t.Fatalf("affinity %d: fragments went to %v", affinity, to)
				}
			}
		}
	})
}
