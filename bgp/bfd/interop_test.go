package bfd

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"
)

// pace is the interval of the routers: three of it must not pass while the box
// of the tests is busy.
const pace = 200 * ms

// withRouters runs a test with BIRD and with FRR.
func withRouters(t *testing.T, f func(*testing.T, func(testing.TB, *space, time.Duration, ...neighbour) router)) {
	t.Parallel()
	t.Run("BIRD", func(t *testing.T) { t.Parallel(); f(t, newBird) })
	t.Run("FRR", func(t *testing.T) { t.Parallel(); f(t, newFRR) })
}

// life is a session over IPv4 and one over IPv6 with a router.
type life struct {
	*testing.T
	sa, sb     *space
	e          *running
	r          router
	cfg4, cfg6 Config
}

// TestRouters: a session's whole life with a router.
func TestRouters(t *testing.T) {
	withRouters(t, func(t *testing.T, start func(testing.TB, *space, time.Duration, ...neighbour) router) {
		l := &life{T: t, cfg4: to("10.0.0.2", "10.0.0.1"), cfg6: on("v0", to("fd00::2", "fd00::1"))}
		l.sa, l.sb = pair(t)
		l.e = run(t, l.sa)
		l.r = start(t, l.sb, pace, neighbour{addr: "10.0.0.1", local: "10.0.0.2", iface: "v0"}, neighbour{addr: "fd00::1", local: "fd00::2", iface: "v0"})
		l.e.set(l.cfg4, l.cfg6)
		l.up()
		l.timers()
		l.hops()
		l.freeze()
		l.restart()
		l.adminDown()
		l.end()
	})
}

// both ends' addresses, as the other end knows them.
func theirs() []string { return []string{"10.0.0.2", "fd00::2"} }
func ours() []string   { return []string{"10.0.0.1", "fd00::1"} }

// up waits until all is up at both ends.
func (l *life) up() {
	l.Helper()
	for _, peer := range theirs() {
		st := l.e.becomes(peer, "up, and the pace agreed on", func(s Status) bool { return s.State == Up && s.Detect == 3*pace })
		if st.Tx != pace || st.Rx != pace || st.Failed() {
			l.Errorf("status %+v", st)
		}
	}
	for _, addr := range ours() {
		says(l, l.r, addr, "up, and the pace agreed on", func(s routerSession) bool { return isUp(s) && s.tx == pace && s.detect == 3*pace })
	}
}

// timers: they change without a flap.
func (l *life) timers() {
	before, flaps := l.r.session("10.0.0.1"), l.e.status("10.0.0.2").Flaps
	l.cfg4.MinTx, l.cfg4.MinRx, l.cfg4.Multiplier = 400*ms, 250*ms, 5
	l.e.set(l.cfg4, l.cfg6)
	after := says(l, l.r, "10.0.0.1", "the new timers", func(s routerSession) bool { return s.tx == 250*ms && s.detect == 2000*ms })
	st := l.e.becomes("10.0.0.2", "the new timers", func(s Status) bool { return s.Tx == 400*ms && s.Rx == 250*ms && s.Detect == 750*ms })
	if after.state != "up" || after.since != before.since || st.Flaps != flaps {
		l.Errorf("flapped: %+v, before %+v; %+v", after, before, st)
	}
	l.cfg4.MinTx, l.cfg4.MinRx, l.cfg4.Multiplier = 100*ms, 100*ms, 0 // less than the router's
	l.e.set(l.cfg4, l.cfg6)
	l.up()
}

// hops: a packet from beyond the link is dropped, whatever it says.
func (l *life) hops() {
	down := packet{state: Down, multiplier: 3, mine: 9, minTx: time.Second, minRx: time.Second}
	var b [packetLen]byte
	down.put(&b)
	for i, peer := range theirs() {
		from, at := netip.MustParseAddr(peer), netip.MustParseAddr(ours()[i])
		sendRaw(l, l.sb, rawPacket{netip.AddrPortFrom(from, 0), netip.AddrPortFrom(at, portSingle), 254, b[:]})
		if st := l.e.becomes(peer, "counted", func(s Status) bool { return s.Dropped["ttl"] == 1 }); st.State != Up {
			l.Errorf("status %+v", st)
		}
	}
}

// freeze: the router's processes stop, and go on.
func (l *life) freeze() {
	stopped := time.Now()
	must(l, l.r.process().Cmd.Process.Signal(syscall.SIGSTOP))
	for _, peer := range theirs() {
		st := l.e.reaches(peer, Down)
		if !st.Failed() || st.Diag != DiagExpired {
			l.Errorf("status %+v", st)
		}
		// The detection time from its last packet, and some for a busy box.
		if took := st.Since.Sub(stopped); took < 2*pace || took > 5*pace {
			l.Errorf("down after %s", took)
		}
	}
	must(l, l.r.process().Cmd.Process.Signal(syscall.SIGCONT))
	l.up()
}

// restart: the router is killed and comes back with other discriminators.
func (l *life) restart() {
	first := l.e.status("10.0.0.2")
	l.r.restart()
	l.e.becomes("10.0.0.2", "up with another discriminator", func(s Status) bool {
		return s.State == Up && s.Remote != first.Remote && s.Local == first.Local && s.Flaps > first.Flaps
	})
	l.up()
}

// adminDown: the router sees it, and that it ends.
func (l *life) adminDown() {
	l.cfg4.AdminDown = true
	l.e.set(l.cfg4, l.cfg6)
	says(l, l.r, "10.0.0.1", "down by our word", func(s routerSession) bool {
		return isDown(s) && (s.remoteReason == "" || s.remoteReason == "administratively down")
	})
	l.cfg4.AdminDown = false
	l.e.set(l.cfg4, l.cfg6)
	l.up()
}

// end: the router is told at once, before any detection time, and takes our
// new discriminator after a restart.
func (l *life) end() {
	first := l.e.status("10.0.0.2").Local
	l.e.end()
	for _, addr := range ours() {
		says(l, l.r, addr, "down", isDown)
	}
	l.e = run(l, l.sa)
	l.e.set(l.cfg4, l.cfg6)
	l.up()
	if l.e.status("10.0.0.2").Local == first {
		l.Error("the same discriminator after a restart")
	}
}

// TestRoutersMultihop: over a router between, which takes one from the TTL.
func TestRoutersMultihop(t *testing.T) {
	withRouters(t, func(t *testing.T, start func(testing.TB, *space, time.Duration, ...neighbour) router) {
		sa, sr, sb := newSpace(t), newSpace(t), newSpace(t)
		link(t, sa, sr, "v0") // 10.0.0.1 - 10.0.0.2
		link(t, sb, sr, "v1") // addresses of its own follow
		sr.Up(t, "v1", "10.0.1.1/24", "fd01::1/64")
		sb.Up(t, "v1", "10.0.1.2/24", "fd01::2/64")
		unaddress(t, sr, "v1", "10.0.0.2/24", "fd00::2/64")
		unaddress(t, sb, "v1", "10.0.0.1/24", "fd00::1/64")
		must(t, sr.Run(func() error {
			return errors.Join(
				os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
				os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
		}))
		route(t, sa, "v0", "10.0.1.0/24", "10.0.0.2")
		route(t, sa, "v0", "fd01::/64", "fd00::2")
		route(t, sb, "v1", "10.0.0.0/24", "10.0.1.1")
		route(t, sb, "v1", "fd00::/64", "fd01::1")

		e := run(t, sa)
		r := start(t, sb, pace, neighbour{addr: "10.0.0.1", local: "10.0.1.2", multihop: true}, neighbour{addr: "fd00::1", local: "fd01::2", multihop: true})
		cfg4, cfg6 := multi(to("10.0.1.2", "10.0.0.1")), multi(to("fd01::2", "fd00::1"))
		e.set(cfg4, cfg6)
		for _, peer := range []string{"10.0.1.2", "fd01::2"} {
			e.becomes(peer, "up", func(s Status) bool { return s.State == Up && s.Detect == 3*pace })
		}
		says(t, r, "10.0.0.1", "up", isUp)
		says(t, r, "fd00::1", "up", isUp)

		// How far away the far end may be is ours to say: here no hop at all.
		cfg4.MinTTL, cfg6.MinTTL = 255, 255
		e.set(cfg4, cfg6)
		for _, peer := range []string{"10.0.1.2", "fd01::2"} {
			if st := e.reaches(peer, Down); st.Dropped["ttl"] == 0 || st.Diag != DiagExpired {
				t.Errorf("status %+v", st)
			}
		}
		cfg4.MinTTL, cfg6.MinTTL = 0, 0
		e.set(cfg4, cfg6)
		for _, peer := range []string{"10.0.1.2", "fd01::2"} {
			e.reaches(peer, Up)
		}
		e.set(cfg6)
		says(t, r, "10.0.0.1", "down", isDown)
		says(t, r, "fd00::1", "up", isUp)
	})
}

// TestBesideAnotherDaemon: BIRD or FRR runs BFD of its own on the same box, at
// another address; whoever starts first.
func TestBesideAnotherDaemon(t *testing.T) {
	withRouters(t, func(t *testing.T, start func(testing.TB, *space, time.Duration, ...neighbour) router) {
		for _, first := range []string{"daemon", "engine"} {
			sa, sb := pair(t)
			sa.Up(t, "v0", "10.0.0.5/24")
			far := run(t, sb)
			far.set(to("10.0.0.1", "10.0.0.2"), to("10.0.0.5", "10.0.0.2"))
			var e *running
			if first == "engine" {
				e = run(t, sa)
				e.set(to("10.0.0.2", "10.0.0.1"))
			}
			r := start(t, sa, pace, neighbour{addr: "10.0.0.2", local: "10.0.0.5", iface: "v0"})
			if first == "daemon" {
				far.reaches("10.0.0.5", Up)
				e = run(t, sa)
				e.set(to("10.0.0.2", "10.0.0.1"))
			}
			e.reaches("10.0.0.2", Up)
			far.reaches("10.0.0.1", Up)
			far.reaches("10.0.0.5", Up)
			says(t, r, "10.0.0.2", "up", isUp)
			if got := fmt.Sprint(e.Dropped(), e.status("10.0.0.2").Dropped); got != "map[] map[]" {
				t.Errorf("%s first: we got the other's packets: %s", first, got)
			}
			e.end()
			far.end()
		}
	})
}
