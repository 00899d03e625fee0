package xdp

import (
	"testing"

	"github.com/cilium/ebpf"
)

// BenchmarkProgram measures whole calls: subtract floor, a packet that is not
// IP, to get the time in the program. Each run gets a fresh packet: a program
// that encapsulates must not be fed its own output, so Repeat is 1.
func BenchmarkProgram(b *testing.B) {
	d := oneBox(b)
	client, vip := family(false)
	client6, vip6 := family(true)
	syn := func(client, vip string) []byte {
		p := tcpPacket(client, vip)
		p.flags = flagSYN
		return p.frame()
	}
	tcp := tcpPacket(client, vip+portRemote)
	for _, c := range []struct {
		name  string
		frame []byte
	}{
		{"floor", with(tcp.frame(), 12, 0x08, 0x06)},
		{"pass_nonvip", tcpPacket(client, client).frame()},
		{"v4_tcp_hit", tcp.frame()},
		{"v6_tcp_hit", tcpPacket(client6, vip6+portRemote).frame()},
		{"v4_tcp_miss", syn(client, vip+portRemote)},
		{"v6_tcp_miss", syn(client6, vip6+portRemote)},
		{"v4_udp_hit", udpPacket(client, vip+portRemote).frame()},
		{"v4_decap", wrap(addr(trust4), addr(node4), true, tcp.ip())},
	} {
		b.Run(c.name, func(b *testing.B) { d.measure(b, c.frame) })
	}
}

func (d device) measure(b *testing.B, frame []byte) {
	in(b, d.ns, func() {
		o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Repeat: 1,
			Context: md{DataEnd: uint32(len(frame)), Ingress: uint32(d.ingress)}}
		_, err := d.program().Run(o)
		check(b, err)
		for b.Loop() {
			o.DataOut = o.DataOut[:cap(o.DataOut)]
			if _, err := d.program().Run(o); err != nil {
				b.Fatal(err)
			}
		}
	})
}
