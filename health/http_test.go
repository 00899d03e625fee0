package health

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/catchment-dev/edge"
)

// web is a real server with a path for everything that can go wrong.
func web() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "host=%s all is well", r.Host)
	})
	mux.HandleFunc("/status/503", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	mux.Handle("/moved", http.RedirectHandler("/ok", http.StatusFound))
	mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		fmt.Fprint(w, "late")
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/slow-body", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "first")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.Repeat("x", maxBody-3)+"edge", "behind")
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, "short")
	})
	return mux
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(web())
	t.Cleanup(srv.Close)
	refused := closedPort(t)
	for _, c := range []struct {
		path string
		p    edge.Probe
		want string
	}{
		{"/ok", edge.Probe{}, ""},
		{"/ok", edge.Probe{Body: "all is well"}, ""},
		{"/ok", edge.Probe{Body: "host=app.example all", Host: "app.example"}, ""},
		{"/ok", edge.Probe{Body: "host=" + srv.Listener.Addr().String()}, ""},
		{"/ok?q=1", edge.Probe{}, ""},
		{"", edge.Probe{Status: 404}, ""},
		{"/ok", edge.Probe{Body: "all is lost"}, `without "all is lost"`},
		{"/ok", edge.Probe{Status: 204}, "answered 200, expected 204"},
		{"/status/503", edge.Probe{}, "answered 503, expected 200"},
		{"/status/503", edge.Probe{FullStatus: 429}, "answered 503, expected 200"},
		{"/status/503", edge.Probe{FullStatus: 503}, "alive but full: answered 503"},
		{"/status/503", edge.Probe{Status: 503, FullStatus: 503}, ""},
		{"/moved", edge.Probe{Status: 302}, ""},
		{"/moved", edge.Probe{}, "answered 302, expected 200"},
		{"/hints", edge.Probe{Body: "late"}, ""},
		{"/hang", edge.Probe{}, "read answer: no answer within 2s"},
		{"/slow-body", edge.Probe{Body: "first"}, ""},
		{"/slow-body", edge.Probe{Body: "second"}, "read body: no answer within 2s"},
		{"/long", edge.Probe{Body: "xedg"}, ""},                                    // ends at the bound
		{"/long", edge.Probe{Body: "edge"}, `answered 65536 bytes without "edge"`}, // straddles it
		{"/long", edge.Probe{Body: "behind"}, `answered 65536 bytes without "behind"`},
		{"/cut", edge.Probe{Body: "whole"}, "read body: connection closed too early"},
		{"/ok", edge.Probe{Host: "a\r\nb: c"}, "unknown: is not a host name"},
	} {
		t.Run(c.path+c.want, func(t *testing.T) {
			c.p.Kind, c.p.URL, c.p.Timeout = edge.ProbeHTTP, srv.URL+c.path, ample
			if strings.Contains(c.want, "no answer") {
				c.p.Timeout = 2 * time.Second // enough for what comes before the silence
			}
			c.p.KeepAlive = len(c.path)%2 == 0 // makes no difference
			err := once(t, c.p)
			expect(t, err, c.want)
			if other := slowly(t, c.p); fmt.Sprint(err) != fmt.Sprint(other) {
				t.Errorf("the engine says %.200v, a worker %.200v", err, other)
			}
		})
	}
	for url, want := range map[string]string{
		"http://" + refused.String(): fmt.Sprintf("connect %s: connection refused", refused),
		"ftp://127.0.0.1/":           "unknown: is not http or https",
		"http://localhost/":          "unknown: its host is not an address",
		"http://127.0.0.1:x/":        "unknown: read url",
		"":                           "unknown: is not http or https",
	} {
		p := edge.Probe{Kind: edge.ProbeHTTP, URL: url, Timeout: ample}
		expect(t, once(t, p), want)
		expect(t, slowly(t, p), want)
	}
}

func TestSearchAcrossReads(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"needle", "xxneedle", "nneedleyy"} {
		r := iotest.OneByteReader(strings.NewReader(body))
		expect(t, search(t.Context(), r, edge.Probe{Body: "needle"}), "")
	}
	r := iotest.OneByteReader(strings.NewReader("need le"))
	expect(t, search(t.Context(), r, edge.Probe{Body: "needle"}), `answered 7 bytes without "needle"`)
}

func TestHTTPS(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(web())
	srv.Config.ErrorLog = discard()
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	plain := httptest.NewServer(web())
	t.Cleanup(plain.Close)
	for _, c := range []struct {
		name string
		h    HTTP
		p    edge.Probe
		want string
	}{
		{"verified by address", HTTP{Roots: roots}, edge.Probe{URL: srv.URL + "/ok"}, ""},
		{"verified by name", HTTP{Roots: roots}, edge.Probe{URL: srv.URL + "/ok", Host: "example.com:99", Body: "host=example.com:99"}, ""},
		{"wrong name", HTTP{Roots: roots}, edge.Probe{URL: srv.URL + "/ok", Host: "other.test"}, "tls handshake with other.test: tls: failed to verify certificate"},
		{"unknown issuer", HTTP{}, edge.Probe{URL: srv.URL + "/ok"}, "tls handshake with 127.0.0.1: tls: failed to verify certificate"},
		{"insecure", HTTP{}, edge.Probe{URL: srv.URL + "/ok", Insecure: true}, ""},
		{"insecure, bad status", HTTP{}, edge.Probe{URL: srv.URL + "/status/503", Insecure: true}, "answered 503, expected 200"},
		{"no tls there", HTTP{}, edge.Probe{URL: strings.Replace(plain.URL, "http", "https", 1)}, "tls handshake with 127.0.0.1: tls:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), ample)
			defer cancel()
			expect(t, c.h.Probe(ctx, c.p), c.want)
		})
	}
}

// TestHTTPGarbage meets servers that do not speak HTTP, or stop speaking.
func TestHTTPGarbage(t *testing.T) {
	t.Parallel()
	for say, want := range map[string]string{
		"":                                  "read answer: connection closed too early",
		"HTTP/1.1 200":                      "read answer:",
		"SSH-2.0-OpenSSH_9.2\r\n":           "read answer: malformed HTTP",
		"HTTP/1.1 99999 x\r\n\r\n":          "read answer: malformed HTTP",
		"HTTP/1.1 200 OK\r\nno colon\r\n":   "read answer:",
		strings.Repeat("y", maxAnswer+1000): "read answer:",
		strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 9): "too many informational",
	} {
		at := says(t, func(c net.Conn) { _, _ = c.Write([]byte(say)) })
		p := edge.Probe{Kind: edge.ProbeHTTP, URL: "http://" + at + "/", Timeout: ample}
		err := once(t, p)
		expect(t, err, want)
		if other := slowly(t, p); fmt.Sprint(err) != fmt.Sprint(other) {
			t.Errorf("the engine says %.200v, a worker %.200v", err, other)
		}
	}
}

// says starts a server that reads a request and then does what say does, and
// returns its address.
func says(t *testing.T, say func(net.Conn)) string {
	t.Helper()
	ln := listen(t, "127.0.0.1:0")
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := c.Read(make([]byte, 4096)); err == nil { // so that closing sends no reset
					say(c)
				}
			}()
		}
	}()
	return ln.Addr().String()
}

// TestHTTPDial proves that the given way to connect is used, and that what it
// says about itself is kept.
func TestHTTPDial(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(web())
	t.Cleanup(srv.Close)
	asked := ""
	h := HTTP{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		asked = network + " " + address
		return dial(ctx, network, srv.Listener.Addr().String())
	}}
	expect(t, h.Probe(t.Context(), edge.Probe{URL: "http://[2001:db8::1]/ok", Body: "host=[2001:db8::1] "}), "")
	if asked != "tcp [2001:db8::1]:80" {
		t.Errorf("dialled %q", asked)
	}
	h.Dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, fmt.Errorf("%w: no namespace", edge.ErrUnknown)
	}
	expect(t, h.Probe(t.Context(), edge.Probe{URL: "https://192.0.2.1/"}), "unknown: no namespace")
}

func TestHTTPStopped(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(web())
	t.Cleanup(srv.Close)
	ctx, cancel := context.WithCancel(t.Context())
	stop := time.AfterFunc(50*time.Millisecond, cancel)
	defer stop.Stop()
	expect(t, HTTP{}.Probe(ctx, edge.Probe{URL: srv.URL + "/hang"}), "unknown: stopped")
}

// FuzzAnswer: whatever a target says, the prober comes back with a verdict.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\n\r\nfine", "HTTP/1.0 503 x\r\n\r\n", "HTTP/1.1 100 a\r\n\r\nHTTP/1.1 200 b\r\n\r\nfine",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfi", "", "\r\n", "SSH-2.0-x\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, say []byte) {
		h := HTTP{Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				buf := make([]byte, 4096)
				if _, err := far.Read(buf); err == nil {
					_, _ = far.Write(say)
				}
			}()
			return near, nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), ample)
		defer cancel()
		err := h.Probe(ctx, edge.Probe{URL: "http://192.0.2.1/", Body: "fine"})
		if err == nil && !strings.Contains(string(say), "200") {
			t.Errorf("passed on %q", say)
		}
		if ctx.Err() != nil {
			t.Errorf("hung on %q", say)
		}
	})
}
