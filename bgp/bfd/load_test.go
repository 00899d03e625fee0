package bfd

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	loadTime = flag.Duration("load", 2*time.Second, "how long TestUnderLoad keeps the CPUs busy")
	loadHogs = flag.Int("hogs", 1, "processes for each CPU that TestUnderLoad has compute")
	loadOwn  = flag.Int("own-hogs", 0, "goroutines of this process that compute and allocate meanwhile, for each CPU")
)

// cpu is the time that a thread of this process has computed.
func cpu(t testing.TB, tid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", tid))
	must(t, err)
	ns, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
	must(t, err)
	return time.Duration(ns)
}

// many runs two engines with n sessions between them, each at addresses of its
// own, since a session is known by its peer; and waits until all are up.
func many(t testing.TB, n int, interval time.Duration) (a, b *running) {
	t.Helper()
	sa, sb := pair(t)
	var near, far []Config
	for i := range n {
		here, there := netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(1 + i%250)}), netip.AddrFrom4([4]byte{10, 2, byte(i / 250), byte(1 + i%250)})
		sa.Up(t, "lo", here.String()+"/32")
		sb.Up(t, "lo", there.String()+"/32")
		near = append(near, Config{Peer: there, Local: here, MinTx: interval, MinRx: interval})
		far = append(far, Config{Peer: here, Local: there, MinTx: interval, MinRx: interval})
	}
	route(t, sa, "v0", "10.2.0.0/16", "10.0.0.2")
	route(t, sb, "v0", "10.1.0.0/16", "10.0.0.1")
	a, b = run(t, sa), run(t, sb)
	a.set(near...)
	b.set(far...)
	eventually(t, func() string { return a.notAgreed(n, interval) })
	eventually(t, func() string { return b.notAgreed(n, interval) })
	return a, b
}

// notAgreed says how many of n sessions are not up at an interval.
func (r *running) notAgreed(n int, interval time.Duration) string {
	up := 0
	for _, s := range r.States() {
		if s.State == Up && s.Rx == interval && s.Tx == interval {
			up++
		}
	}
	if up == n {
		return ""
	}
	return fmt.Sprintf("%d of %d sessions are up", up, n)
}

// flaps are those of all sessions.
func (r *running) flaps() (n int) {
	for _, s := range r.States() {
		n += s.Flaps
	}
	return n
}

// TestManySessions: 256 sessions come up, stay up, and are cheap.
func TestManySessions(t *testing.T) {
	const n = 256
	a, b := many(t, n, 300*ms)
	began, used := time.Now(), cpu(t, a.tid)
	packets := a.received()
	eventually(t, func() string {
		if time.Since(began) < 2*time.Second {
			return "still measuring"
		}
		return ""
	})
	took := time.Since(began)
	share := float64(cpu(t, a.tid)-used) / float64(took)
	rate := float64(a.received()-packets) / took.Seconds()
	t.Logf("%d sessions at 300 ms: %.1f %% of a CPU, %.0f packets/s each way", n, 100*share, rate)
	// The answers to the polls of the beginning are among them.
	// The box may be late, but nobody is early.
	if want := n / 0.2625; rate < want*0.7 || rate > want*1.2 {
		t.Errorf("%.0f packets/s, want about %.0f", rate, want)
	}
	// Without the race detector it is some 2 %; a turn that costs too much, or
	// a loop that does not wait, is found here all the same.
	if share > 0.4 {
		t.Errorf("%.0f %% of a CPU", 100*share)
	}
	if f := a.flaps() + b.flaps(); f != 0 {
		t.Errorf("%d flaps", f)
	}
}

func (r *running) received() (n uint64) {
	for _, s := range r.States() {
		n += s.Received
	}
	return n
}

// TestUnderLoad: 50 ms times 3 while all CPUs are busy. Run it longer with
// -load 20s -hogs 4.
func TestUnderLoad(t *testing.T) {
	sa, sb := pair(t)
	a, b := run(t, sa), run(t, sb)
	fast := func(peer, local string) Config {
		c := to(peer, local)
		c.MinTx, c.MinRx = 50*ms, 50*ms
		return c
	}
	// Not a router: it would starve, and tell us so.
	a.set(fast("10.0.0.2", "10.0.0.1"))
	b.set(fast("10.0.0.1", "10.0.0.2"))
	eventually(t, func() string { return a.notAgreed(1, 50*ms) })

	for i := range *loadHogs * runtime.NumCPU() {
		p := sb.Start(t, fmt.Sprintf("%s/hog%d", t.TempDir(), i), "sh", "-c", "while :; do :; done")
		defer p.Stop(9)
	}
	var stop atomic.Bool
	defer stop.Store(true)
	for range *loadOwn * runtime.NumCPU() {
		go burn(&stop)
	}
	<-time.After(*loadTime)
	for _, r := range []*running{a, b} {
		for _, s := range r.States() {
			t.Logf("to %s: %d flaps, %d sent, %d received, %s", s.Peer, s.Flaps, s.Sent, s.Received, s.Diag)
			if s.Flaps != 0 || s.State != Up {
				t.Errorf("false detection: %+v", s)
			}
		}
	}
}

// burn computes and makes garbage.
func burn(stop *atomic.Bool) {
	keep := make([][]byte, 1024)
	for i := 0; !stop.Load(); i++ {
		keep[i%len(keep)] = make([]byte, 4096)
	}
	runtime.KeepAlive(keep)
}

// BenchmarkSessions reports what 256 sessions at 300 ms take of a CPU.
func BenchmarkSessions(b *testing.B) {
	a, _ := many(b, 256, 300*ms)
	began, used := time.Now(), cpu(b, a.tid)
	for b.Loop() {
		a.States()
		<-time.After(100 * ms) // the engine's work is what is measured
	}
	b.ReportMetric(100*float64(cpu(b, a.tid)-used)/float64(time.Since(began)), "%cpu")
}

// BenchmarkPacket is a packet that comes in and the look at the timers after
// it, without the sockets.
func BenchmarkPacket(b *testing.B) {
	l := &loop{bySource: map[source]*session{}, onChange: func(Status) {}, lines: make(chan line)}
	r := &receiver{}
	s := &session{rx: r, m: newMachine(time.Now(), 1, standard(), jitter), tx: -1}
	from := netip.MustParseAddr("10.0.0.2")
	l.bySource[source{from: from}] = s
	l.sessions = []*session{s}
	s.m.receive(time.Now(), heard(Init))
	s.m.txAt = time.Now().Add(time.Hour)
	p := heard(Up)
	p.minRx = time.Hour
	var out [packetLen]byte
	p.put(&out)
	b.ReportAllocs()
	for b.Loop() {
		l.take(r, datagram{from: from, ttl: 255, payload: out[:]})
		l.tick()
	}
}

// TestThreadPriority: the thread is put before others, and is as before when
// Run has ended.
func TestThreadPriority(t *testing.T) {
	s := newSpace(t)
	policy := func() (deadline bool, nice int) {
		attr, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Error(err) // not Fatal: this is not the test's goroutine
			return false, 0
		}
		return attr.Policy == unix.SCHED_DEADLINE, int(attr.Nice)
	}
	must(t, s.Run(func() error {
		_, before := policy()
		ctx, cancel := context.WithCancel(context.Background())
		var deadline bool
		var nice int
		e := New(Options{OnChange: func(Status) { deadline, nice = policy(); cancel() }})
		// A change at once: the session is switched off.
		off := to("127.0.0.2", "127.0.0.1")
		must(t, e.Set([]Config{off}))
		off.AdminDown = true
		go func() { <-e.Ready(); _ = e.Set([]Config{off}) }()
		if err := e.Run(ctx); err != nil {
			return err
		}
		if !deadline && nice != -20 {
			t.Errorf("the thread had no priority: nice %d", nice)
		}
		if deadline, after := policy(); deadline || after != before {
			t.Errorf("the thread keeps its priority: nice %d, before %d", after, before)
		}
		return nil
	}))
}
