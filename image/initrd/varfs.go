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
	if err := makeOrCheck(c, device, n); err != nil {
		return err
	}
	if err := unix.Mount(device, newRoot+"/var", "ext4", unix.MS_NODEV|unix.MS_NOSUID, ""); err != nil {
		return fmt.Errorf("mount %s on /var: %w", device, err)
	}
	if err := growVar(p.length); err != nil {
		c.say(warn, "grow /var to %d bytes: %v", p.length, err)
	}
	err := checkWritable()
	if isFull(err) {
		// All that the box has is in it: an empty /var in memory would be no help.
		c.say(warn, "/var is full")
		n.add("edge.var", "full")
		return nil
	}
	return err
}

// isFull says that a file system can be written, but for room.
func isFull(err error) bool {
	return (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) && !errors.Is(err, unix.EROFS)
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
// is 1024 bytes into the file system. The first copy of it begins block group
// 1, after 32768 blocks of 4096 bytes or a few less: mkfs makes groups smaller
// where the last one would be of no use. A file system of less than 128 MiB has
// no copy.
const (
	superAt     = 1024
	superMagic  = 0x38    // 2 bytes: 0xef53
	superGroup  = 0x5a    // 2 bytes: the group that the copy begins
	blockSize   = 4096    // that makeOrCheck makes
	mostBlocks  = 32768   // in a group
	leastBlocks = 28672   // that are looked at
	emptyLength = 1 << 20 // bytes of zeros that are believed to be an empty partition
)

// probeVar says what the partition of a device holds, and in which block the
// first copy of the superblock is, if that is what is left.
func probeVar(device string) (what varState, copyAt int, err error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	return probe(f)
}

// probe says what a partition holds. Zeros at its beginning are the image's:
// the copy in an older file system behind them is of no account, or a disk that
// was written anew would get remains of what was on it. Only a beginning that is
// neither zeros nor ext4 is worth a look for the copy.
func probe(r io.ReaderAt) (what varState, copyAt int, err error) {
	head := make([]byte, emptyLength)
	if _, err := r.ReadAt(head, 0); err != nil {
		return 0, 0, fmt.Errorf("read partition of /var: %w", err)
	}
	switch {
	case isSuper(head[superAt:], 0):
		return varExt4, 0, nil
	case len(bytes.Trim(head, "\x00")) == 0:
		return varEmpty, 0, nil
	}
	group := make([]byte, (mostBlocks+1-leastBlocks)*blockSize)
	n, err := r.ReadAt(group, leastBlocks*blockSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, fmt.Errorf("read partition of /var: %w", err)
	}
	for at := n/blockSize - 1; at >= 0; at-- {
		if isSuper(group[at*blockSize:], 1) {
			return varDamaged, leastBlocks + at, nil
		}
	}
	return varForeign, 0, nil
}

func isSuper(b []byte, group uint16) bool {
	return binary.LittleEndian.Uint16(b[superMagic:]) == 0xef53 && binary.LittleEndian.Uint16(b[superGroup:]) == group
}

// makeOrCheck runs the root's own tools: they are of the version that the
// kernel of this image was tested with, and verified.
func makeOrCheck(c *console, device string, n *notes) error {
	what, copyAt, err := probeVar(newRoot + device)
	if err != nil {
		return err
	}
	switch what {
	case varForeign:
		c.say(warn, "%s holds something that is no ext4 file system: it is formatted", device)
		fallthrough
	case varEmpty:
		c.say(notice, "making /var on %s", device)
		n.add("edge.var", "formatted")
		// -m 0: what is kept back for root is no help to the daemons, which are none; for
		// a disk that is full there is a reserve in /var/lib/edge-image.
		return succeed(c, "mkfs.ext4", "-q", "-F", "-m", "0", "-b", fmt.Sprint(blockSize), "-L", varName, device)
	case varExt4:
		code, err := inRoot(c, "e2fsck", "-p", device)
		if err != nil || corrected(code) {
			return err
		}
	}
	// Nobody is there who could answer questions: each is answered with yes.
	c.say(warn, "/var on %s needs a full check", device)
	n.add("edge.var", "repaired")
	if what == varDamaged {
		// By itself e2fsck looks for no copy in blocks of this size. Where the
		// copy says that the journal is to be replayed, this replays it, writes
		// the superblock, reads the copy again, and gives up: then the check
		// below, of what it wrote, is the one that counts.
		code, err := inRoot(c, "e2fsck", "-f", "-y", "-b", fmt.Sprint(copyAt), "-B", fmt.Sprint(blockSize), device)
		if err != nil || corrected(code) {
			return err
		}
	}
	return succeed(c, "e2fsck", "-f", "-y", device)
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
