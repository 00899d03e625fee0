package model

import (
	"net/netip"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/model/frame"
)

// The world of the tests: up0 is where packets come in, up1 another interface,
// up0v a VLAN on up0, up1v one of two tags on up1.
const (
	up0, up1, up0v, up1v = 2, 3, 4, 5
	routeMTU             = 1500
)

var (
	routerMAC, ourMAC = [6]byte{2, 0, 0, 0, 0, 0xaa}, [6]byte{2, 0, 0, 0, 0, 0xbb}
	nextMAC, upMAC    = [6]byte{2, 0, 0, 0, 0, 0xcc}, [6]byte{2, 0, 0, 0, 0, 0xdd}
	inLink            = frame.Link{Dst: ourMAC, Src: routerMAC}
	testSeed          = [2]uint64{0x0123456789abcdef, 0xfedcba9876543210}
	long              = 3000 * time.Second // since boot, when packets come
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// family is one family's half of the world.
type family struct {
	v6                                            bool
	client, other, blocked, vip, wild, node, peer netip.Addr
	near, far                                     netip.Addr // backends
	first                                         uint32     // service id
}

func families() []family {
	return []family{
		{false, addr("198.51.100.9"), addr("198.51.100.10"), addr("203.0.113.5"), addr("192.0.2.1"), addr("192.0.2.2"),
			addr("10.0.0.1"), addr("10.0.0.77"), addr("10.0.0.2"), addr("10.0.1.2"), 100},
		{true, addr("2001:db8:c::9"), addr("2001:db8:c:1::9"), addr("2001:db8:bad::5"), addr("2001:db8::1"), addr("2001:db8::2"),
			addr("fd00::1"), addr("fd00::77"), addr("fd00::2"), addr("fd00:1::2"), 200},
	}
}

// Ports of the services of a VIP; TCP unless said. The id is first + port - 80.
const (
	portGUE      = 80 // TCP and UDP
	portIPIP     = 81
	portCross    = 82 // GUE, the outer header of the other family
	portFar      = 83 // by up1
	portLocal    = 84
	portEmpty    = 85
	portStale    = 86 // the ring names one that has left
	portNoTable  = 87
	portService  = 88 // 2 SYNs at once
	portSource   = 89 // 2 SYNs at once of one source
	portQUIC     = 90 // UDP
	portTracked  = 91 // UDP with an affinity
	portVLAN     = 92 // by up0v
	portQinQ     = 93 // by up1v
	portCrossIP  = 94 // IPIP, the other family
	portBadRoute = 95 // and 7 more
	offWild      = 30 // id of the service of all protocols of wild
)

func badRoutes() []Verdict {
	return []Verdict{DropFIBBlackhole, DropFIBUnreachable, DropFIBProhibit, DropFIBNotForwarded,
		DropFIBForwardingOff, DropFIBTunnel, DropFIBNoNeighbour, DropFIBError}
}

// lab is a World with its tables at hand.
type lab struct {
	*World
	services    map[uint32]*Service
	flows, half Flows
	// routes are by the outer destination; mtu is that of all.
	routes map[netip.Addr]RouteAnswer
	mtu    int
	asked  RouteQuery // the last one
}

func newLab() *lab {
	l := &lab{services: map[uint32]*Service{}, flows: Flows{}, half: Flows{}, routes: map[netip.Addr]RouteAnswer{}, mtu: routeMTU}
	l.World = &World{
		Ingress: up0, MACs: [][6]byte{{2, 9, 9, 9, 9, 9}, ourMAC},
		Addrs: map[[16]byte]uint32{}, Trusted: map[[16]byte]bool{}, VIPs: map[VIPKey]uint32{},
		Service:   func(id uint32) *Service { return l.services[id] },
		Backends:  map[uint32]Backend{},
		ServerIDs: map[ServerKey]uint32{},
		VLANIn:    map[VLANKey]uint32{{up0, 100, 0}: up0v, {up1, 200, 7}: up1v},
		VLANOut: map[uint32]VLANLink{
			up0v: {up0, []Tag{{0x8100, 100}}},
			up1v: {up1, []Tag{{0x88a8, 200}, {0x8100, 7}}},
		},
		Route: l.route, TooBig: Limit{1, time.Hour}, Flows: l.flows, Half: l.half,
	}
	var blocked Prefixes
	all := families()
	for i, f := range all {
		l.furnish(f, all[1-i])
		blocked = append(blocked, netip.PrefixFrom(f.blocked, f.blocked.BitLen()-8))
	}
	l.Blocked = blocked.Contains
	return l
}

func (l *lab) route(q RouteQuery) RouteAnswer {
	l.asked = q
	a, ok := l.routes[q.Dst]
	if !ok {
		return RouteAnswer{Verdict: DropFIBUnreachable}
	}
	if a.MTU != 0 {
		a.MTU = l.mtu
	}
	return a
}

// furnish gives a family its services.
func (l *lab) furnish(f, other family) {
	l.Addrs[f.vip.As16()] = AddrVIP | AddrAllPorts
	l.Addrs[f.wild.As16()] = AddrVIP | AddrAllPorts | AddrAllProtocols
	l.Addrs[f.node.As16()] = AddrTunnel
	l.Trusted[f.peer.As16()] = true
	l.routes[f.near] = RouteAnswer{Ifindex: up0, SMAC: upMAC, DMAC: nextMAC, MTU: routeMTU}
	l.routes[f.far] = RouteAnswer{Ifindex: up1, SMAC: upMAC, DMAC: nextMAC, MTU: routeMTU}
	vlan, qinq := f.far.Next(), f.far.Next().Next()
	l.routes[vlan] = RouteAnswer{Ifindex: up0v, SMAC: upMAC, DMAC: nextMAC, MTU: routeMTU}
	l.routes[qinq] = RouteAnswer{Ifindex: up1v, SMAC: upMAC, DMAC: nextMAC, MTU: routeMTU}

	l.add(f, portGUE, f.near)
	l.VIPs[VIPKey{f.vip.As16(), portGUE, frame.UDP}] = f.id(portGUE)
	l.add(f, portIPIP, f.near).GUE = false
	l.add(f, portCross, other.near)
	l.add(f, portCrossIP, other.near).GUE = false
	l.add(f, portFar, f.far)
	l.add(f, portLocal, f.near)
	l.change(f, portLocal, func(b *Backend) { b.Local = true })
	l.add(f, portEmpty, f.near).Ring = nil
	l.add(f, portStale, f.near)
	l.change(f, portStale, func(b *Backend) { b.State = 0 })
	l.add(f, portNoTable, f.near)
	delete(l.services, f.id(portNoTable))
	l.add(f, portService, f.near).SYN = Limit{time.Second, time.Second}
	l.add(f, portSource, f.near).SYNSource = Limit{time.Second, time.Second}
	l.quic(f)
	l.add(f, portTracked, f.near).Affinity = AffinityFiveTuple
	l.VIPs[VIPKey{f.vip.As16(), portTracked, frame.UDP}] = f.id(portTracked)
	l.add(f, portVLAN, vlan)
	l.add(f, portQinQ, qinq)
	bad := qinq
	for i, v := range badRoutes() {
		bad = bad.Next()
		l.routes[bad] = RouteAnswer{Verdict: v}
		l.add(f, uint16(portBadRoute+i), bad)
	}
	// The services of TCP differ, those of UDP are taken for one.
	l.VIPs[VIPKey{Addr: f.vip.As16(), Proto: frame.TCP}] = VIPFragments
	l.VIPs[VIPKey{Addr: f.vip.As16(), Proto: frame.UDP}] = VIPFragments | f.id(portGUE)

	wild := f.first + offWild
	l.VIPs[VIPKey{Addr: f.wild.As16()}] = wild
	l.services[wild] = l.service(10*wild, 5)
	for i := range uint32(5) {
		l.Backends[10*wild+i] = Backend{Addr: f.near, Service: wild, Generation: 1, State: Member | KeepTCP | KeepOther}
	}
}

func (f family) id(port uint16) uint32 { return f.first + uint32(port) - portGUE }

// backend is the first of the two backends of a service: ids are ten times the
// service's and one more.
func (f family) backend(port uint16) uint32 { return 10 * f.id(port) }

// service makes a service of n backends from an id on.
func (l *lab) service(first, n uint32) *Service {
	return &Service{
		Seed: testSeed, Source4: addr("10.0.0.1"), Source6: addr("fd00::1"), GUE: true, Idle: 60,
		Ring: func(slot uint32) uint32 { return first + slot%n },
	}
}

// add makes a service of TCP with two backends of one address.
func (l *lab) add(f family, port uint16, to netip.Addr) *Service {
	id := f.id(port)
	l.VIPs[VIPKey{f.vip.As16(), port, frame.TCP}] = id
	l.services[id] = l.service(10*id, 2)
	for i := range uint32(2) {
		l.Backends[10*id+i] = Backend{Addr: to, Service: id, Generation: 1, State: Member | KeepTCP | KeepOther}
	}
	return l.services[id]
}

// change changes every backend of a service.
func (l *lab) change(f family, port uint16, with func(*Backend)) {
	for i := range uint32(2) {
		b := l.Backends[f.backend(port)+i]
		with(&b)
		l.Backends[f.backend(port)+i] = b
	}
}

// quic makes the service of QUIC: server ids of 2 bytes behind the first.
func (l *lab) quic(f family) {
	l.add(f, portQUIC, f.near).QUIC = &edge.QUIC{Offset: 1, Length: 2}
	key := VIPKey{f.vip.As16(), portQUIC, frame.TCP}
	delete(l.VIPs, key)
	key.Proto = frame.UDP
	l.VIPs[key] = f.id(portQUIC)
	for i := range uint32(2) {
		l.ServerIDs[ServerKey{f.id(portQUIC), string([]byte{7, byte(i)})}] = f.backend(portQUIC) + i
	}
	// One of another service, and one that has left.
	l.ServerIDs[ServerKey{f.id(portQUIC), "\x08\x00"}] = f.backend(portGUE)
	l.ServerIDs[ServerKey{f.id(portQUIC), "\x08\x01"}] = 9999
}

// tcp and udp are packets of a client to a port of the VIP.
func (f family) tcp(port uint16, flags byte) frame.Packet {
	return frame.Packet{Src: netip.AddrPortFrom(f.client, 4321), Dst: netip.AddrPortFrom(f.vip, port), Proto: frame.TCP, Flags: flags,
		Payload: []byte("sixteen bytes..."), ID: 77, DontFragment: true}
}

func (f family) udp(port uint16, payload []byte) frame.Packet {
	p := f.tcp(port, 0)
	p.Proto, p.Payload = frame.UDP, payload
	return p
}

func (f family) ping() frame.Packet {
	p := f.tcp(0, 0)
	p.Proto, p.Type, p.Rest = frame.ICMP, 8, [4]byte{1, 2, 3, 4}
	if f.v6 {
		p.Proto, p.Type = frame.ICMPv6, 128
	}
	return p
}

// fail is an ICMP error about a packet that the VIP sent.
func (f family) fail(quote []byte) frame.Packet {
	if f.v6 {
		return frame.Error(f.other, 2, 0, quote)
	}
	return frame.Error(f.other, 3, 4, quote)
}

// answer is a packet of the VIP to the client.
func (f family) answer(p frame.Packet) frame.Packet {
	p.Src, p.Dst = p.Dst, p.Src
	return p
}

// send decides over a packet that comes untagged.
func (l *lab) send(p frame.Packet) Outcome { return l.Decide(inLink.Frame(p.IP()), long) }

// both runs a test in both families.
func both(t *testing.T, test func(t *testing.T, f family)) {
	t.Helper()
	for _, f := range families() {
		t.Run(map[bool]string{false: "ipv4", true: "ipv6"}[f.v6], func(t *testing.T) { test(t, f) })
	}
}

// want checks a verdict.
func want(t *testing.T, what string, o Outcome, v Verdict) {
	t.Helper()
	if o.Verdict != v {
		t.Errorf("%s: %v, want %v: %v", what, o.Verdict, v, o.Why)
	}
}
