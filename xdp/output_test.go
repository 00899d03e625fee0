package xdp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/model"
	"github.com/vishvananda/netlink"
)

// opened is an encapsulated packet, taken apart.
type opened struct {
	dmac     []byte
	src, dst netip.Addr
	ttl, tos byte
	sport    uint16 // GUE
	gue      bool
	inner    []byte
}

// openTunnel takes apart what the program sent and checks all that a receiver would.
func openTunnel(t testing.TB, f []byte) opened {
	t.Helper()
	o := opened{dmac: f[:6]}
	ip := f[ethLen:]
	var proto byte
	var rest []byte
	switch be.Uint16(f[12:]) {
	case 0x0800:
		if ip[0] != 0x45 || sum(0, ip[:ip4Len]) != 0xffff || int(be.Uint16(ip[2:])) != len(ip) || be.Uint16(ip[6:]) != 0x4000 {
			t.Fatalf("bad outer IPv4 header % x", ip[:ip4Len])
		}
		o.src, _ = netip.AddrFromSlice(ip[12:16])
		o.dst, _ = netip.AddrFromSlice(ip[16:20])
		o.ttl, o.tos, proto, rest = ip[8], ip[1], ip[9], ip[ip4Len:]
	case 0x86dd:
		if ip[0]>>4 != 6 || int(be.Uint16(ip[4:])) != len(ip)-ip6Len {
			t.Fatalf("bad outer IPv6 header % x", ip[:ip6Len])
		}
		o.src, _ = netip.AddrFromSlice(ip[8:24])
		o.dst, _ = netip.AddrFromSlice(ip[24:40])
		o.ttl, o.tos, proto, rest = ip[7], byte(be.Uint16(ip)>>4), ip[6], ip[ip6Len:]
	default:
		t.Fatalf("outer ethertype %#x", be.Uint16(f[12:]))
	}
	if o.gue = proto == 17; o.gue {
		if be.Uint16(rest[2:]) != edge.GUEPort || int(be.Uint16(rest[4:])) != len(rest) || be.Uint16(rest[6:]) != 0 {
			t.Fatalf("bad GUE header % x", rest[:8])
		}
		o.sport, rest = be.Uint16(rest), rest[8:]
		proto = map[byte]byte{4: 4, 6: 41}[rest[0]>>4]
	}
	if want := map[byte]byte{4: 4, 6: 41}[rest[0]>>4]; proto != want {
		t.Fatalf("outer protocol is %d, the inner version %d", proto, rest[0]>>4)
	}
	o.inner = rest
	return o
}

// aged is the packet one hop later, by the book.
func aged(p packet) []byte {
	p.ttl--
	return p.ip()
}

func TestEncapsulation(t *testing.T) {
	d := oneBox(t)
	for _, v6 := range []bool{false, true} {
		client, vip := family(v6)
		near, cross := addr(near4), addr(near6)
		if v6 {
			near, cross = cross, near
		}
		for _, c := range []struct {
			port string
			gue  bool
			to   netip.Addr
		}{{portRemote, true, near}, {portIPIP, false, near}, {portCross, true, cross}, {portCrossIPIP, false, cross}} {
			p := tcpPacket(client, vip+c.port)
			p.tos = 0xb9 // EF and ECT(1)
			for _, pad := range []int{0, 5, 40} {
				frame := append(p.frame(), make([]byte, pad)...)
				r := d.run(t, frame)
				if r.verdict != edgeVerdictTX_BACKEND {
					t.Fatalf("%s: %s", c.port, d.name(r.verdict))
				}
				o := openTunnel(t, r.out)
				if !bytes.Equal(o.inner, aged(p)) {
					t.Errorf("%s: inner packet\n% x, want\n% x", c.port, o.inner, aged(p))
				}
				src := addr(node4)
				if c.to.Is6() {
					src = addr(node6)
				}
				if o.dst != c.to || o.src != src || o.gue != c.gue || o.ttl != 64 || o.tos != 0xb8 || !bytes.Equal(o.dmac, []byte{2, 0, 0, 0, 0, 2}) {
					t.Errorf("%s: outer %+v", c.port, o)
				}
			}
		}
	}
}

// Every TTL has its own checksum arithmetic.
func TestTTLChecksum(t *testing.T) {
	d := oneBox(t)
	for ttl := 2; ttl < 256; ttl++ {
		p := tcpPacket(client4+":4321", vip4+":"+portRemote)
		p.ttl = uint8(ttl)
		p.tos = uint8(ttl * 7)
		if o := openTunnel(t, d.run(t, p.frame()).out); !bytes.Equal(o.inner, aged(p)) {
			t.Fatalf("ttl %d: % x, want % x", ttl, o.inner[:ip4Len], aged(p)[:ip4Len])
		}
	}
}

// An outer header whose checksum carries twice, which few do.
func TestOuterChecksumCarries(t *testing.T) {
	d := oneBox(t)
	p := udpPacket(client4+":4321", vip4+":7")
	p.payload = 188 // a length whose word is large
	header := ip4Header(packet{src: addrPort(node4 + ":0"), dst: addrPort("172.16.0.0:0"), proto: 17, ttl: 64}, make([]byte, 8+len(p.ip())))
	// The last word of the address makes the lower half of the program's sum,
	// which is one of little-endian words, as large as it gets.
	words := uint32(0)
	for i := 0; i < ip4Len; i += 2 {
		if i != 10 {
			words += uint32(binary.LittleEndian.Uint16(header[i:]))
		}
	}
	if words < 0x10000 {
		t.Fatal("the sum has nothing to carry")
	}
	last := ^uint16(words)
	to := netip.AddrFrom4([4]byte{172, 16, byte(last), byte(last >> 8)})
	check(t, netlink.RouteAdd(&netlink.Route{Dst: host(to.String()), Gw: addr(near4).AsSlice()}))
	apply(t, d.Forwarder, tableOf(service("a", vip4+":7", edge.UDP, edge.TableBackend{ID: "b", Addr: to, Weight: 1})))
	if o := openTunnel(t, d.run(t, p.frame()).out); o.dst != to {
		t.Errorf("went to %s, not %s", o.dst, to)
	}
}

func TestDecapsulation(t *testing.T) {
	d := oneBox(t)
	for _, v6 := range []bool{false, true} {
		client, vip := family(v6)
		inner := udpPacket(client, vip+portRemote).ip()
		for _, c := range [][2]string{{trust4, node4}, {trust6, node6}} {
			for _, gue := range []bool{false, true} {
				r := d.run(t, wrap(addr(c[0]), addr(c[1]), gue, inner))
				if r.verdict != edgeVerdictPASS_DECAP || !bytes.Equal(r.out, ethernet(inner)) {
					t.Errorf("%v gue=%v: %s\n% x, want\n% x", c, gue, d.name(r.verdict), r.out, ethernet(inner))
				}
			}
		}
	}
}

// Go and C must agree on the hash: Lookup says where the program sends.
func TestHashAgrees(t *testing.T) {
	d := oneBox(t)
	table := edge.Table{Source4: addr(node4), Source6: addr(node6), Seed: testSeed}
	for i, vip := range []string{vip4 + ":7", "[" + vip6 + "]:7"} {
		svc := edge.TableService{ID: edge.ServiceID(fmt.Sprint("s", i)), VIP: addrPort(vip), Protocol: edge.UDP, Encap: edge.EncapGUE, Affinity: edge.AffinityClientIPPortProto}
		for b := range 20 {
			a := addr(fmt.Sprintf("10.0.0.%d", 100+b))
			svc.Backends = append(svc.Backends, edge.TableBackend{ID: edge.BackendID(fmt.Sprint("b", b)), Addr: a, Weight: 1 + b})
		}
		table.Services = append(table.Services, svc)
	}
	for b := range 20 {
		addNeighbour(t, "up0", fmt.Sprintf("10.0.0.%d", 100+b), nearMAC)
	}
	apply(t, d.Forwarder, table)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		src := netip.AddrFrom4([4]byte{100, byte(rnd.Uint32()), byte(rnd.Uint32()), 1})
		if i%2 == 1 {
			a := addr(client6).As16()
			be.PutUint32(a[10:], rnd.Uint32())
			src = netip.AddrFrom16(a)
		}
		p := packet{src: netip.AddrPortFrom(src, uint16(rnd.Uint32())), dst: table.Services[i%2].VIP, proto: 17, ttl: 9}
		want, err := d.Lookup(edge.Flow{Src: p.src, Dst: p.dst, Protocol: edge.UDP}, nil)
		check(t, err)
		if want.By != "ring" || want.Action != "tx" || want.Reason != "backend" {
			t.Fatalf("lookup of %v: %+v", p, want)
		}
		o := openTunnel(t, d.run(t, p.frame()).out)
		if got := fmt.Sprint("b", int(o.dst.As4()[3])-100); got != string(want.Backend) {
			t.Fatalf("%v went to %s, lookup says %s", p, got, want.Backend)
		}
		key := model.Tuple{V6: i%2 == 1, Src: p.src.Addr().As16(), Dst: p.dst.Addr().As16(), SPort: p.src.Port(), DPort: p.dst.Port(), Proto: 17}
		if port := 0xc000 | uint16(model.Hash(seedWords(testSeed), key)>>32&0x3fff); o.sport != port {
			t.Fatalf("source port %#x, want %#x", o.sport, port)
		}
		if again, err := d.Lookup(edge.Flow{Src: p.src, Dst: p.dst, Protocol: edge.UDP}, nil); err != nil || again.By != "half" || again.Backend != want.Backend {
			t.Fatalf("after the packet: %+v, %v", again, err)
		}
	}
}
