package units

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckESP: two names that share their clusters, as a power cut in a rename leaves
// them. One is whole after the check, the other holds nothing of it.
func TestCheckESP(t *testing.T) {
	root, bin := t.TempDir(), t.TempDir()
	image := filepath.Join(root, "dev/esp")
	program := bytes.Repeat([]byte("MZ, and so on. "), 20000)
	uki := filepath.Join(bin, "uki")
	mounts := filepath.Join(root, "proc/self/mountinfo")
	for path, text := range map[string]string{
		filepath.Join(bin, "systemctl"): "#!/bin/sh\necho /dev/esp\n", uki: string(program),
		mounts: "1 0 9:9 / / rw - ext4 /dev/root rw\n", image: "",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "truncate", "-s", "64M", image)
	run(t, "mkfs.vfat", "-F", "32", "-s", "1", image)
	run(t, "mmd", "-i", image, "::EFI", "::EFI/Linux")
	for _, name := range []string{"edge_1.2.0+2-1.efi", "edge_1.2.0.efi"} {
		run(t, "mcopy", "-i", image, uki, "::EFI/Linux/"+name)
	}
	share(t, image, len(program))

	check := func() (string, error) {
		os.Remove(filepath.Join(root, "run/edge-image/esp-checked"))
		out, err := command(t, "env", "PATH="+bin+":"+os.Getenv("PATH"), "appliance/usr/lib/edge/check-esp", root)
		if _, e := os.Stat(filepath.Join(root, "run/edge-image/esp-checked")); (e == nil) != (err == nil) {
			t.Errorf("%v, and said to be checked: %v", err, e == nil)
		}
		return out, err
	}
	if out, err := check(); err != nil || !strings.Contains(out, "hare") {
		t.Fatalf("%v: %s", err, out)
	}
	whole := 0
	for _, name := range []string{"edge_1.2.0+2-1.efi", "edge_1.2.0.efi"} {
		got := filepath.Join(t.TempDir(), "got")
		run(t, "mcopy", "-i", image, "::EFI/Linux/"+name, got)
		b, err := os.ReadFile(got)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case bytes.Equal(b, program):
			whole++
		case len(b) > 0:
			t.Errorf("%s has %d bytes", name, len(b))
		}
	}
	if whole != 1 {
		t.Errorf("%d are whole", whole)
	}
	if out, err := check(); err != nil || strings.Contains(out, "hare") {
		t.Errorf("again: %v: %s", err, out)
	}
	// Neither one that is mounted, nor what is no FAT.
	number := strings.TrimSpace(run(t, "stat", "-L", "-c", "%Hr:%Lr", image))
	if err := os.WriteFile(mounts, []byte("1 0 "+number+" / /efi rw - vfat /dev/esp rw\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := check(); err == nil || !strings.Contains(out, "is mounted") {
		t.Errorf("mounted: %v: %s", err, out)
	}
	if err := errors.Join(os.WriteFile(mounts, nil, 0o644), os.WriteFile(image, make([]byte, 1<<20), 0o644)); err != nil {
		t.Fatal(err)
	}
	if out, err := check(); err == nil {
		t.Errorf("what is no FAT is checked: %s", out)
	}
}

// TestCheckESPSalvages: the clusters of a UKI whose name was removed, and no more, come to a
// file that slot.RemoveSalvaged knows.
func TestCheckESPSalvages(t *testing.T) {
	dir := t.TempDir()
	image, uki := filepath.Join(dir, "esp"), filepath.Join(dir, "uki")
	if err := os.WriteFile(uki, bytes.Repeat([]byte("MZ, and so on. "), 20000), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "truncate", "-s", "64M", image)
	run(t, "mkfs.vfat", "-F", "32", "-s", "1", image)
	run(t, "mcopy", "-i", image, uki, "::EDGE.EFI")
	b, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte("EDGE    EFI"))] = 0xe5 // as a removed name begins
	if err := os.WriteFile(image, b, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := command(t, "fsck.vfat", "-a", image)
	if left := run(t, "mdir", "-b", "-i", image, "::"); !strings.Contains(left, "FSCK0000.REC") {
		t.Errorf("%v: %s\nand there is %s", err, out, left)
	}
}

// share has the second entry of this size begin where the first does.
func share(t *testing.T, image string, size int) {
	t.Helper()
	b, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	var entries [][]byte // of 32 bytes: attributes at 11, cluster at 20 and 26, size at 28
	for at := 0; at+32 <= len(b); at += 32 {
		if e := b[at : at+32]; e[11] == 0x20 && binary.LittleEndian.Uint32(e[28:]) == uint32(size) {
			entries = append(entries, e)
		}
	}
	if len(entries) != 2 {
		t.Fatalf("%d entries", len(entries))
	}
	copy(entries[1][20:22], entries[0][20:22])
	copy(entries[1][26:28], entries[0][26:28])
	if err := os.WriteFile(image, b, 0o644); err != nil {
		t.Fatal(err)
	}
}
