package backbone

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// answerOnce is an origin that answers the first connection with fixed bytes.
// It returns its address and what it was sent.
func answerOnce(t *testing.T, answer string) (netip.AddrPort, <-chan string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, 4096)
		n, _ := c.Read(buf)
		got <- string(buf[:n])
		io.WriteString(c, answer)
		if answer == "" {
			c.Read(buf) // silence, until the other side gives up
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().(*net.TCPAddr).AddrPort(), got
}

func TestProbeHTTP(t *testing.T) {
	tests := map[string]struct {
		answer string
		check  edge.Probe
		want   string // part of the error; "" is a pass
	}{
		"ok":             {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n", edge.Probe{Body: "ok"}, ""},
		"chunked":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", edge.Probe{Body: "ok"}, ""},
		"other status":   {"HTTP/1.1 204 No Content\r\n\r\n", edge.Probe{Status: 204}, ""},
		"wrong status":   {"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", edge.Probe{}, "status 503 instead of 200"},
		"wrong body":     {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno", edge.Probe{Body: "yes"}, "not in the answer"},
		"not http":       {"SSH-2.0-x\r\n\r\n", edge.Probe{}, "malformed"},
		"closed":         {"HTTP/1.1 200 OK\r\n", edge.Probe{}, "EOF"},
		"silent":         {"", edge.Probe{}, "timeout"},
		"endless header": {"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 3*checkBody), edge.Probe{}, "EOF"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, got := answerOnce(t, tt.answer)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			tt.check.Kind, tt.check.Path, tt.check.Host = edge.ProbeHTTP, "/healthz", "origin.example"
			rtt, err := probeUpstream(ctx, at, tt.check)
			if rtt <= 0 {
				t.Errorf("rtt %v although it connected", rtt)
			}
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if req := <-got; !strings.HasPrefix(req, "GET /healthz HTTP/1.1\r\nHost: origin.example\r\n") {
				t.Errorf("asked %q", req)
			}
		})
	}
}

func TestProbeTCP(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().(*net.TCPAddr).AddrPort()
	if rtt, err := probeUpstream(t.Context(), at, edge.Probe{Kind: edge.ProbeTCP}); err != nil || rtt <= 0 {
		t.Errorf("open port: %v %v", rtt, err)
	}
	ln.Close()
	_, err = probeUpstream(t.Context(), at, edge.Probe{Kind: edge.ProbeTCP})
	if err == nil || err.Error() != "connect: connection refused" || errors.Is(err, edge.ErrUnknown) {
		t.Errorf("closed port: %v", err)
	}
}
