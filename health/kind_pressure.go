package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// pressureKind is the prober of kind pressure: the share of the last ten
// seconds in which tasks waited for a resource (PSI, Documentation/accounting/psi.rst
// of the kernel) is not above p.SomeAvg10 and p.FullAvg10.
type pressureKind struct{ root string } // where procfs has its files

func (k pressureKind) Probe(_ context.Context, p edge.Probe) error {
	if !slices.Contains([]string{"cpu", "memory", "io"}, p.Resource) {
		return fmt.Errorf("%w: resource %q is not cpu, memory or io", edge.ErrUnknown, p.Resource)
	}
	b, err := readSmall(filepath.Join(k.root, p.Resource))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: this kernel does not measure pressure (CONFIG_PSI, boot with psi=1)", edge.ErrUnknown)
	case err != nil:
		return fmt.Errorf("%w: read the pressure on %s: %w", edge.ErrUnknown, p.Resource, bare(err))
	}
	if err := judgePressure(p, b, "some", p.SomeAvg10); err != nil {
		return err
	}
	return judgePressure(p, b, "full", p.FullAvg10)
}

// judgePressure compares one line of the file with its limit.
func judgePressure(p edge.Probe, b []byte, line string, limit float64) error {
	if limit <= 0 {
		return nil
	}
	percent, err := parsePressure(b, line)
	if err != nil {
		return fmt.Errorf("%w: read the pressure on %s: %w", edge.ErrUnknown, p.Resource, err)
	}
	if percent <= limit {
		return nil
	}
	// In steps of five, so that the text does not change with each run.
	return fmt.Errorf("%s tasks waited for %s for more than %.4g %% of 10 seconds, at most %.4g %% is wanted",
		line, p.Resource, max(limit, math.Floor(percent/5)*5), limit)
}

// parsePressure returns avg10 of the line that begins with name.
func parsePressure(b []byte, name string) (float64, error) {
	for line := range bytes.Lines(b) {
		fields := bytes.Fields(line)
		if len(fields) < 2 || string(fields[0]) != name {
			continue
		}
		text, ok := bytes.CutPrefix(fields[1], []byte("avg10="))
		percent, err := strconv.ParseFloat(string(text), 64)
		if !ok || err != nil || !(percent >= 0 && percent <= 100) {
			return 0, fmt.Errorf("%.40q is not a percentage", fields[1])
		}
		return percent, nil
	}
	return 0, fmt.Errorf("there is no line %q", name)
}
