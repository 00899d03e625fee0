package xdp

import (
	"bytes"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
)

// R38: an IPv6 address that has the bytes of an IPv4 VIP in it is not that VIP.
func TestAliasesOfVIP(t *testing.T) {
	const vip = "10.200.1.1" // 0ac8:0101
	d := policyBox(t, 1<<12)
	b := pool(t, 1)
	apply(t, d.Forwarder, tableOf(service("a", vip+":80", edge.TCP, b...), ofAll("192.0.2.2:0", b...)))
	if got := d.outcome(t, tcpPacket(client4+":1", vip+":80").frame()); got != "b0" {
		t.Errorf("the VIP itself: %s", got)
	}
	for _, alias := range []string{
		"ac8:101::", "::ac8:101", "::ffff:ac8:101", "::ffff:0:ac8:101", "64:ff9b::ac8:101", "64:ff9b:1::ac8:101",
		"2002:ac8:101::", "2002:ac8:101::1", "fe80::ac8:101", "2001:db8::ac8:101", "ac8:101::ffff:0:0", "ac8:101::1",
		"ac8:101:ac8:101:ac8:101:ac8:101", "::ac8:101:0:0", "0:0:ac8:101::", "ffff::ac8:101",
	} {
		for _, proto := range []uint8{6, 17, 58, protoESP} {
			p := packet{src: addrPort("[" + client6 + "]:1"), dst: netip.AddrPortFrom(addr(alias), 80), proto: proto, flags: flagSYN, payload: 8, ttl: 64}
			f := p.frame()
			if r := d.run(t, f); r.verdict != edgeVerdictPASS_NOT_VIP || !bytes.Equal(r.out, f) {
				t.Errorf("protocol %d to %s: %s, untouched: %t", proto, alias, d.name(r.verdict), bytes.Equal(r.out, f))
			}
		}
	}
}

const other4, other6 = "192.0.2.250", "2001:db8::250" // no VIPs

// othersCases are frames that are not for a VIP, with all that is odd about them.
func othersCases() []packetCase {
	const pass = edgeVerdictPASS_NOT_VIP
	base := func(f func(p *packet)) []byte {
		p := tcpPacket(client4+":1", other4+":80")
		f(&p)
		return p.frame()
	}
	plain, udp := base(func(*packet) {}), udpPacket(client4+":1", other4+":53").frame()
	return []packetCase{
		{"tcp", plain, pass}, {"udp", udp, pass},
		{"echo request", ethernet(icmpPacket(client4+":0", other4+":0", 8, make([]byte, 56))), pass},
		{"error", ethernet(icmpPacket(client4+":0", other4+":0", 3, answerTo(tcpPacket(client4+":1", vip4+":80"), ip4Len+8))), pass},
		{"esp", protoTo(other4+":0", protoESP), pass},
		{"options", base(func(p *packet) { p.options = []byte{7, 7, 4, 0, 0, 0, 0, 0} }), pass},
		{"most options", base(func(p *packet) { p.options = bytes.Repeat([]byte{1}, 40) }), pass},
		{"source route to a vip", base(func(p *packet) { p.options = []byte{131, 7, 4, 192, 0, 2, 1, 0} }), pass},
		{"first fragment", with(plain, ethLen+6, 0x20, 0), pass},
		{"later fragment", with(udp, ethLen+6, 0x00, 0xb9), pass},
		{"last hop", base(func(p *packet) { p.ttl = 1 }), pass}, {"no hop", base(func(p *packet) { p.ttl = 0 }), pass},
		{"from itself", tcpPacket(other4+":1", other4+":1").frame(), pass}, {"from a vip", tcpPacket(vip4+":80", other4+":1").frame(), pass},
		{"from loopback", tcpPacket("127.0.0.1:1", other4+":1").frame(), pass},
		{"from a blocked source", tcpPacket(blocked4+":1", other4+":1").frame(), pass},
		{"version 5", with(plain, ethLen, 0x55), pass}, {"version 6", with(plain, ethLen, 0x65), pass},
		{"ihl 4", with(plain, ethLen, 0x44), pass}, {"ihl behind the frame", with(plain, ethLen, 0x4f)[:ethLen+24], pass},
		{"length 0", with(plain, ethLen+2, 0, 0), pass}, {"length in the header", with(plain, ethLen+2, 0, 19), pass},
		{"length behind the frame", with(plain, ethLen+2, 0xff, 0xff), pass},
		{"wrong checksum", with(plain, ethLen+10, 1, 2), pass},
		{"tcp data offset 0", with(plain, ethLen+ip4Len+12, 0), pass}, {"udp length 0", with(udp, ethLen+ip4Len+4, 0, 0), pass},
		{"udp length behind the end", with(udp, ethLen+ip4Len+4, 0xff, 0xff), pass},
		{"header only", plain[:ethLen+ip4Len], pass}, {"header cut off", plain[:ethLen+ip4Len-1], edgeVerdictPASS_TRUNCATED_IP},
		{"padded", append(slices.Clone(plain), 1, 2, 3, 4, 5, 6, 7), pass},
		{"full", base(func(p *packet) { p.payload = 1460 }), pass},
	}
}

func othersCases6() []packetCase {
	const pass = edgeVerdictPASS_NOT_VIP
	chain := func(first uint8, headers ...[]byte) []byte {
		p := udpPacket("["+client6+"]:1", "["+other6+"]:53")
		p.extType, p.ext = first, slices.Concat(headers...)
		return p.frame()
	}
	ext := func(next uint8) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }
	fragment := func(next, offset byte) []byte { return []byte{next, 0, 0, offset, 1, 2, 3, 4} }
	toVIP := slices.Concat([]byte{17, 2, 0, 1, 0, 0, 0, 0}, addr(vip6).AsSlice())
	plain := chain(0)
	return []packetCase{
		{"udp", plain, pass}, {"tcp", tcpPacket("["+client6+"]:1", "["+other6+"]:80").frame(), pass},
		{"echo request", ethernet(icmpPacket("["+client6+"]:0", "["+other6+"]:0", 128, make([]byte, 56))), pass},
		{"neighbour solicitation", ethernet(icmpPacket("["+client6+"]:0", "["+other6+"]:0", 135, make([]byte, 24))), pass},
		{"esp", protoTo("["+other6+"]:0", protoESP), pass},
		{"hop by hop", chain(0, ext(17)), pass}, {"routing to a vip", chain(43, toVIP), pass},
		{"a chain", chain(0, ext(60), ext(43), ext(44), fragment(51, 0), []byte{60, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, ext(17)), pass},
		{"nine headers", chain(60, slices.Repeat(ext(60), 8), ext(17)), pass},
		{"header behind the end", chain(60, []byte{17, 255, 0, 0, 0, 0, 0, 0}), pass},
		{"first fragment", chain(44, fragment(17, 1)), pass}, {"later fragment", chain(44, fragment(17, 8)), pass},
		{"last fragment", chain(44, fragment(6, 0x10)), pass}, {"whole fragment", chain(44, fragment(17, 0)), pass},
		{"two fragment headers", chain(44, fragment(44, 1), fragment(17, 9)), pass},
		{"no next header", with(plain, ethLen+6, 59), pass},
		{"jumbo", with(chain(0, []byte{17, 0, 0xc2, 4, 0, 1, 0, 0}), ethLen+4, 0, 0), pass},
		{"version 4", with(plain, ethLen, 0x45), pass}, {"length 0", with(plain, ethLen+4, 0, 0), pass},
		{"length behind the frame", with(plain, ethLen+4, 0xff, 0xff), pass},
		{"last hop", with(plain, ethLen+7, 1), pass}, {"from a vip", udpPacket("["+vip6+"]:53", "["+other6+"]:1").frame(), pass},
		{"from a blocked source", udpPacket("["+blocked6+"]:1", "["+other6+"]:53").frame(), pass},
		{"from itself", udpPacket("["+other6+"]:1", "["+other6+"]:1").frame(), pass},
		{"header only", plain[:ethLen+ip6Len], pass}, {"header cut off", plain[:ethLen+ip6Len-1], edgeVerdictPASS_TRUNCATED_IP},
		{"padded", append(slices.Clone(plain), 1, 2, 3), pass},
	}
}

// R30: what is not for a VIP passes as it came, to the byte, whatever is in it,
// with no, one, two or three VLAN tags, while packets for VIPs are forwarded.
func TestOthersPassUntouched(t *testing.T) {
	d := oneBox(t)
	var stop atomic.Bool
	var g errgroup.Group
	forwarded := 0
	busy := d.feeder()
	g.Go(func() error {
		syn, known := tcpTo(bothVIPs(85)[0], flagSYN), tcpTo(bothVIPs(85)[1], flagACK) // of a local backend
		for i := 0; i < 50 || !stop.Load(); i++ {                                      // some also where this one is scheduled late
			for _, f := range [][]byte{from(syn, i), from(known, i%100)} {
				busy.meta.DataEnd = uint32(len(f))
				// Not with an interface: this thread is in another namespace.
				if _, err := busy.prog.Run(&ebpf.RunOptions{Data: f, Repeat: 1}); err != nil {
					return err
				}
				forwarded++
			}
		}
		return nil
	})
	for _, c := range slices.Concat(othersCases(), othersCases6()) {
		one := tagged(c.frame, 0x8100, 0x2007)
		two := tagged(one, 0x88a8, 9)
		for tags, f := range [][]byte{c.frame, one, two, tagged(two, 0x8100, 0xffff)} {
			want := c.want
			if tags == 3 {
				want = edgeVerdictPASS_VLAN
			}
			d.passes(t, c.name, tags, f, want)
		}
	}
	stop.Store(true)
	check(t, g.Wait())
	st := stats(t, d.Forwarder)
	local := uint64(0)
	for _, v := range st.Verdicts {
		if v.Action == "pass" && v.Reason == "local" {
			local = v.Count
		}
	}
	if local != uint64(forwarded) || forwarded < 100 {
		t.Errorf("%d packets to a VIP were fed in, %d of them forwarded", forwarded, local)
	}
	balanced(t, d.Forwarder)
}

// passes feeds in a frame, among others that leave with other verdicts.
func (d device) passes(t *testing.T, name string, tags int, f []byte, want edgeVerdict) {
	t.Helper()
	before, err := d.readVerdictCounts()
	check(t, err)
	o := &ebpf.RunOptions{Data: f, DataOut: make([]byte, len(f)+256), Repeat: 1, Context: md{DataEnd: uint32(len(f)), Ingress: uint32(d.ingress)}}
	xdp, err := d.program().Run(o)
	check(t, err)
	after, err := d.readVerdictCounts()
	check(t, err)
	if xdp != xdpCode[0] || after.Left[want] != before.Left[want]+1 {
		t.Errorf("%s with %d tags: XDP code %d, and not one more left by %s", name, tags, xdp, d.name(want))
	}
	if !bytes.Equal(o.DataOut, f) {
		t.Errorf("%s with %d tags: is not what it was:\n% x\n% x", name, tags, f, o.DataOut)
	}
}
