package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/catchment-dev/edge/proxy/http1"
)

// h1 is the codec of HTTP/1.1 and HTTP/1.0.
type h1 struct {
	// header bounds the reading of a head, idle the wait for the next one,
	// stall a body that stands still.
	header, idle, stall time.Duration
}

const (
	// freshDrain is how long a connection that has not had a request yet may
	// still send its first one when the proxy drains: it was accepted, so the
	// client has not been told to go elsewhere.
	freshDrain = time.Second
	// lingerTime and lingerBytes bound what is read and thrown away after the
	// last answer, so that a reset does not overtake the answer.
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// h1conn is one client connection.
type h1conn struct {
	h1
	c  net.Conn
	br *bufio.Reader
	bw *bufio.Writer

	mu       sync.Mutex
	waiting  bool // for the first byte of a request
	draining bool
	served   int
	watching chan struct{} // closed when the watcher has ended; nil if none
}

// Serve implements codec.
func (k h1) Serve(ctx, drain context.Context, c net.Conn, h handler) {
	s := &h1conn{h1: k, c: c, br: bufio.NewReaderSize(c, 16<<10), bw: bufio.NewWriterSize(c, 16<<10)}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { abort(c) })()
	defer context.AfterFunc(drain, s.drain)()
	for s.awaitRequest() && s.serveOne(ctx, h) {
	}
}

// awaitRequest waits for the first byte of the next request.
func (s *h1conn) awaitRequest() bool {
	s.mu.Lock()
	if s.draining && s.served > 0 {
		s.mu.Unlock()
		return false
	}
	wait := s.idle
	if s.served == 0 {
		wait = s.header
		if s.draining {
			wait = min(wait, freshDrain)
		}
	}
	s.waiting = true
	s.c.SetReadDeadline(time.Now().Add(wait))
	s.mu.Unlock()
	_, err := s.br.Peek(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = false
	s.served++
	return err == nil
}

// drain ends a connection that waits for its next request; one that is busy
// sees the flag when it is done.
func (s *h1conn) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	switch {
	case s.waiting && s.served > 0:
		s.c.SetReadDeadline(time.Unix(1, 0))
	case s.waiting:
		s.c.SetReadDeadline(time.Now().Add(freshDrain))
	}
}

// serveOne answers one request and says whether another one may follow.
func (s *h1conn) serveOne(ctx context.Context, h handler) bool {
	s.c.SetReadDeadline(time.Now().Add(s.header))
	head, err := http1.ReadRequest(s.br)
	if err != nil {
		s.answerFault(ctx, h, head, err)
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body := &h1body{s: s, body: http1.NewBody(s.br, head.Length), asked: true}
	body.onEnd = func() { s.watch(cancel) }
	r := s.request(head, body)
	if r.Body == nil {
		s.watch(cancel)
	}
	a := h1answer{s: s, r: r, body: body, keep: keepAlive(head)}
	if err := a.serve(ctx, h); err != nil {
		// Whoever is still there must not see a clean end. A framed answer shows
		// by itself that it is cut short, and a reset could take away what of
		// it is on its way.
		if a.framed {
			rawConn(s.c).Close()
		} else {
			abort(s.c)
		}
		return false
	}
	if !a.keep || !body.discard() {
		s.linger()
		return false
	}
	return true
}

// request makes the Request of a head.
func (s *h1conn) request(head http1.RequestHead, body *h1body) *Request {
	r := &Request{
		Proto: "HTTP/1.1", Method: head.Method, Host: head.Host, Target: head.Target,
		Header: head.Header, Length: head.Length, Inform: s.inform,
	}
	if head.Minor == 0 {
		r.Proto = "HTTP/1.0"
		r.Inform = func(int, http1.Header) {} // HTTP/1.0 knows no 1xx
	}
	if head.Length != 0 {
		r.Body, r.Trailer = body, body.trailer
		if head.Minor == 1 && slices.Contains(head.Header.Tokens("Expect"), "100-continue") {
			r.Continue, body.asked = true, false
		}
	}
	return r
}

// answerFault answers what was no request, if there is anybody to answer.
func (s *h1conn) answerFault(ctx context.Context, h handler, head http1.RequestHead, err error) {
	var f *http1.Fault
	if !errors.As(err, &f) {
		if !isTimeout(err) {
			return
		}
		f = &http1.Fault{Status: 408, Reason: "the head of the request took too long"}
	}
	r := &Request{Fault: f, Proto: "HTTP/1", Method: head.Method, Host: head.Host, Target: head.Target, Header: head.Header}
	a := h1answer{s: s, r: r, body: &h1body{s: s, body: http1.NewBody(s.br, 0), asked: true}}
	a.serve(ctx, h) // it is the last answer, whatever becomes of it
	s.linger()
}

// watch looks out, while the upstream works, for a client that leaves. What it
// reads stays in the buffer: it may be the next request.
func (s *h1conn) watch(gone func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := make(chan struct{})
	s.watching = done
	s.c.SetReadDeadline(time.Time{})
	go func() { // joined by unwatch
		defer close(done)
		if _, err := s.br.Peek(1); err != nil && !isTimeout(err) {
			gone()
		}
	}()
}

// unwatch ends the watcher, if there is one, and waits for it.
func (s *h1conn) unwatch() {
	s.mu.Lock()
	done := s.watching
	s.watching = nil
	s.mu.Unlock()
	if done == nil {
		return
	}
	s.c.SetReadDeadline(time.Unix(1, 0))
	<-done
}

// inform sends a 1xx answer.
func (s *h1conn) inform(status int, h http1.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.c.SetWriteDeadline(time.Now().Add(s.stall))
	http1.WriteResponse(s.bw, status, statusText(status), h)
	s.bw.Flush() // the final answer will meet the same error
}

// linger lets the client read the last answer: a close with unread bytes in
// the receive buffer would be a reset, which can overtake it.
func (s *h1conn) linger() {
	if t, ok := s.c.(*tls.Conn); ok {
		t.CloseWrite() // the close below is what counts
	}
	if t, ok := rawConn(s.c).(*net.TCPConn); ok {
		t.CloseWrite()
	}
	s.c.SetReadDeadline(time.Now().Add(lingerTime))
	io.CopyN(io.Discard, rawConn(s.c), lingerBytes) // until anything ends it
}

// keepAlive says whether the client wants to send more requests.
func keepAlive(h http1.RequestHead) bool {
	t := h.Header.Tokens("Connection")
	if h.Minor == 0 {
		return slices.Contains(t, "keep-alive")
	}
	return !slices.Contains(t, "close")
}

// abort closes c so that the peer cannot take it for a clean end: with a
// reset, and without TLS's close_notify.
func abort(c net.Conn) {
	raw := rawConn(c)
	if t, ok := raw.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	raw.Close()
}

func rawConn(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}
