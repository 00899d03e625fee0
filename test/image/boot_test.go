package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/vm"
)

// firstBoot is a new box whose configuration is on a stick.
func firstBoot(ctx context.Context, t *testing.T, l *lane) error {
	tree, err := l.tree()
	if err != nil {
		return err
	}
	stick := filepath.Join(l.Dir(), "stick.img")
	if err := vm.Volume(ctx, stick, vm.KindFAT, "EDGECFG", tree); err != nil {
		return err
	}
	return l.comesUp(ctx, t, func(s *vm.Spec) { s.Volumes = []string{stick, l.payloads.volume} })
}

// firstBootSMBIOS is one that gets it from what runs the machine.
func firstBootSMBIOS(ctx context.Context, t *testing.T, l *lane) error {
	tree, err := l.tree()
	if err != nil {
		return err
	}
	bundle, err := tarOf(tree)
	if err != nil {
		return err
	}
	return l.comesUp(ctx, t, func(s *vm.Spec) {
		s.Volumes, s.Credentials = []string{l.payloads.volume}, map[string]string{"edge.bundle": bundle}
	})
}

func tarOf(tree map[string]string) (string, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(tree[name]))})
		if err == nil {
			_, err = w.Write([]byte(tree[name]))
		}
		if err != nil {
			return "", fmt.Errorf("make bundle: %w", err)
		}
	}
	return b.String(), w.Close()
}

var saysAnnouncing = regexp.MustCompile(`(?i)announcing`)

// comesUp boots a new box from nothing until it announces and serves, looks at it, and
// keeps it for the parts to come.
func (l *lane) comesUp(ctx context.Context, t *testing.T, edit func(*vm.Spec)) error {
	ctx, cancel := within(ctx, bootLimit)
	defer cancel()
	spec, err := l.install(ctx, l.built.raw)
	if err != nil {
		return err
	}
	edit(&spec)
	start := time.Now()
	b, err := l.start(ctx, spec)
	if err != nil {
		return err
	}
	defer b.Kill()
	if _, err := b.mustBoot(ctx, 0, l.version, "a"); err != nil {
		return err
	}
	t.Logf("%5.1f s  the initrd has verified the root", time.Since(start).Seconds())
	if err := b.announced(ctx); err != nil {
		return fmt.Errorf("%w%s", err, b.autopsy())
	}
	took := time.Since(start).Seconds()
	t.Logf("%5.1f s  the router has both prefixes", took)
	if _, _, err := b.Console.Await(ctx, 0, saysAnnouncing); err != nil {
		return err
	}
	t.Logf("%5.1f s  the console says that it announces", time.Since(start).Seconds())
	l.report.add("boot/from the firmware until announced, "+l.t.Name(), took, "s", 60)
	if err := b.guest.await(ctx); err != nil {
		return err
	}
	t.Logf("%5.1f s  ssh", time.Since(start).Seconds())
	if err := b.serves(ctx); err != nil {
		return err
	}
	if err := b.sound(ctx, t); err != nil {
		return err
	}
	if err := b.sync(ctx); err != nil {
		return err
	}
	l.well, err = b.freeze(ctx)
	return err
}

// serves asks through the VIP, and looks at how the packets came in.
func (b *box) serves(ctx context.Context) error {
	client := b.Clients[clientName]
	return lab.Until(ctx, "the box answers through the VIP", func() error {
		try, cancel := within(ctx, 10*time.Second)
		defer cancel()
		for _, way := range []lab.Way{{}, {IPv6: true}} {
			got, err := client.Get(try, webURL, way)
			if err != nil {
				return err
			}
			if got.Box != boxName || got.Region != "east" {
				return fmt.Errorf("%+v answers", got)
			}
		}
		return nil
	})
}

// sound looks for what is wrong with a box that announces.
func (b *box) sound(ctx context.Context, t *testing.T) error {
	for _, c := range []struct {
		what, command string
		want          *regexp.Regexp
	}{
		{"XDP runs in the driver", "ip -o link show " + uplinkName, regexp.MustCompile(`\bxdp\b.*prog/xdp id|\bxdp/id`)},
		{"no unit has failed", "systemctl --failed --no-legend --plain | cat", regexp.MustCompile(`^$`)},
		{"nobody writes what is read-only", "journalctl -b --no-pager -o cat | grep -E 'Read-only file system|read-only file system|EROFS' | head -5", regexp.MustCompile(`^$`)},
		{"the boot is good", "cat /run/edge-image/metrics.prom", regexp.MustCompile(`(?m)^edge_boot_good 1$`)},
		{"a watchdog runs", "cat /sys/class/watchdog/*/state", regexp.MustCompile(`(?m)^active$`)},
		{"systemd is content", "systemctl is-system-running --wait", regexp.MustCompile(`^running$`)},
		{"/var is on the disk, and large", "findmnt -no SOURCE,SIZE /var", regexp.MustCompile(`/dev/vd[a-z]6\s+[34]`)},
	} {
		if out, err := b.holds(ctx, c.command, c.want); err != nil {
			return fmt.Errorf("%s: %w: %s", c.what, err, out)
		}
	}
	return b.exposure(ctx, t)
}

var exposureOf = regexp.MustCompile(`Overall exposure level for (\S+)\.service: (\S+)`)

// exposure prints how much of the system each daemon can reach, by systemd's count.
func (b *box) exposure(ctx context.Context, t *testing.T) error {
	out, err := b.runs(ctx, "systemd-analyze security --no-pager edged edgebgp edgeproxy | grep Overall")
	if err != nil {
		return err
	}
	all := exposureOf.FindAllStringSubmatch(out, -1)
	if len(all) != 3 {
		return fmt.Errorf("three daemons have an exposure: %s", out)
	}
	for _, m := range all {
		t.Logf("exposure of %s: %s", m[1], m[2])
	}
	return nil
}

func (b *box) sync(ctx context.Context) error {
	_, err := b.runs(ctx, "sync")
	return err
}

// rebootBox has the box restart itself. Whole boots after it are those of the update.
func rebootBox(ctx context.Context, t *testing.T, l *lane) error {
	return l.withBox(ctx, func(b *box) error {
		mark := b.Console.Mark()
		if err := b.leaves(ctx, t, "systemctl reboot", func(ctx context.Context) error {
			return lab.Until(ctx, "the machine resets", func() error {
				if b.Resets() == 0 {
					return errors.New("it has not")
				}
				return nil
			})
		}); err != nil {
			return err
		}
		_, err := b.mustBoot(ctx, mark, l.version, "a")
		return err
	})
}

// sameAs looks whether the box is the one that it was, and remembers all of its boots:
// ssh has checked the host key.
func (b *box) sameAs(ctx context.Context, h *healthy, boots int) error {
	id, err := b.runs(ctx, "cat /etc/machine-id")
	if err != nil {
		return err
	}
	if id != h.machineID || len(id) != 32 {
		return fmt.Errorf("the machine id was %q and is %q", h.machineID, id)
	}
	got, err := b.runs(ctx, "journalctl --list-boots --no-pager -q | wc -l")
	if err != nil || strings.TrimSpace(got) != strconv.Itoa(boots) {
		return fmt.Errorf("the journal has %s boots (%w), want %d", got, err, boots)
	}
	return nil
}
