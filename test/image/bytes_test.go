package image

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/test/vm"
)

// TestBytesTwice builds the image once more, from another folder, and compares.
func TestBytesTwice(t *testing.T) {
	t.Parallel()
	dir, err := filepath.Abs(*imageDir)
	if err != nil {
		t.Fatal(err)
	}
	cacheDir, err := filepath.Abs(*cache)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "../../image/repro.sh", *profile)
	cmd.Env = append(os.Environ(), "OUT="+dir, "CACHE="+cacheDir, "VERSION="+findBuilt(t).version)
	out, err := cmd.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	tail := lines[max(0, len(lines)-12):]
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(tail, "\n"))
	}
	t.Log(strings.Join(tail, "\n"))
}

// TestBytesOfNobody looks for what no two boxes may share in the image: once more than
// its build does, and once with something that has to be found.
func TestBytesOfNobody(t *testing.T) {
	t.Parallel()
	root, esp := t.TempDir(), t.TempDir()
	if err := extract(t.Context(), findBuilt(t), root, esp); err != nil {
		t.Fatal(err)
	}
	scan := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), "go", "run", "../../image/publish", "scan", "-root", root, "-esp", esp).CombinedOutput()
		return string(out), err
	}
	if out, err := scan(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, text := range map[string]string{
		"etc/ssh/ssh_host_ed25519_key": "", "etc/machine-id": "f79bea9dafa54440a6299445c0070954\n", "usr/share/key.pem": "-----BEGIN " + "PRIVATE KEY-----\n" + "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n" + "-----END " + "PRIVATE KEY-----\n",
	} {
		file := filepath.Join(root, name)
		before, _ := os.ReadFile(file)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := scan(); err == nil || !strings.Contains(out, "/"+name) {
			t.Errorf("%s is not found: %v: %s", name, err, out)
		}
		if err := os.WriteFile(file, before, 0o644); err != nil {
			t.Fatal(err)
		}
		if len(before) == 0 && name != "etc/machine-id" {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// extract takes the files of the root and of the EFI partition out of an image.
func extract(ctx context.Context, b built, root, esp string) error {
	p, err := vm.FindPartition(b.raw, "edge-root-a")
	if err != nil {
		return err
	}
	file := filepath.Join(esp, "..", "root.erofs")
	efi, err := vm.FindPartition(b.raw, espName)
	if err != nil {
		return err
	}
	for _, c := range [][]string{
		{"dd", "status=none", "bs=1M", "iflag=skip_bytes,count_bytes", "if=" + b.raw, "of=" + file, fmt.Sprintf("skip=%d", p.Offset), fmt.Sprintf("count=%d", p.Size)},
		{"fsck.erofs", "--extract=" + root, "--overwrite", file},
		{"mcopy", "-s", "-n", "-i", fmt.Sprintf("%s@@%d", b.raw, efi.Offset), "::/", esp},
	} {
		if out, err := exec.CommandContext(ctx, c[0], c[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("take the image apart: %s: %w: %s", c[0], err, out)
		}
	}
	return nil
}
