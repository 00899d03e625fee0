package xdp

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/maglev"
	"github.com/catchment-dev/edge/xdp/model"
)

// The policies that tests go through, in one order: affinities with the fields
// that they count.
var (
	affinities = []edge.Affinity{edge.AffinityNone, edge.AffinityClientIPPortProto, edge.AffinityClientIPProto, edge.AffinityClientIP, edge.AffinityClientIPNoDestination}
	fieldsOf   = map[edge.Affinity]int{edge.AffinityNone: 5, edge.AffinityClientIPPortProto: 5, edge.AffinityClientIPProto: 3, edge.AffinityClientIP: 2, edge.AffinityClientIPNoDestination: 1}
	trackings  = []edge.Tracking{edge.PerConnection, edge.PerSession}
)

// policies returns a service of all ports and protocols of each policy, on VIPs
// of both families.
func policies(b ...edge.TableBackend) []edge.TableService {
	var all []edge.TableService
	for _, format := range []string{"192.0.2.%d:0", "[2001:db8::%x]:0"} {
		for i, a := range affinities {
			for j, tr := range trackings {
				svc := ofAll(fmt.Sprintf(format, 10+2*i+j), b...)
				svc.Affinity, svc.Tracking = a, tr
				all = append(all, svc)
			}
		}
	}
	return all
}

// byTheRing is what the ring of b says of a frame: built here of the rules.
func byTheRing(t testing.TB, b []edge.TableBackend) func(frame []byte, fields int) edge.BackendID {
	t.Helper()
	var in []maglev.Backend
	for _, x := range b {
		in = append(in, maglev.Backend{Name: string(x.ID), Weight: x.Weight})
	}
	slots, err := maglev.Build(testSeed, in)
	check(t, err)
	return func(frame []byte, fields int) edge.BackendID {
		return b[slots[model.Slot(model.Hash(seedWords(testSeed), tupleIn(frame, fields)))]].ID
	}
}

// tupleIn reads the first fields of a frame without extension headers but for
// that of fragments: source, destination, protocol, ports.
func tupleIn(frame []byte, fields int) model.Tuple {
	var t model.Tuple
	ip := frame[ethLen:]
	l4, fragment := ip4Len, false
	if t.V6 = be.Uint16(frame[12:]) != 0x0800; t.V6 {
		t.Src, t.Dst, t.Proto, l4 = [16]byte(ip[8:]), [16]byte(ip[24:]), ip[6], ip6Len
		if fragment = t.Proto == 44; fragment {
			t.Proto = ip[ip6Len]
		}
	} else {
		t.Src, t.Dst = [16]byte{10: 0xff, 11: 0xff}, [16]byte{10: 0xff, 11: 0xff}
		copy(t.Src[12:], ip[12:16])
		copy(t.Dst[12:], ip[16:20])
		t.Proto, fragment = ip[9], be.Uint16(ip[6:])&0x3fff != 0
	}
	if (t.Proto == 6 || t.Proto == 17) && !fragment {
		t.SPort, t.DPort = be.Uint16(ip[l4:]), be.Uint16(ip[l4+2:])
	}
	if fields < 5 {
		t.SPort, t.DPort = 0, 0
	}
	if fields < 3 {
		t.Proto = 0
	}
	if fields < 2 {
		t.Dst = [16]byte{}
	}
	return t
}

// kind is a kind of packets: the first of a flow, those behind it, and the one
// that comes when the ring has changed.
type kind struct {
	name              string
	first, more, then func(vip string) []byte
	// stays says under which policies the last one finds the backend of the first.
	stays func(a edge.Affinity, tr edge.Tracking) bool
}

func kinds() []kind {
	always := func(edge.Affinity, edge.Tracking) bool { return true }
	never := func(edge.Affinity, edge.Tracking) bool { return false }
	unlessNone := func(a edge.Affinity, _ edge.Tracking) bool { return a != edge.AffinityNone }
	session := func(a edge.Affinity, tr edge.Tracking) bool { return tr == edge.PerSession && fieldsOf[a] < 5 }
	tcp := func(flags uint8) func(string) []byte {
		return func(vip string) []byte { return tcpTo(vip, flags) }
	}
	proto := func(n uint8) func(string) []byte {
		return func(vip string) []byte { return protoTo(vip, n) }
	}
	part := func(n uint8) func(string) []byte {
		return func(vip string) []byte { return firstFragment(vip, n) }
	}
	same := func(name string, f func(string) []byte, stays func(edge.Affinity, edge.Tracking) bool) kind {
		return kind{name, f, f, f, stays}
	}
	return []kind{
		{"tcp", tcp(flagSYN), tcp(flagACK), tcp(flagACK), always},
		{"syn", tcp(flagSYN), tcp(flagACK), tcp(flagSYN), session},
		{"fin", tcp(flagSYN), tcp(flagACK | flagFIN), tcp(flagACK), always},
		{"rst", tcp(flagSYN), tcp(flagRST), tcp(flagACK), always},
		same("udp", udpTo, unlessNone),
		same("esp", proto(protoESP), unlessNone),
		same("gre", proto(protoGRE), unlessNone),
		same("sctp", proto(protoSCTP), never),
		same("tcp fragment", part(6), always),
		same("udp fragment", part(17), unlessNone),
	}
}

// portOf puts a port to the address of a VIP of all ports.
func withPort(vip string, port uint16) string {
	a := addrPort(vip)
	return netip.AddrPortFrom(a.Addr(), port).String()
}

const eachKind = 40 // flows, of each kind at each service

// framesOf are packets of the flows of the at-th kind at a service.
func framesOf(at int, svc edge.TableService, f func(vip string) []byte) (all [][]byte) {
	for i := range eachKind {
		all = append(all, from(f(withPort(svc.VIP.String(), 4433)), at*eachKind+i))
	}
	return all
}

// Which packets find the backend of their flow when the ring has changed, and
// which go where the ring says: each affinity, tracking, protocol and family,
// after one packet of the flow and after some.
func TestWhoStays(t *testing.T) {
	d := policyBox(t, 1<<16)
	b := pool(t, 8)
	few, many := b[:4], b
	oldRing, newRing := byTheRing(t, few), byTheRing(t, many)
	feed := d.feeder()
	apply(t, d.Forwarder, tableOf(policies(few...)...))
	for at, k := range kinds() {
		for _, svc := range policies(few...) {
			for i, f := range framesOf(at, svc, k.first) {
				if got, want := nameOfNumber(feed.to(t, f)), oldRing(f, fieldsOf[svc.Affinity]); got != want {
					t.Fatalf("%s to %s: flow %d begins at %s, the ring says %s", k.name, svc.ID, i, got, want)
				}
			}
			for _, f := range framesOf(at, svc, k.more)[eachKind/2:] { // the others stay half-open
				feed.to(t, f)
				feed.to(t, f)
			}
		}
	}
	apply(t, d.Forwarder, tableOf(policies(many...)...))
	half, lost := 0, 0
	for at, k := range kinds() {
		for _, svc := range policies(many...) {
			first, moved, fields := framesOf(at, svc, k.first), 0, fieldsOf[svc.Affinity]
			stays := k.stays(svc.Affinity, svc.Tracking)
			for i, f := range framesOf(at, svc, k.then) {
				old, ring, got := oldRing(first[i], fields), newRing(f, fields), nameOfNumber(feed.to(t, f))
				if old != ring {
					moved++
				}
				want := ring
				if stays {
					want = old
				}
				if stays && i < eachKind/2 {
					half++
					if got == ring && got != old { // another has taken its place
						lost++
						continue
					}
				}
				if got != want {
					t.Fatalf("%s to %s: flow %d went from %s to %s, want %s; the ring says %s", k.name, svc.ID, i, old, got, want, ring)
				}
			}
			if moved == 0 {
				t.Errorf("%s to %s: the new ring moves nobody, so this shows nothing", k.name, svc.ID)
			}
		}
	}
	t.Logf("%d of %d half-open flows have lost their place", lost, half)
	if lost > half/50 {
		t.Errorf("%d of %d half-open flows have lost their place", lost, half)
	}
	balanced(t, d.Forwarder)
}
