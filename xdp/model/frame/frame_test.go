package frame

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// pairs are a client and a VIP of each family.
func pairs() [][2]netip.AddrPort {
	return [][2]netip.AddrPort{
		{netip.MustParseAddrPort("198.51.100.9:4321"), netip.MustParseAddrPort("192.0.2.1:80")},
		{netip.MustParseAddrPort("[2001:db8:c::9]:4321"), netip.MustParseAddrPort("[2001:db8::1]:80")},
	}
}

// split checks the IP header and returns protocol and payload.
func split(t *testing.T, ip []byte) (proto int, payload []byte) {
	t.Helper()
	if ip[0]>>4 == 4 {
		h, err := ipv4.ParseHeader(ip)
		if err != nil || h.TotalLen != len(ip) || Sum(ip[:h.Len]) != 0xffff || h.TTL == 0 {
			t.Fatalf("%+v, %v: % x", h, err, ip)
		}
		return h.Protocol, ip[h.Len:]
	}
	h, err := ipv6.ParseHeader(ip)
	if err != nil || h.Version != 6 || h.PayloadLen+IPv6Len != len(ip) || h.HopLimit == 0 {
		t.Fatalf("%+v, %v: % x", h, err, ip)
	}
	return h.NextHeader, ip[IPv6Len:]
}

// sum is that of a transport header and payload, with the pseudo header.
func sum(ip, transport []byte, proto byte) uint16 {
	if proto == ICMP { // over whatever: that of IPv4
		return Sum(transport)
	}
	addrs := ip[12:20]
	if ip[0]>>4 == 6 {
		addrs = ip[8:40]
	}
	pseudo := binary.BigEndian.AppendUint16([]byte{0, proto}, uint16(len(transport)))
	return Sum(slices.Concat(addrs, pseudo, transport))
}

func TestPackets(t *testing.T) {
	for _, pair := range pairs() {
		for _, n := range []int{0, 1, 2, 1000} {
			for _, proto := range []uint8{TCP, UDP, ICMP, ICMPv6, GRE, SCTP} {
				p := Packet{Src: pair[0], Dst: pair[1], Proto: proto, Flags: SYN | ACK, Type: 8, Payload: bytes.Repeat([]byte{7}, n), TOS: 0xb8, ID: 9}
				ip := p.IP()
				got, rest := split(t, ip)
				if got != int(proto) {
					t.Errorf("protocol %d, want %d", got, proto)
				}
				if proto != GRE && proto != SCTP && sum(ip, rest, proto) != 0xffff {
					t.Errorf("protocol %d, %d bytes: checksum is wrong: % x", proto, n, rest)
				}
				if (proto == TCP || proto == UDP) && (binary.BigEndian.Uint16(rest) != 4321 || binary.BigEndian.Uint16(rest[2:]) != 80) {
					t.Errorf("ports % x", rest[:4])
				}
				if !bytes.HasSuffix(rest, p.Payload) {
					t.Errorf("protocol %d: payload is lost", proto)
				}
			}
		}
	}
}

func TestExtensionHeaders(t *testing.T) {
	p := Packet{Src: pairs()[1][0], Dst: pairs()[1][1], Proto: UDP, Headers: []Header{Option(HopByHop), Authentication(), Atomic()}}
	proto, rest := split(t, p.IP())
	for _, want := range []struct{ proto, size int }{{HopByHop, 8}, {AH, 12}, {FragmentHeader, 8}} {
		if proto != want.proto {
			t.Fatalf("header %d, want %d", proto, want.proto)
		}
		proto, rest = int(rest[0]), rest[want.size:]
	}
	if proto != UDP || len(rest) != 8 {
		t.Errorf("protocol %d of %d bytes at the end", proto, len(rest))
	}
}

func TestFragments(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, pair := range pairs() {
		for _, n := range []int{0, 1, 100, 3000} {
			whole := Packet{Src: pair[0], Dst: pair[1], Proto: UDP, Payload: noise(rnd, n)}.IP()
			var got []byte
			pieces := Fragments(whole, 5, 64)
			for i, ip := range pieces {
				proto, rest := split(t, ip)
				offset, more := int(binary.BigEndian.Uint16(ip[6:])&0x1fff)*8, ip[6]&0x20 != 0
				if proto == FragmentHeader {
					word := binary.BigEndian.Uint16(rest[2:])
					proto, offset, more, rest = int(rest[0]), int(word&^7), word&1 != 0, rest[8:]
				}
				if proto != UDP || offset != len(got) || more != (i < len(pieces)-1) {
					t.Fatalf("piece %d of %d: protocol %d, offset %d, more %v", i, len(pieces), proto, offset, more)
				}
				got = append(got, rest...)
			}
			if _, want := split(t, whole); !bytes.Equal(got, want) {
				t.Errorf("%d bytes: put together, it is another packet", n)
			}
		}
	}
}

func TestErrorAndTunnel(t *testing.T) {
	for _, pair := range pairs() {
		inner := Packet{Src: pair[1], Dst: pair[0], Proto: TCP}.IP()
		e := Error(pair[0].Addr(), 3, 0, inner)
		proto, rest := split(t, e.IP())
		m, err := icmp.ParseMessage(proto, rest)
		if err != nil || e.Dst.Addr() != pair[1].Addr() || m.Code != 0 || !bytes.HasSuffix(rest, inner) {
			t.Errorf("%+v, %v", m, err)
		}
		for _, outer := range pairs() {
			if _, rest := split(t, Tunnel(outer[0].Addr(), outer[1].Addr(), false, inner).IP()); !bytes.Equal(rest, inner) {
				t.Errorf("IPIP holds % x", rest)
			}
			proto, rest := split(t, Tunnel(outer[0].Addr(), outer[1].Addr(), true, inner).IP())
			if proto != UDP || binary.BigEndian.Uint16(rest[2:]) != GUEPort || !bytes.Equal(rest[8:], inner) {
				t.Errorf("GUE holds % x", rest)
			}
		}
	}
}

func testHosts() Hosts {
	return Hosts{
		Links:   []Link{{Dst: [6]byte{2}, Src: [6]byte{4}}, {Dst: [6]byte{2}, Src: [6]byte{4}, Tags: []Tag{{0x88a8, 1}, {0x8100, 2}}}},
		Clients: []netip.Addr{addr("198.51.100.9"), addr("2001:db8:c::9")}, VIPs: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")},
		Peers: []netip.Addr{addr("10.0.0.7"), addr("fd00::7")}, Nodes: []netip.Addr{addr("10.0.0.1"), addr("fd00::1")},
		Ports: []uint16{80, 443}, ClientPorts: 3, MaxPayload: 1400, Connections: [][]byte{{1, 2, 3}},
	}
}

// Random frames are in order, of every kind, and the same for the same seed.
func TestRandom(t *testing.T) {
	h, a, b := testHosts(), rand.New(rand.NewPCG(6, 6)), rand.New(rand.NewPCG(6, 6))
	kinds := map[[3]int]int{} // family, tags, protocol
	for range 20000 {
		f := h.Random(a)
		if !bytes.Equal(f, h.Random(b)) {
			t.Fatal("the same seed gave another frame")
		}
		at, tags := 12, 0
		for ; f[at] == 0x88 || f[at] == 0x81; at += 4 {
			tags++
		}
		ip, size := f[at+2:], 0
		family := int(ip[0] >> 4)
		if family == 4 {
			size = int(binary.BigEndian.Uint16(ip[2:]))
		} else {
			size = IPv6Len + int(binary.BigEndian.Uint16(ip[4:]))
		}
		proto, _ := split(t, ip[:size])
		kinds[[3]int{family, tags, proto}]++
	}
	for _, family := range []int{4, 6} {
		protocols := []int{TCP, UDP, ICMP, GRE, ESP, SCTP, 4, 41}
		if family == 6 {
			protocols = []int{TCP, UDP, ICMPv6, GRE, ESP, SCTP, 4, 41, HopByHop, Routing, DstOpts, AH, FragmentHeader}
		}
		for _, proto := range protocols {
			if kinds[[3]int{family, 0, proto}] == 0 || kinds[[3]int{family, 2, proto}] == 0 {
				t.Errorf("IPv%d: no frame of protocol %d", family, proto)
			}
		}
	}
}

// Damaged frames differ from what they were, stay in bounds, and leave the
// original alone.
func TestMutate(t *testing.T) {
	h, rnd := testHosts(), rand.New(rand.NewPCG(7, 7))
	same := 0
	for range 20000 {
		f := h.Random(rnd)
		was := slices.Clone(f)
		m := Mutate(rnd, f)
		if !bytes.Equal(was, f) {
			t.Fatal("the frame itself was damaged")
		}
		if len(m) < EthernetLen || len(m) > len(f)+200 {
			t.Fatalf("%d bytes became %d", len(f), len(m))
		}
		if bytes.Equal(m, f) {
			same++
		}
	}
	if same > 2000 {
		t.Errorf("%d of 20000 frames were not damaged", same)
	}
}

// Frames that are too short for most damage do not stop it.
func TestMutateShort(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 8))
	for n := EthernetLen; n < 70; n++ {
		for range 200 {
			if m := Mutate(rnd, make([]byte, n)); len(m) < EthernetLen {
				t.Fatalf("%d bytes became %d", n, len(m))
			}
		}
	}
}
