package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// made is a partition as a file, with the file system that makeOrCheck makes.
func made(t *testing.T, mib int64, arg ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "var")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(mib << 20); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if arg == nil {
		return file
	}
	cmd := exec.CommandContext(t.Context(), arg[0], append(arg[1:], file)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return file
}

func overwrite(t *testing.T, file string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

func TestProbe(t *testing.T) {
	mkfs := []string{"/sbin/mkfs.ext4", "-q", "-F", "-b", "4096"}
	junk, zeros := bytes.Repeat([]byte("junk"), 1024), make([]byte, 2<<20)
	cases := map[string]struct {
		mib   int64
		with  []string
		over  []byte
		want  varState
		found bool // a copy of the superblock
	}{
		"zeros":                              {mib: 64, want: varEmpty},
		"a file system":                      {mib: 64, with: mkfs, want: varExt4},
		"a large one":                        {mib: 300, with: mkfs, want: varExt4},
		"a large one, its beginning lost":    {mib: 300, with: mkfs, over: junk, want: varDamaged, found: true},
		"the same of a size of small groups": {mib: 260, with: mkfs, over: junk, want: varDamaged, found: true},
		"a small one, its beginning lost":    {mib: 64, with: mkfs, over: junk, want: varForeign},
		"an old one under a new image":       {mib: 300, with: mkfs, over: zeros, want: varEmpty},
		"something else":                     {mib: 64, over: junk, want: varForeign},
		"something else on a large one":      {mib: 300, over: junk, want: varForeign},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			file := made(t, c.mib, c.with...)
			overwrite(t, file, c.over)
			got, at, err := probeVar(file)
			if err != nil || got != c.want || (at != 0) != c.found {
				t.Errorf("state %d, copy at %d, want %d: %v", got, at, c.want, err)
			}
			if !c.found {
				return
			}
			// What was found is what e2fsck can use.
			out, err := exec.CommandContext(t.Context(), "/sbin/e2fsck", "-f", "-y", "-b", strconv.Itoa(at), "-B", "4096", file).CombinedOutput()
			if exit, ok := err.(*exec.ExitError); err != nil && (!ok || !corrected(exit.ExitCode())) {
				t.Errorf("e2fsck: %v\n%s", err, out)
			}
		})
	}
	if _, _, err := probeVar(made(t, 0)); err == nil {
		t.Error("a partition without a byte is probed")
	}
}

func TestCorrected(t *testing.T) {
	for code, want := range map[int]bool{0: true, 1: true, 2: true, 3: true, 4: false, 5: false, 8: false, 12: false, 16: false, 32: false, 128: false} {
		if corrected(code) != want {
			t.Errorf("exit status %d: %v", code, !want)
		}
	}
}

func TestMachineID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lib/edge-image/machine-id")
	first, fresh, err := machineID(file)
	if err != nil || !fresh || !isMachineID(first) {
		t.Fatalf("the first: %q, new %v, %v", first, fresh, err)
	}
	if again, fresh, err := machineID(file); err != nil || fresh || again != first {
		t.Errorf("again: %q, new %v, %v", again, fresh, err)
	}
	for _, wrong := range []string{"", "uninitialized\n", strings.Repeat("0", 32), strings.Repeat("g", 32), first + "0", strings.ToUpper(strings.Repeat("ab", 16))} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(wrong), 0o644); err != nil {
			t.Fatal(err)
		}
		id, fresh, err := machineID(file)
		if again, _, _ := machineID(file); err != nil || !fresh || !isMachineID(id) || id == first || again != id {
			t.Errorf("%q: %q, then %q, new %v, %v", wrong, id, again, fresh, err)
		}
	}
	// Where nothing can be written there is an id, and an error.
	if id, _, err := machineID(filepath.Join(file, "not-a-folder")); err == nil || !isMachineID(id) {
		t.Errorf("%q, %v", id, err)
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestNotes(t *testing.T) {
	dir := t.TempDir()
	n := &notes{}
	n.add("edge.disk", "/dev/vda")
	n.add("edge.var", "volatile")
	if err := n.write(dir, "a", "1.2.0"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"slot": "a\n", "version": "1.2.0\n", "notes": "edge.disk=/dev/vda\nedge.var=volatile\n"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// TestOnlyAsProcess1: run by hand it touches nothing.
func TestOnlyAsProcess1(t *testing.T) {
	program := filepath.Join(t.TempDir(), "initrd")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "first process of an initrd") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestIsFull: a disk that is full is still the box's own; one that fails is not.
func TestIsFull(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{&fs.PathError{Op: "write", Path: "/var/x", Err: unix.ENOSPC}, true},
		{errors.Join(&fs.PathError{Err: unix.ENOSPC}, fs.ErrClosed), true},
		{&fs.PathError{Err: unix.EDQUOT}, true},
		{&fs.PathError{Err: unix.EIO}, false},
		{errors.Join(&fs.PathError{Err: unix.ENOSPC}, &fs.PathError{Err: unix.EROFS}), false},
	} {
		if got := isFull(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}
