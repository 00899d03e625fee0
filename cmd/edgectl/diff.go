package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
)

// difference is the answer of edgectl diff.
type difference struct {
	Changes []string `json:"changes"`
	// Takes is what the change takes beyond a reload.
	Takes edge.Effort `json:"takes"`
	// Stale says that edged goes by something else than the older file.
	Stale bool `json:"stale,omitempty"`
}

func (o *options) diffCommand() *cobra.Command {
	return &cobra.Command{
		Use: "diff NEW [OLD]", Short: "Show what a configuration would change, and what that takes; changes nothing",
		Long: "Show what the configuration NEW would change, a line for each key, and whether a reload is enough for it.\n" +
			"OLD is the one in force unless it is given. Both are checked whole. Of secrets only the names of\n" +
			"their files are compared. edged need not run.",
		Example: "  edgectl diff edge.yaml.new\n  edgectl diff b1.yaml a1.yaml",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			d, err := o.difference(c.Context(), append(args, edgeConfig)[:2], len(args) == 1)
			var errs edge.Errors
			switch {
			case errors.As(err, &errs):
				return o.refused(errs)
			case err != nil:
				return problem{err}
			case o.output == "json":
				return o.json(d)
			}
			return o.write(clean(d.text()))
		},
	}
}

// difference compares two files. If the older one is to be in force, edged is asked
// whether it is; one that does not answer says nothing about it.
func (o *options) difference(ctx context.Context, files []string, inForce bool) (difference, error) {
	next, err := edge.Load(files[0])
	if err != nil {
		return difference{}, err
	}
	old, err := edge.Load(files[1])
	if err != nil {
		return difference{}, err
	}
	d := difference{Changes: edge.Diff(old, next), Takes: edge.EffortOf(old, next)}
	if d.Changes == nil {
		d.Changes = []string{}
	}
	var st edge.SystemStatus
	if inForce && o.call(ctx, "GET", "/v1/status", nil, &st) == nil {
		d.Stale = st.ConfigHash != "" && st.ConfigHash != old.Hash
	}
	return d, nil
}

func (d difference) text() string {
	var b strings.Builder
	if len(d.Changes) == 0 {
		b.WriteString("nothing changes\n")
	}
	for _, c := range d.Changes {
		fmt.Fprintln(&b, c)
	}
	for _, takes := range []struct{ key, what string }{
		{d.Takes.Edged, "a restart of edged, by which nothing is withdrawn"},
		{d.Takes.Proxy, "a restart of edgeproxy: drain the node first"},
		{d.Takes.DataPlane, "the data plane loaded anew: drain the node first, edgectl reload says how"},
	} {
		if takes.key != "" {
			fmt.Fprintf(&b, "%s takes %s\n", takes.key, takes.what)
		}
	}
	if d.Stale {
		fmt.Fprintf(&b, "edged goes by another configuration than %s: edgectl reload, or edgectl status, says why\n", edgeConfig)
	}
	return b.String()
}
