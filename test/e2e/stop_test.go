package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// stopSpeaker ends c1's edgebgp as a service manager does. While c1 is the last site
// that announces, the guard refuses: its router keeps all, and everybody is told why.
// When another one is back, the guard permits, and only then the router loses it and
// edgebgp ends by itself. Started again it announces, and nobody has to undrain.
func stopSpeaker(ctx context.Context, _ *testing.T, w world) error {
	c1, speaker := w.Lab.Boxes["c1"], w.Lab.Boxes["c1"].Daemon(lab.Speaker)
	if err := w.drainOthers(ctx); err != nil {
		return err
	}
	watch, err := w.Lab.Routers["r-c"].Watch(lab.Prefix4)
	if err != nil {
		return err
	}
	defer watch.Close()
	speaker.RestartNever()
	told := time.Now()
	if err := speaker.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := w.stopRefused(ctx, c1); err != nil {
		return err
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		if err := w.heldBy(ctx, c1, 2); err != nil {
			return fmt.Errorf("while the guard refuses: %w", err)
		}
	}
	w.Say("c1's edgebgp was told to stop %.1f s ago: the guard refuses, and r-c has both prefixes", time.Since(told).Seconds())
	if err := w.stopPermitted(ctx, c1, told); err != nil {
		return err
	}
	started := time.Now()
	speaker.RestartAfter(time.Second)
	if err := w.Settle(ctx); err != nil {
		return err
	}
	w.Say("announced again %.1f s after the start", time.Since(started).Seconds())
	if gone, err := watch.Lost(); err != nil || len(gone) > 0 {
		return fmt.Errorf("r-c had no route %d times, %v", len(gone), err)
	}
	if st, err := c1.Status(ctx); err != nil || len(st.Drains) > 0 {
		return fmt.Errorf("drains of c1 are left: %v, %v", st.Drains, err)
	}
	return nil
}

// others are all boxes but c1.
func others() []string { return []string{"a1", "a2", "b1"} }

// drainOthers leaves c1 alone on the air.
func (w world) drainOthers(ctx context.Context) error {
	for _, name := range others() {
		if out, err := w.Lab.Boxes[name].Ctl(ctx, "drain", "--reason", "paint"); err != nil {
			return fmt.Errorf("drain: %w: %s", err, out)
		}
		for _, p := range []netip.Prefix{lab.Prefix4, lab.Prefix6} {
			if err := w.rung(ctx, name, p.String(), edge.Withdrawn); err != nil {
				return err
			}
		}
	}
	return nil
}

// stopPermitted has the others come back, and c1's edgebgp end, which was told to stop
// then.
func (w world) stopPermitted(ctx context.Context, c1 *lab.Box, told time.Time) error {
	for _, name := range others() {
		if out, err := w.Lab.Boxes[name].Ctl(ctx, "undrain"); err != nil {
			return fmt.Errorf("undrain: %w: %s", err, out)
		}
	}
	lost, err := w.lossOf(ctx, c1)
	if err != nil {
		return err
	}
	permitted, err := withdrawnAt(ctx, c1, told)
	if err != nil {
		return err
	}
	if lost.Before(permitted) {
		return fmt.Errorf("r-c lost a prefix of c1 %s before it was withdrawn", permitted.Sub(lost))
	}
	return story.Until(ctx, "c1's edgebgp has ended", func() error {
		exits := c1.Daemon(lab.Speaker).Exits()
		if len(exits) == 0 || exits[len(exits)-1].At.Before(told) {
			return errors.New("it runs")
		}
		return exits[len(exits)-1].Err
	})
}

// stopRefused waits until a box says that its edgebgp is to stop, and why it may not.
func (w world) stopRefused(ctx context.Context, box *lab.Box) error {
	return story.Until(ctx, "the guard refuses the stop of "+box.Name(), func() error {
		st, err := box.Status(ctx)
		if err != nil {
			return err
		}
		for _, d := range st.Decisions {
			if d.Rung != edge.LastResort || !strings.Contains(string(d.Reason), "edgebgp is to stop; may not withdraw: ") {
				return fmt.Errorf("%s is %s: %s", d.Prefix, d.Rung, d.Reason)
			}
		}
		out, err := box.Ctl(ctx, "status")
		if err != nil || !strings.Contains(out, "ALARM  edgebgp is to stop since ") || !strings.Contains(out, "drain  everything since ") {
			return fmt.Errorf("its status, %v:\n%s", err, out)
		}
		if st.Speaker.Stopping.IsZero() {
			return errors.New("edgebgp does not say so")
		}
		return nil
	})
}

// heldBy is an error unless the router of a box has so many prefixes of it.
func (w world) heldBy(ctx context.Context, box *lab.Box, n int) error {
	s, err := w.Lab.Routers[box.Router].Session(ctx, netip.MustParseAddr(box.Addr4))
	if err == nil && (!s.Established || s.Paths != n) {
		err = fmt.Errorf("%s: %+v", box.Router, s)
	}
	return err
}

// lossOf waits until a box's router has lost the first of its prefixes, and returns
// when that was seen: a moment after it happened.
func (w world) lossOf(ctx context.Context, box *lab.Box) (time.Time, error) {
	err := story.Until(ctx, box.Router+" has lost a prefix of "+box.Name(), func() error {
		if w.heldBy(ctx, box, 2) == nil {
			return errors.New("it has both")
		}
		return nil
	})
	return time.Now(), err
}

// withdrawnAt is when a box has first withdrawn a prefix after a time.
func withdrawnAt(ctx context.Context, box *lab.Box, after time.Time) (time.Time, error) {
	var at time.Time
	err := story.Until(ctx, box.Name()+" has noted a withdrawal", func() error {
		var past edge.Events
		if err := box.Ask(ctx, lab.Control, "/v1/history", &past); err != nil {
			return err
		}
		for _, e := range past.Events {
			if e.Kind == "prefix" && e.To == string(edge.Withdrawn) && e.Time.After(after) {
				at = e.Time
				return nil
			}
		}
		return errors.New("it has not")
	})
	return at, err
}
