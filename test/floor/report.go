package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/catchment-dev/edge/test/figure"
)

// report collects what has come of all rounds.
type report struct {
	rounds  []*outcome
	singles []alone
	sites   int
}

// part is what is done in one lab.
type part struct {
	setup setup
	// singles is how often one site is sick, from and to are the rounds.
	singles, from, to int
}

// measure does a part. What goes wrong in a round does not end it; a lab that is not
// as it was any more does.
func (rep *report) measure(ctx context.Context, o options, p part) error {
	r, err := newRig(ctx, o.bin, p.setup)
	if err != nil {
		return err
	}
	fmt.Printf("Sick sites drain for %s before they ask; they are up to %s away from each other and back\n", p.setup.drain, 30*p.setup.step)
	rnd := rand.New(rand.NewPCG(o.seed, 0))
	var errs []error
	for n := 0; n < p.singles && !errors.Is(err, errLab); n++ {
		if err = rep.alone(ctx, r, r.sites[rnd.IntN(len(r.sites))]); err != nil {
			errs = append(errs, err)
		}
	}
	for n := p.from; n < p.to && !errors.Is(err, errLab); n++ {
		if err = rep.round(ctx, r, draw(o.seed, n, r.names())); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, r.close())...)
}

// errLab is of a lab that is not as it was any more.
var errLab = errors.New("the lab cannot be used any more")

func (rep *report) alone(ctx context.Context, r *rig, s site) error {
	a, err := r.single(ctx, s)
	if err != nil {
		return fmt.Errorf("one sick site: %w: %w", errLab, err)
	}
	fmt.Println("  ", a)
	rep.singles = append(rep.singles, a)
	if a.gone-a.detected > goneWithin {
		return fmt.Errorf("%s, which is more than %s", a, goneWithin)
	}
	return nil
}

func (rep *report) round(ctx context.Context, r *rig, in round) error {
	got, err := r.play(ctx, in)
	if err != nil {
		fmt.Printf("%s\n%s", timeline(r.book.changes()), r.lab.Logs(40))
		return fmt.Errorf("round %s: %w: %w", in, errLab, err)
	}
	rep.rounds = append(rep.rounds, got)
	fmt.Println("  ", got.line(rep.sites))
	if len(got.wrong) == 0 {
		return nil
	}
	fmt.Printf("%s\n%s", timeline(r.book.changes()), r.lab.Logs(40))
	err = fmt.Errorf("round %s:\n  %s", in, strings.Join(got.wrong, "\n  "))
	fmt.Println(err)
	return err
}

// line is for whoever is watching.
func (o *outcome) line(sites int) string {
	text := fmt.Sprintf("%s: lowest %d, %d routes went", o.round, o.lowest(sites), len(o.losses))
	if o.settled > 0 {
		text += fmt.Sprintf(", the last %.2f s after the last fault", o.settled.Seconds())
	}
	if o.cut != nil {
		text += fmt.Sprintf(", %d packets cut", o.ignored)
	}
	if o.excused > 0 {
		text += fmt.Sprintf(", %d by a promise from before the cut", o.excused)
	}
	return text + fmt.Sprintf("; %.0f s", o.took.Seconds())
}

// timeline is all changes, without those that begin the page.
func timeline(all []change) string {
	var b strings.Builder
	for _, c := range all {
		fmt.Fprintf(&b, "    %s\n", c)
	}
	return b.String()
}

// figures are all values.
func (rep *report) figures() []figure.Figure {
	lowest, went, below, cuts, side, ignored := rep.sites, 0, 0, 0, 0, 0.0
	var settled, detected, asked, gone []time.Duration
	for _, o := range rep.rounds {
		lowest = min(lowest, o.lowest(rep.sites))
		went += len(o.losses)
		for _, l := range o.losses {
			if len(l.stay) < floor {
				below++
			}
		}
		if o.cut != nil {
			cuts++
			ignored += float64(o.ignored)
		}
		if o.settled > 0 {
			settled = append(settled, o.settled)
		}
		side += len(o.wrong)
	}
	for _, a := range rep.singles {
		detected, asked, gone = append(detected, a.detected), append(asked, a.asked-a.detected), append(gone, a.gone-a.detected)
	}
	out := []figure.Figure{
		{Name: "lowest", Value: float64(lowest), Unit: "sites", Against: "floor", Ratio: float64(lowest) / floor},
		{Name: "below_floor", Value: float64(below), Unit: "withdrawals"},
		{Name: "wrong", Value: float64(side), Unit: "findings"},
		{Name: "rounds", Value: float64(len(rep.rounds)), Unit: "rounds"},
		{Name: "rounds_cut", Value: float64(cuts), Unit: "rounds"},
		{Name: "cut_dropped", Value: ignored, Unit: "packets"},
		{Name: "withdrawals", Value: float64(went), Unit: "routes"},
	}
	add := func(name string, of []time.Duration, aim time.Duration) {
		if len(of) == 0 {
			return
		}
		slices.Sort(of)
		for _, f := range []figure.Figure{
			{Name: name, Value: of[len(of)/2].Seconds(), Unit: "s"}, {Name: name + "_worst", Value: of[len(of)-1].Seconds(), Unit: "s"},
		} {
			if aim > 0 {
				f.Against, f.Ratio = "aim", f.Value/aim.Seconds()
			}
			out = append(out, f)
		}
	}
	add("all_left", settled, 0)
	add("one_detected", detected, 0)
	add("one_asked", asked, 0)
	add("one_gone", gone, goneWithin)
	return out
}

// table is all of it for a person.
func (rep *report) table() string {
	var b strings.Builder
	b.WriteString("\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, f := range rep.figures() {
		against := ""
		if f.Against != "" {
			against = fmt.Sprintf("%.2f of the %s", f.Ratio, f.Against)
		}
		fmt.Fprintf(w, "%s\t%.4g %s\t%s\n", f.Name, f.Value, f.Unit, against)
	}
	w.Flush()
	return b.String()
}

func (rep *report) write(path string) error {
	return figure.Write(path, rep.figures())
}
