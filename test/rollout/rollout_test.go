// Package rollout shows that a fleet is rolled by Ansible so that nobody notices: nodes
// are whole Debian systems, with systemd, sshd and the package, each in the network of a
// box of the lab; an operator's host reaches them by ssh. make test has the short form,
// of three nodes, make rollout-test the long one, of nine over five sites. It needs root,
// and fails where something is missing.
package rollout

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

var (
	long       = flag.Bool("long", false, "nine nodes over five sites instead of three over three")
	cache      = flag.String("cache", "../../out/cache/rollout", "folder in which the root of the nodes is kept; empty keeps none")
	collection = flag.String("collection", "../../ansible", "folder of the collection")
	only       = flag.String("parts", "", "regular expression of the parts to go through, also in the short form; those that bring the fleet up are always")
	verbose    = flag.Bool("ansible", false, "print all that ansible-playbook says")
)

func TestMain(m *testing.M) {
	lab.Janitor()
	code := m.Run()
	if err := writeFigures(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// size is that of the fleet that the flags ask for.
func size() scale {
	if *long {
		return nine()
	}
	return three()
}

// TestRollout has Ansible bring up a fleet of boxes that have nothing of ours, keep it as
// it is described, and roll it.
func TestRollout(t *testing.T) {
	ctx := limit(t, map[bool]time.Duration{true: time.Hour, false: 15 * time.Minute}[*long || *only != ""])
	f := newFleet(ctx, t, size())
	f.goesUp(ctx, t, []part{
		{"the collection is built and installed", func(ctx context.Context, _ *testing.T, f *fleet) error { return f.operator.Install(ctx, *collection) }, false},
		{"a check of new boxes changes nothing", checkNew, true},
		{"new boxes are set up, and announce", convergeNew, false},
	})
	f.goes(ctx, t, []part{
		{"all that runs is well", healthy, false},
		{"nothing is to be done", convergeAgain, false},
		{"a mistake is refused before any box is changed", refuseMistake, false},
		{"a change is applied under traffic", applyChange, true},
		{"the keys are changed under traffic, with a node off", rotateKeys, true},
		{"the fleet is upgraded under traffic", upgrade, true},
		{"it is taken back under traffic", rollback, true},
		{"the controller dies in the middle of a node, and Ctrl-C", killed, true},
		{"the controller dies at each step, and is started again at once", killedSteps, true},
		{"a node breaks in a wave, and the upgrade goes on when it is repaired", breakOne, false},
		{"no secret is told", noSecretTold, false},
	})
}

// part is one thing that happens to a fleet. Each leaves it as it found it; one that
// fails ends the test, since the rest would only show consequences.
type part struct {
	name string
	run  func(context.Context, *testing.T, *fleet) error
	// long is for a part that the short form leaves out.
	long bool
}

// goes through those parts that are asked for.
func (f *fleet) goes(ctx context.Context, t *testing.T, parts []part) {
	t.Helper()
	asked := regexp.MustCompile(*only)
	f.goesUp(ctx, t, slices.DeleteFunc(parts, func(p part) bool { return !asked.MatchString(p.name) }))
}

// goesUp goes through parts that others stand on, and prints how long each took.
func (f *fleet) goesUp(ctx context.Context, t *testing.T, parts []part) {
	t.Helper()
	for _, p := range parts {
		if p.long && !*long && *only == "" {
			continue
		}
		start := time.Now()
		ok := t.Run(p.name, func(t *testing.T) {
			if err := p.run(ctx, t, f); err != nil {
				t.Fatalf("%v\n%s", err, f.Logs(10))
			}
		})
		t.Logf("%5.1f s  %s", time.Since(start).Seconds(), p.name)
		if !ok {
			t.FailNow()
		}
	}
}

// limit is how long a whole test may take.
func limit(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, fmt.Errorf("%s are over", d))
	t.Cleanup(cancel)
	return ctx
}
