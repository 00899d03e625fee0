package slot

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// system is what a version consists of, unpacked.
type system struct {
	version           string
	verity, root, uki []byte
}

// newSystem makes one whose parts are random; the root hash is a sum of the verity
// part here, which the UKI is sealed with.
func newSystem(version string) system {
	rng := mrand.New(mrand.NewPCG(1, binary.BigEndian.Uint64(sum([]byte(version)))))
	fill := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	s := system{version: version, verity: fill(9000), root: fill(2*block + 700)}
	s.uki = program("roothash="+s.rootHash()+" edge.version="+version+" quiet", fill(block+300))
	return s
}

func sum(b []byte) []byte { s := sha256.Sum256(b); return s[:] }

func (s system) rootHash() string { return hex.EncodeToString(sum(s.verity[:4096])) }

// fakeRootHash is that of a system. The real one is image/verity's.
func fakeRootHash(r io.ReaderAt) (string, error) {
	b := make([]byte, 4096)
	_, err := r.ReadAt(b, 0)
	return hex.EncodeToString(sum(b)), err
}

// program is a PE file with the section .cmdline, as small as debug/pe takes it.
func program(cmdline string, rest []byte) []byte {
	const head = 0x80
	b := make([]byte, 1024)
	copy(b, "MZ")
	binary.LittleEndian.PutUint32(b[0x3c:], head)
	copy(b[head:], "PE\x00\x00")
	coff := b[head+4:]
	binary.LittleEndian.PutUint16(coff, 0x8664) // machine
	binary.LittleEndian.PutUint16(coff[2:], 1)  // sections
	section := coff[20:]                        // no optional header
	copy(section, ".cmdline")
	binary.LittleEndian.PutUint32(section[8:], uint32(len(cmdline)))
	binary.LittleEndian.PutUint32(section[16:], 512) // raw size
	binary.LittleEndian.PutUint32(section[20:], 512) // raw offset
	copy(b[512:], cmdline)
	return append(b, rest...)
}

// signer is a key with its certificate.
type signer struct {
	key  *ecdsa.PrivateKey
	cert []byte // PEM
}

func newSigner(t testing.TB) signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{key, certificate(t, &key.PublicKey, key)}
}

// certificate is one of a public key that has ended years ago: nobody may look.
func certificate(t testing.TB, pub, priv any) []byte {
	t.Helper()
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(86400, 0)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, pub, priv)
	if err != nil {
		t.Fatal(err)
	}
	return pemOf("CERTIFICATE", der)
}

func (s signer) sign(t testing.TB, b []byte) []byte {
	t.Helper()
	sig, err := ecdsa.SignASN1(rand.Reader, s.key, sum(b))
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

func (s signer) trusted(t testing.TB) Trusted {
	t.Helper()
	c, err := ParseTrusted(s.cert)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pack writes the payload of a system to a folder.
func (s system) pack(t testing.TB, by signer) (dir string, m *Manifest) {
	t.Helper()
	dir = t.TempDir()
	m = &Manifest{Format: 1, Version: s.version, Profile: "cloud", Arch: "x86-64", Commit: "c0ffee", Created: time.Unix(1e9, 0).UTC(), RootHash: s.rootHash()}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for p, b := range map[Part][]byte{Verity: s.verity, Root: s.root, Kernel: s.uki} {
		packed := z.EncodeAll(b, nil)
		name := fmt.Sprintf("edge_%s.%s.zst", s.version, p)
		put(t, filepath.Join(dir, name), packed)
		m.Files = append(m.Files, File{p, name, int64(len(b)), hex.EncodeToString(sum(b)), int64(len(packed)), hex.EncodeToString(sum(packed))})
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, ManifestName), text)
	put(t, filepath.Join(dir, SignatureName), by.sign(t, text))
	return dir, m
}

func put(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// packed fetches from a folder.
func packed(t testing.TB, dir string, m *Manifest) map[Part]string {
	t.Helper()
	out, err := (&Fetcher{From: folder(dir)}).Fetch(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func padded(b []byte, n int) []byte { return append(bytes.Clone(b), make([]byte, n-len(b))...) }
func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
