package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/catchment-dev/edge/image/boot"
	"github.com/catchment-dev/edge/image/slot"
)

// cancel takes back what is staged: the next reboot boots the version that runs.
func (u *upgrade) cancel(ctx context.Context) (err error) {
	unlock, err := u.box.lock(u.user + ": edgectl upgrade --cancel")
	if err != nil {
		return err
	}
	defer unlock()
	if u.here, err = u.box.booted(); err != nil {
		return err
	}
	if u.last, err = u.box.state().Upgrade(); err != nil {
		return err
	}
	if u.disk, err = u.box.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, u.disk.close()) }()
	all, err := u.disk.writer.UKIs()
	if err != nil {
		return err
	}
	next, _ := slot.Next(all)
	if err := mayCancel(u.here, u.last, next.Version); err != nil {
		return err
	}
	return u.takeBack(ctx)
}

// takeBack removes what is staged, and has the version that runs be the next that boots.
func (u *upgrade) takeBack(ctx context.Context) (err error) {
	// It fails for much that does not count, such as a unit that has failed.
	if out, _ := u.box.exec(ctx, "systemctl", "is-system-running"); strings.TrimSpace(string(out)) == "stopping" {
		return fmt.Errorf("the reboot into %s has begun: leave it there with edgectl rollback", u.last.Version)
	}
	u.disk.writer.Tell = u.say
	if err := u.stepForward(ctx); err != nil {
		return err
	}
	if u.last.Payload != nil || u.last.Stage == slot.Writing {
		err = u.disk.writer.Drop(u.last.Version, u.here.version)
	} else {
		err = u.cancelRollback(ctx)
	}
	if err != nil {
		return err
	}
	return u.cancelled()
}

// mayCancel says why there is nothing to be taken back. next is the version that the next
// boot takes: one that has failed is it while it has tries left, if somebody has booted this
// one by hand.
func mayCancel(here booted, last *slot.Upgrade, next string) error {
	switch {
	case last == nil || !last.OnTrial() && last.Stage != slot.Writing && (last.Stage != slot.Failed || last.Version != next):
		return errors.New("no version is staged: there is nothing to cancel")
	case last.Version == here.version:
		return fmt.Errorf("version %s runs, under trial: leave it with edgectl rollback", here.version)
	}
	return nil
}

// stepForward gives the version that runs, if it was set aside for an older one, the
// name back that it was booted by, or that of a good one.
func (u *upgrade) stepForward(ctx context.Context) error {
	all, err := u.disk.writer.UKIs()
	if err != nil {
		return err
	}
	k, ok, err := slot.Of(all, u.here.version)
	if err != nil || !ok || !k.SetAside() {
		return err
	}
	to := slot.UKI{Version: u.here.version}
	b, err := boot.ReadBooted(u.box.path(boot.EFIVars))
	if err != nil {
		return err
	}
	now, err := u.box.judged()
	if err != nil {
		return err
	}
	if b.Counter != nil && b.Counter.Version == to.Version && (now == nil || !now.Good) {
		to = *b.Counter // it is under trial still
	}
	return u.disk.writer.Recount(ctx, k, to)
}

// judged is the judgement of this boot; nil: there is none yet.
func (b *box) judged() (*slot.Boot, error) {
	id, err := os.ReadFile(b.path("/proc/sys/kernel/random/boot_id"))
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	list, err := b.state().Boots()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(o slot.Boot) bool { return o.ID == strings.TrimSpace(string(id)) })
	if i < 0 {
		return nil, nil
	}
	return &list[i], nil
}

// cancelRollback is for one that was cut short: the version in the other slot stays,
// since it was good, but behind the one that runs, which is no longer refused.
func (u *upgrade) cancelRollback(ctx context.Context) error {
	w := u.disk.writer
	if slot.Compare(u.last.Version, u.here.version) > 0 {
		if err := setAside(ctx, w, u.last.Version); err != nil {
			return err
		}
	}
	refused, err := u.box.state().Refused()
	if err != nil {
		return err
	}
	if r := slot.RefusedOf(refused, u.here.version); r != nil && r.Check == slot.ByOperator && !r.When.Before(u.last.Since) {
		return u.box.state().Forgive(u.here.version)
	}
	return nil
}

// cancelled writes down that it is so, and ends the drain.
func (u *upgrade) cancelled() error {
	st := u.box.state()
	u.last.Stage = slot.Cancelled
	if err := st.SetUpgrade(u.last, u.now()); err != nil {
		return err
	}
	if err := errors.Join(st.Release(), st.Reserve()); err != nil {
		u.say(err.Error()) // what was fetched is of no use; nothing depends on it
	}
	if err := errors.Join(u.undrain(u.last), u.retell()); err != nil {
		return fmt.Errorf("%s is not staged any more: %w", u.last.Version, err)
	}
	return u.done(u.last, fmt.Sprintf("%s is not staged any more: the next reboot boots %s", u.last.Version, u.here.version))
}

// forgiveOne takes a version out of the refused, and changes nothing else.
func (u *upgrade) forgiveOne(ctx context.Context) error {
	unlock, err := u.box.lock(u.user + ": edgectl upgrade --forgive")
	if err != nil {
		return err
	}
	defer unlock()
	if u.here, err = u.box.booted(); err != nil {
		return err
	}
	if u.refused, err = u.box.refused(u.here); err != nil {
		return err
	}
	if slot.RefusedOf(u.refused, u.forgive) == nil {
		names := "none is"
		if len(u.refused) > 0 {
			names = "refused are"
			for _, r := range u.refused {
				names += " " + r.Version
			}
		}
		return fmt.Errorf("version %s is not refused: %s", line(u.forgive), names)
	}
	if err := u.box.state().Forgive(u.forgive); err != nil {
		return err
	}
	if err := u.forgetTries(ctx); err != nil {
		return fmt.Errorf("version %s is refused for its UKI alone: %w", u.forgive, err)
	}
	if err := u.retell(); err != nil {
		return fmt.Errorf("version %s is not refused any more: %w", u.forgive, err)
	}
	if u.output == "json" {
		return u.json(struct {
			Forgiven string `json:"forgiven"`
		}{u.forgive})
	}
	return u.options.write(fmt.Sprintf("version %s is not refused any more\n", u.forgive))
}

// forgetTries has the UKI of a forgiven version not tell any more that it has failed: it
// stays behind the version that runs. That of the version that runs is left alone: if it is
// good systemd-bless-boot looks for the name that it was booted by.
func (u *upgrade) forgetTries(ctx context.Context) (err error) {
	if u.forgive == u.here.version {
		return nil
	}
	disk, err := u.box.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.close()) }()
	all, err := disk.writer.UKIs()
	if err != nil {
		return err
	}
	if k, ok, err := slot.Of(all, u.forgive); err != nil || !ok || !k.Spent() {
		return err
	}
	return setAside(ctx, disk.writer, u.forgive)
}

// retell has motd, metrics and alarms say how it stands now, if this boot is judged:
// else edge-health says it.
func (u *upgrade) retell() error {
	now, err := u.box.judged()
	if err != nil || now == nil {
		return err
	}
	r := u.box.report(u.here)
	r.Judged, r.Failed = true, now.Failed
	r.Verdict = boot.Judge(r.Facts)
	return u.box.tell(r.Report)
}
