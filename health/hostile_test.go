package health

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// pour is a server that answers with head and then with more, for as long as the
// other end takes it.
func pour(t *testing.T, head, more string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(2 * time.Second))
			_, err = c.Write([]byte(head))
			block := []byte(strings.Repeat(more, 1+4096/len(more)))
			for err == nil {
				_, err = c.Write(block)
			}
			c.Close()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

// TestHostileAnswers: answers without an end, and texts without measure, fail
// shortly, and keep nobody from seeing that another target has died.
func TestHostileAnswers(t *testing.T) {
	dead := closedPort(t)
	var probes []edge.Probe
	for name, at := range map[edge.ProbeID]netip.AddrPort{
		"head":   pour(t, "HTTP/1.1 200 OK\r\n", "A:\r\n"),
		"line":   pour(t, "HTTP/1.1 200 ", "\x1b"),
		"header": pour(t, "HTTP/1.1 200 OK\r\nX: ", "x"),
		"status": pour(t, "HTTP/1.1 "+strings.Repeat("\x1b[31m", 10_000)+"\r\n\r\n", "x"),
		"length": pour(t, "HTTP/1.1 200 OK\r\nContent-Length: "+strings.Repeat("z", 50_000)+"\r\n\r\n", "x"),
	} {
		probes = append(probes, edge.Probe{ID: name, Kind: edge.ProbeHTTP, URL: "http://" + at.String() + "/", Interval: 100 * time.Millisecond, Timeout: 100 * time.Millisecond, Rise: 1, Fall: 1})
	}
	probes = append(probes, edge.Probe{ID: "dead", Kind: edge.ProbeTCP, Addr: dead, Interval: 200 * time.Millisecond, Timeout: 200 * time.Millisecond, Rise: 1, Fall: 2})
	m := New(Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	defer func() { cancel(); <-done }()
	m.Set(probes)
	eventually(t, "all are down", func() bool {
		for _, s := range m.Statuses() {
			if s.State != edge.Down {
				return false
			}
		}
		return true
	})
	for _, s := range m.Statuses() {
		if len(s.LastErr) > 2*maxSaid+100 || strings.ContainsAny(s.LastErr, "\x1b\r\n") {
			t.Errorf("%s: a text of %d bytes: %.100q", s.Probe, len(s.LastErr), s.LastErr)
		}
	}
	list, _ := m.Events(0)
	for _, e := range list {
		if len(e.Evidence) > 2*maxSaid+100 {
			t.Errorf("%s: evidence of %d bytes", e.Subject, len(e.Evidence))
		}
	}
}
