package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/test/lab"
)

// scenario is one way in which a site fails, or leaves.
type scenario struct {
	name string
	// aim is what the time should not exceed; 0: there is none.
	aim time.Duration
	// against is the scenario that the time is compared with; empty: the aim.
	against string
	in      setup
	// slow ones are measured once.
	slow bool
	// leaves: the site withdraws, which takes a permit. Else it only stops being
	// preferred, or its session ends.
	leaves bool
	// fault makes it fail, mend undoes that.
	fault, mend func(context.Context, *rig) error
	// measure is how; nil: see measure.
	measure func(context.Context, *rig, scenario) (result, error)
	// also, if not nil, is checked before mend.
	also func(context.Context, *rig) error
}

// setup is what the lab of a scenario is like.
type setup struct {
	bfd bool
	// probes is the interval of the probes; three bad ones are a failure.
	probes time.Duration
}

// The labs, in the order in which they are used.
var (
	watched   = setup{bfd: true, probes: time.Second}
	fast      = setup{bfd: true, probes: 200 * time.Millisecond}
	unwatched = setup{probes: time.Second}
)

// lease is that of the lab's edge.yaml, node.bgp.lease.
const lease = 5 * time.Second

// away is how long a router is gone in router_back.
const away = 15 * time.Second

// scenarios are all, grouped by their labs; those that need permits come first,
// as long as the gossip has not been disturbed.
func scenarios() []scenario {
	return []scenario{
		{name: "drain", in: watched, leaves: true, fault: drain, mend: undrain, measure: measureLeaving},
		{name: "proxy_killed", aim: 3500 * time.Millisecond, in: watched, leaves: true, fault: kill(lab.Proxy), mend: restart(lab.Proxy)},
		{name: "edgebgp_killed", aim: 100 * time.Millisecond, in: watched, fault: kill(lab.Speaker), mend: restart(lab.Speaker)},
		{name: "frozen_bfd", aim: time.Second, against: "frozen_nobfd", in: watched, fault: freeze, mend: thaw},
		{name: "link_cut_bfd", aim: time.Second, against: "link_cut_nobfd", in: watched, fault: silence, mend: endSilence},
		{name: "edged_killed", aim: lease + 500*time.Millisecond, in: watched, fault: kill(lab.Control), mend: restart(lab.Control), also: neverWithdrawn},
		{name: "router_back", aim: 5 * time.Second, in: watched, measure: measureBack},
		{name: "proxy_killed_fast", aim: time.Second, in: fast, leaves: true, fault: kill(lab.Proxy), mend: restart(lab.Proxy)},
		{name: "frozen_nobfd", in: unwatched, slow: true, fault: freeze, mend: thaw},
		{name: "link_cut_nobfd", in: unwatched, slow: true, fault: silence, mend: endSilence},
	}
}

// choose picks by name.
func choose(all []scenario, names []string) ([]scenario, error) {
	if len(names) == 0 {
		return all, nil
	}
	var out []scenario
	for _, s := range all {
		if slices.Contains(names, s.name) {
			out = append(out, s)
		}
	}
	if len(out) != len(names) {
		return nil, fmt.Errorf("choose scenarios: %d of %v are known", len(out), names)
	}
	return out, nil
}

// kill ends a daemon of the box with SIGKILL, for good.
func kill(daemon string) func(context.Context, *rig) error {
	return func(_ context.Context, r *rig) error {
		d := r.box.Daemon(daemon)
		d.RestartNever()
		return d.Signal(unix.SIGKILL)
	}
}

func restart(daemon string) func(context.Context, *rig) error {
	return func(_ context.Context, r *rig) error {
		r.box.Daemon(daemon).RestartAfter(0)
		return nil
	}
}

// freeze stops the speaker as a debugger does: its sockets stay open, and the
// kernel goes on acknowledging what arrives.
func freeze(_ context.Context, r *rig) error { return r.box.Daemon(lab.Speaker).Signal(unix.SIGSTOP) }

func thaw(_ context.Context, r *rig) error { return r.box.Daemon(lab.Speaker).Signal(unix.SIGCONT) }

func silence(_ context.Context, r *rig) error { return r.box.Silence() }

func endSilence(_ context.Context, r *rig) error { return r.box.EndSilence() }

func drain(ctx context.Context, r *rig) error {
	_, err := r.box.Ctl(ctx, "drain", "--reason", "measured")
	return err
}

func undrain(ctx context.Context, r *rig) error {
	_, err := r.box.Ctl(ctx, "undrain")
	return err
}
