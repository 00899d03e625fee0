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
	defaultTries = 3
	defaultWait  = 10 * time.Minute
)

func (o *options) upgradeCommand() *cobra.Command { return o.upgradeCommandOn(thisBox()) }

func (o *options) upgradeCommandOn(b *box) *cobra.Command {
	u := &upgrade{leaving: leaving{options: o, box: b}}
	c := &cobra.Command{
		Use: "upgrade [SOURCE]", Short: "Go to another version of the appliance: write it, drain, reboot, come back",
		Long: "Fetch a payload from SOURCE (a folder, or https://HOST/PATH), check its signature, and write it to the\n" +
			"slot that does not run. Then drain this node with the guard's permit, and reboot. The next boot is judged\n" +
			"by edge-health: if it is not good within --tries boots, the box goes back by itself, and refuses the version\n" +
			"from then on. If it is good the drain of the upgrade, and no other, is taken back.\n\n" +
			"If the guard does not let go within --wait, the drain is taken back and nothing is rebooted. Whatever ends\n" +
			"it, the same command goes on from there. Without SOURCE it goes on with the version that is staged.\n" +
			"A login that breaks does not end it; ^C does.\n\n" +
			"From the moment of writing on, the box has only the version that runs to boot, until the new one is whole.\n" +
			"--stage-only ends there; the next reboot, whatever its cause, boots the new version. --cancel takes back what\n" +
			"is staged; the version that was in that slot before is gone then. edgectl slots shows how it stands.",
		Example: "  edgectl upgrade https://updates.example.net/edge/1.3.0\n  edgectl upgrade --stage-only /mnt/payload\n  edgectl upgrade\n  edgectl upgrade --cancel",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				u.source = args[0]
			}
			if u.tries < 1 || u.tries > 9 {
				return fmt.Errorf("--tries %d is not in 1 to 9", u.tries)
			}
			if u.wait <= 0 {
				return fmt.Errorf("--wait %s is not above 0", u.wait)
			}
			outliveLogin()
			switch forgiving := c.Flags().Changed("forgive"); {
			case u.cancels && forgiving, (u.cancels || forgiving) && (len(args) > 0 || u.stageOnly):
				return errors.New("--cancel and --forgive stand alone: nothing is upgraded then")
			case u.cancels:
				return asProblem(u.cancel(c.Context()))
			case forgiving:
				return asProblem(u.forgiveOne(c.Context()))
			}
			return u.command(c.Context())
		},
	}
	f := c.Flags()
	f.BoolVar(&u.cancels, "cancel", false, "take back what is staged, and its drain; nothing is rebooted")
	f.StringVar(&u.forgive, "forgive", "", "refuse this `version` no longer, and do nothing else")
	f.BoolVar(&u.force, "force", false, "also a version that is refused or older, and also out of one that is under trial")
	f.IntVar(&u.tries, "tries", defaultTries, "how many `boots` it may fail before the box goes back: 1 to 9")
	f.BoolVar(&u.stageOnly, "stage-only", false, "write it, and neither drain nor reboot")
	f.BoolVar(&u.fetch.InsecureHTTP, "insecure-http", false, "also take http://; the signature is checked in any case")
	f.StringVar(&u.fetch.CAFile, "ca", "", "`file` with the certificates that sign the server's (PEM); default: the system's")
	u.flags(f)
	return c
}

// upgrade is one run of the command.
type upgrade struct {
	leaving
	source           string
	force, stageOnly bool
	cancels          bool
	forgive          string // a version
	tries            int
	fetch            slot.SourceOptions

	here    booted
	last    *slot.Upgrade
	refused []slot.Refused
	disk    *opened
}

// result is the answer of -o json.
type result struct {
	Version string     `json:"version"`
	From    string     `json:"from"`
	Slot    slot.Slot  `json:"slot"`
	Stage   slot.Stage `json:"stage"`
}

func (u *upgrade) command(ctx context.Context) error {
	if err := u.run(ctx); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("interrupted; the same command goes on from here: %w", err)
		}
		return asProblem(err)
	}
	return nil
}

// asProblem marks an error as one that was understood.
func asProblem(err error) error {
	if p := (problem{}); err == nil || errors.As(err, &p) {
		return err
	}
	return problem{err}
}

func (u *upgrade) run(ctx context.Context) (err error) {
	unlock, err := u.box.lock(u.user + ": edgectl upgrade")
	if err != nil {
		return err
	}
	defer unlock()
	if err := u.look(); err != nil {
		return err
	}
	if u.disk, err = u.box.open(); err != nil {
		return err
	}
	defer func() { // for what ends before the reboot
		if u.disk != nil {
			err = errors.Join(err, u.disk.close())
		}
	}()
	u.disk.writer.Tell = u.say
	now, err := u.stage(ctx)
	if err != nil {
		return err
	}
	if u.stageOnly {
		return u.done(now, fmt.Sprintf("%s is staged in slot %s: the next reboot boots it; edgectl upgrade drains first", now.Version, now.Slot))
	}
	return u.leave(ctx, now)
}

// look reads how the box stands.
func (u *upgrade) look() (err error) {
	if u.here, err = u.box.booted(); err != nil {
		return err
	}
	b, err := boot.ReadBooted(u.box.path(boot.EFIVars))
	if err != nil {
		return err
	}
	if u.last, err = u.box.state().Upgrade(); err != nil {
		return err
	}
	if u.refused, err = u.box.refused(u.here); err != nil {
		return err
	}
	if !u.stageOnly { // it is asked again before the drain: this is for who would wait in vain
		if err := u.box.settled(); err != nil {
			return err
		}
	}
	if u.force {
		return nil
	}
	return mayLeave(u.here, b, u.last)
}

// mayLeave says why a version is not to be left yet: while it is under trial the
// other slot is what the box goes back to, and must stay as it is.
func mayLeave(here booted, b boot.Booted, last *slot.Upgrade) error {
	if b.Counter != nil && last.OnTrial() && last.Version == here.version {
		return fmt.Errorf("version %s is still under trial: wait until it is good (systemctl status edge-health edge-resume), or leave it with edgectl rollback; --force gives up what it could go back to", here.version)
	}
	return nil
}

// stage has the version written, and returns the state of the upgrade then.
func (u *upgrade) stage(ctx context.Context) (*slot.Upgrade, error) {
	m, sum, from, err := u.manifest(ctx)
	if err != nil {
		return nil, err
	}
	// What is staged was taken once, by force perhaps: that is not asked for twice.
	if err := mayTake(m, u.here, u.refused, u.force || from == nil); err != nil {
		return nil, err
	}
	if err := u.slotFits(); err != nil {
		return nil, err
	}
	to := u.here.slot.Other()
	if u.last.OnTrial() && u.last.Manifest == sum && u.last.Version == m.Version {
		why := u.disk.writer.Holds(ctx, m, to)
		if why == nil {
			u.say(fmt.Sprintf("%s is staged in slot %s already", m.Version, to))
			return u.last, u.stepBehind(ctx, u.last)
		}
		if from == nil {
			return nil, fmt.Errorf("%s is not staged any more: %w; give its source again", m.Version, why)
		}
	}
	if err := u.disk.room.Fits(m); err != nil {
		return nil, err
	}
	setup, err := u.box.setup()
	if err != nil {
		return nil, err
	}
	now := &slot.Upgrade{
		Stage: slot.Writing, Version: m.Version, Slot: to, From: u.here.version, Manifest: sum, Source: slot.SourceName(u.source), Tries: u.tries,
		By: u.user, Since: u.now().UTC(), Older: slot.Compare(m.Version, u.here.version) < 0, Configured: setup.State == boot.SetupOK, Payload: m,
	}
	if u.last != nil { // a drain that a run before has ordered is still ours
		now.Drain = u.last.Drain
	}
	return now, u.write(ctx, now, from)
}

// manifest is that of the source, or of what is staged (then from is nil).
func (u *upgrade) manifest(ctx context.Context) (m *slot.Manifest, sum string, from slot.Source, err error) {
	if u.source == "" {
		if !u.last.OnTrial() || u.last.Payload == nil {
			return nil, "", nil, errors.New("no version is staged: give a source, a folder or https://HOST/PATH")
		}
		return u.last.Payload, u.last.Manifest, nil, nil
	}
	if from, err = slot.OpenSource(u.source, u.fetch); err != nil {
		return nil, "", nil, err
	}
	trusted, err := slot.LoadTrusted(u.box.path(slot.KeyDir))
	if err != nil {
		return nil, "", nil, err
	}
	m, sum, err = slot.FetchManifest(ctx, from, trusted)
	return m, sum, from, err
}

// mayTake says why a version is not taken.
func mayTake(m *slot.Manifest, here booted, refused []slot.Refused, force bool) error {
	if m.Arch != here.arch {
		return fmt.Errorf("the payload is for %s, and this box is %s", m.Arch, here.arch)
	}
	if here.profile != "" && m.Profile != here.profile {
		return fmt.Errorf("the payload has the profile %s, and this box runs %s: its kernel may lack the drivers of this box", m.Profile, here.profile)
	}
	if m.Version == here.version {
		return fmt.Errorf("version %s runs already", m.Version)
	}
	if force {
		return nil
	}
	if r := slot.RefusedOf(refused, m.Version); r != nil {
		return fmt.Errorf("version %s is refused: %s; mend the cause or take a newer version, or --force it", m.Version, boot.Cause(*r))
	}
	if slot.Compare(m.Version, here.version) <= 0 {
		return fmt.Errorf("version %s is not newer than %s, which runs; --force goes back to it", m.Version, here.version)
	}
	return nil
}

// slotFits: the initrd and the disk must agree on which slot runs.
func (u *upgrade) slotFits() error {
	if u.disk.running != u.here.slot {
		return fmt.Errorf("the initrd has booted slot %s, and / is on slot %s: nothing was written", u.here.slot, u.disk.running)
	}
	return nil
}

// write fetches and writes.
func (u *upgrade) write(ctx context.Context, now *slot.Upgrade, from slot.Source) error {
	st := u.box.state()
	u.say(fmt.Sprintf("fetching %s, %s, from %s", now.Version, slot.Size(now.Payload.PackedSize()), now.Source))
	f := &slot.Fetcher{From: from, Dir: st.FetchDir(), Free: func() (int64, error) { return slot.FreeSpace(st.Dir) }, Progress: u.progress()}
	packed, err := f.Fetch(ctx, now.Payload)
	if err != nil {
		return err
	}
	firmware, err := slot.ReadFirmware(u.box.path(boot.EFIVars))
	if err != nil {
		return err
	}
	if err := firmware.TakesPacked(ctx, now.Payload, packed[slot.Kernel]); err != nil {
		return err
	}
	if err := st.SetUpgrade(now, u.now()); err != nil {
		return err
	}
	job := slot.Job{Manifest: now.Payload, Packed: packed, Slot: now.Slot, Running: u.here.version, Tries: u.tries}
	// Kept before its UKI is there: from then on any reboot takes it, and who judges
	// that boot, or the one after it, is to know what was under trial.
	job.Ready = func() error {
		now.Stage = slot.Staged
		return st.SetUpgrade(now, u.now())
	}
	if err := u.disk.writer.Write(ctx, job); err != nil {
		return err
	}
	if err := u.stepBehind(ctx, now); err != nil {
		return err
	}
	if err := st.Release(); err != nil { // it is written: what was fetched has no use
		return err
	}
	if err := st.Reserve(); err != nil {
		u.say(err.Error()) // an upgrade does not depend on it
	}
	return nil
}

// progress tells of each quarter that has come.
func (u *upgrade) progress() func(done, of int64) {
	told := int64(0)
	return func(done, of int64) {
		if quarter := done * 4 / of; quarter > told {
			told = quarter
			u.say(fmt.Sprintf("%s of %s have come", slot.Size(done), slot.Size(of)))
		}
	}
}

// leave drains and reboots.
func (u *upgrade) leave(ctx context.Context, now *slot.Upgrade) error {
	reason := fmt.Sprintf("edgectl upgrade from %s to %s", now.From, now.Version)
	if err := u.drain(ctx, now, reason); err != nil {
		return err
	}
	return u.restart(ctx, now, &u.disk)
}

// stepBehind sets the version that runs aside for an older one: the newer of two is
// booted, and what is staged is what any reboot boots.
func (u *upgrade) stepBehind(ctx context.Context, now *slot.Upgrade) error {
	if !now.Older {
		return nil
	}
	return setAside(ctx, u.disk.writer, u.here.version)
}

// setAside puts the UKI of a version behind the others.
func setAside(ctx context.Context, w *slot.Writer, version string) error {
	all, err := w.UKIs()
	if err != nil {
		return err
	}
	k, ok, err := slot.Of(all, version)
	if err != nil || !ok {
		return errors.Join(err, fmt.Errorf("set %s aside: its UKI is not on the EFI partition", version))
	}
	return w.Recount(ctx, k, slot.UKI{Version: version, Counted: true})
}
