package slot

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mirror serves a folder over TLS; its handler may be replaced in a test.
type mirror struct {
	*httptest.Server
	ca   string
	asks atomic.Int32
}

func newMirror(t *testing.T, h func(m *mirror, files http.Handler) http.HandlerFunc, dir string) *mirror {
	t.Helper()
	m := &mirror{}
	inner := h(m, http.FileServer(http.Dir(dir)))
	m.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.asks.Add(1)
		inner(w, r)
	}))
	t.Cleanup(m.Close)
	m.ca = filepath.Join(t.TempDir(), "ca.pem")
	put(t, m.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.Certificate().Raw}))
	return m
}

func honest(_ *mirror, files http.Handler) http.HandlerFunc { return files.ServeHTTP }

func (m *mirror) source(t *testing.T) Source {
	t.Helper()
	s, err := OpenSource(m.URL+"/", SourceOptions{CAFile: m.ca, Stall: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func plenty() (int64, error) { return 1 << 40, nil }

func TestFetchOverHTTPS(t *testing.T) {
	next, by := newSystem("1.2.0"), newSigner(t)
	dir, want := next.pack(t, by)
	m := newMirror(t, honest, dir)
	got, sum, err := FetchManifest(t.Context(), m.source(t), by.trusted(t))
	if err != nil || got.Version != want.Version || len(sum) != 64 {
		t.Fatal(got, sum, err)
	}
	if _, _, err := FetchManifest(t.Context(), m.source(t), newSigner(t).trusted(t)); err == nil || !strings.Contains(err.Error(), "not signed by any") {
		t.Errorf("by another key: %v", err)
	}
	var told int64
	f := &Fetcher{From: m.source(t), Dir: filepath.Join(t.TempDir(), "fetch"), Free: plenty, Progress: func(done, _ int64) { told = done }}
	put(t, filepath.Join(f.Dir, "root-of-another"), []byte("x"))
	files, err := f.Fetch(t.Context(), got)
	if err != nil {
		t.Fatal(err)
	}
	if told != got.PackedSize() {
		t.Errorf("told of %d bytes of %d", told, got.PackedSize())
	}
	if left, _ := os.ReadDir(f.Dir); len(left) != 3 {
		t.Errorf("in the folder: %v", left)
	}
	asks := m.asks.Load()
	if _, err := f.Fetch(t.Context(), got); err != nil || m.asks.Load() != asks {
		t.Errorf("a second fetch asks %d times, %v", m.asks.Load()-asks, err)
	}
	d := twoSlots(1, newSystem("1.1.0"), newSystem("1.0.0"))
	if err := d.writer().Write(t.Context(), Job{Manifest: got, Packed: files, Slot: B, Running: "1.1.0", Tries: 3}); err != nil {
		t.Error(err)
	}
	// Without the CA the server is a stranger.
	s, err := OpenSource(m.URL, SourceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := FetchManifest(t.Context(), s, by.trusted(t)); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a stranger: %v", err)
	}
}

// TestFetchGoesOn: a server that breaks the connection again and again, and one that
// stops to send, are asked for the rest only.
func TestFetchGoesOn(t *testing.T) {
	dir, want := newSystem("1.2.0").pack(t, newSigner(t))
	for name, h := range map[string]func(*mirror, http.Handler) http.HandlerFunc{
		"breaks": func(m *mirror, files http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				files.ServeHTTP(&limited{w, 200 << 10}, r)
			}
		},
		"stalls once": func(m *mirror, files http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				if m.asks.Load() == 1 {
					w.Write([]byte{0x28})
					w.(http.Flusher).Flush()
					<-r.Context().Done()
					return
				}
				files.ServeHTTP(w, r)
			}
		},
		"breaks before it answers": func(m *mirror, files http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				if m.asks.Load() == 1 {
					panic(http.ErrAbortHandler)
				}
				files.ServeHTTP(w, r)
			}
		},
		"is ill for a moment": func(m *mirror, files http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				if m.asks.Load() == 2 {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				files.ServeHTTP(w, r)
			}
		},
		"knows no ranges": func(m *mirror, files http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Del("Range"); m.asks.Load() == 1 {
					w = &limited{w, 1000}
				}
				files.ServeHTTP(w, r)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMirror(t, h, dir)
			f := &Fetcher{From: m.source(t), Dir: t.TempDir(), Free: plenty}
			if _, err := f.Fetch(t.Context(), want); err != nil {
				t.Errorf("after %d asks: %v", m.asks.Load(), err)
			}
			if n := m.asks.Load(); n < 4 {
				t.Errorf("it was asked %d times: nothing was broken", n)
			}
		})
	}
}

// limited breaks the connection after some bytes.
type limited struct {
	http.ResponseWriter
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		l.ResponseWriter.Write(p[:l.left])
		l.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	l.left -= len(p)
	return l.ResponseWriter.Write(p)
}

func TestFetchRefuses(t *testing.T) {
	dir, want := newSystem("1.2.0").pack(t, newSigner(t))
	always := func(f http.HandlerFunc) func(*mirror, http.Handler) http.HandlerFunc {
		return func(*mirror, http.Handler) http.HandlerFunc { return f }
	}
	for _, c := range []struct {
		name, want string
		serve      func(*mirror, http.Handler) http.HandlerFunc
		free       int64
	}{
		{"not there", "404", always(http.NotFound), 1 << 40},
		{"more than it says", "sends more than", always(func(w http.ResponseWriter, _ *http.Request) {
			for range 4000 {
				if _, err := w.Write(make([]byte, 1024)); err != nil {
					return
				}
			}
		}), 1 << 40},
		{"another content", "its sum is not", always(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, want.File(Verity).PackedSize)) }), 1 << 40},
		{"redirected to plain HTTP", "not encrypted", always(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:9/x", http.StatusFound)
		}), 1 << 40},
		{"redirected for ever", "more than 5 redirects", always(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
		}), 1 << 40},
		{"no room", "remove files there", honest, keepFree},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMirror(t, c.serve, dir)
			f := &Fetcher{From: m.source(t), Dir: filepath.Join(t.TempDir(), "fetch"), Free: func() (int64, error) { return c.free, nil }}
			_, err := f.Fetch(t.Context(), want)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			for _, e := range must(os.ReadDir(f.Dir)) {
				if info, err := e.Info(); err == nil && info.Size() > want.PackedSize() {
					t.Errorf("%s has %d bytes", e.Name(), info.Size())
				}
			}
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestOpenSource(t *testing.T) {
	for where, want := range map[string]string{
		"/mnt/payload": "", "file:///mnt/payload": "", "https://x.example/edge": "", "payload": "",
		"http://x.example/edge": "--insecure-http", "ftp://x.example/": "no source", "https:///edge": "no source",
		"file://host/x": "no source", "https://x.example/?v=1": "may have no ?", "https://%zz/": "read source",
	} {
		_, err := OpenSource(where, SourceOptions{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", where, err, want)
		}
	}
	if _, err := OpenSource("http://x.example/edge", SourceOptions{InsecureHTTP: true}); err != nil {
		t.Error(err)
	}
	if _, err := OpenSource("https://x.example", SourceOptions{CAFile: "/none"}); err == nil {
		t.Error("a CA file that is not there is taken")
	}
}

// TestSourceWithPassword: it is used, and told to nobody.
func TestSourceWithPassword(t *testing.T) {
	var user, password string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ = r.BasicAuth()
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer srv.Close()
	for _, c := range []struct{ where, name string }{
		{strings.Replace(srv.URL, "://", "://ops:s3cret@", 1) + "/edge", srv.URL + "/edge"},
		{"http://ops:s3cret@127.0.0.1:1/edge", "http://127.0.0.1:1/edge"},
		{"ftp://ops:s3cret@x/edge", "ftp://x/edge"},
		{"https://ops:s3cret@x/?v", "https://x/?v"},
		{"https://ops:s3cret#2@x/", "a source that is no URL"},
		{"https://ops:s3cret%@x/", "a source that is no URL"},
		{"/mnt/ops:s3cret@x", "/mnt/ops:s3cret@x"},
	} {
		if got := SourceName(c.where); got != c.name {
			t.Errorf("%s is named %s", c.where, got)
		}
		if !strings.Contains(c.where, "://") {
			continue
		}
		from, err := OpenSource(c.where, SourceOptions{InsecureHTTP: true})
		if err == nil {
			_, err = from.Open(t.Context(), ManifestName, 0)
		}
		if err == nil || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "ops") {
			t.Errorf("%s: %v", c.where, err)
		}
	}
	if user != "ops" || password != "s3cret" {
		t.Errorf("the server is told %q, %q", user, password)
	}
}

func TestFetchFromFolder(t *testing.T) {
	dir, m := newSystem("1.2.0").pack(t, newSigner(t))
	f := &Fetcher{From: folder(dir)}
	files, err := f.Fetch(t.Context(), m)
	if err != nil || files[Root] != filepath.Join(dir, m.File(Root).Name) {
		t.Fatal(files, err)
	}
	put(t, files[Root], []byte("x"))
	if _, err := f.Fetch(t.Context(), m); err == nil || !strings.Contains(err.Error(), fmt.Sprint(m.File(Root).PackedSize)) {
		t.Errorf("a file that is cut: %v", err)
	}
}
