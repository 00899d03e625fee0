package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
)

const kindTest edge.ProbeKind = "test"

var errDown = errors.New("it is broken")

// fake is a prober whose answer the test sets; it notes when it was run.
type fake struct {
	mu   sync.Mutex
	err  error
	took time.Duration
	runs []time.Time
}

func (f *fake) Probe(ctx context.Context, _ edge.Probe) error {
	f.mu.Lock()
	f.runs = append(f.runs, time.Now())
	err, took := f.err, f.took
	f.mu.Unlock()
	if took == 0 {
		return err
	}
	select {
	case <-time.After(took):
		return err
	case <-ctx.Done():
		return fmt.Errorf("no answer within %s", took)
	}
}

func (f *fake) answer(err error, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.took = err, took
}

func (f *fake) times() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time(nil), f.runs...)
}

func testProbe(id edge.ProbeID) edge.Probe {
	return edge.Probe{ID: id, Kind: kindTest, Interval: time.Second, Timeout: time.Second, Rise: 2, Fall: 3}
}

// start runs a monitor with one prober inside a bubble until the test ends.
func start(t *testing.T, o Options, p Prober) *Monitor {
	t.Helper()
	o.Probers = map[edge.ProbeKind]Prober{kindTest: p}
	m := New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	<-m.Ready()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return m
}

func status(t *testing.T, m *Monitor, id edge.ProbeID) edge.Status {
	t.Helper()
	for _, s := range m.Statuses() {
		if s.Probe == id {
			return s
		}
	}
	t.Fatalf("no status of probe %s", id)
	return edge.Status{}
}

func TestFastStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := start(t, Options{}, f)
		if m.Settled() {
			t.Error("settled before the first Set")
		}
		begin := time.Now()
		m.Set([]edge.Probe{testProbe("a")})
		if s := status(t, m, "a"); s.State != edge.Unknown || !s.Since.IsZero() || m.Settled() {
			t.Errorf("at the start: %+v, settled %v", s, m.Settled())
		}
		synctest.Wait()
		if got := len(f.times()); got != 1 {
			t.Fatalf("%d runs right after Set, want 1", got)
		}
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		if s := status(t, m, "a"); s.State != edge.Up || !m.Settled() {
			t.Errorf("after %s: %+v, settled %v, want up after two fast runs", time.Since(begin), s, m.Settled())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		runs := f.times()
		if got := len(runs); got < 60 || got > 63 {
			t.Errorf("%d runs in a minute", got)
		}
		if first := runs[2].Sub(runs[1]); first <= 500*time.Millisecond || first > time.Second {
			t.Errorf("the first normal wait is %s", first)
		}
		for i := range runs[3:] {
			if d := runs[i+3].Sub(runs[i+2]); d != time.Second {
				t.Errorf("between runs %d and %d: %s", i+2, i+3, d)
			}
		}
	})
}

// TestDetection walks through a fall and a rise: when, what is shown, what is
// logged.
func TestDetection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		f := &fake{}
		m := start(t, Options{Log: slog.New(slog.NewTextHandler(&out, nil))}, f)
		m.Set([]edge.Probe{testProbe("a")})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		<-m.Changed()
		f.answer(errDown, 0)
		broken := time.Now()
		<-m.Changed()
		if d := time.Since(broken); d > 3*time.Second {
			t.Errorf("seen down after %s, want 3 runs", d)
		}
		synctest.Wait()
		s := status(t, m, "a")
		if s.State != edge.Down || s.LastErr != errDown.Error() || s.Since != time.Now() || s.Streak != 0 {
			t.Errorf("down: %+v", s)
		}
		f.answer(nil, 0)
		time.Sleep(time.Second)
		synctest.Wait()
		if s := status(t, m, "a"); s.State != edge.Down || s.Streak != 1 {
			t.Errorf("after one pass: %+v", s)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if s := status(t, m, "a"); s.State != edge.Up || s.LastErr != errDown.Error() {
			t.Errorf("after two passes: %+v, want up with the old error", s)
		}
		if n := strings.Count(out.String(), "probe changed state"); n != 3 {
			t.Errorf("%d log lines, want 3:\n%s", n, &out)
		}
		if !strings.Contains(out.String(), `probe=a from=up to=down error="it is broken"`) {
			t.Errorf("log:\n%s", &out)
		}
	})
}

// TestUnknownChangesNothing: not the state, not the streak.
func TestUnknownChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := start(t, Options{}, f)
		m.Set([]edge.Probe{testProbe("a")})
		time.Sleep(5 * time.Second)
		f.answer(fmt.Errorf("%w: no socket", edge.ErrUnknown), 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := status(t, m, "a"); s.State != edge.Up || s.LastErr != "probe could not run: no socket" || s.Streak != 0 {
			t.Errorf("up, then unknown: %+v", s)
		}
		f.answer(errDown, 0)
		time.Sleep(5 * time.Second)
		f.answer(fmt.Errorf("%w: no socket", edge.ErrUnknown), 0)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		want := "it is broken; last round unknown: probe could not run: no socket"
		if s := status(t, m, "a"); s.State != edge.Down || s.LastErr != want {
			t.Errorf("down, then unknown: %+v, want %q", s, want)
		}
	})
}

func TestNoProber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := start(t, Options{}, &fake{})
		p := testProbe("a")
		p.Kind = edge.ProbeVIP
		m.Set([]edge.Probe{p})
		time.Sleep(time.Second)
		synctest.Wait()
		if s := status(t, m, "a"); s.State != edge.Unknown || !strings.Contains(s.LastErr, `no prober of kind "vip"`) {
			t.Errorf("%+v", s)
		}
	})
}

// TestSlowDelaysNobody: with every target of one kind silent, the others are
// run on time.
func TestSlowDelaysNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fast, slow := &fake{}, &fake{took: time.Hour}
		m := start(t, Options{}, ProberFunc(func(ctx context.Context, p edge.Probe) error {
			if p.Path == "slow" {
				return slow.Probe(ctx, p)
			}
			return fast.Probe(ctx, p)
		}))
		probes := []edge.Probe{testProbe("fast")}
		for i := range 500 {
			p := testProbe(edge.ProbeID(fmt.Sprintf("slow-%03d", i)))
			p.Path = "slow"
			probes = append(probes, p)
		}
		m.Set(probes)
		time.Sleep(time.Minute)
		synctest.Wait()
		runs := fast.times()
		for i := range runs[3:] {
			if d := runs[i+3].Sub(runs[i+2]) - time.Second; d.Abs() > slack {
				t.Errorf("run %d was delayed by %s", i+3, d)
			}
		}
		if s := status(t, m, "slow-000"); s.State != edge.Down || s.Took != time.Second {
			t.Errorf("slow probe: %+v", s)
		}
	})
}

// TestNoWorker: a round that found no worker says nothing of the target.
func TestNoWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{took: time.Hour}
		m := start(t, Options{Workers: 1}, f)
		hog, starved := testProbe("hog"), testProbe("starved")
		hog.Timeout = time.Hour
		m.Set([]edge.Probe{hog})
		time.Sleep(time.Second)
		m.Set([]edge.Probe{hog, starved})
		time.Sleep(time.Minute)
		synctest.Wait()
		s := status(t, m, "starved")
		if s.State != edge.Unknown || s.LastErr != "probe could not run: no worker free for 1s" || !s.LastRun.IsZero() {
			t.Errorf("starved probe: %+v", s)
		}
		if m.Settled() {
			t.Error("settled while the first run of a probe goes on")
		}
	})
}

// TestLateIsUnknown: a run that ends long after its deadline is about this box.
func TestLateIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := start(t, Options{}, ProberFunc(func(context.Context, edge.Probe) error {
			time.Sleep(10 * time.Second) // the whole machine stood still
			return errDown
		}))
		m.Set([]edge.Probe{testProbe("a")})
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := status(t, m, "a"); s.State != edge.Unknown || !strings.Contains(s.LastErr, "too busy") {
			t.Errorf("%+v", s)
		}
	})
}

// TestRunEnds: probes in flight are ended, and being stopped is no failure.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{Probers: map[edge.ProbeKind]Prober{kindTest: &fake{took: time.Hour}}})
		p := testProbe("a")
		p.Timeout, p.Fall = time.Hour, 1
		m.Set([]edge.Probe{p})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
		if s := status(t, m, "a"); s.State != edge.Unknown || s.LastErr != "" {
			t.Errorf("after the end: %+v", s)
		}
	})
}
