package slot

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// fixtureSum is the Authenticode sum of the programs in testdata/firmware.
const fixtureSum = "08505557a20dc7123bb5740b054abdfd7c44d6bfb7d36e67072e3d5e29a08fa3"

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/firmware", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// list is an EFI_SIGNATURE_LIST of entries that are equally long.
func list(kind string, entries ...[]byte) []byte {
	b, err := hex.DecodeString(kind)
	if err != nil {
		panic(err)
	}
	size := 16 + len(entries[0])
	for _, n := range []int{28 + size*len(entries), 0, size} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	for _, e := range entries {
		b = append(append(b, make([]byte, 16)...), e...)
	}
	return b
}

// firmware is a folder of variables; nil: it is not set.
func firmware(t testing.TB, on byte, db, dbx []byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, value := range map[string][]byte{secureBootVariable: {on}, allowedVariable: db, forbiddenVariable: dbx} {
		if value != nil {
			put(t, filepath.Join(dir, name), append([]byte{6, 0, 0, 0}, value...))
		}
	}
	return dir
}

// taken asks a firmware of such variables whether it takes a program.
func taken(t testing.TB, program, db, dbx []byte) error {
	t.Helper()
	f, err := ReadFirmware(firmware(t, 1, db, dbx))
	if err != nil {
		t.Fatal(err)
	}
	return f.takes(bytes.NewReader(program), int64(len(program)))
}

func TestFirmwareTakes(t *testing.T) {
	signer := fixture(t, "signer.der")
	stranger, _ := pem.Decode(newSigner(t).cert)
	c, err := x509.ParseCertificate(signer)
	if err != nil {
		t.Fatal(err)
	}
	sum, _ := hex.DecodeString(fixtureSum)
	body := sha256.Sum256(c.RawTBSCertificate)
	ours, theirs := list(listX509, signer), list(listX509, stranger.Bytes)
	other := list("00112233445566778899aabbccddeeff", []byte("what no one knows"))
	for _, name := range []string{"sbsign.efi", "osslsigncode.efi"} {
		program := fixture(t, name)
		for what, c := range map[string]struct {
			db, dbx []byte
			want    string
		}{
			"its certificate":            {db: ours},
			"behind others":              {db: slices.Concat(other, theirs, ours)},
			"its sum":                    {db: list(listSHA256, make([]byte, 32), sum)},
			"others forbidden":           {db: ours, dbx: slices.Concat(theirs, list(listSHA256, make([]byte, 32)))},
			"a stranger's":               {db: theirs, want: `signed by "CN=fixture", and Secure Boot takes "CN=test" only`},
			"none":                       {want: "no certificate that can be read"},
			"another sum":                {db: list(listSHA256, make([]byte, 32)), want: "signed by"},
			"its certificate, forbidden": {db: ours, dbx: ours, want: "forbids (dbx)"},
			"its body, forbidden":        {db: ours, dbx: list(listX509Body, append(body[:], make([]byte, 16)...)), want: "forbids (dbx)"},
			"its sum, forbidden":         {db: ours, dbx: list(listSHA256, sum), want: "its very sum is one"},
		} {
			if err := taken(t, program, c.db, c.dbx); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s, %s: %v, want %q", name, what, err, c.want)
			}
		}
		// The sum covers each byte but those that signing changes.
		at := slices.Index(program, 'a')
		changed := bytes.Clone(program)
		changed[at]++
		if err := taken(t, changed, list(listSHA256, sum), nil); err == nil {
			t.Errorf("%s: a program that was changed is taken by its sum", name)
		}
		if err := taken(t, program[:1024], ours, nil); err == nil {
			t.Errorf("%s: cut, it is taken", name)
		}
	}
}

// TestFirmwareChain: firmware trusts whom a trusted one has signed, if the way there is
// in the signature.
func TestFirmwareChain(t *testing.T) {
	dir := t.TempDir()
	command := func(args ...string) {
		cmd := exec.CommandContext(t.Context(), "openssl", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("openssl %v: %v\n%s", args, err, out)
		}
	}
	put(t, filepath.Join(dir, "content"), []byte("x"))
	key := []string{"-newkey", "rsa:2048", "-nodes", "-sha256", "-days", "10", "-batch"}
	command(append([]string{"req", "-x509", "-subj", "/CN=root/", "-keyout", "root.key", "-out", "root.pem"}, key...)...)
	command(append([]string{"req", "-x509", "-subj", "/CN=middle/", "-keyout", "middle.key", "-out", "middle.pem", "-CA", "root.pem", "-CAkey", "root.key"}, key...)...)
	command(append([]string{"req", "-x509", "-subj", "/CN=leaf/", "-keyout", "leaf.key", "-out", "leaf.pem", "-CA", "middle.pem", "-CAkey", "middle.key"}, key...)...)
	der := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name+".pem"))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(b)
		return block.Bytes
	}
	sign := []string{"cms", "-sign", "-binary", "-nodetach", "-in", "content", "-outform", "DER", "-signer", "leaf.pem", "-inkey", "leaf.key", "-out", "signature"}
	for _, c := range []struct {
		with    string
		trusted string
		want    string
	}{
		{"", "leaf", ""}, {"", "middle", ""}, {"middle.pem", "root", ""},
		{"", "root", `signed by "CN=leaf", and Secure Boot takes "CN=root" only`},
	} {
		args := sign
		if c.with != "" {
			args = append(slices.Clone(sign), "-certfile", c.with)
		}
		command(args...)
		b, err := os.ReadFile(filepath.Join(dir, "signature"))
		if err != nil {
			t.Fatal(err)
		}
		err = taken(t, withTable(fixture(t, "sbsign.efi")[:1024], b), list(listX509, der(c.trusted)), nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("signed with %q, %s is trusted: %v", c.with, c.trusted, err)
		}
	}
	if err := taken(t, withTable(fixture(t, "sbsign.efi")[:1024], nil), list(listX509, der("leaf")), nil); err == nil || !strings.Contains(err.Error(), "not signed") {
		t.Errorf("without a signature: %v", err)
	}
}

// withTable gives the program of the fixtures another certificate table.
func withTable(program, signature []byte) []byte {
	const entry = 0x58 + 112 + 8*4
	b := bytes.Clone(program)
	if signature == nil {
		copy(b[entry:], make([]byte, 8))
		return b
	}
	table := binary.LittleEndian.AppendUint32(nil, uint32(8+len(signature)))
	table = append(append(table, 0, 2, 2, 0), signature...)
	table = append(table, make([]byte, (8-len(table)%8)%8)...)
	binary.LittleEndian.PutUint32(b[entry:], uint32(len(b)))
	binary.LittleEndian.PutUint32(b[entry+4:], uint32(len(table)))
	return append(b, table...)
}

func TestReadFirmware(t *testing.T) {
	for name, dir := range map[string]string{"no firmware": t.TempDir(), "off": firmware(t, 0, []byte("nonsense"), nil), "in setup": firmware(t, 0, nil, nil)} {
		f, err := ReadFirmware(dir)
		if err != nil || f.Enforces {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
		// Nothing of the payload is read.
		if err := f.TakesPacked(t.Context(), &Manifest{}, "/nonexistent"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, db := range map[string][]byte{"short": make([]byte, 27), "too long": list(listX509, make([]byte, 100))[:120], "no size": append(make([]byte, 16), 28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)} {
		if f, err := ReadFirmware(firmware(t, 1, db, nil)); err == nil {
			t.Errorf("%s: %+v", name, f)
		}
	}
	short := firmware(t, 1, nil, nil)
	put(t, filepath.Join(short, allowedVariable), []byte{1})
	if _, err := ReadFirmware(short); err == nil {
		t.Error("a variable without attributes is read")
	}
}

func TestTakesPacked(t *testing.T) {
	program := fixture(t, "sbsign.efi")
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "uki.zst")
	put(t, path, z.EncodeAll(program, nil))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	m := &Manifest{Version: "1.2.0", Files: []File{{Part: Kernel, Size: int64(len(program))}}}
	f, err := ReadFirmware(firmware(t, 1, list(listX509, fixture(t, "signer.der")), nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.TakesPacked(t.Context(), m, path); err != nil {
		t.Error(err)
	}
	f.allowed = signatures{}
	if err := f.TakesPacked(t.Context(), m, path); err == nil || !strings.Contains(err.Error(), "would not start version 1.2.0") || !strings.Contains(err.Error(), "docs/image.md") {
		t.Error(err)
	}
}

func FuzzSignatures(f *testing.F) {
	f.Add(list(listX509, []byte("a certificate")))
	f.Add(slices.Concat(list(listSHA256, make([]byte, 32), make([]byte, 32)), list(listX509Body, make([]byte, 48))))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSignatures(b)
		if n := len(s.certificates) + len(s.sums) + len(s.bodies); err == nil && 17*n > len(b) {
			t.Errorf("%d entries in %d bytes", n, len(b))
		}
	})
}

func FuzzProgram(f *testing.F) {
	for _, name := range []string{"sbsign.efi", "osslsigncode.efi"} {
		f.Add(fixture(f, name))
	}
	firmware := &Firmware{Enforces: true, allowed: signatures{certificates: [][]byte{fixture(f, "signer.der")}}}
	f.Fuzz(func(t *testing.T, b []byte) {
		table, _, err := readProgram(bytes.NewReader(b), int64(len(b)))
		if err == nil && len(table) >= len(b) {
			t.Errorf("a table of %d bytes in %d", len(table), len(b))
		}
		// Whatever it is: an answer.
		_ = firmware.takes(bytes.NewReader(b), int64(len(b)))
	})
}

func FuzzTable(f *testing.F) {
	for _, name := range []string{"sbsign.efi", "osslsigncode.efi"} {
		f.Add(fixture(f, name)[1024:])
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		signed, _ := parseTable(b)
		for _, s := range signed {
			s.certificates()
		}
	})
}
