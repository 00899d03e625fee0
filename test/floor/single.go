package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
)

// goneWithin is how soon after its detection one sick site must be gone from its
// router, with the second (sick_drain_time) in which it is announced at its least
// attractive first.
const goneWithin = 2 * time.Second

// alone is what came of one sick site. Times are from the fault.
type alone struct {
	site string
	// detected is when the probe was down, asked when the guard opened the round that
	// permitted the withdrawal, gone when the router had lost the last prefix.
	detected, asked, gone time.Duration
}

func (a alone) String() string {
	return fmt.Sprintf("site %s alone: detected after %.3f s, asked the others %.3f s later, gone from its router %.3f s after the detection",
		a.site, a.detected.Seconds(), (a.asked - a.detected).Seconds(), (a.gone - a.detected).Seconds())
}

// single has one site fail its own check until its routes have gone.
func (r *rig) single(ctx context.Context, s site) (alone, error) {
	out := alone{site: s.name}
	before, err := r.withdrawals(ctx, nil)
	if err == nil {
		err = r.book.turn()
	}
	if err != nil {
		return out, err
	}
	at := time.Now()
	r.fail(s, own)
	err = until(ctx, "one sick site has left", func() error {
		for _, p := range prefixes() {
			if in := r.book.present(p); len(in) == len(r.sites) {
				return fmt.Errorf("all have %s", p)
			}
		}
		return nil
	})
	if err != nil {
		return out, err
	}
	told, err := r.withdrawals(ctx, before)
	if err != nil {
		return out, err
	}
	var gone []loss
	for _, p := range prefixes() {
		gone = append(gone, losses(r.names(), p, actual(r.book.changes(), told))...)
	}
	for _, l := range gone {
		if l.site != s.name {
			return out, fmt.Errorf("site %s is sick, and another one leaves: %s", s.name, l)
		}
		out.gone = max(out.gone, l.at.Sub(at))
	}
	if out.detected, err = r.detected(ctx, s, at); err != nil {
		return out, err
	}
	// The round is over a moment later, when the speaker has been read back.
	err = until(ctx, "the guard has kept its round", func() error {
		var said []edge.GuardDecision
		if err := s.box.Ask(ctx, lab.Control, "/v1/guard/decisions", &said); err != nil {
			return err
		}
		for _, l := range gone {
			d := roundOf(l, said)
			if d == nil {
				return errors.New("it has not")
			}
			out.asked = max(out.asked, d.Opened.Sub(at))
		}
		return nil
	})
	if err != nil {
		return out, err
	}
	return out, r.home(ctx)
}

// detected is when the box's own check was down, after the fault.
func (r *rig) detected(ctx context.Context, s site, fault time.Time) (time.Duration, error) {
	var past edge.Events
	if err := s.box.Ask(ctx, lab.Control, "/v1/history?since=0", &past); err != nil {
		return 0, err
	}
	for _, e := range past.Events {
		if e.Kind == "probe" && e.Subject == own && e.To == edge.Down.String() && e.Time.After(fault) {
			return e.Time.Sub(fault), nil
		}
	}
	return 0, errors.New("its history does not say when the check was down")
}
