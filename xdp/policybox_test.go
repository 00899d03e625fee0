package xdp

import (
	"fmt"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/flows"
	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// roomyHalf is a table of half-open flows in which hardly two of the flows of a
// test want the same place.
const roomyHalf = 1 << 18

// policyBox makes a box for tests of policies: a namespace with an uplink up0 and
// a forwarder that has no table yet. No packet ever leaves. size is that of the
// flow table.
func policyBox(t testing.TB, size int) device {
	t.Helper()
	return boxWith(t, Options{Flows: size, HalfFlows: roomyHalf})
}

// boxWith is policyBox with tables of other sizes.
func boxWith(t testing.TB, o Options) device {
	t.Helper()
	ns := newNS(t)
	sysctl(t, "ipv6/conf/default/disable_ipv6", "1")
	veth(t, "up0", "peer0")
	setMAC(t, "up0", ourMAC)
	sysctl(t, "ipv6/conf/up0/disable_ipv6", "0")
	for _, cidr := range []string{node4 + "/24", node6 + "/64"} {
		addAddr(t, "up0", cidr)
	}
	addNeighbour(t, "up0", near4, nearMAC)
	addNeighbour(t, "up0", near6, nearMAC)
	up0, err := netlink.LinkByName("up0")
	check(t, err)
	o.Dir, o.Interfaces = bpffs(t)+"/edge", []string{"up0"}
	return device{Forwarder: openForwarder(t, o), ingress: up0.Attrs().Index, ns: ns}
}

// another closes the forwarder, as if the process had ended, and opens the data
// plane anew.
func (d device) another(t testing.TB) device {
	t.Helper()
	check(t, d.Close())
	d.Forwarder = openForwarder(t, d.o)
	return d
}

// feeder feeds packets in and sees only where each goes: for tests of very many.
// One goroutine uses it, on a thread in the namespace of its device.
type feeder struct {
	prog *ebpf.Program
	meta md
	out  []byte
}

func (d device) feeder() *feeder {
	return &feeder{prog: d.program(), meta: md{Ingress: uint32(d.ingress)}, out: make([]byte, 2048)}
}

// nowhere is where a packet goes that is not sent to a backend of pool.
const nowhere = -1

// feed returns the number of the backend of pool to which a frame goes, or nowhere.
func (f *feeder) feed(frame []byte) (int, error) {
	f.meta.DataEnd = uint32(len(frame))
	o := ebpf.RunOptions{Data: frame, DataOut: f.out, Repeat: 1, Context: &f.meta}
	xdp, err := f.prog.Run(&o)
	if err != nil || xdp != xdpCode[1] {
		return nowhere, err
	}
	return numberOf(o.DataOut), nil
}

// to is feed for a test's own goroutine.
func (f *feeder) to(t testing.TB, frame []byte) int {
	t.Helper()
	n, err := f.feed(frame)
	check(t, err)
	return n
}

// numberOf is the number of the backend of pool to which a frame is sent.
func numberOf(frame []byte) int { return int(frame[ethLen+19]) - 100 }

func nameOfNumber(n int) edge.BackendID { return edge.BackendID(fmt.Sprint("b", n)) }

// outcome is where a frame went: a backend of pool, or its verdict.
func (d device) outcome(t testing.TB, frame []byte) string {
	t.Helper()
	r := d.run(t, frame)
	if r.verdict != edgeVerdictTX_BACKEND {
		return d.name(r.verdict)
	}
	return string(nameOfNumber(numberOf(r.out)))
}

// Offsets into frames without options and extension headers.
const (
	src4At, ports4At = ethLen + 12, ethLen + ip4Len
	src6At, ports6At = ethLen + 8, ethLen + ip6Len
)

// from gives a frame, in place, the i-th of 2^24 sources and a port of its own.
// Of IPv6 each is in a /64 of its own. It does not mind the checksum of TCP or
// UDP, and neither does the program.
func from(frame []byte, i int) []byte {
	if be.Uint16(frame[12:]) == 0x0800 {
		be.PutUint32(frame[src4At:], 100<<24|uint32(i)&0xffffff)
	} else {
		be.PutUint32(frame[src6At:], 0x20010db8)
		be.PutUint32(frame[src6At+4:], uint32(i))
	}
	return fromPort(frame, 1024+i%60000)
}

// fromPort gives a frame, in place, another source port. A fragment has none.
func fromPort(frame []byte, port int) []byte {
	switch {
	case be.Uint16(frame[12:]) == 0x0800:
		be.PutUint16(frame[ports4At:], uint16(port))
	case frame[ethLen+6] != 44:
		be.PutUint16(frame[ports6At:], uint16(port))
	}
	return frame
}

// clientOf is a client of the family of a VIP.
func clientOf(vip string) string {
	if addrPort(vip).Addr().Is6() {
		return "[" + client6 + "]:4321"
	}
	return client4 + ":4321"
}

// tcpTo and udpTo are frames to a VIP, for from.
func tcpTo(vip string, flags uint8) []byte {
	p := tcpPacket(clientOf(vip), vip)
	p.flags = flags
	return p.frame()
}

func udpTo(vip string) []byte { return udpPacket(clientOf(vip), vip).frame() }

// protoTo is a packet of a protocol without ports.
func protoTo(vip string, proto uint8) []byte {
	return packet{src: addrPort(clientOf(vip)), dst: addrPort(vip), proto: proto, ttl: 64, payload: 40}.frame()
}

const protoGRE, protoESP, protoSCTP = 47, 50, 132

// firstFragment is the first of some fragments, with ports. The protocol is TCP or UDP.
func firstFragment(vip string, proto uint8) []byte {
	p := packet{src: addrPort(clientOf(vip)), dst: addrPort(vip), proto: proto, ttl: 64, payload: 40, flags: flagACK}
	if p.v6() {
		p.extType, p.ext = 44, []byte{proto, 0, 0, 1, 0, 0, 0, 9}
		return p.frame()
	}
	return with(p.frame(), ethLen+6, 0x20, 0)
}

// bothVIPs are a VIP of each family with a port.
func bothVIPs(port int) []string {
	return []string{fmt.Sprintf("%s:%d", vip4, port), fmt.Sprintf("[%s]:%d", vip6, port)}
}

// ofAll is a service of all ports and protocols.
func ofAll(vip string, b ...edge.TableBackend) edge.TableService {
	return service("all "+vip, vip, edge.AnyProtocol, b...)
}

// remembered calls f with every entry of both flow tables, and writes it back.
func (d device) remembered(t testing.TB, f func(e *flows.Entry, now flows.Tick)) {
	t.Helper()
	clock, err := monotonic()
	check(t, err)
	now := flows.TickAt(clock)
	for hash, e := range d.flows.All() {
		f(&e, now)
		d.flows.Put(hash, e, now)
	}
	for hash, e := range d.half.All() {
		f(&e, now)
		d.half.Put(hash, e)
	}
}

// leave leaves all flows this long until they are forgotten: below 0, they are.
func (d device) leave(t testing.TB, left time.Duration) {
	t.Helper()
	d.remembered(t, func(e *flows.Entry, now flows.Tick) { e.Until = now + flows.Tick(left>>tickShift) })
}

func (d device) forgetFlows() {
	d.flows.Clear()
	d.half.Clear()
}
