package ansible

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// desk is where an operator works: a folder with fleet.yaml, made of the example,
// with its secrets, and the collection.
type desk struct {
	t *testing.T
	// dir is the operator's folder, source the collection's.
	dir, source string
	// edgectl is a real one.
	edgectl string
	env     []string
	secrets []string // their contents: nothing may print them
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	source, err := filepath.Abs("../../ansible")
	must(t, err)
	top := t.TempDir()
	d := &desk{t: t, dir: filepath.Join(top, "fleet"), source: source, edgectl: filepath.Join(top, "bin", "edgectl")}
	collections := filepath.Join(top, "collections")
	must(t, os.MkdirAll(filepath.Join(collections, "ansible_collections", "catchment"), 0o755))
	must(t, os.Symlink(source, filepath.Join(collections, "ansible_collections", "catchment", "edge")))
	d.env = append(os.Environ(), "ANSIBLE_COLLECTIONS_PATH="+collections, "PYTHONPATH="+collections, "PYTHONDONTWRITEBYTECODE=1", "ANSIBLE_CONFIG=",
		"HOME="+top, "LC_ALL=C.UTF-8", "ANSIBLE_NOCOLOR=1", "PATH="+filepath.Dir(d.edgectl)+":/usr/bin:/bin:/usr/sbin:/sbin")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", d.edgectl, "../../cmd/edgectl")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build edgectl: %v\n%s", err, out)
	}
	for _, name := range []string{"ansible.cfg", "fleet.example.yaml"} {
		b, err := os.ReadFile(filepath.Join(source, name))
		must(t, err)
		d.write(strings.Replace(name, ".example", "", 1), b)
	}
	d.fill()
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fill makes the secrets and keys that the example names.
func (d *desk) fill() {
	d.t.Helper()
	gossip, seed, bgp := random(32), random(32), random(12)
	d.secret("fleet/gossip.key", base64.StdEncoding.EncodeToString(gossip))
	d.secret("fleet/ring.seed", hex.EncodeToString(seed))
	d.secret("sites/a/bgp-r-a.key", hex.EncodeToString(bgp))
	cert, key := d.certificate()
	d.write("secrets/fleet/tls/web.crt", cert)
	d.secret("fleet/tls/web.key", string(key))
	for _, node := range []string{"a1", "a2", "b1", "c1"} {
		file := filepath.Join(d.dir, "secrets/nodes", node, "node.key")
		must(d.t, os.MkdirAll(filepath.Dir(file), 0o700))
		out, err := exec.CommandContext(d.t.Context(), d.edgectl, "guard", "key", "--out", file).Output()
		must(d.t, err)
		public := strings.Trim(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(string(out)), "public_key:")), `"`)
		d.write("public_keys/"+node+".pub", []byte(public+"\n"))
		b, err := os.ReadFile(file)
		must(d.t, err)
		d.secrets = append(d.secrets, strings.Split(string(b), "\n")[1])
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func (d *desk) secret(name, text string) {
	d.t.Helper()
	d.write("secrets/"+name, []byte(text+"\n"))
	for line := range strings.SplitSeq(text, "\n") {
		if len(line) > 20 && !strings.Contains(line, "-----") {
			d.secrets = append(d.secrets, line)
		}
	}
	d.secrets = append(d.secrets, base64.StdEncoding.EncodeToString([]byte(text+"\n")))
}

func (d *desk) certificate() (cert, key []byte) {
	d.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(d.t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "www.example.net"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, private.Public(), private)
	must(d.t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	must(d.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func (d *desk) write(name string, content []byte) {
	d.t.Helper()
	full := filepath.Join(d.dir, name)
	must(d.t, os.MkdirAll(filepath.Dir(full), 0o755))
	must(d.t, os.WriteFile(full, content, 0o600))
}

// edit replaces text in fleet.yaml, and has it as it was at the end of the returned call.
func (d *desk) edit(old, text string) (undo func()) {
	d.t.Helper()
	before, err := os.ReadFile(filepath.Join(d.dir, "fleet.yaml"))
	must(d.t, err)
	if !bytes.Contains(before, []byte(old)) {
		d.t.Fatalf("fleet.yaml has no %q", old)
	}
	d.write("fleet.yaml", bytes.Replace(before, []byte(old), []byte(text), 1))
	return func() { d.write("fleet.yaml", before) }
}

// run runs a program in the operator's folder.
func (d *desk) run(name string, args ...string) (stdout, stderr string, code int) {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), name, args...)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = d.dir, d.env, &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil {
		d.t.Fatalf("%s: %v (test/packages.txt has what tests need)", name, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
