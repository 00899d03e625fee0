package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// prepareVar mounts /var from its partition, with a file system that is made if
// there is none and checked if there is one. If that can't be, /var is empty and
// in memory: the box comes up, in rescue, and says so. err is why the partition
// is not known.
func prepareVar(c *console, p partition, err error, n *notes) {
	if err == nil {
		err = mountVar(c, p, n)
	}
	if err == nil {
		return
	}
	c.say(crit, "/var can't be used, it is empty and in memory: %v", err)
	n.add("edge.var", "volatile")
	_ = unix.Unmount(newRoot+"/var", unix.MNT_DETACH) // it may be what is wrong
	if err := unix.Mount("tmpfs", newRoot+"/var", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=50%"); err != nil {
		c.say(crit, "mount an empty /var: %v", err)
	}
}

// varPartition is the partition of /var on the disk of the root.
func varPartition(f found) (partition, error) {
	p, err := f.disk.table.Find(varName)
	if err != nil {
		return partition{}, err
	}
	return kernelPartition(f, p)
}

func mountVar(c *console, p partition, n *notes) error {
	device := "/dev/" + p.node
	what, err := probeVar(newRoot + device)
	if err != nil {
		return err
	}
	if what == varForeign {
		c.say(warn, "%s holds something that is no ext4 file system: it is formatted", device)
	}
	if err := makeOrCheck(c, device, what, n); err != nil {
		return err
	}
	if err := unix.Mount(newRoot+device, newRoot+"/var", "ext4", unix.MS_NODEV|unix.MS_NOSUID, ""); err != nil {
		return fmt.Errorf("mount %s on /var: %w", device, err)
	}
	if err := growVar(p.length); err != nil {
		c.say(warn, "grow /var to %d bytes: %v", p.length, err)
	}
	return checkWritable()
}

// varState is what the partition of /var holds.
type varState int

const (
	varEmpty   varState = iota // zeros, as in the image
	varExt4                    // a file system
	varDamaged                 // one whose beginning is lost
	varForeign                 // anything else
)

// The ext4 superblock (Documentation/filesystems/ext4/super.rst of the kernel)
// is 1024 bytes into the file system. The first backup is at the beginning of
// block group 1, after 32768 blocks of the size that makeOrCheck makes. A file
// system of less than 128 MiB has none.
const (
	superAt     = 1024
	superMagic  = 56
	blockSize   = 4096
	backupBlock = 32768
	emptyLength = 1 << 20 // bytes of zeros that are believed to be an empty partition
)

func probeVar(device string) (varState, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return probe(f)
}

// probe says what a partition holds. Zeros at its beginning are the image's:
// the backup of an older file system behind them is of no account, or a disk
// that was written anew would get remains of what was on it. Only a beginning
// that is neither zeros nor ext4 is worth a look at the backup.
func probe(r io.ReaderAt) (varState, error) {
	head := make([]byte, emptyLength)
	if n, err := r.ReadAt(head, 0); err != nil && !(errors.Is(err, io.EOF) && n > superAt+1024) {
		return 0, fmt.Errorf("read partition of /var: %w", err)
	}
	switch {
	case isSuper(head[superAt:]):
		return varExt4, nil
	case len(bytes.Trim(head, "\x00")) == 0:
		return varEmpty, nil
	}
	b := make([]byte, 1024)
	if _, err := r.ReadAt(b, backupBlock*blockSize); err == nil && isSuper(b) {
		return varDamaged, nil
	}
	return varForeign, nil
}

func isSuper(b []byte) bool { return binary.LittleEndian.Uint16(b[superMagic:]) == 0xef53 }

// makeOrCheck runs the root's own tools: they are of the version that the
// kernel of this image was tested with, and verified.
func makeOrCheck(c *console, device string, what varState, n *notes) error {
	switch what {
	case varEmpty, varForeign:
		c.say(notice, "making /var on %s", device)
		n.add("edge.var", "formatted")
		return succeed(c, "mkfs.ext4", "-q", "-F", "-b", fmt.Sprint(blockSize), "-L", varName, device)
	case varExt4:
		code, err := inRoot(c, "e2fsck", "-p", device)
		if err != nil || corrected(code) {
			return err
		}
	}
	// Nobody is there who could answer questions: each is answered with yes.
	c.say(warn, "/var on %s needs a full check", device)
	n.add("edge.var", "repaired")
	args := []string{"-f", "-y"}
	if what == varDamaged { // by itself e2fsck looks for no backup
		args = append(args, "-b", fmt.Sprint(backupBlock), "-B", fmt.Sprint(blockSize))
	}
	return succeed(c, "e2fsck", append(args, device)...)
}

// succeed runs a program of the root that has to end well.
func succeed(c *console, name string, args ...string) error {
	code, err := inRoot(c, name, args...)
	if err == nil && code != 0 && (name != "e2fsck" || !corrected(code)) {
		err = fmt.Errorf("%s %s: exit status %d", name, args[len(args)-1], code)
	}
	return err
}

// corrected says whether the exit status of e2fsck(8), a sum of bits, leaves a
// file system that can be mounted. 1 and 2 are errors that were corrected; the
// reboot that 2 asks for is for a file system that is mounted.
func corrected(code int) bool { return code&^3 == 0 }

// inRoot runs a program of the root in the root and gives its exit status; an
// error if it did not run to its end. What it prints is shown if it is not
// content.
func inRoot(c *console, name string, args ...string) (int, error) {
	path := ""
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if _, err := os.Stat(filepath.Join(newRoot, dir, name)); err == nil {
			path = dir + name
			break
		}
	}
	if path == "" {
		return 0, fmt.Errorf("the root has no %s", name)
	}
	nobody, err := os.Open(newRoot + "/dev/null") // /dev is there by now
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", name, err)
	}
	defer nobody.Close()
	var out bytes.Buffer
	cmd := exec.Cmd{Path: path, Args: append([]string{name}, args...), Dir: "/", Stdin: nobody, Stdout: &out, Stderr: &out,
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}, SysProcAttr: &syscall.SysProcAttr{Chroot: newRoot}}
	err = cmd.Run()
	if err == nil {
		return 0, nil
	}
	c.say(warn, "%s: %s", name, bytes.TrimSpace(out.Bytes()))
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, fmt.Errorf("run %s: %w", name, err)
}

// ext4Resize is EXT4_IOC_RESIZE_FS: _IOW('f', 16, __u64). The kernel grows a
// mounted file system by itself; to the size that it has it is no work.
const ext4Resize = 0x40086610

func growVar(length int64) error {
	d, err := os.Open(newRoot + "/var")
	if err != nil {
		return err
	}
	defer d.Close()
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &s); err != nil {
		return err
	}
	blocks := uint64(length / s.Bsize)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), ext4Resize, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return errno
	}
	return nil
}

// checkWritable writes to /var what a box can't be without. A file system whose
// errors made the kernel mount it read-only is no /var.
func checkWritable() error {
	dir := newRoot + "/var/lib/edge-image"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".initrd-")
	if err != nil {
		return err
	}
	_, err = f.WriteString("written by the initrd\n")
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}
