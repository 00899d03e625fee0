package xdp

import (
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// limited is a service with a limit, and feeds SYNs to it.
type limited struct {
	device
	vip  string
	feed *feeder
}

// open has n clients from the i-th on open a connection each, and returns how
// many were let through and how long it took.
func (l limited) open(t testing.TB, i, n int) (passed int, took time.Duration) {
	t.Helper()
	start := time.Now()
	for at := range n {
		if l.feed.to(t, from(tcpTo(l.vip, flagSYN), i+at)) != nowhere {
			passed++
		}
	}
	return passed, time.Since(start)
}

func newLimited(t testing.TB, d device, vip string, limit edge.SYNLimit, b []edge.TableBackend) limited {
	t.Helper()
	svc := service("limited "+vip, vip, edge.TCP, b...)
	svc.SYNLimit = limit
	apply(t, d.Forwarder, tableOf(svc))
	return limited{d, vip, d.feeder()}
}

// dropped sends a frame that opens a flow until it is dropped by a limit of one a
// second, and says how often that was. It is not the first time if a second has
// passed since the last one, which it may on a busy box.
func (d device) dropped(t testing.TB, frame []byte, want string) (sent int) {
	t.Helper()
	eventually(t, want, func() bool {
		sent++
		return d.outcome(t, frame) == want
	})
	return sent
}

// within fails unless so many of a rate and a burst have passed in a time.
func within(t testing.TB, what string, passed int, l [2]int, took time.Duration) {
	t.Helper()
	rate, burst := l[0], l[1]
	most := burst + int(took.Seconds()*float64(rate)) + 1
	if passed < burst || passed > most {
		t.Errorf("%s: %d passed in %s, want %d to %d", what, passed, took, burst, most)
	}
}

// The limit of a service: a burst, then the rate, both families; what is not a
// SYN does not count and is not limited.
func TestServiceLimit(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 2)
	for _, vip := range bothVIPs(80) {
		const rate, burst, all = 200, 50, 3000
		l := newLimited(t, d, vip, edge.SYNLimit{Rate: rate, Burst: burst}, b)
		for i := range 20 {
			if got := d.outcome(t, from(tcpTo(vip, flagACK), i)); got != "b0" && got != "b1" {
				t.Errorf("%s: an ACK: %s", vip, got)
			}
		}
		passed, took := l.open(t, 1000, all)
		within(t, vip, passed, [2]int{rate, burst}, took)
		// What is established goes on, and so does what only looks like a SYN.
		for i := range 20 {
			for _, flags := range []uint8{flagACK, flagACK | flagFIN, flagRST, flagSYN | flagACK} {
				if got := d.outcome(t, from(tcpTo(vip, flags), i)); got != "b0" && got != "b1" {
					t.Errorf("%s: flags %d of an established flow: %s", vip, flags, got)
				}
			}
		}
		n := stats(t, d.Forwarder).Services[0]
		if n.By["limited"] != uint64(all-passed) || n.New != 20+uint64(passed) {
			t.Errorf("%s: %d of %d passed, counted as %+v", vip, passed, all, n)
		}
		if got := d.outcome(t, from(tcpTo(vip, flagSYN), 9000)); got != "drop syn_limit_service" && got != "b0" && got != "b1" {
			t.Errorf("%s: one too many: %s", vip, got)
		}
		eventually(t, "the rate lets the next one through", func() bool {
			passed, _ := l.open(t, 9001, 1)
			return passed == 1
		})
	}
	balanced(t, d.Forwarder)
}

// The limit of a source: each has its own; of IPv6 it is the /64.
func TestSourceLimit(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 2)
	for _, vip := range bothVIPs(80) {
		l := newLimited(t, d, vip, edge.SYNLimit{SourceRate: 1, SourceBurst: 3}, b)
		for client := range 50 {
			passed, start := 0, time.Now()
			for i := range 40 {
				f := fromPort(from(tcpTo(vip, flagSYN), client), 2000+i)
				if packetOf(vip, 0, 6).v6() {
					f[src6At+15] = byte(i) // another address of the /64
				}
				if l.feed.to(t, f) != nowhere {
					passed++
				}
			}
			within(t, vip, passed, [2]int{1, 3}, time.Since(start))
		}
		d.dropped(t, from(tcpTo(vip, flagSYN), 49), "drop syn_limit_source")
	}
	// The next /64 is another source, and so is the next address of IPv4.
	for i, vip := range bothVIPs(80) {
		newLimited(t, d, vip, edge.SYNLimit{SourceRate: 1, SourceBurst: 1}, b)
		f := from(tcpTo(vip, flagSYN), 7000)
		neighbour := with(f, []int{src4At + 3, src6At + 7}[i], f[[]int{src4At + 3, src6At + 7}[i]]^1)
		for _, x := range []struct {
			frame  []byte
			passes bool
		}{{f, true}, {f, false}, {neighbour, true}, {neighbour, false}} {
			if got := d.outcome(t, x.frame) != "drop syn_limit_source"; got != x.passes {
				t.Errorf("%s: passes: %v, want %v", vip, got, x.passes)
			}
		}
	}
}

// One source over its limit leaves the service's budget to the others, and one
// service's limits are not another's.
func TestLimitsAreSeparate(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 2)
	limit := edge.SYNLimit{Rate: 1, Burst: 100, SourceRate: 1, SourceBurst: 10}
	one, other := service("one", vipA, edge.TCP, b...), service("other", vipB, edge.TCP, b...)
	one.SYNLimit, other.SYNLimit = limit, limit
	apply(t, d.Forwarder, tableOf(one, other))
	feed := d.feeder()
	flood := func(vip string, client, n int) (passed int) {
		for i := range n {
			if feed.to(t, fromPort(from(tcpTo(vip, flagSYN), client), 2000+i)) != nowhere {
				passed++
			}
		}
		return passed
	}
	start := time.Now()
	greedy := flood(vipA, 1, 5000)
	within(t, "one source", greedy, [2]int{1, 10}, time.Since(start))
	rest, begun := 0, time.Now()
	for client := range 300 {
		rest += flood(vipA, 100+client, 1)
	}
	within(t, "all others", rest+greedy, [2]int{1, 100}, time.Since(start))
	more := d.dropped(t, fromPort(from(tcpTo(vipA, flagSYN), 1), 9), "drop syn_limit_source")
	more += d.dropped(t, from(tcpTo(vipA, flagSYN), 5000), "drop syn_limit_service")
	// The greedy one has its own budget at the other service, which has all of its own.
	within(t, "the same source, other service", flood(vipB, 1, 500), [2]int{1, 10}, time.Since(begun))
	for _, s := range stats(t, d.Forwarder).Services {
		if want := map[edge.ServiceID]uint64{"one": uint64(5000 + 300 + more), "other": 500}[s.Service]; s.Packets != want || s.By["limited"]+s.New != want {
			t.Errorf("%s: %+v, want %d packets", s.Service, s, want)
		}
	}
}

// A limit that is taken away limits no more, and a new one holds at once: what a
// slow one has held up does not hold up who is allowed more now.
func TestLimitChanges(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 1)
	slow, fast := edge.SYNLimit{Rate: 1, Burst: 60}, edge.SYNLimit{Rate: edge.MaxSYNRate, Burst: edge.MaxSYNRate}
	slowSource, fastSource := edge.SYNLimit{SourceRate: 1, SourceBurst: 60}, edge.SYNLimit{SourceRate: edge.MaxSYNRate, SourceBurst: edge.MaxSYNRate}
	for i, c := range []struct {
		limit edge.SYNLimit
		all   bool
	}{{edge.SYNLimit{}, true}, {slow, false}, {edge.SYNLimit{}, true}, {slow, false}, {fast, true}, {slowSource, false}, {fastSource, true}, {slowSource, false}} {
		l, passed := newLimited(t, d, vipA, c.limit, b), 0
		for range 200 {
			one, _ := l.open(t, 7, 1)
			passed += one
		}
		if passed == 200 != c.all {
			t.Errorf("%d: %+v: %d of 200 passed", i, c.limit, passed)
		}
	}
}
