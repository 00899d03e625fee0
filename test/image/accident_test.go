package image

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/vm"
)

// espName is the partition of the boot loader, espOf that of a disk that is not in use.
const espName = "edge-esp"

func espOf(s vm.Spec) vm.FAT { return vm.FAT{Disk: s.Disk, Partition: espName} }

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
	for i := range *kills {
		after := time.Duration(random.Int64N(int64(l.stagingTook)))
		if i == 0 {
			after = l.stagingTook*3/10 + after/2 // so that there is something to be completed
		}
		// One is followed to the end, which takes a whole boot; image/slot follows each
		// that can be told apart, on files.
		if err := l.cutPower(ctx, t, brink, brinkTime+after, i == 0); err != nil {
			return fmt.Errorf("cut %d, after %.2f s (seed %d): %w", i+1, after.Seconds(), s, err)
		}
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

func (l *lane) cutPower(ctx context.Context, t *testing.T, brink *healthy, after time.Duration, toTheEnd bool) error {
	b, err := l.restore(ctx, brink)
	if err != nil {
		return err
	}
	defer b.end()
	if err := pass(ctx, after); err != nil {
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
	of := b.spec
	if toTheEnd { // with a battery that has run wild as well
		if written == 0 {
			return errors.New("nothing of the update was written")
		}
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
	if version == goodVersion && slot == "b" && slices.Contains(ukis, "edge_"+goodVersion+"+1.efi") {
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

// tamperedRoot changes the root of a version that is staged: the kernel has to notice,
// and the box to come back.
func tamperedRoot(ctx context.Context, t *testing.T, l *lane) error {
	staged, err := l.stagedBox(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := within(ctx, 2*firmLimit)
	defer cancel()
	spec, err := l.machine(ctx, staged.spec.Disk, staged.spec.Vars)
	if err != nil {
		return err
	}
	spec.CPUs = 1
	// Behind the superblock, which alone is read before systemd starts.
	if err := vm.Spoil(spec.Disk, "edge-root-b", 4<<20, 64<<20); err != nil {
		return err
	}
	b, err := l.start(ctx, spec)
	if err != nil {
		return err
	}
	defer b.end()
	mark, err := b.mustBoot(ctx, 0, goodVersion, "b")
	if err != nil {
		return err
	}
	if _, mark, err = b.Console.Await(ctx, mark, regexp.MustCompile(`Kernel panic.*corrupted`)); err != nil {
		return err
	}
	if _, err := b.mustBoot(ctx, mark, l.version, "a"); err != nil {
		return err
	}
	t.Logf("the tampered root panics, and %s boots", l.version)
	return nil
}

// The rescue state, as the manual has it.
const (
	rescueAddr     = "169.254.77.1"
	rescuePassword = "a password for the serial line"
)

// rescue is a new box whose configuration is wrong: it can be reached by ssh at the
// rescue address and by the serial line, shows what is wrong, and announces nothing.
func rescue(ctx context.Context, t *testing.T, l *lane) error {
	ctx, cancel := within(ctx, bootLimit)
	defer cancel()
	tree, err := l.tree()
	if err != nil {
		return err
	}
	tree["edge.yaml"] = strings.Replace(tree["edge.yaml"], "lease: 5s", "lease: 5s\n    no_such_key: 1", 1)
	if tree["password"], err = hashOf(ctx, rescuePassword); err != nil {
		return err
	}
	cd := filepath.Join(l.Dir(), "wrong.iso")
	if err := vm.Volume(ctx, cd, vm.KindISO, "EDGECFG", tree); err != nil {
		return err
	}
	spec, err := l.install(ctx, l.built.raw)
	if err != nil {
		return err
	}
	spec.Volumes = []string{cd}
	b, err := l.start(ctx, spec)
	if err != nil {
		return err
	}
	defer b.end()
	if _, _, err := b.Console.Await(ctx, 0, regexp.MustCompile(`no_such_key`)); err != nil {
		return err
	}
	if err := b.rescuedBySSH(ctx); err != nil {
		return err
	}
	if err := b.rescuedBySerial(ctx); err != nil {
		return err
	}
	if s, ok := pathOf(l.Routers[routerName]); !ok || s != pathGone {
		return fmt.Errorf("the router has the path: %q, %v", s, ok)
	}
	t.Log("reached by ssh at " + rescueAddr + " and by the serial line")
	return nil
}

func (b *box) rescuedBySSH(ctx context.Context) error {
	if err := addRescueNet(b.host()); err != nil {
		return err
	}
	g := b.guest.at(rescueAddr)
	if err := g.await(ctx); err != nil {
		return err
	}
	defer g.forget(ctx)
	out, err := g.run(ctx, "cat /run/edge-setup/result.json; systemctl is-active edged edgebgp edgeproxy")
	if !strings.Contains(out, `"rescue"`) || !strings.Contains(out, "no_such_key") || !strings.HasSuffix(out, "inactive\ninactive\ninactive") {
		return fmt.Errorf("in the rescue state the box says %q, %w", out, err)
	}
	return nil
}

func (b *box) rescuedBySerial(ctx context.Context) error {
	for _, step := range []struct{ keys, answer string }{
		{"\r", `login:`}, {"root\r", `Password:`}, {rescuePassword + "\r", `# $`}, {"echo it is $((6*7))\r", `(?m)^it is 42$`},
	} {
		mark := b.Console.Mark()
		if err := b.Type(step.keys); err != nil {
			return err
		}
		if _, _, err := b.Console.Await(ctx, mark, regexp.MustCompile(step.answer)); err != nil {
			return err
		}
	}
	return nil
}

// secureBoot has the firmware take the keys from the image: what was signed boots, and
// what was changed after that does not.
func secureBoot(ctx context.Context, t *testing.T, l *lane) error {
	ctx, cancel := within(ctx, bootLimit)
	defer cancel()
	spec, err := l.install(ctx, l.built.raw)
	if err != nil {
		return err
	}
	spec.SecureBoot = true
	b, err := l.start(ctx, spec)
	if err != nil {
		return err
	}
	defer b.end()
	if _, err := b.mustBoot(ctx, 0, l.version, "a"); err != nil {
		return err
	}
	if b.Resets() == 0 {
		return errors.New("the machine boots without a reset: the keys were not enrolled")
	}
	b.Kill()
	uki := "EFI/Linux/edge_" + l.version + ".efi"
	if err := changeUKI(ctx, b.spec, uki); err != nil {
		return err
	}
	changed, err := l.startSecure(ctx, b.spec)
	if err != nil {
		return err
	}
	defer changed.end()
	refused := regexp.MustCompile(`(?i)security violation|access denied|security policy|verification failed`)
	m, _, err := changed.Console.Await(ctx, 0, regexp.MustCompile(refused.String()+"|"+verified.String()))
	if err != nil {
		return err
	}
	if !refused.MatchString(m[0]) {
		return fmt.Errorf("a UKI that was changed boots: %q", m[0])
	}
	t.Logf("with keys, what is signed boots; what was changed gets %q", m[0])
	return nil
}

func (s *site) startSecure(ctx context.Context, of vm.Spec) (*box, error) {
	spec, err := s.machine(ctx, of.Disk, of.Vars)
	if err != nil {
		return nil, err
	}
	spec.CPUs, spec.SecureBoot = 1, true
	return s.start(ctx, spec)
}
