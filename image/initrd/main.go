// Command initrd is process 1 of the image's initrd: it finds the root that the
// kernel command line names by its hash, has the kernel verify it, makes /var
// ready, and gives the machine to /sbin/init.
//
// It owns what happens between the kernel and systemd: modules, the table of
// partitions (grown to the disk, repaired from its backup), dm-verity, /var,
// the machine id, and the notes in /run/edge-initrd. It trusts the kernel
// command line, which is sealed in the signed UKI, and nothing else: a disk is
// ours if the hash of its tree is the one on that line, whatever its names and
// ids say. It never mounts a root that is not verified, never asks anybody and
// has no shell. Whatever goes wrong before the root is up is said on the console
// in plain words and ends in a panic, so that the machine resets and the boot
// loader counts a boot that failed. What goes wrong with /var does not: the box
// comes up with an empty one in memory and says so.
//
// Process: 1, before systemd.
//
// Files it leaves in /run/edge-initrd: slot ("a" or "b"), version, esp (the device of
// the EFI partition of this disk: another may have one of the same name and id), and
// notes, a key and a value a line: edge.disk (its device), edge.gpt (grown, repaired, not
// grown, not written, read-only), edge.var (formatted, repaired, full, volatile),
// edge.machine-id (new). What is as it was has no line; the last line of a key
// counts. edge.var=volatile says that /var is in memory. In
// /run/credentials/@initrd it leaves the credentials edge.* of the ESP.
package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/image/kmod"
)

// newRoot is where the root is mounted until it takes the place of the initrd.
const newRoot = "/sysroot"

func main() {
	c := newConsole()
	// Outside of process 1 this would change the machine that it runs on.
	if os.Getpid() != 1 {
		c.say(crit, "this is the first process of an initrd, not a command")
		os.Exit(2)
	}
	err := boot(c)
	c.say(crit, "%v", err)
	os.Exit(1) // the end of process 1 is a panic of the kernel
}

// boot goes through the whole boot. It returns only with an error.
func boot(c *console) error {
	if err := mountKernel(); err != nil {
		return err
	}
	c.attach()
	ensurePanicResets()
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return fmt.Errorf("read kernel command line: %w", err)
	}
	want, err := parseCmdline(string(line))
	if err != nil {
		return err
	}
	drivers, err := openDrivers(c)
	if err != nil {
		return err
	}
	drivers.load(func(m kmod.Module) bool { return m.Always })
	mountEFI()
	found, err := waitForRoot(c, drivers, want.root)
	if err != nil {
		return err
	}
	n := &notes{}
	n.add("edge.disk", "/dev/"+found.disk.name)
	if err := prepareDisk(c, found, n); err != nil {
		return err
	}
	if err := mountRoot(found, want.root); err != nil {
		return err
	}
	c.say(notice, "version %s slot %s verified", want.version, found.slot.name)
	onVar, varErr := varPartition(found) // asks /sys, which is about to move
	n.esp = espDevice(found)
	if err := moveKernelMounts(); err != nil {
		return err
	}
	passCredentials(c, stubCredentials(), newRoot+handedOn)
	prepareVar(c, onVar, varErr, n)
	if err := leaveIdentity(c, n); err != nil {
		return err
	}
	if err := n.write(newRoot+runDir, found.slot.name, want.version); err != nil {
		return err
	}
	return switchRoot()
}

// The times of the wait for the disk.
const (
	// diskDeadline covers RAID controllers that test their disks first.
	diskDeadline = 2 * time.Minute
	// bootDiskGrace is how long another disk with the same root has to stand
	// back for the one that the firmware booted from.
	bootDiskGrace = 10 * time.Second
	firstPause    = 20 * time.Millisecond
	longestPause  = 500 * time.Millisecond
	sayEvery      = 10 * time.Second
)

// waitForRoot loads drivers for what is there and looks at the disks, again and
// again, until one holds the root.
func waitForRoot(c *console, d *drivers, root rootHash) (found, error) {
	start, said, pause := time.Now(), time.Duration(0), firstPause
	var matched time.Time
	bootID := bootPartition()
	for {
		d.load(d.asked())
		disks := readDisks(bootID)
		waited := time.Since(start)
		grace := bootID != "" && (matched.IsZero() || time.Since(matched) < bootDiskGrace)
		f, err := choose(disks, root, grace)
		if err == nil {
			return f, nil
		}
		if matched.IsZero() && holds(disks, root) {
			matched = time.Now()
		}
		if waited > diskDeadline {
			return found{}, fmt.Errorf("%w (waited %v)", err, diskDeadline)
		}
		if waited-said > sayEvery {
			said = waited
			c.say(notice, "waiting for the disk: %v", err)
		}
		time.Sleep(pause)
		pause = min(2*pause, longestPause)
	}
}

// switchRoot frees what the initrd holds and puts the root in its place.
func switchRoot() error {
	// What is not removed is memory that nobody gets back.
	_ = os.RemoveAll("/modules")
	_ = os.RemoveAll("/.extra")
	_ = os.Remove("/init")
	if err := os.Chdir(newRoot); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("put root in place: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	// The words of the command line that the kernel did not know are ours.
	err := unix.Exec("/sbin/init", append([]string{"/sbin/init"}, os.Args[1:]...), os.Environ())
	return fmt.Errorf("start /sbin/init: %w", err)
}
