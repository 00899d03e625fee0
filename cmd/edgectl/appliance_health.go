package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge/image/boot"
	"github.com/catchment-dev/edge/image/slot"
)

const (
	healthWithin = 180 * time.Second
	healthEvery  = 2 * time.Second
	// healthAgain is how often the checks of a boot that is not good are repeated
	// afterwards: hooks may cost something, and it is for as long as it takes. After
	// so many times it is told how it stands.
	healthAgain = 10 * time.Second
	healthRound = 6
)

func (o *options) applianceHealthCommand(b *box) *cobra.Command {
	h := &healthRun{options: o, box: b}
	c := &cobra.Command{
		Use: "health", Short: "Judge this boot: good, to be given up, or to stay up and alarm", Args: cobra.NoArgs,
		Long: "health repeats the checks until all pass: then this boot is good. If they do not within --within, and this\n" +
			"version is under trial, and there is another to boot, it reboots. Else it alarms, and goes on until they pass:\n" +
			"a router that comes back after an hour makes the boot good as well.",
		RunE: func(c *cobra.Command, _ []string) error {
			if h.within <= 0 {
				return fmt.Errorf("--within %s is not above 0", h.within)
			}
			if h.again <= 0 {
				return fmt.Errorf("--again %s is not above 0", h.again)
			}
			return asProblem(h.run(c.Context()))
		},
	}
	c.Flags().DurationVar(&h.within, "within", healthWithin, "until `when` all checks must have passed")
	c.Flags().DurationVar(&h.again, "again", healthAgain, "how `often` they are repeated afterwards")
	c.Flags().BoolVar(&h.once, "once", false, "run each check once, tell, and change nothing")
	return c
}

// healthRun is one judgement.
type healthRun struct {
	*options
	box    *box
	within time.Duration
	again  time.Duration
	once   bool
}

// verdict is the answer of -o json.
type verdict struct {
	Version string         `json:"version"`
	Slot    slot.Slot      `json:"slot"`
	Trial   bool           `json:"trial"` // it has a boot counter
	Failed  []slot.Failure `json:"failed"`
	boot.Verdict
	Refused []slot.Refused `json:"refused"`
}

func (h *healthRun) run(ctx context.Context) error {
	here, err := h.box.booted()
	if err != nil {
		return err
	}
	report := h.box.report(here)
	r := &report
	if h.once {
		r.Failed = boot.Once(ctx, h.checks(r.Facts))
		r.Verdict, r.Judged = boot.Judge(r.Facts), true
		return h.answer(*r)
	}
	h.before(r)
	for pace := (boot.Pace{Within: h.within, Every: healthEvery}); ; pace = (boot.Pace{Within: healthRound * h.again, Every: h.again}) {
		// Made anew each time: a configuration brings others.
		failed := boot.Watch(ctx, h.checks(r.Facts), pace)
		if r.Judged && len(failed) == 0 { // with those of a configuration that has come since
			failed = boot.Once(ctx, h.checks(r.Facts))
		}
		if ctx.Err() != nil {
			return interrupted(r)
		}
		err := h.judge(r, failed)
		switch {
		case r.Verdict.Reboot:
			return errors.Join(err, h.box.giveUp(ctx))
		case r.Verdict.Good:
			return err
		}
	}
}

// interrupted is the end of a judgement from outside, as by a reboot.
func interrupted(r *reported) error {
	if r.Judged {
		return fmt.Errorf("interrupted: this boot was not good: %s", r.Verdict.Why)
	}
	return errors.New("interrupted: this boot is not judged")
}

// judge has the verdict of what has failed, and tells of it; on the console only of
// what is new. All other facts are those of the start of this boot: once a version is
// to stay up, nothing that happens later makes the box reboot by itself.
func (h *healthRun) judge(r *reported, failed []slot.Failure) error {
	again := r.Judged && slices.Equal(boot.FailedNames(r.Failed), boot.FailedNames(failed))
	r.Failed = failed
	r.Verdict, r.Judged = boot.Judge(r.Facts), true
	if _, err := os.Stat(h.box.path(judgedFile)); err == nil && r.Verdict.Reboot { // by a process before this one
		r.Verdict.Reboot = false
		r.Verdict.Why += "; but this boot was judged before, so it stays"
	}
	notes := r.Notes
	if !again {
		r.note(h.box.keep(*r, h.now()))
	}
	r.note(h.box.markJudged(r.Verdict))
	r.note(h.box.tell(r.Report))
	var err error
	if !again {
		err = h.answer(*r)
	}
	r.Notes = notes // those of this round
	return err
}

// judgedFile says, while it is there, that this boot was judged and is not to be given
// up: edge-deadman leaves it alone.
const judgedFile = slot.RunDir + "/judged"

// markJudged leaves judgedFile, unless the box is to reboot: then it has to.
func (b *box) markJudged(v boot.Verdict) error {
	if v.Reboot {
		return nil
	}
	path := b.path(judgedFile)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), slot.ReplaceFile(path, []byte(v.Why+"\n"))); err != nil {
		return fmt.Errorf("say that this boot is judged: %w", err)
	}
	return nil
}

// before does what is not to wait for the checks: it remembers a version that the box
// has come back from, and tells of it.
func (h *healthRun) before(r *reported) {
	st := h.box.state()
	if !r.Upgrade.OnTrial() || r.Upgrade.Version != r.Version {
		// The version before may have filled the disk, and daemons keep state there.
		if free, err := slot.FreeSpace(st.Dir); err == nil && free < leastFree {
			r.note(st.Release())
		}
	}
	if back := boot.CameBack(r.Facts, h.now()); back != nil {
		back.Journal = h.box.journalBefore()
		r.note(st.Refuse(*back))
		r.note(st.CountRollback(back.Version, back.Check))
		r.Upgrade.Stage = slot.Failed
		// The journal took its time: an operator may have begun the next one meanwhile.
		if now, err := st.Upgrade(); err != nil || now.OnTrial() && now.Since.Equal(r.Upgrade.Since) {
			r.note(st.SetUpgrade(r.Upgrade, h.now()))
		}
		h.recall(r, *back)
		fmt.Fprintf(h.stderr, "edgectl: came back from version %s: %s\n", back.Version, line(boot.Cause(*back)))
	}
	r.note(h.box.tell(r.Report))
}

// recall has the report say what is on record after a rollback, or, where nothing could
// be written, what would be.
func (h *healthRun) recall(r *reported, back slot.Refused) {
	list, err := h.box.state().Refused()
	if err != nil || slot.RefusedOf(list, back.Version) == nil {
		list = append(slices.DeleteFunc(r.Refused, func(o slot.Refused) bool { return o.Version == back.Version }), back)
	}
	r.Refused = list
	r.Refused = boot.Refusals(r.Facts)
	counted, err := h.box.state().Rollbacks()
	if err != nil || !slices.ContainsFunc(counted, func(o slot.Rollback) bool { return o.From == back.Version && o.Check == back.Check }) {
		counted = slot.Counted(r.Rollbacks, back.Version, back.Check)
	}
	r.Rollbacks = counted
}

// reported is a report while it is made.
type reported struct{ boot.Report }

func (r *reported) note(err error) {
	if err != nil {
		r.Notes = append(r.Notes, err.Error())
	}
}

// report gathers the facts. What cannot be read is a note: it must keep no box from
// being judged.
func (b *box) report(here booted) reported {
	r := reported{boot.Report{Facts: boot.Facts{Version: here.version, Slot: here.slot}}}
	loader, err := boot.ReadBooted(b.path(boot.EFIVars))
	r.note(err)
	if loader.Counter != nil && loader.Counter.Version == here.version {
		r.Counter = loader.Counter
	}
	r.UKIs, err = b.ukis()
	r.note(err)
	// What the loader says is of the start of this boot: it may have been blessed since.
	if own, ok, err := slot.Of(r.UKIs, here.version); err == nil && ok && !own.Counted {
		r.Counter = nil
	}
	st := b.state()
	r.Upgrade, err = st.Upgrade()
	r.note(err)
	r.Refused, err = st.Refused()
	r.note(err)
	r.Rollbacks, err = st.Rollbacks()
	r.note(err)
	r.Boots, err = st.Boots()
	r.note(err)
	if n := st.Noted(); n != nil && !slices.ContainsFunc(r.Boots, func(b slot.Boot) bool { return b.ID == n.ID }) {
		r.Boots = append(r.Boots, *n)
	}
	r.Refused = boot.Refusals(r.Facts)
	return r
}

// keep writes down how this boot was judged.
func (b *box) keep(r reported, now time.Time) error {
	id, err := os.ReadFile(b.path("/proc/sys/kernel/random/boot_id"))
	if err != nil {
		return fmt.Errorf("read boot id: %w", err)
	}
	this := slot.Boot{
		ID: strings.TrimSpace(string(id)), Version: r.Version, Slot: r.Slot, Time: now.UTC(), Good: r.Verdict.Good, Failed: r.Failed,
	}
	st := b.state()
	if r.Upgrade.OnTrial() && r.Upgrade.Version == r.Version {
		this.Trial = r.Upgrade.Since
		free, err := slot.FreeSpace(st.Dir)
		if err == nil && free < leastFree && st.Note(this) == nil {
			return nil // the room that is left is for the version before
		}
	}
	return st.AddBoot(this)
}

// refused are the versions that are not taken again.
func (b *box) refused(here booted) ([]slot.Refused, error) {
	if _, err := b.state().Refused(); err != nil {
		return nil, err
	}
	return b.report(here).Refused, nil
}

// Where this boot is told of.
const (
	motdFile    = "/run/motd.d/edge"
	metricsFile = slot.RunDir + "/metrics.prom"
	alarmsFile  = slot.RunDir + "/alarms"
)

// tell writes the message of the day, the metrics and the alarms.
func (b *box) tell(r boot.Report) error {
	var errs []error
	alarms := strings.Join(r.Alarms(), "\n")
	if alarms != "" {
		alarms += "\n"
	}
	for name, text := range map[string]string{motdFile: r.Motd(), metricsFile: r.Metrics(), alarmsFile: alarms} {
		path := b.path(name)
		if err := os.MkdirAll(path[:strings.LastIndexByte(path, '/')], 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, slot.ReplaceFile(path, []byte(text)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("tell of this boot: %w", err)
	}
	return nil
}

// journalTime bounds the look into the journal.
const journalTime = 20 * time.Second

// journalBefore are the worst lines of the boot before this one, as far as it got
// them to the disk.
func (b *box) journalBefore() string {
	ctx, cancel := context.WithTimeout(context.Background(), journalTime)
	defer cancel()
	out, err := b.exec(ctx, "journalctl", "--boot=-1", "--priority=warning", "--lines=20", "--no-pager", "--output=short", "--quiet")
	if err != nil {
		return fmt.Sprintf("the journal of that boot cannot be read: %v", err)
	}
	const most = 8 << 10
	return strings.ToValidUTF8(string(out[max(0, len(out)-most):]), "?")
}

// answer prints the verdict; anything but good is a problem.
func (h *healthRun) answer(r reported) error {
	if h.output == "json" {
		v := verdict{r.Version, r.Slot, r.Counter != nil, r.Failed, r.Verdict, r.Refused}
		if v.Failed == nil {
			v.Failed = []slot.Failure{}
		}
		if v.Refused == nil {
			v.Refused = []slot.Refused{}
		}
		if err := h.json(v); err != nil {
			return err
		}
	} else {
		h.print(r)
	}
	if !r.Verdict.Good {
		return fmt.Errorf("this boot of version %s is not good: %s", r.Version, r.Verdict.Why)
	}
	return nil
}

func (h *healthRun) print(r reported) {
	trial := "good before"
	if r.Counter != nil {
		trial = fmt.Sprintf("under trial, %d tries left", r.Counter.Left)
	}
	fmt.Fprintf(h.stdout, "version %s, slot %s, %s\n", r.Version, r.Slot, trial)
	for _, f := range r.Failed {
		fmt.Fprintf(h.stdout, "failed  %s: %s\n", f.Check, line(f.Reason))
	}
	for _, a := range r.Alarms() {
		fmt.Fprintf(h.stdout, "ALARM  %s\n", line(a))
	}
	if r.Verdict.Good {
		fmt.Fprintln(h.stdout, "good: "+r.Verdict.Why)
	}
}
