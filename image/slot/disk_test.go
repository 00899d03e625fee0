package slot

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeSys is sysfs of a box with two disks that have partitions of the same names; /
// is a device-mapper device over slot b of the second.
func fakeSys(t *testing.T) (sys, dev string) {
	t.Helper()
	sys, dev = t.TempDir(), t.TempDir()
	names := []string{"edge-esp", "edge-verity-a", "edge-root-a", "edge-verity-b", "edge-root-b", "edge-var"}
	for _, disk := range []string{"vda", "vdb"} {
		for i, name := range names {
			part := disk + string(rune('1'+i))
			dir := filepath.Join(sys, "devices/pci/block", disk, part)
			put(t, filepath.Join(dir, "uevent"), []byte("MAJOR=254\nDEVTYPE=partition\nPARTNAME="+name+"\n"))
			put(t, filepath.Join(dir, "partition"), []byte("1\n"))
			put(t, filepath.Join(dev, part), []byte(part))
		}
		put(t, filepath.Join(sys, "devices/pci/block", disk, "queue/x"), nil)
	}
	slaves := filepath.Join(sys, "devices/virtual/block/dm-0/slaves")
	for _, err := range []error{
		os.MkdirAll(slaves, 0o755), os.MkdirAll(filepath.Join(sys, "dev/block"), 0o755),
		os.Symlink("../../devices/virtual/block/dm-0", filepath.Join(sys, "dev/block/253:0")),
		os.Symlink("../../../../pci/block/vdb/vdb5", filepath.Join(slaves, "vdb5")),
		os.Symlink("../../../../pci/block/vdb/vdb4", filepath.Join(slaves, "vdb4")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return sys, dev
}

func TestFindDisk(t *testing.T) {
	sys, dev := fakeSys(t)
	d, err := FindDisk(sys, dev, "253:0")
	if err != nil {
		t.Fatal(err)
	}
	if d.Running != B {
		t.Errorf("slot %s runs", d.Running)
	}
	if path, err := d.Device(ESPName); err != nil || path != filepath.Join(dev, "vdb1") {
		t.Errorf("the ESP is %s, %v", path, err)
	}
	for _, name := range []string{"edge-root-b", "edge-verity-b"} {
		if _, err := d.Partition(name); err == nil || !strings.Contains(err.Error(), "the system runs from it") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := d.Partition("edge-none"); err == nil {
		t.Error("a partition that is not there is opened")
	}
	v, err := d.Partition("edge-root-a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = v.WriteAt([]byte("new"), 0)
	if err := errors.Join(err, v.Close()); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(filepath.Join(dev, "vdb3")); string(b) != "new3" {
		t.Errorf("vdb3 has %q", b)
	}
	if b, _ := os.ReadFile(filepath.Join(dev, "vda3")); string(b) != "vda3" {
		t.Errorf("vda3 has %q", b)
	}
	if n, err := d.PartitionSize("edge-var"); n != 4 || err != nil {
		t.Errorf("edge-var has %d bytes, %v", n, err)
	}
	if _, err := FindDisk(sys, dev, "8:1"); err == nil || !strings.Contains(err.Error(), "not one of the slots") {
		t.Errorf("another root: %v", err)
	}
	put(t, filepath.Join(sys, "devices/pci/block/vdb/vdb6/uevent"), []byte("PARTNAME=edge-esp\n"))
	if _, err := FindDisk(sys, dev, "253:0"); err == nil || !strings.Contains(err.Error(), "both named edge-esp") {
		t.Errorf("two of one name: %v", err)
	}
}

func TestFolder(t *testing.T) {
	f := Folder(filepath.Join(t.TempDir(), "EFI/Linux"))
	if files, err := f.List(); len(files) != 0 || err != nil {
		t.Fatal(files, err)
	}
	program := append([]byte("MZ"), make([]byte, leastUKI)...)
	for name, b := range map[string][]byte{"edge_1.efi": program, "edge_2+3.efi": append([]byte{0, 0}, program[2:]...), "edge_3.efi": program[:512], "empty": nil} {
		v, err := f.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = v.WriteAt(b, 0)
		if err := errors.Join(err, v.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(string(f), "edge_4.efi"), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := f.List()
	want := []ESPFile{{"edge_1.efi", leastUKI + 2, true}, {"edge_2+3.efi", leastUKI + 2, false}, {"edge_3.efi", 512, false}, {"empty", 0, false}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	w := &Writer{ESP: f}
	if err := w.Recount(t.Context(), UKI{Version: "1"}, UKI{Version: "1", Counted: true, Left: 3}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(string(f), "edge_1+3.efi")); !bytes.Equal(b, program) || err != nil {
		t.Error("the copy is another", err)
	}
	if all, err := w.UKIs(); err != nil || len(all) != 1 || all[0].Left != 3 {
		t.Error(all, err)
	}
	// What does not run goes, whole or not; never what runs, nor all.
	for version, running := range map[string]string{"1": "1", "2": "3"} {
		if err := w.Drop(version, running); err == nil {
			t.Errorf("%s is dropped while %s runs", version, running)
		}
	}
	if err := w.Drop("2", "1"); err != nil {
		t.Fatal(err)
	}
	if files, err := f.List(); err != nil || slices.ContainsFunc(files, func(e ESPFile) bool { return e.Name == "edge_2+3.efi" }) || len(files) != 3 {
		t.Error(files, err)
	}
}

func TestFindMount(t *testing.T) {
	const text = `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
40 35 254:1 / /ef\040i ro,nosuid,nodev,noexec,relatime shared:7 - vfat /dev/vda1 ro,fmask=0077
broken
`
	at, flags, ok := findMount(strings.NewReader(text), "254:1")
	if at != "/ef i" || flags != 2|4|8 || !ok {
		t.Errorf("%q, %#x, %v", at, flags, ok)
	}
	if _, _, ok := findMount(strings.NewReader(text), "1:1"); ok {
		t.Error("a device that is not mounted is")
	}
	for folder, want := range map[string]string{"/ef i": "254:1", "/": "", "/mnt2": "98:0"} {
		if got := DeviceAt(strings.NewReader(text), folder); got != want {
			t.Errorf("at %s is %s", folder, got)
		}
	}
	if _, err := FindDisk(t.TempDir(), t.TempDir(), ""); err == nil {
		t.Error("a disk of nothing is found")
	}
}

func FuzzFindMount(f *testing.F) {
	f.Add("40 35 254:1 / /efi ro - vfat /dev/vda1 ro")
	f.Fuzz(func(_ *testing.T, text string) {
		findMount(strings.NewReader(text), "254:1")
		DeviceAt(strings.NewReader(text), "/")
	})
}

func TestRemoveSalvaged(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"FSCK0000.REC", "fsck0012.rec", "FSCK.REC", "FSCK0000.RECS", "EFI/FSCK0000.REC"} {
		put(t, filepath.Join(dir, name), []byte("x"))
	}
	if err := errors.Join(RemoveSalvaged(dir), os.Mkdir(filepath.Join(dir, "FSCK0001.REC"), 0o755), RemoveSalvaged(dir)); err != nil {
		t.Error(err)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if d := cmp.Diff([]string{"EFI", "FSCK.REC", "FSCK0000.RECS", "FSCK0001.REC"}, left); d != "" || err != nil {
		t.Error(d, err)
	}
	if RemoveSalvaged(filepath.Join(dir, "none")) == nil {
		t.Error("a folder that is not there")
	}
}
