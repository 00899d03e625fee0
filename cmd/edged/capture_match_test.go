package main

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/catchment-dev/edge"
)

func ethernet(kind uint16, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint16(make([]byte, 12), kind), payload...)
}

// ip4 is an IPv4 packet; of its header only what the matcher reads.
func ip4(proto uint8, src, dst string, payload []byte) []byte {
	b := make([]byte, 20, 20+len(payload))
	b[0], b[9] = 0x45, proto
	copy(b[12:], netip.MustParseAddr(src).AsSlice())
	copy(b[16:], netip.MustParseAddr(dst).AsSlice())
	return append(b, payload...)
}

func ip6(next uint8, src, dst string, payload []byte) []byte {
	b := make([]byte, 40, 40+len(payload))
	b[0], b[6] = 0x60, next
	copy(b[8:], netip.MustParseAddr(src).AsSlice())
	copy(b[24:], netip.MustParseAddr(dst).AsSlice())
	return append(b, payload...)
}

func ports(src, dst uint16) []byte {
	return append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst), make([]byte, 4)...)
}

func tcp4(src, dst string) []byte {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return ethernet(0x0800, ip4(6, s.Addr().String(), d.Addr().String(), ports(s.Port(), d.Port())))
}

func TestVIPMatch(t *testing.T) {
	const client, vip, client6, vip6 = "192.0.2.7", "198.51.100.10", "2001:db8::7", "2001:db8:1::10"
	to := ip4(6, client, vip, append(ports(1000, 443), make([]byte, 12)...))
	to6 := ip6(6, client6, vip6, ports(1000, 443))
	fragment := slices.Clone(ip4(6, client, vip, []byte("middle of something")))
	fragment[7] = 7
	options := append([]byte{0x46}, to[1:20]...)
	options = append(append(options, 1, 1, 1, 1), to[20:]...)
	tagged := append([]byte{0, 5, 0x81, 0, 0, 6, 8, 0}, to...)
	web := vipMatch{netip.MustParseAddr(vip), 443, edge.TCP}
	web6 := vipMatch{netip.MustParseAddr(vip6), 443, edge.TCP}
	every := vipMatch{netip.MustParseAddr(vip), 0, edge.AnyProtocol}
	for _, c := range []struct {
		name  string
		of    vipMatch
		frame []byte
		want  bool
	}{
		{"to the VIP", web, ethernet(0x0800, to), true},
		{"from the VIP", web, tcp4("198.51.100.10:443", "192.0.2.7:1000"), true},
		{"to another port", web, tcp4("192.0.2.7:443", "198.51.100.10:80"), false},
		{"to another port, of all ports", every, tcp4("192.0.2.7:443", "198.51.100.10:80"), true},
		{"to another address", web, tcp4("192.0.2.7:1000", "198.51.100.11:443"), false},
		{"another protocol", web, ethernet(0x0800, ip4(17, client, vip, ports(1000, 443))), false},
		{"port-less, of all protocols", every, ethernet(0x0800, ip4(50, client, vip, nil)), true},
		{"IPv4 options", web, ethernet(0x0800, options), true},
		{"two tags", web, ethernet(0x88a8, tagged), true},
		{"a later fragment", web, ethernet(0x0800, fragment), true},
		{"IPv6", web6, ethernet(0x86dd, to6), true},
		{"IPv6, the other family's VIP", web, ethernet(0x86dd, to6), false},
		{"extension headers", web6, ethernet(0x86dd, ip6(0, client6, vip6, append([]byte{51, 0, 0, 0, 0, 0, 0, 0, 6, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, ports(1000, 443)...))), true},
		{"a later fragment of IPv6", web6, ethernet(0x86dd, ip6(44, client6, vip6, []byte{6, 0, 0, 8, 0, 0, 0, 0, 1, 2, 3, 4})), true},
		{"in GUE", web, ethernet(0x0800, ip4(17, "192.0.2.1", "192.0.2.2", append(ports(50000, edge.GUEPort), to...))), true},
		{"in GUE over IPv6", web, ethernet(0x86dd, ip6(17, client6, "2001:db8::9", append(ports(50000, edge.GUEPort), to...))), true},
		{"in another UDP", web, ethernet(0x0800, ip4(17, "192.0.2.1", "192.0.2.2", append(ports(50000, 53), to...))), false},
		{"in IPIP", web, ethernet(0x0800, ip4(4, "192.0.2.1", "192.0.2.2", to)), true},
		{"IPv6 in IPv4", web6, ethernet(0x0800, ip4(41, "192.0.2.1", "192.0.2.2", to6)), true},
		{"quoted in an error", web, ethernet(0x0800, ip4(1, "203.0.113.1", vip, append([]byte{3, 4, 0, 0, 0, 0, 0, 0}, ip4(6, vip, client, ports(443, 1000))...))), true},
		{"quoted in an error in a tunnel", web, ethernet(0x0800, ip4(4, "192.0.2.1", "192.0.2.2", ip4(1, "203.0.113.1", vip, append(make([]byte, 8), ip4(6, vip, client, ports(443, 1000))...)))), true},
		{"quoted in another service's error", web, ethernet(0x0800, ip4(1, "203.0.113.1", vip, append(make([]byte, 8), ip4(6, vip, client, ports(80, 1000))...))), false},
		{"ARP", every, ethernet(0x0806, to), false},
		{"nothing", every, nil, false},
	} {
		if got := c.of.inFrame(c.frame); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
		for n := range c.frame { // cut off anywhere, it is read within its bounds
			c.of.inFrame(c.frame[:n:n])
		}
	}
}

func FuzzVIPMatch(f *testing.F) {
	f.Add(tcp4("192.0.2.7:443", "198.51.100.10:80"))
	f.Add(ethernet(0x0800, ip4(4, "192.0.2.1", "192.0.2.2", ip6(0, "2001:db8::7", "2001:db8:1::10", []byte{51, 0, 0, 0, 0, 0, 0, 0, 6, 2}))))
	f.Add(ethernet(0x86dd, ip6(58, "2001:db8::7", "2001:db8:1::10", append(make([]byte, 8), ip6(44, "::", "::", make([]byte, 8))...))))
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := slices.Clone(frame)
		vipMatch{netip.MustParseAddr("198.51.100.10"), 443, edge.TCP}.inFrame(frame)
		if !slices.Equal(before, frame) {
			t.Error("it writes into the frame")
		}
	})
}
