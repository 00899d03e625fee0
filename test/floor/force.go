package main

import (
	"context"
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
	if err := r.judgeForce(ctx, before, counts, ""); err != nil {
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
	return before, after, r.judgeForce(ctx, after, counts, victim.name)
}

// judgeForce judges what has come about since the counts, with a site forced out or
// none. A guard has its round on record only once edged has read back that the routers
// have nothing any more: that is waited for.
func (r *rig) judgeForce(ctx context.Context, o *outcome, counts map[string]int, forced string) error {
	told, err := r.withdrawals(ctx, counts)
	if err != nil {
		return err
	}
	all := r.book.changes()
	err = until(ctx, "the guards have all rounds on record", func() error {
		if err := r.note(ctx, o); err != nil {
			return err
		}
		for _, p := range prefixes() {
			for _, l := range losses(r.names(), p, actual(all, told)) {
				if l.site != forced && roundOf(l, o.said[l.site]) == nil {
					return fmt.Errorf("there is none for %s", l)
				}
			}
		}
		return nil
	})
	o.judge(r.names(), all, told)
	return err
}
