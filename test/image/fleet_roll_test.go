package image

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge/test/operator"
)

// playLimit is the patience for a playbook: each call of a module starts Python in an
// emulated machine.
const playLimit = 6 * time.Minute

// fleetPart is one thing that happens to the fleet. One that fails ends the test.
type fleetPart struct {
	name string
	run  func(context.Context, *testing.T, *fleet) error
}

// TestFleet has Ansible make a fleet of two new machines. It is a part of its own, as
// the two take all that two cores have: make image-test TEST=TestFleet.
func TestFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t.Context(), t, findBuilt(t))
	for _, p := range []fleetPart{
		{"two new boxes can be reached, and have no configuration", bootFleet},
		{"a check of new boxes changes nothing", checkFleet},
		{"new boxes are configured, and announce", convergeFleet},
		{"nothing is to be done", convergeAgain},
		{"a careful operator finds nothing", verifyFleet},
	} {
		start := time.Now()
		ok := t.Run(p.name, func(t *testing.T) {
			if err := p.run(t.Context(), t, f); err != nil {
				t.Fatalf("%v\n%s", err, f.autopsy())
			}
		})
		t.Logf("%5.1f s  %s", time.Since(start).Seconds(), p.name)
		if !ok {
			return
		}
	}
}

func bootFleet(ctx context.Context, t *testing.T, f *fleet) error {
	ctx, cancel := within(ctx, bootLimit)
	defer cancel()
	start := time.Now()
	if err := makeQEMU(ctx, filepath.Dir(f.qemu)); err != nil {
		return err
	}
	t.Logf("%5.1f s  there is a qemu", time.Since(start).Seconds())
	start = time.Now()
	var g errgroup.Group
	g.Go(func() error { return f.operator.Install(ctx, "../../ansible") })
	g.Go(func() error {
		return f.each(func(n *node) error {
			err := n.boot(ctx)
			t.Logf("%5.1f s  %s has booted", time.Since(start).Seconds(), n.Name())
			return err
		})
	})
	return g.Wait()
}

// plays runs a playbook that has to succeed on both nodes.
func (f *fleet) plays(ctx context.Context, t *testing.T, playbook string, extra operator.Vars, args ...string) (operator.Result, error) {
	t.Helper()
	ctx, cancel := within(ctx, playLimit)
	defer cancel()
	got, err := f.operator.Play(ctx, playbook, extra, args...)
	if err != nil {
		return got, err
	}
	t.Logf("%5.1f s  %s: %s", got.Took.Seconds(), playbook, got)
	for _, n := range f.nodes {
		if h, ok := got.Hosts[n.Name()]; !ok || h.Failed > 0 || h.Unreachable > 0 {
			return got, fmt.Errorf("%s of %s: %+v\n%s", playbook, n.Name(), h, got.Text)
		}
	}
	if got.Failed {
		return got, fmt.Errorf("%s ends with an error\n%s", playbook, got.Text)
	}
	return got, nil
}

// checkFleet: what --check says, it does not do.
func checkFleet(ctx context.Context, t *testing.T, f *fleet) error {
	got, err := f.plays(ctx, t, "site", nil, "--check", "--diff")
	if err != nil {
		return err
	}
	if len(got.Changed()) != len(f.nodes) {
		return fmt.Errorf("it would change %v\n%s", got.Changed(), got.Text)
	}
	return f.each(func(n *node) error {
		if out, err := n.run(ctx, "test ! -e /etc/edge/edge.yaml && test ! -e /var/lib/edge-keys && ls -A /var/lib/edge-config"); err != nil {
			return fmt.Errorf("a check has changed %s: %w: %s", n.Name(), err, out)
		}
		return nil
	})
}

func convergeFleet(ctx context.Context, t *testing.T, f *fleet) error {
	if _, err := f.plays(ctx, t, "site", nil, "--diff"); err != nil {
		return err
	}
	if err := f.announced(ctx); err != nil {
		return err
	}
	return f.each(func(n *node) error {
		out, err := n.run(ctx, "edgectl config show")
		if err == nil && !regexp.MustCompile(`^generation 1 is in force\n`).MatchString(out) {
			err = fmt.Errorf("%s: its configuration is not confirmed: %s", n.Name(), out)
		}
		return err
	})
}

func convergeAgain(ctx context.Context, t *testing.T, f *fleet) error {
	got, err := f.plays(ctx, t, "site", nil, "--diff")
	if err == nil && len(got.Changes) > 0 {
		err = fmt.Errorf("a second run changes %v", got.Changes)
	}
	return err
}

// verifyFleet: the lab's certificates end soon, and an emulated machine is slow to say
// what its clock shows.
func verifyFleet(ctx context.Context, t *testing.T, f *fleet) error {
	_, err := f.plays(ctx, t, "verify", operator.Vars{"verify_limits": tree{
		"certificate_warning_days": 0.5, "certificate_critical_days": 0.1, "clock_skew_seconds": 60,
	}})
	return err
}
