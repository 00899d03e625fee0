package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// echoOrigin answers at once and sends back each chunk as it comes.
func echoOrigin(t *testing.T) *origin {
	return newOrigin(t, func(c *originConn) {
		if _, err := c.head(); err != nil {
			return
		}
		c.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n")
		for {
			size, err := c.br.ReadString('\n')
			if err != nil {
				return
			}
			if size == "0\r\n" {
				break
			}
			var n int
			fmt.Sscanf(size, "%x", &n)
			data := make([]byte, n+2)
			if _, err := io.ReadFull(c.br, data); err != nil {
				return
			}
			c.say(size + string(data))
		}
		trailer, _ := c.head()
		c.say("0\r\nX-Sum: " + fmt.Sprint(len(trailer)) + "\r\nContent-Length: 9\r\n" + trailer)
	})
}

// TestStreamsBothWays: each part arrives at the other end before the next one
// is sent, through HTTP/1.1, and the trailers pass both ways.
func TestStreamsBothWays(t *testing.T) {
	b := newBench(t, echoOrigin(t).addr)
	c := b.tlsClient("http/1.1")
	br := bufio.NewReader(c)
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n")
	h, err := (&originConn{c, br}).head() // before any of the body is sent
	if err != nil || !strings.Contains(h, "Transfer-Encoding: chunked\r\n") || !strings.Contains(h, "Trailer: X-Sum\r\n") {
		t.Fatalf("head %q, %v", h, err)
	}
	for i := range 5 {
		part := fmt.Sprintf("5\r\npart%d\r\n", i)
		io.WriteString(c, part)
		got := make([]byte, len(part))
		if _, err := io.ReadFull(br, got); err != nil || string(got) != part {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	io.WriteString(c, "0\r\nX-T: 1\r\nHost: evil\r\n\r\n")
	end, err := (&originConn{c, br}).head()
	if want := "0\r\nX-Sum: 10\r\nX-T: 1\r\n\r\n"; err != nil || end != want {
		t.Errorf("end %q, %v; want %q", end, err, want)
	}
}

// TestStreamsBothWaysH2 is the same over HTTP/2.
func TestStreamsBothWaysH2(t *testing.T) {
	b := newBench(t, echoOrigin(t).addr)
	cc := b.h2Client()
	r, w := io.Pipe()
	req, _ := http.NewRequestWithContext(t.Context(), "POST", "https://www.example.net/", r)
	req.Trailer = http.Header{"X-T": nil}
	resp, err := cc.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for i := range 5 {
		part := fmt.Sprintf("part%d", i)
		io.WriteString(w, part)
		got := make([]byte, len(part))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != part {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	req.Trailer.Set("X-T", "1")
	w.Close()
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("rest %q, %v", rest, err)
	}
	if resp.Trailer.Get("X-Sum") != "10" || resp.Trailer.Get("X-T") != "1" || resp.Trailer.Get("Content-Length") != "" {
		t.Errorf("trailer %v", resp.Trailer)
	}
}

// TestUpstreamDiesInTheBody: no client may take half an answer for a whole
// one.
func TestUpstreamDiesInTheBody(t *testing.T) {
	for name, answer := range map[string]string{
		"counted":   "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
		"chunked":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"bad chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			o := newOrigin(t, func(c *originConn) { c.head(); c.say(answer) })
			b := newBench(t, o.addr)
			for i, args := range [][]string{{"--http1.0"}, {"--http1.1"}, {"--http2"}} {
				out, code := b.curl("https://www.example.net/", args...)
				if code == 0 || strings.TrimPrefix(out, "half") != "" {
					t.Errorf("%v: exit %d, %q", args, code, out)
				}
				if l := b.access(i + 1)[i]; !strings.Contains(string(l.Reason), "upstream broke off") || l.Status != 200 || l.Out != 4 {
					t.Errorf("line %+v", l)
				}
			}
			if name == "counted" {
				return
			}
			c := b.dial(80) // no framing in 1.0: only a reset tells
			io.WriteString(c, "GET / HTTP/1.0\r\nHost: h\r\n\r\n")
			if out, err := io.ReadAll(c); err == nil {
				t.Errorf("clean end after %q", out)
			}
		})
	}
}

// TestUntilClose: an answer that ends with the connection is whole.
func TestUntilClose(t *testing.T) {
	o := newOrigin(t, func(c *originConn) { c.head(); c.say("HTTP/1.0 200 OK\r\n\r\nhello") })
	b := newBench(t, o.addr)
	for _, args := range [][]string{{"--http1.0"}, {"--http1.1"}, {"--http2"}} {
		if out, code := b.curl("https://www.example.net/", args...); code != 0 || out != "hello" {
			t.Errorf("%v: exit %d, %q", args, code, out)
		}
	}
}

// TestClientLeaves: the upstream is let go as soon as the client is gone.
func TestClientLeaves(t *testing.T) {
	asked := make(chan struct{}, 1)
	gone := make(chan error, 1)
	o := newOrigin(t, func(c *originConn) {
		c.head()
		asked <- struct{}{}
		_, err := c.br.ReadByte()
		gone <- err
	})
	b := newBench(t, o.addr)
	leave := map[string]func(){
		"h1 without a body": func() {
			c := b.dial(80)
			io.WriteString(c, get)
			<-asked
			c.Close()
		},
		"h1 after its body": func() {
			c := b.dial(80)
			io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
			<-asked
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		},
		"h2": func() {
			cc := b.h2Client()
			req, _ := http.NewRequest("GET", "https://www.example.net/", nil)
			go cc.RoundTrip(req)
			<-asked
			cc.Close()
		},
	}
	n := 0
	for name, f := range leave {
		f()
		select {
		case <-gone:
		case <-time.After(patience):
			t.Errorf("%s: the upstream is still waiting", name)
		}
		n++
		if l := b.access(n)[n-1]; l.Status != statusClientGone || l.Reason != "the client went away" {
			t.Errorf("%s: %+v", name, l)
		}
	}
	for i, err := range b.picker.finished() {
		if err != nil {
			t.Errorf("request %d: the upstream was blamed: %v", i, err)
		}
	}
}

// TestHalfARequest: a client that leaves in its body must not make the
// upstream believe that the body was whole.
func TestHalfARequest(t *testing.T) {
	got := make(chan string, 1)
	o := newOrigin(t, func(c *originConn) {
		c.head()
		rest, _ := io.ReadAll(c.br)
		got <- string(rest)
	})
	b := newBench(t, o.addr)
	c := b.dial(80)
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
	waitFor(t, "the request", func() bool { return o.conns.Load() == 1 })
	c.(*net.TCPConn).CloseWrite()
	if rest := <-got; strings.Contains(rest, "0\r\n") {
		t.Errorf("the upstream saw an end: %q", rest)
	}
}

func TestExpectContinue(t *testing.T) {
	o := newOrigin(t, func(c *originConn) {
		for {
			h, err := c.head()
			if err != nil {
				return
			}
			if strings.Contains(h, "/no") {
				c.say("HTTP/1.1 417 No\r\nContent-Length: 2\r\n\r\nno")
				return
			}
			if strings.Contains(h, "Expect: 100-continue\r\n") { // not over HTTP/2: the codec asks by itself
				c.say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
			}
			body := make([]byte, 5)
			io.ReadFull(c.br, body)
			c.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + string(body))
		}
	})
	b := newBench(t, o.addr)
	c := b.dial(80)
	br := bufio.NewReader(c)
	for range 2 { // the connection stays in step
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
		if h := readAnswer(t, br, ""); h != "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" {
			t.Fatalf("got %q", h)
		}
		if h := readAnswer(t, br, ""); h != "HTTP/1.1 100 Continue\r\n\r\n" {
			t.Fatalf("got %q", h)
		}
		io.WriteString(c, "hello")
		readAnswer(t, br, "hello")
	}
	io.WriteString(c, "POST /no HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
	if h := readAnswer(t, br, "no"); !strings.HasPrefix(h, "HTTP/1.1 417") || !strings.Contains(h, "Connection: close\r\n") {
		t.Errorf("got %q", h)
	}
	for _, args := range [][]string{{"--http1.1"}, {"--http2"}} {
		if out, code := b.curl("https://www.example.net/", append(args, "-H", "Expect: 100-continue", "-d", "hello")...); code != 0 || out != "hello" {
			t.Errorf("%v: exit %d %q", args, code, out)
		}
	}
}

// TestEarlyAnswer: an upstream may answer before it has read the request; what
// the client still sends must not be taken for its next request.
func TestEarlyAnswer(t *testing.T) {
	o := newOrigin(t, func(c *originConn) {
		c.head()
		c.say("HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlong")
		io.Copy(io.Discard, c.br)
	})
	b := newBench(t, o.addr)
	c := b.dial(80)
	br := bufio.NewReader(c)
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 100\r\n\r\n")
	readAnswer(t, br, "long")
	io.WriteString(c, get+strings.Repeat("x", 100-len(get))) // a body that looks like a request
	if rest, _ := io.ReadAll(br); bytes.Contains(rest, []byte("HTTP/1.1")) {
		t.Errorf("a body was answered: %q", rest)
	}
	for _, args := range [][]string{{"--http1.1"}, {"--http2"}} {
		out, code := b.curl("https://www.example.net/", append(args, "-H", "Expect:", "-d", strings.Repeat("x", 100000), "-w", "%{http_code}")...)
		if code != 0 || out != "long413" {
			t.Errorf("%v: exit %d %q", args, code, out)
		}
	}
}

// TestHeadAndEmpty: answers without a body have no framing that could be taken
// for one.
func TestHeadAndEmpty(t *testing.T) {
	o := newOrigin(t, func(c *originConn) {
		for {
			h, err := c.head()
			if err != nil {
				return
			}
			switch {
			case strings.HasPrefix(h, "HEAD /chunked"):
				c.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			case strings.HasPrefix(h, "HEAD"):
				c.say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
			case strings.HasPrefix(h, "GET /204"):
				c.say("HTTP/1.1 204 No Content\r\n\r\n")
			case strings.HasPrefix(h, "GET /304"):
				c.say("HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\nETag: x\r\n\r\n")
			}
		}
	})
	b := newBench(t, o.addr)
	c := b.dial(80)
	br := bufio.NewReader(c)
	for _, tt := range []struct{ request, has, hasNot string }{
		{"HEAD /", "Content-Length: 100\r\n", "Transfer"}, {"HEAD /chunked", "200 OK", "Content-Length"},
		{"GET /204", "204 No Content", "Content-Length"}, {"GET /304", "Content-Length: 100\r\n", "Transfer"},
	} {
		io.WriteString(c, tt.request+" HTTP/1.1\r\nHost: h\r\n\r\n")
		if h := readAnswer(t, br, ""); !strings.Contains(h, tt.has) || strings.Contains(h, tt.hasNot) || strings.Contains(h, "Content-Type") {
			t.Errorf("%s: %q", tt.request, h)
		}
	}
	if n := o.conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestPipelined: requests that come together are answered one by one.
func TestPipelined(t *testing.T) {
	o, _ := simpleOrigin(t)
	b := newBench(t, o.addr)
	c := b.dial(80)
	io.WriteString(c, strings.Repeat(get, 20))
	br := bufio.NewReader(c)
	for range 20 {
		readAnswer(t, br, "hello")
	}
}
