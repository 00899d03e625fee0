package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// sampleFlows is one of each kind.
func sampleFlows() []edge.FlowEntry {
	at := netip.MustParseAddrPort
	return []edge.FlowEntry{
		{Service: "web", Backend: "a1", Src: at("192.0.2.1:40000"), Dst: at("198.51.100.10:443"), Protocol: edge.TCP, Left: 60 * time.Second},
		{Service: "web", Backend: "a2", Src: at("192.0.2.1:40001"), Dst: at("198.51.100.10:443"), Protocol: edge.TCP, Half: true, Left: 3 << 30},
		{Service: "any", Backend: "a1", Src: at("[2001:db8::7]:0"), Dst: at("[2001:db8:1::10]:0"), Protocol: 50, Left: 2 * time.Hour},
		{Service: "dns", Backend: "a1", Src: at("192.0.2.1:0"), Dst: at("198.51.100.53:0"), Protocol: edge.UDP, Left: 0},
		{Service: "voice", Src: at("192.0.2.1:0"), Left: time.Second}, // client-ip-no-destination
	}
}

// serveFlows answers as edged does.
func serveFlows(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	all := sampleFlows()
	switch {
	case q.Get("service") == "quiet":
		socket.JSON(w, http.StatusOK, flowList{Flows: []edge.FlowEntry{}})
	case q.Get("service") == "wbe":
		socket.Fail(w, http.StatusBadRequest, errors.New(`"wbe" is not a service of the configuration; there are ["web"]`))
	case q.Get("limit") == "2":
		socket.JSON(w, http.StatusOK, flowList{Flows: all[:2], Total: len(all), Shown: 2})
	default:
		socket.JSON(w, http.StatusOK, flowList{Flows: all, Total: 7312, Shown: len(all)})
	}
}

// capturedBytes is no pcapng: it is passed on as it is.
const capturedBytes = "packets\n"

// serveCapture answers as edged does.
func serveCapture(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Trailer", "Edge-Packets, Edge-Error")
	switch r.URL.Query().Get("service") {
	case "busy":
		socket.Fail(w, http.StatusConflict, errors.New("a capture by root is running since 12:00:00 UTC"))
		return
	case "broken":
		h.Set("Edge-Error", "capture: the map is gone")
	case "long":
		io.WriteString(w, capturedBytes)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	io.WriteString(w, capturedBytes)
	http.NewResponseController(w).Flush()
	h.Set("Edge-Packets", "12")
}

// TestLargeList: a list that is longer than other answers may be.
func TestLargeList(t *testing.T) {
	var asked int
	ln := filepath.Join(t.TempDir(), "edged.sock")
	serve(t, ln, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		list := flowList{Total: 100_000, Shown: 100_000}
		for range list.Total {
			list.Flows = append(list.Flows, edge.FlowEntry{
				Service: edge.ServiceID(strings.Repeat("s", 32)), Backend: edge.BackendID(strings.Repeat("b", 32)),
				Src: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:40000"), Dst: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:40000"),
			})
		}
		socket.JSON(w, http.StatusOK, list)
	}))
	stdout, stderr, code := call(t, false, "flows", "--limit", "100000", "--timeout", "1m", "--socket", ln)
	if n := strings.Count(stdout, "\n"); code != exitOK || n != 100_003 || asked != 1 {
		t.Errorf("exit %d, %d lines, %s", code, n, stderr)
	}
}

// serve answers on a socket until the test ends.
func serve(t *testing.T, path string, h http.Handler) {
	t.Helper()
	ln, err := socket.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- socket.Serve(ctx, ln, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestCaptureFile: the capture is in the file, which is nobody else's to read;
// what is refused leaves the file as it was.
func TestCaptureFile(t *testing.T) {
	sock := "--socket=" + new(edged).serve(t)
	path := filepath.Join(t.TempDir(), "x.pcapng")
	stdout, stderr, code := call(t, true, sock, "capture", "--out", path)
	if want := "12 packets written to " + path + "\n"; stdout != want || stderr != "" || code != exitOK {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
	check := func() {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil || string(b) != capturedBytes {
			t.Errorf("the file has %q, %v", b, err)
		}
	}
	check()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if _, _, code := call(t, false, sock, "capture", "--out", path, "--service", "busy"); code != exitRefused {
		t.Errorf("refused: exit %d", code)
	}
	check()
}

// TestCaptureInterrupted: what was captured until then is there, and that is no
// failure.
func TestCaptureInterrupted(t *testing.T) {
	sock := "--socket=" + new(edged).serve(t)
	path := filepath.Join(t.TempDir(), "x.pcapng")
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs strings.Builder
	code := make(chan int)
	go func() {
		code <- run(ctx, env{stdout: &out, stderr: &errs, now: time.Now}, []string{sock, "capture", "--out", path, "--service", "long"})
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if b, _ := os.ReadFile(path); string(b) == capturedBytes {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is in the file after 10 s")
		}
	}
	cancel()
	if got := <-code; got != exitOK || out.String() != "what was captured until then written to "+path+"\n" || errs.String() != "" {
		t.Errorf("exit %d, %q, %q", got, &out, &errs)
	}
}
