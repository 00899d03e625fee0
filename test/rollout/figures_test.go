package rollout

import (
	"flag"
	"time"

	"github.com/catchment-dev/edge/test/figure"
)

var figures = flag.String("figures", "", "file for the figures; empty: none")

// allFigures are the figures of all tests, which do not run at once.
var allFigures []figure.Figure

// measured adds a figure.
func (f *fleet) measured(name string, value float64, unit string) {
	allFigures = append(allFigures, figure.Figure{Name: "rollout/" + name, Value: value, Unit: unit})
}

// aimed adds a figure beside what it should be.
func (f *fleet) aimed(name string, value float64, unit, against string, aim float64) {
	f.measured(name, value, unit)
	last := &allFigures[len(allFigures)-1]
	if last.Against = against; aim != 0 {
		last.Ratio = value / aim
	}
}

// rolled adds what a rollout took, and what clients and routers have seen of it.
func (f *fleet) rolled(name string, took time.Duration, v verdict) {
	f.measured(name, took.Seconds(), "s")
	f.measured(name+"/for each node", took.Seconds()/float64(len(f.nodes)), "s")
	f.measured(name+"/requests", float64(v.requests), "requests")
	f.aimed(name+"/failed requests", float64(v.failed), "requests", "none may fail", 0)
	f.measured(name+"/connections that broke and were asked for once more", float64(v.broken), "connections")
	f.aimed(name+"/least announcing sites", float64(v.least), "sites", "the floor", float64(f.floor))
}

// writeFigures writes the file, if one is wanted and there is anything to write.
func writeFigures() error {
	if *figures == "" || len(allFigures) == 0 {
		return nil
	}
	return figure.Write(*figures, allFigures)
}
