package main

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/test/figure"
)

const printed = `goos: linux
pkg: github.com/catchment-dev/edge/xdp
BenchmarkForward/gue-2         	  100	      400.0 ns/op	       0 B/op
BenchmarkForward/peer-2        	  100	      200.0 ns/op	       0 B/op
BenchmarkAlone         	  100	      3 ns/op
PASS
`

func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench", "x.json")
	var out bytes.Buffer
	if err := run(path, "", strings.NewReader(printed), &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != printed {
		t.Error("the output was not passed on")
	}
	got, err := figure.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 5 || got[0].Name != "xdp.BenchmarkForward/gue" || got[0].Ratio != 2 || got[0].Against != "xdp.BenchmarkForward/peer" || got[4].Ratio != 0 {
		t.Errorf("figures: %+v", got)
	}
}

const compared = `pkg: github.com/catchment-dev/edge/xdp
BenchmarkXDP/v4_tcp_hit-2   	  1	  141.0 ns/packet	  47.0 ns/packet:lower_bound_v4
BenchmarkXDP/verifier-2   	  1	  36735 insns
`

func TestAgainstAndPrefix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xdp.json")
	if err := run(path, "xdp.BenchmarkXDP/", strings.NewReader(compared), &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	got, err := figure.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []figure.Figure{
		{Name: "v4_tcp_hit", Value: 141, Unit: "ns/packet", Against: "lower_bound_v4", Ratio: 3},
		{Name: "verifier", Value: 36735, Unit: "insns"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("figures: %+v", got)
	}
}

func TestRunWithoutFigures(t *testing.T) {
	if err := run(filepath.Join(t.TempDir(), "x.json"), "", strings.NewReader("PASS\n"), &bytes.Buffer{}); err == nil {
		t.Error("no figures, no error")
	}
}
