package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
)

// watchEvery is how often the console is told of changes: what a person reads, not
// what a log keeps.
const watchEvery = time.Second

func (o *options) applianceWatchCommand() *cobra.Command {
	return &cobra.Command{
		Use: "watch", Short: "Tell what is announced, and each change of it, on the console", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.watch(c.Context()) },
	}
}

// watch prints a line when what is announced has changed, until ctx is done. An
// edged that does not answer is a change like any other.
func (o *options) watch(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for last := ""; ; {
		var st edge.SystemStatus
		line, state := "", ""
		if err := o.call(ctx, "GET", "/v1/status", nil, &st); err != nil {
			line = err.Error()
			state = line
		} else {
			line, state = announcing(st), rungs(st)
		}
		if state != last && ctx.Err() == nil {
			last = state
			if err := o.write("edge: " + clean(line) + "\n"); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// rungs is what a change of is worth a line: reasons change with each probe.
func rungs(st edge.SystemStatus) string {
	var all []string
	for _, d := range st.Decisions {
		all = append(all, d.Prefix.String()+" "+string(d.Rung))
	}
	return "rungs " + strings.Join(all, ", ")
}

// announcing says in a line what is on the air, and why the rest is not.
func announcing(st edge.SystemStatus) string {
	var on, off []string
	for _, d := range st.Decisions {
		switch {
		case d.Rung == edge.Announced:
			on = append(on, d.Prefix.String())
		case d.Rung.OnAir():
			on = append(on, fmt.Sprintf("%s (%s)", d.Prefix, d.Rung))
		default:
			off = append(off, fmt.Sprintf("%s (%s: %s)", d.Prefix, d.Rung, cmp.Or(string(d.Reason), "no reason is known")))
		}
	}
	line := "announcing " + strings.Join(on, ", ")
	if len(on) == 0 {
		line = "announces nothing"
	}
	if len(off) > 0 {
		line += "; not " + strings.Join(off, ", ")
	}
	return line
}
