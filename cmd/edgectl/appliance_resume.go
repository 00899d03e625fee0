package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge/image/boot"
	"github.com/catchment-dev/edge/image/slot"
)

const (
	resumeWithin = 2 * time.Minute
	resumeEvery  = time.Second
)

func (o *options) applianceResumeCommand(b *box) *cobra.Command {
	r := &resume{leaving: leaving{options: o, box: b}}
	c := &cobra.Command{
		Use: "resume", Short: "End an upgrade in a boot that is good: see that it is blessed, and take back its drain", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if r.within <= 0 {
				return fmt.Errorf("--within %s is not above 0", r.within)
			}
			return asProblem(r.run(c.Context()))
		},
	}
	c.Flags().DurationVar(&r.within, "within", resumeWithin, "how `long` to wait until it is blessed, and edged answers")
	return c
}

// resume is one run of the command. It is called in boots that were found good only.
type resume struct {
	leaving
	within time.Duration
}

func (r *resume) run(ctx context.Context) error {
	unlock, err := r.box.lock(r.user + ": edgectl appliance resume")
	if err != nil {
		return err
	}
	defer unlock()
	here, err := r.box.booted()
	if err != nil {
		return err
	}
	u, err := r.box.state().Upgrade()
	if err != nil || u == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	// Failed: the box had come back from it, and has been booted into it once more.
	if u.Version == here.version && (u.OnTrial() || u.Stage == slot.Failed) {
		if err := r.confirm(ctx, here, u); err != nil {
			return fmt.Errorf("version %s is not taken for good, and a drain of the upgrade stays: %w", here.version, err)
		}
	} else if err := r.forgive(here); err != nil {
		return err
	}
	if u.Drain == "" {
		return nil
	}
	// Also after the box has come back from a version: nobody else would end it.
	if err := r.retry(ctx, func() error { return r.undrainOwn(ctx, u.Drain) }); err != nil {
		return fmt.Errorf("the drain of the upgrade could not be taken back: %w; edgectl undrain does", err)
	}
	u.Drain = ""
	return r.box.state().SetUpgrade(u, r.now())
}

// forgive ends that the version that runs is refused: it was rolled back, what it was
// left for was no better, and here it is good again.
func (r *resume) forgive(here booted) error {
	list, err := r.box.state().Refused()
	if err != nil || slot.RefusedOf(list, here.version) == nil {
		return err
	}
	if err := r.box.state().Forgive(here.version); err != nil {
		return err
	}
	return r.tellGood(here)
}

// tellGood tells of this boot anew.
func (r *resume) tellGood(here booted) error {
	report := r.box.report(here)
	report.Judged, report.Verdict = true, boot.Verdict{Good: true}
	if err := r.box.checkDisk(); err != nil { // what a boot that is good may lack: see boot.Judge
		report.Failed = []slot.Failure{{Check: boot.Disk, Reason: err.Error()}}
	}
	return r.box.tell(report.Report)
}

// confirm sees that the version is blessed, and writes down that it is good.
func (r *resume) confirm(ctx context.Context, here booted, u *slot.Upgrade) error {
	if u.Slot != here.slot {
		return fmt.Errorf("it was written to slot %s, and runs from slot %s", u.Slot, here.slot)
	}
	said, err := r.box.oneName(ctx, here.version, u.Payload)
	if said != "" {
		r.say(said)
	}
	if err != nil {
		return err
	}
	if err := r.retry(ctx, func() error { return r.blessed(here.version) }); err != nil {
		return err
	}
	st := r.box.state()
	u.Stage = slot.Good
	if err := errors.Join(st.SetUpgrade(u, r.now()), st.Forgive(here.version)); err != nil {
		return err
	}
	r.say(fmt.Sprintf("version %s is good", here.version))
	return r.tellGood(here)
}

// blessed says why the UKI of a version still has a counter.
func (r *resume) blessed(version string) error {
	all, err := r.box.ukis()
	if err != nil {
		return err
	}
	k, ok, err := slot.Of(all, version)
	switch {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("its UKI is not on the EFI partition")
	case k.Counted:
		return fmt.Errorf("systemd-bless-boot has not taken the counter from %s: systemctl status systemd-bless-boot", k.Name())
	}
	return nil
}

// retry repeats f until it succeeds or the time is over, and returns its last error.
func (r *resume) retry(ctx context.Context, f func() error) error {
	tick := time.NewTicker(resumeEvery)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
