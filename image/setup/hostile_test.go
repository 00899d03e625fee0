package setup

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inMounts runs f where what it mounts is seen by itself only.
func inMounts(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() { done <- err }() // also after a t.Fatal in f
		runtime.LockOSThread()         // for good: the thread ends with its view of the mounts
		err = unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			f()
		}
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestReadOnlyDisk: a box whose /var can only be read goes by the configuration on it.
func TestReadOnlyDisk(t *testing.T) {
	for _, locked := range []bool{true, false} { // whether it has a file to lock
		b := newBox(t)
		good := goodTree(t)
		b.boot(good)
		if locked {
			unlock, err := b.store().Lock()
			if err != nil {
				t.Fatal(err)
			}
			unlock()
		}
		b.place.Run = filepath.Join(t.TempDir(), "run")
		inMounts(t, func() {
			dir := filepath.Join(b.dir, "edge-config")
			err := unix.Mount(dir, dir, "", unix.MS_BIND, "")
			if err == nil {
				err = unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
			}
			if err != nil {
				t.Error(err)
				return
			}
			unlock, err := b.store().Lock()
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			if _, err := b.store().Lock(); err == nil || !strings.Contains(err.Error(), "another command") {
				t.Errorf("two have the lock: %v", err)
			}
			b.want(b.boot(good), OK, 1, "")
			b.want(b.boot(good.changed("hold: 3s", "hold: 5s")), OK, 1, "read-only file system")
		})
	}
}

// TestFullDisk: likewise one that is full; a new source is not taken, and its
// generation not half there.
func TestFullDisk(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	next := good.changed("hold: 3s", "hold: 5s")
	b.place.Run = filepath.Join(t.TempDir(), "run")
	inMounts(t, func() {
		dir := filepath.Join(b.dir, "edge-config")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Error(err)
			return
		}
		if err := unix.Mount("none", dir, "tmpfs", 0, "size=256k"); err != nil {
			t.Error(err)
			return
		}
		b.want(b.boot(good), OK, 1, "")
		full, err := os.Create(filepath.Join(dir, "full"))
		if err != nil {
			t.Error(err)
			return
		}
		for err == nil {
			_, err = full.Write(make([]byte, 1024))
		}
		full.Close()
		if unlock, err := b.store().Lock(); err != nil {
			t.Error(err)
		} else {
			unlock()
		}
		b.want(b.boot(next), OK, 1, "no space left")
		if all, err := os.ReadDir(filepath.Join(dir, "gen")); err != nil || len(all) != 1 {
			t.Errorf("generations: %v %v", all, err)
		}
		b.want(b.boot(good), OK, 1, "")
		os.Remove(full.Name())
		b.want(b.boot(next), OK, 2, "generation 2 was made")
	})
}

// TestPendingOfNobody: what is no change of this version is forgotten, and takes
// nothing away.
func TestPendingOfNobody(t *testing.T) {
	for _, text := range []string{
		"{}", "null", "[]", "1", "", `{"format":1,"boot_id":"x"}`, `{"format":1,"from":1,"to":1}`, `{"format":1,"from":-3,"to":1}`,
		`{"format":2,"undo":1,"redo":2}`, `{"format":2,"from":7,"to":1}`, strings.Repeat(" ", maxState) + "{}",
	} {
		b := newBox(t)
		good := goodTree(t)
		b.boot(good)
		if err := os.WriteFile(filepath.Join(b.dir, "edge-config", PendingFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := b.store().Pending(); p != nil || err == nil || !strings.Contains(err.Error(), "who removes") {
			t.Errorf("%.40s: %+v %v", text, p, err)
		}
		b.want(b.boot(good), OK, 1, "it is forgotten")
		b.want(b.boot(good), OK, 1, "")
	}
}

// TestFileAndFolder: a bundle may have a file and a folder of one name.
func TestFileAndFolder(t *testing.T) {
	good := goodTree(t).with(map[string]string{"secrets/a": "x", "secrets/a/b": "y"})
	b := newBuilder()
	b.bundle("bundle", pack(t, good, tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "of git archive"}}))
	if len(b.problems) > 0 {
		t.Error(b.problems)
	}
	if _, problems := Check(b.tree); len(problems) != 1 || !strings.Contains(problems.Error(), "secrets/a/b: secrets/a is a file") {
		t.Errorf("problems: %v", problems)
	}
}

// TestAnotherDisk: a large tree of something else is not read to its end.
func TestAnotherDisk(t *testing.T) {
	dir := t.TempDir()
	for i := range 60 {
		for j := range 60 {
			if err := os.MkdirAll(filepath.Join(dir, fmt.Sprint(i), fmt.Sprint(j)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i), fmt.Sprint(j), "x"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, problems, err := ReadTree(dir)
	if err != nil || len(problems) > maxLooked || !strings.Contains(problems[len(problems)-1].Error(), "here the reading ended") {
		t.Errorf("%d problems, the last is %v, %v", len(problems), problems[len(problems)-1], err)
	}
}

// faulty is a box whose volumes end the process that reads them.
type faulty struct{ oneVolume }

func (faulty) Open(string) (string, func(), error) { panic("PRIVATE KEY") }

// TestFault: a fault of ours in reading a source leaves the box as it was, or in rescue.
func TestFault(t *testing.T) {
	b := newBox(t)
	b.boots++
	b.want(b.with(faulty{oneVolume{"x"}}), Rescue, 0, "read the sources: a fault of this version (string)")
	b = newBox(t)
	good := goodTree(t)
	b.boot(good)
	b.want(b.with(faulty{oneVolume{"x"}}), OK, 1, "read the sources: a fault of this version (string)")
}

// TestLostGeneration: what a repair of the disk has taken away comes from the source
// again, although that was taken before; and without a source there is a rescue.
func TestLostGeneration(t *testing.T) {
	for name, lose := range map[string]func(dir string) error{
		"generation":    func(dir string) error { return os.RemoveAll(filepath.Join(dir, "gen/1")) },
		"all of them":   func(dir string) error { return os.RemoveAll(filepath.Join(dir, "gen")) },
		"its edge.yaml": func(dir string) error { return os.Remove(filepath.Join(dir, "gen/1/edge.yaml")) },
		"now a file": func(dir string) error {
			os.RemoveAll(filepath.Join(dir, "gen/1"))
			return os.WriteFile(filepath.Join(dir, "gen/1"), nil, 0o644)
		},
		"link": func(dir string) error {
			os.Remove(filepath.Join(dir, "current"))
			return os.Symlink("gen/x", filepath.Join(dir, "current"))
		},
		"link that is a file": func(dir string) error {
			os.Remove(filepath.Join(dir, "current"))
			return os.WriteFile(filepath.Join(dir, "current"), nil, 0o644)
		},
	} {
		b := newBox(t)
		good := goodTree(t)
		b.boot(good)
		if err := b.store().ConfirmBoot(); err != nil {
			t.Fatal(err)
		}
		if err := lose(filepath.Join(b.dir, "edge-config")); err != nil {
			t.Fatal(err)
		}
		if r := b.boot(nil); r.State != Rescue {
			t.Errorf("%s, without a source: %+v", name, r)
		}
		if r := b.boot(good); r.State != OK || len(r.Errors) > 0 {
			t.Errorf("%s: %+v", name, r)
		}
		if r := b.boot(good); r.State != OK || len(r.Errors)+len(r.Notes) > 0 {
			t.Errorf("%s, again: %+v", name, r)
		}
	}
	// What an operator has applied since, and was good, counts more than the source.
	b := newBox(t)
	good := goodTree(t)
	b.boot(good)
	if err := b.store().ConfirmBoot(); err != nil {
		t.Fatal(err)
	}
	n := add(t, b.store(), good.changed("hold: 3s", "hold: 5s"))
	if err := os.RemoveAll(b.store().dirOf(n)); err != nil {
		t.Fatal(err)
	}
	b.want(b.boot(good), OK, 1, "generation 1 is in force in its place")
}
