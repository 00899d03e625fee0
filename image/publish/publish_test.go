package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge/image/slot"
)

const when = 1700000000 // 2023-11-14 22:13:20 UTC

// command runs a program of the machine and returns what it writes.
func command(t *testing.T, in []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return out
}

// keys makes two keys with certificates: current and next.
func keys(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"current", "next"} {
		command(t, nil, "openssl", "req", "-x509", "-newkey", "rsa:2048", "-sha256", "-nodes", "-days", "10", "-batch", "-subj", "/CN="+name+"/",
			"-keyout", filepath.Join(dir, name+".key"), "-out", filepath.Join(dir, name+".crt"))
	}
	return dir
}

func certificate(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestVerbs(t *testing.T) {
	for _, args := range [][]string{nil, {"publish"}, {"payload"}, {"payload", "-version", "1"}, {"enrol", "-key", "k"}, {"sbom", "-name", "n"}, {"scan", "-root", "/"}, {"scan", "-what"}} {
		if err := run(args, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

// uki returns a PE file that has a command line and nothing else.
func uki(cmdline string) []byte {
	const raw = 0x1000 // a box takes none of less than a block
	b := make([]byte, raw, raw+len(cmdline))
	copy(b, "MZ")
	binary.LittleEndian.PutUint32(b[0x3c:], 0x40)
	copy(b[0x40:], "PE\x00\x00")
	coff := b[0x44:]
	binary.LittleEndian.PutUint16(coff, 0x8664)
	binary.LittleEndian.PutUint16(coff[2:], 1) // sections; no optional header
	section := coff[20:]
	copy(section, ".cmdline")
	binary.LittleEndian.PutUint32(section[8:], uint32(len(cmdline)))
	binary.LittleEndian.PutUint32(section[16:], uint32(len(cmdline)))
	binary.LittleEndian.PutUint32(section[20:], raw)
	return append(b, cmdline...)
}

// built writes what mkosi gives: a root in a partition larger than its data, the
// hashes made by veritysetup in one larger than they are, and a UKI.
func built(t *testing.T, version string) (p payload) {
	t.Helper()
	dir := t.TempDir()
	p = payload{
		Manifest: slot.Manifest{Format: 1, Version: version, Profile: "cloud", Arch: "x86-64", Commit: "c0ffee", Created: stamp(when)},
		uki:      filepath.Join(dir, "edge.efi"), root: filepath.Join(dir, "root"), verity: filepath.Join(dir, "verity"),
	}
	data := bytes.Repeat([]byte("the root of a box.\n"), 300*4096/19+1)[:300*4096] // 300 blocks: a tree of two levels
	if err := os.WriteFile(p.root, data, 0o600); err != nil {
		t.Fatal(err)
	}
	out := command(t, nil, "veritysetup", "format", "--salt=00ff", "--uuid=6f1c6bf4-9bb4-4f4a-9b6b-0f4b8f0a1c11", p.root, p.verity)
	_, after, _ := strings.Cut(string(out), "Root hash:")
	roothash := strings.Fields(after)[0]
	for name, size := range map[string]int64{p.root: 8 << 20, p.verity: 1 << 20} {
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(p.uki, uki("quiet roothash="+roothash+" edge.version="+version+"\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.RootHash = roothash
	return p
}

func TestPayload(t *testing.T) {
	dir, out := keys(t), t.TempDir()
	p := built(t, "1.2.0-rc1")
	args := []string{"payload", "-version", p.Version, "-profile", "cloud", "-commit", "c0ffee", "-time", "1700000000",
		"-esp", "536870912", "-uki", p.uki, "-root", p.root, "-verity", p.verity, "-key", filepath.Join(dir, "current.key"), "-cert", filepath.Join(dir, "current.crt")}
	if err := run(append(args, "-out", out), io.Discard); err != nil {
		t.Fatal(err)
	}
	m := asABoxDoes(t, out, filepath.Join(dir, "current.crt"))
	if m.Format != 1 || m.Version != p.Version || m.Profile != "cloud" || m.Arch != "x86-64" || m.RootHash != p.RootHash || m.Created.Unix() != when || len(m.Files) != 3 {
		t.Errorf("manifest: %+v", m)
	}
	// 300 hashes of 128 in a block: 3 blocks, 1 above them, the superblock.
	sizes := map[slot.Part]int64{slot.Verity: 5 * 4096, slot.Root: 300 * 4096, slot.Kernel: int64(len(uki("quiet roothash=" + p.RootHash + " edge.version=1.2.0-rc1\x00")))}
	for _, f := range m.Files {
		packed, err := os.ReadFile(filepath.Join(out, f.Name))
		if err != nil {
			t.Fatal(err)
		}
		plain := command(t, packed, "zstd", "-dc")
		if int64(len(plain)) != f.Size || f.Size != sizes[f.Part] || hash(plain) != f.SHA256 || int64(len(packed)) != f.PackedSize || hash(packed) != f.PackedSHA256 {
			t.Errorf("%s: %d bytes, want %d; the manifest: %+v", f.Part, len(plain), sizes[f.Part], f)
		}
		if err := os.WriteFile(filepath.Join(out, string(f.Part)), plain, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// What was cut off does not count.
	command(t, nil, "veritysetup", "verify", filepath.Join(out, "root"), filepath.Join(out, "verity"), m.RootHash)

	again := t.TempDir()
	if err := run(append(args, "-out", again), io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"manifest.json", "manifest.json.sig", m.Files[0].Name, m.Files[1].Name, m.Files[2].Name} {
		a, errA := os.ReadFile(filepath.Join(out, name))
		b, errB := os.ReadFile(filepath.Join(again, name))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: written twice, it differs (%v, %v)", name, errA, errB)
		}
	}
}

// TestESPOfTheImage: each build is held to three times its UKI and 64 MiB; there is room
// for one three times as large as that of real machines is now.
func TestESPOfTheImage(t *testing.T) {
	b, err := os.ReadFile("../mkosi/mkosi.repart/10-esp.conf")
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for line := range strings.Lines(string(b)) {
		if mib, ok := strings.CutPrefix(line, "SizeMinBytes="); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(mib), "M"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			size = n << 20
		}
	}
	if least := slot.LeastESP(3 * 39 << 20); size < least {
		t.Errorf("the EFI partition has %d bytes, want %d", size, least)
	}
}

// asABoxDoes reads the manifest of a payload and checks who signed it.
func asABoxDoes(t *testing.T, dir, certificate string) *slot.Manifest {
	t.Helper()
	from, err := slot.OpenSource(dir, slot.SourceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(certificate)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := slot.ParseTrusted(b)
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := slot.FetchManifest(t.Context(), from, trusted)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestPayloadRefused(t *testing.T) {
	dir := keys(t)
	for name, spoil := range map[string]func(*payload) error{
		"the UKI is sealed with \"edge.version=1.2.0\"": func(p *payload) error { p.Version = "1.2.1"; return nil },
		"the UKI is sealed with \"roothash=0000": func(p *payload) error {
			return os.WriteFile(p.uki, uki("roothash="+strings.Repeat("0", 64)+" edge.version=1.2.0"), 0o600)
		},
		"no verity superblock":               func(p *payload) error { return os.WriteFile(p.verity, make([]byte, 8192), 0o600) },
		"want 1228800":                       func(p *payload) error { return os.Truncate(p.root, 4096) },
		"openssl dgst":                       func(p *payload) error { p.key += "-gone"; return nil },
		"is not that of the key":             func(p *payload) error { p.certificate = filepath.Join(dir, "next.crt"); return nil },
		"no such file":                       func(p *payload) error { return os.Remove(p.uki) },
		"the EFI partition 64 MiB: at least": func(p *payload) error { p.esp = 64<<20 + 3*4096; return nil }, // it has a command line too
	} {
		p, out := built(t, "1.2.0"), t.TempDir()
		p.key, p.certificate = key(filepath.Join(dir, "current.key")), filepath.Join(dir, "current.crt")
		if err := spoil(&p); err != nil {
			t.Fatal(err)
		}
		if err := p.write(out); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want %q: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(out, "manifest.json")); err == nil {
			t.Errorf("%s: there is a manifest all the same", name)
		}
	}
}

func TestEnrol(t *testing.T) {
	dir, out := keys(t), t.TempDir()
	current, next := filepath.Join(dir, "current.crt"), filepath.Join(dir, "next.crt")
	args := []string{"enrol", "-key", filepath.Join(dir, "current.key"), "-cert", current, "-next", next, "-time", "1700000000", "-out", out}
	if err := run(args, io.Discard); err != nil {
		t.Fatal(err)
	}
	a, b := certificate(t, current).Raw, certificate(t, next).Raw
	for _, v := range []struct {
		name, vendor string
		certs        [][]byte
	}{
		{"PK", "61dfe48bca93d211aa0d00e098032b8c", [][]byte{a}},
		{"KEK", "61dfe48bca93d211aa0d00e098032b8c", [][]byte{a, b}},
		{"db", "cbb219d73a3d9645a3bcdad00e67656f", [][]byte{a, b}},
	} {
		auth, err := os.ReadFile(filepath.Join(out, v.name+".auth"))
		if err != nil {
			t.Fatal(err)
		}
		// 2023-11-14 22:13:20
		if want := []byte{0xe7, 7, 11, 14, 22, 13, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0}; !bytes.Equal(auth[:16], want) {
			t.Errorf("%s: time %x, want %x", v.name, auth[:16], want)
		}
		length := binary.LittleEndian.Uint32(auth[16:])
		signed, lists := auth[40:16+length], auth[16+length:]
		if got := certificates(t, lists); !slices.EqualFunc(got, v.certs, bytes.Equal) {
			t.Errorf("%s: has %d certificates, or others; want %d", v.name, len(got), len(v.certs))
		}
		checkSigned(t, signed, slices.Concat(utf16le(v.name), unhex(v.vendor), []byte{0x27, 0, 0, 0}, auth[:16], lists), current)
	}
}

// certificates reads EFI_SIGNATURE_LISTs.
func certificates(t *testing.T, b []byte) (ders [][]byte) {
	t.Helper()
	for len(b) > 0 {
		if !bytes.Equal(b[:16], unhex("a159c0a5e494a74a87b5ab155c2bf072")) {
			t.Fatalf("signature list of type %x", b[:16])
		}
		list, header, size := binary.LittleEndian.Uint32(b[16:]), binary.LittleEndian.Uint32(b[20:]), binary.LittleEndian.Uint32(b[24:])
		if header != 0 || list != 28+size {
			t.Fatalf("signature list of %d bytes, header %d, signature %d", list, header, size)
		}
		ders = append(ders, b[28+16:list])
		b = b[list:]
	}
	return ders
}

// checkSigned has openssl check a bare SignedData over the content.
func checkSigned(t *testing.T, signed, content []byte, cert string) {
	t.Helper()
	if !bytes.Contains(signed[:32], unhex("608648016503040201")) || signed[0] != 0x30 {
		t.Errorf("firmware looks for SHA-256 near the beginning of the SignedData: %x", signed[:32])
	}
	data := asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}
	wrapped, err := asn1.Marshal(struct {
		Type    asn1.ObjectIdentifier
		Content asn1.RawValue
	}{data, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true, Bytes: signed}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "content")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, wrapped, "openssl", "cms", "-verify", "-binary", "-inform", "DER", "-content", name, "-CAfile", cert, "-purpose", "any", "-no_check_time", "-out", os.DevNull)
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

func utf16le(s string) (b []byte) {
	for _, c := range []byte(s) {
		b = append(b, c, 0)
	}
	return b
}

func TestEnrolRefused(t *testing.T) {
	dir := keys(t)
	current, k := filepath.Join(dir, "current.crt"), key(filepath.Join(dir, "current.key"))
	both := filepath.Join(dir, "both.crt")
	pem, err := os.ReadFile(current)
	if err == nil {
		err = os.WriteFile(both, slices.Concat(pem, pem), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for next, want := range map[string]string{
		current:                        "that of the first one",
		both:                           "more than one certificate",
		filepath.Join(dir, "next.key"): "no certificate in PEM",
		filepath.Join(dir, "nowhere"):  "no such file",
	} {
		if _, err := enrol(k, current, next, time.Unix(when, 0)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q: %v", next, want, err)
		}
	}
	// A certificate that is not the key's.
	if _, err := enrol(k, filepath.Join(dir, "next.crt"), current, time.Unix(when, 0)); err == nil {
		t.Error("a certificate of another key signs")
	}
}
