package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge/image/boot"
	"github.com/catchment-dev/edge/image/slot"
)

func (o *options) rollbackCommand() *cobra.Command { return o.rollbackCommandOn(thisBox()) }

func (o *options) rollbackCommandOn(b *box) *cobra.Command {
	r := &rollback{leaving: leaving{options: o, box: b}}
	c := &cobra.Command{
		Use: "rollback", Short: "Go back to the version in the other slot, and refuse the one that runs",
		Long: "Drain this node with the guard's permit, set the version that runs aside, and reboot into that of the other\n" +
			"slot. It is under trial there: if it is not good within 3 boots, the box comes back to this one. The version\n" +
			"that is left is refused by edgectl upgrade from then on, unless forced. The drain is taken back when the\n" +
			"other version is good. Whatever ends this command, the same command goes on from there. A login that breaks\n" +
			"does not end it; ^C does.\n\n" +
			"While a version is staged that was never booted, there is nothing to go back to: the slot of the version\n" +
			"before has been overwritten. What is staged is taken back then, as by edgectl upgrade --cancel, and nothing\n" +
			"is rebooted.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if r.wait <= 0 {
				return fmt.Errorf("--wait %s is not above 0", r.wait)
			}
			outliveLogin()
			return asProblem(r.run(c.Context()))
		},
	}
	c.Flags().StringVar(&r.reason, "reason", "no reason given", "why, in a few `words`: others will read it")
	c.Flags().BoolVar(&r.force, "force", false, "also into a version that has failed on this box")
	r.flags(c.Flags())
	return c
}

type rollback struct {
	leaving
	reason string
	force  bool
}

func (r *rollback) run(ctx context.Context) (err error) {
	unlock, err := r.box.lock(r.user + ": edgectl rollback")
	if err != nil {
		return err
	}
	defer unlock()
	here, err := r.box.booted()
	if err != nil {
		return err
	}
	refused, err := r.box.refused(here)
	if err != nil {
		return err
	}
	last, err := r.box.state().Upgrade()
	if err != nil {
		return err
	}
	disk, err := r.box.open()
	if err != nil {
		return err
	}
	defer func() {
		if disk != nil {
			err = errors.Join(err, disk.close())
		}
	}()
	disk.writer.Tell = r.say
	all, err := disk.writer.UKIs()
	if err != nil {
		return err
	}
	if staged(last, here.version) {
		u := &upgrade{leaving: r.leaving, here: here, last: last, disk: disk}
		return u.takeBack(ctx)
	}
	to, err := backTo(all, here.version, refused, r.force)
	if err != nil {
		return err
	}
	setup, err := r.box.setup()
	if err != nil {
		return err
	}
	now := &slot.Upgrade{
		Stage: slot.Staged, Version: to.Version, Slot: here.slot.Other(), From: here.version, Tries: defaultTries,
		By: r.user, Since: r.now().UTC(), Older: slot.Compare(to.Version, here.version) < 0, Configured: setup.State == boot.SetupOK,
	}
	if last != nil {
		now.Drain = last.Drain
	}
	if err := r.drain(ctx, now, fmt.Sprintf("edgectl rollback from %s to %s", now.From, now.Version)); err != nil {
		return errors.Join(err, r.putBack(last, now.Drain))
	}
	if err := r.turn(ctx, disk.writer, now, to); err != nil {
		return errors.Join(err, r.undrain(now))
	}
	return r.restart(ctx, now, &disk)
}

// putBack has the state of the last upgrade as it was: nothing has come of this. A
// drain that could not be taken back stays on record: edge-resume ends it by that.
func (r *rollback) putBack(last *slot.Upgrade, drain string) error {
	if last == nil {
		last = &slot.Upgrade{Stage: slot.Failed}
	}
	last.Drain = drain
	return r.box.state().SetUpgrade(last, r.now())
}

// staged says that an upgrade, and not a rollback that was cut short, has put a
// version into the other slot that does not run.
func staged(last *slot.Upgrade, running string) bool {
	return last.OnTrial() && last.Payload != nil && last.Version != running
}

// turn makes the other version the one that is booted. That it can be given up again
// needs a counter; and this one steps behind only when that is there.
func (r *rollback) turn(ctx context.Context, w *slot.Writer, now *slot.Upgrade, to slot.UKI) error {
	if err := r.box.state().SetUpgrade(now, r.now()); err != nil {
		return err
	}
	if err := w.Recount(ctx, to, slot.UKI{Version: to.Version, Counted: true, Left: defaultTries}); err != nil {
		return err
	}
	if now.Older { // else it is first as it is, and this one is to be taken if it fails
		if err := setAside(ctx, w, now.From); err != nil {
			return err
		}
	}
	return r.box.state().Refuse(slot.Refused{Version: now.From, When: r.now(), Check: slot.ByOperator, Reason: strings.TrimSpace(r.reason)})
}

// backTo is the UKI to go back to.
func backTo(all []slot.UKI, running string, refused []slot.Refused, force bool) (slot.UKI, error) {
	next, ok := slot.Next(slot.Others(all, running))
	if !ok {
		return slot.UKI{}, fmt.Errorf("there is no version to go back to: the other slot has none that can be booted, and %s stays", running)
	}
	to, _, err := slot.Of(all, next.Version)
	if err != nil {
		return slot.UKI{}, err
	}
	if r := slot.RefusedOf(refused, to.Version); r != nil && !force {
		return slot.UKI{}, fmt.Errorf("the other version, %s, is refused: %s; --force goes back to it all the same", to.Version, boot.Cause(*r))
	}
	if to.Spent() && !to.SetAside() && !force {
		return slot.UKI{}, fmt.Errorf("the other version, %s, has failed on this box; --force goes back to it all the same", to.Version)
	}
	return to, nil
}
