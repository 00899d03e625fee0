package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/image/verity"
)

// mountKernel mounts what the kernel shows of itself.
func mountKernel() error {
	const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, m := range []struct {
		kind, where, data string
		flags             uintptr
	}{
		{"devtmpfs", "/dev", "mode=0755", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"proc", "/proc", "", quiet},
		{"sysfs", "/sys", "", quiet},
	} {
		if err := unix.Mount(m.kind, m.where, m.kind, m.flags, m.data); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.where, err)
		}
	}
	return nil
}

// mountEFI mounts the variables of the firmware, where there is one that has
// some. Without them the boot goes on.
func mountEFI() {
	const where = "/sys/firmware/efi/efivars"
	if _, err := os.Stat(where); err == nil {
		_ = unix.Mount("efivarfs", where, "efivarfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
}

// mountRoot has the kernel verify the root and mounts it. The name and the link
// in /dev/mapper are those that systemd's own initrd would have made.
func mountRoot(f found, root rootHash) error {
	data, err := kernelPartition(f, f.slot.root)
	if err != nil {
		return err
	}
	hashes, err := kernelPartition(f, f.slot.hashes)
	if err != nil {
		return err
	}
	control, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open device mapper (is dm_verity missing from the initrd?): %w", err)
	}
	defer control.Close()
	device := verity.Device{Name: "root", Data: data.device, Hashes: hashes.device, Super: f.slot.area.Superblock, Root: root}
	number, err := device.Activate(control)
	if err != nil {
		return err
	}
	node := fmt.Sprintf("dm-%d", number)
	if err := os.Symlink("../"+node, "/dev/mapper/root"); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("link device of the root: %w", err)
	}
	if err := unix.Mount("/dev/"+node, newRoot, "erofs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount root (erofs on slot %s of %s): %w", f.slot.name, f.disk.name, err)
	}
	return nil
}

// moveKernelMounts moves them into the root and mounts /run: what runs in the
// root from now on finds them there, and so does systemd.
func moveKernelMounts() error {
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		if err := unix.Mount(dir, newRoot+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s into the root: %w", dir, err)
		}
	}
	// What is mounted from now on is shown by the name that it is mounted from, and
	// /sysroot/dev is none that anybody finds later.
	if err := errors.Join(os.RemoveAll("/dev"), os.Symlink(newRoot+"/dev", "/dev")); err != nil {
		return fmt.Errorf("point /dev into the root: %w", err)
	}
	if err := unix.Mount("tmpfs", newRoot+"/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=20%"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	return nil
}
