package watch

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// collector is a process of its own, a server of Python's that streams what
// grows in a file, in chunks of odd sizes, as HTTP/1.1 has them.
const collector = `
import http.server, sys, time
class Stream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_GET(self):
        if self.path == "/busy":
            self.send_error(503, "Busy now")
            return
        if self.path != "/stream?format=json" or self.headers["User-Agent"] != "catchment-edge":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with open(sys.argv[1], "rb") as lines:
            while True:
                b = lines.read(77)
                if b:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(b), b))
                    self.wfile.flush()
                else:
                    time.sleep(0.02)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Stream)
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
`

// startCollector returns the port; 0 asks for a free one.
func startCollector(t *testing.T, file, port string) (at string, stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "python3", "-c", collector, file, port)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: apt install python3", err)
	}
	stop = sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("collector: %s", errs.Bytes())
		}
	})
	t.Cleanup(stop)
	if _, err := fmt.Fscan(out, &at); err != nil {
		t.Fatalf("the collector does not start: %v", err)
	}
	return at, stop
}

// TestStream is against a server process that is killed and comes back.
func TestStream(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lines")
	add(t, file, hijackAt(1)+"garbage\n")
	port, stop := startCollector(t, file, "0")
	base := "http://127.0.0.1:" + port
	// What we read is what curl reads.
	out, _ := exec.CommandContext(t.Context(), "curl", "-sN", "-A", "catchment-edge", "--max-time", "1", base+"/stream?format=json").Output()
	if string(out) != hijackAt(1)+"garbage\n" {
		t.Fatalf("curl reads %q", out)
	}

	w := run(t, Config{Own: []Own{own("192.0.2.0/24")}, URL: base + "/stream?format=json"})
	sees(t, w, 1, 2, 1)
	add(t, file, hijackAt(2)+hijackAt(3)+hijackAt(4)[:30])
	sees(t, w, 3, 4, 1)
	if s := w.State(); !s.Connected || s.Source != base+"/stream?format=json" {
		t.Errorf("%+v", s)
	}
	stop() // within a line
	eventually(t, w, "in trouble", func(s State) bool { return !s.Connected && s.LastErr != "" })
	if err := os.WriteFile(file, []byte(hijackAt(5)), 0o644); err != nil {
		t.Fatal(err)
	}
	startCollector(t, file, port)
	eventually(t, w, "back", func(s State) bool {
		return s.Connected && len(s.Alarms) == 1 && s.Alarms[0].Count == 4 && s.Dropped == 2
	})

	if err := w.Set(Config{Own: []Own{own("192.0.2.0/24")}, URL: base + "/busy"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, w, "refused", func(s State) bool {
		return s.LastErr == "the server answers 503 Busy now" && len(s.Alarms) == 0
	})
}

// TestServers are servers that do not do as they should.
func TestServers(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/good", http.StatusFound) })
	mux.HandleFunc("/good", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, hijackAt(1))
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/ends", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, hijackAt(1)) })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, hijackAt(1)+"half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/empty", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/header", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<17)) })
	mux.HandleFunc("/junk", func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Write([]byte("\x00\xff\r\n\r\n"))
			conn.Close()
		}
	})
	secure := httptest.NewTLSServer(mux)
	secure.Config.ErrorLog = nil
	t.Cleanup(secure.Close)
	gone := httptest.NewServer(mux)
	gone.Close()
	for _, test := range []struct {
		url, want string
		hijacks   int
	}{
		{server.URL + "/good", "", 1},
		{server.URL + "/moved", "", 1},
		{server.URL + "/loop", "redirected more than 5 times", 0},
		{server.URL + "/ends", "the server has ended the stream", 1},
		{server.URL + "/cut", "unexpected EOF", 1},
		{server.URL + "/empty", "the server answers 204 No Content", 0},
		{server.URL + "/none", "the server answers 404 Not Found", 0},
		{server.URL + "/header", "header", 0},
		{server.URL + "/junk", "malformed", 0},
		{secure.URL + "/good", "certificate", 0}, // nobody we trust has signed it
		{gone.URL, "dial: connect: connection refused", 0},
		{strings.Replace(gone.URL, "://", "://user:secret@", 1), "dial: connect: connection refused", 0},
	} {
		t.Run(test.url[strings.LastIndex(test.url, "/"):], func(t *testing.T) {
			t.Parallel()
			w := run(t, Config{Own: []Own{own("192.0.2.0/24")}, URL: test.url})
			eventually(t, w, test.want, func(s State) bool {
				count := 0
				for _, a := range s.Alarms {
					count += a.Count
				}
				return strings.Contains(s.LastErr, test.want) && count == test.hijacks && (test.want != "") != s.Connected
			})
			if s := w.State(); strings.Contains(s.Source+s.LastErr, "secret") {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestStreamStops: Run ends at once though the server goes on.
func TestStreamStops(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := fmt.Fprint(w, hijackAt(1)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	w := run(t, Config{Own: []Own{own("192.0.2.0/24")}, URL: server.URL})
	eventually(t, w, "reading", func(s State) bool { return s.Lines > 1000 })
	begin := time.Now()
	if err := w.Set(Config{}); err != nil {
		t.Fatal(err)
	}
	if s := w.State(); s.Lines != 0 || len(s.Alarms) != 0 {
		t.Errorf("%+v", s)
	}
	if d := time.Since(begin); d > patience {
		t.Errorf("took %s", d)
	}
}
