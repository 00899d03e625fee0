package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
)

// judge goes through what the routers had. told is what their BGP was told to withdraw:
// the kernels must have lost as many routes, no more and no fewer.
func (o *outcome) judge(sites []string, all []change, told map[string]int) {
	all = actual(all, told)
	for _, p := range prefixes() {
		o.losses = append(o.losses, losses(sites, p, all)...)
	}
	slices.SortFunc(o.losses, func(a, b loss) int { return a.at.Compare(b.at) })
	for _, l := range o.losses {
		if len(l.stay) < floor {
			o.wrong = append(o.wrong, fmt.Sprintf("below the floor of %d: %s", floor, l))
		}
		if o.cut != nil && o.cut.halves() {
			o.judgeSide(l)
		}
	}
	for _, s := range sites {
		lost := 0
		for _, l := range o.losses {
			if l.site == s {
				lost++
			}
		}
		if told[s] != lost {
			o.wrong = append(o.wrong, fmt.Sprintf("the router of site %s was told %d withdrawals, and its kernel lost the routes %d times", s, told[s], lost))
		}
	}
}

// judgeSide judges a loss during a cut by the sides: a round of the guard that began
// after the cut had nobody to ask but its own side, which must have as many others as
// the floor. One that is older may have been promised by the other side.
func (o *outcome) judgeSide(l loss) {
	if !l.at.After(o.cutAt) || !l.at.Before(o.healedAt) {
		return
	}
	d := roundOf(l, o.said[l.site])
	switch {
	case d == nil:
		o.wrong = append(o.wrong, fmt.Sprintf("no round of the guard permitted it: %s", l))
		return
	case !d.Opened.After(o.cutAt):
		o.excused++
		return
	}
	n := 0
	for _, s := range l.stay {
		if o.cut.side(s) == o.cut.side(l.site) {
			n++
		}
	}
	if n < floor {
		o.wrong = append(o.wrong, fmt.Sprintf("below the floor of %d on its side of the cut, where %d stay, by a round opened at %s: %s",
			floor, n, d.Opened.Format("15:04:05.000"), l))
	}
}

// lag is how much later than it happened a change may be read, or be on record, on a
// machine that has more to do than it can.
const lag = 500 * time.Millisecond

// roundOf is the round of a site's guard by which it has left; nil: there is none. It
// is over when edged has read back that the routers have nothing any more.
func roundOf(l loss, said []edge.GuardDecision) *edge.GuardDecision {
	for _, d := range said {
		if d.Prefix == l.prefix && d.Left && d.Time.After(l.at.Add(-lag)) && d.Opened.Before(l.at) {
			return &d
		}
	}
	return nil
}

// decisions are the rounds of every site's guard that are over, as far as it keeps
// them, oldest first.
func (r *rig) decisions(ctx context.Context) (map[string][]edge.GuardDecision, error) {
	out := map[string][]edge.GuardDecision{}
	var mu sync.Mutex
	err := r.all(func(s site) error {
		var past []edge.GuardDecision
		err := s.box.Ask(ctx, lab.Control, "/v1/guard/decisions", &past)
		mu.Lock()
		defer mu.Unlock()
		out[s.name] = past
		return err
	})
	return out, err
}

// withdrawals is how many prefixes each router says that its site has withdrawn, since
// the counts before: what the BGP of the router has heard, where the book has what its
// kernel did.
func (r *rig) withdrawals(ctx context.Context, before map[string]int) (map[string]int, error) {
	out := map[string]int{}
	var mu sync.Mutex
	err := r.all(func(s site) error {
		got, err := s.router.Session(ctx, netip.MustParseAddr(s.box.Addr4))
		if err == nil && !got.Established {
			err = fmt.Errorf("the session of %s is down", s.router.Name())
		}
		mu.Lock()
		defer mu.Unlock()
		out[s.name] = got.Withdraws - before[s.name]
		return err
	})
	return out, err
}
