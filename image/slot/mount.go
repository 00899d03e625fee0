package slot

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// MountESP mounts the EFI partition at dir, writable, until unmount. Where it is
// mounted read-only elsewhere that has to become writable too, as the two are one
// file system; unmount puts that back. The caller holds the Lock.
func MountESP(device, dir string) (unmount func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("mount EFI partition: %w", err)
	}
	// What a process that was killed has left.
	if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("unmount %s: %w", dir, err)
	}
	const flags = unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOEXEC
	mount := func() error { return unix.Mount(device, dir, "vfat", flags, "umask=0077") }
	restore := func() error { return nil }
	if err = mount(); errors.Is(err, unix.EBUSY) {
		if restore, err = makeWritable(device); err != nil {
			return nil, err
		}
		err = mount()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mount EFI partition %s: %w", device, err), restore())
	}
	return func() error { return errors.Join(unix.Unmount(dir, 0), restore()) }, nil
}

// RemoveSalvaged removes from a mounted EFI partition what fsck.vfat -a has made of clusters
// that no name had any more, which a power cut leaves while a UKI is removed: a file as large
// as the UKI, each time one more, until no upgrade fits.
func RemoveSalvaged(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("remove what fsck has salvaged: %w", err)
	}
	for _, e := range entries {
		if ok, _ := path.Match("FSCK[0-9][0-9][0-9][0-9].REC", strings.ToUpper(e.Name())); ok && e.Type().IsRegular() {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// makeWritable remounts where a device is mounted.
func makeWritable(device string) (restore func() error, err error) {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return nil, fmt.Errorf("look at %s: %w", device, err)
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	defer f.Close()
	at, flags, ok := findMount(f, fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	if !ok {
		return nil, fmt.Errorf("%s is in use, but mounted nowhere that this process sees", device)
	}
	remount := func(extra uintptr) error {
		if err := unix.Mount("", at, "", unix.MS_REMOUNT|flags|extra, ""); err != nil {
			return fmt.Errorf("remount %s: %w", at, err)
		}
		return nil
	}
	if err := remount(0); err != nil {
		return nil, err
	}
	return func() error { return remount(unix.MS_RDONLY) }, nil
}

// findMount returns the last mount of a device in a mountinfo (proc(5)), and its
// flags other than ro.
func findMount(mountinfo io.Reader, device string) (at string, flags uintptr, ok bool) {
	for s := bufio.NewScanner(mountinfo); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 6 || f[2] != device {
			continue
		}
		at, flags, ok = unescape(f[4]), 0, true
		for _, o := range strings.Split(f[5], ",") {
			switch o {
			case "nosuid":
				flags |= unix.MS_NOSUID
			case "nodev":
				flags |= unix.MS_NODEV
			case "noexec":
				flags |= unix.MS_NOEXEC
			}
		}
	}
	return at, flags, ok
}

// DeviceAt is the number, "MAJOR:MINOR", of what a mountinfo (proc(5)) has at a folder:
// the last of several, "" if there is none.
func DeviceAt(mountinfo io.Reader, folder string) (device string) {
	for s := bufio.NewScanner(mountinfo); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) >= 6 && unescape(f[4]) == folder {
			device = f[2]
		}
	}
	return device
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
