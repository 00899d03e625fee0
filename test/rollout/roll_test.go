package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/operator"
)

// to are the variables of a rollout that a test has time for.
func (f *fleet) to(version string, more ...vars) vars {
	v := vars{
		"rollout_version": version, "rollout_package": f.debs[version],
		"rollout_soak": "3s", "rollout_canary_soak": "5s", "rollout_permit_wait": "3m", "rollout_drain_wait": "3m", "rollout_drain_for": "6m",
		"rollout_return_wait": "3m", "rollout_upgrade_wait": "3m", "rollout_well_wait": "2m", "rollout_lock_for": "10m",
		"rollout_healthy_times": 3, "rollout_healthy_interval": "1s",
	}
	for _, m := range more {
		for key, value := range m {
			v[key] = value
		}
	}
	return v
}

// run is an error unless nodes run a version and are on the air, by nobody's order.
func (f *fleet) run(ctx context.Context, nodes []*node, version string) error {
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.runs(ctx, version), n.serves(ctx))
	}
	return errors.Join(errs...)
}

// serves is an error unless a node announces all, and nobody has ordered it to leave.
func (n *node) serves(ctx context.Context) error {
	st, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if len(st.Drains) > 0 || len(st.Decisions) == 0 {
		return fmt.Errorf("%s decides %v, and is drained by %+v", n.Name(), st.Decisions, st.Drains)
	}
	for _, d := range st.Decisions {
		if d.Rung != edge.Announced {
			return fmt.Errorf("%s of %s is %s: %s", d.Prefix, n.Name(), d.Rung, d.Reason)
		}
	}
	return nil
}

// starts are the processes of the daemons by their nodes, for those that must not be
// touched.
func (f *fleet) starts(ctx context.Context, nodes []*node) (map[*node]string, error) {
	all := map[*node]string{}
	for _, n := range nodes {
		out, err := n.run(ctx, "systemctl", "show", "-p", "MainPID,NRestarts", "edged", "edgebgp", "edgeproxy")
		if err != nil {
			return nil, err
		}
		all[n] = out
	}
	return all, nil
}

func (f *fleet) untouched(ctx context.Context, before map[*node]string) error {
	now, err := f.starts(ctx, slices.Collect(maps.Keys(before)))
	for n, was := range before {
		if err == nil && now[n] != was {
			err = fmt.Errorf("daemons of %s were restarted", n.Name())
		}
	}
	return err
}

// free is an error if a node has a lock that a rollout has left.
func (f *fleet) free() error {
	for _, n := range f.nodes {
		if _, err := os.Stat(n.inside("/run/edge-rollout/lock.json")); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the lock of %s is left, %v", n.Name(), err)
		}
	}
	return nil
}

// upgrade takes the whole fleet to the new version.
func upgrade(ctx context.Context, t *testing.T, f *fleet) error {
	return f.rolls(ctx, t, "upgrade", "rollout", newVersion)
}

// rollback takes it back to the one before.
func rollback(ctx context.Context, t *testing.T, f *fleet) error {
	return f.rolls(ctx, t, "rollback", "rollback", oldVersion)
}

// rolls has a playbook take all nodes to a version, and nobody notices; a second run
// changes nothing.
func (f *fleet) rolls(ctx context.Context, t *testing.T, name, playbook, version string) error {
	before, err := f.starts(ctx, f.nodes)
	if err != nil {
		return err
	}
	got, err := f.playsWell(ctx, t, playbook, f.to(newVersion), "--check", "--diff")
	if err != nil {
		return err
	}
	if _, n := batches(got.Text); n != len(f.nodes) {
		return fmt.Errorf("a plan for %d nodes is no plan for all:\n%s", n, got.Text)
	}
	if err := errors.Join(f.untouched(ctx, before), f.free()); err != nil {
		return err
	}
	v, err := f.observe(ctx, t, func(ctx context.Context) (err error) {
		if got, err = f.playsWell(ctx, t, playbook, f.to(newVersion)); err != nil {
			return err
		}
		return errors.Join(f.run(ctx, f.nodes, version), f.settled(ctx))
	})
	if err != nil {
		return err
	}
	f.rolled(name, got.Took, v)
	if left, _ := leaves(v.seen); len(left) != len(f.nodes) {
		return fmt.Errorf("of %d nodes these have left: %v", len(f.nodes), left)
	}
	if before, err = f.starts(ctx, f.nodes); err != nil {
		return err
	}
	again, err := f.playsWell(ctx, t, playbook, f.to(newVersion))
	if err == nil && len(again.Changes) > 0 {
		err = fmt.Errorf("a second run changes %v", again.Changes)
	}
	f.measured(name+"/nothing to do", again.Took.Seconds(), "s")
	return errors.Join(err, f.untouched(ctx, before), f.run(ctx, f.nodes, version), f.free())
}

// batch is what a rollout takes at once.
type batch struct {
	name  string
	nodes []string
}

// batchLine is one of a plan, and nodeName a node in it; behind that may be where it goes.
var (
	batchLine = regexp.MustCompile(`(?m)^[ "'\-]*\d+\. ([^:\n]+): (.+)$`)
	nodeName  = regexp.MustCompile(`\b[a-z]\d+\b`)
)

// batches are those of a plan that a rollout has shown, and how many nodes they have.
func batches(text string) (all []batch, nodes int) {
	for _, m := range batchLine.FindAllStringSubmatch(text, -1) {
		b := batch{m[1], nodeName.FindAllString(m[2], -1)}
		all, nodes = append(all, b), nodes+len(b.nodes)
	}
	return all, nodes
}

func TestBatches(t *testing.T) {
	got, n := batches(`
TASK [Show the plan] ****
ok: [a1] =>
    msg:
    - 'to version 1.3.0: 3 nodes in 2 batches, 0 are done; the fleet serves 38 requests/s'
    - '1. canary: b1'
    - '2. wave 1: a1, b2 (to 1.2.0)'
`)
	want := []batch{{"canary", []string{"b1"}}, {"wave 1", []string{"a1", "b2"}}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(batch{})); d != "" || n != 3 {
		t.Errorf("%d nodes %s", n, d)
	}
}

// report is what a rollout has written beside fleet.yaml.
type report struct {
	Outcome, Stop string
	Nodes         map[string]struct{ Phase, Reason string }
}

func (f *fleet) report(version string) (r report, text string, err error) {
	base := filepath.Join(f.operator.Fleet, "report", "rollout-"+version)
	b, err := os.ReadFile(base + ".json")
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, "", fmt.Errorf("read report: %w", err)
	}
	b, err = os.ReadFile(base + ".md")
	return r, string(b), err
}

// breakOne has the second wave meet a node whose edgeproxy does not start any more: the
// rollout stops there, and leaves the node off the air and the rest alone; when it is
// repaired the same command goes on.
func breakOne(ctx context.Context, t *testing.T, f *fleet) error {
	start := time.Now()
	v, err := f.observe(ctx, t, func(ctx context.Context) error {
		r, err := f.begin("rollout", f.to(newVersion))
		if err != nil {
			return err
		}
		defer r.KillAll()
		bad, before, after, err := f.whoBreaks(ctx, t, r)
		if err != nil {
			return err
		}
		rest, err := f.starts(ctx, after)
		if err != nil {
			return err
		}
		if err := bad.Break(ctx, "edgeproxy"); err != nil {
			return err
		}
		got, err := r.Result(ctx)
		if err != nil {
			return err
		}
		t.Logf("%5.1f s  rollout: %s", got.Took.Seconds(), got)
		if !got.Failed {
			return fmt.Errorf("a broken node is no failure\n%s", got.Text)
		}
		if err := errors.Join(f.run(ctx, before, newVersion), f.run(ctx, after, oldVersion), f.untouched(ctx, rest), f.free(), bad.isOff(ctx), f.reportNames(bad, got)); err != nil {
			return fmt.Errorf("%w\n%s", err, got.Text)
		}
		return f.goesOn(ctx, t, bad, before)
	})
	if err == nil {
		f.rolled("upgrade with a node that breaks", time.Since(start), v)
	}
	return err
}

// goesOn: what was done stays as it is.
func (f *fleet) goesOn(ctx context.Context, t *testing.T, bad *node, before []*node) error {
	done, err := f.starts(ctx, before)
	if err != nil {
		return err
	}
	if err := bad.Repair(ctx, "edgeproxy"); err != nil {
		return err
	}
	if _, err := f.playsWell(ctx, t, "rollout", f.to(newVersion)); err != nil {
		return err
	}
	return errors.Join(f.run(ctx, f.nodes, newVersion), f.untouched(ctx, done), f.settled(ctx), f.free())
}

// whoBreaks waits for the plan of a rollout, and takes the first node of the second wave,
// or of the middle of a fleet that has none. It says who comes before it, and who after.
func (f *fleet) whoBreaks(ctx context.Context, t *testing.T, r *operator.Running) (bad *node, before, after []*node, err error) {
	var all []batch
	shown, cancel := r.Meanwhile(ctx)
	defer cancel()
	err = lab.UntilEvery(shown, 100*time.Millisecond, "the rollout shows its plan", func() error {
		var n int
		if all, n = batches(r.Text()); n != len(f.nodes) {
			return fmt.Errorf("it is for %d nodes", n)
		}
		return nil
	})
	if err != nil {
		return nil, nil, nil, err
	}
	at := slices.IndexFunc(all, func(b batch) bool { return b.name == "wave 2" })
	if at < 0 {
		at = len(all) / 2
	}
	bad = f.node(all[at].nodes[0])
	for i, b := range all {
		for _, name := range b.nodes {
			n := f.node(name)
			if i <= at && n != bad {
				before = append(before, n)
			} else if i > at {
				after = append(after, n)
			}
		}
	}
	t.Logf("%s is to break, in batch %d of %d, %s", bad.Name(), at+1, len(all), all[at].name)
	return bad, before, after, nil
}

// isOff: a node that is not well is not on the air, by an order that has an end.
func (n *node) isOff(ctx context.Context) error {
	st, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if len(st.Drains) != 1 || st.Drains[0].Until.IsZero() {
		return fmt.Errorf("%s is drained by %+v", n.Name(), st.Drains)
	}
	for _, d := range st.Decisions {
		if d.Rung.OnAir() {
			return fmt.Errorf("%s of %s is %s: %s", d.Prefix, n.Name(), d.Rung, d.Reason)
		}
	}
	return nil
}

// reportNames: the report and the screen say which node it is, why, and what to do.
func (f *fleet) reportNames(bad *node, got operator.Result) error {
	r, text, err := f.report(newVersion)
	if err != nil {
		return err
	}
	for name, n := range r.Nodes {
		if failed := n.Phase == "failed"; failed != (name == bad.Name()) {
			return fmt.Errorf("the report has %s as %s: %s", name, n.Phase, n.Reason)
		}
	}
	reason := r.Nodes[bad.Name()].Reason
	if !strings.Contains(reason, "edgeproxy of "+newVersion+" does not start") {
		return fmt.Errorf("the reason is %q", reason)
	}
	for what, in := range map[string]string{"the report": text, "the screen": got.Text} {
		said := strings.Join(strings.Fields(in), " ")
		for _, want := range []string{bad.Name(), "edgeproxy of " + newVersion + " does not start", "run rollout again"} {
			if !strings.Contains(said, want) {
				return fmt.Errorf("%s does not say %q\n%s", what, want, in)
			}
		}
	}
	return nil
}
