package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/image/boot"
	"github.com/catchment-dev/edge/image/firewall"
	"github.com/catchment-dev/edge/image/slot"
	"github.com/catchment-dev/edge/image/verity"
)

// box is the appliance as the commands see it, so that tests can be another.
type box struct {
	root string // before every path: "/", but in tests
	// open finds the disk and mounts the EFI partition.
	open func() (*opened, error)
	// exec runs a program of the system.
	exec    func(ctx context.Context, name string, args ...string) ([]byte, error)
	sshPort uint16
	// xdp says why a link has no XDP program.
	xdp func(link string) error
	// firewall says whether the kernel has the table of the packet filter.
	firewall func() (bool, error)
	// get says why a request is not answered with 200.
	get func(ctx context.Context, url string) error
}

// opened is the disk while its slots are being written.
type opened struct {
	writer  *slot.Writer
	running slot.Slot
	room    slot.Room
	close   func() error
}

func thisBox() *box {
	return &box{root: "/", open: openDisk, exec: execute, sshPort: 22, xdp: xdpAttached, firewall: firewall.Applied, get: get}
}

func (b *box) path(name string) string { return filepath.Join(b.root, name) }

func (b *box) state() slot.State { return slot.State{Dir: b.path(slot.StateDir)} }

// lock keeps others from the slots.
func (b *box) lock(by string) (unlock func(), err error) {
	return slot.Lock(b.path(slot.RunDir+"/lock"), by)
}

// Where others leave what is read here.
const (
	setupResult = "/run/edge-setup/result.json"
	osRelease   = "/usr/lib/os-release"
	ukiFolder   = "/efi/" + slot.UKIFolder
)

// booted is which system this is.
type booted struct {
	version string
	slot    slot.Slot
	profile string // "" if it does not say
	arch    string
}

// booted reads what the initrd and the image say.
func (b *box) booted() (booted, error) {
	out := booted{arch: arch(), profile: b.osRelease("VARIANT_ID")}
	v, err := os.ReadFile(b.path(slot.BootedAs + "/version"))
	if errors.Is(err, os.ErrNotExist) {
		return out, b.bootedAlone(&out)
	}
	if err != nil {
		return out, fmt.Errorf("read version of this boot: %w", err)
	}
	out.version = strings.TrimSpace(string(v))
	if err := slot.CheckVersion(out.version); err != nil {
		return out, fmt.Errorf("read version of this boot: %w", err)
	}
	s, err := os.ReadFile(b.path(slot.BootedAs + "/slot"))
	if err != nil {
		return out, fmt.Errorf("read slot of this boot: %w", err)
	}
	if out.slot, err = slot.ParseSlot(strings.TrimSpace(string(s))); err != nil {
		return out, fmt.Errorf("read slot of this boot: %w", err)
	}
	return out, nil
}

// bootedAlone finds out behind an initrd that is not ours and leaves nothing: what the
// UKI is sealed with, and which partition is under /.
func (b *box) bootedAlone(out *booted) error {
	line, err := os.ReadFile(b.path("/proc/cmdline"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read version of this boot: %w", err)
	}
	words := map[string]string{}
	for _, w := range strings.Fields(string(line)) {
		if key, value, ok := strings.Cut(w, "="); ok {
			words[key] = value
		}
	}
	if words["edge.version"] == "" || words["roothash"] == "" {
		return errors.New("this system was not booted from an image of the appliance: on other systems, upgrade the package")
	}
	if err := slot.CheckVersion(words["edge.version"]); err != nil {
		return fmt.Errorf("read version of this boot: %w", err)
	}
	mounts, err := os.Open(b.path("/proc/self/mountinfo"))
	if err != nil {
		return fmt.Errorf("read slot of this boot: %w", err)
	}
	defer mounts.Close()
	d, err := slot.FindDisk(b.path("/sys"), b.path("/dev"), slot.DeviceAt(mounts, "/"))
	if err != nil {
		return fmt.Errorf("read slot of this boot: %w", err)
	}
	out.version, out.slot = words["edge.version"], d.Running
	return nil
}

// arch is that of this machine in the words of a manifest (systemd's).
func arch() string {
	if runtime.GOARCH == "amd64" {
		return "x86-64"
	}
	return runtime.GOARCH
}

// osRelease is a value of os-release(5), "" if it is not there.
func (b *box) osRelease(key string) string {
	f, err := os.Open(b.path(osRelease))
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), key+"="); ok {
			return strings.Trim(v, `"'`)
		}
	}
	return ""
}

// setup is what edge-setup has left; not there is a zero Setup.
func (b *box) setup() (s boot.Setup, err error) {
	text, err := os.ReadFile(b.path(setupResult))
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read result of edge-setup: %w", err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("read result of edge-setup: %s: %w", setupResult, err)
	}
	return s, nil
}

// ukis are those on the mounted EFI partition, which is only read.
func (b *box) ukis() ([]slot.UKI, error) {
	return (&slot.Writer{ESP: slot.Folder(b.path(ukiFolder))}).UKIs()
}

// openDisk finds the disk of this system and mounts its EFI partition.
func openDisk() (*opened, error) {
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil {
		return nil, fmt.Errorf("look at /: %w", err)
	}
	d, err := slot.FindDisk("/sys", "/dev", fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return nil, err
	}
	out := &opened{running: d.Running}
	for name, size := range map[string]*int64{
		slot.ESPName: &out.room.ESP, d.Running.Other().VerityName(): &out.room.Verity, d.Running.Other().RootName(): &out.room.Root,
	} {
		if *size, err = d.PartitionSize(name); err != nil {
			return nil, err
		}
	}
	esp, err := d.Device(slot.ESPName)
	if err != nil {
		return nil, err
	}
	at := slot.RunDir + "/esp"
	if out.close, err = slot.MountESP(esp, at); err != nil {
		return nil, err
	}
	_ = slot.RemoveSalvaged(at) // what is left is said by how much is free
	if out.room.ESPFree, err = slot.FreeSpace(at); err != nil {
		return nil, errors.Join(err, out.close())
	}
	out.writer = &slot.Writer{Partition: d.Partition, ESP: slot.Folder(filepath.Join(at, slot.UKIFolder)), RootHash: rootHash}
	return out, nil
}

// execute runs a program; its error has what it said.
func execute(ctx context.Context, name string, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return out, nil
}

// reboot asks systemd, which stops edgebgp first. If that cannot be done the caller
// stays up, and says so.
func (b *box) reboot(ctx context.Context) error {
	if _, err := b.exec(ctx, "systemctl", "reboot"); err != nil {
		return fmt.Errorf("reboot: %w", err)
	}
	return nil
}

// giveUp is reboot for a version that must not stay: what may be broken in it is what
// reboots. With --force the manager stops nobody, and with it twice nobody is asked.
func (b *box) giveUp(ctx context.Context) error {
	err := b.reboot(ctx)
	if err == nil {
		return nil
	}
	for _, args := range [][]string{{"reboot", "--force"}, {"reboot", "--force", "--force"}} {
		if _, again := b.exec(ctx, "systemctl", args...); again == nil {
			return nil
		} else {
			err = errors.Join(err, again)
		}
	}
	return err
}

// rootHash reads that of a verity partition.
func rootHash(r io.ReaderAt) (string, error) {
	a, err := verity.Read(r)
	return a.Root.String(), err
}
