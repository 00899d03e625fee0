package model

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/model/frame"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// decoded is an IP packet as golang.org/x/net reads it.
type decoded struct {
	all, payload    []byte
	length, tos     int // as the header says
	ttl, proto      int
	label           int // of IPv6
	id, offset      int // of IPv4
	dontFragment    bool
	src, dst        netip.Addr
	headerSumIsGood bool
}

func protocol(n uint8) edge.Protocol { return edge.Protocol(n) }

// open reads a frame back.
func open(t *testing.T, f []byte) (frame.Link, decoded) {
	t.Helper()
	l := frame.Link{Dst: [6]byte(f[:6]), Src: [6]byte(f[6:12])}
	kind, at := binary.BigEndian.Uint16(f[12:]), 14
	for ; kind == 0x8100 || kind == 0x88a8; at += 4 {
		l.Tags = append(l.Tags, frame.Tag{Type: kind, TCI: binary.BigEndian.Uint16(f[at:])})
		kind = binary.BigEndian.Uint16(f[at+2:])
	}
	ip := decode(t, f[at:])
	if want := map[bool]uint16{false: 0x0800, true: 0x86dd}[ip.src.Is6()]; kind != want {
		t.Fatalf("ethertype %#x of % x", kind, f)
	}
	return l, ip
}

func decode(t *testing.T, b []byte) decoded {
	t.Helper()
	if b[0]>>4 == 4 {
		h, err := ipv4.ParseHeader(b)
		if err != nil {
			t.Fatalf("%v: % x", err, b)
		}
		return decoded{
			all: b, payload: b[h.Len:], length: h.TotalLen, tos: h.TOS, ttl: h.TTL, proto: h.Protocol,
			id: h.ID, offset: h.FragOff, dontFragment: h.Flags&ipv4.DontFragment != 0,
			src: ipOf(h.Src), dst: ipOf(h.Dst), headerSumIsGood: frame.Sum(b[:h.Len]) == 0xffff,
		}
	}
	h, err := ipv6.ParseHeader(b)
	if err != nil || h.Version != 6 {
		t.Fatalf("%v: % x", err, b)
	}
	return decoded{
		all: b, payload: b[40:], length: 40 + h.PayloadLen, tos: h.TrafficClass, ttl: h.HopLimit, proto: h.NextHeader,
		label: h.FlowLabel, dontFragment: true, src: netip.AddrFrom16([16]byte(h.Src)), dst: netip.AddrFrom16([16]byte(h.Dst)),
		headerSumIsGood: true,
	}
}

func ipOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip.To4())
	return a
}
