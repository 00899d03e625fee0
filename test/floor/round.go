package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
)

// kind is what breaks in a round, and what is thought of it.
type kind string

const (
	// distinct: each site fails its own check, so that all of them want to leave.
	distinct kind = "distinct"
	// trusted: all fail the shared check, and an operator has it believed.
	trusted kind = "trusted"
	// suspect: all fail the shared check, which is a common cause.
	suspect kind = "suspect"
)

const (
	// breakAt is when the first site may break, breakWithin in how much time all do.
	breakAt, breakWithin = 3 * time.Second, time.Second
	// quietFor is how long nothing has changed at the routers when a round has come to
	// its end that has no other: several rounds of asking, and the lease of a promise.
	quietFor = lease + 2*time.Second
)

// round is one time that all sites break.
type round struct {
	n    int
	kind kind
	// after is when each site breaks, from breakAt on.
	after map[string]time.Duration
	cut   *cut // nil: none
}

// kinds are those of the rounds without a cut, and of those with one, in which distinct
// checks become suspect too once the other side has been silent for a lease.
func kinds() [2][]kind {
	return [2][]kind{{distinct, trusted, distinct, suspect, distinct}, {distinct, trusted, trusted, suspect, distinct}}
}

// draw draws the n-th round: every second one has a cut.
func draw(seed uint64, n int, sites []string) round {
	rnd := rand.New(rand.NewPCG(seed, uint64(n)))
	out := round{n: n, kind: kinds()[n%2][n/2%5], after: map[string]time.Duration{}}
	for _, s := range sites {
		out.after[s] = time.Duration(rnd.Int64N(int64(breakWithin)))
	}
	if n%2 == 1 {
		out.cut = drawCut(rnd, sites)
	}
	return out
}

func (r round) check() string {
	if r.kind == distinct {
		return own
	}
	return shared
}

func (r round) String() string {
	text := fmt.Sprintf("%2d %-8s", r.n, r.kind)
	if r.cut == nil {
		return text
	}
	text += fmt.Sprintf(" %s, cut %+.1f s from the first fault", r.cut, (r.cut.at - breakAt - r.first()).Seconds())
	if r.cut.healFirst {
		text += ", healed while broken"
	}
	return text
}

// first is when the first site breaks, from breakAt on.
func (r round) first() time.Duration {
	var all []time.Duration
	for _, d := range r.after {
		all = append(all, d)
	}
	return slices.Min(all)
}

// outcome is what came of a round.
type outcome struct {
	round
	began time.Time
	// cutAt and healedAt are when a cut was whole, and until when it surely was.
	cutAt, healedAt time.Time
	// said are the rounds of each site's guard that are over.
	said map[string][]edge.GuardDecision
	// losses are all routes that went.
	losses []loss
	// settled is from the last fault until the last site had left that may; 0: none
	// may, or it was not waited for.
	settled time.Duration
	// ignored counts the packets that the cut has dropped.
	ignored uint64
	// excused are losses during a cut by a round of the guard that was older.
	excused int
	took    time.Duration
	wrong   []string
}

// lowest is the fewest sites that a router had at any moment.
func (o *outcome) lowest(of int) int {
	for _, l := range o.losses {
		of = min(of, len(l.stay))
	}
	return of
}

// play plays a round, from home to home, and judges it. Its error is of what could not
// be done, or never came about; what came about and must not is in wrong.
func (r *rig) play(ctx context.Context, in round) (*outcome, error) {
	o := &outcome{round: in}
	if in.kind == trusted {
		if err := r.trust(ctx); err != nil {
			return o, err
		}
	}
	before, err := r.withdrawals(ctx, nil)
	if err != nil {
		return o, err
	}
	if err := r.book.turn(); err != nil {
		return o, err
	}
	o.began = time.Now()
	if err := r.act(ctx, o); err != nil {
		return o, err
	}
	if err := r.note(ctx, o); err != nil {
		return o, err
	}
	if in.kind == trusted {
		if err := r.untrust(ctx); err != nil {
			return o, err
		}
	}
	if err := r.home(ctx); err != nil {
		return o, err
	}
	told, err := r.withdrawals(ctx, before)
	if err == nil {
		err = r.note(ctx, o) // some may have left on the way home
	}
	if err != nil {
		return o, err
	}
	o.took = time.Since(o.began)
	o.judge(r.names(), r.book.changes(), told)
	return o, nil
}

// act makes the faults at their times and waits for what is to come of them.
func (r *rig) act(ctx context.Context, o *outcome) error {
	type step struct {
		at time.Duration
		do func() error
	}
	var steps []step
	for _, s := range r.sites {
		steps = append(steps, step{breakAt + o.after[s.name], func() error { r.fail(s, o.check()); return nil }})
	}
	if o.cut != nil {
		steps = append(steps, step{o.cut.at, func() error {
			err := r.make(o.cut)
			o.cutAt = time.Now()
			return err
		}})
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	start := o.began.Add(-steps[0].at) // the first is now
	for _, s := range steps {
		if err := lab.Pause(ctx, time.Until(start.Add(s.at))); err != nil {
			return err
		}
		if err := s.do(); err != nil {
			return err
		}
	}
	broken := time.Now()
	if o.cut == nil {
		err := r.ends(ctx, o.kind)
		if o.kind != suspect {
			o.settled = r.book.last().Sub(broken)
		}
		return err
	}
	if err := r.cutEnds(ctx, o, broken); err != nil {
		return err
	}
	for _, s := range r.sites {
		n, err := s.box.Ignored()
		if err != nil {
			return err
		}
		o.ignored += n
	}
	o.healedAt = time.Now()
	// A withdrawal is on record when it has been read back from the routers.
	err := lab.Pause(ctx, lag)
	if err == nil {
		err = r.note(ctx, o)
	}
	if err != nil {
		return err
	}
	if !o.cut.healFirst {
		return nil // home does it all at once
	}
	if err := r.heal(); err != nil {
		return err
	}
	return r.ends(ctx, o.kind)
}

// ends waits for what all sites together come to.
func (r *rig) ends(ctx context.Context, k kind) error {
	if k == suspect {
		return until(ctx, "all announce, degraded for the common cause", func() error {
			return r.all(func(s site) error { return heldBack(ctx, s) })
		})
	}
	return r.stay(ctx, floor)
}

// stay waits until so many sites announce, and that is the last word.
func (r *rig) stay(ctx context.Context, want int) error {
	return until(ctx, fmt.Sprintf("%d sites are left and stay", want), func() error {
		for _, p := range prefixes() {
			if in := r.book.present(p); len(in) != want || time.Since(r.book.last()) < quietFor/3 {
				return fmt.Errorf("%v have %s", in, p)
			}
		}
		return nil
	})
}

// heldBack is an error unless a site announces, degraded, because the check fails
// everywhere.
func heldBack(ctx context.Context, s site) error {
	st, err := s.box.Status(ctx)
	if err != nil {
		return err
	}
	for _, d := range st.Decisions {
		if d.Rung != edge.Degraded || !strings.Contains(string(d.Reason), "common cause: "+shared) {
			return fmt.Errorf("%s is %s: %s", d.Prefix, d.Rung, d.Reason)
		}
	}
	return nil
}

// cutEnds waits for what the sides of a cut come to. An operator who has a check
// believed makes the sides of a cut independent fleets, of which each goes down to the
// floor if it has more. Where silence counts as failing, or who hears whom is no matter
// of sides, nothing more is known than that it comes to an end.
func (r *rig) cutEnds(ctx context.Context, o *outcome, broken time.Time) error {
	if o.kind == trusted && o.cut.halves() && o.cut.at < breakAt {
		want := 0
		for _, side := range o.cut.sides {
			want += min(floor, len(side))
		}
		return r.stay(ctx, want)
	}
	return until(ctx, "nothing changes at the routers any more", func() error {
		if t := r.book.last(); time.Since(t) < quietFor || time.Since(broken) < quietFor {
			return fmt.Errorf("the last change was at %s", t.Format("15:04:05.000"))
		}
		return nil
	})
}

// trust has the shared check believed, and waits until all boxes have heard it.
func (r *rig) trust(ctx context.Context) error {
	if out, err := r.sites[0].box.Ctl(ctx, "guard", "trust", shared, "--for", "1h", "--reason", "it is right"); err != nil {
		return fmt.Errorf("trust the shared check: %w: %s", err, out)
	}
	return until(ctx, "all have heard that the shared check is right", func() error {
		return r.all(func(s site) error {
			st, err := s.box.Status(ctx)
			if err == nil && len(st.Guard.Trust) == 0 {
				err = fmt.Errorf("%s has not", s.box.Name())
			}
			return err
		})
	})
}

func (r *rig) untrust(ctx context.Context) error {
	out, err := r.sites[0].box.Ctl(ctx, "guard", "untrust", shared, "--reason", "the round is over")
	if err != nil {
		return fmt.Errorf("do not trust the shared check any more: %w: %s", err, out)
	}
	return nil
}
