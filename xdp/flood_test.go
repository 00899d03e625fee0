package xdp

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"golang.org/x/sync/errgroup"
)

const floodFlows = 20_000

// A flood of packets that are each of another flow takes no established flow
// its place, though it is many times what the table of half-open ones holds: SYNs,
// ACKs out of nowhere, and datagrams. The ring has changed since the flows began,
// so that nothing but the flow table knows where they are; they are mute meanwhile,
// so nothing renews them.
func TestFlood(t *testing.T) {
	d := boxWith(t, Options{Flows: 2 * floodFlows}) // as small as they come
	b := pool(t, 40)
	// All VIPs of one table, so that they share the flow tables.
	use := func(b []edge.TableBackend) {
		var all []edge.TableService
		for _, vip := range bothVIPs(0) {
			all = append(all, ofAll(vip, b...))
		}
		apply(t, d.Forwarder, tableOf(all...))
	}
	use(b[:20])
	feed := d.feeder()
	flow := func(i int) []byte { return from(tcpTo(bothVIPs(80)[i%2], flagACK), i) }
	before, sinceMoved := make([]int, floodFlows), 0
	for i := range before {
		feed.to(t, flow(i))
		before[i] = feed.to(t, flow(i))
	}
	use(b)
	ring := byTheRing(t, b)
	for i := range before {
		if ring(flow(i), 5) != nameOfNumber(before[i]) {
			sinceMoved++
		}
	}
	if sinceMoved < floodFlows/3 {
		t.Fatalf("the new ring moves only %d flows", sinceMoved)
	}
	d.floods(t)
	lost := 0
	for i := range before {
		if got := feed.to(t, flow(i)); got != before[i] {
			lost++
		}
	}
	t.Logf("%d of %d established flows lost, of which the ring alone would have moved %d", lost, floodFlows, sinceMoved)
	if lost > 0 {
		t.Errorf("%d of %d established flows lost", lost, floodFlows)
	}
	balanced(t, d.Forwarder)
}

// Where the tables remember sessions, a second SYN is of the same session as the
// first: as nothing answers a SYN of a forged source, two of them are no more than
// one.
func TestFloodOfSessions(t *testing.T) {
	const established, sources = 2000, 50_000
	d := boxWith(t, Options{Flows: established})
	b := pool(t, 8)
	use := func(b []edge.TableBackend) {
		var all []edge.TableService
		for _, vip := range bothVIPs(80) {
			svc := service("sessions "+vip, vip, edge.TCP, b...)
			svc.Affinity, svc.Tracking = edge.AffinityClientIP, edge.PerSession
			all = append(all, svc)
		}
		apply(t, d.Forwarder, tableOf(all...))
	}
	feed := d.feeder()
	vip := func(i int) string { return bothVIPs(80)[i%2] }
	use(b[:4])
	before := make([]int, established)
	for i := range before {
		feed.to(t, from(tcpTo(vip(i), flagSYN), i))
		before[i] = feed.to(t, from(tcpTo(vip(i), flagACK), i))
	}
	use(b)
	syns := [][]byte{tcpTo(vip(0), flagSYN), tcpTo(vip(1), flagSYN)}
	for i := range sources {
		for port := range 3 {
			feed.to(t, fromPort(from(syns[i%2], 1<<20+i), 3000+port))
		}
	}
	lost, moved := 0, 0
	ring := byTheRing(t, b)
	for i := range before {
		f := from(tcpTo(vip(i), flagACK), i)
		if got := feed.to(t, f); got != before[i] {
			lost++
		}
		if ring(f, 2) != nameOfNumber(before[i]) {
			moved++
		}
	}
	t.Logf("%d of %d sessions lost, of which the ring alone would have moved %d", lost, established, moved)
	if lost > 0 || moved < established/3 {
		t.Errorf("%d of %d sessions lost, of which the ring alone would have moved %d", lost, established, moved)
	}
	// The first that answers makes it one.
	for i := sources - 100; i < sources; i++ {
		feed.to(t, fromPort(from(tcpTo(vip(i), flagACK), 1<<20+i), 3000))
	}
	n := stats(t, d.Forwarder).Services
	if got := n[0].Established + n[1].Established - established; got != 100 {
		t.Errorf("%d sessions of the flood were established, want the 100 that went on", got)
	}
}

// floods are of all kinds. Each packet takes a place, and nobody's but of those
// that are half-open.
func (d device) floods(t *testing.T) {
	t.Helper()
	for _, flood := range []struct {
		name    string
		packets uint64
		frame   func(vip string) []byte
	}{
		{"syn", 1_000_000, func(vip string) []byte { return tcpTo(vip, flagSYN) }},
		{"ack", 250_001, func(vip string) []byte { return tcpTo(vip, flagACK) }},
		{"udp", 250_002, udpTo},
	} {
		old, start := stats(t, d.Forwarder), time.Now()
		d.flood(t, flood.packets, flood.frame)
		took, now := time.Since(start), stats(t, d.Forwarder)
		var opened, evicted, established uint64
		for i := range now.Services {
			opened += now.Services[i].New - old.Services[i].New
			evicted += now.Services[i].Evicted - old.Services[i].Evicted
			established += now.Services[i].Established - old.Services[i].Established
		}
		t.Logf("%s flood: %d packets in %s, %d flows opened in a table of %d, %d established, %d evicted",
			flood.name, now.Received-old.Received, took.Round(time.Millisecond), opened, now.HalfFlows, established, evicted)
		if now.Received-old.Received != flood.packets || opened < flood.packets*99/100 || evicted != 0 {
			t.Errorf("%s flood: %d packets, %d opened, %d evicted", flood.name, now.Received-old.Received, opened, evicted)
		}
	}
}

// flood feeds in packets of random sources, from all CPUs and half to each family.
func (d device) flood(t *testing.T, packets uint64, frame func(vip string) []byte) {
	t.Helper()
	var g errgroup.Group
	var sent atomic.Uint64
	for cpu := range runtime.GOMAXPROCS(0) {
		feed := d.feeder()
		rnd := rand.New(rand.NewPCG(packets, uint64(cpu)))
		frames := [][]byte{frame(bothVIPs(80)[0]), frame(bothVIPs(80)[1])}
		g.Go(func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var err error
			in(t, d.ns, func() {
				for n := sent.Add(1); n <= packets && err == nil; n = sent.Add(1) {
					f := from(frames[n%2], 1<<20+rnd.IntN(1<<23)) // none of the flows
					fromPort(f, rnd.IntN(1<<16))
					_, err = feed.feed(f)
				}
			})
			return err
		})
	}
	check(t, g.Wait())
}
