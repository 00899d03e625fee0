package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// sessionsReload: to change a setting of the only peer would end its session,
// which is a withdrawal that nobody has permitted. After a drain it is taken.
func sessionsReload(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["c1"]
	good, err := box.Config()
	if err != nil {
		return err
	}
	if err := box.Configure(strings.Replace(good, "hold: 9s", "hold: 12s", 1)); err != nil {
		return err
	}
	watch, err := w.Lab.Routers["r-c"].Watch(lab.Prefix4)
	if err != nil {
		return err
	}
	defer watch.Close()
	_, err = box.Ctl(ctx, "reload")
	if err == nil || !strings.Contains(err.Error(), "edgectl drain") {
		t.Errorf("reload: %v; want a refusal that says drain", err)
	}
	if events, err := watch.Events(); err != nil || len(events) > 0 {
		t.Errorf("r-c saw %d changes of the route, %v", len(events), err)
	}
	if _, err := box.Ctl(ctx, "drain", "--reason", "other timers"); err != nil {
		return err
	}
	if err := w.rung(ctx, "c1", lab.Prefix4.String(), edge.Withdrawn); err != nil {
		return err
	}
	if err := w.rung(ctx, "c1", lab.Prefix6.String(), edge.Withdrawn); err != nil {
		return err
	}
	if out, err := box.Ctl(ctx, "reload"); err != nil {
		return fmt.Errorf("reload of a drained box: %w: %s", err, out)
	}
	if _, err := box.Ctl(ctx, "undrain"); err != nil {
		return err
	}
	return w.Settle(ctx)
}

// regionDies stops the origins of the region nearest to client-a.
func regionDies(ctx context.Context, t *testing.T, w world) error {
	east := w.Lab.Regions["east"]
	for _, o := range east.Origins {
		o.Stop()
	}
	err := story.Until(ctx, "client-a is served by region west alone", func() error {
		s, err := w.Lab.Clients["client-a"].Send(ctx, lab.Load{URL: story.URL, Rate: 20, For: time.Second})
		if err != nil {
			return err
		}
		if regions := s.Regions(); len(s.Failed()) > 0 || regions["west"] != len(s) {
			return fmt.Errorf("%s, by region %v", s, regions)
		}
		return nil
	})
	for _, o := range east.Origins {
		err = errors.Join(err, o.Start())
	}
	if err != nil {
		return err
	}
	return story.Until(ctx, "client-a is served by region east again", func() error {
		a, err := w.Lab.Clients["client-a"].Get(ctx, story.URL, lab.Way{})
		if err == nil && a.Region != "east" {
			err = fmt.Errorf("it was served by %s", a.Region)
		}
		return err
	})
}

// allRegionsDie: what every site depends on fails, but softly. All degrade, and
// nobody even asks to leave.
func allRegionsDie(ctx context.Context, _ *testing.T, w world) error {
	set := func(ok bool) {
		for _, r := range w.Lab.Regions {
			r.SetHealthy(ok)
		}
	}
	set(false)
	defer set(true)
	for name := range w.Lab.Boxes {
		for _, p := range []string{lab.Prefix4.String(), lab.Prefix6.String()} {
			if err := w.rung(ctx, name, p, edge.Degraded); err != nil {
				return err
			}
		}
	}
	for name, r := range w.Lab.Routers {
		route, err := r.Route(lab.Prefix4)
		if err != nil || len(route.Via) == 0 {
			return fmt.Errorf("%s has no route to %s, %v", name, lab.Prefix4, err)
		}
	}
	// The routes may still be moving between paths that are degraded alike.
	err := story.Until(ctx, "client-b gets 503", func() error {
		_, err := w.Lab.Clients["client-b"].Get(ctx, story.URL, lab.Way{})
		if err == nil || !strings.Contains(err.Error(), "503") {
			return fmt.Errorf("the answer is %v", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	set(true)
	return w.Settle(ctx)
}

// restartBesideDeadBackend: a2's proxy is down, so a1's ring has a1 alone. A new
// edged on a1 knows nothing of a2 at first, and must not send flows there.
func restartBesideDeadBackend(ctx context.Context, t *testing.T, w world) error {
	a1, proxy := w.Lab.Boxes["a1"], w.Lab.Boxes["a2"].Daemon(lab.Proxy)
	proxy.RestartNever()
	if err := proxy.Kill(ctx); err != nil {
		return err
	}
	if err := w.rung(ctx, "a2", lab.Prefix4.String(), edge.Withdrawn); err != nil {
		return err
	}
	alone := func() error {
		st, err := a1.Status(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(st.Services, func(s edge.ServiceSummary) bool { return s.ID == "web" })
		if i < 0 || !slices.ContainsFunc(st.Services[i].Backends, func(b edge.BackendSummary) bool { return b.ID == "a2" && b.State == edge.Down && !b.InRing }) {
			return errors.New("a2 is not down in a1's view")
		}
		return nil
	}
	if err := story.Until(ctx, "a1's ring is without a2", alone); err != nil {
		return err
	}
	loads, stop := context.WithCancel(ctx)
	defer stop()
	result := make(chan lab.Samples, 1)
	go func() {
		s, err := w.Lab.Clients["client-a"].Send(loads, lab.Load{URL: story.URL, Rate: 40, For: 3 * time.Minute, Timeout: 10 * time.Second})
		if err != nil {
			t.Error(err)
		}
		result <- s
	}()
	killed := time.Now()
	err := a1.Daemon(lab.Control).Kill(ctx)
	if err == nil {
		err = story.Until(ctx, "the new edged of a1 has settled", func() error {
			st, err := a1.Status(ctx)
			if err == nil && (!st.Started.After(killed) || len(st.Decisions) != 2) {
				err = errors.New("it has not")
			}
			return errors.Join(err, alone())
		})
	}
	stop()
	s := <-result
	t.Logf("client-a: %s, by box %v", s, s.Boxes())
	if len(s) == 0 || len(s.Failed()) > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d requests failed", len(s.Failed()), len(s)))
	}
	proxy.RestartAfter(time.Second)
	return errors.Join(err, w.Settle(ctx))
}

// lastOneDies: the shared dependency fails, all but one box leave, and that one
// dies. A service that is perhaps broken is better than none: those who left
// come back as a last resort, and one of them stays.
func lastOneDies(ctx context.Context, t *testing.T, w world) error {
	// Else it would be a common cause, and none would leave.
	if err := story.Trust(ctx, w.Lab.Boxes["a1"], "shared"); err != nil {
		return err
	}
	defer func() { _ = story.Untrust(context.WithoutCancel(ctx), w.Lab.Boxes["a1"], "shared") }()
	w.Lab.Shared.SetHealthy(false)
	defer w.Lab.Shared.SetHealthy(true)
	var last *lab.Box
	err := story.Until(ctx, "one site is left", func() error {
		left := map[string]*lab.Box{}
		for name, b := range w.Lab.Boxes {
			st, err := b.Status(ctx)
			if err != nil {
				return err
			}
			for _, d := range st.Decisions {
				if d.Rung.OnAir() {
					left[name] = b
				}
			}
		}
		if len(left) != 1 {
			return fmt.Errorf("%d boxes are on the air", len(left))
		}
		for _, b := range left {
			last = b
		}
		return nil
	})
	if err != nil {
		return err
	}
	died := time.Now()
	if err := last.Isolate(); err != nil {
		return err
	}
	err = story.Until(ctx, "another box announces", func() error {
		for name, r := range w.Lab.Routers {
			route, err := r.Route(lab.Prefix4)
			if err != nil {
				return err
			}
			if len(route.Via) == 0 || slices.Contains(route.Via, last.Name()) {
				return fmt.Errorf("%s: %v", name, route.Via)
			}
		}
		return nil
	})
	t.Logf("%s died; every router has another route after %.1f s", last.Name(), time.Since(died).Seconds())
	err = errors.Join(err, last.Rejoin())
	w.Lab.Shared.SetHealthy(true)
	return errors.Join(err, w.Settle(ctx))
}
