package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge/image/setup"
)

// shown is what config show tells.
type shown struct {
	// Generation is the one in force; 0: none.
	Generation int `json:"generation"`
	// Confirmed says that it is in force for good: a person or a good boot has
	// confirmed it under this version.
	Confirmed   bool               `json:"confirmed"`
	Pending     *setup.Pending     `json:"pending,omitempty"`
	Reverted    *setup.Reverted    `json:"reverted,omitempty"`
	Generations []setup.Generation `json:"generations"`
}

func (o *options) configShowCommand(open func() (*configs, error)) *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Show the generations of the configuration, and what waits to be confirmed", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cs, err := open()
			if err != nil {
				return problem{err}
			}
			s, err := cs.show()
			if err != nil {
				return problem{err}
			}
			if o.output == "json" {
				return o.json(s)
			}
			return o.write(clean(s.text(cs.now())))
		},
	}
}

func (c *configs) show() (s shown, err error) {
	if s.Generation, err = c.store.Current(); err != nil {
		return s, err
	}
	if s.Pending, err = c.store.Pending(); err != nil {
		return s, err
	}
	st := c.store.State()
	s.Reverted, s.Confirmed = st.Reverted, s.Generation != 0 && s.Pending == nil && c.store.Good(s.Generation)
	all, err := c.store.Generations()
	if err != nil {
		return s, err
	}
	for _, n := range slices.Backward(all) {
		g, err := c.store.Describe(n)
		if err != nil {
			g = setup.Generation{Number: n, Source: "unknown: " + err.Error()}
		}
		g.Digest = "" // not for everybody: passwords could be guessed from it
		s.Generations = append(s.Generations, g)
	}
	return s, nil
}

func (s shown) text(now time.Time) string {
	var b strings.Builder
	switch {
	case s.Generation == 0:
		b.WriteString("no configuration is in force\n")
	case s.Confirmed:
		fmt.Fprintf(&b, "generation %d is in force\n", s.Generation)
	default:
		fmt.Fprintf(&b, "generation %d is in force, and not confirmed\n", s.Generation)
	}
	if p := s.Pending; p != nil {
		if p.To == s.Generation {
			fmt.Fprintf(&b, "  %s are left for edgectl config confirm; else generation %d comes back\n", span(max(0, p.Deadline.Sub(now))), p.From)
		} else {
			fmt.Fprintf(&b, "  generation %d is being taken back\n", p.To)
		}
	}
	if r := s.Reverted; r != nil {
		fmt.Fprintf(&b, "generation %d was taken back at %s: %s\n", r.From, r.Time.Format(time.DateTime), line(r.Reason))
	}
	for _, g := range s.Generations {
		mark := " "
		if g.Number == s.Generation {
			mark = "*"
		}
		fmt.Fprintf(&b, "%s %d  %s  by version %s  from %s\n", mark, g.Number, g.Created.Format(time.DateTime), cmp.Or(g.Version, "unknown"), line(g.Source))
	}
	return b.String()
}
