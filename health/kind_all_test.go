package health

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// needFiles are probes of the kinds that cannot run without a file descriptor.
func needFiles() map[string]edge.Probe {
	nobody := netip.MustParseAddrPort("127.0.0.1:9")
	return map[string]edge.Probe{
		"tls":      {Kind: edge.ProbeTLS, Addr: nobody},
		"tls ca":   {Kind: edge.ProbeTLS, Addr: nobody, CAFile: "/etc/passwd"},
		"http2":    {Kind: edge.ProbeHTTP2, URL: "http://127.0.0.1:9/"},
		"grpc":     {Kind: edge.ProbeGRPC, Addr: nobody, Source: nobody.Addr()},
		"dns":      {Kind: edge.ProbeDNS, Addr: nobody, Name: "x.test", RecordType: "A"},
		"dns tcp":  {Kind: edge.ProbeDNS, Addr: nobody, Name: "x.test", RecordType: "A", TCP: true},
		"icmp":     {Kind: edge.ProbeICMP, Target: nobody.Addr()},
		"icmp6":    {Kind: edge.ProbeICMP, Target: netip.IPv6Loopback()},
		"command":  {Kind: edge.ProbeCommand, Command: "/bin/false"},
		"route":    {Kind: edge.ProbeRoute, Net: netip.MustParsePrefix("192.0.2.0/24")},
		"route if": {Kind: edge.ProbeRoute, Net: netip.MustParsePrefix("192.0.2.0/24"), Interface: "none"},
		"socket":   {Kind: edge.ProbeSocket, File: "/nowhere"},
		"clock":    {Kind: edge.ProbeClock, Addr: nobody, MaxOffset: time.Second},
		"pressure": {Kind: edge.ProbePressure, Resource: "cpu", SomeAvg10: 1},
		"external": {Kind: edge.ProbeExternal, AtLeast: 1, URLs: "http://127.0.0.1:9/"},
	}
}

// TestKindsWithoutFiles is TestUnknownWithoutFiles for the kinds of this folder
// that came later.
func TestKindsWithoutFiles(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(must(os.Executable()), "-test.run=^TestKindsChildWithoutFiles$", "-test.v")
	cmd.Env = append(os.Environ(), "HEALTH_TEST_CHILD=kinds")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	for name := range needFiles() {
		if !strings.Contains(string(out), "child: "+name+" unknown: ") {
			t.Errorf("%s did not say unknown:\n%s", name, out)
		}
	}
}

// TestKindsChildWithoutFiles is the child of TestKindsWithoutFiles.
func TestKindsChildWithoutFiles(t *testing.T) {
	if os.Getenv("HEALTH_TEST_CHILD") != "kinds" {
		return // started as a test of its own: it has nothing to show
	}
	_ = try(t, needFiles()["tls"]) // opens what the runtime opens once (epoll)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) // for the cleaning up
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	for name, p := range needFiles() {
		err := try(t, p)
		if errors.Is(err, edge.ErrUnknown) {
			fmt.Printf("child: %s unknown: %v\n", name, err)
		} else {
			fmt.Printf("child: %s NOT unknown: %v\n", name, err)
		}
	}
}

// TestKindsAreWhole: each kind has its prober, and one without a configuration
// fails or says that it cannot run, rather than crash or pass. The clock needs
// none.
func TestKindsAreWhole(t *testing.T) {
	t.Parallel()
	want := []edge.ProbeKind{
		edge.ProbeUnit, edge.ProbeTLS, edge.ProbeHTTP2, edge.ProbeGRPC, edge.ProbeDNS, edge.ProbeICMP, edge.ProbeCommand, edge.ProbeRoute,
		edge.ProbeFile, edge.ProbeSocket, edge.ProbeClock, edge.ProbeDisk, edge.ProbePressure, edge.ProbeExternal,
	}
	kinds := builtinKinds()
	if len(kinds) != len(want) {
		t.Errorf("%d kinds, want %d", len(kinds), len(want))
	}
	for _, kind := range want {
		if kinds[kind] == nil {
			t.Errorf("kind %s has no prober", kind)
		} else if err := try(t, edge.Probe{Kind: kind}); err == nil && kind != edge.ProbeClock {
			t.Errorf("kind %s passes without a configuration", kind)
		}
	}
}
