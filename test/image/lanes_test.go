package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge/test/lab"
)

// lane is what one machine after the other goes through. Two lanes run at once: an
// emulated machine uses one core.
type lane struct {
	*site
	built    built
	payloads *payloads
	server   *server
	report   *report
	// version is what the image has.
	version string
	// well is the box that announces, from which most parts go on; nil before it does.
	// staged is that box once the good version is in its other slot, and stagingTook
	// how long that took; see stagedBox.
	well, staged *healthy
	stagingTook  time.Duration
}

// part is one thing that happens to a machine.
type part struct {
	name string
	run  func(context.Context, *testing.T, *lane) error
	kind kind
}

// kind is when a part is run, and what depends on it.
type kind int

const (
	usual  kind = iota
	first       // all the rest makes no sense without it
	onWish      // with -long
)

// updates are what is done on purpose, and accidents are not, as far as that makes two
// lanes of the same length.
func updates() []part {
	return []part{
		{"a new box with a FAT volume comes up and announces", firstBoot, first},
		{"it reboots: permit, drain, withdrawal", rebootBox, usual},
		{"an update under traffic", updateUnderTraffic, usual},
		{"an update that panics", breaks(faults()[0]), usual},
		{"an update whose edged crashes", breaks(faults()[1]), usual},
		{"an update that cannot read the configuration", breaks(faults()[2]), usual},
		{"poweroff: permit, drain, withdrawal", powerOff, usual},
		{"a wrong configuration: the rescue state", rescue, usual},
		{"a root that was tampered with", tamperedRoot, usual},
		{"Secure Boot", secureBoot, usual},
	}
}

func accidents() []part {
	return []part{
		{"a new box with a configuration in SMBIOS comes up and announces", firstBootSMBIOS, first},
		{"configurations that are confirmed, and that are not", changes, usual},
		{"a full disk", fullDisk, usual},
		{"signatures and sums that are wrong", wrongSignatures, usual},
		{"the power fails during an update; the clock is 10 years ahead", powerCuts, usual},
		{"an update without BGP", breaks(faults()[3]), usual},
		{"an update that fills the disk", breaks(faults()[4]), usual},
		{"an update that nobody judges", breaks(faults()[5]), onWish},
	}
}

// TestImage is all of it.
func TestImage(t *testing.T) {
	t.Parallel()
	b := findBuilt(t)
	dir, bin, machine := t.TempDir(), t.TempDir(), t.TempDir()
	var p *payloads
	g, ctx := errgroup.WithContext(t.Context())
	g.Go(func() error { return lab.Build(ctx, bin, false) })
	g.Go(func() error { return makeQEMU(ctx, machine) })
	g.Go(func() (err error) {
		start := time.Now()
		p, err = newPayloads(ctx, b, dir)
		t.Logf("%d more versions of the image were made in %.0f s", len(faults())+1, time.Since(start).Seconds())
		return err
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	measured := &report{}
	t.Run("lanes", func(t *testing.T) {
		for name, parts := range map[string][]part{"updates": updates(), "accidents": accidents()} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				l := newLane(t, b, p, newSite(t.Context(), t, bin, filepath.Join(machine, "qemu")))
				l.report = measured
				l.runs(t, parts)
			})
		}
	})
	if err := measured.write(b); err != nil {
		t.Error(err)
	}
}

func newLane(t *testing.T, b built, p *payloads, s *site) *lane {
	t.Helper()
	l := &lane{site: s, built: b, payloads: p, version: b.version}
	var err error
	if l.server, err = p.serve(l.host(), gateway, l.Dir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.server.close() })
	return l
}

// runs goes through parts. One that fails leaves nothing that the next could mind,
// since each has a machine of its own.
func (l *lane) runs(t *testing.T, parts []part) {
	for _, p := range parts {
		if p.kind == onWish && !*long {
			continue
		}
		start := time.Now()
		ok := t.Run(p.name, func(t *testing.T) {
			if err := p.run(t.Context(), t, l); err != nil {
				t.Errorf("%v\n%s", err, l.Logs(15))
			}
		})
		t.Logf("%4.0f s  %s", time.Since(start).Seconds(), p.name)
		if !ok && p.kind == first {
			return
		}
	}
}

// gateway is the router as the machine sees it.
const gateway = "10.1.0.1"

// tree is the configuration, with the certificate of the server of updates.
func (l *lane) tree() (map[string]string, error) {
	tree, err := l.configuration()
	if err != nil {
		return nil, err
	}
	cert, err := os.ReadFile(l.server.cert)
	tree["secrets/updates.crt"] = string(cert)
	return tree, err
}

// overHTTPS is what makes edgectl upgrade fetch a version from the server.
func (l *lane) overHTTPS(version string) string {
	return fmt.Sprintf("--ca /etc/edge/secrets/updates.crt %s/%s", l.server.url, version)
}

// from is what makes edgectl upgrade take a version from the volume.
func from(version string) string { return payloadDir + "/" + version }

// withBox resumes the box that announces, runs f, and ends it.
func (l *lane) withBox(ctx context.Context, f func(*box) error) error {
	if l.well == nil {
		return errors.New("there is no box that announces")
	}
	return l.with(ctx, l.well, f)
}

// withStaged is withBox with the good version in the other slot.
func (l *lane) withStaged(ctx context.Context, f func(*box) error) error {
	h, err := l.stagedBox(ctx)
	if err != nil {
		return err
	}
	return l.with(ctx, h, f)
}

func (l *lane) with(ctx context.Context, h *healthy, f func(*box) error) error {
	start := time.Now()
	b, err := l.resume(ctx, h)
	if err != nil {
		return err
	}
	defer b.end()
	l.t.Logf("a box that announces is there after %.1f s", time.Since(start).Seconds())
	if err := f(b); err != nil {
		return fmt.Errorf("%w\nthe console ends with:\n%s%s", err, b.Console.Tail(40), b.autopsy())
	}
	return nil
}

// stage is the command that puts the good version into the other slot, from the volume.
func stage() string { return "edgectl upgrade --stage-only --tries 1 " + from(goodVersion) }

// stagedBox makes it the first time. To write a slot takes an emulated machine half a
// minute; versions that share a root with the good one then need no more than their UKI.
func (l *lane) stagedBox(ctx context.Context) (*healthy, error) {
	if l.staged != nil {
		return l.staged, nil
	}
	if l.well == nil {
		return nil, errors.New("there is no box that announces")
	}
	b, err := l.resume(ctx, l.well)
	if err != nil {
		return nil, err
	}
	defer b.Kill()
	if err := b.mountPayloads(ctx); err != nil {
		return nil, err
	}
	start := time.Now()
	if _, err := b.runs(ctx, stage()); err != nil {
		return nil, err
	}
	l.stagingTook = time.Since(start)
	l.t.Logf("an update that is not disturbed is staged in %.1f s", l.stagingTook.Seconds())
	if err := b.sync(ctx); err != nil {
		return nil, err
	}
	l.staged, err = b.freeze(ctx)
	return l.staged, err
}
