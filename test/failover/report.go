package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/catchment-dev/edge/test/figure"
	"github.com/catchment-dev/edge/test/lab"
)

// row is a scenario with one kind of router, and all its measurements.
type row struct {
	scenario
	kind    lab.RouterKind
	results []result
}

// report collects what has been measured.
type report struct {
	rows []row
	more []figure.Figure
}

// measure runs the scenarios, in labs that those of one setup share. What fails
// is left out; its lab is not used any further.
func (r *report) measure(ctx context.Context, o options, all []scenario) error {
	var errs []error
	for _, kind := range o.kinds {
		var on *rig
		var setup setup
		for _, s := range all {
			if on != nil && s.in != setup {
				errs, on = append(errs, on.close()), nil
			}
			got, err := r.one(ctx, o, kind, s, &on)
			setup = s.in
			if len(got.results) > 0 {
				r.rows = append(r.rows, got)
			}
			if err == nil {
				continue
			}
			if on != nil {
				err = fmt.Errorf("%w\n%s", err, on.lab.Logs(15))
				errs, on = append(errs, on.close()), nil
			}
			errs = append(errs, fmt.Errorf("%s with %s: %w", s.name, kind, err))
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
			fmt.Printf("  %s: NOT MEASURED: %v\n", s.name, err)
		}
		if on != nil {
			errs = append(errs, on.close())
		}
	}
	return errors.Join(errs...)
}

// one measures a scenario as often as wanted, on a lab that it makes if there is
// none.
func (r *report) one(ctx context.Context, o options, kind lab.RouterKind, s scenario, on **rig) (row, error) {
	got := row{scenario: s, kind: kind}
	if *on == nil {
		fmt.Printf("\nTwo sites, the router of the failing one is %s; BFD %t, probes every %s, three bad ones are a failure\n", kind, s.in.bfd, s.in.probes)
		var err error
		if *on, err = newRig(ctx, o.bin, kind, s.in); err != nil {
			return got, err
		}
	}
	runs := o.runs
	if s.slow {
		runs = min(runs, 1)
	}
	how := s.measure
	if how == nil {
		how = measure
	}
	for range runs {
		if err := (*on).settle(ctx); err != nil {
			return got, err
		}
		if s.leaves {
			if err := (*on).mayLeave(ctx); err != nil {
				return got, err
			}
		}
		res, err := how(ctx, *on, s)
		if err != nil {
			return got, err
		}
		got.results = append(got.results, res)
		fmt.Printf("  %-18s %s\n", s.name, res)
	}
	return got, nil
}

// String is a line for whoever is watching.
func (r result) String() string {
	text := fmt.Sprintf("%7.3f s", r.took.Seconds())
	if r.asked > 0 {
		text += fmt.Sprintf(", %d of %d requests lost, %d of them cut by the moving route; back %.3f s after the mending", r.lost, r.asked, r.cut, r.back.Seconds())
	}
	if r.left > 0 {
		text += fmt.Sprintf("; traffic moved after %.3f s, path withdrawn after %.3f s", r.moved.Seconds(), r.left.Seconds())
	}
	if r.first != "" {
		text += "\n    the first lost one, at " + r.first
	}
	return text
}

// name is that of the row's figure.
func (r row) name() string { return figureName(r.scenario.name, r.kind) }

func figureName(scenario string, kind lab.RouterKind) string {
	if kind == lab.FRR {
		return scenario + "_frr"
	}
	return scenario
}

// median is the middle one of the results by a value, in seconds.
func (r row) median(of func(result) time.Duration) float64 {
	all := make([]time.Duration, len(r.results))
	for i, one := range r.results {
		all[i] = of(one)
	}
	slices.Sort(all)
	return all[len(all)/2].Seconds()
}

func took(r result) time.Duration  { return r.took }
func moved(r result) time.Duration { return r.moved }
func left(r result) time.Duration  { return r.left }

// worst is the result with the most requests lost; false: nobody has asked.
func (r row) worst() (result, bool) {
	asked := slices.DeleteFunc(slices.Clone(r.results), func(one result) bool { return one.asked == 0 })
	if len(asked) == 0 {
		return result{}, false
	}
	return slices.MaxFunc(asked, func(a, b result) int { return cmp.Compare(a.lost, b.lost) }), true
}

// figures are all values, with what they are compared with.
func (r *report) figures() []figure.Figure {
	var out []figure.Figure
	for _, row := range r.rows {
		f := figure.Figure{Name: row.name(), Value: row.median(took), Unit: "s"}
		f.Against, f.Ratio = r.compare(row, f.Value)
		out = append(out, f)
		if row.leaves {
			out = append(out,
				figure.Figure{Name: row.name() + "_moved", Value: row.median(moved), Unit: "s"},
				figure.Figure{Name: row.name() + "_withdrawn", Value: row.median(left), Unit: "s"})
		}
		if w, ok := row.worst(); ok {
			out = append(out,
				figure.Figure{Name: row.name() + "_lost", Value: float64(w.lost), Unit: "requests"},
				figure.Figure{Name: row.name() + "_cut", Value: float64(w.cut), Unit: "requests"})
		}
	}
	return append(out, r.more...)
}

// compare finds what a value is to be compared with: the same without BFD, else
// the aim.
func (r *report) compare(one row, value float64) (string, float64) {
	for _, other := range r.rows {
		if other.scenario.name == one.against && other.kind == one.kind {
			return other.name(), value / other.median(took)
		}
	}
	if one.aim > 0 {
		return "aim", value / one.aim.Seconds()
	}
	return "", 0
}

// table is all of it for a person.
func (r *report) table() string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\nname\tseconds\taim\t\tlost\tcut\tall runs\n")
	for _, row := range r.rows {
		value := row.median(took)
		aim, verdict := "-", ""
		if row.aim > 0 {
			aim, verdict = fmt.Sprintf("%.1f", row.aim.Seconds()), "ok"
			if value > row.aim.Seconds() {
				verdict = "MISSED"
			}
		}
		lost, cut := "-", "-"
		if w, ok := row.worst(); ok {
			lost, cut = fmt.Sprint(w.lost), fmt.Sprint(w.cut)
		}
		var all []string
		for _, one := range row.results {
			all = append(all, fmt.Sprintf("%.3f", one.took.Seconds()))
		}
		fmt.Fprintf(t, "%s\t%.3f\t%s\t%s\t%s\t%s\t%s\n", row.name(), value, aim, verdict, lost, cut, strings.Join(all, " "))
	}
	for _, f := range r.more {
		fmt.Fprintf(t, "%s\t%.3f %s\t\t\t\t\t\n", f.Name, f.Value, f.Unit)
	}
	t.Flush()
	fmt.Fprintf(&b, "\nSeconds are the median of the runs, lost is the worst, of %d requests a second, each on its own connection.\n"+
		"cut are those of the lost that were under way when the route moved beneath them.\n", rate)
	return b.String()
}

// add reads what test/bench made of BenchmarkSpeaker, whose units name what is
// measured.
func (r *report) add(path string) error {
	all, err := figure.Read(path)
	if err != nil {
		return fmt.Errorf("add figures of %s: %w", path, err)
	}
	for _, of := range []struct{ unit, name, newUnit string }{
		{"announce_s", "speaker_announce", "s"},
		{"withdraw_s", "speaker_withdraw", "s"},
		{"full_MiB", "speaker_memory", "MiB"},
		{"peers_MiB", "speaker_memory_peers", "MiB"},
		{"empty_MiB", "speaker_memory_empty", "MiB"},
	} {
		if i := slices.IndexFunc(all, func(f figure.Figure) bool { return f.Unit == of.unit }); i >= 0 {
			r.more = append(r.more, figure.Figure{Name: of.name, Value: all[i].Value, Unit: of.newUnit})
		}
	}
	if len(r.more) == 0 {
		return fmt.Errorf("add figures of %s: it has none of the speaker", path)
	}
	return nil
}

func (r *report) write(path string) error {
	return figure.Write(path, r.figures())
}
