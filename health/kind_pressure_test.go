package health

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// TestPressure makes the real kernel report that tasks wait for a CPU.
func TestPressure(t *testing.T) {
	t.Parallel()
	p := edge.Probe{Kind: edge.ProbePressure, Resource: "cpu", SomeAvg10: 0.2}
	if try(t, p) == nil { // else other tests make them wait already
		for range runtime.NumCPU() + 1 {
			daemon(t, func() bool { return true }, "nice", "-n", "19", "/bin/sh", "-c", "while :; do :; done")
		}
	}
	eventually(t, "processes wait for a CPU", func() bool { return try(t, p) != nil })
	expect(t, try(t, p), "some tasks waited for cpu for more than")
	for _, resource := range []string{"cpu", "memory", "io"} {
		expect(t, try(t, edge.Probe{Kind: edge.ProbePressure, Resource: resource, SomeAvg10: 100, FullAvg10: 100}), "")
		expect(t, try(t, edge.Probe{Kind: edge.ProbePressure, Resource: resource}), "")
	}
}

func TestPressureFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	is := func(p edge.Probe, want string) {
		t.Helper()
		expect(t, tryOf(t, pressureKind{root: root}, p), want)
	}
	memory := edge.Probe{Resource: "memory", SomeAvg10: 20, FullAvg10: 5}
	is(memory, "unknown: this kernel does not measure pressure")
	is(edge.Probe{Resource: "irq"}, `unknown: resource "irq" is not cpu, memory or io`)
	is(edge.Probe{Resource: "../loadavg"}, "unknown: is not cpu, memory or io")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, "memory"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	line := func(name, avg10 string) string {
		return name + " avg10=" + avg10 + " avg60=90.00 avg300=90.00 total=9\n"
	}
	for text, want := range map[string]string{
		line("some", "20.00") + line("full", "5.00"):    "",
		line("some", "20.01") + line("full", "0.00"):    "some tasks waited for memory for more than 20 % of 10 seconds, at most 20 % is wanted",
		line("some", "47.30") + line("full", "0.00"):    "some tasks waited for memory for more than 45 % of 10 seconds, at most 20 % is wanted",
		line("some", "9.00") + line("full", "5.50"):     "full tasks waited for memory for more than 5 % of 10 seconds, at most 5 % is wanted",
		line("some", "9.00"):                            `unknown: there is no line "full"`,
		line("full", "9.00"):                            `unknown: there is no line "some"`,
		line("some", "x") + line("full", "0"):           `unknown: "avg10=x" is not a percentage`,
		line("some", "NaN") + line("full", "0"):         "unknown: is not a percentage",
		line("some", "1e9") + line("full", "0"):         "unknown: is not a percentage",
		strings.Replace(line("some", "1"), "0=", "", 1): "unknown: is not a percentage",
		"": `unknown: there is no line "some"`,
	} {
		write(text)
		is(memory, want)
	}
	if err := os.Remove(filepath.Join(root, "memory")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkdir(filepath.Join(root, "memory"), 0o700); err != nil {
		t.Fatal(err)
	}
	is(memory, "unknown: read the pressure on memory: it is not a regular file")
}

func FuzzPressure(f *testing.F) {
	for _, s := range []string{"some avg10=1.00 avg60=0.00", "some avg10=", "some", "full avg10=1\nsome avg10=99", "some avg10=-1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if percent, err := parsePressure(b, "some"); err == nil && !(percent >= 0 && percent <= 100) {
			t.Errorf("%q is %v", b, percent)
		}
	})
}
