package frame

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// Hosts are what random frames are made of. Lists that are used must hold one
// thing at least: Links, Clients and VIPs of each family that is wanted.
type Hosts struct {
	// Links are the Ethernet headers that frames have.
	Links []Link
	// Clients send to VIPs, and routers answer for them.
	Clients, VIPs []netip.Addr
	// Peers send tunnels to Nodes; without both there are no tunnels.
	Peers, Nodes []netip.Addr
	// Ports are those of the VIPs; ClientPorts how many a client has, at least 1.
	Ports       []uint16
	ClientPorts int
	// Protocols beside TCP, UDP and ICMP; empty: GRE, ESP and SCTP.
	Protocols []uint8
	// Connections are connection ids of QUIC.
	Connections [][]byte
	// MaxPayload is how long payloads may be, in bytes.
	MaxPayload int
}

// Random returns a frame in order: now and then of a kind that nobody takes, but
// with every length and checksum as it must be.
func (h Hosts) Random(rnd *rand.Rand) []byte {
	ip := h.packet(rnd)
	if len(h.Peers) > 0 && len(h.Nodes) > 0 && one(rnd, 6) {
		t := Tunnel(pick(rnd, h.Peers), pick(rnd, h.Nodes), one(rnd, 2), ip)
		if t.Src.Addr().Is6() == t.Dst.Addr().Is6() {
			ip = t.IP()
		}
	}
	f := pick(rnd, h.Links).Frame(ip)
	if one(rnd, 4) {
		f = Pad(f, max(60, len(f)+rnd.IntN(8)))
	}
	return f
}

// packet returns a packet to a VIP, or an error about one from it.
func (h Hosts) packet(rnd *rand.Rand) []byte {
	p := h.transport(rnd)
	if one(rnd, 6) {
		return h.oops(rnd, p)
	}
	ip := p.IP()
	if one(rnd, 8) && len(p.Headers) == 0 {
		all := Fragments(ip, rnd.Uint32(), 8*(1+rnd.IntN(64)))
		return pick(rnd, all)
	}
	return ip
}

// transport returns a packet from a client to a VIP.
func (h Hosts) transport(rnd *rand.Rand) Packet {
	dst := pick(rnd, h.VIPs)
	p := Packet{
		Src:     netip.AddrPortFrom(h.client(rnd, dst.Is6()), uint16(40000+rnd.IntN(max(1, h.ClientPorts)))),
		Dst:     netip.AddrPortFrom(dst, pick(rnd, h.Ports)),
		Payload: noise(rnd, rnd.IntN(h.MaxPayload+1)),
		ID:      uint16(rnd.Uint32()), DontFragment: one(rnd, 2), TOS: uint8(rnd.Uint32()),
	}
	if one(rnd, 8) {
		p.TTL = uint8(1 + rnd.IntN(3))
	}
	switch rnd.IntN(8) {
	case 0, 1, 2:
		p.Proto, p.Flags = TCP, pick(rnd, []byte{SYN, SYN, ACK, ACK, ACK | PSH, FIN | ACK, RST, RST | ACK, SYN | ACK, SYN | RST, 0})
	case 3, 4:
		p.Proto = UDP
	case 5:
		p.Proto, p.Payload = UDP, h.quic(rnd)
	case 6:
		p.Proto, p.Type, p.Code = ICMP, pick(rnd, []uint8{8, 8, 0, 3, 11, 12, 13}), uint8(rnd.IntN(3))
		if dst.Is6() {
			p.Proto, p.Type = ICMPv6, pick(rnd, []uint8{128, 128, 129, 1, 2, 3, 4, 135})
		}
	default:
		p.Proto = pick(rnd, append([]uint8{GRE, ESP, SCTP}, h.Protocols...))
	}
	h.dress(rnd, &p)
	return p
}

// quic returns the payload of a packet of QUIC.
func (h Hosts) quic(rnd *rand.Rand) []byte {
	id := noise(rnd, rnd.IntN(21))
	if len(h.Connections) > 0 && !one(rnd, 4) {
		id = pick(rnd, h.Connections)
	}
	if one(rnd, 4) {
		return LongHeader(id, rnd.IntN(h.MaxPayload+1))
	}
	return ShortHeader(id, rnd.IntN(min(h.MaxPayload, 40)+1))
}

// dress gives a packet options or extension headers, now and then.
func (h Hosts) dress(rnd *rand.Rand, p *Packet) {
	if !one(rnd, 5) {
		return
	}
	if !p.Dst.Addr().Is6() {
		p.Options = slices.Repeat([]byte{1}, 4*(1+rnd.IntN(10)))
		return
	}
	for range rnd.IntN(8) {
		switch kind := pick(rnd, []uint8{HopByHop, Routing, DstOpts, AH, FragmentHeader}); kind {
		case AH:
			p.Headers = append(p.Headers, Authentication())
		case FragmentHeader:
			// A whole datagram most of the time, else the first or a later piece.
			p.Headers = append(p.Headers, Header{FragmentHeader, []byte{0, 0, pick(rnd, []byte{0, 0, 0, 1, 8, 9}), 0, 0, 0, 7}})
		default:
			p.Headers = append(p.Headers, Option(kind))
		}
	}
}

// oops returns an ICMP error about the answer to a packet.
func (h Hosts) oops(rnd *rand.Rand, p Packet) []byte {
	p.Src, p.Dst = p.Dst, p.Src
	p.TTL = 0
	quote := p.IP()
	if one(rnd, 4) && len(p.Headers) == 0 {
		quote = pick(rnd, Fragments(quote, 7, 8*(1+rnd.IntN(16))))
	}
	least := IPv4Len + len(p.Options) + 8
	kind := pick(rnd, []uint8{3, 11, 12})
	if p.Dst.Addr().Is6() {
		least, kind = IPv6Len+8, uint8(1+rnd.IntN(4))
	}
	if len(quote) > least && !one(rnd, 3) {
		quote = quote[:least+rnd.IntN(len(quote)-least)]
	} else {
		quote = quote[:min(len(quote), least)]
	}
	e := Error(h.client(rnd, p.Dst.Addr().Is6()), kind, uint8(rnd.IntN(16)), quote)
	if one(rnd, 10) {
		e.Dst = netip.AddrPortFrom(pick(rnd, h.VIPs), 0)
		if e.Dst.Addr().Is6() != e.Src.Addr().Is6() {
			e.Dst = p.Src
		}
	}
	h.dress(rnd, &e)
	return e.IP()
}

// client returns a client of a family; it is made up if there is none.
func (h Hosts) client(rnd *rand.Rand, v6 bool) netip.Addr {
	of := slices.DeleteFunc(slices.Clone(h.Clients), func(a netip.Addr) bool { return a.Is6() != v6 })
	if len(of) > 0 {
		return pick(rnd, of)
	}
	if v6 {
		a := netip.MustParseAddr("2001:db8:c::").As16()
		binary.BigEndian.PutUint64(a[8:], rnd.Uint64())
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte{198, 51, 100, byte(rnd.Uint32())})
}

func pick[T any](rnd *rand.Rand, from []T) T { return from[rnd.IntN(len(from))] }

// one is true one time out of n.
func one(rnd *rand.Rand, n int) bool { return rnd.IntN(n) == 0 }

func noise(rnd *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}
