package slot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Firmware is what Secure Boot says of programs: which it starts. The zero Firmware
// starts all, as one does whose Secure Boot is off.
type Firmware struct {
	// Enforces says that Secure Boot is on.
	Enforces bool

	allowed, forbidden signatures // db and dbx
}

// The variables of UEFI 2.10, sections 3.3 and 32.6.1.
const (
	secureBootVariable = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	allowedVariable    = "db-d719b2cb-3d3a-4596-a3bc-dad00e67656f"
	forbiddenVariable  = "dbx-d719b2cb-3d3a-4596-a3bc-dad00e67656f"
)

// ReadFirmware asks the variables in a folder as efivarfs shows them.
func ReadFirmware(dir string) (*Firmware, error) {
	f := &Firmware{}
	on, err := readVariable(dir, secureBootVariable)
	if err != nil || !bytes.Equal(on, []byte{1}) {
		return f, err
	}
	f.Enforces = true
	for name, to := range map[string]*signatures{allowedVariable: &f.allowed, forbiddenVariable: &f.forbidden} {
		b, err := readVariable(dir, name)
		if err != nil {
			return nil, err
		}
		if *to, err = parseSignatures(b); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return f, nil
}

// readVariable returns the value behind the four bytes of attributes; nil: it is not
// set, or the machine has no such firmware.
func readVariable(dir, name string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read variable of the firmware: %w", err)
	case len(b) < 4:
		return nil, fmt.Errorf("read %s: %d bytes, at least 4 are needed", name, len(b))
	}
	return b[4:], nil
}

// TakesPacked says why this firmware would not start the UKI of a payload that was
// fetched; nil: it would. It is asked before anything is written, since a box that is
// given a UKI like this has one version less, and perhaps none that it gets back to.
func (f *Firmware) TakesPacked(ctx context.Context, m *Manifest, path string) error {
	if !f.Enforces {
		return nil
	}
	file := m.File(Kernel)
	z, done, err := openPacked(ctx, path)
	if err == nil {
		err = f.takes(z, file.Size)
		done()
	}
	if err != nil {
		return fmt.Errorf("the firmware of this box would not start version %s: %w; nothing was written. Take a version that a key signs which the firmware knows, or enrol the new certificate first; see Keys in docs/image.md", m.Version, err)
	}
	return nil
}

// takes is TakesPacked for a program of so many bytes.
func (f *Firmware) takes(program io.Reader, size int64) error {
	table, digest, err := readProgram(program, size)
	if err != nil {
		return fmt.Errorf("read UKI: %w", err)
	}
	if f.forbidden.hasSum(digest) {
		return errors.New("its very sum is one that Secure Boot forbids (dbx)")
	}
	if f.allowed.hasSum(digest) {
		return nil
	}
	signed, err := parseTable(table)
	if err != nil {
		return fmt.Errorf("read signature of UKI: %w", err)
	}
	if len(signed) == 0 {
		return errors.New("it is not signed, and Secure Boot is on")
	}
	var why error
	for _, s := range signed {
		for _, info := range s.Signers {
			err := f.takesSigner(s.certificates(), info)
			if err == nil {
				return nil
			}
			why = errors.Join(why, err)
		}
	}
	return why
}

// longestChain bounds the way from who signed to who is trusted.
const longestChain = 8

// takesSigner says why one signature does not count: neither who signed nor who
// signed that certificate is in db, or one of them is in dbx.
func (f *Firmware) takesSigner(table []*x509.Certificate, info signerInfo) error {
	i := slices.IndexFunc(table, func(c *x509.Certificate) bool {
		return info.ID.Serial != nil && bytes.Equal(c.RawIssuer, info.ID.Issuer.FullBytes) && c.SerialNumber.Cmp(info.ID.Serial) == 0
	})
	if i < 0 {
		return errors.New("its signature does not have the certificate of who signed it")
	}
	name := table[i].Subject.String()
	c := table[i]
	for range longestChain {
		if f.forbidden.hasCertificate(c) {
			return fmt.Errorf("it is signed by %q, which Secure Boot forbids (dbx)", name)
		}
		if f.allowed.hasCertificate(c) || slices.ContainsFunc(f.allowed.parsed(), func(by *x509.Certificate) bool { return signs(by, c) }) {
			return nil
		}
		next := slices.IndexFunc(table, func(by *x509.Certificate) bool { return !by.Equal(c) && signs(by, c) })
		if next < 0 {
			break
		}
		c = table[next]
	}
	return fmt.Errorf("it is signed by %q, and Secure Boot takes %s only (db)", name, f.allowed.names())
}

func signs(by, c *x509.Certificate) bool {
	return bytes.Equal(by.RawSubject, c.RawIssuer) && by.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil
}

// signatures are what a list of the firmware names.
type signatures struct {
	certificates [][]byte          // DER
	sums         map[[32]byte]bool // of programs
	bodies       map[[32]byte]bool // of the signed part of certificates
}

func (s signatures) hasSum(sum [32]byte) bool { return s.sums[sum] }

func (s signatures) hasCertificate(c *x509.Certificate) bool {
	return s.bodies[sha256.Sum256(c.RawTBSCertificate)] || slices.ContainsFunc(s.certificates, func(der []byte) bool { return bytes.Equal(der, c.Raw) })
}

// parsed are the certificates that Go can read.
func (s signatures) parsed() (out []*x509.Certificate) {
	for _, der := range s.certificates {
		if c, err := x509.ParseCertificate(der); err == nil {
			out = append(out, c)
		}
	}
	return out
}

// names are whom they are of, for people.
func (s signatures) names() string {
	var out []string
	for _, c := range s.parsed() {
		out = append(out, fmt.Sprintf("%q", c.Subject))
	}
	if len(out) == 0 {
		return "no certificate that can be read"
	}
	return strings.Join(out, ", ")
}

// signedData is that of PKCS #7 (RFC 2315 section 9.1), as Authenticode has it.
type signedData struct {
	Version      int
	Digests      asn1.RawValue
	Content      asn1.RawValue
	Certificates asn1.RawValue `asn1:"optional,tag:0"`
	Revoked      asn1.RawValue `asn1:"optional,tag:1"`
	Signers      []signerInfo  `asn1:"set"`
}

type signerInfo struct {
	Version int
	ID      struct {
		Issuer asn1.RawValue
		Serial *big.Int
	}
	Digest     asn1.RawValue
	Attributes asn1.RawValue `asn1:"optional,tag:0"`
	Algorithm  asn1.RawValue
	Signature  []byte
	More       asn1.RawValue `asn1:"optional,tag:1"`
}

// certificates are those in it that Go can read.
func (s *signedData) certificates() (out []*x509.Certificate) {
	for rest := s.Certificates.Bytes; len(rest) > 0; {
		var one asn1.RawValue
		var err error
		if rest, err = asn1.Unmarshal(rest, &one); err != nil {
			return out
		}
		if c, err := x509.ParseCertificate(one.FullBytes); err == nil {
			out = append(out, c)
		}
	}
	return out
}
