package xdp

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

// Where the fields of a frame are, without tags, options and extension headers.
const (
	srcAt4, srcAt6     = ethLen + 12, ethLen + 8
	portAt4, portAt6   = ethLen + ip4Len, ethLen + ip6Len
	tcpSumAt, udpSumAt = 16, 6
)

// always returns the same frame.
func always(frame []byte) func(int) []byte { return func(int) []byte { return frame } }

// otherSource returns the frame of a TCP packet with its source changed, by the
// number of the flow: the last 32 bits of the address and the port. Neighbours
// in number are no neighbours in anything else. All checksums stay right.
func otherSource(frame []byte) func(int) []byte {
	v6 := frame[12] == 0x86
	src, port := srcAt4, portAt4
	if v6 {
		src, port = srcAt6+12, portAt6
	}
	return func(i int) []byte {
		f := slices.Clone(frame)
		rnd := rand.NewPCG(uint64(i), 7).Uint64()
		a := be.Uint32(f[src:])&0xff000000 | uint32(i)&0xffffff
		before := slices.Concat(f[src:src+4], f[port:port+2])
		be.PutUint32(f[src:], a)
		be.PutUint16(f[port:], 1024|uint16(rnd))
		after := slices.Concat(f[src:src+4], f[port:port+2])
		adjust(f[port+tcpSumAt:], before, after)
		if !v6 {
			adjust(f[ethLen+10:], before[:4], after[:4])
		}
		return f
	}
}

// adjust makes a checksum right again after bytes that it covers have changed
// (RFC 1624, equation 3).
func adjust(check, before, after []byte) {
	s := ^be.Uint16(check)
	for i := 0; i < len(before); i += 2 {
		s = sum(sum(s, binary.BigEndian.AppendUint16(nil, ^be.Uint16(before[i:]))), after[i:i+2])
	}
	be.PutUint16(check, ^s)
}

// icmpError4 is an ICMP error from a router about the packet that a service has
// sent to a client.
func icmpError4(quoted []byte) []byte {
	p := packet{src: addrPort("203.0.113.77:0"), dst: addrPort(vip4 + ":0"), proto: 1, ttl: 60}
	icmp := slices.Concat([]byte{3, 1, 0, 0, 0, 0, 0, 0}, quoted)
	be.PutUint16(icmp[2:], ^sum(0, icmp))
	return ethernet(ip4Header(p, icmp))
}

// echo4 is a ping.
func echo4(dst string) []byte {
	p := packet{src: addrPort(client4 + ":0"), dst: addrPort(dst + ":0"), proto: 1, ttl: 60}
	icmp := make([]byte, 64)
	icmp[0] = 8
	be.PutUint16(icmp[2:], ^sum(0, icmp))
	return ethernet(ip4Header(p, icmp))
}

// laterFragment4 is a fragment that names no port.
func laterFragment4(dst string) []byte {
	p := tcpPacket(client4+":1000", dst+":80")
	f := ethernet(ip4Header(p, make([]byte, 64)))
	before := slices.Clone(f[ethLen+6 : ethLen+8])
	be.PutUint16(f[ethLen+6:], 0x2000|185)
	adjust(f[ethLen+10:], before, f[ethLen+6:ethLen+8])
	return f
}

// quicShort4 is a QUIC packet with a short header: its connection id begins
// with the server id.
func quicShort4(dst, serverID string) []byte {
	p := udpPacket(client4+":1000", dst)
	f := p.frame()
	payload := f[portAt4+8:]
	before := slices.Clone(payload)
	payload[0] = 0x41
	copy(payload[1:], serverID)
	adjust(f[portAt4+udpSumAt:], before, payload)
	return f
}
