package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/operator"
)

// killed has the controller die in the middle of a node, and an operator give up in the
// next: nothing stays off the air for ever, nobody has to remove a lock, and the same
// command goes on.
func killed(ctx context.Context, t *testing.T, f *fleet) error {
	const drainFor = 90 * time.Second
	extra := f.to(newVersion, vars{"rollout_drain_for": drainFor.String()})
	return f.underTraffic(ctx, t, func(ctx context.Context) error {
		r, err := f.begin("rollout", extra)
		if err != nil {
			return err
		}
		n, err := f.first(ctx, r, func(st edge.SystemStatus) bool { return len(st.Drains) > 0 && !onAir(st) })
		if err != nil {
			return err
		}
		r.KillAll()
		at := time.Now()
		st, err := n.Status(ctx)
		if err != nil {
			return err
		}
		if len(st.Drains) != 1 || st.Drains[0].Until.IsZero() || time.Until(st.Drains[0].Until) > drainFor {
			return fmt.Errorf("%s is drained by %+v", n.Name(), st.Drains)
		}
		if err := lab.UntilEvery(ctx, time.Second, n.Name()+" is back", func() error { return n.serves(ctx) }); err != nil {
			return err
		}
		t.Logf("%5.1f s  %s is back by itself", time.Since(at).Seconds(), n.Name())
		if err := f.colleagueWaits(ctx, t); err != nil {
			return err
		}
		return f.interrupted(ctx, t)
	})
}

// colleagueWaits: somebody else, with a copy of the fleet's folder, is kept out by the lock.
func (f *fleet) colleagueWaits(ctx context.Context, t *testing.T) error {
	dir := filepath.Join(f.operator.Home, "colleague")
	if err := copyTree(dir, f.operator.Fleet); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(dir, ".rollout")); err != nil {
		return fmt.Errorf("forget what the operator has noted: %w", err)
	}
	extra := f.to(newVersion, vars{"rollout_owner": "colleague"})
	return f.refuses(ctx, t, "rollout", extra, []string{"-i", filepath.Join(dir, fleetFile)}, "holds the lock for upgrade to "+newVersion)
}

// interrupted has Ctrl-C pressed while a node leaves.
func (f *fleet) interrupted(ctx context.Context, t *testing.T) error {
	r, err := f.begin("rollout", f.to(newVersion))
	if err != nil {
		return err
	}
	n, err := f.first(ctx, r, func(st edge.SystemStatus) bool { return len(st.Drains) > 0 && onAir(st) })
	if err != nil {
		return err
	}
	before, err := f.starts(ctx, f.nodes)
	if err != nil {
		return err
	}
	at := time.Now()
	if err := syscall.Kill(-r.PID(), syscall.SIGINT); err != nil {
		return fmt.Errorf("interrupt: %w", err)
	}
	ended, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("it does not end by Ctrl-C"))
	defer cancel()
	if err := r.Wait(ended); err == nil {
		return fmt.Errorf("interrupted, it ends well\n%s", r.Text())
	} else if ended.Err() != nil {
		return err
	}
	t.Logf("%5.1f s  it has ended by Ctrl-C", time.Since(at).Seconds())
	if err := f.free(); err != nil {
		return fmt.Errorf("%w\n%s", err, r.Text())
	}
	err = lab.UntilEvery(ctx, 500*time.Millisecond, n.Name()+" is back", func() error { return n.serves(ctx) })
	if err != nil {
		return fmt.Errorf("%w\n%s", err, r.Text())
	}
	t.Logf("%5.1f s  %s is back", time.Since(at).Seconds(), n.Name())
	if took := time.Since(at); took > 2*time.Minute { // its order would have ended after 6
		return fmt.Errorf("%s is back after %s\n%s", n.Name(), took, r.Text())
	}
	return errors.Join(f.untouched(ctx, before), f.settled(ctx))
}

func onAir(st edge.SystemStatus) bool {
	return slices.ContainsFunc(st.Decisions, func(d edge.Decision) bool { return d.Rung.OnAir() })
}

// first waits for the first node whose status is so.
func (f *fleet) first(ctx context.Context, r *operator.Running, is func(edge.SystemStatus) bool) (found *node, err error) {
	ctx, cancel := r.Meanwhile(ctx)
	defer cancel()
	err = lab.UntilEvery(ctx, 200*time.Millisecond, "a node is in the middle of its upgrade", func() error {
		for _, n := range f.nodes {
			if st, err := n.Status(ctx); err == nil && is(st) {
				found = n
				return nil
			}
		}
		return errors.New("none is")
	})
	if err != nil {
		r.KillAll()
	}
	return found, err
}
