package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// prefer gives an order at one box: the traffic of another site moves there, by
// gossip, and comes back when the order is taken back at a third.
func prefer(ctx context.Context, t *testing.T, w world) error {
	if out, err := w.Lab.Boxes["b1"].Ctl(ctx, "bgp", "prefer", "a", "--prefix", lab.Prefix4.String(), "--prepend", "5", "--for", "10m", "--reason", "b is hot"); err != nil {
		return fmt.Errorf("prefer: %w: %s", err, out)
	}
	if err := w.Lab.Routers["r-c"].Await(ctx, lab.Prefix4, "r-a"); err != nil {
		return err
	}
	err := story.Until(ctx, "every box has the order", func() error {
		for name, box := range w.Lab.Boxes {
			st, err := box.Status(ctx)
			if err != nil {
				return err
			}
			if len(st.Prefers) != 1 || st.Prefers[0].Reason != "b is hot" || st.Prefers[0].By != "b1" {
				return fmt.Errorf("%s knows of %+v", name, st.Prefers)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	out, err := w.Lab.Boxes["c1"].Ctl(ctx, "bgp")
	if err != nil || !strings.Contains(out, "prepend 5") || !strings.Contains(out, "b is hot") {
		t.Errorf("c1 does not say that it prepends: %v\n%s", err, out)
	}
	if out, err := w.Lab.Boxes["c1"].Ctl(ctx, "bgp", "unprefer", "--prefix", lab.Prefix4.String(), "--reason", "it has cooled"); err != nil {
		return fmt.Errorf("unprefer: %w: %s", err, out)
	}
	if err := w.Lab.Routers["r-c"].Await(ctx, lab.Prefix4, "c1"); err != nil {
		return err
	}
	return w.Settle(ctx)
}

// stopEdged ends edged as a service manager does: its goodbye takes nothing off the
// air, and the one that follows finds all as it was.
func stopEdged(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["c1"]
	before, err := speaker(ctx, box)
	if err != nil {
		return err
	}
	watch, err := w.Lab.Routers["r-c"].Watch(lab.Prefix4)
	if err != nil {
		return err
	}
	defer watch.Close()
	stopped := time.Now()
	if err := box.Daemon(lab.Control).Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err = story.Until(ctx, "the new edged of c1 has decided", func() error {
		st, err := box.Status(ctx)
		if err == nil && (!st.Started.After(stopped) || len(st.Decisions) != 2) {
			err = errors.New("it has not")
		}
		return err
	})
	if err != nil {
		return err
	}
	if exits := box.Daemon(lab.Control).Exits(); len(exits) == 0 || exits[len(exits)-1].Err != nil || exits[len(exits)-1].At.Before(stopped) {
		t.Errorf("edged did not end by itself: %+v", exits)
	}
	if err := w.Settle(ctx); err != nil {
		return err
	}
	after, err := speaker(ctx, box)
	if err != nil {
		return err
	}
	for i, p := range after.Peers {
		if was := before.Peers[i]; p.Messages.WithdrawsSent != was.Messages.WithdrawsSent || p.Flaps != was.Flaps || !p.Since.Equal(was.Since) {
			t.Errorf("peer %s: %+v, before %+v", p.ID, p, was)
		}
	}
	if lost, err := watch.Lost(); err != nil || len(lost) > 0 {
		return fmt.Errorf("r-c lost the prefix %d times, %v", len(lost), err)
	}
	return nil
}

// drainByFile drains a box by a file, asks before what a failed probe would do,
// and reads of it all in the history.
func drainByFile(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["c1"]
	out, err := box.Ctl(ctx, "health", "what-if", "proxy=down")
	if err != nil || !strings.Contains(out, string(edge.Leaving)) || !strings.Contains(out, "must promise to stay") {
		t.Errorf("what if the proxy were down: %v\n%s", err, out)
	}
	file := filepath.Join(filepath.Dir(box.ConfigPath()), "drain")
	if err := os.WriteFile(file, []byte("node new power supply\n"), 0o644); err != nil {
		return err
	}
	if err := w.rung(ctx, "c1", lab.Prefix4.String(), edge.Withdrawn); err != nil {
		return err
	}
	if err := w.Lab.Routers["r-c"].Await(ctx, lab.Prefix4, "r-b"); err != nil {
		return err
	}
	if _, err := box.Ctl(ctx, "undrain"); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("undrain of what a file orders: %v", err)
	}
	if err := os.Remove(file); err != nil {
		return err
	}
	if err := w.Settle(ctx); err != nil {
		return err
	}
	var past edge.Events
	if err := box.Ask(ctx, lab.Control, "/v1/history", &past); err != nil {
		return err
	}
	want := []string{string(edge.Draining), string(edge.Withdrawn), string(edge.Announced)}
	for _, e := range past.Events {
		if e.Kind == "prefix" && e.Subject == lab.Prefix4.String() && len(want) > 0 && e.To == want[0] {
			if e.To != string(edge.Announced) && !strings.Contains(e.Evidence, "new power supply") {
				t.Errorf("the history does not say why: %+v", e)
			}
			want = want[1:]
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("the history has no %q", want)
	}
	return nil
}
