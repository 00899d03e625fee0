package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/image/tune"
	"github.com/catchment-dev/edge/xdp/nic"
)

const (
	// mostOverhead is the most that encapsulation adds to a packet, in bytes, as
	// edged counts it: an IPv6 and a UDP header.
	mostOverhead = 40 + 8
	// tuneRounds is how often an interface is looked at: what one setting brings to
	// light the next round mends.
	tuneRounds = 3
)

func (o *options) applianceTuneCommand() *cobra.Command {
	var config string
	var wait time.Duration
	c := &cobra.Command{
		Use: "tune", Short: "Set the uplinks as native XDP needs them", Args: cobra.NoArgs,
		Long: "tune sets what edged's preflight finds on node.forwarder.interfaces and ethtool can mend, and prints it.\n" +
			"An interface on which the program runs already is left alone.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := edge.Load(config)
			if err != nil {
				return problem{err}
			}
			return o.tune(c.Context(), cfg.Local.Forwarder, wait)
		},
	}
	c.Flags().StringVar(&config, "config", edgeConfig, "configuration `file`")
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "how `long` to wait for the interfaces")
	return c
}

// tune sets the uplinks. What cannot be set is printed, and no error: edged judges
// for itself whether it can start.
func (o *options) tune(ctx context.Context, f edge.ForwarderConfig, wait time.Duration) error {
	if err := await(ctx, f.Interfaces, wait); err != nil {
		return problem{err}
	}
	var errs []error
	for _, name := range f.Interfaces {
		text, err := tuneOne(name, f.Mode)
		if err := o.write(text); err != nil {
			return err
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return problem{err}
	}
	return nil
}

// await waits until all interfaces are there: at boot the drivers take their time.
func await(ctx context.Context, names []string, wait time.Duration) error {
	ctx, stop := context.WithTimeout(ctx, wait)
	defer stop()
	for {
		var missing []string
		for _, name := range names {
			if _, err := netlink.LinkByName(name); err != nil {
				missing = append(missing, name)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait %s for the interface %s: it is not there; node.forwarder.interfaces names it, ip link lists those that are", wait, strings.Join(missing, ", "))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tuneOne sets one uplink, and its ports if it is a bond, and returns what is to be
// said of it, in lines.
func tuneOne(name string, mode edge.XDPMode) (string, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return "", fmt.Errorf("find interface %s: %w", name, err)
	}
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		return fmt.Sprintf("tune: %s: left alone, a program runs on it\n", name), nil
	}
	var text strings.Builder
	var tried []string
	var errs []error
	for range tuneRounds {
		found, err := nic.Preflight(name, mode, mostOverhead)
		if err != nil {
			return text.String(), err
		}
		plan := slices.DeleteFunc(tune.Plan(changes(found)), func(c tune.Change) bool { return slices.Contains(tried, c.String()) })
		if len(plan) == 0 {
			tell(&text, found)
			break
		}
		done, err := tune.Apply(plan)
		errs = append(errs, err)
		for _, c := range plan {
			tried = append(tried, c.String())
		}
		for _, c := range done {
			fmt.Fprintf(&text, "tune: set %s (%s)\n", c, c.Why)
		}
	}
	return text.String(), errors.Join(errs...)
}

// changes are what of the findings can be set.
func changes(found []nic.Finding) []tune.Change {
	var out []tune.Change
	for _, f := range found {
		s := f.Setting
		if s == (nic.Setting{}) {
			continue
		}
		c := tune.Change{Interface: s.Interface, Why: f.What, Feature: s.Feature, MTU: s.MTU}
		if s.Queues != nil {
			q := tune.Queues(*s.Queues)
			c.Queues = &q
		}
		out = append(out, c)
	}
	return out
}

// tell says what is left.
func tell(text *strings.Builder, found []nic.Finding) {
	for _, f := range found {
		fmt.Fprintf(text, "tune: left as it is: %s\n", f)
	}
}
