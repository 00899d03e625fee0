package image

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/vm"
)

// box is a machine of a site that was started.
type box struct {
	*site
	*vm.Machine
	spec vm.Spec
}

// healthy is a box that announced when it was saved.
type healthy struct {
	spec  vm.Spec
	state string
	// machineID is its own.
	machineID string
}

// diskSize is larger than the image: the rest goes to /var.
const diskSize = 6 << 30

// start starts a machine that was never started.
func (s *site) start(ctx context.Context, spec vm.Spec) (*box, error) {
	m, err := vm.Start(ctx, s.host(), spec)
	if err != nil {
		return nil, err
	}
	s.guest.forget(ctx)
	return &box{site: s, Machine: m, spec: spec}, nil
}

// again starts a machine from copies of the disk and the variables of another, which
// has ended.
func (s *site) again(ctx context.Context, of vm.Spec) (*box, error) {
	spec, err := s.machine(ctx, of.Disk, of.Vars)
	if err != nil {
		return nil, err
	}
	spec.CPUs, spec.Volumes, spec.Clock = of.CPUs, of.Volumes, of.Clock
	return s.start(ctx, spec)
}

// install is a machine of a new box: the image on a disk of its own.
func (s *site) install(ctx context.Context, image string) (vm.Spec, error) {
	spec, err := s.machine(ctx, image, vm.FirmwareVars)
	if err == nil {
		err = vm.Grow(spec.Disk, diskSize)
	}
	spec.CPUs = 1 // two machines run at once
	return spec, err
}

// freeze saves the box, which ends.
func (b *box) freeze(ctx context.Context) (*healthy, error) {
	id, err := b.guest.run(ctx, "cat /etc/machine-id")
	if err != nil {
		return nil, err
	}
	h := &healthy{spec: b.spec, state: b.spec.Dir + "/state", machineID: id}
	return h, b.Save(ctx, h.state)
}

// restore goes on from a healthy box, with copies of all it has. It may take itself to
// be connected still.
func (s *site) restore(ctx context.Context, h *healthy) (*box, error) {
	spec, err := s.machine(ctx, h.spec.Disk, h.spec.Vars)
	if err != nil {
		return nil, err
	}
	spec.CPUs, spec.Volumes, spec.Credentials = h.spec.CPUs, h.spec.Volumes, h.spec.Credentials
	m, err := vm.Restore(ctx, s.host(), spec, h.state)
	if err != nil {
		return nil, err
	}
	s.guest.forget(ctx)
	return &box{site: s, Machine: m, spec: spec}, nil
}

// resume is restore. When it returns the box announces, and takes commands.
func (s *site) resume(ctx context.Context, h *healthy) (*box, error) {
	ctx, cancel := within(ctx, 2*time.Minute)
	defer cancel()
	if err := s.gone(ctx); err != nil { // of the machine before: its session has to end
		return nil, err
	}
	b, err := s.restore(ctx, h)
	if err != nil {
		return nil, err
	}
	err = s.guest.await(ctx)
	if err == nil { // for it no time has passed since it was saved
		_, err = s.guest.run(ctx, fmt.Sprintf("date -s @%d", time.Now().Unix()))
	}
	if err == nil {
		err = b.announced(ctx)
	}
	if err != nil {
		b.Kill()
		return nil, fmt.Errorf("resume: %w", err)
	}
	return b, nil
}

// end ends the box and removes its disk.
func (b *box) end() {
	b.Kill()
	b.discard(b.spec)
}

// announced waits until the router leads both prefixes to the box.
func (b *box) announced(ctx context.Context) error {
	for _, p := range []netip.Prefix{lab.Prefix4, lab.Prefix6} {
		if err := b.Routers[routerName].Await(ctx, p, boxName); err != nil {
			return fmt.Errorf("%w; the console ends with:\n%s", err, b.Console.Tail(30))
		}
	}
	return nil
}

// gone has the router drop its session with a machine that was cut off, which it
// would do by itself when its hold time is over.
func (s *site) gone(ctx context.Context) error {
	r := s.Routers[routerName]
	if _, err := r.Ask(ctx, fmt.Sprintf("restart 'box-%s'", boxName)); err != nil {
		return err
	}
	return lab.Until(ctx, "the session of the machine before has ended", func() error {
		got, err := r.Session(ctx, s.addr())
		if err == nil && got.Established {
			err = errors.New("it is established")
		}
		return err
	})
}

// verified is what the initrd says.
var verified = regexp.MustCompile(`edge-initrd: version (\S+) slot ([ab]) verified`)

// boots waits until the initrd has verified a root, and says which, and what comes
// after that in the console.
func (b *box) boots(ctx context.Context, from vm.Mark) (version, slot string, behind vm.Mark, err error) {
	ctx, cancel := within(ctx, firmLimit)
	defer cancel()
	m, behind, err := b.Console.Await(ctx, from, verified)
	if err != nil {
		return "", "", from, err
	}
	return m[1], m[2], behind, nil
}

// mustBoot is boots, and the version and slot have to be these.
func (b *box) mustBoot(ctx context.Context, from vm.Mark, version, slot string) (vm.Mark, error) {
	v, s, behind, err := b.boots(ctx, from)
	if err == nil && (v != version || s != slot) {
		err = fmt.Errorf("version %s of slot %s boots, want %s of %s", v, s, version, slot)
	}
	return behind, err
}

// runs runs a command that has to succeed.
func (b *box) runs(ctx context.Context, command string) (string, error) {
	ctx, cancel := within(ctx, 2*reachLimit)
	defer cancel()
	return b.guest.run(ctx, command)
}

// refuses runs a command that has to fail, and to say something.
func (b *box) refuses(ctx context.Context, command string, why *regexp.Regexp) error {
	out, err := b.runs(ctx, command+" 2>&1")
	if err == nil {
		return fmt.Errorf("%s succeeded: %s", command, out)
	}
	if !why.MatchString(out) {
		return fmt.Errorf("%s says %q (%w), want it to match %q", command, out, err, why)
	}
	return nil
}

// holds waits until what a command prints matches.
func (b *box) holds(ctx context.Context, command string, want *regexp.Regexp) (string, error) {
	ctx, cancel := within(ctx, reachLimit)
	defer cancel()
	var out string
	err := lab.UntilEvery(ctx, time.Second, fmt.Sprintf("%s shows %q", command, want), func() (err error) {
		if out, err = b.guest.run(ctx, command); err == nil && !want.MatchString(out) {
			err = fmt.Errorf("it shows %q", out)
		}
		return err
	})
	return out, err
}

// mountPayloads mounts the volume of payloads.
func (b *box) mountPayloads(ctx context.Context) error {
	_, err := b.runs(ctx, "mkdir -p "+payloadDir+" && mount -o ro LABEL="+payloadLabel+" "+payloadDir)
	return err
}

const payloadDir = "/run/payloads"

// esp lists what the EFI partition has for the boot loader, and its free space.
func (b *box) esp(ctx context.Context) (string, error) {
	return b.runs(ctx, "ls -1s /efi/EFI/Linux && df --output=avail /efi | tail -1")
}

// reboots gives an order of edgectl that ends with a reboot: that the connection breaks
// is how it ends.
func (b *box) reboots(ctx context.Context, order string) error {
	ctx, cancel := within(ctx, 4*time.Minute)
	defer cancel()
	out, err := b.guest.run(ctx, "edgectl "+order+" 2>&1")
	if strings.Contains(out, "rebooting") {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("edgectl %s: %w: %s", order, err, out)
	}
	return err
}

// autopsy is what a box says of itself, for the message of a failure; "" if it does not
// answer.
func (b *box) autopsy() string {
	ctx, cancel := within(context.Background(), reachLimit)
	defer cancel()
	out, err := b.guest.run(ctx, "edgectl status; systemctl --failed --no-legend --plain; journalctl -b -p warning --no-pager | tail -40; journalctl -b --no-pager -u edged -u edgebgp -u edgeproxy -o cat | tail -40")
	if err != nil && out == "" {
		return ""
	}
	return "\nthe box says:\n" + out
}
