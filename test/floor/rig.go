package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
)

const (
	// floor is how many sites must stay, of nine.
	floor = 3
	// patience bounds every wait: the machine may be slow, and gossip that was cut
	// may take 30 s to be whole again.
	patience = 2 * time.Minute
	// lease is of a promise: so long after its start edged does not leave.
	lease = 5 * time.Second
	// shared is the check that all sites have in common, own the one that each has
	// for itself: to the guard they are nine different ones.
	shared, own = "shared", "own"
)

func prefixes() []netip.Prefix { return []netip.Prefix{lab.Prefix4, lab.Prefix6} }

// rig is a lab of nine sites, a to i, with one box and one router each. The routers
// are BIRD and FRR in turn, and know each other by a transit router in the middle,
// but they tell each other nothing of the service
// prefixes: what a router's kernel has of them is what its site announces, however
// unattractive.
type rig struct {
	lab   *lab.Lab
	sites []site
	book  *book
	stop  func() error // ends the watch at the routers
}

// setup is what two labs differ in.
type setup struct {
	// drain is how long a site that is sick is announced at its worst before it asks
	// the guard; ask is for how long it waits for answers.
	drain, ask time.Duration
	// step is how much farther each site is from the transit router than the one
	// before, one way.
	step time.Duration
}

// ordinary is the default of the configuration: when the first site asks, all know of
// each other, and who goes first is a matter of rank.
func ordinary() setup { return setup{drain: time.Second, ask: time.Second, step: 2 * time.Millisecond} }

// hasty is so quick to ask and so slow to answer, up to half a second there and back, that
// sites promise while they are well and fall sick while the promise is on its way:
// what was promised is put to the test.
func hasty() setup { return setup{drain: 0, ask: 2 * time.Second, step: 16 * time.Millisecond} }

// site is one of the nine.
type site struct {
	name   string
	box    *lab.Box
	router *lab.Router
}

func topology(in setup) lab.Topology {
	t := lab.Topology{
		Routers: []lab.RouterSpec{{Name: "r-t", Kind: lab.BIRD}},
		Regions: []lab.RegionSpec{{Name: "east", Router: "r-t", Origins: 1, Capacity: 60}},
		Shared:  "r-t", MinSites: floor, Apart: true,
		Edit: func(box, yaml string) string { return edit(box, yaml, in) },
	}
	for i, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
		router, kind := "r-"+name, lab.BIRD
		if i%2 == 1 {
			kind = lab.FRR
		}
		t.Routers = append(t.Routers, lab.RouterSpec{Name: router, Kind: kind})
		t.Cores = append(t.Cores, lab.CoreSpec{A: router, B: "r-t", Delay: time.Millisecond + time.Duration(i)*in.step})
		t.Sites = append(t.Sites, lab.SiteSpec{Name: name, Router: router, Boxes: []lab.BoxSpec{{Name: name + "1", MD5: i%3 == 0}}})
	}
	return t
}

// ownPath is what the check "own" of a box asks for.
func ownPath(box string) string { return "/healthz/" + box }

// edit gives a box the check "own", which asks the shared origin for a path of its
// own, so that its failure is no common cause; and it shortens what only makes a round
// longer: the lease that a lost release costs, the hold.
func edit(box, yaml string, in setup) string {
	check := line(yaml, "{name: shared, kind: http")
	mine := strings.NewReplacer("name: shared", "name: own", "/healthz", ownPath(box)).Replace(check)
	return strings.NewReplacer(
		check, check+mine,
		"      - {on: shared, class: hard}\n", "      - {on: shared, class: hard}\n      - {on: own, class: hard}\n",
		"promise_lease: 10s", "promise_lease: "+lease.String()+"\n    sick_drain_time: "+in.drain.String(),
		"ask_timeout: 1s", "ask_timeout: "+in.ask.String(),
		"max_cycles: 100", "max_cycles: 1000",
		"hold: 3s", "hold: 1s",
		"hold_max: 3s", "hold_max: 1s",
	).Replace(yaml)
}

// line is the first line that has the text in it.
func line(text, has string) string {
	for l := range strings.Lines(text) {
		if strings.Contains(l, has) {
			return l
		}
	}
	return ""
}

// newRig starts everything, and waits until all sites announce.
func newRig(ctx context.Context, bin string, in setup) (*rig, error) {
	l, err := lab.New(ctx, topology(in))
	if err != nil {
		return nil, err
	}
	r := &rig{lab: l, stop: func() error { return nil }}
	for _, s := range l.Topology.Sites {
		r.sites = append(r.sites, site{s.Name, l.Boxes[s.Boxes[0].Name], l.Routers[s.Router]})
	}
	r.book = newBook(r.names())
	if err := r.start(ctx, bin); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *rig) start(ctx context.Context, bin string) error {
	if err := r.follow(ctx); err != nil {
		return err
	}
	if err := r.lab.Start(bin); err != nil {
		return err
	}
	for _, s := range r.sites {
		if err := s.router.Count(ctx); err != nil {
			return err
		}
	}
	if err := r.home(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, r.lab.Logs(15))
	}
	// For a lease after its start a box does not leave.
	for _, s := range r.sites {
		st, err := s.box.Status(ctx)
		if err != nil {
			return err
		}
		if err := lab.Pause(ctx, time.Until(st.Started.Add(lease+time.Second))); err != nil {
			return err
		}
	}
	return nil
}

// follow begins the watch.
func (r *rig) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	at := map[string]string{}
	for _, s := range r.sites {
		at[s.router.Name()] = s.name
	}
	wait, err := r.lab.Follow(ctx, prefixes(), func(c lab.RouteChange) {
		if s, ok := at[c.Router]; ok {
			r.book.write(change{c.At, s, c.Prefix, c.There})
		}
	})
	if err != nil {
		cancel()
		return err
	}
	r.stop = func() error { cancel(); return wait() }
	return nil
}

// close ends all. Its error is also that of a watch which may have missed something.
func (r *rig) close() error { return errors.Join(r.stop(), r.lab.Close()) }

func (r *rig) names() []string {
	var out []string
	for _, s := range r.sites {
		out = append(out, s.name)
	}
	return out
}

// siteOf is the site of a box.
func siteOf(box string) string { return strings.TrimSuffix(box, "1") }

// all runs f for every site at once.
func (r *rig) all(f func(site) error) error {
	errs := make([]error, len(r.sites))
	var wg sync.WaitGroup
	for i, s := range r.sites {
		wg.Go(func() {
			if err := f(s); err != nil {
				errs[i] = fmt.Errorf("site %s: %w", s.name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// home mends everything and waits until nothing is left of a round: all announce at
// their best, hear each other, and owe each other nothing.
func (r *rig) home(ctx context.Context) error {
	err := r.all(func(s site) error {
		for _, check := range []string{shared, own} {
			r.mend(s, check)
		}
		return s.box.Ignore()
	})
	if err != nil {
		return err
	}
	if err := until(ctx, "all is as it was", func() error { return r.all(func(s site) error { return atHome(ctx, s.box) }) }); err != nil {
		return err
	}
	return until(ctx, "all routers lead to their sites", func() error {
		for _, p := range prefixes() {
			if in := r.book.present(p); len(in) != len(r.sites) {
				return fmt.Errorf("only %v have %s", in, p)
			}
			for _, s := range r.sites {
				// The stream and the table must agree.
				if got, err := s.router.Route(p); err != nil || !slices.Equal(got.Via, []string{s.box.Name()}) {
					return fmt.Errorf("at %s %s leads to %v, %w", s.router.Name(), p, got.Via, err)
				}
			}
		}
		return nil
	})
}

// atHome is an error unless a box is at its best and knows of nothing that is not.
func atHome(ctx context.Context, b *lab.Box) error {
	st, err := b.Status(ctx)
	if err != nil {
		return err
	}
	if len(st.Decisions) != len(prefixes()) {
		return fmt.Errorf("%d prefixes are decided, alarms %v", len(st.Decisions), st.Alarms)
	}
	for _, d := range st.Decisions {
		if d.Rung != edge.Announced {
			return fmt.Errorf("%s is %s: %s", d.Prefix, d.Rung, d.Reason)
		}
	}
	alive := 0
	for _, m := range st.Guard.Members {
		if m.Alive && m.Age >= 0 && m.Age < lease/2 {
			alive++
		}
	}
	if alive < len(st.Guard.Members) || len(st.Guard.Suspects)+len(st.Guard.Bound)+len(st.Guard.Asking)+len(st.Guard.Trust) > 0 {
		return fmt.Errorf("%d of %d members are alive, suspect %v, bound %v, asking %v, trusts %v",
			alive, len(st.Guard.Members), st.Guard.Suspects, st.Guard.Bound, st.Guard.Asking, st.Guard.Trust)
	}
	return nil
}

// fail has a check of a site fail from now on, mend ends that.
func (r *rig) fail(s site, check string) {
	r.lab.Shared.SetHealthyFor(s.box.Name(), path(s, check), false)
}
func (r *rig) mend(s site, check string) {
	r.lab.Shared.SetHealthyFor(s.box.Name(), path(s, check), true)
}

func path(s site, check string) string {
	if check == own {
		return ownPath(s.box.Name())
	}
	return "/healthz"
}

// until waits for a condition; what is named in the error. It looks seldom enough to
// leave the machine to those that are looked at.
func until(ctx context.Context, what string, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return lab.UntilEvery(ctx, 100*time.Millisecond, what, holds)
}
