package image

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/catchment-dev/edge/test/figure"
)

// report gathers the figures of all lanes.
type report struct {
	mu  sync.Mutex
	all []figure.Figure
}

// add remembers a figure; aim is what it should be below, 0: nothing.
func (r *report) add(name string, value float64, unit string, aim float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := figure.Figure{Name: name, Value: value, Unit: unit}
	if aim > 0 {
		f.Against, f.Ratio = fmt.Sprintf("an aim of %g %s", aim, unit), value/aim
	}
	r.all = append(r.all, f)
}

// write adds the size of the image and writes the file, if one is wanted.
func (r *report) write(b built) error {
	st, err := os.Stat(b.raw)
	if err != nil {
		return err
	}
	r.add("image/on disk", float64(st.Sys().(*syscall.Stat_t).Blocks*512)/1e6, "MB", 200)
	if *figures == "" {
		return nil
	}
	return figure.Write(*figures, r.all)
}
