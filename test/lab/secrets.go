package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// HostNames are the names that the lab's certificates are for, one each.
var HostNames = []string{"www.example.net", "api.example.net"}

// secrets are the files that the configuration names by path. All boxes share
// them; only the BGP and node keys are a box's own.
type secrets struct {
	dir  string
	pool *x509.CertPool
}

func (s *secrets) gossipKey() string          { return filepath.Join(s.dir, "gossip.key") }
func (s *secrets) ringSeed() string           { return filepath.Join(s.dir, "ring.seed") }
func (s *secrets) bgpKey(box string) string   { return filepath.Join(s.dir, "bgp-"+box+".key") }
func (s *secrets) nodeKey(box string) string  { return filepath.Join(s.dir, "node-"+box+".key") }
func (s *secrets) cert(name string) string    { return filepath.Join(s.dir, name+".crt") }
func (s *secrets) key(name string) string     { return filepath.Join(s.dir, name+".key") }
func (s *secrets) write(path, v string) error { return os.WriteFile(path, []byte(v), 0o600) }

func newSecrets(dir string, p *plan) (*secrets, error) {
	s := &secrets{dir: dir, pool: x509.NewCertPool()}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder of secrets: %w", err)
	}
	raw := make([]byte, 32)
	rand.Read(raw) // never fails
	files := map[string]string{
		s.gossipKey(): base64.StdEncoding.EncodeToString(raw) + "\n",
		s.ringSeed():  randomHex(16) + "\n",
	}
	for _, b := range p.boxes {
		if b.Key != "" {
			files[s.bgpKey(b.Name)] = b.Key + "\n"
		}
		der, err := x509.MarshalPKCS8PrivateKey(b.Signs)
		if err != nil {
			return nil, fmt.Errorf("make key of %s: %w", b.Name, err)
		}
		files[s.nodeKey(b.Name)] = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	}
	for path, text := range files {
		if err := s.write(path, text); err != nil {
			return nil, fmt.Errorf("write secret: %w", err)
		}
	}
	return s, s.issue()
}

// issue makes a CA, which signs one certificate per host name and is then
// forgotten.
func (s *secrets) issue() error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key of CA: %w", err)
	}
	ca := certificate(1, "catchment lab CA")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return fmt.Errorf("make certificate of CA: %w", err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("read certificate of CA: %w", err)
	}
	s.pool.AddCert(signed)
	if err := s.write(s.cert("ca"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))); err != nil {
		return fmt.Errorf("write certificate of CA: %w", err)
	}
	for i, name := range HostNames {
		if err := s.issueFor(int64(i+2), name, signed, caKey); err != nil {
			return fmt.Errorf("make certificate of %s: %w", name, err)
		}
	}
	return nil
}

func certificate(serial int64, name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

func (s *secrets) issueFor(serial int64, name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	c := certificate(serial, name)
	c.DNSNames, c.KeyUsage, c.ExtKeyUsage = []string{name}, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, c, ca, key.Public(), caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := s.write(s.cert(name), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))); err != nil {
		return err
	}
	return s.write(s.key(name), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
}
