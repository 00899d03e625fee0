package image

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// changes brings about configurations: one that is confirmed, and two that would lock
// the operator out, which the box takes back by itself.
func changes(ctx context.Context, t *testing.T, l *lane) error {
	return l.withBox(ctx, func(b *box) error {
		ctx, cancel := within(ctx, bootLimit)
		defer cancel()
		for _, step := range []struct {
			what string
			run  func(context.Context, *box) error
		}{
			{"a change that is confirmed stays", confirmedChange},
			{"a firewall that lets nobody in is taken back", lockedOut},
			{"a network without BGP and ssh is taken back", cutOff},
		} {
			start := time.Now()
			if err := step.run(ctx, b); err != nil {
				return fmt.Errorf("%s: %w", step.what, err)
			}
			t.Logf("%5.1f s  %s", time.Since(start).Seconds(), step.what)
		}
		return nil
	})
}

func confirmedChange(ctx context.Context, b *box) error {
	if _, err := b.runs(ctx, "sed 's/max_cycles: 100/max_cycles: 101/' /etc/edge/edge.yaml >/run/next.yaml && edgectl config apply /run/next.yaml --confirm-within 100s"); err != nil {
		return err
	}
	if _, err := b.holds(ctx, "edgectl config show", regexp.MustCompile(`^generation 2 is in force, and not confirmed\n`)); err != nil {
		return err
	}
	b.guest.forget(ctx) // a new login is the proof
	if _, err := b.runs(ctx, "edgectl config confirm"); err != nil {
		return err
	}
	if _, err := b.holds(ctx, "edgectl config show", regexp.MustCompile(`^generation 2 is in force\n`)); err != nil {
		return err
	}
	_, err := b.holds(ctx, "systemctl is-active edge-confirm; grep max_cycles /etc/edge/edge.yaml", regexp.MustCompile(`^inactive\n.*max_cycles: 101\b`))
	return errors.Join(err, b.announced(ctx))
}

// lockedOut lets nobody in but a network that is not there. The session that is open
// goes on; a new one is what counts.
func lockedOut(ctx context.Context, b *box) error {
	if _, err := b.runs(ctx, `sed 's/^  name: a1$/&\n  host_firewall: {management_nets: [192.0.2.0\/24]}/' /etc/edge/edge.yaml >/run/next.yaml && grep -q 192.0.2.0/24 /run/next.yaml && edgectl config apply /run/next.yaml --confirm-within 20s`); err != nil {
		return err
	}
	b.guest.forget(ctx)
	try, cancel := within(ctx, 5*time.Second)
	_, err := b.guest.run(try, "true")
	cancel()
	if err == nil {
		return errors.New("ssh from an address that the firewall does not list is let in")
	}
	if err := b.guest.await(ctx); err != nil {
		return err
	}
	return errors.Join(b.tookBack(ctx, `not confirmed|confirm`), b.announced(ctx))
}

// cutOff gives the uplink an address of nobody.
func cutOff(ctx context.Context, b *box) error {
	if _, err := b.runs(ctx, `rm -rf /run/next && mkdir -p /run/next/network && cp /etc/edge/edge.yaml /run/next/ && sed 's/^Address=10\.1\.0\.2/Address=10.1.0.61/; s/^Address=fd00:1::2/Address=fd00:1::61/' /etc/edge/network/10-uplink.network >/run/next/network/10-uplink.network && ! cmp -s /run/next/network/10-uplink.network /etc/edge/network/10-uplink.network`); err != nil {
		return err
	}
	if _, err := b.runs(ctx, "nohup edgectl config apply /run/next --confirm-within 10m >/run/apply.log 2>&1 </dev/null &"); err != nil {
		return err
	}
	if err := lab.UntilEvery(ctx, time.Second, "the router has lost the box", func() error {
		if s, ok := pathOf(b.Routers[routerName], boxName); !ok || s != pathGone {
			return fmt.Errorf("its path is %s", s)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := errors.Join(b.announced(ctx), b.guest.await(ctx)); err != nil {
		return err
	}
	return b.tookBack(ctx, `BGP|ssh`)
}

// tookBack looks whether the box says that it has taken a change back, and why.
func (b *box) tookBack(ctx context.Context, why string) error {
	out, err := b.holds(ctx, "edgectl config show", regexp.MustCompile(`^generation 2 is in force\n(?s:.*)taken back`))
	if err == nil && !regexp.MustCompile(why).MatchString(out) {
		err = fmt.Errorf("the box does not say that the reason is %s: %s", why, out)
	}
	return err
}
