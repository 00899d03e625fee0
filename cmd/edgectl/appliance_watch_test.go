package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

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
