package story

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
)

func proxyDies(ctx context.Context, t *Teller) error {
	b := t.Lab.Boxes["b1"]
	proxy := b.Daemon(lab.Proxy)
	if err := t.mayLeave(ctx, b); err != nil {
		return err
	}
	w, err := t.watch()
	if err != nil {
		return err
	}
	defer w.close()
	results, err := t.during(ctx, lab.Load{URL: URL, Rate: 20, For: 5 * time.Minute, Timeout: 10 * time.Second}, []string{"client-a", "client-b"}, func(ctx context.Context) error {
		proxy.RestartNever()
		start := time.Now()
		if err := proxy.Kill(ctx); err != nil {
			return err
		}
		t.Say("b1: edgeproxy killed with -9")
		if err := leavesInOrder(ctx, t, b, start); err != nil {
			return err
		}
		if err := t.Lab.Routers["r-b"].Await(ctx, lab.Prefix4, "r-a"); err != nil {
			return err
		}
		t.Say("r-b: %s leads to r-a after %s", lab.Prefix4, since(start))
		a, err := t.servedBy(ctx, "client-b", "a", lab.Way{})
		if err != nil {
			return err
		}
		t.Say("client-b: served by site %s, region %s, after %s", a.Site, a.Region, since(start))
		return comesBack(ctx, t, b, proxy)
	})
	if err != nil {
		return err
	}
	// client-b's own site is the one that dies; client-a has nothing to do with it.
	return errors.Join(unharmed(results, "client-a"), w.neverLost())
}

// promiseLease is the lab's fleet.guard.promise_lease.
const promiseLease = 10 * time.Second

// mayLeave waits until a box's guard is over the time after a start in which it
// permits nothing, since a promise may have been given before it.
func (t *Teller) mayLeave(ctx context.Context, b *lab.Box) error {
	st, err := b.Status(ctx)
	if err != nil {
		return err
	}
	left := time.Until(st.Started.Add(promiseLease + time.Second))
	if left <= 0 {
		return nil
	}
	t.Say("%s: edged has run for less than the lease of a promise (10 s), so its guard permits nothing yet: waiting", b.Name())
	select {
	case <-time.After(left):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leavesInOrder watches a box go down the ladder: degraded at the router before
// anything is withdrawn, withdrawn with promises.
func leavesInOrder(ctx context.Context, t *Teller, b *lab.Box, start time.Time) error {
	var seen []edge.Rung
	degraded := false
	err := Until(ctx, b.Name()+" has withdrawn", func() error {
		d, err := decision(ctx, b)
		if err != nil {
			return err
		}
		if len(seen) == 0 || seen[len(seen)-1] != d.Rung {
			if seen = append(seen, d.Rung); d.Rung == edge.Announced {
				return errors.New("it has not noticed yet")
			}
			t.Say("%s: %s after %s%s", b.Name(), d.Rung, since(start), because(d.Reason))
		}
		if d.Rung.WantsOut() && !degraded {
			if degraded, err = heldDegraded(ctx, b); err != nil {
				return err
			}
		}
		if d.Rung != edge.Withdrawn {
			return fmt.Errorf("it is %s", d.Rung)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !degraded || !slices.ContainsFunc(seen, edge.Rung.WantsOut) {
		return fmt.Errorf("%s went %v; its router held it degraded before: %t", b.Name(), seen, degraded)
	}
	if _, err := t.explained(ctx, b, lab.Prefix4.String()); err != nil {
		return err
	}
	return t.rung(ctx, b, edge.Withdrawn)
}

// heldDegraded says whether the box's router was sent the degraded path.
func heldDegraded(ctx context.Context, b *lab.Box) (bool, error) {
	var st edge.SpeakerState
	if err := b.Ask(ctx, lab.Speaker, "/v1/state", &st); err != nil {
		return false, err
	}
	for _, peer := range st.Peers {
		for _, h := range peer.Held {
			if h.Net == lab.Prefix4 && h.Prepend > 0 && slices.Contains(h.Communities, edge.GracefulShutdown) {
				return true, nil
			}
		}
	}
	return false, nil
}

// comesBack restarts the proxy and checks the hysteresis: the prefix returns,
// but not before it has been healthy for the hold time.
func comesBack(ctx context.Context, t *Teller, b *lab.Box, proxy *lab.Daemon) error {
	start := time.Now()
	proxy.RestartAfter(0)
	t.Say("%s: edgeproxy started again", b.Name())
	if err := t.rung(ctx, b, edge.Announced); err != nil {
		return err
	}
	back := time.Since(start)
	t.Say("%s: announced again after %s, of which 3 s are the hold", b.Name(), since(start))
	proxy.RestartAfter(time.Second)
	if back < 3*time.Second {
		return fmt.Errorf("%s came back after %s: the hold of 3 s was not kept", b.Name(), back)
	}
	a, err := t.servedBy(ctx, "client-b", "b", lab.Way{})
	if err != nil {
		return err
	}
	t.Say("client-b: served by site %s again", a.Site)
	return t.Settle(ctx)
}

func sharedFails(ctx context.Context, t *Teller) error {
	w, err := t.watch()
	if err != nil {
		return err
	}
	defer w.close()
	_, err = t.during(ctx, lab.Load{URL: URL, Rate: 10, For: 5 * time.Minute, Timeout: 10 * time.Second}, clients(), func(ctx context.Context) error {
		t.Lab.Shared.SetHealthy(false)
		defer t.Lab.Shared.SetHealthy(true)
		start := time.Now()
		t.Say("the shared dependency answers 503 from now on, to every site")
		if err := commonCause(ctx, t); err != nil {
			return err
		}
		t.Say("all are on the air, degraded, after %s: a check that fails everywhere takes nothing away. An operator has it believed", since(start))
		if err := Trust(ctx, t.boxes()[0], "shared"); err != nil {
			return err
		}
		defer func() { _ = Untrust(context.WithoutCancel(ctx), t.boxes()[0], "shared") }()
		stayed, err := settledSick(ctx, t, start)
		if err != nil {
			return err
		}
		for _, h := range home {
			ask, cancel := context.WithTimeout(ctx, 20*time.Second)
			a, err := t.Lab.Clients[h.client].Get(ask, URL, lab.Way{})
			cancel()
			if err != nil {
				return fmt.Errorf("%s is not served: %w", h.client, err)
			}
			t.Say("%s: still served, by site %s", h.client, a.Site)
		}
		return whyStayed(ctx, t, stayed)
	})
	if err != nil {
		return err
	}
	t.Say("the shared dependency answers again")
	return errors.Join(w.neverLost(), t.Settle(ctx), w.neverLost())
}

// commonCause waits until every box is on the air, degraded, with the reason that the
// check fails everywhere: those that had left before that was known have come back.
func commonCause(ctx context.Context, t *Teller) error {
	return Until(ctx, "every box knows the common cause", func() error {
		for _, b := range t.boxes() {
			d, err := decision(ctx, b)
			if err != nil {
				return err
			}
			if d.Rung != edge.Degraded || !strings.Contains(string(d.Reason), "common cause: shared at 3 of 3 sites") {
				return fmt.Errorf("%s is %s%s", b.Name(), d.Rung, because(d.Reason))
			}
		}
		return nil
	})
}

// Trust has every box believe a check, though it fails everywhere.
func Trust(ctx context.Context, b *lab.Box, check string) error {
	if out, err := b.Ctl(ctx, "guard", "trust", check, "--for", "10m", "--reason", "it is right"); err != nil {
		return fmt.Errorf("trust %s: %w: %s", check, err, out)
	}
	return nil
}

// Untrust takes that back.
func Untrust(ctx context.Context, b *lab.Box, check string) error {
	if out, err := b.Ctl(ctx, "guard", "untrust", check, "--reason", "the test is over"); err != nil {
		return fmt.Errorf("untrust %s: %w: %s", check, err, out)
	}
	return nil
}

// settledSick waits until every box has either left or been refused and nothing
// has changed for three seconds, several rounds of asking, and returns one that
// was refused.
func settledSick(ctx context.Context, t *Teller, start time.Time) (*lab.Box, error) {
	last := map[string]edge.Rung{}
	changed := time.Now()
	var stayed *lab.Box
	err := Until(ctx, "every box has left or been refused", func() error {
		stayed = nil
		var open []string
		for _, b := range t.boxes() {
			d, err := decision(ctx, b)
			if err != nil {
				return err
			}
			if last[b.Name()] != d.Rung {
				last[b.Name()], changed = d.Rung, time.Now()
				t.Say("%s: %s after %s%s", b.Name(), d.Rung, since(start), because(d.Reason))
			}
			switch d.Rung {
			case edge.LastResort:
				stayed = b
			case edge.Withdrawn:
			default:
				open = append(open, fmt.Sprintf("%s is %s", b.Name(), d.Rung))
			}
		}
		if len(open) > 0 || time.Since(changed) < 3*time.Second {
			return fmt.Errorf("the last change was %s ago; %v", since(changed), open)
		}
		return nil
	})
	if err == nil && stayed == nil {
		err = errors.New("no box has stayed as last resort")
	}
	return stayed, err
}

func because(r edge.Reason) string {
	if r == "" {
		return ""
	}
	return ": " + string(r)
}

// whyStayed checks that the reason names the guard and what failed.
func whyStayed(ctx context.Context, t *Teller, b *lab.Box) error {
	out, err := t.explained(ctx, b, lab.Prefix4.String())
	if err != nil {
		return err
	}
	for _, must := range []string{"last-resort", "shared", "may not withdraw", "the guard does not permit leaving"} {
		if !strings.Contains(out, must) {
			return fmt.Errorf("%s does not say %q: %s", b.Name(), must, out)
		}
	}
	return nil
}
