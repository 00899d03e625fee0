package xdp

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// answer is an ICMP packet to a client, taken apart by the standard library's
// parser; all checksums were valid.
type answer struct {
	src, dst net.IP
	ttl      int
	msg      *icmp.Message
	raw      []byte // of the ICMP message
}

// readAnswer reads a frame that answers another one, which it went back to.
func readAnswer(t testing.TB, f, to []byte) answer {
	t.Helper()
	if !bytes.Equal(f[:6], to[6:12]) || !bytes.Equal(f[6:12], to[:6]) || !bytes.Equal(f[12:14], to[12:14]) {
		t.Fatalf("the Ethernet header % x answers % x", f[:14], to[:14])
	}
	ip := f[ethLen:]
	if be.Uint16(f[12:]) == 0x0800 {
		h, err := ipv4.ParseHeader(ip)
		check(t, err)
		if h.Len != ip4Len || sum(0, ip[:ip4Len]) != 0xffff || h.TotalLen != len(ip) || h.FragOff != 0 || sum(0, ip[ip4Len:]) != 0xffff {
			t.Fatalf("answer %v, checksum %#x, of %d bytes", h, sum(0, ip[ip4Len:]), len(ip))
		}
		msg, err := icmp.ParseMessage(h.Protocol, ip[ip4Len:])
		check(t, err)
		return answer{h.Src, h.Dst, h.TTL, msg, ip[ip4Len:]}
	}
	h, err := ipv6.ParseHeader(ip)
	check(t, err)
	pseudo := icmp.IPv6PseudoHeader(h.Src, h.Dst)
	be.PutUint32(pseudo[32:], uint32(h.PayloadLen))
	if h.PayloadLen != len(ip)-ip6Len || sum(sum(0, pseudo), ip[ip6Len:]) != 0xffff {
		t.Fatalf("answer %v of %d bytes, checksum %#x", h, len(ip), sum(sum(0, pseudo), ip[ip6Len:]))
	}
	msg, err := icmp.ParseMessage(h.NextHeader, ip[ip6Len:])
	check(t, err)
	return answer{h.Src, h.Dst, h.HopLimit, msg, ip[ip6Len:]}
}

// told is the MTU that an answer names, and what it quotes.
func (a answer) told(t testing.TB) (mtu int, quote []byte) {
	t.Helper()
	switch body := a.msg.Body.(type) {
	case *icmp.PacketTooBig:
		if a.msg.Type != ipv6.ICMPTypePacketTooBig || a.msg.Code != 0 {
			t.Fatalf("type %v code %d", a.msg.Type, a.msg.Code)
		}
		return body.MTU, body.Data
	case *icmp.DstUnreach:
		if a.msg.Type != ipv4.ICMPTypeDestinationUnreachable || a.msg.Code != 4 || be.Uint16(a.raw[4:]) != 0 {
			t.Fatalf("type %v code %d", a.msg.Type, a.msg.Code)
		}
		return int(be.Uint16(a.raw[6:])), body.Data
	}
	t.Fatalf("an answer of type %v", a.msg.Type)
	return 0, nil
}

// outerHeaders are the services of oneBox by how much they put around a packet.
func outerHeaders(v6 bool) map[string]int {
	if v6 {
		return map[string]int{portRemote: 48, portIPIP: 40, portCross: 28, portCrossIPIP: 20}
	}
	return map[string]int{portRemote: 28, portIPIP: 20, portCross: 48, portCrossIPIP: 40}
}

// throughMTU gives the routes to the backends of oneBox an MTU. Of an IPv6 route
// the kernel's lookup for XDP minds it only if it is locked (Linux 6.18).
func throughMTU(t testing.TB, mtu int) {
	t.Helper()
	dev, err := netlink.LinkByName("up0")
	check(t, err)
	for _, a := range []string{near4, near6} {
		check(t, netlink.RouteReplace(&netlink.Route{Dst: host(a), LinkIndex: dev.Attrs().Index, MTU: mtu, MTULock: true}))
	}
}

// What does not fit with its outer headers is answered: with the MTU that would,
// for each outer header, route and family; what just fits is sent.
func TestTooBig(t *testing.T) {
	d := oneBox(t)
	d.tellAlways(t)
	for _, mtu := range []int{1500, 1400, 1300} {
		throughMTU(t, mtu)
		for _, v6 := range []bool{false, true} {
			client, vip := family(v6)
			head, least, quoted := ip4Len, 0, 548
			if v6 {
				head, least, quoted = ip6Len, 1280, 1232
			}
			for port, overhead := range outerHeaders(v6) {
				for _, size := range []int{mtu - overhead, mtu - overhead + 1, 1500} {
					for _, tos := range []byte{0, 0xb8} {
						p := udpPacket(client, vip+port)
						if port != portRemote {
							p = tcpPacket(client, vip+port)
						}
						p.tos, p.payload = tos, size-head-len(p.transport())+p.payload
						what := fmt.Sprintf("MTU %d, ipv6 %v, port %s, %d bytes", mtu, v6, port, size)
						f := p.frame()
						r := d.run(t, f)
						if size <= mtu-overhead {
							if r.verdict != edgeVerdictTX_BACKEND || len(r.out) != ethLen+mtu {
								t.Errorf("%s: %s, %d bytes", what, d.name(r.verdict), len(r.out))
							}
							continue
						}
						// None is longer than what it is about; and it would say nothing
						// new to one who keeps to the least MTU of IPv6.
						want := edgeVerdictTX_TOO_BIG
						if v6 && size < 1280 {
							want = edgeVerdictDROP_TOO_BIG
						}
						if r.verdict != want {
							t.Fatalf("%s: %s", what, d.name(r.verdict))
						}
						if want == edgeVerdictDROP_TOO_BIG {
							continue
						}
						a := readAnswer(t, r.out, f)
						told, quote := a.told(t)
						if told != max(mtu-overhead, least) || !bytes.Equal(quote, f[ethLen:ethLen+quoted]) {
							t.Errorf("%s: told %d, quoted % x", what, told, quote)
						}
						if !v6 && be.Uint16(r.out[ethLen+6:]) != 0 {
							t.Errorf("%s: the answer may not be fragmented", what)
						}
						if a.ttl != 64 || !a.src.Equal(p.dst.Addr().AsSlice()) || !a.dst.Equal(p.src.Addr().AsSlice()) {
							t.Errorf("%s: answer from %s to %s, ttl %d", what, a.src, a.dst, a.ttl)
						}
					}
				}
			}
		}
	}
	balanced(t, d.Forwarder)
}

// The answer goes back with the tags that the packet had.
func TestTooBigInVLAN(t *testing.T) {
	d := oneBox(t)
	d.tellAlways(t)
	for _, v6 := range []bool{false, true} {
		client, vip := family(v6)
		p := tcpPacket(client, vip+portRemote)
		p.payload = 1440
		f := p.frame()
		r := d.run(t, tagged(tagged(f, 0x8100, 7), 0x88a8, 8))
		if r.verdict != edgeVerdictTX_TOO_BIG {
			t.Fatal(d.name(r.verdict))
		}
		if got := r.out[12:20]; !bytes.Equal(got, []byte{0x88, 0xa8, 0, 8, 0x81, 0, 0, 7}) {
			t.Errorf("tags % x", got)
		}
		readAnswer(t, append(bytes.Clone(r.out[:12]), r.out[20:]...), f).told(t)
	}
}

// Not more are told than the rate allows, on each CPU; the rest is dropped and
// counted apart.
func TestTooBigIsLimited(t *testing.T) {
	d := oneBox(t)
	cpus, err := ebpf.PossibleCPU()
	check(t, err)
	var set unix.CPUSet
	set.Set(0)
	check(t, unix.SchedSetaffinity(0, &set)) // this thread is the test's own
	for _, v6 := range []bool{false, true} {
		client, vip := family(v6)
		p := tcpPacket(client, vip+portRemote)
		p.payload = 1440
		check(t, d.coll.Maps[edgeMapTooBigDue].Put(uint32(0), make([]uint64, cpus)))
		const all = 3000
		feed, told, start, f := d.feeder(), 0, time.Now(), p.frame()
		old := stats(t, d.Forwarder)
		for range all {
			if feed.to(t, f) != nowhere { // back to the client: sent, at any rate
				told++
			}
		}
		within(t, "told", told, [2]int{tooBigRate, tooBigBurst}, time.Since(start))
		now := stats(t, d.Forwarder)
		if sent, not := verdictCount(now, "too_big")-verdictCount(old, "too_big"), verdictCount(now, "too_big_limited")-verdictCount(old, "too_big_limited"); sent != uint64(told) || sent+not != all {
			t.Errorf("%d were told, counted %d and %d limited", told, sent, not)
		}
		eventually(t, "more are told", func() bool { return feed.to(t, f) != nowhere })
	}
	balanced(t, d.Forwarder)
}

// An echo request to a VIP is answered as the standard library expects it, on
// every address of a service; to any other address it is the stack's.
func TestEcho(t *testing.T) {
	d := oneBox(t)
	for _, v6 := range []bool{false, true} {
		client, vip := family(v6)
		for _, size := range []int{0, 1, 56, 777, 1400} {
			data := bytes.Repeat([]byte{0xa5, 0xff, 3}, size)[:size]
			request, kind := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 0xfffe, Seq: size, Data: data}}, byte(8)
			reply := icmp.Type(ipv4.ICMPTypeEchoReply)
			if v6 {
				request.Type, reply, kind = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, 128
			}
			f := ethernet(icmpPacket(client, vip+"0", kind, data))
			at := ethLen + ip4Len
			pseudo := []byte(nil)
			if v6 {
				at = ethLen + ip6Len
				pseudo = icmp.IPv6PseudoHeader(addrPort(client).Addr().AsSlice(), addrPort(vip+"0").Addr().AsSlice())
			}
			body, err := request.Marshal(pseudo)
			check(t, err)
			copy(f[at:], body)
			r := d.run(t, append(bytes.Clone(f), make([]byte, 9)...)) // padded
			if r.verdict != edgeVerdictTX_ECHO || len(r.out) != len(f) {
				t.Fatalf("%d bytes: %s, %d bytes", size, d.name(r.verdict), len(r.out))
			}
			a := readAnswer(t, r.out, f)
			got, ok := a.msg.Body.(*icmp.Echo)
			if !ok || a.msg.Type != reply || got.ID != 0xfffe || got.Seq != size || !bytes.Equal(got.Data, data) {
				t.Errorf("%d bytes: answered %+v", size, a.msg)
			}
			if a.ttl != 64 || !a.src.Equal(addrPort(vip+"0").Addr().AsSlice()) || !a.dst.Equal(addrPort(client).Addr().AsSlice()) {
				t.Errorf("%d bytes: from %s to %s, ttl %d", size, a.src, a.dst, a.ttl)
			}
		}
		node := node4 + ":0"
		if v6 {
			node = "[" + node6 + "]:0"
		}
		if got := d.outcome(t, ethernet(icmpPacket(client, node, map[bool]byte{false: 8, true: 128}[v6], nil))); got != "pass not_vip" {
			t.Errorf("echo request to this box: %s", got)
		}
	}
	balanced(t, d.Forwarder)
}
