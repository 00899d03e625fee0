package gpt

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// script is the layout of the image, smaller.
const script = `label: gpt
label-id: 0FC63DAF-8483-4772-8E79-3D69D8477DE4
size=4M,type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B,name=edge-esp
size=2M,name=edge-root-a
type=4D21B016-B534-45C2-A9FB-5C16E091FD2D,uuid=11111111-2222-3333-4444-555555555555,attrs="GUID:63",name=edge-var
`

// image is a disk that sfdisk has partitioned: a loop device over a file, since
// only a device tells sfdisk of 4096-byte sectors.
type image struct {
	t          *testing.T
	file, loop string
	sector     int
}

func newImage(t *testing.T, sector int) *image {
	t.Helper()
	im := &image{t: t, file: filepath.Join(t.TempDir(), "disk"), sector: sector}
	im.resize(32 << 20)
	im.attach()
	im.run(script, "sfdisk", "-q", "--no-reread", "--no-tell-kernel", im.loop)
	return im
}

func (im *image) attach() {
	im.loop = strings.TrimSpace(im.run("", "losetup", "-f", "--show", "-b", fmt.Sprint(im.sector), im.file))
	loop := im.loop
	im.t.Cleanup(func() { exec.Command("losetup", "-d", loop).Run() })
}

func (im *image) resize(size int64) {
	im.t.Helper()
	f, err := os.OpenFile(im.file, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		im.t.Fatal(err)
	}
	if im.loop != "" {
		im.run("", "losetup", "-c", im.loop)
	}
}

func (im *image) run(in, name string, arg ...string) string {
	im.t.Helper()
	cmd := exec.CommandContext(im.t.Context(), name, arg...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		im.t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// open opens the loop device, so that what is read is what other tools see.
func (im *image) open() (*os.File, int64) {
	im.t.Helper()
	f, err := os.OpenFile(im.loop, os.O_RDWR|os.O_SYNC, 0)
	if err != nil {
		im.t.Fatal(err)
	}
	im.t.Cleanup(func() { f.Close() })
	size, err := f.Seek(0, 2)
	if err != nil {
		im.t.Fatal(err)
	}
	return f, size
}

func (im *image) read() *Table {
	im.t.Helper()
	f, size := im.open()
	table, err := Read(f, size, im.sector)
	if err != nil {
		im.t.Fatal(err)
	}
	return table
}

func (im *image) wipe(at, n int64) {
	im.t.Helper()
	f, size := im.open()
	if at < 0 {
		at += size
	}
	if _, err := f.WriteAt(make([]byte, n), at); err != nil {
		im.t.Fatal(err)
	}
}

// verified is what sgdisk, which is not ours, says of the whole table.
func (im *image) verified() {
	im.t.Helper()
	im.run("", "losetup", "-d", im.loop)
	im.attach()
	if out := im.run("", "sgdisk", "-v", im.loop); !strings.Contains(out, "No problems found") {
		im.t.Errorf("sgdisk -v:\n%s", out)
	}
}

func sectors(t *testing.T, test func(t *testing.T, sector int)) {
	for _, s := range []int{512, 4096} {
		t.Run(fmt.Sprint(s), func(t *testing.T) { test(t, s) })
	}
}

func TestReadsWhatSfdiskWrites(t *testing.T) {
	sectors(t, func(t *testing.T, s int) {
		im := newImage(t, s)
		table := im.read()
		if table.Damaged != nil || table.Disk.String() != "0fc63daf-8483-4772-8e79-3d69d8477de4" {
			t.Errorf("disk %s, damaged: %v", table.Disk, table.Damaged)
		}
		var got []string
		for _, p := range table.Partitions {
			got = append(got, fmt.Sprintf("%d %s %d+%d", p.Number, p.Name, table.Offset(p)>>20, table.Size(p)>>20))
		}
		if diff := cmp.Diff([]string{"1 edge-esp 1+4", "2 edge-root-a 5+2", "3 edge-var 7+24"}, got); diff != "" {
			t.Error(diff)
		}
		v, err := table.Find("edge-var")
		if err != nil || v.ID.String() != "11111111-2222-3333-4444-555555555555" || v.Type.String() != "4d21b016-b534-45c2-a9fb-5c16e091fd2d" {
			t.Errorf("edge-var: %+v, %v", v, err)
		}
	})
}

func TestGrow(t *testing.T) {
	cases := map[string]func(im *image){
		"a larger disk":                   func(im *image) { im.resize(80 << 20) },
		"a larger disk of no whole MiB":   func(im *image) { im.resize(80<<20 + 12*4096) },
		"a larger disk, backup lost":      func(im *image) { im.wipe(-int64(im.sector), int64(im.sector)); im.resize(80 << 20) },
		"primary header lost":             func(im *image) { im.wipe(int64(im.sector), int64(im.sector)) },
		"primary entries lost":            func(im *image) { im.wipe(2*int64(im.sector), int64(im.sector)) },
		"the first half MiB lost":         func(im *image) { im.wipe(0, 1<<19) },
		"backup header lost":              func(im *image) { im.wipe(-int64(im.sector), int64(im.sector)) },
		"backup entries lost":             func(im *image) { im.wipe(-16384-int64(im.sector), int64(im.sector)) },
		"protective MBR and primary lost": func(im *image) { im.wipe(0, 2*int64(im.sector)) },
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			sectors(t, func(t *testing.T, s int) {
				im := newImage(t, s)
				before := im.read()
				damage(im)
				f, size := im.open()
				grown, changed, err := im.read().Grow("edge-var")
				if err != nil || !changed {
					t.Fatalf("changed: %v, %v", changed, err)
				}
				if err := grown.Write(f); err != nil {
					t.Fatal(err)
				}
				im.verified()
				checkGrown(t, im, before, size)
			})
		})
	}
}

// checkGrown: what was read before the disk was touched is there again, but
// for the end of the last partition, and nothing is left to do.
func checkGrown(t *testing.T, im *image, before *Table, size int64) {
	t.Helper()
	after := im.read()
	v, err := after.Find("edge-var")
	if err != nil || after.Offset(v)+after.Size(v) < size-2<<20 {
		t.Errorf("edge-var of a disk of %d bytes: %+v, %v", size, v, err)
	}
	want := before.Partitions
	want[2].Last = v.Last
	if diff := cmp.Diff(want, after.Partitions); diff != "" || after.Disk != before.Disk || after.Damaged != nil {
		t.Errorf("damaged: %v, %s", after.Damaged, diff)
	}
	if _, again, err := after.Grow("edge-var"); again || err != nil {
		t.Errorf("a second time: changed %v, %v", again, err)
	}
	if dump := im.run("", "sfdisk", "-d", im.loop); !strings.Contains(dump, `name="edge-var", attrs="GUID:63"`) {
		t.Errorf("the attributes are gone:\n%s", dump)
	}
}

func TestUnchanged(t *testing.T) {
	sectors(t, func(t *testing.T, s int) {
		im := newImage(t, s)
		if _, changed, err := im.read().Grow("edge-var"); changed || err != nil {
			t.Errorf("a whole disk: changed %v, %v", changed, err)
		}
		if _, _, err := im.read().Grow("edge-root-a"); err == nil || !strings.Contains(err.Error(), "behind it") {
			t.Errorf("a partition in the middle grows: %v", err)
		}
		if _, _, err := im.read().Grow("edge-none"); err == nil {
			t.Error("a partition that is not there grows")
		}
	})
}

func TestRefused(t *testing.T) {
	im := newImage(t, 512)
	im.run("", "sfdisk", "-q", "--no-reread", "--no-tell-kernel", "--part-label", im.loop, "2", "edge-var")
	if _, err := im.read().Find("edge-var"); err == nil || !strings.Contains(err.Error(), "both named") {
		t.Errorf("two of one name: %v", err)
	}
	f, size := im.open()
	if _, err := Read(f, size, 4096); !errors.Is(err, ErrNoTable) {
		t.Errorf("with the wrong sector size: %v", err)
	}
	if _, err := Read(f, size, 520); err == nil {
		t.Error("520-byte sectors are read")
	}
	im.wipe(0, 1<<20)
	im.wipe(-16384-512, 512)
	if _, err := Read(f, size, 512); err == nil || errors.Is(err, ErrNoTable) && !strings.Contains(err.Error(), "backup: the entries") {
		t.Errorf("both copies damaged: %v", err)
	}
	im.wipe(-1<<20, 1<<20)
	if _, err := Read(f, size, 512); err != ErrNoTable {
		t.Errorf("an empty disk: %v", err)
	}
}

// TestCutShort writes a grown table and stops after each write: what is read
// then is the old or the new one, never an error.
func TestCutShort(t *testing.T) {
	sectors(t, func(t *testing.T, s int) {
		im := newImage(t, s)
		im.resize(64 << 20)
		_, size := im.open()
		old := im.read()
		grown, _, err := old.Grow("edge-var")
		if err != nil {
			t.Fatal(err)
		}
		for writes := range 6 {
			disk := &cut{file: im.file, left: writes, over: map[int64][]byte{}}
			if err := grown.Write(disk); (err == nil) != (writes == 5) {
				t.Fatalf("after %d writes: %v", writes, err)
			}
			got, err := Read(disk, size, s)
			if err != nil {
				t.Fatalf("after %d writes: %v", writes, err)
			}
			want := old
			if writes >= 4 { // the primary's entries are torn from its header
				want = grown
			}
			if diff := cmp.Diff(want.Partitions, got.Partitions); diff != "" {
				t.Errorf("after %d writes: %s", writes, diff)
			}
			if _, changed, err := got.Grow("edge-var"); err != nil || changed != (writes < 5) {
				t.Errorf("after %d writes, changed %v: %v", writes, changed, err)
			}
		}
	})
}

// cut is a disk that takes only so many writes; what it took lies over the file.
type cut struct {
	file string
	left int
	over map[int64][]byte
}

func (c *cut) WriteAt(b []byte, at int64) (int, error) {
	if c.left == 0 {
		return 0, errors.New("the power is off")
	}
	c.left--
	c.over[at] = append([]byte(nil), b...)
	return len(b), nil
}

func (c *cut) ReadAt(b []byte, at int64) (int, error) {
	f, err := os.Open(c.file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := f.ReadAt(b, at)
	for where, o := range c.over {
		if from, to := max(where, at), min(where+int64(len(o)), at+int64(n)); from < to {
			copy(b[from-at:to-at], o[from-where:to-where])
		}
	}
	return n, err
}

func (c *cut) Sync() error { return nil }
