package xdp

import (
	"net/netip"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/flows"
)

// clientAt is the i-th source of from.
func clientAt(vip string, i int) netip.AddrPort {
	f := from(udpTo(vip), i)
	if addrPort(vip).Addr().Is6() {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(f[src6At:])), be.Uint16(f[ports6At:]))
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(f[src4At:])), be.Uint16(f[ports4At:]))
}

// packetOf is a packet of the flow of client i, TCP that is under way.
func packetOf(vip string, i int, proto uint8) packet {
	return packet{src: clientAt(vip, i), dst: addrPort(vip), proto: proto, flags: flagACK, ttl: 64, payload: 40}
}

// errorTypes are those of ICMP errors in the family of a VIP (RFC 792, RFC 4443).
func errorTypes(vip string) []byte {
	if addrPort(vip).Addr().Is6() {
		return []byte{1, 2, 3, 4}
	}
	return []byte{3, 11, 12}
}

// errorAbout is an ICMP error from a router about an answer to a packet. It
// quotes the IP header and n bytes of what follows.
func errorAbout(p packet, kind byte, n int) []byte {
	vip := p.dst.String()
	router, head := "198.51.100.1:0", ip4Len
	if p.v6() {
		router, head = "[2001:db8:f::1]:0", ip6Len
	}
	return ethernet(icmpPacket(router, vip, kind, answerTo(p, head+n)))
}

// An ICMP error reaches the backend of the flow that it quotes, where the ring
// has moved on and where nothing is remembered; each type, family and protocol,
// with 8 bytes of the transport header, with the ports alone, and with more. It
// changes nothing that is remembered.
func TestErrorReachesItsFlow(t *testing.T) {
	const clients = 40
	d := policyBox(t, 1<<12)
	b := pool(t, 8)
	feed := d.feeder()
	for _, vip := range bothVIPs(0) {
		for _, proto := range []uint8{6, 17, protoESP, protoSCTP} {
			target, tracked := withPort(vip, 80), proto != protoSCTP
			apply(t, d.Forwarder, tableOf(ofAll(vip, b[:4]...)))
			d.forgetFlows()
			before := make([]int, clients)
			for i := range clients / 2 { // of the others nothing is remembered
				for range 1 + i%2 {
					before[i] = feed.to(t, packetOf(target, i, proto).frame())
				}
			}
			apply(t, d.Forwarder, tableOf(ofAll(vip, b...)))
			d.leave(t, 5<<tickShift)
			old := stats(t, d.Forwarder).Services[0]
			ring, moved, sent := byTheRing(t, b), 0, 0
			for i := range clients {
				p := packetOf(target, i, proto)
				want := ring(p.frame(), 5)
				if i < clients/2 && tracked {
					if want != nameOfNumber(before[i]) {
						moved++
					}
					want = nameOfNumber(before[i])
				}
				for _, kind := range errorTypes(vip) {
					for _, n := range []int{4, 8, 40} {
						sent++
						if got := d.outcome(t, errorAbout(p, kind, n)); got != string(want) {
							t.Fatalf("%s protocol %d: error of type %d with %d bytes about flow %d: %s, want %s", vip, proto, kind, n, i, got, want)
						}
					}
				}
			}
			if tracked && moved == 0 {
				t.Errorf("%s protocol %d: the new ring moves nobody", vip, proto)
			}
			now := stats(t, d.Forwarder).Services[0]
			if now.New != old.New || now.Established != old.Established || now.By["icmp_error"]-old.By["icmp_error"] != uint64(sent) {
				t.Errorf("%s protocol %d: %d errors were counted as %+v, before %+v", vip, proto, sent, now, old)
			}
			d.remembered(t, func(e *flows.Entry, now flows.Tick) {
				if left := int32(e.Until - now); left > 5 {
					t.Errorf("%s protocol %d: an error renews a flow: %d ticks are left", vip, proto, left)
				}
			})
		}
	}
	balanced(t, d.Forwarder)
}

// An error about a fragment is of the flow of the fragments, which has no ports.
func TestErrorAboutFragment(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 8)
	for _, vip := range bothVIPs(53) { // a service of a port, which a fragment does not name
		apply(t, d.Forwarder, tableOf(service("a", vip, edge.UDP, b...)))
		for i := range 40 {
			p := packetOf(vip, i, 17)
			fragments := from(firstFragment(vip, 17), i)
			want := d.outcome(t, fragments)
			if want[0] != 'b' {
				t.Fatalf("%s: a fragment: %s", vip, want)
			}
			quote := answerTo(p, len(p.ip())-20)
			if p.v6() {
				p.extType, p.ext = 44, []byte{17, 0, 1, 0x40, 0, 0, 0, 9} // a later one
				quote = answerTo(p, ip6Len+8)
			} else {
				be.PutUint16(quote[6:], 40)
			}
			router := map[bool]string{false: "198.51.100.1:0", true: "[2001:db8:f::1]:0"}[p.v6()]
			if got := d.outcome(t, ethernet(icmpPacket(router, vip, errorTypes(vip)[0], quote))); got != want {
				t.Errorf("%s: flow %d: the error went to %s, the fragments to %s", vip, i, got, want)
			}
		}
	}
}

// A flow that stays on a draining backend gets its errors there.
func TestErrorFollowsDraining(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 2)
	for _, vip := range bothVIPs(80) {
		apply(t, d.Forwarder, tableOf(service("a", vip, edge.TCP, b[0])))
		for i := range 20 {
			for range 1 + i%2 {
				d.run(t, packetOf(vip, i, 6).frame())
			}
		}
		drains := b[0]
		drains.Weight, drains.KeepTCP = 0, true
		apply(t, d.Forwarder, tableOf(service("a", vip, edge.TCP, drains, b[1])))
		for i := range 20 {
			if got := d.outcome(t, errorAbout(packetOf(vip, i, 6), errorTypes(vip)[1], 8)); got != "b0" {
				t.Errorf("%s: error about flow %d: %s", vip, i, got)
			}
			if got := d.outcome(t, errorAbout(packetOf(vip, 100+i, 6), errorTypes(vip)[1], 8)); got != "b1" {
				t.Errorf("%s: error about unknown flow %d: %s", vip, i, got)
			}
		}
	}
}
