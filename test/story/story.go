// Package story is what the product must do, told in steps on the lab's small
// internet: each step acts, watches, checks what it prints and puts things back.
//
// It owns the steps and no lab: make demo runs them for a person, the end to
// end test for the race detector.
package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
)

// URL is what clients ask for.
const URL = "https://www.example.net/"

// patience bounds every wait of a step. The machine may be slow; what is quick
// is printed with its time.
const patience = 2 * time.Minute

// Step is one part of the story.
type Step struct {
	// Name is what is shown, a whole sentence.
	Name string
	// Run returns an error if what it saw is not what must be.
	Run func(context.Context, *Teller) error
}

// Steps are the story in its order. Each leaves the lab as it found it.
func Steps() []Step {
	return []Step{
		{"Each client reaches its own site, and through it the nearest region", nearest},
		{"A site's proxy is killed: it degrades, gets its permit, withdraws, and comes back", proxyDies},
		{"A dependency that all sites share fails everywhere at once: no prefix disappears", sharedFails},
		{"A region gets more than its capacity: the surplus goes to the next nearest", regionOverflows},
		{"edged is killed with -9 everywhere and restarted under traffic: nothing is lost", edgedDies},
		{"A whole box dies: the routers drop it, its clients move to the next site", boxDies},
	}
}

// Teller has what the steps act on. Say prints one line; it may be called by
// several goroutines at once.
type Teller struct {
	Lab *lab.Lab
	Say func(format string, args ...any)
}

// Settle waits until every site announces and every prefix is at its best, as
// the routers and the boxes see it.
func (t *Teller) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, b := range t.boxes() {
		if err := t.rung(ctx, b, edge.Announced); err != nil {
			return err
		}
	}
	for _, site := range t.Lab.Topology.Sites {
		via := make([]string, 0, len(site.Boxes))
		for _, b := range site.Boxes {
			via = append(via, b.Name)
		}
		for _, p := range []netip.Prefix{lab.Prefix4, lab.Prefix6} {
			if err := t.Lab.Routers[site.Router].Await(ctx, p, via...); err != nil {
				return err
			}
		}
	}
	return nil
}

// boxes are all boxes, in the topology's order.
func (t *Teller) boxes() []*lab.Box {
	var out []*lab.Box
	for _, s := range t.Lab.Topology.Sites {
		for _, b := range s.Boxes {
			out = append(out, t.Lab.Boxes[b.Name])
		}
	}
	return out
}

// Until waits for a condition, with patience; what is named in the error.
func Until(ctx context.Context, what string, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return lab.Until(ctx, what, holds)
}

// rung waits until both prefixes of a box stand on one of the rungs.
func (t *Teller) rung(ctx context.Context, b *lab.Box, want ...edge.Rung) error {
	return Until(ctx, fmt.Sprintf("%s is %v", b.Name(), want), func() error {
		st, err := b.Status(ctx)
		if err != nil {
			return err
		}
		if len(st.Decisions) != 2 {
			return fmt.Errorf("%d prefixes are decided, alarms %v", len(st.Decisions), st.Alarms)
		}
		for _, d := range st.Decisions {
			if !slices.Contains(want, d.Rung) {
				return fmt.Errorf("%s is %s: %s", d.Prefix, d.Rung, d.Reason)
			}
		}
		return nil
	})
}

// decision is where a box stands with the IPv4 prefix.
func decision(ctx context.Context, b *lab.Box) (edge.Decision, error) {
	st, err := b.Status(ctx)
	if err != nil {
		return edge.Decision{}, err
	}
	for _, d := range st.Decisions {
		if d.Prefix == lab.Prefix4 {
			return d, nil
		}
	}
	return edge.Decision{}, fmt.Errorf("%s has decided nothing on %s", b.Name(), lab.Prefix4)
}

// servedBy waits until a client is served by a site, over the family.
func (t *Teller) servedBy(ctx context.Context, client, site string, w lab.Way) (lab.Answer, error) {
	var a lab.Answer
	err := Until(ctx, fmt.Sprintf("%s is served by site %s", client, site), func() error {
		ask, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var err error
		if a, err = t.Lab.Clients[client].Get(ask, URL, w); err == nil && a.Site != site {
			err = fmt.Errorf("it was served by site %s", a.Site)
		}
		return err
	})
	return a, err
}

// traffic is a load that runs while a step acts.
type traffic struct {
	client string
	result lab.Samples
}

// during sends a load from each client while f runs, then says and returns what
// came of it.
func (t *Teller) during(ctx context.Context, l lab.Load, clients []string, f func(context.Context) error) ([]traffic, error) {
	loads, stop := context.WithCancel(ctx)
	defer stop()
	out := make([]traffic, len(clients))
	var g errgroup.Group
	for i, name := range clients {
		g.Go(func() (err error) {
			out[i].client = name
			out[i].result, err = t.Lab.Clients[name].Send(loads, l)
			return err
		})
	}
	err := f(ctx)
	stop()
	err = errors.Join(err, g.Wait())
	for _, r := range out {
		t.Say("%s: %s", r.client, r.result)
	}
	return out, err
}

// watches records both prefixes on every router.
type watches map[string]*lab.RouteWatch

func (t *Teller) watch() (watches, error) {
	out := watches{}
	for name, r := range t.Lab.Routers {
		for _, p := range []netip.Prefix{lab.Prefix4, lab.Prefix6} {
			w, err := r.Watch(p)
			if err != nil {
				out.close()
				return nil, err
			}
			out[fmt.Sprintf("%s, %s", name, p)] = w
		}
	}
	return out, nil
}

func (w watches) close() {
	for _, one := range w {
		one.Close()
	}
}

// neverLost is an error if a router was without a prefix at any moment.
func (w watches) neverLost() error {
	var errs []error
	for where, one := range w {
		lost, err := one.Lost()
		if err != nil {
			errs = append(errs, err)
		}
		if len(lost) > 0 {
			errs = append(errs, fmt.Errorf("%s: lost %d times, first at %s", where, len(lost), lost[0].At.Format("15:04:05.000")))
		}
	}
	return errors.Join(errs...)
}

// quiet is an error if anything changed about a prefix on any router.
func (w watches) quiet() error {
	var errs []error
	for where, one := range w {
		events, err := one.Events()
		if err != nil {
			errs = append(errs, err)
		}
		if len(events) > 0 {
			errs = append(errs, fmt.Errorf("%s: %d changes of the route, first at %s", where, len(events), events[0].At.Format("15:04:05.000")))
		}
	}
	return errors.Join(errs...)
}

// unharmed is an error if a request of one of the clients failed.
func unharmed(results []traffic, clients ...string) error {
	var errs []error
	for _, r := range results {
		if n := len(r.result.Failed()); slices.Contains(clients, r.client) && (n > 0 || len(r.result) == 0) {
			errs = append(errs, fmt.Errorf("%d of %d requests of %s failed", n, len(r.result), r.client))
		}
	}
	return errors.Join(errs...)
}

// all runs f for every box at once.
func (t *Teller) all(f func(*lab.Box) error) error {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for _, b := range t.boxes() {
		wg.Go(func() {
			if err := f(b); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("%s: %w", b.Name(), err))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// explained says what edgectl explain prints, one line each, indented, and
// returns it.
func (t *Teller) explained(ctx context.Context, b *lab.Box, what string) (string, error) {
	out, err := b.Ctl(ctx, "explain", what)
	if err != nil {
		return "", fmt.Errorf("explain %s on %s: %w", what, b.Name(), err)
	}
	t.Say("%s$ edgectl explain %s", b.Name(), what)
	for line := range strings.Lines(out) {
		t.Say("    %s", strings.TrimRight(line, "\n"))
	}
	return out, nil
}

func since(t time.Time) string { return fmt.Sprintf("%.2f s", time.Since(t).Seconds()) }
