package verity

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// formatted gives a hash area that veritysetup made over random data, and the
// root hash that it printed.
func formatted(t *testing.T, blocks int, arg ...string) (area []byte, root string) {
	t.Helper()
	dir := t.TempDir()
	data, hashes := filepath.Join(dir, "data"), filepath.Join(dir, "hash")
	b := make([]byte, blocks*BlockSize)
	rand.NewChaCha8([32]byte{byte(blocks)}).Read(b)
	if err := os.WriteFile(data, b, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "veritysetup", append([]string{"format", data, hashes}, arg...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	m := regexp.MustCompile(`Root hash:\s+([0-9a-f]+)`).FindSubmatch(out)
	area, err = os.ReadFile(hashes)
	if m == nil || err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return area, string(m[1])
}

// TestRootHash: one level of hashes, a full one, two, three; with and without a salt.
func TestRootHash(t *testing.T) {
	for _, blocks := range []int{2, 5, 128, 129, 1000, 17000} {
		for _, salt := range []string{"-", "00", strings.Repeat("5a", 256), "1b92ae0ef78c8453440c864cf378fedfd1da38240b23c3768ba2ee38e1ed0d6f"} {
			area, want := formatted(t, blocks, "--salt="+salt, "--uuid=11111111-2222-3333-4444-555555555555")
			got, err := Read(bytes.NewReader(area))
			if err != nil || got.Root.String() != want || got.Bytes() != int64(blocks*BlockSize) {
				t.Errorf("%d blocks, salt %.10s: %v, %d bytes, want %s: %v", blocks, salt, got.Root, got.Bytes(), want, err)
			}
			if h, err := ParseHash(want); err != nil || h != got.Root {
				t.Errorf("%s is read as %v, %v", want, h, err)
			}
		}
	}
}

func TestChangedTopBlock(t *testing.T) {
	area, want := formatted(t, 200)
	area[BlockSize+70] ^= 1
	if got, err := Read(bytes.NewReader(area)); err != nil || got.Root.String() == want {
		t.Errorf("a changed block has the hash %v, %v", got.Root, err)
	}
}

func TestRefused(t *testing.T) {
	for _, arg := range []string{"--hash=sha512", "--format=0", "--data-block-size=1024", "--hash-block-size=1024"} {
		area, _ := formatted(t, 8, arg)
		area = append(area, make([]byte, 2*BlockSize)...)
		if _, err := Read(bytes.NewReader(area)); err == nil || errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", arg, err)
		}
	}
	one, _ := formatted(t, 1)
	for name, area := range map[string][]byte{"zeros": make([]byte, 2*BlockSize), "one block": append(one, make([]byte, BlockSize)...), "short": make([]byte, BlockSize)} {
		_, err := Read(bytes.NewReader(area))
		if err == nil || (name == "zeros") != errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, s := range []string{"", "12", strings.Repeat("g", 64), strings.Repeat("a", 66)} {
		if _, err := ParseHash(s); err == nil {
			t.Errorf("the root hash %q is taken", s)
		}
	}
}

func TestTable(t *testing.T) {
	root := Hash{0xab}
	s := Superblock{Blocks: 7}
	want := "1 254:2 254:1 4096 4096 7 1 sha256 ab" + strings.Repeat("00", 31) + " - 1 panic_on_corruption"
	if got := s.table(root, "254:2", "254:1"); got != want {
		t.Errorf("%s", got)
	}
	s.Salt = []byte{1, 2}
	if got := s.table(root, "254:2", "254:1"); !strings.HasSuffix(got, " 0102 1 panic_on_corruption") {
		t.Errorf("%s", got)
	}
	target := Device{Name: "root", Data: "254:2", Hashes: "254:1", Super: s, Root: root}.target()
	if len(target)%8 != 0 || binary.NativeEndian.Uint64(target[8:]) != 56 || int(binary.NativeEndian.Uint32(target[20:])) != len(target) {
		t.Errorf("a target of %d bytes: %x", len(target), target)
	}
}

// TestNoDevice: what the kernel says no to is an error that names the device.
// This file is no device mapper.
func TestNoDevice(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "control"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := (Device{Name: "root"}).Activate(f); err == nil || !strings.Contains(err.Error(), "root") {
		t.Error(err)
	}
	if _, err := (Device{Name: strings.Repeat("x", 128)}).Activate(f); err == nil {
		t.Error("a name without an end is taken")
	}
}

func FuzzParse(f *testing.F) {
	b := make([]byte, 512)
	copy(b, "verity\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00")
	copy(b[32:], "sha256")
	copy(b[64:], []byte{0, 16, 0, 0, 0, 16, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 4, 0})
	if _, err := Parse(b); err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse(b)
		if err == nil && (s.Bytes() <= 0 || len(s.Salt) > mostSalt || len(fmt.Sprint(s.table(Hash{}, "1:1", "1:2"))) > 1024) {
			t.Errorf("%+v", s)
		}
	})
}
