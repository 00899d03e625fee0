package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// force has an operator do what the guard does not: once the fleet is down to the
// floor it forces one more site out. It is how the watch at the routers shows that it
// can see what it is there for. The lab is left as it is.
func (r *rig) force(ctx context.Context, in round) (before, after *outcome, err error) {
	before, after = &outcome{round: in}, &outcome{round: in}
	counts, err := r.withdrawals(ctx, nil)
	if err == nil {
		err = r.book.turn()
	}
	if err == nil {
		err = r.act(ctx, before)
	}
	if err != nil {
		return nil, nil, err
	}
	judge := func(o *outcome) error {
		told, err := r.withdrawals(ctx, counts)
		err = errors.Join(err, r.note(ctx, o))
		o.judge(r.names(), r.book.changes(), told)
		return err
	}
	if err := judge(before); err != nil {
		return nil, nil, err
	}
	victim := r.sites[slices.Index(r.names(), r.book.present(prefixes()[0])[0])]
	if out, err := victim.box.Ctl(ctx, "drain", "--force", "--reason", "to see that it is seen"); err != nil {
		return nil, nil, fmt.Errorf("force site %s out: %w: %s", victim.name, err, out)
	}
	// Not until so few are left: those that had left come back, seeing that.
	err = until(ctx, "the site that was forced out has gone", func() error {
		for _, p := range prefixes() {
			if in := r.book.present(p); slices.Contains(in, victim.name) {
				return fmt.Errorf("%v have %s", in, p)
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return before, after, judge(after)
}
