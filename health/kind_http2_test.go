package health

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/catchment-dev/edge"
)

// nginxHTTP2 starts an nginx that speaks HTTP/2 in the clear and over TLS.
func nginxHTTP2(t *testing.T, ca *authority) (plain, secure netip.AddrPort) {
	t.Helper()
	dir := t.TempDir()
	plain, secure = serverPort(t), serverPort(t)
	certs, key := ca.serverFiles("app.example", days(30))
	conf := fmt.Sprintf(`daemon off; master_process off; user root; pid %[1]s/pid; error_log %[1]s/error.log;
events {}
http {
	access_log off; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
	default_type text/plain;
	server {
		listen %[2]s http2; listen %[3]s ssl http2;
		ssl_certificate %[4]s; ssl_certificate_key %[5]s;
		location /ok { add_header %[6]s 7; return 200 "host=$host $server_protocol from $remote_addr all is well"; }
		location /full { add_header %[6]s 3 always; return 429; }
		location /sick { return 503; }
	}
}`, dir, plain, secure, certs, key, WeightHeader)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	ready := func() bool { return accepts(plain)() && accepts(secure)() }
	daemon(t, ready, "nginx", "-e", filepath.Join(dir, "error.log"), "-c", file)
	return plain, secure
}

func TestHTTP2(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, days(365))
	plain, secure := nginxHTTP2(t, ca)
	http, https := "http://"+plain.String(), "https://"+secure.String()
	refused := closedPort(t)
	const host = "app.example"
	checks(t, edge.ProbeHTTP2, []check{
		{"prior knowledge", edge.Probe{URL: http + "/ok", Body: "HTTP/2.0"}, ""},
		{"ALPN", edge.Probe{URL: https + "/ok", Host: host, CAFile: ca.file, Body: "host=app.example HTTP/2.0"}, ""},
		{"host with port", edge.Probe{URL: https + "/ok", Host: host + ":99", CAFile: ca.file, Body: "host=app.example HTTP/2.0"}, ""},
		{"source", edge.Probe{URL: http + "/ok", Body: "from 127.0.0.9 all", Source: netip.MustParseAddr("127.0.0.9")}, ""},
		{"insecure", edge.Probe{URL: https + "/ok", Insecure: true}, ""},
		{"expected status", edge.Probe{URL: http + "/sick", Status: 503}, ""},
		{"sick", edge.Probe{URL: http + "/sick"}, "answered 503, expected 200"},
		{"full is not asked", edge.Probe{URL: http + "/full"}, "answered 429, expected 200"},
		{"other status than full", edge.Probe{URL: http + "/sick", FullStatus: 429}, "answered 503, expected 200"},
		{"body", edge.Probe{URL: http + "/ok", Body: "all is lost"}, `without "all is lost"`},
		{"unknown issuer", edge.Probe{URL: https + "/ok", Host: host}, "certificate of app.example: x509: certificate signed by unknown authority"},
		{"wrong name", edge.Probe{URL: https + "/ok", Host: "other.example", CAFile: ca.file}, "is valid for app.example, not other.example"},
		{"refused", edge.Probe{URL: "http://" + refused.String()}, fmt.Sprintf("connect %s: connection refused", refused)},
		{"no file of roots", edge.Probe{URL: https + "/ok", CAFile: "/nowhere"}, "unknown: read CA file /nowhere"},
		{"no address", edge.Probe{URL: "http://localhost/"}, "unknown: its host is not an address"},
		{"no url", edge.Probe{URL: "gopher://127.0.0.1/"}, "unknown: is not http or https"},
		{"source that is not ours", edge.Probe{URL: http + "/ok", Source: netip.MustParseAddr("192.0.2.9")}, "unknown: bind to source 192.0.2.9"},
	})
	err := try(t, edge.Probe{Kind: edge.ProbeHTTP2, URL: http + "/full", FullStatus: 429})
	if !errors.Is(err, edge.ErrFull) || errors.Is(err, edge.ErrUnknown) {
		t.Errorf("a full target: %v", err)
	}
	for path, want := range map[string]int{"/ok": 7, "/full": 3} {
		w, err := http2Kind{trust: newTrust(&patience{})}.Weigh(t.Context(), edge.Probe{URL: http + path, FullStatus: 429})
		if w == nil || *w != want {
			t.Errorf("%s: weight %v, want %d; %v", path, w, want, err)
		}
	}
}

// TestHTTP2NotSpoken meets servers of HTTP/1.1 only, over both ways.
func TestHTTP2NotSpoken(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(web())
	t.Cleanup(plain.Close)
	old := httptest.NewUnstartedServer(web())
	old.Config.ErrorLog = discard()
	old.StartTLS()
	t.Cleanup(old.Close)
	ca := newAuthority(t, days(2))
	certs, key := ca.serverFiles("app.example", days(1))
	// One that takes no notice of ALPN at all.
	silent := opensslServer(t, certs, key)
	checks(t, edge.ProbeHTTP2, []check{
		{"clear", edge.Probe{URL: plain.URL}, "read answer: http2: "},
		{"TLS", edge.Probe{URL: old.URL, Insecure: true}, "no application protocol"},
		{"TLS without ALPN", edge.Probe{URL: "https://" + silent.String(), Insecure: true}, "tls handshake with 127.0.0.1: it does not offer HTTP/2"},
	})
}

// serveHTTP2 starts a server of net/http that speaks HTTP/2 in the clear.
func serveHTTP2(t *testing.T, h http.Handler) netip.AddrPort {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = discard()
	srv.Config.Protocols = &http.Protocols{}
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return netip.MustParseAddrPort(srv.Listener.Addr().String())
}

func TestHTTP2Slow(t *testing.T) {
	t.Parallel()
	at := "http://" + serveHTTP2(t, web()).String()
	const limit = 2 * time.Second // enough for what comes before the silence
	checks(t, edge.ProbeHTTP2, []check{
		{"hangs", edge.Probe{URL: at + "/hang", Timeout: limit}, "read answer: no answer within 2s"},
		{"body hangs", edge.Probe{URL: at + "/slow-body", Body: "second", Timeout: limit}, "read body: no answer within 2s"},
		{"enough of it", edge.Probe{URL: at + "/slow-body", Body: "first"}, ""},
		{"no redirect", edge.Probe{URL: at + "/moved"}, "answered 302, expected 200"},
		{"hints", edge.Probe{URL: at + "/hints", Body: "late"}, ""},
		{"nobody accepts", edge.Probe{URL: "http://" + silentPort(t).String(), Timeout: limit}, "no answer within 2s"},
	})
}

// TestHTTP2Liars meets servers that stop, or break the protocol.
func TestHTTP2Liars(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		do   func(net.Conn, *http2.Framer) error
		want string
	}{
		"closes": {func(c net.Conn, _ *http2.Framer) error { return c.Close() }, "read answer: "},
		"goes": {func(_ net.Conn, f *http2.Framer) error {
			return f.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte("no\x1b[1mmore"))
		}, "read answer: http2: "},
		"resets":  {func(_ net.Conn, f *http2.Framer) error { return f.WriteRSTStream(1, http2.ErrCodeRefusedStream) }, "REFUSED_STREAM"},
		"garbage": {func(c net.Conn, _ *http2.Framer) error { _, err := c.Write(make([]byte, 64)); return err }, "read answer: "},
		"no head": {func(_ net.Conn, f *http2.Framer) error { return f.WriteData(1, true, []byte("body")) }, "read answer: "},
		"bad head": {func(_ net.Conn, f *http2.Framer) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
		}, "read answer: "},
	} {
		t.Run(name, func(t *testing.T) {
			ln := listen(t, "127.0.0.1:0")
			go func() {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = c.Read(make([]byte, len(http2.ClientPreface)))
				f := http2.NewFramer(c, c)
				_ = f.WriteSettings()
				for {
					frame, err := f.ReadFrame()
					if err != nil {
						return
					}
					if frame.Header().Type == http2.FrameHeaders && row.do(c, f) != nil {
						return
					}
				}
			}()
			expect(t, try(t, edge.Probe{Kind: edge.ProbeHTTP2, URL: "http://" + ln.Addr().String() + "/"}), row.want)
		})
	}
}
