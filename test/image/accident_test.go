package image

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/test/vm"
)

// espName is the partition of the boot loader, espOf that of a disk that is not in use.
const espName = "edge-esp"

func espOf(s vm.Spec) vm.FAT { return vm.FAT{Disk: s.Disk, Partition: espName} }

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
	if s, ok := pathOf(l.Routers[routerName], boxName); !ok || s != pathGone {
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
