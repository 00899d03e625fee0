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
		o.judgeRound(l)
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

// judgeRound judges a loss by the round of the guard that permitted it: those that have
// promised to stay are there when it goes, and there are as many as the floor.
//
// During a cut there must be as many on its own side, if the round began after the cut:
// it had nobody else to ask. One that is older may have been promised by the other side.
func (o *outcome) judgeRound(l loss) {
	inCut := o.cut != nil && l.at.After(o.cutAt) && l.at.Before(o.healedAt)
	d := roundOf(l, o.said[l.site])
	if d == nil {
		// A guard keeps its last 50 rounds; after a cut there may have been more.
		if o.cut == nil || inCut {
			o.wrong = append(o.wrong, fmt.Sprintf("no round of the guard permitted it: %s", l))
		}
		return
	}
	var gone []string
	for _, node := range d.Promised {
		if s := siteOf(string(node)); !slices.Contains(l.stay, s) {
			gone = append(gone, s)
		}
	}
	// No promise of the round can have run out as early as that.
	if l.at.Sub(d.Opened) < lease/2 && (len(gone) > 0 || len(d.Promised) < floor) {
		o.wrong = append(o.wrong, fmt.Sprintf("promised by %v, of which %v have gone: %s", d.Promised, gone, l))
	}
	switch {
	case !inCut || !o.cut.halves():
	case !d.Opened.After(o.cutAt):
		o.excused++
	default:
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
}

// lag is how much later than it happened a change may be read, or be on record, on a
// machine that has more to do than it can.
const lag = 500 * time.Millisecond

// roundOf is the round of a site's guard by which it has left; nil: there is none. It
// is over when edged has read back that the routers have nothing any more.
func roundOf(l loss, said []edge.GuardDecision) *edge.GuardDecision {
	for _, d := range said {
		if d.Prefix == l.prefix && d.Left && !d.Forced && d.Time.After(l.at.Add(-lag)) && d.Opened.Before(l.at) {
			return &d
		}
	}
	return nil
}

// note adds to the outcome the rounds of every site's guard that are over.
func (r *rig) note(ctx context.Context, o *outcome) error {
	var mu sync.Mutex
	return r.all(func(s site) error {
		var past []edge.GuardDecision
		err := s.box.Ask(ctx, lab.Control, "/v1/guard/decisions", &past)
		mu.Lock()
		defer mu.Unlock()
		if o.said == nil {
			o.said = map[string][]edge.GuardDecision{}
		}
		for _, d := range past {
			same := func(was edge.GuardDecision) bool { return was.Prefix == d.Prefix && was.Opened.Equal(d.Opened) }
			if !slices.ContainsFunc(o.said[s.name], same) {
				o.said[s.name] = append(o.said[s.name], d)
			}
		}
		return err
	})
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
