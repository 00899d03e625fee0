package socket

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/catchment-dev/edge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers on a socket in a folder of its own until the test ends.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run", "x.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Serve(ctx, ln, h) }()
	c := NewClient(path)
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", st.Mode(), err)
	}
	return c
}

func TestCall(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var in edge.Drain
		if err := Read(r, &in); err != nil {
			Fail(w, http.StatusBadRequest, err)
			return
		}
		JSON(w, http.StatusOK, edge.Explanation{What: in.Reason})
	})
	var out edge.Explanation
	if err := c.Call(t.Context(), "POST", "/v1/x", edge.Drain{Reason: "why"}, &out); err != nil || out.What != "why" {
		t.Errorf("got %+v, %v", out, err)
	}
	err := c.Call(t.Context(), "POST", "/v1/x", map[string]string{"raeson": "typo"}, &out)
	if err == nil || !strings.Contains(err.Error(), "raeson") {
		t.Errorf("an unknown key: %v", err)
	}
}

// TestProblem: an answer that is not 2xx is an error with its text, whatever
// its body.
func TestProblem(t *testing.T) {
	for body, want := range map[string]string{`{"error":"no such prefix"}`: "no such prefix", "boom": "500 Internal", "": "500 Internal"} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			w.Write([]byte(body))
		})
		if err := c.Call(t.Context(), "GET", "/", nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("body %q: %v, want %q", body, err, want)
		}
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second time: %v", err)
	}
	// A process that is killed leaves the file.
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	first.Close()
	again, err := Listen(path)
	if err != nil {
		t.Fatalf("over a dead socket: %v", err)
	}
	again.Close()
}

// TestListenFullQueue: a process that is too busy to answer is not a dead one.
func TestListenFullQueue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for { // until the queue is full
		c, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(c)
		if err := syscall.Connect(c, &syscall.SockaddrUnix{Name: path}); err != nil {
			if !errors.Is(err, syscall.EAGAIN) {
				t.Fatal(err)
			}
			break
		}
	}
	if ln, err := Listen(path); err == nil {
		ln.Close()
		t.Error("a live socket was taken for a dead one")
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the live socket is gone: %v", err)
	}
}
