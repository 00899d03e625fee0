package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// soon is all the limits of the proxies of these tests.
// On a busy machine what is not to stand still needs some of it.
const soon = 2 * time.Second

// newHasty runs a proxy that soon loses its patience.
func newHasty(t *testing.T, serve func(c *originConn)) *bench {
	t.Helper()
	o := newOrigin(t, serve)
	b := prepareBench(t, func(c *edge.Config) {
		c.Fleet.Proxy.HeaderTimeout, c.Fleet.Proxy.IdleTimeout, c.Fleet.Proxy.UpstreamTimeout = soon, soon, soon
	}, o.addr)
	b.s.stall = soon
	b.run()
	return b
}

// The origins: each keeps its connection until the proxy lets go of it.
func silentOrigin(c *originConn) { io.Copy(io.Discard, c.br) }
func sayOrigin(s string) func(*originConn) {
	return func(c *originConn) { c.head(); c.say(s); io.Copy(io.Discard, c.br) }
}

func endlessOrigin(c *originConn) {
	c.head()
	c.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	for chunk := "8000\r\n" + strings.Repeat("x", 0x8000) + "\r\n"; ; {
		if _, err := io.WriteString(c, chunk); err != nil {
			return
		}
	}
}

// deafOrigin reads nothing but the head, until the proxy closes the connection.
func deafOrigin(c *originConn) {
	c.head()
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return
	}
	for end, gone := time.Now().Add(2*patience), false; !gone && !time.Now().After(end); {
		time.Sleep(5 * time.Millisecond) // between two polls
		err := raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
			gone = err != nil || info.State != tcpEstablished
		})
		gone = gone || err != nil
	}
}

// tcpEstablished is a state of tcp_info (include/net/tcp_states.h).
const tcpEstablished = 1

// The clients: each ends when the proxy ends the request.
func h1Client(request string) func(*bench) {
	return func(b *bench) {
		c := b.dial(80)
		io.WriteString(c, request)
		io.Copy(io.Discard, c)
	}
}

// h2Stalls begins a body and does not go on with it.
func h2Stalls(b *bench) {
	cc := b.h2Client()
	r, w := io.Pipe()
	defer w.Close()
	go io.WriteString(w, "1234") // ends with the pipe
	req, _ := http.NewRequest("POST", "https://www.example.net/", r)
	ask(b, cc, req, true)
}

func h2Get(b *bench) {
	req, _ := http.NewRequest("GET", "https://www.example.net/", nil)
	ask(b, b.h2Client(), req, true)
}

// h2Deaf never reads the answer: the window of its stream closes.
func h2Deaf(b *bench) {
	req, _ := http.NewRequest("GET", "https://www.example.net/", nil)
	ask(b, b.h2Client(), req, false)
	b.access(1)
}

func ask(b *bench, cc *http.ClientConn, req *http.Request, read bool) {
	resp, err := cc.RoundTrip(req)
	if err != nil {
		return
	}
	b.t.Cleanup(func() { resp.Body.Close() })
	if read {
		io.Copy(io.Discard, resp.Body)
	}
}

// h1Deaf and tlsDeaf never read the answer: the buffers of the kernel fill up.
func h1Deaf(b *bench) {
	io.WriteString(b.dial(80), get)
	b.access(1)
}

func tlsDeaf(b *bench) {
	io.WriteString(b.tlsClient("http/1.1"), get)
	b.access(1)
}

// h1Talks sends a body that does not end.
func h1Talks(b *bench) {
	c := b.dial(80)
	go func() { // ends with the connection
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n")
		io.Copy(c, zeros{})
	}()
	io.Copy(io.Discard, c)
}

func h2Talks(b *bench) {
	req, _ := http.NewRequest("POST", "https://www.example.net/", zeros{})
	ask(b, b.h2Client(), req, true)
}

// TestNoRequestHangs: whoever stands still, the request ends, the upstream is
// let go and the log says why.
func TestNoRequestHangs(t *testing.T) {
	const post = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n"
	answer := "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + strings.Repeat("x", 100)
	head := "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 100)
	late := "the upstream did not answer in time"
	for name, tt := range map[string]struct {
		origin func(*originConn)
		client func(*bench)
		status int
		reason string
	}{
		"client, body":                  {silentOrigin, h1Client(post + "\r\n1234"), 499, errSend.Error()},
		"client, body, h2":              {silentOrigin, h2Stalls, 499, errSend.Error()},
		"client, body it was asked for": {silentOrigin, h1Client(post + "Expect: 100-continue\r\n\r\n"), 499, errSend.Error()},
		"client, body after the answer": {sayOrigin("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"), h1Client(post + "\r\n1234"), 200, ""},
		"client, head":                  {silentOrigin, h1Client("GET / HTTP/1.1\r\nHost: h\r\nX: "), 408, "too long"},
		"client, answer":                {endlessOrigin, h1Deaf, 200, errSend.Error()},
		"client, answer, tls":           {endlessOrigin, tlsDeaf, 200, errSend.Error()},
		"client, answer, h2":            {endlessOrigin, h2Deaf, 200, errSend.Error()},
		"upstream, answer":              {silentOrigin, h1Client(get), 504, late},
		"upstream, answer, h2":          {silentOrigin, h2Get, 504, late},
		"upstream, head":                {sayOrigin(head), h1Client(get), 504, late},
		"upstream, after 1xx":           {sayOrigin("HTTP/1.1 103 Early Hints\r\n\r\n"), h1Client(get), 504, late},
		"upstream, body":                {sayOrigin(answer), h1Client(get), 200, "upstream broke off"},
		"upstream, body, h2":            {sayOrigin(answer), h2Get, 200, "upstream broke off"},
		"upstream, request":             {deafOrigin, h1Talks, 504, late},
		"upstream, request, h2":         {deafOrigin, h2Talks, 504, late},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newHasty(t, tt.origin)
			tt.client(b)
			l := b.access(1)[0]
			if l.Status != tt.status || !strings.Contains(string(l.Reason), tt.reason) {
				t.Errorf("line %+v", l)
			}
			if l.Duration > float64(patience/2/time.Millisecond) {
				t.Errorf("took %v ms", l.Duration)
			}
			want := 1
			if l.Upstream == "" {
				want = 0
			}
			if n := len(b.picker.finished()); n != want {
				t.Errorf("%d upstreams let go, want %d", n, want)
			}
		})
	}
}

// deadlineWriter notes the last deadlines that it was given.
type deadlineWriter struct {
	http.ResponseWriter
	read time.Time
}

func (w *deadlineWriter) SetReadDeadline(t time.Time) error { w.read = t; return nil }

// TestH2BodyDeadlineIsOfTheRead: x/net breaks the body when a deadline passes,
// whether somebody reads or not.
func TestH2BodyDeadlineIsOfTheRead(t *testing.T) {
	w := &deadlineWriter{}
	var b *h2body
	check := func(p []byte) (int, error) {
		if left := time.Until(w.read); left <= 0 || left > patience {
			t.Errorf("%v for a read", left)
		}
		return len(p), nil
	}
	b = &h2body{r: readerFunc(check), rc: http.NewResponseController(w), stall: patience}
	for range 2 {
		if _, err := b.Read(make([]byte, 1)); err != nil || !w.read.IsZero() {
			t.Errorf("after a read: deadline %v, %v", w.read, err)
		}
	}
	b.finish(true)
	if left := time.Until(w.read); left > lingerTime || w.read.IsZero() {
		t.Errorf("after the end: %v", left)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestNoConnectionHangs: the same for connections without a request.
func TestNoConnectionHangs(t *testing.T) {
	b := newHasty(t, silentOrigin)
	for name, open := range map[string]func() io.Reader{
		"says nothing":           func() io.Reader { return b.dial(80) },
		"no handshake":           func() io.Reader { return b.dial(443) },
		"nothing after it":       func() io.Reader { return b.tlsClient("http/1.1") },
		"nothing after one, h1":  func() io.Reader { return b.askOnce(b.tlsClient("http/1.1")) },
		"no stream at all in h2": func() io.Reader { b.h2Client(); return strings.NewReader("") },
	} {
		io.Copy(io.Discard, open()) // its deadline is patience
		waitFor(t, name, func() bool { return b.s.State().Connections == 0 })
	}
}

// askOnce has one request answered on c.
func (b *bench) askOnce(c *tls.Conn) io.Reader {
	br := bufio.NewReader(c)
	io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
	readAnswer(b.t, br, "ok\n")
	return br
}
