package kmod

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// debian is the modules of a kernel that test/install.sh has unpacked.
func debian(t *testing.T) *Tree {
	t.Helper()
	dirs, err := filepath.Glob("/usr/local/lib/catchment-test/linux-image-cloud-amd64/lib/modules/*")
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%d kernels, want one (sh test/install.sh test): %v", len(dirs), err)
	}
	tree, err := OpenTree(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestCollectOfDebian(t *testing.T) {
	x, lacking, err := debian(t).Collect(List{
		Always: []string{"erofs", "dm_verity", "ext4"}, // ext4 is built in
		Device: []string{"virtio_blk", "nvme", "megaraid_sas"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"megaraid_sas"}, lacking); diff != "" {
		t.Errorf("lacking: %s", diff)
	}
	// crc32c_intel is there because libcrc32c asks softly for "crc32c".
	before(t, x, "crc32c_intel", "libcrc32c", "erofs")
	before(t, x, "dm_bufio", "dm_verity")
	before(t, x, "virtio_ring", "virtio_blk")
	before(t, x, "virtio", "virtio_blk")
	again, err := Decode(x.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(x, again); diff != "" {
		t.Errorf("read from its own text: %s", diff)
	}
	always := again.Select(func(m Module) bool { return m.Always })
	if !slices.Contains(always, "libcrc32c") || slices.Contains(always, "virtio_blk") || slices.Contains(always, "ext4") {
		t.Errorf("always: %v", always)
	}
	disk := again.Select(func(m Module) bool { return m.Drives("virtio:d00000002v00001AF4") })
	if !slices.Contains(disk, "virtio") || disk[len(disk)-1] != "virtio_blk" {
		t.Errorf("for a virtio disk: %v", disk)
	}
}

// before says which of the modules does not stand behind the one named before.
func before(t *testing.T, x Index, names ...string) {
	t.Helper()
	last := -1
	for _, name := range names {
		i := slices.IndexFunc(x, func(m Module) bool { return m.Name == name })
		if i <= last {
			t.Errorf("%s is at %d, behind %d in %v", name, i, last, names)
		}
		last = i
	}
}

func TestCompressed(t *testing.T) {
	dir := t.TempDir()
	want := module("needs-this", "depends=a-b,c", "alias=pci:v1d2*", "softdep=pre: x y post: z pre: w", "license=GPL")
	for ending, tool := range map[string][]string{"": nil, ".xz": {"xz", "-c"}, ".gz": {"gzip", "-c"}, ".zst": {"zstd", "-qc"}} {
		b := want
		if tool != nil {
			cmd := exec.CommandContext(t.Context(), tool[0], tool[1:]...)
			cmd.Stdin = bytes.NewReader(b)
			var err error
			if b, err = cmd.Output(); err != nil {
				t.Fatal(err)
			}
		}
		tree := treeOf(t, filepath.Join(dir, "t"+ending), map[string][]byte{"needs-this.ko" + ending: b})
		got, err := tree.Info("needs_this")
		if err != nil {
			t.Fatalf("%s: %v", ending, err)
		}
		if diff := cmp.Diff(Info{Needs: []string{"a_b", "c"}, Softly: []string{"x", "y", "w"}, Aliases: []string{"pci:v1d2*"}, Binary: want}, got); diff != "" {
			t.Errorf("%s: %s", ending, diff)
		}
	}
}

func TestCollectRefuses(t *testing.T) {
	tree := treeOf(t, t.TempDir(), map[string][]byte{
		"a.ko": module("a", "depends=b"), "b.ko": module("b", "depends=a"),
		"c.ko": module("c", "depends=gone"), "text.ko": []byte("no module"),
		"empty.ko": module("empty")[:64],
		"d.ko":     module("d", "softdep=pre: e"), "e.ko": module("e", "depends=d"),
	})
	for name, want := range map[string]string{"a": "needs itself", "c": "gone is not in this kernel", "text": "text.ko", "none": "not in this kernel", "empty": "empty.ko"} {
		if _, _, err := tree.Collect(List{Always: []string{name}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	x, _, err := tree.Collect(List{Always: []string{"e"}})
	if err != nil {
		t.Fatalf("a soft circle: %v", err)
	}
	before(t, x, "d", "e")
}

func TestDecodeRefuses(t *testing.T) {
	for _, text := range []string{"needs a\n", "always\n", "module a\nneeds b\nmodule b\n", "module a\nneeds a\n", "module a\nmodule a\n", "module ../a\n", "module \n", "module a\nalways b\n", "module a\nalias\n", "module a\nwhat b\n"} {
		if x, err := Decode([]byte(text)); err == nil {
			t.Errorf("%q is read as %v", text, x)
		}
	}
}

func TestParseList(t *testing.T) {
	got, err := ParseList("# a comment\nalways dm-verity # why\n\ndevice nvme\n")
	if diff := cmp.Diff(List{Always: []string{"dm_verity"}, Device: []string{"nvme"}}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	for _, text := range []string{"nvme\n", "device\n", "device a b\n", "never a\n"} {
		if _, err := ParseList("always a\n" + text); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("module a\nalias pci:v*\nmodule b\nneeds a\nalways\n"), "pci:v1")
	f.Fuzz(func(t *testing.T, b []byte, id string) {
		x, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(x.Encode())
		if diff := cmp.Diff(x, again); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}
		x.Select(func(m Module) bool { return m.Always || m.Drives(id) })
	})
}

func FuzzParseInfo(f *testing.F) {
	f.Add(module("a", "depends=b", "softdep=pre: c"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = ParseInfo(b) })
}

func treeOf(t *testing.T, dir string, files map[string][]byte) *Tree {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "kernel", "crypto"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, "kernel", "crypto", name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte("kernel/fs/ext4/ext4.ko\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tree, err := OpenTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// module is the least ELF file with a .modinfo section.
func module(name string, fields ...string) []byte {
	info := strings.Join(append(fields, "name="+name), "\x00") + "\x00"
	names := "\x00.modinfo\x00.shstrtab\x00"
	const head, section = 64, 64
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1, Shoff: uint64(head + len(info) + len(names)), Ehsize: head, Shentsize: section, Shnum: 3, Shstrndx: 2}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	binary.Write(&b, binary.LittleEndian, h)
	b.WriteString(info + names)
	for _, s := range []elf.Section64{{}, {Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: head, Size: uint64(len(info))}, {Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(head + len(info)), Size: uint64(len(names))}} {
		binary.Write(&b, binary.LittleEndian, s)
	}
	return b.Bytes()
}
