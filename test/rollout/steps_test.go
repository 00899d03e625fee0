package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// killedSteps has the controller die at each step of a node, and the operator begin again
// at once: each run goes on where the one before was, and in the end nobody has noticed.
func killedSteps(ctx context.Context, t *testing.T, f *fleet) error {
	err := f.underTraffic(ctx, t, func(ctx context.Context) error {
		for _, phase := range []string{"draining", "upgrading", "returning", "soaking"} {
			if err := f.killedAt(ctx, t, phase); err != nil {
				return fmt.Errorf("killed when a node is %s: %w", phase, err)
			}
		}
		if _, err := f.playsWell(ctx, t, "rollout", f.to(newVersion)); err != nil {
			return err
		}
		return errors.Join(f.run(ctx, f.nodes, newVersion), f.settled(ctx), f.free())
	})
	if err != nil {
		return err
	}
	_, err = f.playsWell(ctx, t, "rollback", f.to(newVersion)) // as it was found
	return err
}

// killedAt begins a rollout, and kills it when the first node is at a step.
func (f *fleet) killedAt(ctx context.Context, t *testing.T, phase string) error {
	begun := time.Now()
	r, err := f.begin("rollout", f.to(newVersion))
	if err != nil {
		return err
	}
	defer r.KillAll()
	meanwhile, cancel := r.Meanwhile(ctx)
	defer cancel()
	name := ""
	err = lab.UntilEvery(meanwhile, 50*time.Millisecond, "a node is "+phase, func() (err error) {
		name, err = f.noted(phase, begun)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, r.Text())
	}
	t.Logf("%5.1f s  it is killed when %s is %s", time.Since(begun).Seconds(), name, phase)
	return nil
}

// noted is the node that the record of a run that was begun after a time has at a step.
func (f *fleet) noted(phase string, after time.Time) (string, error) {
	var run struct {
		Begun time.Time
		Nodes map[string]struct{ Phase string }
	}
	text, err := os.ReadFile(filepath.Join(f.operator.Fleet, ".rollout", "run.json"))
	if err == nil {
		err = json.Unmarshal(text, &run)
	}
	if err != nil {
		return "", fmt.Errorf("read the record: %w", err)
	}
	for name, n := range run.Nodes {
		if n.Phase == phase && run.Begun.After(after) {
			return name, nil
		}
	}
	return "", errors.New("no node is there yet")
}
