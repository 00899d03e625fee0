package health

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// ample is a time limit for what needs none, on a busy machine either.
const ample = 30 * time.Second

// try runs one probe of a kind of this box as the monitor would.
func try(t *testing.T, p edge.Probe) error {
	t.Helper()
	return tryOf(t, builtinKinds()[p.Kind], p)
}

// tryOf is try for a given prober.
func tryOf(t *testing.T, prober Prober, p edge.Probe) error {
	t.Helper()
	if p.Timeout == 0 {
		p.Timeout = ample
	}
	ctx, cancel := context.WithTimeout(t.Context(), p.Timeout)
	defer cancel()
	began := time.Now()
	err := prober.Probe(ctx, p)
	if late := time.Since(began) - p.Timeout; late > 20*time.Second {
		t.Errorf("probe of kind %s came back %s late: %v", p.Kind, late, err)
	}
	return err
}

// daemon starts a server that is not ours and waits until ready says so.
func daemon(t *testing.T, ready func() bool, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	out := &tail{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", argv[0], err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said: %s", argv[0], out.b)
		}
	})
	eventually(t, argv[0]+" is ready", ready)
	return cmd
}

// serverPort returns an address for a server that is not ours: below the ports
// that the kernel gives to connections, of which other tests make thousands.
func serverPort(t *testing.T) netip.AddrPort {
	t.Helper()
	for range 100 {
		at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(20000+mathrand.N(12000)))
		if ln, err := net.Listen("tcp", at.String()); err == nil {
			ln.Close()
			return at
		}
	}
	t.Fatal("no port is free")
	return netip.AddrPort{}
}

// accepts says whether somebody accepts connections.
func accepts(at netip.AddrPort) func() bool {
	return func() bool {
		c, err := net.DialTimeout("tcp", at.String(), time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
}

// authority makes certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
	file string // its own certificate
}

// validity is when a certificate is valid, from now.
type validity struct{ from, to time.Duration }

func newAuthority(t *testing.T, v validity) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("root", v, nil)
	a.file = a.save("root.pem", a.cert)
	return a
}

// intermediate returns an authority that is certified by a.
func (a *authority) intermediate(v validity) *authority {
	b := &authority{t: a.t, dir: a.t.TempDir()}
	b.cert, b.key = a.issue("intermediate", v, a)
	b.file = b.save("intermediate.pem", b.cert)
	return b
}

func (a *authority) issue(name string, v validity, by *authority) (*x509.Certificate, crypto.Signer) {
	a.t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(v.from), NotAfter: now.Add(v.to), BasicConstraintsValid: true,
	}
	if name == "root" || name == "intermediate" {
		template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
	} else {
		template.DNSNames, template.IPAddresses = []string{name}, []net.IP{net.IPv4(127, 0, 0, 1)}
		template.KeyUsage = x509.KeyUsageDigitalSignature
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	parent, signer := template, crypto.Signer(key)
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der := must(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer))
	return must(x509.ParseCertificate(der)), key
}

// serverFiles makes a certificate for name and returns the files of the chain
// and of the key.
func (a *authority) serverFiles(name string, v validity, chain ...*x509.Certificate) (certs, key string) {
	cert, signer := a.issue(name, v, a)
	der := must(x509.MarshalPKCS8PrivateKey(signer))
	key = filepath.Join(a.dir, name+cert.SerialNumber.String()+".key")
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return a.save(name+cert.SerialNumber.String()+".pem", append([]*x509.Certificate{cert}, chain...)...), key
}

func (a *authority) save(name string, certs ...*x509.Certificate) string {
	var b []byte
	for _, cert := range certs {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	name = filepath.Join(a.dir, name)
	if err := os.WriteFile(name, b, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return name
}

// days is a validity that has begun, for whole days and a bit.
func days(n int) validity {
	return validity{-time.Hour, time.Duration(n)*24*time.Hour + time.Hour}
}

// apart runs f on a thread of its own that is thrown away with its namespaces
// and its rights.
func apart(t *testing.T, flags int, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with us
		if err := unix.Unshare(flags); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		if flags&unix.CLONE_NEWNS != 0 {
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				t.Errorf("make mounts private: %v", err)
				return
			}
		}
		f()
	}()
	<-done
}

// tool runs a tool until it succeeds: what it needs may still be on its way in
// the kernel, as the routes of a link that has just come up are.
func tool(t *testing.T, line string) {
	t.Helper()
	argv := strings.Fields(line)
	for end := time.Now().Add(ample); ; time.Sleep(5 * time.Millisecond) {
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%s: %v: %s", line, err, out)
			return
		}
	}
}

// check is one row of a table of probes.
type check struct {
	name string
	p    edge.Probe
	want string
}

// checks runs a table, each row with what all have in common.
func checks(t *testing.T, kind edge.ProbeKind, rows []check) {
	t.Helper()
	for _, c := range rows {
		c.p.Kind = kind
		t.Run(c.name, func(t *testing.T) { expect(t, try(t, c.p), c.want) })
	}
}
