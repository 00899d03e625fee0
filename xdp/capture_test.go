package xdp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
)

// captured runs a capture until it has n samples, while send is called again
// and again.
func (d device) captured(t testing.TB, o CaptureOptions, n int, send func()) []Sample {
	t.Helper()
	var all []Sample
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := d.capture(ctx, o, func(s Sample) bool {
		all = append(all, s)
		return len(all) < n
	})
	c.whenRunning(t)
	send()
	check(t, c.wait())
	if len(all) != n {
		t.Fatalf("%d samples came, not %d", len(all), n)
	}
	return all
}

// running is a capture that runs on a goroutine of its own.
type running struct {
	d    device
	done chan struct{}
	err  error
}

func (d device) capture(ctx context.Context, o CaptureOptions, yield func(Sample) bool) *running {
	c := &running{d: d, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = d.Capture(ctx, o, yield)
	}()
	return c
}

func (c *running) wait() error {
	<-c.done
	return c.err
}

// whenRunning waits until the program has been told.
func (c *running) whenRunning(t testing.TB) {
	t.Helper()
	eventually(t, "the capture runs", func() bool { return c.d.sampling(t) > 0 })
}

// sampling is one in how many packets the program captures; 0 for none.
func (d device) sampling(t testing.TB) uint32 {
	t.Helper()
	return samplingOf(t, d.coll.Maps[edgeMapHost])
}

func samplingOf(t testing.TB, host *ebpf.Map) uint32 {
	t.Helper()
	var h edgeHost
	check(t, host.Lookup(uint32(0), &h))
	return h.Sample
}

// Each packet is captured as it leaves, with the reason for which it does.
func TestCapture(t *testing.T) {
	d := oneBox(t)
	cases := append(plainCases(false), tunnelCases(addr(trust6), addr(node6))...)
	var ran []ran
	start := time.Now()
	samples := d.captured(t, CaptureOptions{OneIn: 1}, len(cases), func() {
		for _, c := range cases {
			ran = append(ran, d.run(t, c.frame))
		}
	})
	for i, s := range samples {
		r := ran[i]
		want := r.out[:min(len(r.out), SnapLength)]
		if got := s.Action + " " + string(s.Reason); got != d.name(r.verdict) || s.Length != len(r.out) || !bytes.Equal(s.Data, want) {
			t.Errorf("%s: captured as %s, %d bytes\n% x, left as %s\n% x", cases[i].name, got, s.Length, s.Data, d.name(r.verdict), want)
		}
		if s.Interface != "up0" || s.Time.Before(start.Add(-time.Second)) || s.Time.After(time.Now().Add(time.Second)) || i > 0 && s.Time.Before(samples[i-1].Time) {
			t.Errorf("%s: captured on %s at %s", cases[i].name, s.Interface, s.Time)
		}
	}
	if got := d.sampling(t); got != 0 {
		t.Errorf("after the capture one in %d packets is captured", got)
	}
	// What an earlier capture has missed is not in the next one.
	good := tcpPacket(client4+":4321", vip4+":"+portRemote).frame()
	first := d.captured(t, CaptureOptions{OneIn: 1}, 1, func() {
		for range 50 {
			d.run(t, good)
		}
	})
	if first[0].Reason != "backend" {
		t.Errorf("first sample: %+v", first[0])
	}
	next := d.captured(t, CaptureOptions{OneIn: 1}, 1, func() { d.run(t, with(good, 12, 8, 6)) })
	if next[0].Reason != "not_ip" {
		t.Errorf("first sample of the next capture: %+v", next[0])
	}
	balanced(t, d.Forwarder)
}

// Only packets of the actions that are asked for are captured.
func TestCaptureActions(t *testing.T) {
	d := oneBox(t)
	client, vip := family(true)
	frames := map[string][]byte{}
	for want, port := range map[string]string{"tx backend": portRemote, "redirect backend": portFar, "pass local": portLocal, "drop no_backend": portEmpty, "pass no_service": "9"} {
		frames[want] = tcpPacket(client, vip+port).frame()
	}
	for _, actions := range [][]string{{"drop"}, {"pass"}, {"tx", "redirect"}, {"redirect"}, {"pass", "tx", "redirect", "drop"}} {
		var want, got []string
		for name := range frames {
			if slices.Contains(actions, strings.Fields(name)[0]) {
				want = append(want, name)
			}
		}
		for _, s := range d.captured(t, CaptureOptions{OneIn: 1, Actions: actions}, len(want), func() {
			for _, f := range frames {
				d.run(t, f)
			}
		}) {
			got = append(got, s.Action+" "+string(s.Reason))
		}
		slices.Sort(want)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%v: captured %v, want %v", actions, got, want)
		}
	}
}

// One in so many is captured, at random.
func TestCaptureOneIn(t *testing.T) {
	const packets = 30_000 // so that all samples of them find room
	d := policyBox(t, 1<<12)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, pool(t, 1)...)))
	frame, feed := tcpTo(vipA, flagACK), d.feeder()
	last := with(frame, 12, 8, 6) // ARP
	for _, oneIn := range []uint32{10, 100} {
		n := 0
		c := d.capture(t.Context(), CaptureOptions{OneIn: oneIn}, func(s Sample) bool {
			n++
			return s.Reason == "backend"
		})
		c.whenRunning(t)
		for range packets {
			feed.to(t, frame)
		}
		for ended := false; !ended; {
			select {
			case <-c.done:
				ended = true
			default:
				feed.to(t, last)
			}
		}
		check(t, c.wait())
		n-- // the last one
		mean := packets / float64(oneIn)
		t.Logf("one in %d of %d packets: %d", oneIn, packets, n)
		if math.Abs(float64(n)-mean) > 6*math.Sqrt(mean) {
			t.Errorf("one in %d of %d packets: %d", oneIn, packets, n)
		}
	}
}

// A capture ends with its context, also when no packet comes; one at a time runs.
func TestCaptureEnds(t *testing.T) {
	d := policyBox(t, 1<<12)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		c := d.capture(ctx, CaptureOptions{OneIn: 1}, func(Sample) bool { return true })
		c.whenRunning(t)
		if err := d.Capture(ctx, CaptureOptions{OneIn: 1}, nil); !errors.Is(err, ErrCapturing) {
			t.Errorf("a second capture: %v", err)
		}
		cancel()
		select {
		case <-c.done:
			check(t, c.err)
		case <-time.After(patience):
			t.Fatal("without a packet the capture does not end")
		}
		if got := d.sampling(t); got != 0 {
			t.Errorf("after the capture one in %d packets is captured", got)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	check(t, d.Capture(ended, CaptureOptions{OneIn: 1}, func(Sample) bool { return true }))
	for want, o := range map[string]CaptureOptions{
		"one in 0 is none":           {},
		`action "fly" is not one of`: {OneIn: 1, Actions: []string{"drop", "fly"}},
	} {
		if err := d.Capture(t.Context(), o, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

// A reader that does not keep up misses samples, and no packet.
func TestCaptureIsSlow(t *testing.T) {
	const packets = 20_000
	d := policyBox(t, 1<<12)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, pool(t, 1)...)))
	feed, frame, read := d.feeder(), tcpTo(vipA, flagACK), make(chan struct{})
	n := 0
	c := d.capture(t.Context(), CaptureOptions{OneIn: 1}, func(Sample) bool {
		<-read
		n++
		return n < 100
	})
	c.whenRunning(t)
	for range packets {
		if feed.to(t, frame) != 0 {
			t.Fatal("a packet is lost")
		}
	}
	close(read)
	check(t, c.wait())
	if got := verdictCount(stats(t, d.Forwarder), "backend"); got != packets {
		t.Errorf("%d packets left", got)
	}
}

// Capture, Apply, Stats and Flows at the same time, for the race detector.
func TestCaptureAmidChanges(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 3)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b...)))
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	c := d.capture(ctx, CaptureOptions{OneIn: 3}, func(s Sample) bool {
		if s.Reason != "backend" {
			t.Errorf("captured %s %s", s.Action, s.Reason)
		}
		seen++
		return true
	})
	c.whenRunning(t)
	done := make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		for i := range 10 {
			if err := d.Apply(ctx, tableOf(service("a", vipA, edge.TCP, b[i%3:]...))); err != nil {
				return err
			}
		}
		return nil
	})
	g.Go(func() error {
		for range 10 {
			_, err := d.Stats()
			if err := errors.Join(err, d.Flows(func(edge.FlowEntry) bool { return true }), d.Block(ctx, prefixes("203.0.113.0/24"))); err != nil {
				return err
			}
		}
		return nil
	})
	go func() { g.Wait(); close(done) }()
	feed := d.feeder()
	for i, going := 0, true; going; i++ {
		select {
		case <-done:
			going = false
		default:
			feed.to(t, from(tcpTo(vipA, flagACK), i))
		}
	}
	check(t, g.Wait())
	if got := d.sampling(t); got != 3 {
		t.Errorf("what goes on besides has stopped the capture: one in %d", got)
	}
	cancel()
	check(t, c.wait())
	if seen == 0 {
		t.Error("nothing was captured")
	}
}

// captureArg makes the test binary a process that captures; the directory of the
// pins follows.
const captureArg = "capture"

// captureForever is the child: it says what it captures and waits to be killed.
func captureForever(dir string) error {
	f, err := Open(context.Background(), boxOptions(dir))
	if err != nil {
		return err
	}
	return f.Capture(context.Background(), CaptureOptions{OneIn: 1}, func(s Sample) bool {
		fmt.Println(s.Action, s.Reason)
		return true
	})
}

// The process that captures is killed: the program goes on capturing for nobody,
// until the next process opens it.
func TestCapturerIsKilled(t *testing.T) {
	d := boxWith(t, Options{Flows: 1000}) // as boxOptions has it
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, pool(t, 1)...)))
	feed, host := d.feeder(), filepath.Join(pinDir(d.o.Dir), edgeMapHost)
	prog, err := d.program().Clone()
	check(t, err)
	defer prog.Close()
	feed.prog = prog
	check(t, d.Close())

	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", captureArg, d.o.Dir)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start()) // in the namespace of this thread
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			lines <- s.Text()
		}
	}()
	eventually(t, "the child captures", func() bool {
		feed.to(t, tcpTo(vipA, flagACK))
		select {
		case line := <-lines:
			if line != "tx backend" {
				t.Fatalf("the child says %q", line)
			}
			return true
		default:
			return false
		}
	})
	check(t, cmd.Process.Signal(syscall.SIGKILL))
	for range lines {
	}
	cmd.Wait()
	m, err := ebpf.LoadPinnedMap(host, nil)
	check(t, err)
	defer m.Close()
	if got := samplingOf(t, m); got != 1 {
		t.Errorf("after the kill one in %d packets is captured: this shows nothing", got)
	}
	feed.to(t, tcpTo(vipA, flagACK))
	d.Forwarder = openForwarder(t, d.o)
	if got := samplingOf(t, m); got != 0 {
		t.Errorf("another process has opened it, and one in %d packets is captured", got)
	}
	// What was left for the dead is nothing of the next one's.
	got := d.captured(t, CaptureOptions{OneIn: 1}, 1, func() { d.run(t, udpTo(vipB)) })
	if got[0].Reason != "not_vip" {
		t.Errorf("the first sample is %+v", got[0])
	}
}
