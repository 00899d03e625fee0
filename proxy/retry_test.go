package proxy

import (
	"bufio"
	"io"
	"strings"
	"testing"
)

// TestStalePooledConnection: a request that met the end of a pooled connection
// is repeated on a new one if that is safe, and only then.
func TestStalePooledConnection(t *testing.T) {
	tests := map[string]struct {
		request string
		want    string
		conns   int64
	}{
		"get":     {get, "200", 2},
		"options": {"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "200", 2},
		"delete":  {"DELETE / HTTP/1.1\r\nHost: h\r\n\r\n", "502", 1},
		"post":    {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx", "502", 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := newOrigin(t, func(c *originConn) {
				c.head()
				c.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
				c.br.ReadByte() // closes as the next request arrives: looks alive until then
			})
			b := newBench(t, o.addr)
			c := b.dial(80)
			br := bufio.NewReader(c)
			io.WriteString(c, get)
			readAnswer(t, br, "hello")
			io.WriteString(c, tt.request)
			h, err := (&originConn{c, br}).head()
			if err != nil || !strings.HasPrefix(h, "HTTP/1.1 "+tt.want) || o.conns.Load() != tt.conns {
				t.Errorf("%d connections, %v, %q", o.conns.Load(), err, h)
			}
			for _, err := range b.picker.finished() {
				if err != nil {
					t.Errorf("the upstream was blamed: %v", err)
				}
			}
		})
	}
}

// TestClosedPooledConnection: one that is seen to be closed is not used, so
// that a POST does not fail for it.
func TestClosedPooledConnection(t *testing.T) {
	o := newOrigin(t, func(c *originConn) {
		c.head()
		c.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
	})
	b := newBench(t, o.addr)
	c := b.dial(80)
	br := bufio.NewReader(c)
	for i := range 5 {
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
		readAnswer(t, br, "hello")
		waitFor(t, "the end of the pooled connection", func() bool {
			b.s.pool.mu.Lock()
			defer b.s.pool.mu.Unlock()
			list := b.s.pool.idle[o.addr]
			return len(list) == 0 || !alive(list[0].Conn)
		})
		if n := o.conns.Load(); n != int64(i+1) {
			t.Errorf("%d connections after %d requests", n, i+1)
		}
	}
}

// TestDialErrorTriesTheNext: with the body whole, since none of it was read.
func TestDialErrorTriesTheNext(t *testing.T) {
	got := make(chan string, 1)
	o := newOrigin(t, func(c *originConn) {
		c.head()
		b := make([]byte, 5)
		io.ReadFull(c.br, b)
		got <- string(b)
		c.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})
	b := newBench(t, closedPort(t), o.addr)
	out := b.raw("POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello")
	if !strings.HasPrefix(out, "HTTP/1.1 200") || <-got != "hello" {
		t.Errorf("got %q", out)
	}
	if l := b.access(1)[0]; l.Attempts != 2 || l.Upstream != "o1" {
		t.Errorf("line %+v", l)
	}
	if done := b.picker.finished(); len(done) != 2 || done[0] == nil || done[1] != nil {
		t.Errorf("reported %v", done)
	}
}
