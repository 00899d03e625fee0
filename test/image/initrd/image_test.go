package initrd_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/image/cpio"
	"github.com/catchment-dev/edge/image/gpt"
)

// parts is what a disk of the tests is put together from.
type parts struct {
	initrd       string // cpio.zst, and what the stub of a UKI puts behind it
	root, hashes string // files
	hash         string // the root hash
	needle       []byte // bytes of a file of the root that init reads
}

// script is the /sbin/init of the tests' root: it tells what it found, leaves a
// mark on /var, and resets the machine.
const script = `#!/bin/sh
echo "init: slot $(cat /run/edge-initrd/slot)"
echo "init: version $(cat /run/edge-initrd/version)"
echo "init: esp $(cat /run/edge-initrd/esp)"
echo "init: machine-id $(cat /etc/machine-id)"
sed 's/^/init: note /' /run/edge-initrd/notes
echo boot >>/var/boots
echo "init: boots $(wc -l </var/boots)"
echo "init: var $(df -m /var | awk 'END {print $2}') MiB"
grep -E ' / | /var | /run | /dev | /sys | /proc ' /proc/mounts | sed 's/^/init: mount /'
echo "init: memory $(ls / | tr '\n' ' ')"
echo "init: mapper $(readlink /dev/mapper/root)"
for f in /run/credentials/@initrd/*; do echo "init: credential $f $(cat "$f")"; done
sync
cat /needle >/dev/null
echo "init: done"
reboot -f
`

// build makes the initrd and a root that has just what it needs.
func build(t *testing.T) parts {
	t.Helper()
	dir := t.TempDir()
	p := parts{initrd: filepath.Join(dir, "initrd.cpio.zst"), root: filepath.Join(dir, "root"), hashes: filepath.Join(dir, "hashes")}
	program := filepath.Join(dir, "initrd")
	compile := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w -buildid=", "-o", program, "../../../image/initrd")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("build initrd: %v\n%s", err, out)
	}
	run(t, "", "go", "run", "../../../image/initrd/pack", "-init", program, "-modules", only(t, installed+"/lib/modules/*"), "-out", p.initrd)

	likeStub(t, p.initrd)

	tree := filepath.Join(dir, "tree")
	p.needle = make([]byte, 64<<10)
	rand.NewChaCha8([32]byte{1}).Read(p.needle)
	rootTree(t, tree, p.needle)
	run(t, "", "mkfs.erofs", "--quiet", "-T0", "-U", "11111111-2222-3333-4444-555555555555", p.root, tree)
	out := run(t, "", "veritysetup", "format", "--salt", strings.Repeat("ab", 32), p.root, p.hashes)
	p.hash = regexp.MustCompile(`Root hash:\s+([0-9a-f]{64})`).FindStringSubmatch(out)[1]
	return p
}

// likeStub appends credentials as systemd-stub does.
func likeStub(t *testing.T, initrd string) {
	t.Helper()
	b, err := os.ReadFile(initrd)
	if err != nil {
		t.Fatal(err)
	}
	out := bytes.NewBuffer(append(b, make([]byte, -len(b)&3)...))
	w := cpio.NewWriter(out)
	err = errors.Join(
		w.File(".extra/global_credentials/edge.yaml.cred", 0o400, []byte("from the ESP")),
		w.File(".extra/global_credentials/passwd.plaintext-password.root.cred", 0o400, []byte("evil")),
		w.Close())
	if err == nil {
		err = os.WriteFile(initrd, out.Bytes(), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func rootTree(t *testing.T, tree string, needle []byte) {
	t.Helper()
	for _, d := range []string{"bin", "dev", "etc", "lib64", "proc", "run", "sys", "usr/sbin", "sbin", "var"} {
		if err := os.MkdirAll(filepath.Join(tree, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "", "cp", "/bin/busybox", tree+"/bin/busybox")
	for _, applet := range []string{"sh", "cat", "sed", "wc", "df", "awk", "grep", "ls", "tr", "readlink", "sync", "reboot"} {
		if err := os.Symlink("busybox", filepath.Join(tree, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tool := range []string{"/sbin/mkfs.ext4", "/sbin/e2fsck"} {
		run(t, "", "cp", "-L", tool, tree+"/usr/sbin/")
		for _, lib := range regexp.MustCompile(`/\S+`).FindAllString(run(t, "", "ldd", tool), -1) {
			run(t, "", "install", "-D", "-m", "755", lib, tree+lib)
		}
	}
	err := errors.Join(
		os.WriteFile(tree+"/sbin/init", []byte(script), 0o755),
		os.WriteFile(tree+"/etc/machine-id", nil, 0o444),
		os.WriteFile(tree+"/needle", needle, 0o644))
	run(t, "", "cp", "/etc/mke2fs.conf", tree+"/etc/")
	if err != nil {
		t.Fatal(err)
	}
}

// layout is that of the image, smaller, by the names of its partitions.
const layout = `label: gpt
size=1M,name=edge-esp
size=1M,name=edge-verity-a
size=24M,name=edge-root-a
size=1M,name=edge-verity-b
size=24M,name=edge-root-b
name=edge-var
`

// diskSize leaves 12 MiB for edge-var.
const diskSize = 64 << 20

// newDisk makes a disk with the root in one slot; the other one is empty.
func newDisk(t *testing.T, p parts, sector int, slot string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	resize(t, file, diskSize)
	// sfdisk knows other sectors than those of 512 bytes by the device alone.
	loop := strings.TrimSpace(run(t, "", "losetup", "-f", "--show", "-b", fmt.Sprint(sector), file))
	defer run(t, "", "losetup", "-d", loop)
	run(t, layout, "sfdisk", "-q", "--no-reread", "--no-tell-kernel", loop)
	f, table := openDisk(t, file, sector)
	for name, from := range map[string]string{"edge-verity-" + slot: p.hashes, "edge-root-" + slot: p.root} {
		part, err := table.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(from)
		if err != nil || int64(len(b)) > table.Size(part) {
			t.Fatalf("%d bytes do not fit into %s: %v", len(b), name, err)
		}
		if _, err := f.WriteAt(b, table.Offset(part)); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func openDisk(t *testing.T, file string, sector int) (*os.File, *gpt.Table) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	table, err := gpt.Read(f, info.Size(), sector)
	if err != nil {
		t.Fatal(err)
	}
	return f, table
}

func resize(t *testing.T, file string, size int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wipe writes zeros over a part of a partition, or of the disk if it has no name.
func wipe(t *testing.T, file string, sector int, name string, at, n int64) {
	t.Helper()
	f, table := openDisk(t, file, sector)
	if name != "" {
		p, err := table.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		at += table.Offset(p)
	}
	if _, err := f.WriteAt(make([]byte, n), at); err != nil {
		t.Fatal(err)
	}
}
