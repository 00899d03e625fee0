package volume

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "MTOOLS_SKIP_CHECK=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// fatImage makes a volume as an operator would, with the tools of Debian.
func fatImage(t *testing.T, size int64, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fat.img")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.vfat", append(args, path)...)
	return path
}

func isoImage(t *testing.T, tool string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, "edge.yaml"), []byte("node: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x.iso")
	run(t, tool, append(args, "-o", path, src)...)
	return path
}

// TestIdentify reads what the tools of operators write.
func TestIdentify(t *testing.T) {
	relabelled := fatImage(t, 4<<20, "-n", "OLD")
	run(t, "mlabel", "-i", relabelled, "::EDGECFG") // in the root folder and in the boot sector
	boot, err := os.ReadFile(fatImage(t, 4<<20, "-n", "EDGECFG"))
	if err != nil {
		t.Fatal(err)
	}
	copy(boot[43:54], "NO NAME    ") // as Windows leaves it
	windows := filepath.Join(t.TempDir(), "windows.img")
	if err := os.WriteFile(windows, boot, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path string
		want Volume
	}{
		"FAT12":            {fatImage(t, 1440<<10, "-n", "EDGECFG"), Volume{"vfat", "EDGECFG"}},
		"FAT16":            {fatImage(t, 32<<20, "-F", "16", "-n", "EDGECFG"), Volume{"vfat", "EDGECFG"}},
		"FAT32":            {fatImage(t, 64<<20, "-F", "32", "-n", "EDGECFG"), Volume{"vfat", "EDGECFG"}},
		"FAT32, 4K":        {fatImage(t, 300<<20, "-F", "32", "-S", "4096", "-n", "CIDATA"), Volume{"vfat", "CIDATA"}},
		"FAT, no label":    {fatImage(t, 4<<20), Volume{"vfat", ""}},
		"FAT, mlabel":      {relabelled, Volume{"vfat", "EDGECFG"}},
		"FAT, Windows":     {windows, Volume{"vfat", "EDGECFG"}},
		"ISO":              {isoImage(t, "genisoimage", "-quiet", "-V", "cidata", "-J", "-r"), Volume{"iso9660", "cidata"}},
		"ISO by xorrisofs": {isoImage(t, "xorrisofs", "-quiet", "-V", "EDGECFG", "-J", "-R"), Volume{"iso9660", "EDGECFG"}},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Open(c.path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			v, ok := Identify(f)
			if !ok || v != c.want {
				t.Errorf("%+v %v, want %+v", v, ok, c.want)
			}
			// blkid is what udev makes by-label of.
			if want := strings.TrimSpace(run(t, "blkid", "-p", "-o", "value", "-s", "TYPE", c.path)); want != v.Kind {
				t.Errorf("blkid calls it %q", want)
			}
		})
	}
}

func TestIdentifyOthers(t *testing.T) {
	ext := filepath.Join(t.TempDir(), "ext.img")
	if err := os.WriteFile(ext, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.ext4", "-q", "-L", "EDGECFG", ext)
	b, err := os.ReadFile(ext)
	if err != nil {
		t.Fatal(err)
	}
	gpt := make([]byte, 64<<10)
	gpt[510], gpt[511] = 0x55, 0xaa
	for name, b := range map[string][]byte{"nothing": nil, "zeros": make([]byte, 64<<10), "ext4": b, "a partition table": gpt} {
		if v, ok := Identify(bytes.NewReader(b)); ok {
			t.Errorf("%s is taken for %+v", name, v)
		}
	}
}

// TestFind looks through devices as sysfs lists them.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	b := Box{Sys: filepath.Join(dir, "sys"), Dev: filepath.Join(dir, "dev")}
	if err := os.MkdirAll(b.Dev, 0o755); err != nil {
		t.Fatal(err)
	}
	fat := fatImage(t, 1<<20, "-n", "EDGECFG")
	for name, path := range map[string]string{
		"vdb": fat, "sda1": fat, "sda10": fat, "sr0": isoImage(t, "genisoimage", "-quiet", "-V", "edgecfg"),
		"fd0": fat, "dm-0": fat, "gone": "", "vdc": fatImage(t, 1<<20, "-n", "OTHER"),
	} {
		if err := os.MkdirAll(filepath.Join(b.Sys, "class/block", name), 0o755); err != nil {
			t.Fatal(err)
		}
		if path != "" {
			if err := os.Symlink(path, filepath.Join(b.Dev, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := b.Find("EdgeCfg")
	if want := []string{"sr0", "vdb", "sda1", "sda10"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("found %q, want %q: %v", got, want, err)
	}
}

func TestESP(t *testing.T) {
	b := Box{Sys: t.TempDir()}
	event := func(disk, name, text string) {
		dir := filepath.Join(b.Sys, "devices", disk, name)
		class := filepath.Join(b.Sys, "class/block")
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(class, 0o755),
			os.WriteFile(filepath.Join(dir, "uevent"), []byte(text), 0o644), os.Symlink(dir, filepath.Join(class, name))); err != nil {
			t.Fatal(err)
		}
	}
	event("vda", "vda", "DEVNAME=vda\nDEVTYPE=disk\n")
	event("vda", "vda2", "DEVNAME=vda2\nPARTNAME=edge-esp-2\n")
	if d, ok := b.ESP(); ok {
		t.Errorf("found %s", d)
	}
	event("vda", "vda1", "DEVNAME=vda1\nPARTN=1\nPARTNAME=edge-esp\n")
	if d, ok := b.ESP(); !ok || d != "vda1" {
		t.Errorf("found %s %v", d, ok)
	}
	event("sdb", "sdb1", "PARTNAME=edge-esp\n")
	event("sdb", "sdb3", "PARTNAME=edge-root-a\n")
	if d, ok := b.ESP(); ok {
		t.Errorf("one of two was taken: %s", d)
	}
	// The root is made of a partition of the second.
	if err := os.MkdirAll(filepath.Join(b.Sys, "devices/sdb/sdb3/holders/dm-0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if d, ok := b.ESP(); !ok || d != "sdb1" {
		t.Errorf("found %s %v", d, ok)
	}
	if err := os.MkdirAll(filepath.Join(b.Sys, "devices/vda/vda2/holders/dm-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if d, ok := b.ESP(); ok {
		t.Errorf("one of two that are in use was taken: %s", d)
	}
}

// TestMount has the kernel read a device. FAT and ISO are modules that not every
// box has; any other file system goes the same way.
func TestMount(t *testing.T) {
	img := filepath.Join(t.TempDir(), "img")
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "edge.yaml"), []byte("node: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(src, "link")); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.erofs", img, src)
	loop := strings.TrimSpace(run(t, "losetup", "--find", "--show", "--read-only", img))
	defer func() { run(t, "losetup", "-d", loop) }()
	f, err := mount(loop, "erofs")
	if err != nil {
		t.Fatal(err)
	}
	dir := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if b, err := os.ReadFile(filepath.Join(dir, "edge.yaml")); err != nil || string(b) != "node: {}\n" {
		t.Errorf("read %q: %v", b, err)
	}
	if _, err := os.ReadFile(filepath.Join(dir, "link")); err == nil {
		t.Error("a link was followed out of the volume")
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); err == nil {
		t.Error("the volume was written to")
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(b, []byte(loop)) {
		t.Errorf("the mount is to be seen: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// Nothing holds the device any more: it can be had for oneself.
	fd, err := unix.Open(loop, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("the device is still in use: %v", err)
	}
	unix.Close(fd)
}

// TestMountInUse: somebody has the device mounted for writing, as the automount of
// the EFI partition has; ext4 stands for FAT, whose module not every box has.
func TestMountInUse(t *testing.T) {
	img, at := filepath.Join(t.TempDir(), "img"), t.TempDir()
	if err := os.WriteFile(img, make([]byte, 8<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.ext4", "-q", img)
	loop := strings.TrimSpace(run(t, "losetup", "--find", "--show", img))
	defer func() { run(t, "losetup", "-d", loop) }()
	if err := unix.Mount(loop, at, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(filepath.Join(at, "new"), []byte("just written"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := mount(loop, "ext4")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if b, err := os.ReadFile(filepath.Join(dir, "new")); err != nil || string(b) != "just written" {
		t.Errorf("read %q: %v", b, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), nil, 0o644); err == nil {
		t.Error("the volume was written to")
	}
	if err := os.WriteFile(filepath.Join(at, "other"), nil, 0o644); err != nil {
		t.Errorf("the other mount cannot be written to any more: %v", err)
	}
}

func TestMountRefuses(t *testing.T) {
	if f, err := mount("/dev/null", "erofs"); err == nil {
		f.Close()
		t.Error("/dev/null was mounted")
	}
	if _, _, err := (Box{Sys: "/sys", Dev: "/dev"}).Open("../etc/passwd"); err == nil {
		t.Error("a name with a slash was opened")
	}
}

func FuzzIdentify(f *testing.F) {
	boot := make([]byte, 2048)
	copy(boot[11:], []byte{0, 2, 1, 1, 0, 2, 16, 0, 0, 8, 0xf8, 1, 0})
	boot[38], boot[510], boot[511] = 0x29, 0x55, 0xaa
	copy(boot[43:], "EDGECFG    ")
	f.Add(boot)
	iso := make([]byte, 36<<10)
	copy(iso[32<<10:], "\x01CD001\x01")
	copy(iso[32<<10+40:], "cidata  ")
	f.Add(iso)
	f.Fuzz(func(t *testing.T, b []byte) {
		v, ok := Identify(bytes.NewReader(b))
		if !ok && v != (Volume{}) || len(v.Label) > 32 {
			t.Errorf("%+v %v", v, ok)
		}
	})
}
