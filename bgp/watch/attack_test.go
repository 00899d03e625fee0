package watch

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestEndlessLine: a stream that is one line is read in little memory, what
// follows it is judged, and the other way round: it does not pass for a stream
// that says something.
func TestEndlessLine(t *testing.T) {
	const size = 100 << 20
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		part := bytes.Repeat([]byte(`{"type":[`), 1<<12)
		for sent := 0; sent < size; sent += len(part) {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
		fmt.Fprint(w, "\n"+hijackAt(1))
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	runtime.GC()
	var before, m runtime.MemStats
	runtime.ReadMemStats(&before)
	w := run(t, Config{Own: []Own{own("192.0.2.0/24")}, URL: server.URL})
	most := uint64(0)
	eventually(t, w, "past the line", func(s State) bool {
		runtime.ReadMemStats(&m)
		most = max(most, m.HeapAlloc)
		return len(s.Alarms) == 1 && s.Dropped == 1+size/maxBacklog && s.Lines == s.Dropped+1
	})
	if most > before.HeapAlloc+16<<20 {
		t.Errorf("%d MB", (most-before.HeapAlloc)>>20)
	}
}

// TestSlowStream: bytes without a line, few or many, are silence.
func TestSlowStream(t *testing.T) {
	for name, part := range map[string]string{"slow": "{", "fast": strings.Repeat("x", 1<<20)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, inLab(watched(), func(l *lab) {
				w := l.stream()
				begin := time.Now()
				for {
					if _, err := w.Write([]byte(part)); err != nil {
						break
					}
					time.Sleep(5 * time.Second)
				}
				if d := time.Since(begin); d < silenceLimit || d > silenceLimit+5*time.Second {
					t.Errorf("read for %s", d)
				}
				l.stream() // another one
				if s := l.want(); s.Dropped == 0 {
					t.Errorf("%+v", s)
				}
				l.stop()
				if !strings.Contains(l.log.String(), `reason="nothing has come for 15m0s"`) {
					t.Error(l.log.String())
				}
			}))
		})
	}
}

// TestRedirects: a feed does not choose whom else we ask.
func TestRedirects(t *testing.T) {
	asked := make(chan string, 100)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked <- r.URL.Path }))
	t.Cleanup(other.Close)
	elsewhere := strings.Replace(other.URL, "127.0.0.1", "user:secret@[::ffff:127.0.0.1]", 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/elsewhere":
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		case "/scheme":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		case "/long":
			w.Header().Set("Location", "/"+strings.Repeat("x", 1<<15))
			w.WriteHeader(http.StatusFound)
		case "/none":
			w.WriteHeader(http.StatusFound)
		case "/bad":
			w.Header().Set("Location", "http://[\x01")
			w.WriteHeader(http.StatusFound)
		case "/again":
			http.Redirect(w, r, fmt.Sprintf("/again?%d", time.Now().UnixNano()), http.StatusFound)
		default:
			http.Error(w, strings.Repeat("x", 1000), http.StatusTeapot)
		}
	}))
	t.Cleanup(server.Close)
	for path, want := range map[string]string{
		"/elsewhere": "redirected to another host: if you trust it, configure its URL: http://user:xxxxx@[::ffff:127.0.0.1]:",
		"/scheme":    "redirected to another host",
		"/long":      "418",
		"/none":      "the server answers 302 Found",
		"/bad":       "Location",
		"/again":     "redirected more than 5 times",
	} {
		t.Run(path[1:], func(t *testing.T) {
			w := run(t, Config{Own: []Own{own("192.0.2.0/24")}, URL: server.URL + path})
			eventually(t, w, want, func(s State) bool { return strings.Contains(s.LastErr, want) })
			if s := w.State(); s.Connected || len(s.LastErr) > 500 || strings.Contains(s.LastErr, "secret") {
				t.Errorf("%+v", s)
			}
		})
	}
	if len(asked) > 0 {
		t.Errorf("%s was asked for", <-asked)
	}
}

// TestFeedOfWrongKind: what is no feed is not even opened.
func TestFeedOfWrongKind(t *testing.T) {
	for _, path := range []string{t.TempDir(), "/dev/zero", "/dev/null"} {
		if file, _, err := openFeed(path); err == nil {
			file.Close()
			t.Errorf("%s was opened", path)
		}
	}
}

// TestEndlessFIFO: a writer that never ends its line costs no memory, is shown,
// and does not hold up the end.
func TestEndlessFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "feed")
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	w := run(t, fromFile(path))
	eventually(t, w, "connected", func(s State) bool { return s.Connected })
	ended := make(chan error, 1)
	go func() {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		part := bytes.Repeat([]byte("x"), 1<<16)
		for err == nil {
			_, err = file.Write(part)
		}
		file.Close()
		ended <- err
	}()
	eventually(t, w, "in trouble", func(s State) bool { return s.Dropped > 2 && strings.Contains(s.LastErr, "a line of more than") })
	if err := w.Set(Config{Own: []Own{own("192.0.2.0/24")}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("it is still read")
	}
}

// TestGaps: a withdrawal in a file is no evidence where lines may have been lost
// behind it.
func TestGaps(t *testing.T) {
	withdrawn := strings.Replace(ris("rrc00", "p", `null`, `"withdrawals":["192.0.2.0/24"]`), "1767225600.25", "0", 1) + "\n"
	replace := func(t *testing.T, path string) {
		add(t, path+".new", good()+"\n"+withdrawn)
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		do      func(t *testing.T, path string)
		lines   uint64
		missing bool
	}{
		"grows":    {func(t *testing.T, path string) { add(t, path, "{}\n") }, 3, true},
		"replaced": {func(t *testing.T, path string) { os.Remove(path); add(t, path, "{}\n") }, 3, false},
		"again":    {replace, 4, true},
		"truncated": {func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("{}\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "feed")
			add(t, path, good()+"\n"+withdrawn)
			w := run(t, fromFile(path))
			eventually(t, w, "read", func(s State) bool { return s.Lines == 2 && s.Unseen == 1 })
			test.do(t, path)
			eventually(t, w, "read on", func(s State) bool { return s.Lines == test.lines })
			cfg := fromFile(path)
			cfg.MissingAfter = time.Nanosecond
			if err := w.Set(cfg); err != nil {
				t.Fatal(err)
			}
			if s := w.State(); (len(s.Alarms) == 1) != test.missing {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestTruncatedAtAnyTime: of a file that is truncated and written anew between
// two reads, however long it is then, nothing is read from the middle of a line.
func TestTruncatedAtAnyTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "feed")
	for _, before := range []int{0, 1, 63, 64, 65, 300} {
		for _, after := range []int{0, 1, 63, 64, 65, 300, 1000} {
			if err := os.WriteFile(path, bytes.Repeat([]byte("a"), before), 0o644); err != nil {
				t.Fatal(err)
			}
			file, _, err := openFeed(path)
			if err != nil {
				t.Fatal(err)
			}
			g := &growing{file: file, regular: true}
			buf := make([]byte, 200)
			read := func() (text string, err error) {
				for {
					n, err := g.Read(buf)
					if text += string(buf[:n]); err != nil {
						return text, err
					}
				}
			}
			if text, err := read(); len(text) != before || err != io.EOF {
				t.Fatalf("read %d bytes of %d: %v", len(text), before, err)
			}
			if err := os.WriteFile(path, bytes.Repeat([]byte("b"), after), 0o644); err != nil { // truncates
				t.Fatal(err)
			}
			text, err := read()
			if before > 0 && (len(text) > 0 || err != errTruncated) {
				t.Errorf("%d bytes, then %d: read %q, %v", before, after, text, err)
			}
			if before > 0 {
				if err := g.seek(0); err != nil {
					t.Fatal(err)
				}
				text, err = read()
			}
			if len(text) != after || err != io.EOF {
				t.Errorf("%d bytes, then %d: read %d, %v", before, after, len(text), err)
			}
			file.Close()
		}
	}
}

// TestLogQuota: alarms that come and go fill no disk.
func TestLogQuota(t *testing.T) {
	synctest.Test(t, inLab(Config{Own: []Own{own("2001:db8::/32")}}, func(l *lab) {
		for i := range 60 * 60 {
			for n := range 3 {
				r := Route{Prefix: prefix(fmt.Sprintf("2001:db8:%x::/48", (3*i+n)%65536)), ASPath: []uint32{666}, Source: "peer glass"}
				l.Observe(r)
				r.Prefix, r.Withdrawn = prefix(fmt.Sprintf("2001:db8:%x::/48", (3*i+n-9+65536)%65536)), true
				l.Observe(r)
			}
			time.Sleep(time.Second)
		}
		l.stop()
		lines := strings.Count(l.log.String(), "\n")
		const most = 2 * (60*60/10 + 60*60/160 + mostLogged + 2)
		if lines > most || lines < most*9/10 {
			t.Errorf("%d lines, at most %d", lines, most)
		}
	}))
}
