package health

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// Benchmark2000ProbesPerSecond runs 2,000 probes with an interval of a second
// against a listener in another process and reports what share of one core
// this process used (cpu-%), how many runs a second there were, and how many
// were not a pass. One iteration is a second of it.
func Benchmark2000ProbesPerSecond(b *testing.B) {
	at := netip.MustParseAddrPort(startTarget(b))
	for _, kind := range []edge.ProbeKind{edge.ProbeTCP, edge.ProbeHTTP, "nothing"} {
		b.Run(string(kind), func(b *testing.B) { benchProbes(b, kind, at) })
	}
}

func benchProbes(b *testing.B, kind edge.ProbeKind, at netip.AddrPort) {
	var runs, bad atomic.Int64
	m := New(Options{})
	inner := m.probers[kind]
	if inner == nil { // the cost of the schedule alone
		inner = ProberFunc(func(context.Context, edge.Probe) error { return nil })
	}
	m.probers[kind] = ProberFunc(func(ctx context.Context, p edge.Probe) error {
		err := inner.Probe(ctx, p)
		runs.Add(1)
		if err != nil {
			bad.Add(1)
		}
		return err
	})
	var probes []edge.Probe
	for i := range 2000 {
		probes = append(probes, edge.Probe{
			ID: edge.ProbeID(fmt.Sprintf("p%d", i)), Kind: kind, Addr: at, URL: "http://" + at.String() + "/",
			Interval: time.Second, Timeout: time.Second, Rise: 1, Fall: 3,
		})
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	m.Set(probes)
	for !m.Settled() { // the fast start is not what is measured
		<-m.Changed()
	}
	begin, used := time.Now(), cpuTime()
	runs.Store(0)
	for b.Loop() {
		<-time.After(time.Second) // the load is the monitor's own
	}
	wall := time.Since(begin)
	b.ReportMetric(100*float64(cpuTime()-used)/float64(wall), "cpu-%")
	b.ReportMetric(float64(runs.Load())/wall.Seconds(), "runs/s")
	b.ReportMetric(float64(bad.Load()), "not-passed")
	cancel()
	<-done
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// startTarget starts a child that accepts and answers, and returns its address.
func startTarget(b *testing.B) string {
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
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
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

func answer(c net.Conn) {
	defer c.Close()
	if _, err := c.Read(make([]byte, 1024)); err == nil {
		_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"))
	}
}
