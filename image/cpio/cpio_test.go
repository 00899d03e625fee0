package cpio

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sample is an archive with files of all lengths modulo four.
func sample(t *testing.T, out io.Writer) {
	t.Helper()
	w := NewWriter(out)
	err := errors.Join(
		w.File("init", 0o755, []byte("#!/bin/sh\n")),
		w.Dir("proc", 0o555),
		w.File("lib/modules/a.ko", 0o644, []byte("a")),
		w.File("lib/modules/bb.ko", 0o600, []byte("bb")),
		w.File("lib/modules/ccc.ko", 0o644, []byte("ccc")),
		w.File("lib/empty", 0o644, nil),
		w.Dir("lib", 0o700), // it is there: no second entry
		w.Symlink("sbin", "usr/sbin"),
		w.Close())
	if err != nil {
		t.Fatal(err)
	}
}

func TestOthersReadIt(t *testing.T) {
	var archive bytes.Buffer
	sample(t, &archive)
	want := []string{"init", "proc", "lib", "lib/modules", "lib/modules/a.ko", "lib/modules/bb.ko", "lib/modules/ccc.ko", "lib/empty", "sbin"}
	for _, tool := range [][]string{{"cpio", "-t", "--quiet"}, {"bsdcpio", "-it"}} {
		cmd := exec.CommandContext(t.Context(), tool[0], tool[1:]...)
		cmd.Stdin = bytes.NewReader(archive.Bytes())
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", tool, err)
		}
		if diff := cmp.Diff(want, strings.Fields(string(out))); diff != "" {
			t.Errorf("%v: %s", tool, diff)
		}
	}
}

func TestUnpacked(t *testing.T) {
	var archive bytes.Buffer
	sample(t, &archive)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "cpio", "-i", "--quiet", "-m")
	cmd.Stdin, cmd.Dir = &archive, dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio -i: %v\n%s", err, out)
	}
	for name, want := range map[string]string{"init": "-rwxr-xr-x", "proc": "dr-xr-xr-x", "lib": "drwxr-xr-x", "lib/modules/bb.ko": "-rw-------", "sbin": "Lrwxrwxrwx"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || info.Mode().String() != want {
			t.Errorf("%s: %v, want %s: %v", name, info.Mode(), want, err)
		} else if info.Mode().IsRegular() && info.ModTime().Unix() != 0 {
			t.Errorf("%s: changed at %v", name, info.ModTime())
		}
	}
	for name, want := range map[string]string{"lib/modules/a.ko": "a", "lib/modules/ccc.ko": "ccc", "lib/empty": ""} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "sbin")); err != nil || to != "usr/sbin" {
		t.Errorf("sbin: %s, %v", to, err)
	}
}

func TestSameBytes(t *testing.T) {
	var a, b bytes.Buffer
	sample(t, &a)
	sample(t, &b)
	if !bytes.Equal(a.Bytes(), b.Bytes()) || a.Len()%4 != 0 {
		t.Errorf("two archives of %d and %d bytes differ", a.Len(), b.Len())
	}
}

func TestRefused(t *testing.T) {
	for _, name := range []string{"", ".", "/init", "a/../b", "a/", "a//b", "./a", "TRAILER!!!", strings.Repeat("x", 5000)} {
		if err := NewWriter(io.Discard).File(name, 0o644, nil); err == nil {
			t.Errorf("%.20q is taken", name)
		}
	}
	w := NewWriter(io.Discard)
	if err := errors.Join(w.File("a", 0o644, nil), w.File("a/b", 0o644, nil)); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file below a file: %v", err)
	}
	if err := w.Close(); err == nil {
		t.Error("an archive with an error is closed without one")
	}
	twice := NewWriter(io.Discard)
	if err := errors.Join(twice.File("a", 0o644, nil), twice.Symlink("a", "b")); err == nil {
		t.Error("a name is taken twice")
	}
}

func TestWriteError(t *testing.T) {
	w := NewWriter(full{})
	if err := w.File("a", 0o644, []byte(rand.Text())); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a full disk: %v", err)
	}
	if err := w.Close(); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("close after it: %v", err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
