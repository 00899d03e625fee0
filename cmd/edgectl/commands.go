package main

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/version"
)

func (o *options) statusCommand() *cobra.Command {
	var verbose bool
	c := &cobra.Command{
		Use: "status", Short: "Show what this node announces, and why", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var st edge.SystemStatus
			if err := o.call(c.Context(), "GET", "/v1/status", nil, &st); err != nil {
				return err
			}
			if o.output == "json" {
				return o.json(st)
			}
			return o.write(statusText(o.env, st, verbose))
		},
	}
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "also probes that are up and counters that are 0")
	return c
}

func (o *options) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check FILE", Short: "Check a configuration file; edged is not asked", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := edge.Load(args[0])
			var errs edge.Errors
			switch {
			case errors.As(err, &errs):
				return o.refused(errs)
			case err != nil:
				return problem{err}
			case o.output == "json":
				return o.json(edge.Errors{})
			}
			f := c.Fleet
			return o.write(fmt.Sprintf("%s: ok: node %s of %s, %s, %s, %s, %s, %s\n", args[0], c.Local.ID,
				count(len(f.Nodes), "node"), count(len(f.Sites), "site"), count(len(f.Prefixes), "prefix"),
				count(len(f.Services), "service"), count(len(f.Regions), "region"), count(len(f.Health.Probes), "probe")))
		},
	}
}

// refused prints the errors of a file as they are, so that editors can jump to
// them.
func (o *options) refused(errs edge.Errors) error {
	if o.output == "json" {
		if err := o.json(errs); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(o.stderr, clean(errs.Error()))
	}
	return problem{errors.New("")}
}

func (o *options) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use: "explain PREFIX|VIP|FLOW", Short: "Say why a prefix, a VIP or a flow is treated as it is",
		Example: "  edgectl explain 198.51.100.0/24\n  edgectl explain 198.51.100.10:443\n  edgectl explain tcp 192.0.2.1:40000 198.51.100.10:443\n" +
			"  edgectl explain udp 192.0.2.1:40000 198.51.100.10:443 cid=0a1b2c\n  edgectl explain gre 192.0.2.1 198.51.100.10",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 3 && len(args) != 4 {
				return errors.New("expected a prefix, a VIP, or a flow: PROTOCOL SOURCE:PORT DESTINATION:PORT [cid=HEX]")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			var ex edge.Explanation
			what := url.Values{"what": {strings.Join(args, " ")}}
			if err := o.call(c.Context(), "GET", "/v1/explain?"+what.Encode(), nil, &ex); err != nil {
				return err
			}
			if o.output == "json" {
				return o.json(ex)
			}
			if len(ex.Lines) == 0 {
				return problem{fmt.Errorf("edged knows nothing of %s", strings.Join(args, " "))}
			}
			return o.write(clean(strings.Join(ex.Lines, "\n")) + "\n")
		},
	}
}

func (o *options) undrainCommand() *cobra.Command {
	var service string
	c := &cobra.Command{
		Use: "undrain [PREFIX]", Short: "Take back a drain", Args: prefixArg,
		RunE: func(c *cobra.Command, args []string) error {
			p := prefixOf(args)
			in := struct {
				Prefix  netip.Prefix   `json:"prefix,omitzero"`
				Service edge.ServiceID `json:"service,omitempty"`
			}{p, edge.ServiceID(service)}
			return o.order(c, p, "/v1/undrain", in)
		},
	}
	c.Flags().StringVar(&service, "service", "", "the one that was drained by the name of this `service`")
	return c
}

// order sends a drain or undrain and shows where the prefixes stand now.
func (o *options) order(c *cobra.Command, p netip.Prefix, path string, in any) error {
	var st edge.SystemStatus
	if err := o.call(c.Context(), "POST", path, in, &st); err != nil {
		return err
	}
	if o.output == "json" {
		return o.json(st)
	}
	var b strings.Builder
	for _, d := range st.Decisions {
		if p != (netip.Prefix{}) && d.Prefix != p {
			continue
		}
		fmt.Fprintf(&b, "%s is %s", d.Prefix, known(string(d.Rung)))
		if d.Reason != "" {
			fmt.Fprintf(&b, ": %s", line(string(d.Reason)))
		}
		b.WriteByte('\n')
	}
	if b.Len() == 0 {
		b.WriteString("taken; edged has not decided on a prefix yet\n")
	}
	return o.write(b.String())
}

// prefixArg takes at most one prefix.
func prefixArg(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if len(args) > 1 {
		return errors.New("expected at most one prefix")
	}
	p, err := netip.ParsePrefix(args[0])
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a prefix, like 192.0.2.0/24", args[0])
	case p != p.Masked():
		return fmt.Errorf("%s has bits behind its length: did you mean %s?", p, p.Masked())
	}
	return nil
}

// prefixOf is the argument that prefixArg took; without it, the zero Prefix,
// which is all.
func prefixOf(args []string) netip.Prefix {
	if len(args) == 0 {
		return netip.Prefix{}
	}
	p, _ := netip.ParsePrefix(args[0])
	return p
}

func (o *options) reloadCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reload", Short: "Read the configuration again and apply it, or refuse it whole", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var out struct {
				Generation uint64   `json:"generation"`
				Changes    []string `json:"changes"`
			}
			err := o.call(c.Context(), "POST", "/v1/reload", nil, &out)
			if no := (refusal{}); errors.As(err, &no) {
				return problem{fmt.Errorf("edged refused the configuration and goes on with the one it has:\n%w", err)}
			}
			if err != nil {
				return err
			}
			if o.output == "json" {
				return o.json(out)
			}
			text := fmt.Sprintf("generation %d: nothing changed\n", out.Generation)
			if n := len(out.Changes); n > 0 {
				text = fmt.Sprintf("generation %d: %s\n  %s\n", out.Generation, count(n, "change"), clean(strings.Join(out.Changes, "\n  ")))
			}
			return o.write(text)
		},
	}
}

func (o *options) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of edgectl", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if o.output == "json" {
				return o.json(map[string]string{"version": version.String()})
			}
			return o.write(version.String() + "\n")
		},
	}
}

func count(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "x"):
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
