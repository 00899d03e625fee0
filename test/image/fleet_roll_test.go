package image

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge/test/operator"
)

// playLimit is the patience for a playbook: each call of a module starts Python in an
// emulated machine.
const playLimit = 6 * time.Minute

// rollLimit is that for each box that is rolled.
const rollLimit = 10 * time.Minute

// fleetPart is one thing that happens to the fleet. One that fails ends the test.
type fleetPart struct {
	name string
	run  func(context.Context, *testing.T, *fleet) error
}

// TestFleet has Ansible make a fleet of two new machines, and roll it. It is a part of its own, as
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
		{"both go to the next version under traffic, one after the other", rollFleet},
		{"no box is left to be rolled", rollAgain},
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
		err := f.nextVersion(ctx)
		t.Logf("%5.1f s  there is a next version", time.Since(start).Seconds())
		return err
	})
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
	limit := playLimit
	if playbook == "rollout" {
		limit = time.Duration(len(f.nodes)) * rollLimit
	}
	ctx, cancel := within(ctx, limit)
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
// what its clock shows, and may say that it is too busy.
func verifyFleet(ctx context.Context, t *testing.T, f *fleet) error {
	_, err := f.plays(ctx, t, "verify", operator.Vars{"verify_fail_on": "critical", "verify_limits": tree{
		"certificate_warning_days": 0.5, "certificate_critical_days": 0.1, "clock_skew_seconds": 60,
	}})
	return err
}

// rollVars: the soaks are short, the patience is that for emulated machines.
func (f *fleet) rollVars() operator.Vars {
	return operator.Vars{
		"rollout_version": goodVersion, "rollout_image": f.server.url + "/" + goodVersion, "edge_upgrade_image_ca": "/etc/edge/secrets/updates.crt",
		"rollout_soak": "5s", "rollout_canary_soak": "5s", "rollout_upgrade_wait": "10m", "rollout_ignore_alarms": []string{"too busy to judge"},
	}
}

// rollFleet: while one box is away the other is not, and who asks notices no more than
// that the routers turn.
func rollFleet(ctx context.Context, t *testing.T, f *fleet) error {
	watches := map[string]*pathWatch{}
	for _, n := range f.nodes {
		watches[n.Name()] = newPathWatch(n.router(), n.Name(), turnsEvery)
		defer watches[n.Name()].stop()
	}
	asking := askOf(ctx, f.Clients[clientName])
	_, err := f.plays(ctx, t, "rollout", f.rollVars())
	samples := asking.stop()
	t.Logf("traffic: %s; by site: %v", samples, samples.Sites())
	var all []seenPath
	seen := map[string][]seenPath{}
	for name, w := range watches {
		seen[name] = w.stop()
		for _, s := range seen[name] {
			t.Logf("%s  the path of %s is %s", s.at.Format("15:04:05.0"), name, s.state)
		}
		all = append(all, turns(seen[name])...)
	}
	if by := samples.Sites(); err == nil && (by["a"] == 0 || by["b"] == 0) {
		err = fmt.Errorf("not both sites have answered: %v", by)
	}
	if err != nil {
		return err
	}
	return errors.Join(apart(seen[boxName], seen[otherBox]), excused(samples, all), f.announced(ctx), f.each(func(n *node) error { return n.rolled(ctx) }))
}

// apart wants each of two paths to have gone once, marked as the last resort first, and to
// have come back at its best, and neither to have been gone while the other was. That a
// busy box makes its path less attractive for a moment is its own affair.
func apart(a, b []seenPath) error {
	var gone [2]struct{ from, to time.Time }
	for i, seen := range [][]seenPath{a, b} {
		at := slices.IndexFunc(seen, func(s seenPath) bool { return s.state == pathGone })
		if at < 1 || seen[at-1].state != pathLast || seen[len(seen)-1].state != pathFull ||
			slices.ContainsFunc(seen[at+1:], func(s seenPath) bool { return s.state == pathGone }) {
			return fmt.Errorf("a path was not as usual, %s, %s once and as usual again: %v", pathLast, pathGone, seen)
		}
		gone[i].from, gone[i].to = seen[at].at, seen[at+1].at
	}
	if gone[0].from.Before(gone[1].to) && gone[1].from.Before(gone[0].to) {
		return fmt.Errorf("both were away at %s", gone[1].from.Format("15:04:05"))
	}
	return nil
}

// rolled: the version is there to stay, and nothing of the rollout is left on the box.
func (n *node) rolled(ctx context.Context) error {
	for _, c := range []struct{ command, want string }{
		{"cat /run/edge-image/metrics.prom", `(?m)^edge_boot_version\{version="` + regexp.QuoteMeta(goodVersion) + `",slot="b"\} 1\n(?s:.*)^edge_boot_good 1$`},
		{"cat /var/lib/edge-image/upgrade.json", `"stage": ?"good"`},
		{"ls /efi/EFI/Linux | sort | tr '\\n' ' '", `^` + regexp.QuoteMeta("edge_"+n.fleet.built.version+".efi") + `\s+` + regexp.QuoteMeta("edge_"+goodVersion+".efi") + `$`},
		{"edgectl config show", `^generation 1 is in force\n`},
		{"ls -A /run/edge-rollout 2>&1 | grep -x lock.json; edgectl status | grep -i drain; systemctl is-system-running", `^running$`},
	} {
		out, err := n.run(ctx, c.command)
		if !regexp.MustCompile(c.want).MatchString(out) {
			return fmt.Errorf("%s: %s shows %q (%w), want %q", n.Name(), c.command, out, err, c.want)
		}
	}
	return nil
}

// rollAgain: the same command once more.
func rollAgain(ctx context.Context, t *testing.T, f *fleet) error {
	before := []int{f.nodes[0].machine.Resets(), f.nodes[1].machine.Resets()}
	got, err := f.plays(ctx, t, "rollout", f.rollVars())
	if err != nil {
		return err
	}
	if len(got.Changes) > 0 {
		return fmt.Errorf("a second run changes %v", got.Changes)
	}
	if after := []int{f.nodes[0].machine.Resets(), f.nodes[1].machine.Resets()}; !slices.Equal(before, after) || slices.Contains(before, 0) {
		return fmt.Errorf("the machines had reset %d times before a second run, and %d times after it", before, after)
	}
	return nil
}
