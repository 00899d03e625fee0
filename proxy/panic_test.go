package proxy

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// TestPanicInTheHandler: the upstream is let go, the request is logged, the
// other connections go on.
func TestPanicInTheHandler(t *testing.T) {
	o, _ := simpleOrigin(t)
	b := prepareBench(t, func(*edge.Config) {}, o.addr)
	b.s.pool.dialer.Control = func(string, string, syscall.RawConn) error { panic("for the test") }
	b.run()
	if out := b.raw(get); out != "" {
		t.Errorf("answered %q", out)
	}
	cc := b.h2Client()
	req, _ := http.NewRequest("GET", "https://www.example.net/", nil)
	if resp, err := cc.RoundTrip(req); err == nil {
		t.Errorf("h2 answered %v", resp.Status)
	}
	for i, l := range b.access(2) {
		if l.Status != 500 || l.Reason != "a panic, which is in the log of edgeproxy" || l.Upstream != "o0" {
			t.Errorf("line %d: %+v", i, l)
		}
	}
	if done := b.picker.finished(); len(done) != 2 || done[0] != nil || done[1] != nil {
		t.Errorf("let go with %v", done)
	}
	if n := b.s.metrics.panics.Load(); n != 2 {
		t.Errorf("%d panics counted", n)
	}
	req, _ = http.NewRequest("GET", "https://www.example.net/healthz", nil)
	if resp, err := cc.RoundTrip(req); err != nil || resp.StatusCode != 200 {
		t.Errorf("the other streams of the connection: %v", err)
	}
}

type panicReader struct{}

func (panicReader) Read([]byte) (int, error) { panic("for the test") }

// TestPanicInTheAnswer: Done is called when what breaks is the sending.
func TestPanicInTheAnswer(t *testing.T) {
	b := newBench(t) // for its log
	for name, k := range map[string]codec{
		"h1": h1{header: patience, idle: patience, stall: patience},
		"h2": h2{idle: patience, stall: patience, log: b.s.log, panicked: func(any) {}},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := net.Pipe()
			defer client.Close()
			ended := make(chan error, 2)
			served := make(chan struct{})
			go func() {
				defer close(served)
				defer func() { recover() }() // as Server.serve does
				defer server.Close()
				k.Serve(t.Context(), t.Context(), server, func(context.Context, *Request) *Response {
					return &Response{Status: 200, Length: -1, Body: panicReader{}, Done: func(_ int64, err error) { ended <- err }}
				})
			}()
			if name == "h1" {
				io.WriteString(client, get)
				if out, _ := io.ReadAll(client); strings.HasSuffix(string(out), "0\r\n\r\n") {
					t.Errorf("a clean end: %q", out)
				}
			} else {
				protos := new(http.Protocols)
				protos.SetUnencryptedHTTP2(true)
				tr := &http.Transport{Protocols: protos, DialContext: func(context.Context, string, string) (net.Conn, error) { return client, nil }}
				cc, err := tr.NewClientConn(t.Context(), "http", "h:80")
				if err != nil {
					t.Fatal(err)
				}
				req, _ := http.NewRequest("GET", "http://h/", nil)
				resp, err := cc.RoundTrip(req)
				if err == nil {
					_, err = io.ReadAll(resp.Body)
				}
				if err == nil {
					t.Error("a clean end")
				}
				cc.Close()
			}
			select {
			case err := <-ended:
				if err != errPanicked {
					t.Errorf("done with %v", err)
				}
			case <-time.After(patience):
				t.Error("Done was not called")
			}
			client.Close()
			<-served
			if len(ended) > 0 {
				t.Error("Done was called twice")
			}
		})
	}
}

// orderConn notes writes and write deadlines.
type orderConn struct {
	net.Conn
	order *lines
}

func (c orderConn) Write(p []byte) (int, error) {
	io.WriteString(c.order, "w")
	return c.Conn.Write(p)
}

func (c orderConn) SetWriteDeadline(t time.Time) error {
	io.WriteString(c.order, "d")
	return c.Conn.SetWriteDeadline(t)
}

// orderBody notes its reads.
type orderBody struct {
	io.Reader
	order *lines
}

func (b orderBody) Read(p []byte) (int, error) {
	io.WriteString(b.order, "r")
	return b.Reader.Read(p)
}

// TestWriteDeadlineIsOfTheWrite: an answer that comes slowly must not be sent
// under what is left of the deadline of its last piece.
func TestWriteDeadlineIsOfTheWrite(t *testing.T) {
	client, server := net.Pipe()
	order := &lines{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		k := h1{header: patience, idle: patience, stall: patience}
		k.Serve(t.Context(), t.Context(), orderConn{server, order}, func(context.Context, *Request) *Response {
			body := orderBody{io.LimitReader(zeros{}, 200<<10), order}
			return &Response{Status: 200, Length: 200 << 10, Body: body, Close: true, Done: func(int64, error) {}}
		})
	}()
	go io.WriteString(client, get)
	if _, err := io.Copy(io.Discard, bufio.NewReader(client)); err != nil {
		t.Error(err)
	}
	<-done
	client.Close()
	if s := order.String(); strings.Contains(s, "rw") || strings.Count(s, "r") < 6 {
		t.Errorf("r(ead), d(eadline), w(rite): %s", s)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
