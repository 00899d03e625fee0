package xdp

import (
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/flows"
)

// What a client does next, after a TCP connection that is remembered, when the
// ring has changed: with PerSession all that agrees in the affinity's fields
// follows that connection, with PerConnection nothing else does.
func TestSessionsAreShared(t *testing.T) {
	const clients = 40
	d := policyBox(t, 1<<16)
	b := pool(t, 8)
	oldRing, newRing := byTheRing(t, b[:4]), byTheRing(t, b)
	feed := d.feeder()
	next := []struct {
		name   string
		frame  func(vip string) []byte
		fields int // an affinity of no more than these has it in the same session
	}{
		{"syn from another port", func(vip string) []byte { return tcpTo(vip, flagSYN) }, 3},
		{"ack from another port", func(vip string) []byte { return tcpTo(vip, flagACK) }, 3},
		{"tcp fragment", func(vip string) []byte { return firstFragment(vip, 6) }, 3},
		{"udp", udpTo, 2},
		{"esp", func(vip string) []byte { return protoTo(vip, protoESP) }, 2},
	}
	connect := func(svc edge.TableService, i int) {
		vip := withPort(svc.VIP.String(), 80)
		feed.to(t, from(tcpTo(vip, flagSYN), i))
		feed.to(t, from(tcpTo(vip, flagACK), i))
	}
	apply(t, d.Forwarder, tableOf(policies(b[:4]...)...))
	for i := range clients * len(next) {
		for _, svc := range policies(b...) {
			connect(svc, i)
		}
	}
	apply(t, d.Forwarder, tableOf(policies(b...)...))
	for at, n := range next {
		for _, svc := range policies(b...) {
			fields, moved := fieldsOf[svc.Affinity], 0
			follows := svc.Tracking == edge.PerSession && fields <= n.fields
			for i := at * clients; i < (at+1)*clients; i++ {
				vip := withPort(svc.VIP.String(), 80)
				f := fromPort(from(n.frame(vip), i), 777)
				old, ring := oldRing(from(tcpTo(vip, flagACK), i), fields), newRing(f, fields)
				want := ring
				if follows {
					want = old
				}
				if old != ring {
					moved++
				}
				if got := nameOfNumber(feed.to(t, f)); got != want {
					t.Fatalf("%s to %s: %s, want %s; the connection is at %s, the ring says %s", n.name, svc.ID, got, want, old, ring)
				}
			}
			if moved == 0 {
				t.Errorf("%s to %s: the new ring moves nobody", n.name, svc.ID)
			}
		}
	}
}

// The affinity of the source alone holds from service to service, with the
// destination it does not.
func TestAffinityAcrossServices(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 8)
	for at, a := range affinities {
		one, other := ofAll("192.0.2.1:0", b...), ofAll("192.0.2.2:0", b...)
		one.Affinity, other.Affinity = a, a
		apply(t, d.Forwarder, tableOf(one, other))
		feed, same := d.feeder(), 0
		for i := range someFlows {
			client := at*someFlows + i // others each time: what is remembered stays
			if feed.to(t, from(udpTo("192.0.2.1:53"), client)) == feed.to(t, from(udpTo("192.0.2.2:53"), client)) {
				same++
			}
		}
		if all := same == someFlows; all != (a == edge.AffinityClientIPNoDestination) {
			t.Errorf("%s: %d of %d clients have the same backend in both services", a, same, someFlows)
		}
	}
}

// A client's sessions with two services are two, also where the affinity counts
// nothing but the client: each finds its own backend when both rings change.
func TestSessionsOfTwoServices(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 6)
	vips := []string{"192.0.2.1:0", "192.0.2.2:0"}
	use := func(sets ...[]edge.TableBackend) {
		var all []edge.TableService
		for i, vip := range vips {
			svc := ofAll(vip, sets[i]...)
			svc.Affinity, svc.Tracking = edge.AffinityClientIPNoDestination, edge.PerSession
			all = append(all, svc)
		}
		apply(t, d.Forwarder, tableOf(all...))
	}
	feed := d.feeder()
	send := func(vip string) (to []int) {
		for i := range someFlows {
			to = append(to, feed.to(t, from(udpTo(withPort(vip, 53)), i)))
		}
		return to
	}
	use(b[:2], b[2:4])
	var before [2][]int
	for range 2 {
		before = [2][]int{send(vips[0]), send(vips[1])}
	}
	use(b, b)
	for i, vip := range vips {
		if got := send(vip); !slices.Equal(got, before[i]) {
			t.Errorf("sessions with %s were at %v, are at %v", vip, before[i], got)
		}
	}
}

// A SYN that uses the ports of a live connection again is a new one: it goes
// where the ring says, and what follows it goes there too.
func TestPortsUsedAgain(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 8)
	newRing := byTheRing(t, b)
	for _, vip := range bothVIPs(80) {
		for name, packets := range map[string]int{"half-open": 1, "established": 3} {
			apply(t, d.Forwarder, tableOf(service("a", vip, edge.TCP, b[:4]...)))
			feed, moved := d.feeder(), 0
			old := make([]int, someFlows)
			for i := range someFlows {
				old[i] = feed.to(t, from(tcpTo(vip, flagSYN), i))
				for range packets - 1 {
					feed.to(t, from(tcpTo(vip, flagACK), i))
				}
			}
			apply(t, d.Forwarder, tableOf(service("a", vip, edge.TCP, b...)))
			before := stats(t, d.Forwarder).Services[0]
			for i := range someFlows {
				syn := from(tcpTo(vip, flagSYN), i)
				want := newRing(syn, 5)
				if want != nameOfNumber(old[i]) {
					moved++
				}
				for at, f := range [][]byte{syn, from(tcpTo(vip, flagACK), i), from(tcpTo(vip, flagACK), i)} {
					if got := nameOfNumber(feed.to(t, f)); got != want {
						t.Fatalf("%s %s: packet %d of flow %d went to %s, the ring says %s, before it was b%d", vip, name, at, i, got, want, old[i])
					}
				}
			}
			// What is established keeps its place in the table.
			after := stats(t, d.Forwarder).Services[0]
			if got := after.By["half"] - before.By["half"]; (got == 0) != (packets > 1) {
				t.Errorf("%s %s: %d packets were found in the half-open table", vip, name, got)
			}
			if moved == 0 {
				t.Errorf("%s %s: the new ring moves nobody", vip, name)
			}
			d.forgetFlows()
		}
	}
}

// A flow is remembered for the idle time from its last packet on, and no longer.
func TestIdleTimeout(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 8)
	newRing := byTheRing(t, b)
	for timeout, ticks := range map[time.Duration]flows.Tick{0: 56, 10 * time.Second: 10, time.Hour: 3353} {
		use := func(b []edge.TableBackend) {
			svc := service("a", vipA, edge.TCP, b...)
			svc.IdleTimeout = timeout
			apply(t, d.Forwarder, tableOf(svc))
		}
		for name, packets := range map[string]int{"half-open": 1, "established": 2} {
			use(b[:4])
			feed := d.feeder()
			old := make([]int, someFlows)
			for i := range someFlows {
				for range packets {
					old[i] = feed.to(t, from(tcpTo(vipA, flagACK), i))
				}
			}
			use(b)
			earlyInTick(t)
			d.leave(t, 0) // it is the last tick at which they count
			for i := range someFlows {
				if got := feed.to(t, from(tcpTo(vipA, flagACK), i)); got != old[i] {
					t.Fatalf("%s, %s: flow %d went from b%d to b%d before its time", timeout, name, i, old[i], got)
				}
			}
			d.remembered(t, func(e *flows.Entry, now flows.Tick) {
				// A tick may pass in between.
				if left := e.Until - now; left != ticks && left != ticks-1 {
					t.Errorf("%s, %s: after a packet %d ticks are left, want %d", timeout, name, left, ticks)
				}
			})
			d.leave(t, -1)
			moved := 0
			for i := range someFlows {
				f := from(tcpTo(vipA, flagACK), i)
				got := feed.to(t, f)
				if want := newRing(f, 5); nameOfNumber(got) != want {
					t.Fatalf("%s, %s: flow %d, forgotten, went to b%d, the ring says %s", timeout, name, i, got, want)
				}
				if got != old[i] {
					moved++
				}
			}
			if moved == 0 {
				t.Error("the new ring moves nobody")
			}
			d.forgetFlows()
		}
	}
}

// earlyInTick waits until there is time left before the next tick.
func earlyInTick(t testing.TB) {
	t.Helper()
	eventually(t, "a tick begins", func() bool {
		now, err := monotonic()
		check(t, err)
		return now&(1<<tickShift-1) < 1<<(tickShift-1)
	})
}

// What is not tracked takes no place in the tables.
func TestNotTracked(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 2)
	for _, vip := range bothVIPs(0) {
		svc := ofAll(vip, b...)
		svc.Affinity = edge.AffinityNone
		apply(t, d.Forwarder, tableOf(svc))
		feed := d.feeder()
		for i := range someFlows {
			for _, f := range [][]byte{udpTo(withPort(vip, 53)), protoTo(vip, protoESP), protoTo(vip, protoGRE), protoTo(vip, protoSCTP), firstFragment(vip, 17)} {
				if got := feed.to(t, from(f, i)); got == nowhere {
					t.Fatal("not forwarded")
				}
			}
			feed.to(t, from(tcpTo(withPort(vip, 80), flagRST), i))
		}
		n := stats(t, d.Forwarder).Services[0]
		if n.New != 0 || n.By["ring"] != 6*someFlows || n.Packets != 6*someFlows {
			t.Errorf("%s: %+v", vip, n)
		}
		d.remembered(t, func(e *flows.Entry, _ flows.Tick) { t.Errorf("%s: remembered: %+v", vip, e) })
	}
}
