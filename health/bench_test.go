package health

import (
	"bufio"
	"bytes"
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

// Benchmark2000ProbesPerSecond has 2,000 probes with an interval of a second ask
// a server in another process, and reports what share of one core that takes
// (cpu-%, user and system) and what each run costs (us/run).
//
// Beside it, in turns, the same load from two others: a loop of blocking system
// calls without any check of the result, which is what the kernel costs (floor),
// and HAProxy with 2,000 servers to check each second.
func Benchmark2000ProbesPerSecond(b *testing.B) {
	at := startTarget(b)
	probe := edge.Probe{Kind: edge.ProbeTCP, Addr: at, URL: "http://" + at.String() + "/"}
	web, kept := probe, probe
	web.Kind, kept.Kind, kept.KeepAlive = edge.ProbeHTTP, edge.ProbeHTTP, true
	ours := func(p edge.Probe) load { return func(b *testing.B) generator { return startMonitor(b, p) } }
	loads := []struct {
		name           string
		floor, haproxy string
		load           load
	}{
		{"floor_tcp", "", "", floor(at, false)},
		{"haproxy_tcp", "floor_tcp", "", haproxy(at, "")},
		{"tcp", "floor_tcp", "haproxy_tcp", ours(probe)},
		{"floor_http", "", "", floor(at, true)},
		{"haproxy_http", "floor_http", "", haproxy(at, "option httpchk GET /")},
		{"http", "floor_http", "haproxy_http", ours(web)},
		{"http_keepalive", "floor_http", "haproxy_http", ours(kept)},
		{"schedule", "", "", ours(edge.Probe{Kind: "nothing"})},
	}
	found := map[string][]figure{}
	for range 3 {
		for _, l := range loads {
			found[l.name] = append(found[l.name], measure(b, l.name, l.load))
		}
	}
	for _, l := range loads {
		slices.SortFunc(found[l.name], func(x, y figure) int { return int(1e6 * (x.share - y.share)) })
		f := found[l.name][1]
		b.Run(l.name, func(b *testing.B) {
			for b.Loop() { // all has been measured
			}
			b.ReportMetric(0, "ns/op") // not shown
			b.ReportMetric(f.share, "cpu-%")
			b.ReportMetric(f.perRun(), "us/run")
			b.ReportMetric(f.rate, "runs/s")
			if l.floor != "" {
				b.ReportMetric(found[l.floor][1].perRun(), "us/run:"+l.floor)
			}
			if l.haproxy != "" {
				b.ReportMetric(found[l.haproxy][1].share, "cpu-%:"+l.haproxy)
			}
		})
	}
}

// figure is what a load costs: percent of a core, and how many runs a second it
// made.
type figure struct{ share, rate float64 }

// perRun returns the µs of a run.
func (f figure) perRun() float64 { return f.share * 1e4 / f.rate }

// load starts a load.
type load func(b *testing.B) generator

// generator is a load that runs.
type generator struct {
	used func() time.Duration // CPU time of the process that makes it
	runs func() uint64        // how many there have been
	stop func()
}

// measure runs a load for a few seconds once it has its pace.
func measure(b *testing.B, name string, l load) figure {
	g := l(b)
	defer g.stop()
	rate := func(d time.Duration) float64 {
		before, begin := g.runs(), time.Now()
		<-time.After(d)
		return float64(g.runs()-before) / time.Since(begin).Seconds()
	}
	for end := time.Now().Add(20 * time.Second); rate(time.Second) < 0.9*benchmarkProbes; {
		if time.Now().After(end) {
			b.Fatalf("%s never came to %d runs a second", name, benchmarkProbes)
		}
	}
	before, begin := g.used(), time.Now()
	f := figure{rate: rate(4 * time.Second)}
	f.share = 100 * float64(g.used()-before) / float64(time.Since(begin))
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
