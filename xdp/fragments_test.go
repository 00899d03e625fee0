package xdp

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/model/frame"
)

// fragments are a datagram of client i in four parts.
func fragments(vip string, proto uint8, i int) [][]byte {
	p := packetOf(vip, i, proto)
	p.payload = 4*64 - 8
	if proto == 6 {
		p.payload = 4*64 - 20
	}
	parts := frame.Fragments(p.ip(), uint32(i), 64)
	for at := range parts {
		parts[at] = ethernet(parts[at])
	}
	return parts
}

// orders are all orders of n things.
func orders(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, o := range orders(n - 1) {
		for at := range n {
			longer := append(append(append([]int{}, o[:at]...), n-1), o[at:]...)
			all = append(all, longer)
		}
	}
	return all
}

// fragmentServices are all ways in which fragments find a service.
func fragmentServices(vip string, a edge.Affinity, b []edge.TableBackend) map[string][]edge.TableService {
	one, other, whole, any := service("one", withPort(vip, 53), edge.UDP, b...), service("other", withPort(vip, 54), edge.UDP, b...),
		service("whole", withPort(vip, 0), edge.UDP, b...), ofAll(withPort(vip, 0), b...)
	tcp := service("tcp", withPort(vip, 53), edge.TCP, b[0])
	for _, s := range []*edge.TableService{&one, &other, &whole, &any, &tcp} {
		s.Affinity = a
	}
	return map[string][]edge.TableService{
		"a port": {one}, "a port, and one of tcp": {one, tcp}, "two ports alike": {other, one}, "all ports": {whole},
		"all protocols": {any}, "all ports, and one port": {whole, one}, "all protocols, and one port": {any, one},
	}
}

// All fragments of a datagram reach one backend in any order, also if the ring
// changes while they come; each way to a service, family and affinity.
func TestFragmentsInAnyOrder(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 8)
	feed := d.feeder()
	for _, vip := range bothVIPs(0) {
		for _, affinity := range []edge.Affinity{edge.AffinityNone, edge.AffinityClientIPProto} {
			few, many := fragmentServices(vip, affinity, b[:4]), fragmentServices(vip, affinity, b)
			for name := range few {
				what := fmt.Sprintf("%s, %s, %s", vip, affinity, name)
				d.forgetFlows()
				used := make(map[int]bool)
				apply(t, d.Forwarder, tableOf(few[name]...))
				for i, order := range orders(4) {
					used[together(t, feed, fragments(withPort(vip, 53), 17, i), order, what)] = true
				}
				if len(used) < 3 {
					t.Errorf("%s: only backends %v are used", what, used)
				}
				if affinity == edge.AffinityNone {
					continue // UDP is not remembered then
				}
				first, moved := make([]int, 24), 0
				for i, order := range orders(4) {
					first[i] = together(t, feed, fragments(withPort(vip, 53), 17, 100+i), order[:2], what)
				}
				apply(t, d.Forwarder, tableOf(many[name]...))
				for i, order := range orders(4) {
					if to := together(t, feed, fragments(withPort(vip, 53), 17, 100+i), order[2:], what); to != first[i] {
						t.Fatalf("%s: datagram %d began at b%d and ended at b%d", what, i, first[i], to)
					}
					if together(t, feed, fragments(withPort(vip, 53), 17, 200+i), order, what) >= 4 {
						moved++
					}
				}
				if moved == 0 {
					t.Errorf("%s: the ring has not changed", what)
				}
			}
		}
	}
	balanced(t, d.Forwarder)
}

// together feeds in fragments in an order, and fails unless they go to one backend.
func together(t *testing.T, feed *feeder, parts [][]byte, order []int, what string) int {
	t.Helper()
	to := nowhere
	for n, at := range order {
		got := feed.to(t, parts[at])
		if n == 0 {
			to = got
		}
		if got != to || got == nowhere {
			t.Fatalf("%s: fragments %v: number %d went to b%d, the first to b%d", what, order, at, got, to)
		}
	}
	return to
}

// R19: fragments of 10,000 datagrams that all come at once, in random order.
func TestFragmentsInterleaved(t *testing.T) {
	const datagrams = 10_000
	d := policyBox(t, 1<<15)
	b := pool(t, 8)
	var all []edge.TableService
	for _, vip := range bothVIPs(53) {
		svc := service("udp "+vip, vip, edge.UDP, b...)
		svc.Affinity = edge.AffinityNone // nothing is remembered
		tcp := service("tcp "+vip, vip, edge.TCP, b...)
		all = append(all, svc, tcp)
	}
	apply(t, d.Forwarder, tableOf(all...))
	feed, rnd := d.feeder(), rand.New(rand.NewPCG(3, 4))
	for _, vip := range bothVIPs(53) {
		for _, proto := range []uint8{17, 6} {
			to, parts := make(map[int]int), make([][][]byte, datagrams)
			for i := range parts {
				parts[i] = fragments(vip, proto, i)
			}
			for _, n := range rnd.Perm(4 * datagrams) {
				got := feed.to(t, parts[n/4][n%4])
				if first, seen := to[n/4]; seen && first != got || got == nowhere {
					t.Fatalf("%s protocol %d: fragment %d of datagram %d went to b%d, another to b%d", vip, proto, n%4, n/4, got, first)
				}
				to[n/4] = got
			}
		}
	}
	for _, s := range stats(t, d.Forwarder).Services {
		if s.By["fragment"] != 4*datagrams || s.Packets != 4*datagrams || s.Evicted != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// Where the services of an address differ, a fragment has none: it names no port.
// Whole packets go on, and it works again when they are alike.
func TestFragmentsOfServicesThatDiffer(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 3)
	for _, vip := range bothVIPs(0) {
		for name, change := range map[string]func(s *edge.TableService){
			"a backend more": func(s *edge.TableService) { s.Backends = b },
			"a weight":       func(s *edge.TableService) { s.Backends[1].Weight = 2 },
			"an address":     func(s *edge.TableService) { s.Backends[1].Addr = addr(near4) },
			"a name":         func(s *edge.TableService) { s.Backends[1].ID = "x" },
			"affinity":       func(s *edge.TableService) { s.Affinity = edge.AffinityClientIP },
			"tracking":       func(s *edge.TableService) { s.Tracking = edge.PerSession },
			"encapsulation":  func(s *edge.TableService) { s.Encap = edge.EncapIPIP },
			"idle timeout":   func(s *edge.TableService) { s.IdleTimeout = 1 << 40 },
			"no backend":     func(s *edge.TableService) { s.Backends = nil },
		} {
			expect := func(services []edge.TableService, want string) {
				t.Helper()
				apply(t, d.Forwarder, tableOf(services...))
				for at, part := range fragments(withPort(vip, 53), 17, 1) {
					got := d.outcome(t, part)
					if got[0] == 'b' {
						got = "a backend"
					}
					if got != want {
						t.Errorf("%s: %s: fragment %d: %s, want %s", vip, name, at, got, want)
					}
				}
			}
			one, other := service("one", withPort(vip, 53), edge.UDP, b[0], b[1]), service("other", withPort(vip, 54), edge.UDP, b[0], b[1])
			expect([]edge.TableService{one, other}, "a backend")
			changed := service("other", withPort(vip, 54), edge.UDP, b[0], b[1])
			change(&changed)
			expect([]edge.TableService{one, changed}, "drop fragment_ports")
			if got := d.outcome(t, packetOf(withPort(vip, 53), 1, 17).frame()); got != "b0" && got != "b1" {
				t.Errorf("%s: %s: a whole packet: %s", vip, name, got)
			}
			if got := d.outcome(t, packetOf(withPort(vip, 55), 1, 17).frame()); got != "pass no_service" {
				t.Errorf("%s: %s: a whole packet to no service: %s", vip, name, got)
			}
			if got := d.outcome(t, firstFragment(withPort(vip, 53), 6)); got != "pass no_service" {
				t.Errorf("%s: %s: a fragment of tcp: %s", vip, name, got)
			}
			expect([]edge.TableService{other, one}, "a backend")
		}
	}
	balanced(t, d.Forwarder)
}

// A whole datagram with a fragment header (RFC 6946) is no fragment.
func TestAtomicFragment(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 8)
	vip := bothVIPs(53)[1]
	apply(t, d.Forwarder, tableOf(service("a", vip, edge.UDP, b...)))
	for i := range someFlows {
		p := packetOf(vip, i, 17)
		want := d.outcome(t, p.frame())
		p.extType, p.ext = 44, []byte{17, 0, 0, 0, 0, 0, 0, 9}
		if got := d.outcome(t, p.frame()); got != want {
			t.Fatalf("flow %d: %s, without the header %s", i, got, want)
		}
	}
	if n := stats(t, d.Forwarder).Services[0].By["fragment"]; n != 0 {
		t.Errorf("%d were counted as fragments", n)
	}
}
