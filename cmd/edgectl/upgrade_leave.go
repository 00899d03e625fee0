package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/image/boot"
	"github.com/catchment-dev/edge/image/setup"
	"github.com/catchment-dev/edge/image/slot"
)

// leaving is what upgrade and rollback have in common: the way out of a version.
type leaving struct {
	*options
	box     *box
	wait    time.Duration
	noDrain bool
}

func (l *leaving) flags(f *pflag.FlagSet) {
	f.DurationVar(&l.wait, "wait", defaultWait, "how `long` to wait until nothing is served here any more")
	f.BoolVar(&l.noDrain, "no-drain", false, "reboot without a drain first; edgebgp still asks the guard when it stops")
}

// drainRest is how long the drain of an upgrade holds beyond what it may wait: for the
// boots of its trial. A box that nobody comes back to is not to stay off the air for good.
const drainRest = 2 * time.Hour

// say tells a person how far it is.
func (l *leaving) say(step string) {
	if l.output != "json" {
		fmt.Fprintln(l.stdout, line(step))
	}
}

func (l *leaving) done(now *slot.Upgrade, text string) error {
	if l.output == "json" {
		return l.json(result{now.Version, now.From, now.Slot, now.Stage})
	}
	return l.write(text + "\n")
}

// drain takes the node off the air, with the guard's leave, by a drain of its own
// unless an operator has ordered one. If that cannot be done it is taken back.
func (l *leaving) drain(ctx context.Context, now *slot.Upgrade, reason string) error {
	if err := l.box.settled(); err != nil {
		return fmt.Errorf("%s is staged, and nothing was rebooted: %w", now.Version, err)
	}
	setup, err := l.box.setup()
	switch {
	case err != nil:
		return err
	case l.noDrain:
		l.say("not draining, as ordered")
		return nil
	case setup.State == boot.SetupRescue || setup.State == boot.SetupUnconfigured:
		l.say("not draining: this box has no configuration, so it announces nothing")
		return nil
	}
	var st edge.SystemStatus
	if err := l.call(ctx, "GET", "/v1/status", nil, &st); err != nil {
		return fmt.Errorf("%s is staged, but this node cannot be drained: %w; nothing was rebooted (--no-drain does without)", now.Version, err)
	}
	order := edge.Drain{Reason: reason, Until: l.now().Add(l.wait + drainRest).UTC()}
	if o := nodeDrain(st.Drains); o != nil && (now.Drain == "" || o.Reason != now.Drain) {
		l.say("drained already: " + o.Reason)
		now.Drain = ""
	} else {
		// Also if its own is there, of a run before: that one ends sooner. It is kept before
		// it is ordered: whoever comes after a power cut knows whose it is.
		now.Drain = reason
		if err := l.box.state().SetUpgrade(now, l.now()); err != nil {
			return err
		}
		l.say("draining, for " + l.wait.String() + " at most")
		if err := l.call(ctx, "POST", "/v1/drain", order, &st); err != nil {
			return errors.Join(fmt.Errorf("%s is staged, but this node was not drained, and nothing rebooted: %w", now.Version, err), l.undrain(now))
		}
	}
	left, err := l.awaitDrained(ctx, &st, order, l.wait)
	if err == nil && len(left) == 0 {
		l.say("all is off the air, and nothing is served any more")
		return nil
	}
	if err == nil {
		err = fmt.Errorf("not drained within %s:\n  %s\nedgectl guard says who is missing; --wait waits longer, --no-drain reboots without", l.wait, strings.Join(left, "\n  "))
	}
	return errors.Join(fmt.Errorf("%s is staged, and nothing was rebooted: %w", now.Version, err), l.undrain(now))
}

// settled says why the configuration is not one that a reboot keeps.
func (b *box) settled() error {
	_, err := os.Stat(b.path(configStore + "/" + setup.PendingFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look for a configuration that waits: %w", err)
	}
	return errors.New("a configuration waits to be confirmed, and a reboot would take it back: edgectl config confirm, or edgectl config revert, first")
}

// nodeDrain is the order that takes the whole node out, if an operator has given one.
func nodeDrain(list []edge.Drain) *edge.Drain {
	for i, o := range list {
		if o.Service == "" && o.Prefix == (netip.Prefix{}) && !o.Stop {
			return &list[i]
		}
	}
	return nil
}

// undrainTime bounds the way back, also of an operator who has pressed ^C.
const undrainTime = 15 * time.Second

// undrain takes back the drain that now names, if it still is the one in force.
func (l *leaving) undrain(now *slot.Upgrade) error {
	if now.Drain == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), undrainTime)
	defer cancel()
	if err := l.undrainOwn(ctx, now.Drain); err != nil {
		return fmt.Errorf("the drain of the upgrade could not be taken back: %w; edgectl undrain does", err)
	}
	now.Drain = ""
	return l.box.state().SetUpgrade(now, l.now())
}

// undrainOwn takes back the drain of the node that has a reason. Another one in its
// place is an operator's, and stays.
func (l *leaving) undrainOwn(ctx context.Context, reason string) error {
	var st edge.SystemStatus
	if err := l.call(ctx, "GET", "/v1/status", nil, &st); err != nil {
		return err
	}
	o := nodeDrain(st.Drains)
	switch {
	case o == nil:
		return nil
	case o.Reason != reason || o.ByFile:
		l.say("still drained, by another order: " + o.Reason)
		return nil
	}
	if err := l.call(ctx, "POST", "/v1/undrain", struct{}{}, &st); err != nil {
		return err
	}
	l.say("undrained")
	return nil
}

// restart orders the reboot. The EFI partition is let go of first.
func (l *leaving) restart(ctx context.Context, now *slot.Upgrade, disk **opened) error {
	now.Stage = slot.Rebooting
	if err := l.box.state().SetUpgrade(now, l.now()); err != nil {
		return errors.Join(err, l.undrain(now))
	}
	d := *disk
	*disk = nil
	if err := d.close(); err != nil {
		return errors.Join(fmt.Errorf("unmount EFI partition: %w", err), l.undrain(now))
	}
	if err := l.box.reboot(ctx); err != nil {
		return errors.Join(err, l.undrain(now))
	}
	return l.done(now, fmt.Sprintf("rebooting into %s; edgectl appliance health --once tells there how it stands", now.Version))
}
