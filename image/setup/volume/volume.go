// Package volume finds the small FAT and ISO 9660 volumes by which an operator
// gives a box its configuration, and makes their files readable.
//
// It reads labels itself, so that it depends on no udev, and has the kernel read
// the files, from a mount that belongs to no tree of folders and that nobody else
// sees. It never writes to a device. edgectl runs it at boot.
package volume

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Box are the block devices of a box.
type Box struct {
	// Sys is /sys and Dev /dev on a box.
	Sys, Dev string
}

// Find returns the names of the devices whose file system has this label, in any
// case. A device that cannot be read, such as a drive without a medium, has none.
func (b Box) Find(label string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(b.Sys, "class/block"))
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	var out []string
	for _, e := range entries {
		if name := e.Name(); !pointless(name) {
			if v, err := b.look(name); err == nil && strings.EqualFold(v.Label, label) {
				out = append(out, name)
			}
		}
	}
	slices.SortFunc(out, func(x, y string) int { return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)) })
	return out, nil
}

// espName is the GPT name of the EFI partition of the image.
const espName = "edge-esp"

// ESP returns the EFI partition of the image, by what the kernel says of the
// partitions. If two disks have one it is that of the disk from which the system
// runs: something is made of one of its roots (dm-verity). Else it is anybody's
// guess, and none is taken.
func (b Box) ESP() (device string, ok bool) {
	all, err := filepath.Glob(filepath.Join(b.Sys, "class/block/*/uevent"))
	if err != nil {
		return "", false
	}
	var found, running []string
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil || !slices.Contains(strings.Split(string(text), "\n"), "PARTNAME="+espName) {
			continue
		}
		real, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			continue
		}
		found = append(found, filepath.Base(real))
		if used, err := filepath.Glob(filepath.Join(filepath.Dir(real), "*/holders/dm-*")); err == nil && len(used) > 0 {
			running = append(running, filepath.Base(real))
		}
	}
	if len(found) > 1 {
		found = running
	}
	if len(found) != 1 {
		return "", false
	}
	return found[0], true
}

// pointless says that a device is of no operator: a floppy drive takes seconds
// to say that it is empty, and the others are made by the running system.
func pointless(name string) bool {
	return slices.ContainsFunc([]string{"fd", "ram", "zram", "dm-", "md", "nbd"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

func (b Box) look(name string) (Volume, error) {
	if strings.ContainsAny(name, "/!") || name == ".." {
		return Volume{}, errors.New("it is no name of a device")
	}
	// A drive with an open tray must not be waited for.
	f, err := os.OpenFile(filepath.Join(b.Dev, name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Volume{}, err
	}
	defer f.Close()
	v, ok := Identify(f)
	if !ok {
		return Volume{}, errors.New("it holds neither FAT nor ISO 9660")
	}
	return v, nil
}

// Open makes the files of a device readable in dir until done is called.
func (b Box) Open(name string) (dir string, done func(), err error) {
	v, err := b.look(name)
	if err != nil {
		return "", nil, fmt.Errorf("open volume %s: %w", name, err)
	}
	f, err := mount(filepath.Join(b.Dev, name), v.Kind)
	if err != nil {
		return "", nil, fmt.Errorf("open volume %s: %w", name, err)
	}
	return fmt.Sprintf("/proc/self/fd/%d", f.Fd()), func() { f.Close() }, nil
}

// mount returns the root of a file system in a mount that has no place: it goes with
// the descriptor, also when the process is killed. The kernel has one state for all
// mounts of a device, so where it is mounted for writing already, as the EFI
// partition may be, only this mount is read-only.
func mount(device, kind string) (*os.File, error) {
	f, err := mountAs(device, kind, true)
	if errors.Is(err, unix.EBUSY) {
		return mountAs(device, kind, false)
	}
	return f, err
}

func mountAs(device, kind string, readOnly bool) (*os.File, error) {
	ctx, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("prepare file system %s: %w", kind, err)
	}
	defer unix.Close(ctx)
	err = unix.FsconfigSetString(ctx, "source", device)
	if err == nil && readOnly {
		err = unix.FsconfigSetFlag(ctx, "ro")
	}
	if err == nil {
		err = unix.FsconfigCreate(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("read file system %s: %w%s", kind, err, said(ctx))
	}
	const attrs = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSYMFOLLOW
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return nil, fmt.Errorf("open file system %s: %w", kind, err)
	}
	return os.NewFile(uintptr(fd), device), nil
}

// said is what the kernel adds to an error: the context of a mount is read for it.
func said(ctx int) string {
	b := make([]byte, 1024)
	n, err := unix.Read(ctx, b)
	if err != nil || n <= 2 {
		return ""
	}
	return ": " + strings.TrimSpace(string(b[2:n])) // the first two say how grave it is
}
