package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// imageDir is where edge-health, on an appliance, leaves how it has judged this
// boot: metrics.prom in the text format of Prometheus, and alarms, one a line. Other
// systems have no such folder.
const imageDir = "/run/edge-image"

// maxImageFile bounds what is read of such a file, in bytes; maxBootAlarms how many
// alarms are shown.
const (
	maxImageFile  = 256 << 10
	maxBootAlarms = 20
)

// bootAlarms are those of a folder; what is wrong with the files is one as well.
func bootAlarms(dir string) []string {
	text, err := readImageFile(dir, "alarms")
	if err != nil {
		return []string{fmt.Sprintf("the state of this boot is not known: %v", err)}
	}
	var out []string
	for l := range strings.Lines(string(text)) {
		if l = strings.TrimSpace(strings.ToValidUTF8(l, "?")); l != "" && len(out) < maxBootAlarms {
			out = append(out, l)
		}
	}
	return out
}

// bootMetrics are those of imageDir. A file that cannot be read, or has anything but
// edge_boot_ in it, has none: it must not cost a scrape our own.
func bootMetrics() ([]*dto.MetricFamily, error) { return bootMetricsIn(imageDir), nil }

func bootMetricsIn(dir string) []*dto.MetricFamily {
	text, err := readImageFile(dir, "metrics.prom")
	if err != nil || len(text) == 0 {
		return nil
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil
	}
	var out []*dto.MetricFamily
	for name, f := range families {
		if !strings.HasPrefix(name, "edge_boot_") {
			return nil
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

// readImageFile reads a file; one that is not there is empty.
func readImageFile(dir, name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxImageFile))
}
