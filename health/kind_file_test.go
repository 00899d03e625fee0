package health

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// aged makes a file that was changed some time ago.
func aged(t *testing.T, age time.Duration) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	at := time.Now().Add(-age)
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(name, at, at); err != nil {
		t.Fatal(err)
	}
	return name
}

// unixSocket listens on a new unix socket of a type.
func unixSocket(t *testing.T, network string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "socket")
	if network == "unixgram" {
		c := must(net.ListenUnixgram(network, &net.UnixAddr{Name: name, Net: network}))
		t.Cleanup(func() { c.Close() })
		return name
	}
	ln := must(net.Listen(network, name))
	t.Cleanup(func() { ln.Close() })
	return name
}

// deadSocket leaves a socket behind on which nobody listens.
func deadSocket(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "socket")
	ln := must(net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"}))
	ln.SetUnlinkOnClose(false)
	ln.Close()
	return name
}

// fullSocket returns one whose queue has no place and that nobody accepts from;
// take accepts one.
func fullSocket(t *testing.T) (name string, take func()) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "socket")
	fd := must(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	c := must(net.Dial("unix", name)) // a queue of 0 holds one
	t.Cleanup(func() { c.Close() })
	return name, func() {
		if got, _, err := unix.Accept(fd); err == nil {
			unix.Close(got)
		}
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	old := aged(t, time.Hour)
	const limit = 200 * time.Millisecond
	full, _ := fullSocket(t)
	checks(t, edge.ProbeFile, []check{
		{"young", edge.Probe{File: aged(t, 0), MaxAge: time.Minute}, ""},
		{"any age", edge.Probe{File: old}, ""},
		{"old enough", edge.Probe{File: old, MaxAge: 2 * time.Hour}, ""},
		{"old", edge.Probe{File: old, MaxAge: 59 * time.Minute}, old + " has not been changed since 2"},
		{"how old", edge.Probe{File: old, MaxAge: 59 * time.Minute}, "at most 59m0s ago is wanted"},
		{"a directory", edge.Probe{File: t.TempDir(), MaxAge: time.Minute}, ""},
		{"nearly now", edge.Probe{File: aged(t, -2*time.Second), MaxAge: time.Minute}, ""},
		{"in the future", edge.Probe{File: aged(t, -time.Hour), MaxAge: time.Minute}, "unknown: was changed in the future"},
		{"missing", edge.Probe{File: "/nowhere/file"}, "look at /nowhere/file: no such file or directory"},
		{"through a file", edge.Probe{File: "/etc/passwd/x"}, "not a directory"},
		{"socket", edge.Probe{File: unixSocket(t, "unix"), MaxAge: time.Minute}, ""},
		{"dead socket", edge.Probe{File: deadSocket(t)}, "connection refused"},
		{"full socket", edge.Probe{File: full, Timeout: limit}, "its queue of connections is full"},
	})
}

func TestSocket(t *testing.T) {
	t.Parallel()
	const limit = 200 * time.Millisecond
	full, _ := fullSocket(t)
	drained, take := fullSocket(t)
	stop := time.AfterFunc(100*time.Millisecond, take)
	defer stop.Stop()
	dead := deadSocket(t)
	checks(t, edge.ProbeSocket, []check{
		{"drained meanwhile", edge.Probe{File: drained}, ""},
		{"stream", edge.Probe{File: unixSocket(t, "unix")}, ""},
		{"seqpacket", edge.Probe{File: unixSocket(t, "unixpacket")}, ""},
		{"datagram", edge.Probe{File: unixSocket(t, "unixgram")}, ""},
		{"dead", edge.Probe{File: dead}, "connect to " + dead + ": connection refused"},
		{"missing", edge.Probe{File: "/nowhere/socket"}, "connect to /nowhere/socket: no such file or directory"},
		{"no socket", edge.Probe{File: aged(t, 0)}, "connection refused"},
		{"full", edge.Probe{File: full, Timeout: limit}, "connect to " + full + ": its queue of connections is full"},
		{"long path", edge.Probe{File: "/" + strings.Repeat("x", 107)}, "unknown: is longer than 107 bytes"},
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect(t, probeSocket(ctx, edge.Probe{File: full}), "unknown: stopped")
}

// TestDenied: what we may not look at is unknown, in a thread without rights.
func TestDenied(t *testing.T) {
	t.Parallel()
	socket := unixSocket(t, "unix")
	if err := os.Chmod(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	apart(t, 0, func() {
		becomeNobody(t)
		expect(t, probeSocket(t.Context(), edge.Probe{File: socket}), "unknown: permission denied")
	})
	expect(t, denied(unix.EACCES), "unknown: permission denied")
	expect(t, denied(unix.ENOENT), "no such file")
}

// TestPatience has the kernel hang: the run ends in time, nobody hangs twice,
// and the answer that comes late is not taken for a new one.
func TestPatience(t *testing.T) {
	t.Parallel()
	s := &patience{}
	hang, calls := make(chan int), 0
	f := func() (any, error) {
		calls++
		return <-hang, nil
	}
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := s.call(ctx, "disk", f)
		expect(t, explain(ctx, err, 20*time.Millisecond), "no answer within 20ms")
		cancel()
	}
	if v, err := s.call(t.Context(), "other", func() (any, error) { return 7, nil }); v != 7 || err != nil {
		t.Errorf("another key waits too: %v, %v", v, err)
	}
	hang <- 1
	eventually(t, "the call is over", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.calls) == 0
	})
	if calls != 1 {
		t.Errorf("%d calls hung", calls)
	}
	go func() { hang <- 2 }()
	if v, err := s.call(t.Context(), "disk", f); v != 2 || err != nil {
		t.Errorf("the call after: %v, %v", v, err)
	}
}
