package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
)

// waitEvery is how often drain --wait looks.
const waitEvery = 250 * time.Millisecond

func (o *options) drainCommand() *cobra.Command {
	var in edge.Drain
	var service string
	var length, wait time.Duration
	var unlessDrained bool
	c := &cobra.Command{
		Use: "drain [PREFIX] --reason TEXT", Short: "Leave: with the guard's permit, and for good until undrained",
		Long: "Order this node to stop announcing a prefix, the prefix of a service, or all of them. It degrades\n" +
			"at once, so that the traffic moves (guard.drain_time), and withdraws when the guard permits it.\n" +
			"The order is kept over restarts and reboots, until undrain or the end of --for.\n\n" +
			"With --wait it returns when all is off the air and nothing is served any more, and the box may be\n" +
			"switched off; else, when the time is over, it says what is not, and why (exit code 1).\n\n" +
			"An order for the same is replaced. With --unless-drained it stays as it is, and whoever gave it ends it.\n\n" +
			"--force withdraws at once and without the guard, so it may take the last site off the air. It is for\n" +
			"a box that does harm. Every box logs it and alarms for an hour; ten prefixes may be in ten minutes.",
		Args: prefixArg,
		RunE: func(c *cobra.Command, args []string) error {
			if strings.TrimSpace(in.Reason) == "" {
				return errors.New("--reason TEXT is needed: it is what others will read")
			}
			if service != "" && len(args) > 0 {
				return errors.New("a prefix and --service are given: one order drains one of them")
			}
			if length < 0 || wait < 0 {
				return fmt.Errorf("--for %s or --wait %s is negative", length, wait)
			}
			in.Prefix, in.Service = prefixOf(args), edge.ServiceID(service)
			if length > 0 {
				in.Until = o.now().Add(length).UTC()
			}
			if unlessDrained && in.Force {
				return errors.New("--unless-drained and --force are given: what is drained already is forced by another order")
			}
			switch {
			case unlessDrained:
				return o.drainUnlessDrained(c, in, wait)
			case wait > 0:
				return o.drainAndWait(c, in, wait)
			}
			return o.order(c, in.Prefix, "/v1/drain", in)
		},
	}
	c.Flags().StringVar(&in.Reason, "reason", "", "why, in a few `words`")
	c.Flags().StringVar(&service, "service", "", "the prefix of this `service`")
	c.Flags().DurationVar(&length, "for", 0, "how `long`; 0: until undrain")
	c.Flags().DurationVar(&wait, "wait", 0, "how `long` to wait until the box may be switched off; 0: not at all")
	c.Flags().BoolVar(&unlessDrained, "unless-drained", false, "leave an order for the same that is in force as it is")
	c.Flags().BoolVar(&in.Force, "force", false, "at once, and without the guard: whatever the floor says")
	return c
}

// drainUnlessDrained orders what nobody has ordered yet: a box that goes down for an
// upgrade is to come back by the order of that, and not to stay out for good.
func (o *options) drainUnlessDrained(c *cobra.Command, in edge.Drain, wait time.Duration) error {
	var st edge.SystemStatus
	if err := o.call(c.Context(), "GET", "/v1/status", nil, &st); err != nil {
		return err
	}
	found := slices.IndexFunc(st.Drains, func(d edge.Drain) bool { return !d.Stop && d.Prefix == in.Prefix && d.Service == in.Service })
	switch {
	case found < 0 && wait > 0:
		return o.drainAndWait(c, in, wait)
	case found < 0:
		return o.order(c, in.Prefix, "/v1/drain", in)
	case wait > 0:
		return o.awaitOrder(c, st, in, wait)
	case o.output == "json":
		return o.json(st)
	}
	return o.write("it is drained already: " + line(st.Drains[found].Reason) + "\n")
}

// drainAndWait orders, and looks until nothing of it is announced or served any more.
func (o *options) drainAndWait(c *cobra.Command, in edge.Drain, wait time.Duration) error {
	var st edge.SystemStatus
	if err := o.call(c.Context(), "POST", "/v1/drain", in, &st); err != nil {
		return err
	}
	return o.awaitOrder(c, st, in, wait)
}

// awaitOrder looks until nothing of an order is left. st is the status since it is in force.
func (o *options) awaitOrder(c *cobra.Command, st edge.SystemStatus, in edge.Drain, wait time.Duration) error {
	left, err := o.awaitDrained(c.Context(), &st, in, wait)
	switch {
	case err != nil && c.Context().Err() != nil:
		return problem{errors.New("interrupted; the order stays in force")}
	case err != nil:
		return err
	case len(left) > 0:
		return problem{fmt.Errorf("not drained within %s; the order stays in force:\n  %s", wait, strings.Join(left, "\n  "))}
	case o.output == "json":
		return o.json(st)
	}
	return o.write("all is off the air, and nothing is served any more\n")
}

// awaitDrained looks until nothing of an order is left, or the time is over: then it
// returns what is left, and why. st is the last status, at first that of the order.
func (o *options) awaitDrained(ctx context.Context, st *edge.SystemStatus, in edge.Drain, wait time.Duration) (left []string, err error) {
	over, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	for {
		left := undrained(*st, in)
		if err == nil && len(left) == 0 {
			return nil, nil
		}
		select {
		case <-over.Done():
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return left, err
		case <-tick.C:
		}
		var next edge.SystemStatus
		if err = o.call(ctx, "GET", "/v1/status", nil, &next); err == nil {
			*st = next
		}
	}
}

// undrained says which of the prefixes that an order concerns are not done yet, and why.
func undrained(st edge.SystemStatus, in edge.Drain) []string {
	var out []string
	if len(st.Decisions) == 0 {
		return []string{"edged has decided on no prefix yet"}
	}
	for _, d := range st.Decisions {
		if d.Unserved || in.Prefix != (netip.Prefix{}) && d.Prefix != in.Prefix || in.Service != "" && !holds(st, in.Service, d.Prefix) {
			continue
		}
		out = append(out, strings.TrimSuffix(fmt.Sprintf("%s is %s: %s", d.Prefix, known(string(d.Rung)), line(string(d.Reason))), ": "))
	}
	return out
}

// holds says whether a prefix has the VIP of a service in it.
func holds(st edge.SystemStatus, id edge.ServiceID, p netip.Prefix) bool {
	for _, s := range st.Services {
		if s.ID == id {
			return p.Contains(s.VIP.Addr())
		}
	}
	return false
}
