package image

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/vm"
)

// powerCuts cuts the power at random moments of an update. The version that ran has to
// boot, unless the update was over; after some of them the box comes up whole, and the
// same command ends what was begun.
func powerCuts(ctx context.Context, t *testing.T, l *lane) error {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", s)
	random := rand.New(rand.NewPCG(s, 0))
	if _, err := l.stagedBox(ctx); err != nil {
		return err
	}
	brink, err := l.brink(ctx)
	if err != nil {
		return err
	}
	var a aim
	for i := range *kills {
		after := time.Duration(random.Int64N(int64(l.stagingTook)))
		if err := l.cutPower(ctx, t, brink, after, &a); err != nil {
			return fmt.Errorf("cut %d, after %.2f s (seed %d): %w", i+1, after.Seconds(), s, err)
		}
	}
	for range 8 { // how fast a machine writes changes
		if a.followed {
			break
		}
		if err := l.cutPower(ctx, t, brink, a.next(l.stagingTook), &a); err != nil {
			return err
		}
	}
	if !a.followed {
		return errors.New("no cut has left a slot that is half written")
	}
	after := time.Duration(random.Int64N(int64(trialTime)))
	if err := l.cutTrial(ctx, t, after); err != nil {
		return fmt.Errorf("cut after %.2f s of the trial (seed %d): %w", after.Seconds(), s, err)
	}
	return nil
}

// trialTime is how long a boot under trial may run before its power is cut: in this
// time no emulated machine is found to be good.
const trialTime = 25 * time.Second

// cutTrial cuts the power while the new version boots, which has one try: the version
// that ran comes back.
func (l *lane) cutTrial(ctx context.Context, t *testing.T, after time.Duration) error {
	b, err := l.again(ctx, l.staged.spec)
	if err != nil {
		return err
	}
	defer b.end()
	if _, err := b.mustBoot(ctx, 0, goodVersion, "b"); err != nil {
		return err
	}
	if err := pass(ctx, after); err != nil {
		return err
	}
	b.Kill()
	next, err := l.again(ctx, b.spec)
	if err != nil {
		return err
	}
	defer next.end()
	if _, err := next.mustBoot(ctx, 0, l.version, "a"); err != nil {
		return err
	}
	t.Logf("cut %.2f s into the trial: %s boots", after.Seconds(), l.version)
	return nil
}

// pass lets time pass in a machine that runs.
func pass(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// brinkTime is how long before the update a box was saved by brink.
const brinkTime = 2 * time.Second

// brink is the box that announces, about to write the other slot: it goes on to do so
// by itself, so that nobody has to log in before each cut.
func (l *lane) brink(ctx context.Context) (*healthy, error) {
	b, err := l.resume(ctx, l.well)
	if err != nil {
		return nil, err
	}
	defer b.Kill()
	if err := b.mountPayloads(ctx); err != nil {
		return nil, err
	}
	wait := fmt.Sprintf("sleep %.0f", brinkTime.Seconds())
	if _, err := b.runs(ctx, "nohup sh -c '"+wait+"; exec "+stage()+"' >/run/stage.log 2>&1 </dev/null &"); err != nil {
		return nil, err
	}
	return b.freeze(ctx)
}

// aim finds a moment at which a slot is half written. The first such cut is followed to
// the end, which takes a whole boot; image/slot follows each that can be told apart, on
// files.
type aim struct {
	followed bool
	// In time from early to late there is something; late 0: nobody knows.
	early, late time.Duration
}

func (a *aim) next(all time.Duration) time.Duration {
	late := a.late
	if late == 0 {
		late = 2 * all
	}
	return (a.early + late) / 2
}

// saw takes in what was seen of a cut, and says whether it is the one.
func (a *aim) saw(after time.Duration, begun, over bool) bool {
	switch {
	case over && (a.late == 0 || after < a.late):
		a.late = after
	case !begun:
		a.early = max(a.early, after)
	}
	it := begun && !over && !a.followed
	a.followed = a.followed || it
	return it
}

func (l *lane) cutPower(ctx context.Context, t *testing.T, brink *healthy, after time.Duration, a *aim) error {
	b, err := l.restore(ctx, brink)
	if err != nil {
		return err
	}
	defer b.end()
	if err := pass(ctx, brinkTime+after); err != nil {
		return err
	}
	b.Kill()
	ukis, err := espOf(b.spec).List(ctx, "EFI/Linux")
	if err != nil {
		return err
	}
	if !slices.Contains(ukis, "edge_"+l.version+".efi") {
		return fmt.Errorf("the UKI of the version that ran is gone: %q", ukis)
	}
	written, err := vm.Used(b.spec.Disk, "edge-root-b")
	if err != nil {
		return err
	}
	named := slices.Contains(ukis, "edge_"+goodVersion+"+1.efi") // with its first sector, or without
	toTheEnd := a.saw(after, written > 0, named)
	of := b.spec
	if toTheEnd { // with a battery that has run wild as well
		if err := l.gone(ctx); err != nil {
			return err
		}
		of.Clock = time.Now().AddDate(10, 0, 0)
	}
	next, err := l.again(ctx, of)
	if err != nil {
		return err
	}
	defer next.end()
	version, slot, _, err := next.boots(ctx, 0)
	if err != nil {
		return err
	}
	t.Logf("cut after %5.2f s: the ESP has %s, the root %d MiB; version %s of slot %s boots", after.Seconds(), strings.Join(ukis, ", "), written>>20, version, slot)
	if version == goodVersion && slot == "b" && named {
		return nil // its last sector was written: the update was over, but for its word
	}
	if version != l.version || slot != "a" {
		return fmt.Errorf("version %s of slot %s boots", version, slot)
	}
	if !toTheEnd {
		return nil
	}
	return l.completes(ctx, t, next)
}

// completes waits until the box is up after a power cut, looks whether it is the same one
// and well, and runs the update again.
func (l *lane) completes(ctx context.Context, t *testing.T, b *box) error {
	ctx, cancel := within(ctx, 2*bootLimit)
	defer cancel()
	if err := errors.Join(b.announced(ctx), b.guest.await(ctx)); err != nil {
		return fmt.Errorf("%w%s", err, b.autopsy())
	}
	year, err := b.runs(ctx, "date +%Y")
	if err != nil || year != fmt.Sprint(b.spec.Clock.Year()) {
		return fmt.Errorf("the box has the year %q, %w", year, err)
	}
	if err := errors.Join(b.serves(ctx), b.sound(ctx, t), b.sameAs(ctx, l.well, 2)); err != nil {
		return err
	}
	if err := b.mountPayloads(ctx); err != nil {
		return err
	}
	if _, err := b.runs(ctx, stage()); err != nil {
		return fmt.Errorf("run the update again: %w", err)
	}
	mark := b.Console.Mark()
	if err := b.sync(ctx); err != nil {
		return err
	}
	if err := b.Reset(ctx); err != nil {
		return err
	}
	_, err = b.mustBoot(ctx, mark, goodVersion, "b")
	t.Logf("the same command has completed it: %s boots", goodVersion)
	return err
}
