package image

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// The versions that remake.sh makes of the image. All are newer than what it has.
const (
	goodVersion  = "900.0.0"
	crossVersion = "900.9.0" // signed by a stranger
	alterVersion = "900.9.1" // its manifest was changed after it was signed
	tornVersion  = "900.9.2" // a byte of its root was changed
)

// fault is a way in which a version is broken, see testdata/broken.
type fault struct {
	name, version string
	// check is what the box says that the version has failed on.
	check string
}

func faults() []fault {
	return []fault{
		{"panic", "900.1.1", "boot"},
		{"edged", "900.1.2", "edged"},
		{"config", "900.1.3", "configuration"},
		{"bgp", "900.1.4", "bgp"},
		{"disk", "900.1.5", "disk"},
		{"mute", "900.1.6", "boot"},
	}
}

// payloads is a folder with one folder for each version, and the same as a volume.
type payloads struct{ dir, volume string }

// payloadLabel is the volume's.
const payloadLabel = "PAYLOADS"

// newPayloads makes them from the image.
func newPayloads(ctx context.Context, b built, dir string) (*payloads, error) {
	p := &payloads{dir: filepath.Join(dir, "payloads"), volume: filepath.Join(dir, "payloads.img")}
	versions := []string{goodVersion}
	for _, f := range faults() {
		versions = append(versions, f.version+"="+f.name)
	}
	if err := remake(ctx, b, p.dir, nil, versions...); err != nil {
		return nil, err
	}
	if err := errors.Join(p.cross(), p.alter(), p.tear()); err != nil {
		return nil, err
	}
	// A file system without a journal: it is only read.
	out, err := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-O", "^has_journal", "-L", payloadLabel, "-d", p.dir, p.volume, "1G").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("make volume of payloads: %w: %s", err, out)
	}
	return p, nil
}

// remake makes more versions of the image in a folder: see remake.sh.
func remake(ctx context.Context, b built, to string, env []string, versions ...string) error {
	cmd := exec.CommandContext(ctx, "./remake.sh", append([]string{filepath.Dir(b.raw), to}, versions...)...)
	cmd.Env = append(append(os.Environ(), "CACHE="+*cache, "PROFILE="+*profile), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make more versions: %w\n%s", err, out)
	}
	return nil
}

// as makes a version whose files are those of the good one, and returns its folder and
// the manifest of the good one, which says that it is the other version.
func (p *payloads) as(version string) (dir string, manifest []byte, err error) {
	from, dir := filepath.Join(p.dir, goodVersion), filepath.Join(p.dir, version)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", nil, err
	}
	files, err := filepath.Glob(filepath.Join(from, "*.zst"))
	if err != nil {
		return "", nil, err
	}
	for _, f := range files {
		if err := os.Link(f, filepath.Join(dir, filepath.Base(f))); err != nil {
			return "", nil, err
		}
	}
	b, err := os.ReadFile(filepath.Join(from, "manifest.json"))
	old := fmt.Sprintf(`"version": %q`, goodVersion)
	if err == nil && !strings.Contains(string(b), old) {
		err = fmt.Errorf("the manifest has no %s", old)
	}
	return dir, []byte(strings.Replace(string(b), old, fmt.Sprintf(`"version": %q`, version), 1)), err
}

// cross is signed by a key that no box trusts.
func (p *payloads) cross() error {
	dir, manifest, err := p.as(crossVersion)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(manifest)
	sig, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "manifest.json"), manifest, 0o644),
		os.WriteFile(filepath.Join(dir, "manifest.json.sig"), sig, 0o644))
}

// alter has the signature of the good one.
func (p *payloads) alter() error {
	dir, manifest, err := p.as(alterVersion)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "manifest.json"), manifest, 0o644),
		copyFile(filepath.Join(dir, "manifest.json.sig"), filepath.Join(p.dir, goodVersion, "manifest.json.sig")))
}

// tear has a manifest and a signature that are right, and a root that is not theirs.
func (p *payloads) tear() error {
	dir, _, err := p.as(tornVersion)
	if err != nil {
		return err
	}
	from := filepath.Join(p.dir, goodVersion)
	roots, err := filepath.Glob(filepath.Join(dir, "*.root.zst"))
	if err != nil || len(roots) != 1 {
		return fmt.Errorf("%d roots in %s: %w", len(roots), dir, err)
	}
	b, err := os.ReadFile(roots[0])
	if err != nil {
		return err
	}
	b[len(b)/2] ^= 1
	return errors.Join(os.Remove(roots[0]), os.WriteFile(roots[0], b, 0o644), // it was a link
		copyFile(filepath.Join(dir, "manifest.json"), filepath.Join(from, "manifest.json")),
		copyFile(filepath.Join(dir, "manifest.json.sig"), filepath.Join(from, "manifest.json.sig")))
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	return errors.Join(err, os.WriteFile(to, b, 0o644))
}

// server serves the payloads over HTTPS inside a host.
type server struct {
	http *http.Server
	// url is its root, cert the file of its certificate (PEM), which signs itself.
	url, cert string
}

const serverPort = 8443

func (p *payloads) serve(h *lab.Host, addr, dir string) (*server, error) {
	pair, text, err := selfSigned(net.ParseIP(addr))
	if err != nil {
		return nil, fmt.Errorf("serve payloads: %w", err)
	}
	s := &server{
		url: fmt.Sprintf("https://%s:%d", addr, serverPort), cert: filepath.Join(dir, "server.crt"),
		http: &http.Server{
			Handler: http.FileServer(http.Dir(p.dir)), ReadHeaderTimeout: time.Minute,
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		},
	}
	if err := os.WriteFile(s.cert, text, 0o644); err != nil {
		return nil, fmt.Errorf("serve payloads: %w", err)
	}
	ln, err := h.Listen("tcp", fmt.Sprintf("%s:%d", addr, serverPort))
	if err != nil {
		return nil, fmt.Errorf("serve payloads: %w", err)
	}
	go s.http.ServeTLS(ln, "", "") // ends with close
	return s, nil
}

func (s *server) close() error { return s.http.Close() }

// selfSigned makes a certificate for an address. The clock of a machine may be wrong.
func selfSigned(ip net.IP) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "updates of the image test"}, IPAddresses: []net.IP{ip},
		NotBefore: time.Now().AddDate(-1, 0, 0), NotAfter: time.Now().AddDate(20, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, text, err
}
