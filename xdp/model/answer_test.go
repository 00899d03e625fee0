package model

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge/xdp/model/frame"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// readICMP reads an ICMP packet back, and checks its checksum.
func readICMP(t *testing.T, ip decoded) *icmp.Message {
	t.Helper()
	proto, sum := 1, frame.Sum(ip.payload)
	if ip.src.Is6() {
		proto = 58
		pseudo := slices.Concat(ip.src.AsSlice(), ip.dst.AsSlice(), []byte{0, 58}, binary.BigEndian.AppendUint16(nil, uint16(len(ip.payload))))
		sum = frame.Sum(append(pseudo, ip.payload...))
	}
	if ip.proto != proto || sum != 0xffff {
		t.Errorf("protocol %d, sum %#x: % x", ip.proto, sum, ip.all)
	}
	m, err := icmp.ParseMessage(proto, ip.payload)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestEcho(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		for _, n := range []int{0, 1, 56, 57, 1472} {
			p := f.ping()
			p.Payload, p.TTL, p.TOS, p.Code = bytes.Repeat([]byte{0xa5}, n), 1, 0x2e, uint8(n%3)
			link := inLink
			link.Tags = []frame.Tag{{Type: 0x8100, TCI: 9}}
			o := newLab().Decide(frame.Pad(link.Frame(p.IP()), 80), long)
			want(t, "echo", o, TXEcho)
			back, ip := open(t, o.Out)
			if back.Dst != routerMAC || back.Src != ourMAC || !slices.Equal(back.Tags, link.Tags) || o.Egress != up0 {
				t.Errorf("leaves by %d with %+v", o.Egress, back)
			}
			if ip.src != f.vip || ip.dst != f.client || ip.ttl != 64 || ip.tos != 0x2e || !ip.headerSumIsGood || ip.length != len(ip.all) {
				t.Errorf("%d bytes: %+v", n, ip)
			}
			m := readICMP(t, ip)
			reply, ok := m.Body.(*icmp.Echo)
			if m.Type != map[bool]icmp.Type{false: ipv4.ICMPTypeEchoReply, true: ipv6.ICMPTypeEchoReply}[f.v6] || !ok ||
				reply.ID != 0x0102 || reply.Seq != 0x0304 || !bytes.Equal(reply.Data, p.Payload) || m.Code != int(p.Code) {
				t.Errorf("%d bytes: %+v", n, m)
			}
		}
	})
}

// A request with a wrong checksum gets a reply with one that is off by as much:
// it is not made good.
func TestEchoChecksum(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		wire := inLink.Frame(f.ping().IP())
		at := len(wire) - 16 - 8
		l := newLab()
		for sum := range 0x10000 {
			binary.BigEndian.PutUint16(wire[at+2:], uint16(sum))
			out := l.Decide(wire, long).Out
			if !same(frame.Sum(out[at:]), frame.Sum(wire[at:])) {
				t.Fatalf("checksum %#x: % x\nfrom % x", sum, out[at:], wire[at:])
			}
		}
	})
}

// tooBig sends a packet of so many bytes to a route that takes mtu.
func tooBig(f family, size, mtu int) (Outcome, []byte) {
	l, p := newLab(), f.tcp(portGUE, frame.ACK)
	l.mtu = mtu
	p.Payload = nil
	p.Payload = bytes.Repeat([]byte{0x5a}, size-len(p.IP()))
	p.TOS, p.TTL = 0xff, 9
	link := inLink
	link.Tags = []frame.Tag{{Type: 0x8100, TCI: 9}}
	return l.Decide(frame.Pad(link.Frame(p.IP()), 900), long), p.IP()
}

func TestTooBig(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		overhead, headers, most, least := 28, 28, 548, 0
		if f.v6 {
			overhead, headers, most, least = 48, 48, 1232, 1280
		}
		for _, c := range []struct{ size, mtu int }{
			{1500, 1500}, {1473, 1500}, {9000, 1500}, {1300, 1280}, {1280, 1300}, {1279, 1300}, {1253, 1280}, {600, 600}, {576, 590}, {575, 590}, {570, 590}, {200, 150}, {65000, 9000},
		} {
			o, ip := tooBig(f, c.size, c.mtu)
			if c.size < most+headers { // shorter than the answer would be
				want(t, "too big", o, DropTooBig)
				continue
			}
			want(t, "too big", o, TXTooBig)
			back, answer := open(t, o.Out)
			if back.Dst != routerMAC || back.Src != ourMAC || len(back.Tags) != 1 || o.Egress != up0 {
				t.Errorf("%+v: leaves by %d with %+v", c, o.Egress, back)
			}
			if answer.src != f.vip || answer.dst != f.client || answer.ttl != 64 || answer.tos != 0 || answer.label != 0 || answer.id != 0 ||
				answer.offset != 0 || answer.dontFragment != f.v6 || !answer.headerSumIsGood || answer.length != len(answer.all) {
				t.Errorf("%+v: %+v", c, answer)
			}
			told, quoted := readTooBig(t, answer)
			if want := max(c.mtu-overhead, least); told != want {
				t.Errorf("%+v: told %d, want %d", c, told, want)
			}
			if !bytes.Equal(quoted, ip[:most]) {
				t.Errorf("%+v: quotes %d bytes, want %d, of % x", c, len(quoted), most, ip[:40])
			}
		}
	})
}

// readTooBig returns what the sender is told, and what is quoted.
func readTooBig(t *testing.T, ip decoded) (mtu int, quote []byte) {
	t.Helper()
	m := readICMP(t, ip)
	switch body := m.Body.(type) {
	case *icmp.PacketTooBig:
		return body.MTU, body.Data
	case *icmp.DstUnreach:
		if m.Code != 4 {
			t.Errorf("code %d", m.Code)
		}
		return int(binary.BigEndian.Uint32(ip.payload[4:])), body.Data
	}
	t.Fatalf("%+v", m)
	return 0, nil
}

// Of some packets nobody may be told, and nobody is told too often.
func TestTooBigSilence(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		l := newLab()
		udp := f.udp(portGUE, make([]byte, 6000))
		pieces := frame.Fragments(udp.IP(), 1, 1480)
		want(t, "the first fragment", l.Decide(eth(pieces[0]), long), TXTooBig)
		want(t, "a later one", l.Decide(eth(pieces[1]), long), DropTooBig)
		want(t, "the last one", l.Decide(eth(pieces[len(pieces)-1]), long), TXBackend)
		huge := f.tcp(portGUE, frame.ACK)
		huge.Payload = make([]byte, 65535-60)
		want(t, "more than an IP packet can be", l.send(huge), DropTooBig)
		without := f.tcp(portGUE, frame.ACK)
		without.DontFragment, without.Payload = false, make([]byte, 1440)
		want(t, "from one who lets it be fragmented", l.send(without), TXTooBig)

		l = newLab()
		l.TooBig = Limit{200 * time.Millisecond, 800 * time.Millisecond}
		var got []Verdict
		for i := range 8 {
			got = append(got, l.Decide(eth(without.IP()), long+time.Duration(i)).Verdict)
		}
		if !slices.Equal(got, append(slices.Repeat([]Verdict{TXTooBig}, 5), DropTooBigLimited, DropTooBigLimited, DropTooBigLimited)) {
			t.Errorf("with 5 a second: %v", got)
		}
		want(t, "just before the next one", l.Decide(eth(without.IP()), long+200*time.Millisecond-1), DropTooBigLimited)
		want(t, "the next one", l.Decide(eth(without.IP()), long+200*time.Millisecond), TXTooBig)
		want(t, "one more", l.Decide(eth(without.IP()), long+200*time.Millisecond), DropTooBigLimited)
	})
}
