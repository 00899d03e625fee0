package xdp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/model"
	"github.com/catchment-dev/edge/xdp/model/frame"
)

// The model is the oracle: package model, written from the rules and not from
// the C. It sees the maps that the program sees, and has flow tables of its own.

// The verdicts of the model are those of reasons.h.
func TestModelKnowsVerdicts(t *testing.T) {
	d := oneBox(t)
	for _, v := range d.verdicts {
		if got, want := model.Verdict(v.value).String(), strings.ToUpper(fmt.Sprintf("%s_%s", v.action, v.reason)); got != want {
			t.Errorf("verdict %d of the model is %q, of the program %q", v.value, got, want)
		}
	}
}

// oracle is the model in the namespace of oneBox.
type oracle struct {
	d      device
	world  *model.World
	reader *reader
}

func newOracle(d device) *oracle {
	o := &oracle{d: d}
	o.look()
	o.world.Flows = model.Flows{}
	o.world.Half = onePlace{d.coll.Maps[edgeMapHalf].MaxEntries(), map[uint64]onePlaceEntry{}}
	return o
}

// onePlace is a flow table in which each flow has one place, as in the map half:
// who comes later takes it.
type onePlace struct {
	places uint32
	have   map[uint64]onePlaceEntry
}

type onePlaceEntry struct {
	hash uint64
	model.FlowEntry
}

func (o onePlace) place(hash uint64) uint64 { return hash >> 32 * uint64(o.places) >> 32 }

func (o onePlace) Get(hash uint64) (model.FlowEntry, bool) {
	e, ok := o.have[o.place(hash)]
	return e.FlowEntry, ok && e.hash == hash
}

func (o onePlace) Put(hash uint64, e model.FlowEntry) { o.have[o.place(hash)] = onePlaceEntry{hash, e} }

func (o onePlace) Delete(hash uint64) {
	if _, ok := o.Get(hash); ok {
		delete(o.have, o.place(hash))
	}
}

// look shows the model the maps as they are now. It keeps its flows.
func (o *oracle) look() {
	old := o.world
	o.reader = &reader{f: o.d.Forwarder}
	o.world = o.reader.world()
	w := o.world
	if old != nil {
		w.Flows, w.Half = old.Flows, old.Half
	}
	tables := make(map[uint32]*model.Service)
	w.Service = func(id uint32) *model.Service {
		if tables[id] == nil {
			tables[id] = o.reader.service(id)
		}
		return tables[id]
	}
	w.Ingress = uint32(o.d.ingress)
	w.MACs = [][6]byte{[6]byte(ourMAC)}
	w.Trusted = make(map[[16]byte]bool)
	for a := range o.d.state.trusted.have {
		w.Trusted[a] = true
	}
	w.Blocked = blockedPrefixes.Contains
	w.TooBig = model.Limit{Interval: 1, Burst: 1e9}
	w.Route = o.route
}

var blockedPrefixes = model.Prefixes{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:bad::/48")}

// route is what bpf_fib_lookup says in oneBox.
func (o *oracle) route(q model.RouteQuery) model.RouteAnswer {
	near := model.RouteAnswer{Ifindex: uint32(o.d.ingress), SMAC: [6]byte(ourMAC), DMAC: [6]byte{2, 0, 0, 0, 0, 2}, MTU: 1500}
	switch {
	case q.Dst == addr(far4) || q.Dst == addr(far6):
		far := near
		far.Ifindex, far.SMAC, far.DMAC = uint32(o.d.other.Index), [6]byte(o.d.other.HardwareAddr), [6]byte{2, 0, 0, 0, 1, 2}
		return far
	case q.Dst == addr(near4), q.Dst == addr(near6):
		return near
	}
	for _, bad := range badRoutes {
		if q.Dst == addr(bad.v4) || q.Dst == addr(bad.v6) {
			a := model.RouteAnswer{Verdict: model.Verdict(bad.want)}
			// The kernel finds a route, and looks at its MTU first.
			switch bad.want {
			case edgeVerdictDROP_FIB_NO_NEIGHBOUR:
				a.MTU = 1500
			case edgeVerdictDROP_FIB_TUNNEL:
				a.MTU = 1500 - ip6Len - 24 // its own headers, with one segment
			}
			return a
		}
	}
	return near // of pool
}

// judge runs a frame and compares verdict and bytes with the model's.
func (o *oracle) judge(t testing.TB, f []byte) model.Outcome {
	t.Helper()
	now, err := monotonic()
	check(t, err)
	want := o.world.Decide(f, now)
	check(t, o.reader.err)
	r := o.d.run(t, f)
	if model.Verdict(r.verdict) != want.Verdict {
		t.Fatalf("%s, the model says %s: %v\n% x", o.d.name(r.verdict), want.Verdict, want.Why, f)
	}
	if want.Out != nil && !bytes.Equal(r.out, want.Out) {
		t.Fatalf("%s by %s: left as\n% .200x\nthe model says\n% .200x\nof\n% x", want.Verdict, want.By, r.out, want.Out, f)
	}
	return want
}

// tellAlways lets every sender be told that its packet is too big.
func (d device) tellAlways(t testing.TB) {
	t.Helper()
	want := d.host
	want.TooBig.Interval, want.TooBig.Burst = 1, 1e9
	check(t, d.putHost(want))
}

// richTable has every policy, on the ports of oneBoxTable and others.
func richTable(t testing.TB, b []edge.TableBackend) edge.Table {
	table := oneBoxTable()
	n := 0
	for _, vip := range []string{vip4, "[" + vip6 + "]"} {
		for _, affinity := range []edge.Affinity{edge.AffinityNone, edge.AffinityClientIPPortProto, edge.AffinityClientIPProto, edge.AffinityClientIP, edge.AffinityClientIPNoDestination} {
			for _, tracking := range []edge.Tracking{edge.PerConnection, edge.PerSession} {
				for _, p := range []edge.Protocol{edge.TCP, edge.UDP} {
					svc := service(fmt.Sprint("rich", n), fmt.Sprintf("%s:%d", vip, 2000+n%20), p, b...)
					svc.Affinity, svc.Tracking = affinity, tracking
					if p == edge.UDP && tracking == edge.PerConnection {
						svc.QUIC = &edge.QUIC{Offset: 1, Length: 2}
					}
					if n%3 == 0 {
						svc.Encap = edge.EncapIPIP
					}
					table.Services = append(table.Services, svc)
					n++
				}
			}
		}
	}
	// Two more addresses: all ports, and everything.
	for i, vip := range []string{allPorts4, "[" + allPorts6 + "]", everything4, "[" + everything6 + "]"} {
		svc := service(fmt.Sprint("wild", i), vip+":0", []edge.Protocol{edge.UDP, edge.AnyProtocol}[i/2], b...)
		table.Services = append(table.Services, svc)
	}
	for i := range table.Services {
		svc := &table.Services[i]
		if svc.QUIC == nil {
			svc.Backends = withoutServerIDs(svc.Backends)
		}
	}
	return table
}

func withoutServerIDs(b []edge.TableBackend) []edge.TableBackend {
	b = slices.Clone(b)
	for i := range b {
		b[i].ServerID = ""
	}
	return b
}

const (
	allPorts4, allPorts6     = "192.0.2.3", "2001:db8::3"
	everything4, everything6 = "192.0.2.4", "2001:db8::4"
)

// shuffle gives the backends of a pool other roles.
func shuffle(rnd *rand.Rand, b []edge.TableBackend) []edge.TableBackend {
	b = slices.Clone(b)
	for i := range b {
		b[i].Weight, b[i].KeepTCP, b[i].KeepOther = rnd.IntN(4), rnd.IntN(2) == 0, rnd.IntN(2) == 0
		b[i].ServerID = string([]byte{0xab, byte(i)})
		if rnd.IntN(10) == 0 {
			b[i].Weight = 0
		}
	}
	return b[rnd.IntN(3):]
}

func testHosts() frame.Hosts {
	clean, one := frame.Link{Dst: [6]byte(ourMAC), Src: [6]byte(routerMAC)}, frame.Link{Dst: [6]byte(ourMAC), Src: [6]byte(routerMAC)}
	one.Tags = []frame.Tag{{Type: 0x8100, TCI: 0x2007}}
	two := one
	two.Tags = []frame.Tag{{Type: 0x88a8, TCI: 9}, {Type: 0x8100, TCI: 0x6007}}
	three := two
	three.Tags = append(slices.Clone(two.Tags), frame.Tag{Type: 0x8100, TCI: 1})
	foreign := clean
	foreign.Dst[5]++
	h := frame.Hosts{
		Links:   []frame.Link{clean, clean, clean, clean, clean, clean, one, two, three, foreign},
		Clients: []netip.Addr{addr(client4), addr("198.51.100.10"), addr(blocked4), addr(client6), addr("2001:db8:c::10"), addr(blocked6)},
		VIPs: []netip.Addr{addr(vip4), addr(vip6), addr(allPorts4), addr(allPorts6), addr(everything4), addr(everything6),
			addr("192.0.2.200"), addr("2001:db8::c8"), addr("c000:201::")}, // the last are none
		Peers:       []netip.Addr{addr(trust4), addr(trust6), addr("10.0.0.78")},
		Nodes:       []netip.Addr{addr(node4), addr(node6)},
		ClientPorts: 300, MaxPayload: 1500,
		Connections: [][]byte{{1, 0xab, 0, 9, 9, 9, 9, 9}, {1, 0xab, 1, 9, 9, 9, 9, 9}, {1, 0xab, 5, 9}, {1, 0xab, 99, 9}},
	}
	for port := uint16(80); port < 90; port++ {
		h.Ports = append(h.Ports, port)
	}
	for i := range uint16(20) {
		h.Ports = append(h.Ports, 2000+i, portFirstBadRoute+i%uint16(len(badRoutes)+1))
	}
	return h
}

// The ports whose new connections are limited: the clocks of program and model
// are a moment apart.
func withoutLimits(table edge.Table) edge.Table {
	for i := range table.Services {
		table.Services[i].SYNLimit = edge.SYNLimit{}
	}
	return table
}

const randomFrames, perTable = 100_000, 5_000

// The program must do with every frame, in order or damaged, what the model
// says, to the byte, while the tables change under the flows.
func TestOracle(t *testing.T) {
	d := oneBox(t)
	d.tellAlways(t)
	b := pool(t, 8)
	rnd := rand.New(rand.NewPCG(20, 26))
	hosts := testHosts()
	frames := corpus()
	o := newOracle(d)
	reached, by := make(map[model.Verdict]int), make(map[model.By]int)
	vlans, tagged := 0, 0
	for i := range randomFrames {
		if i%perTable == 0 {
			apply(t, d.Forwarder, withoutLimits(richTable(t, shuffle(rnd, b))))
			o.look()
			vlans += o.pretend(t, rnd)
		}
		f := hosts.Random(rnd)
		switch rnd.IntN(4) {
		case 0:
			f = frame.Mutate(rnd, f)
		case 1:
			f = frame.Mutate(rnd, frames[rnd.IntN(len(frames))])
		}
		got := o.judge(t, f)
		reached[got.Verdict]++
		by[got.By]++
		if got.Verdict == model.TXBackend && bytes.Equal(got.Out[6:12], d.other.HardwareAddr) {
			tagged++
		}
	}
	balanced(t, d.Forwarder)
	t.Logf("%d frames: by %v, verdicts %v", randomFrames, by, reached)
	if len(reached) < 38 || len(by) != 5 {
		t.Errorf("only %d verdicts reached, chosen by %v", len(reached), by)
	}
	if vlans == 0 || tagged == 0 {
		t.Errorf("%d of the worlds have VLANs, %d frames left by one", vlans, tagged)
	}
}

// pretend makes up1 a VLAN of up0 by chance, in the maps and in the model, and
// says in how many ways.
func (o *oracle) pretend(t testing.TB, rnd *rand.Rand) (n int) {
	t.Helper()
	up0, up1 := uint32(o.d.ingress), uint32(o.d.other.Index)
	in, out := make(map[edgeVlanKey]uint32), make(map[uint32]edgeVlanLink)
	o.world.VLANIn, o.world.VLANOut = make(map[model.VLANKey]uint32), make(map[uint32]model.VLANLink)
	for _, key := range []model.VLANKey{{Ifindex: up0, Outer: 7}, {Ifindex: up0, Outer: 9, Inner: 7}} {
		if rnd.IntN(2) == 0 {
			o.world.VLANIn[key] = up1
			in[edgeVlanKey{Ifindex: key.Ifindex, Outer: key.Outer, Inner: key.Inner}] = up1
		}
	}
	if tags := []model.Tag{{Type: 0x88a8, TCI: 9}, {Type: 0x8100, TCI: 33}}[rnd.IntN(2):]; rnd.IntN(3) > 0 {
		o.world.VLANOut[up1] = model.VLANLink{Ifindex: up0, Tags: tags}
		out[up1] = o.d.vlanOut(tags...)
	}
	o.d.setVLANs(t, in, out)
	return len(in) + len(out)
}

// corpus is every frame of the packet tests.
func corpus() [][]byte {
	var frames [][]byte
	for _, cases := range [][]packetCase{plainCases(false), plainCases(true), onlyIPv4(), onlyIPv6(),
		tunnelCases(addr(trust4), addr(node4)), tunnelCases(addr(trust6), addr(node6))} {
		for _, c := range cases {
			frames = append(frames, c.frame)
		}
	}
	return frames
}

// FuzzFrame looks for a frame on which the program and the model disagree.
func FuzzFrame(f *testing.F) {
	for _, frame := range corpus() {
		f.Add(frame)
	}
	d := oneBox(f)
	d.tellAlways(f)
	apply(f, d.Forwarder, withoutLimits(oneBoxTable()))
	o := newOracle(d)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < ethLen || len(frame) > 1600 {
			return
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		in(t, d.ns, func() { o.judge(t, frame) })
	})
}
