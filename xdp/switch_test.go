package xdp

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// R16, R14, R17: when every backend drains, established TCP goes on, and
// everything else is dropped with a reason; when one takes flows again they go
// there. And a TCP flow that once had to move does not go back.
func TestServiceThatDrains(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 3)
	feed := d.feeder()
	for _, vip := range bothVIPs(0) {
		use := func(drain ...int) {
			now := slices.Clone(b[:2])
			for _, i := range drain {
				now[i].Weight, now[i].KeepTCP = 0, true
			}
			apply(t, d.Forwarder, tableOf(ofAll(vip, now...)))
		}
		use()
		before := make([]int, someFlows)
		for i := range someFlows {
			for range 1 + i%2 {
				before[i] = feed.to(t, follower(tcpData, vip, i))
			}
			feed.to(t, follower(udpData, vip, i))
		}
		for at, c := range []struct {
			drain []int
			takes string // all but established TCP
		}{{[]int{0, 1}, "drop no_backend"}, {[]int{0}, "b1"}, {[]int{1}, "b0"}} {
			use(c.drain...)
			for i := range someFlows {
				if got := feed.to(t, follower(tcpData, vip, i)); got != before[i] {
					t.Fatalf("%s: %v drain: flow %d went from b%d to b%d", vip, c.drain, i, before[i], got)
				}
				if got := d.outcome(t, follower(udpData, vip, i)); got != c.takes {
					t.Fatalf("%s: %v drain: udp flow %d: %s, want %s", vip, c.drain, i, got, c.takes)
				}
			}
			fresh := 4000 + at
			for _, name := range []string{newTCP, tcpData, udpData, espData} {
				if got := d.outcome(t, follower(name, vip, fresh)); got != c.takes {
					t.Errorf("%s: %v drain: new %s: %s, want %s", vip, c.drain, name, got, c.takes)
				}
			}
		}
		d.forgetFlows()
	}
	balanced(t, d.Forwarder)
}

// R28: however many leave at once, no packet goes to one that is not there; who
// stays keeps its flows.
func TestManyLeaveAtOnce(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 20)
	feed := d.feeder()
	before := make(map[int]int)
	all := slices.Clone(b)
	for left := len(b); left > 0; left /= 3 {
		here := all[:left]
		apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, here...)))
		moved := 0
		for i := range someFlows {
			got := feed.to(t, follower(tcpData, vipA, i))
			if got < 0 || got >= left {
				t.Fatalf("%d are left: flow %d went to b%d", left, i, got)
			}
			if was, ok := before[i]; ok && was < left && got != was {
				t.Errorf("%d are left: flow %d went from b%d, which stays, to b%d", left, i, was, got)
			}
			if before[i] != got {
				moved++
			}
			before[i] = got
		}
		if moved == 0 {
			t.Errorf("%d are left: nobody moves", left)
		}
	}
	balanced(t, d.Forwarder)
}

// R15: a backend of two services that leaves one of them keeps the flows of the
// other, also when it drains there, and gets none of the first.
func TestMembershipIsPerService(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 2)
	feed := d.feeder()
	first, second := bothVIPs(80)[0], bothVIPs(80)[1]
	use := func(one, other []edge.TableBackend) {
		apply(t, d.Forwarder, tableOf(service("one", first, edge.TCP, one...), service("other", second, edge.TCP, other...)))
	}
	send := func(vip string, flags uint8) (to []int) {
		for i := range someFlows {
			to = append(to, feed.to(t, from(tcpTo(vip, flags), i)))
		}
		return to
	}
	drains := b[0]
	drains.Weight, drains.KeepTCP = 0, true
	use(b, b)
	send(first, flagSYN)
	before := send(second, flagSYN)
	for name, other := range map[string][]edge.TableBackend{"stays": b, "drains": {drains, b[1]}} {
		use(b[1:], other)
		if got := send(first, flagACK); slices.Contains(got, 0) {
			t.Errorf("%s in the other: flows follow a backend that has left", name)
		}
		if got := send(second, flagACK); !slices.Equal(got, before) {
			t.Errorf("%s in the other: its flows moved there: %v, %v", name, before, got)
		}
	}
}

// R29: this box as a backend: its flows are the stack's whatever the ring says,
// and leave it as those of any other do.
func TestLocalBackendFlows(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 2)
	local := edge.TableBackend{ID: "here", Addr: addr(node4), Weight: 1} // by its address
	for _, vip := range bothVIPs(80) {
		use := func(b ...edge.TableBackend) { apply(t, d.Forwarder, tableOf(service("a", vip, edge.TCP, b...))) }
		expect := func(what string, i int, flags uint8, want string) {
			t.Helper()
			if got := d.outcome(t, from(tcpTo(vip, flags), i)); got != want {
				t.Errorf("%s: %s: flow %d: %s, want %s", vip, what, i, got, want)
			}
		}
		d.forgetFlows()
		use(local)
		for i := range 20 {
			expect("alone", i, flagSYN, "pass local")
			expect("alone", i, flagACK, "pass local")
		}
		gone := local
		gone.Weight, gone.KeepTCP = 0, true
		use(gone, b[0])
		for i := range 20 {
			expect("draining", i, flagACK, "pass local")
			expect("draining", 1000+i, flagSYN, "b0")
		}
		use(b[0])
		for i := range 20 {
			expect("gone", i, flagACK, "b0")
		}
		use(local, b[0])
		for i := range 20 {
			expect("back", i, flagACK, "b0")
		}
	}
}

// A switch to the other pool ends all flows of a service, if it is to, and only
// of that one: also if another process makes it.
func TestClearOnSwitch(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 4)
	// Both pools are members all the time, as with draining.
	table := func(pool edge.Pool, clear bool) edge.Table {
		backends := slices.Clone(b)
		for i := range backends {
			if (i < 2) != (pool == edge.PoolPrimary) {
				backends[i].Weight, backends[i].KeepTCP, backends[i].KeepOther = 0, true, true
			}
		}
		one, other := service("one", vipA, edge.TCP, backends...), service("other", vipB, edge.TCP, b...)
		one.Pool, one.ClearOnSwitch = pool, clear
		return tableOf(one, other)
	}
	send := func(vip string) map[string]int {
		counts := make(map[string]int)
		for i := range someFlows {
			counts[d.outcome(t, from(tcpTo(vip, flagACK), i))]++
		}
		return counts
	}
	primary, failover := []string{"b0", "b1"}, []string{"b2", "b3"}
	at := func(what string, want []string) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(send(vipA))); !slices.Equal(got, want) {
			t.Errorf("%s: flows are at %v, want %v", what, got, want)
		}
	}
	apply(t, d.Forwarder, table(edge.PoolPrimary, true))
	other := send(vipB)
	at("first", primary)
	apply(t, d.Forwarder, table(edge.PoolFailover, false))
	at("without clearing", primary)
	apply(t, d.Forwarder, table(edge.PoolPrimary, false))
	at("back without clearing", primary)
	apply(t, d.Forwarder, table(edge.PoolFailover, true))
	at("clearing", failover)
	apply(t, d.Forwarder, table(edge.PoolFailover, true))
	at("no switch", failover)
	d = d.another(t)
	at("another process", failover)
	apply(t, d.Forwarder, table(edge.PoolFailover, true))
	at("another process, no switch", failover)
	d = d.another(t)
	apply(t, d.Forwarder, table(edge.PoolPrimary, true))
	at("another process switches", primary)
	if got := send(vipB); !maps.Equal(got, other) {
		t.Errorf("the other service has %v, before %v", got, other)
	}
	if err := d.Flows(func(e edge.FlowEntry) bool {
		if e.Service == "one" && !slices.Contains(primary, string(e.Backend)) {
			t.Errorf("an old flow is listed: %+v", e)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	balanced(t, d.Forwarder)
}

// A process that ends between any two steps of a switch leaves it, and the
// clearing, to the next one: no flow is left in the pool before.
func TestSwitchCutShort(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 2)
	table := func(pool edge.Pool) edge.Table {
		backends := slices.Clone(b)
		out := 1
		if pool == edge.PoolFailover {
			out = 0
		}
		backends[out].Weight, backends[out].KeepTCP, backends[out].KeepOther = 0, true, true
		svc := service("a", vipA, edge.TCP, backends...)
		svc.Pool, svc.ClearOnSwitch = pool, true
		return tableOf(svc)
	}
	expect := func(cut int, want string) {
		t.Helper()
		for i := range 20 {
			if got := d.outcome(t, from(tcpTo(vipA, flagACK), i)); got != want {
				t.Fatalf("ended after %d steps: flow %d went to %s, want %s", cut, i, got, want)
			}
		}
	}
	for cut, steps := 0, 1; cut <= steps; cut++ {
		apply(t, d.Forwarder, table(edge.PoolPrimary))
		expect(cut, "b0")
		expect(cut, "b0")
		p, err := d.state.plan(table(edge.PoolFailover), time.Now())
		check(t, err)
		built, err := d.buildTables(t.Context(), p)
		check(t, err)
		all := d.steps(p, built)
		steps = len(all)
		for _, step := range all[:cut] {
			check(t, step())
		}
		closeMaps(built)
		d = d.another(t)
		apply(t, d.Forwarder, table(edge.PoolFailover))
		expect(cut, "b1")
	}
}
