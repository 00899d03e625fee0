package main

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
)

func (o *options) healthCommand() *cobra.Command {
	var events int
	c := &cobra.Command{
		Use: "health", Short: "Show the probes, what they make of each prefix, and what has changed", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var st edge.SystemStatus
			var past edge.Events
			if err := o.call(c.Context(), "GET", "/v1/status", nil, &st); err != nil {
				return err
			}
			if err := o.call(c.Context(), "GET", "/v1/history", nil, &past); err != nil {
				return err
			}
			past.Events = past.Events[max(0, len(past.Events)-events):]
			if o.output == "json" {
				return o.json(struct {
					Health []edge.PrefixHealth `json:"health"`
					Probes []edge.Status       `json:"probes"`
					edge.Events
				}{st.Conditions, st.Probes, past})
			}
			return o.write(healthText(o.env, st, past.Events))
		},
	}
	c.Flags().IntVar(&events, "events", 20, "how `many` of the last changes")
	c.AddCommand(o.whatIfCommand())
	return c
}

func healthText(e env, st edge.SystemStatus, events []edge.Event) string {
	s := &status{SystemStatus: st, verbose: true}
	s.colour = e.colour
	for _, c := range st.Conditions {
		s.say(healthTone(c.Health), strings.TrimSuffix(fmt.Sprintf("%s is %s since %s: %s", c.Prefix, c.Health, s.age(c.Since), c.Reason), ": "))
	}
	s.probes()
	if len(events) == 0 {
		s.section(plain, "no changes since edged started")
		return s.b.String()
	}
	var rows [][]cell
	for _, ev := range events {
		rows = append(rows, []cell{
			{ev.Time.UTC().Format(time.DateTime), plain}, {ev.Kind, plain}, {ev.Subject, plain},
			{ev.From + " → " + ev.To, plain}, {ev.Evidence, plain},
		})
	}
	s.table([]string{"TIME (UTC)", "KIND", "WHAT", "CHANGE", "EVIDENCE"}, rows)
	return s.b.String()
}

func (o *options) whatIfCommand() *cobra.Command {
	return &cobra.Command{
		Use: "what-if PROBE=STATE...", Short: "Say what would be announced if probes had other states; nothing is changed",
		Example: "  edgectl health what-if web-vip=down\n  edgectl health what-if regions=down disk=full",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			q := url.Values{}
			for _, a := range args {
				id, state, ok := strings.Cut(a, "=")
				var known edge.ProbeState
				if !ok || id == "" || known.UnmarshalText([]byte(state)) != nil {
					return fmt.Errorf("%q is not PROBE=STATE, with up, down, full or unknown", a)
				}
				if q.Has(id) {
					return fmt.Errorf("%s is given twice", id)
				}
				q.Set(id, state)
			}
			var out edge.WhatIf
			if err := o.call(c.Context(), "GET", "/v1/what-if?"+q.Encode(), nil, &out); err != nil {
				return err
			}
			if o.output == "json" {
				return o.json(out)
			}
			return o.write(whatIfText(o.env, out))
		},
	}
}

func whatIfText(e env, w edge.WhatIf) string {
	var p page
	p.colour = e.colour
	var rows [][]cell
	for i, d := range w.Then {
		now := "?"
		if i < len(w.Now) && w.Now[i].Prefix == d.Prefix {
			now = string(w.Now[i].Rung)
		}
		t := plain
		if string(d.Rung) != now {
			t = rungTone(d.Rung)
		}
		rows = append(rows, []cell{{d.Prefix.String(), plain}, {now, plain}, {string(d.Rung), t}, {string(d.Reason), plain}})
	}
	p.table([]string{"PREFIX", "NOW", "THEN", "REASON"}, rows)
	for _, n := range w.Notes {
		p.say(warn, n)
	}
	return strings.TrimPrefix(p.b.String(), "\n")
}
