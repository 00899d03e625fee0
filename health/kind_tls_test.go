package health

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// opensslServer starts openssl s_server with a chain, and returns where.
func opensslServer(t *testing.T, certs, key string, more ...string) netip.AddrPort {
	t.Helper()
	at := serverPort(t)
	argv := append([]string{"openssl", "s_server", "-accept", at.String(), "-cert", certs, "-cert_chain", certs, "-key", key, "-www", "-quiet"}, more...)
	daemon(t, accepts(at), argv...)
	return at
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, days(3650))
	serve := func(v validity) netip.AddrPort {
		certs, key := ca.serverFiles("app.example", v)
		return opensslServer(t, certs, key)
	}
	good, expired := serve(days(30)), serve(validity{-48 * time.Hour, -24 * time.Hour})
	future, soon := serve(validity{24 * time.Hour, 48 * time.Hour}), serve(validity{-time.Hour, 20 * time.Minute})
	short := ca.intermediate(days(5))
	certs, key := short.serverFiles("app.example", days(3), short.cert)
	chained := opensslServer(t, certs, key)
	certs, key = short.serverFiles("app.example", days(90), short.cert)
	weak := opensslServer(t, certs, key)
	refused := closedPort(t)
	day := 24 * time.Hour
	checks(t, edge.ProbeTLS, []check{
		{"good", edge.Probe{Addr: good, Host: "app.example", CAFile: ca.file, ExpiresIn: 7 * day}, ""},
		{"good by address", edge.Probe{Addr: good, CAFile: ca.file}, ""},
		{"good, host with port", edge.Probe{Addr: good, Host: "app.example:443", CAFile: ca.file}, ""},
		{"good, from a source", edge.Probe{Addr: good, CAFile: ca.file, Source: netip.MustParseAddr("127.0.0.9")}, ""},
		{"expires too soon", edge.Probe{Addr: good, Host: "app.example", CAFile: ca.file, ExpiresIn: 40 * day}, "certificate of app.example expires in 30 days, at 2"},
		{"how soon", edge.Probe{Addr: good, Host: "app.example", CAFile: ca.file, ExpiresIn: 40 * day}, "UTC, wanted 40 days"},
		{"expires within the hour", edge.Probe{Addr: soon, Host: "app.example", CAFile: ca.file, ExpiresIn: 30 * time.Hour}, "in less than an hour, at"},
		{"expires soon, which is not asked", edge.Probe{Addr: soon, Host: "app.example", CAFile: ca.file}, ""},
		{"expired", edge.Probe{Addr: expired, Host: "app.example", CAFile: ca.file}, "certificate of app.example expired at 2"},
		{"expired, insecure", edge.Probe{Addr: expired, Host: "app.example", Insecure: true}, "certificate of app.example expired at 2"},
		{"not valid yet", edge.Probe{Addr: future, Host: "app.example", CAFile: ca.file}, "certificate of app.example is not valid before 2"},
		{"wrong name", edge.Probe{Addr: good, Host: "other.example", CAFile: ca.file}, "certificate of other.example: x509: certificate is valid for app.example, not other.example"},
		{"unknown issuer", edge.Probe{Addr: good, Host: "app.example"}, "certificate of app.example: x509: certificate signed by unknown authority"},
		{"unknown issuer, insecure", edge.Probe{Addr: good, Host: "app.example", Insecure: true}, ""},
		{"with an intermediate", edge.Probe{Addr: chained, Host: "app.example", CAFile: ca.file, ExpiresIn: 2 * day}, ""},
		{"intermediate expires soon", edge.Probe{Addr: weak, Host: "app.example", CAFile: ca.file, ExpiresIn: 7 * day}, "certificate of CN=intermediate, sent by app.example, expires in 5 days"},
		{"refused", edge.Probe{Addr: refused, CAFile: ca.file}, fmt.Sprintf("connect %s: connection refused", refused)},
		{"no such file", edge.Probe{Addr: good, CAFile: "/nowhere/ca.pem"}, "unknown: no such file or directory"},
		{"not a file of certificates", edge.Probe{Addr: good, CAFile: "/proc/self/stat"}, "unknown: it holds no certificate in PEM"},
		{"a directory", edge.Probe{Addr: good, CAFile: t.TempDir()}, "unknown: it is not a regular file"},
		{"source of the other family", edge.Probe{Addr: good, Source: netip.IPv6Loopback()}, "unknown: source ::1 is not of the family of 127.0.0.1"},
		{"source that is not ours", edge.Probe{Addr: good, Source: netip.MustParseAddr("192.0.2.9")}, "unknown: bind to source 192.0.2.9: cannot assign"},
	})
}

// TestTLSNoServer meets who accepts but does not speak TLS, or nothing at all.
func TestTLSNoServer(t *testing.T) {
	t.Parallel()
	for say, want := range map[string]string{
		"SSH-2.0-OpenSSH_9.2\r\n": "tls handshake with app.example: tls: first record does not look like a TLS handshake",
		"":                        "tls handshake with app.example: no answer within 2s",
	} {
		ln := listen(t, "127.0.0.1:0")
		go func() {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = c.Write([]byte(say))
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Read(make([]byte, 4096)) // till it goes
		}()
		p := edge.Probe{Kind: edge.ProbeTLS, Addr: netip.MustParseAddrPort(ln.Addr().String()), Host: "app.example", Timeout: 2 * time.Second}
		expect(t, try(t, p), want)
	}
}

// TestTLSName proves that the name is sent: the server has another certificate
// for it.
func TestTLSName(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, days(365))
	certs, key := ca.serverFiles("default.example", days(30))
	certs2, key2 := ca.serverFiles("second.example", days(30))
	at := opensslServer(t, certs, key, "-servername", "second.example", "-cert2", certs2, "-key2", key2)
	expect(t, try(t, edge.Probe{Kind: edge.ProbeTLS, Addr: at, Host: "second.example", CAFile: ca.file}), "")
	expect(t, try(t, edge.Probe{Kind: edge.ProbeTLS, Addr: at, Host: "default.example", CAFile: ca.file}), "")
}

// TestTLSRoots: an expired root is named, a file of roots that was replaced is
// read again.
func TestTLSRoots(t *testing.T) {
	t.Parallel()
	old, young := newAuthority(t, validity{-48 * time.Hour, -time.Hour}), newAuthority(t, days(365))
	certs, key := old.serverFiles("app.example", days(30))
	k := builtinKinds()[edge.ProbeTLS]
	p := edge.Probe{Kind: edge.ProbeTLS, Addr: opensslServer(t, certs, key), Host: "app.example", CAFile: filepath.Join(t.TempDir(), "ca.pem")}
	for _, step := range []struct{ file, want string }{
		{old.file, "certificate of app.example: its issuer CN=root is valid only from 2"},
		{young.file, "signed by unknown authority"},
		{old.file, "its issuer CN=root is valid only from 2"},
	} {
		if err := os.WriteFile(p.CAFile+"+", must(os.ReadFile(step.file)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(p.CAFile+"+", p.CAFile); err != nil {
			t.Fatal(err)
		}
		expect(t, tryOf(t, k, p), step.want)
		expect(t, tryOf(t, k, p), step.want)
	}
}

func TestTrustIsBounded(t *testing.T) {
	t.Parallel()
	tr := newTrust(&patience{})
	b := must(os.ReadFile(newAuthority(t, days(1)).file))
	dir := t.TempDir()
	for i := range 3 * maxCAFiles {
		name := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := tr.roots(t.Context(), edge.Probe{CAFile: name}); err != nil || len(tr.files) > maxCAFiles {
			t.Fatalf("%d files are kept, %v", len(tr.files), err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, maxCAFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := tr.roots(t.Context(), edge.Probe{CAFile: filepath.Join(dir, "large")})
	expect(t, err, "unknown: larger than 1048576 bytes")
}

func TestVerifyNothing(t *testing.T) {
	t.Parallel()
	expect(t, security{name: "x"}.verify(nil, time.Now()), "x sent no certificate")
	expect(t, distrust(x509.SystemRootsError{Err: os.ErrNotExist}), "unknown: read the roots of the system")
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		7 * 24 * time.Hour: "7 days", 47 * time.Hour: "47 hours", 119 * time.Minute: "an hour", time.Minute: "less than an hour", 48 * time.Hour: "2 days",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestServerName(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{"": "192.0.2.1", "a.example": "a.example", "a.example:8443": "a.example", "[2001:db8::1]:443": "2001:db8::1"} {
		if got := serverName(host, "192.0.2.1"); got != want {
			t.Errorf("serverName(%q) = %q, want %q", host, got, want)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"  plain ": "plain", "a\x1b[31mb\x00c": "a[31mbc", "one\ntwo\tthree": "one two three", "\xff\xfeok": "ok", "\x00\n ": "", "grüße": "grüße",
	} {
		if got := clean(text); got != want {
			t.Errorf("clean(%q) = %q, want %q", text, got, want)
		}
	}
	if got := clean(string(make([]byte, 0)) + fmt.Sprintf("%0300d", 1)); len(got) != maxText+3 {
		t.Errorf("%d bytes are left of a long text", len(got))
	}
}
