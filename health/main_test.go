package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/catchment-dev/edge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// must returns v, or ends the test binary.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// once runs one probe of a built-in kind as the monitor would: by its engine, if
// that is how this one is run.
func once(t *testing.T, p edge.Probe) error {
	t.Helper()
	m := New(Options{})
	e := m.entry(bounded(p), nil)
	if e.flight == nil {
		return slowly(t, p)
	}
	g := m.engine
	defer g.close()
	return alone(t, g, e).err
}

// alone has an engine run nothing but e, once.
func alone(t *testing.T, g *engine, e *entry) result {
	t.Helper()
	g.begin(e.flight)
	for end := time.Now().Add(e.probe.Timeout); len(g.ends) == 0; {
		if time.Now().Before(end) {
			g.wait(end, nil)
		} else {
			g.expire(e.flight, time.Now())
		}
	}
	if len(g.ends) != 1 || g.flights != 0 || g.ends[0].e != e {
		t.Fatalf("%d ends of one run, %d runs in the air", len(g.ends), g.flights)
	}
	r := g.ends[0].r
	g.ends = nil
	return r
}

// slowly runs one probe of a built-in kind by its Prober.
func slowly(t *testing.T, p edge.Probe) error {
	t.Helper()
	p = bounded(p)
	ctx, cancel := context.WithTimeout(t.Context(), p.Timeout)
	defer cancel()
	_, err := New(Options{}).probe(ctx, p)
	return err
}

// expect checks the three outcomes: "" is a pass, "unknown" alone or in front of
// a text an unknown, any other text a fail that contains it.
func expect(t *testing.T, err error, want string) {
	t.Helper()
	text, unknown := strings.CutPrefix(want, "unknown: ")
	switch {
	case want == "" && err != nil:
		t.Errorf("probe: %v, want a pass", err)
	case want == "":
	case err == nil:
		t.Errorf("probe passed, want %q", want)
	case errors.Is(err, edge.ErrUnknown) != unknown:
		t.Errorf("probe: %v: unknown is %v, want %v", err, !unknown, unknown)
	case !strings.Contains(err.Error(), text):
		t.Errorf("probe: %v, want %q in it", err, text)
	}
}

// eventually polls ok until it holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestUnknownWithoutFiles proves that every built-in prober says unknown, not
// down, when this process is out of file descriptors. It runs them in a child,
// since the limit is the whole process's.
func TestUnknownWithoutFiles(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(must(os.Executable()), "-test.run=^TestChildWithoutFiles$", "-test.v")
	cmd.Env = append(os.Environ(), "HEALTH_TEST_CHILD=files")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	for _, kind := range []string{"process", "tcp", "http", "https"} {
		if !strings.Contains(string(out), "child: "+kind+" unknown") {
			t.Errorf("prober %s did not say unknown:\n%s", kind, out)
		}
	}
}

// TestChildWithoutFiles is the child of TestUnknownWithoutFiles.
func TestChildWithoutFiles(t *testing.T) {
	if os.Getenv("HEALTH_TEST_CHILD") != "files" {
		return // started as a test of its own: it has nothing to show
	}
	pidFile := pidFileOf(t, os.Getpid())
	probes := map[string]edge.Probe{
		"process": {Kind: edge.ProbeProcess, PIDFile: pidFile},
		"tcp":     {Kind: edge.ProbeTCP, Addr: netip.MustParseAddrPort("127.0.0.1:9")},
		"http":    {Kind: edge.ProbeHTTP, URL: "http://127.0.0.1:9/"},
		"https":   {Kind: edge.ProbeHTTP, URL: "https://[::1]:9/"},
	}
	_ = once(t, probes["tcp"]) // opens what the runtime opens once (epoll)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) // for the cleaning up
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	for name, p := range probes {
		if err := once(t, p); errors.Is(err, edge.ErrUnknown) {
			fmt.Printf("child: %s unknown: %v\n", name, err)
		} else {
			fmt.Printf("child: %s NOT unknown: %v\n", name, err)
		}
	}
}

// discard is a log of net/http that says nothing.
func discard() *log.Logger { return log.New(io.Discard, "", 0) }
