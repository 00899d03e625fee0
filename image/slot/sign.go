package slot

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Trusted are the certificates of which any one may have signed a payload. There
// are two from the first day, so that one can be replaced.
type Trusted []*x509.Certificate

// minRSABits is the least that is taken of an RSA key.
const minRSABits = 2048

// LoadTrusted reads every *.pem of a folder. One that cannot be read, or has a key
// that is too weak, is an error; so is a folder without any. When a certificate
// begins or ends to be valid is not looked at: the clock of a box may be wrong, and
// one that has been off for years must still take an update.
func LoadTrusted(dir string) (Trusted, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.pem"))
	if err != nil {
		return nil, fmt.Errorf("read update keys: %w", err)
	}
	var out Trusted
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read update keys: %w", err)
		}
		certs, err := ParseTrusted(b)
		if err != nil {
			return nil, fmt.Errorf("read update keys: %s: %w", name, err)
		}
		out = append(out, certs...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("read update keys: no certificate in %s/*.pem: no payload can be trusted", dir)
	}
	return out, nil
}

// ParseTrusted reads the certificates of a PEM file: at least one.
func ParseTrusted(b []byte) (Trusted, error) {
	var out Trusted
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("has a %.40q, want certificates only", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		switch key := c.PublicKey.(type) {
		case *rsa.PublicKey:
			if n := key.N.BitLen(); n < minRSABits {
				return nil, fmt.Errorf("an RSA key of %d bits, at least %d are needed", n, minRSABits)
			}
		case *ecdsa.PublicKey:
		default:
			return nil, fmt.Errorf("a key of type %T, want RSA or ECDSA", key)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("no certificate in it")
	}
	return out, nil
}

// Verify checks a signature over the bytes of a manifest: RSA PKCS #1 v1.5 (RFC
// 8017 section 8.2) or ECDSA in ASN.1 (RFC 3279 section 2.2.3), both of SHA-256,
// as `openssl dgst -sha256 -sign` makes them. It returns who has signed.
func (t Trusted) Verify(manifest, sig []byte) (signer string, err error) {
	if len(sig) > maxSignature {
		return "", fmt.Errorf("check signature: it has %d bytes, at most %d", len(sig), maxSignature)
	}
	sum := sha256.Sum256(manifest)
	for _, c := range t {
		good := false
		switch key := c.PublicKey.(type) {
		case *rsa.PublicKey:
			good = rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], sig) == nil
		case *ecdsa.PublicKey:
			good = ecdsa.VerifyASN1(key, sum[:], sig)
		}
		if good {
			return c.Subject.String(), nil
		}
	}
	return "", fmt.Errorf("check signature: %s is not signed by any of the %d keys that this system trusts: the payload was changed, or is of another project; nothing was written", ManifestName, len(t))
}
