package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

func TestBootAlarms(t *testing.T) {
	dir := t.TempDir()
	if got := bootAlarms(dir); got != nil {
		t.Errorf("without a file: %q", got)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "alarms"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("version 1.2.0 has failed\n\n  another \xff\n")
	if got := bootAlarms(dir); !slices.Equal(got, []string{"version 1.2.0 has failed", "another ?"}) {
		t.Errorf("%q", got)
	}
	write(strings.Repeat("x\n", 1000))
	if got := bootAlarms(dir); len(got) != maxBootAlarms {
		t.Errorf("%d alarms", len(got))
	}
	if err := os.Remove(filepath.Join(dir, "alarms")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "alarms"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := bootAlarms(dir); len(got) != 1 || !strings.Contains(got[0], "is not known") {
		t.Errorf("a folder in its place: %q", got)
	}
}

// TestBootMetrics: what is in the file comes with our own, and a bad file costs none
// of these.
func TestBootMetrics(t *testing.T) {
	own := prometheus.NewRegistry()
	own.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "edge_alarms", Help: "x"}))
	const good = "# HELP edge_boot_version x\n# TYPE edge_boot_version gauge\nedge_boot_version{version=\"1.1.0\",slot=\"a\"} 1\n"
	for text, want := range map[string]string{
		good:                        "edge_alarms 0\nedge_boot_version{slot=\"a\",version=\"1.1.0\"} 1\n",
		"":                          "edge_alarms 0\n",
		good + "edge_boot_version{": "edge_alarms 0\n",
		good + "# TYPE edge_alarms gauge\nedge_alarms 7\n": "edge_alarms 0\n",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "metrics.prom"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		all := prometheus.Gatherers{own, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return bootMetricsIn(dir), nil })}
		families, err := all.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, f := range families {
			if _, err := expfmt.MetricFamilyToText(&got, f); err != nil {
				t.Fatal(err)
			}
		}
		var lines string
		for l := range strings.Lines(got.String()) {
			if !strings.HasPrefix(l, "#") {
				lines += l
			}
		}
		if lines != want {
			t.Errorf("of %q:\n%s\nwant\n%s", text, lines, want)
		}
	}
}

func FuzzBootMetrics(f *testing.F) {
	f.Add("edge_boot_good 1\n")
	f.Add("# TYPE edge_boot_x histogram\nedge_boot_x_bucket{le=\"x\"} 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "metrics.prom"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, m := range bootMetricsIn(dir) {
			if !strings.HasPrefix(m.GetName(), "edge_boot_") {
				t.Error(m)
			}
		}
	})
}
