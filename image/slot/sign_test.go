package slot

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVerify has openssl sign, as the publisher may have a token do.
func TestVerify(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	text := []byte("{}\n")
	put(t, filepath.Join(dir, "text"), text)
	ec := newSigner(t)
	ecDER, err := x509.MarshalPKCS8PrivateKey(ec.key)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaDER, err := x509.MarshalPKCS8PrivateKey(rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "ec.key"), pemOf("PRIVATE KEY", ecDER))
	put(t, filepath.Join(dir, "rsa.key"), pemOf("PRIVATE KEY", rsaDER))
	put(t, filepath.Join(keys, "current.pem"), ec.cert)
	put(t, filepath.Join(keys, "next.pem"), certificate(t, &rsaKey.PublicKey, rsaKey))
	trusted, err := LoadTrusted(keys)
	if err != nil || len(trusted) != 2 {
		t.Fatalf("%d keys, %v", len(trusted), err)
	}
	for _, key := range []string{"ec.key", "rsa.key"} {
		cmd := exec.CommandContext(t.Context(), "openssl", "dgst", "-sha256", "-sign", filepath.Join(dir, key), "-out", filepath.Join(dir, "sig"), filepath.Join(dir, "text"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("openssl: %v: %s", err, out)
		}
		sig, err := os.ReadFile(filepath.Join(dir, "sig"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := trusted.Verify(text, sig); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		if _, err := trusted.Verify([]byte("{} "), sig); err == nil {
			t.Errorf("%s: a changed text is taken", key)
		}
		if _, err := newSigner(t).trusted(t).Verify(text, sig); err == nil || !strings.Contains(err.Error(), "not signed by any of the 1 keys") {
			t.Errorf("%s: another key takes it: %v", key, err)
		}
		sig[len(sig)-1] ^= 1
		if _, err := trusted.Verify(text, sig); err == nil {
			t.Errorf("%s: a changed signature is taken", key)
		}
	}
	for _, sig := range [][]byte{nil, {}, make([]byte, 5000)} {
		if _, err := trusted.Verify(text, sig); err == nil {
			t.Errorf("%d bytes are taken", len(sig))
		}
	}
}

func TestLoadTrustedRefuses(t *testing.T) {
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string][]byte{
		"no certificate in it": []byte("hello"),
		"1024 bits":            certificate(t, &short.PublicKey, short),
		"want RSA or ECDSA":    certificate(t, pub, priv),
		"want certificates":    pemOf("PRIVATE KEY", []byte{1}),
		"x509":                 pemOf("CERTIFICATE", []byte{1}),
	} {
		dir := t.TempDir()
		put(t, filepath.Join(dir, "good.pem"), newSigner(t).cert)
		put(t, filepath.Join(dir, "x.pem"), text)
		if _, err := LoadTrusted(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := LoadTrusted(t.TempDir()); err == nil {
		t.Error("a folder without keys is taken")
	}
}

func FuzzParseTrusted(f *testing.F) {
	f.Add(newSigner(f).cert)
	f.Fuzz(func(t *testing.T, b []byte) {
		if certs, err := ParseTrusted(b); err == nil {
			if _, err := certs.Verify([]byte("x"), []byte("y")); err == nil {
				t.Error("nonsense is signed")
			}
		}
	})
}

func FuzzCheckCommandLine(f *testing.F) {
	m := &Manifest{Version: "1", RootHash: strings.Repeat("a", 64)}
	f.Add(program("roothash="+m.RootHash+" edge.version=1", nil))
	f.Add(program("roothash=1 roothash=2", nil)[:700])
	f.Fuzz(func(_ *testing.T, b []byte) {
		CheckCommandLine(strings.NewReader(string(b)), m)
	})
}

func TestCheckCommandLine(t *testing.T) {
	m := &Manifest{Version: "1.2.0", RootHash: strings.Repeat("a", 64)}
	good := "roothash=" + m.RootHash + " edge.version=1.2.0"
	for cmdline, want := range map[string]string{
		good + " quiet\x00":  "",
		"quiet " + good:      "",
		good + "0":           "edge.version=1.2.00",
		"edge.version=1.2.0": "the manifest says roothash=",
		good + " roothash=1": "roothash=1",
		"":                   "the UKI is sealed with",
	} {
		err := CheckCommandLine(strings.NewReader(string(program(cmdline, nil))), m)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", cmdline, err, want)
		}
	}
	if err := CheckCommandLine(strings.NewReader("MZ"), m); err == nil {
		t.Error("a file that is no program is taken")
	}
}
