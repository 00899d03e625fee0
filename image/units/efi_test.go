package units

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf16"
)

const efiGenerator = "appliance/usr/lib/systemd/system-generators/edge-efi"

// twoDisks is a box with two disks that have the image: / is on the second.
func twoDisks(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for _, part := range []string{"vda/vda1", "vda/vda3", "vdb/vdb1", "vdb/vdb3", "vdb/vdb6"} {
		name := map[byte]string{'1': "edge-esp", '3': "edge-root-a", '6': "edge-esp-no"}[part[len(part)-1]]
		leave(t, root, "sys/devices/pci/block/"+part+"/uevent", "DEVNAME="+filepath.Base(part)+"\nDEVTYPE=partition\nPARTNAME="+name+"\n")
	}
	leave(t, root, "proc/self/mountinfo", "21 1 0:5 / / rw - rootfs none rw\n22 21 253:0 / / ro,relatime - erofs /dev/dm-0 ro\n23 22 254:6 / /var rw - ext4 /dev/vdb6 rw\n")
	slaves := filepath.Join(root, "sys/devices/virtual/block/dm-0/slaves")
	if err := errors.Join(os.MkdirAll(slaves, 0o755), os.MkdirAll(filepath.Join(root, "sys/dev/block"), 0o755),
		os.Symlink("../../devices/virtual/block/dm-0", filepath.Join(root, "sys/dev/block/253:0")),
		os.Symlink("../../../../pci/block/vdb/vdb3", filepath.Join(slaves, "vdb3"))); err != nil {
		t.Fatal(err)
	}
	return root
}

func leave(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// loaderID is the variable that systemd-boot leaves.
func loaderID(id string) string {
	b := []byte{6, 0, 0, 0}
	for _, u := range utf16.Encode([]rune(id + "\x00")) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return string(b)
}

// TestEFIOfTheDiskThatRuns: of two disks with the image /efi is on the one that was
// booted, whatever there is to know it by.
func TestEFIOfTheDiskThatRuns(t *testing.T) {
	const variable = "sys/firmware/efi/efivars/LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
	const id = "4D21B016-B534-45C2-A9FB-5C16E091FD2D"
	for name, c := range map[string]struct {
		change func(root string)
		want   string
	}{
		"what the initrd says": {func(root string) { leave(t, root, "run/edge-initrd/esp", "/dev/nvme0n1p1\n") }, "/dev/nvme0n1p1"},
		"the disk under /":     {func(string) {}, "/dev/vdb1"},
		"nonsense of an initrd": {func(root string) {
			leave(t, root, "run/edge-initrd/esp", "%i\nOptions=exec")
		}, "/dev/vdb1"},
		"the loader": {func(root string) {
			leave(t, root, "proc/self/mountinfo", "22 21 8:1 / / ro - ext4 /dev/sda1 ro\n")
			leave(t, root, variable, loaderID(id))
		}, "/dev/disk/by-partuuid/" + strings.ToLower(id)},
		"no loader's id": {func(root string) {
			leave(t, root, "proc/self/mountinfo", "")
			leave(t, root, variable, loaderID("../../../etc"))
		}, "/dev/disk/by-partlabel/edge-esp"},
		"nothing": {func(root string) {
			if err := errors.Join(os.RemoveAll(filepath.Join(root, "sys")), os.RemoveAll(filepath.Join(root, "proc"))); err != nil {
				t.Fatal(err)
			}
		}, "/dev/disk/by-partlabel/edge-esp"},
	} {
		root, out := twoDisks(t), t.TempDir()
		c.change(root)
		run(t, "./"+efiGenerator, out, out, out, root)
		b, err := os.ReadFile(filepath.Join(out, "efi.mount"))
		if err != nil {
			t.Fatal(err)
		}
		what := regexp.MustCompile(`(?m)^What=(.*)$`).FindAllStringSubmatch(string(b), -1)
		if len(what) != 1 || what[0][1] != c.want || strings.Contains(string(b), "Options=exec") {
			t.Errorf("%s: %s\nwant %s", name, b, c.want)
		}
		if to, err := os.Readlink(filepath.Join(out, "local-fs.target.wants/efi.automount")); to != "../efi.automount" || err != nil {
			t.Errorf("%s: nothing wants the automount: %s, %v", name, to, err)
		}
		run(t, "systemd-analyze", "verify", "--man=no", filepath.Join(out, "efi.mount"), filepath.Join(out, "efi.automount"))
	}
}
