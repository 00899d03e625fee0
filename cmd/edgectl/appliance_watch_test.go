package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

func TestAnnouncing(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:100::/48")
	for want, ds := range map[string][]edge.Decision{
		"announces nothing":                             nil,
		"announcing 198.51.100.0/24, 2001:db8:100::/48": {{Prefix: v4, Rung: edge.Announced}, {Prefix: v6, Rung: edge.Announced}},
		"announcing 198.51.100.0/24 (last-resort); not 2001:db8:100::/48 (withheld: no reason is known)": {{Prefix: v4, Rung: edge.LastResort, Reason: "refused"}, {Prefix: v6, Rung: edge.Withheld}},
		"announces nothing; not 198.51.100.0/24 (withdrawn: drained by bob)":                             {{Prefix: v4, Rung: edge.Withdrawn, Reason: "drained by bob"}},
	} {
		if got := announcing(edge.SystemStatus{Decisions: ds}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// lines is a console that tells of each line.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
	ch chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	l.b.Write(p)
	l.mu.Unlock()
	l.ch <- struct{}{}
	return len(p), nil
}

// TestApplianceWatch: a line for what is announced, none while nothing changes, and
// an edged that is gone is told too.
func TestApplianceWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edged.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 100)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		json.NewEncoder(w).Encode(edge.SystemStatus{Decisions: []edge.Decision{{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Rung: edge.Announced}}})
	})}
	go srv.Serve(ln)
	out := &lines{ch: make(chan struct{}, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		done <- run(ctx, env{stdout: out, stderr: out, now: time.Now}, []string{"appliance", "watch", "--socket", path})
	}()
	for range 3 {
		<-asked
	}
	srv.Close()
	for range 2 {
		<-out.ch
	}
	cancel()
	if code := <-done; code != exitOK {
		t.Errorf("exit code %d", code)
	}
	got := strings.Split(strings.TrimSpace(out.b.String()), "\n")
	if len(got) != 2 || got[0] != "edge: announcing 198.51.100.0/24" || !strings.HasPrefix(got[1], "edge: ") || strings.Contains(got[1], "announcing") {
		t.Errorf("%q", got)
	}
}

// pty makes a terminal; what is written to the path comes out of the file.
func pty(t *testing.T) (out *os.File, path string) {
	t.Helper()
	out, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	if err := unix.IoctlSetPointerInt(int(out.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(out.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	return out, fmt.Sprintf("/dev/pts/%d", n)
}

// TestTerminals: each line is on every terminal but the one that has it already, and
// one that takes nothing holds nobody up.
func TestTerminals(t *testing.T) {
	dir := t.TempDir()
	tt := terminals{sys: filepath.Join(dir, "sys"), dev: dir, busy: map[string]chan struct{}{}}
	write := func(name, text string) {
		full := filepath.Join(tt.sys, "class/tty", name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("console/active", "tty0 ttyS0\n")
	write("tty1/dev", "4:1\n")
	for name, kind := range map[string]string{"ttyS0": "4", "ttyS1": "4", "ttyS2": "0", "ttyS10": "4"} {
		write(name+"/type", kind+"\n")
	}
	if got := strings.Join(tt.others(), " "); got != "tty1 ttyS1 ttyS10" {
		t.Errorf("terminals %s", got)
	}
	write("console/active", "tty0\n")
	if got := strings.Join(tt.others(), " "); got != "ttyS0 ttyS1 ttyS10" {
		t.Errorf("with the screen as the console: %s", got)
	}
	// ttyS10 is a pipe that nobody reads, ttyS0 is not there.
	out, path := pty(t)
	if err := os.Symlink(path, filepath.Join(dir, "ttyS1")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "ttyS10"), 0o600); err != nil {
		t.Fatal(err)
	}
	hold, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0) // as a login has it
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	tt.tell("edge: announcing 198.51.100.0/24\n")
	b := make([]byte, 200)
	n, err := out.Read(b)
	if got := strings.TrimSpace(string(b[:n])); got != "edge: announcing 198.51.100.0/24" {
		t.Errorf("%q %v", got, err)
	}
	for _, busy := range tt.busy {
		busy <- struct{}{} // all are done in time
	}
}
