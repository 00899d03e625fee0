package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/image/kmod"
)

func modules(t *testing.T) string {
	t.Helper()
	dirs, err := filepath.Glob("/usr/local/lib/catchment-test/linux-image-cloud-amd64/lib/modules/*")
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%d kernels, want one (sh test/install.sh test): %v", len(dirs), err)
	}
	return dirs[0]
}

func TestPack(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	for _, name := range []string{"a.cpio", "b.cpio", "a.cpio.zst"} {
		if err := pack(&log, program, modules(t), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(log.String(), "lacks: ") || !strings.Contains(log.String(), "megaraid_sas") {
		t.Errorf("what the kernel lacks is not said:\n%s", &log)
	}
	a, err := os.ReadFile(filepath.Join(dir, "a.cpio"))
	b, err2 := os.ReadFile(filepath.Join(dir, "b.cpio"))
	if err != nil || err2 != nil || !bytes.Equal(a, b) {
		t.Errorf("two archives differ: %v, %v", err, err2)
	}
	unpacked, err := exec.CommandContext(t.Context(), "zstd", "-dc", filepath.Join(dir, "a.cpio.zst")).Output()
	if err != nil || !bytes.Equal(a, unpacked) {
		t.Errorf("the compressed archive is another one: %v", err)
	}
	checkArchive(t, filepath.Join(dir, "a.cpio"))
}

// checkArchive: each module of the index is there, and nothing else that
// could be forgotten.
func checkArchive(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "cpio", "-i", "--quiet")
	cmd.Stdin, cmd.Dir = bytes.NewReader(b), dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "modules/index"))
	if err != nil {
		t.Fatal(err)
	}
	index, err := kmod.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(index) < 10 {
		t.Errorf("%d modules", len(index))
	}
	for _, m := range index {
		if _, err := os.Stat(filepath.Join(dir, "modules", m.Name+".ko")); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"init", "dev", "proc", "sys", "sysroot"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestRefused(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	if err := pack(io.Discard, filepath.Join(dir, "none"), modules(t), out); err == nil {
		t.Error("a program that is not there is packed")
	}
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := pack(io.Discard, program, dir, out); err == nil {
		t.Error("a folder without modules is packed")
	}
	if err := pack(io.Discard, program, modules(t), filepath.Join(dir, "no", "out")); err == nil {
		t.Error("written into a folder that is not there")
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("something was written")
	}
}
