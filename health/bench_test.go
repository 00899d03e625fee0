package health

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// The load of the benchmark: so many probes with an interval of a second.
const benchmarkProbes = 2000

// benchmarkRounds is how often each load is measured, in turns with the others.
const benchmarkRounds = 5

// Benchmark2000ProbesPerSecond has 2,000 probes with an interval of a second ask
// a server in another process, and reports the CPU time of this process (user and
// system, with all its threads and what the kernel charges it for): of each run
// (us/run), and as a share of one core at 2,000 runs a second (cpu-%).
//
// Over loopback that holds a part of the other end too: what a packet of ours does
// to the server's socket is done, and charged, when it is sent. What the server's
// own packets do to our sockets is charged to the server.
//
// In turns with it, under the same load of the box, three others ask the same
// server as often: the system calls of the engine alone, in the same order and
// batches (floor); a loop of blocking calls as a simple program makes them, with
// a new socket for each run (plain); and HAProxy with 2,000 servers to check each
// second. The first two check nothing but that an answer comes.
func Benchmark2000ProbesPerSecond(b *testing.B) {
	at := startTarget(b)
	probe := edge.Probe{Kind: edge.ProbeTCP, Addr: at, URL: "http://" + at.String() + "/"}
	web, kept := probe, probe
	web.Kind, kept.Kind, kept.KeepAlive = edge.ProbeHTTP, edge.ProbeHTTP, true
	ours := func(p edge.Probe) load { return func(b *testing.B) generator { return startMonitor(b, p) } }
	loads := []struct {
		name    string
		load    load
		against []string // loads that do the same
	}{
		{"floor_tcp", floor(probe), nil},
		{"plain_tcp", plain(probe), nil},
		{"haproxy_tcp", haproxy(at, ""), nil},
		{"tcp", ours(probe), []string{"floor_tcp", "plain_tcp", "haproxy_tcp"}},
		{"floor_http", floor(web), nil},
		{"plain_http", plain(web), nil},
		{"haproxy_http", haproxy(at, "option httpchk GET /"), nil},
		{"http", ours(web), []string{"floor_http", "plain_http", "haproxy_http"}},
		{"floor_http_keepalive", floor(kept), nil},
		{"http_keepalive", ours(kept), []string{"floor_http_keepalive"}},
		{"schedule", ours(edge.Probe{Kind: "nothing"}), nil},
	}
	found := map[string][]figure{}
	for range benchmarkRounds {
		for _, l := range loads {
			found[l.name] = append(found[l.name], measure(b, l.name, l.load))
		}
	}
	for name := range found {
		slices.SortFunc(found[name], func(x, y figure) int { return cmp.Compare(x.perRun(), y.perRun()) })
	}
	for _, l := range loads {
		all := found[l.name]
		b.Run(l.name, func(b *testing.B) {
			for b.Loop() { // all has been measured
			}
			f := all[len(all)/2]
			b.ReportMetric(0, "ns/op") // not shown
			b.ReportMetric(f.share(), "cpu-%")
			b.ReportMetric(f.perRun(), "us/run")
			b.ReportMetric(all[0].perRun(), "least-us/run")
			b.ReportMetric(all[len(all)-1].perRun(), "most-us/run")
			b.ReportMetric(f.rate(), "runs/s")
			for _, name := range l.against {
				b.ReportMetric(found[name][len(all)/2].perRun(), "us/run:"+name)
			}
		})
	}
}

// figure is what a load has cost.
type figure struct {
	runs       uint64
	used, wall time.Duration // CPU time, and that of the clock
}

// perRun returns the µs of CPU time of a run.
func (f figure) perRun() float64 { return float64(f.used) / 1e3 / float64(f.runs) }

// rate returns how many runs there were in a second.
func (f figure) rate() float64 { return float64(f.runs) / f.wall.Seconds() }

// share returns percent of a core, at the rate that is the goal: a round that was
// behind it must not look cheap.
func (f figure) share() float64 { return f.perRun() * benchmarkProbes / 1e4 }

// load starts a load.
type load func(b *testing.B) generator

// generator is a load that runs.
type generator struct {
	used func() time.Duration // CPU time of the process that makes it
	runs func() uint64        // how many there have been
	stop func()
}

// during says what a load costs for so long.
func (g generator) during(d time.Duration) figure {
	runs, used, begin := g.runs(), g.used(), time.Now()
	<-time.After(d)
	return figure{g.runs() - runs, g.used() - used, time.Since(begin)}
}

// measure runs a load for a few seconds once it has its pace.
func measure(b *testing.B, name string, l load) figure {
	g := l(b)
	defer g.stop()
	for end := time.Now().Add(20 * time.Second); g.during(time.Second).rate() < 0.9*benchmarkProbes; {
		if time.Now().After(end) {
			b.Fatalf("%s never came to %d runs a second", name, benchmarkProbes)
		}
	}
	f := g.during(4 * time.Second)
	if f.used <= 0 {
		b.Fatalf("%s has used no CPU in %d runs", name, f.runs)
	}
	return f
}

// startMonitor runs a monitor with so many probes like p.
func startMonitor(b *testing.B, p edge.Probe) generator {
	m := New(Options{Probers: map[edge.ProbeKind]Prober{
		"nothing": ProberFunc(func(context.Context, edge.Probe) error { return nil }),
	}})
	var probes []edge.Probe
	for i := range benchmarkProbes {
		p.ID = edge.ProbeID(fmt.Sprintf("p%d", i))
		p.Interval, p.Timeout, p.Rise, p.Fall = time.Second, time.Second, 1, 3
		probes = append(probes, p)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	m.Set(probes)
	for !m.Settled() { // the fast start is not what is measured
		<-m.Changed()
	}
	return generator{cpuTime, func() uint64 { return m.Counts().Runs }, func() {
		for _, s := range m.Statuses() {
			if s.State != edge.Up || s.LastErr != "" {
				b.Errorf("probe %s: %s, %s", s.Probe, s.State, s.LastErr)
				break
			}
		}
		cancel()
		<-done
	}}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// startTarget starts a child that accepts and answers, and returns its address.
func startTarget(b testing.TB) netip.AddrPort {
	cmd := exec.Command(must(os.Executable()), "-test.run=^TestChildTarget$")
	cmd.Env = append(os.Environ(), "HEALTH_TEST_CHILD=target")
	in, out := must(cmd.StdinPipe()), must(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close() // the child's sign to end
		_ = cmd.Wait()
	})
	return netip.MustParseAddrPort(strings.TrimSpace(must(bufio.NewReader(out).ReadString('\n'))))
}

// TestChildTarget is the child of the benchmark.
func TestChildTarget(t *testing.T) {
	if os.Getenv("HEALTH_TEST_CHILD") != "target" {
		return // started as a test of its own: it has nothing to show
	}
	ln := listen(t, "127.0.0.1:0")
	fmt.Println(ln.Addr())
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// answer answers requests, more than one if the other end wants that.
func answer(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 1024)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		head := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
		keep := bytes.Contains(buf[:n], []byte("keep-alive"))
		if !keep {
			head += "Connection: close\r\n"
		}
		if _, err := c.Write([]byte(head + "\r\nok")); err != nil || !keep {
			return
		}
	}
}
