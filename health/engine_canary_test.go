package health

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// TestCanaryRule is the canary without its sockets: when it keeps others from
// being believed.
func TestCanaryRule(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1e9, 0)
	failed := errors.New("no answer within 250ms")
	type run struct {
		late, took time.Duration
		err        error
	}
	well, bad := run{}, run{took: canaryTimeout, err: failed}
	for _, c := range []struct {
		name    string
		runs    []run
		after   time.Duration // after the end of the last run
		starved bool
	}{
		{"not run yet", nil, time.Hour, false},
		{"has never passed", []run{bad, bad}, 0, false},
		{"passes", []run{well, well}, 0, false},
		{"fails", []run{well, bad}, 0, true},
		{"has failed a moment ago", []run{well, bad, well, well}, 900 * time.Millisecond, true},
		{"has failed longer ago", []run{well, bad, well, well, well}, 900 * time.Millisecond, false},
		{"passes late", []run{well, {late: 251 * time.Millisecond}}, 0, true},
		{"passes slowly", []run{well, {took: 251 * time.Millisecond}}, 0, true},
		{"could not run", []run{well, {err: edge.ErrUnknown}}, 0, false},
		{"is a little late", []run{well}, 1250 * time.Millisecond, false},
		{"is late this moment", []run{well}, 1251 * time.Millisecond, true},
		{"has failed for almost a minute", append([]run{well}, many(bad, 47)...), 0, true},
		{"has failed for more than a minute", append([]run{well}, many(bad, 52)...), 0, false},
		{"is late for more than a minute", append([]run{well}, many(run{late: time.Second}, 52)...), 0, true},
	} {
		bird := newCanary(begin)
		now := begin
		for _, r := range c.runs {
			now = bird.due.Add(r.late + r.took)
			bird.land(result{err: r.err, took: r.took, end: now})
		}
		if got := bird.starved(now.Add(c.after)); got != c.starved {
			t.Errorf("a canary that %s: starved is %v", c.name, got)
		}
	}
}

func many[T any](v T, n int) (out []T) {
	for range n {
		out = append(out, v)
	}
	return out
}

// TestCanary: it sings on its own, is in no set, and hears of no other probe.
func TestCanary(t *testing.T) {
	t.Parallel()
	m, stop := runMonitor(t)
	eventually(t, "up", func() bool { return m.Canary().State == edge.Up })
	first := m.Canary().LastRun
	eventually(t, "it runs again", func() bool { return m.Canary().LastRun.After(first) })
	if s := m.Canary(); s.Probe != "canary" || len(m.Statuses()) != 0 || m.Counts().Runs != 0 {
		t.Errorf("%+v, %v, %+v", s, m.Statuses(), m.Counts())
	}
	stop()
}

// TestCanaryWithoutLoopback: where it cannot run it has no say.
func TestCanaryWithoutLoopback(t *testing.T) {
	t.Parallel()
	apart(t, unix.CLONE_NEWNET, func() { // lo is down
		c := newCanary(time.Now())
		defer c.close()
		if err := c.open(); err == nil {
			m := New(Options{})
			defer m.engine.close()
			c.land(alone(t, m.engine, c.entry))
		} else {
			c.land(result{err: err, end: time.Now()})
		}
		if s := c.entry.status; s.State == edge.Up || s.LastErr == "" || c.starved(time.Now().Add(time.Hour)) {
			t.Errorf("%+v, starved is %v", s, c.starved(time.Now()))
		}
	})
}

// TestStopped stops a process with a monitor, and lets its target fail as it
// goes on. That failure is not believed, since the canary was late; one that
// lasts is.
func TestStopped(t *testing.T) {
	t.Parallel()
	var sick atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(srv.Close)
	cmd := exec.Command(must(os.Executable()), "-test.run=^TestChildMonitor$")
	cmd.Env = append(os.Environ(), "HEALTH_TEST_CHILD=monitor", "HEALTH_TEST_TARGET="+srv.URL)
	out := must(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("child: %v", err)
		}
	}()
	lines := bufio.NewScanner(out)
	next := func(want string) time.Time {
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return time.Now()
			}
			t.Logf("child: %s", lines.Text())
		}
		t.Fatalf("the child did not say %q", want)
		return time.Time{}
	}
	next("ready")
	must(0, cmd.Process.Signal(syscall.SIGSTOP))
	stopped := time.Now()
	// Longer than a run that was under way may have put off the next look at the clock.
	eventually(t, "the canary is overdue", func() bool { return time.Since(stopped) > canaryInterval+2*canaryTimeout })
	sick.Store(true)
	must(0, cmd.Process.Signal(syscall.SIGCONT))
	woken := next("too busy")
	if took := next("web is down").Sub(woken); took < canaryMemory/2 {
		t.Errorf("the failure was believed %s after the first that was not", took)
	}
	next("canary: up-down late by more than")
}

// TestChildMonitor is the child of TestStopped. It prints what its one probe
// shows whenever that changes, and the canary's events when that is down.
func TestChildMonitor(t *testing.T) {
	if os.Getenv("HEALTH_TEST_CHILD") != "monitor" {
		return // started as a test of its own: it has nothing to show
	}
	m, _ := runMonitor(t)
	p := realProbe("web", edge.ProbeHTTP, "127.0.0.1:1")
	p.URL, p.Interval, p.Timeout, p.Fall = os.Getenv("HEALTH_TEST_TARGET"), 50*time.Millisecond, 5*time.Second, 1
	m.Set([]edge.Probe{p})
	eventually(t, "both are up", func() bool {
		return m.Canary().State == edge.Up && status(t, m, "web").State == edge.Up
	})
	fmt.Println("ready")
	last := ""
	eventually(t, "down", func() bool {
		s := status(t, m, "web")
		if s.LastErr != last {
			last = s.LastErr
			fmt.Println(last)
		}
		return s.State == edge.Down
	})
	fmt.Println("web is down")
	events, _ := m.Events(0)
	for _, e := range events {
		fmt.Printf("%s: %s-%s %s\n", e.Subject, e.From, e.To, e.Evidence)
	}
}
