package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/catchment-dev/edge/proxy/http1"
)

var (
	errBodyOver = errors.New("the request is over")
	errSend     = errors.New("the client went away")
	errPanicked = errors.New("a panic, which is in the log of edgeproxy")
)

// h1body is the body of a request: it asks for it where the client waits to be
// asked, and gives each read a deadline.
type h1body struct {
	s     *h1conn
	onEnd func() // called with mu held

	mu     sync.Mutex // one reader at a time
	body   *http1.Body
	closed bool

	// asked and final are guarded by s.mu: the 100 and the final answer are
	// written by different goroutines.
	asked bool // nothing is left to ask for
	final bool // the final answer has begun: too late to ask
}

// Read implements io.Reader.
func (b *h1body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.body.Done() {
		return b.body.Read(p)
	}
	if !b.arm() {
		return 0, errBodyOver
	}
	n, err := b.body.Read(p)
	if b.body.Done() {
		b.onEnd()
	}
	return n, err
}

// arm prepares a read. close sets its deadline under the same lock, so that
// this one cannot replace it.
func (b *h1body) arm() bool {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	if b.closed || !b.asked && b.final {
		return false
	}
	if !b.asked {
		b.asked = true
		b.s.c.SetWriteDeadline(time.Now().Add(b.s.stall))
		http1.WriteResponse(b.s.bw, 100, "Continue", nil)
		b.s.bw.Flush() // a broken connection shows at the read
	}
	b.s.c.SetReadDeadline(time.Now().Add(b.s.stall))
	return true
}

// close ends the body: a Read that waits returns, later ones fail. When it
// returns nobody reads from the connection through it any more.
func (b *h1body) close() {
	b.s.mu.Lock()
	b.closed = true
	b.s.c.SetReadDeadline(time.Unix(1, 0))
	b.s.mu.Unlock()
	b.mu.Lock() // waits for the reader
	defer b.mu.Unlock()
	b.onEnd = func() {}
}

// discard reads, after close, what is left of the body, and says whether the
// next request begins where it stopped. It gives up soon: a client that sends
// a long body that nobody wants is better told by closing.
func (b *h1body) discard() bool {
	b.mu.Lock() // the upload may still try to read, in vain
	defer b.mu.Unlock()
	if b.body.Done() {
		return true
	}
	if !b.asked {
		return false
	}
	b.s.c.SetReadDeadline(time.Now().Add(lingerTime))
	io.CopyN(io.Discard, b.body, lingerBytes) // Done says how it went
	return b.body.Done()
}

func (b *h1body) trailer() http1.Header { return b.body.Trailer() }

// h1answer is the writing of one answer.
type h1answer struct {
	s    *h1conn
	r    *Request
	body *h1body
	// keep says whether the connection goes on after it.
	keep    bool
	chunked bool
	framed  bool // the client knows where the answer ends
	resp    *Response
}

// serve has h answer, sends the answer and ends the request. A panic passes
// through, but not before the upstream has been let go.
func (a *h1answer) serve(ctx context.Context, h handler) (err error) {
	var sent int64
	err = errPanicked // unless write returns
	defer func() {
		a.body.close()
		a.s.unwatch()
		if a.resp != nil {
			a.resp.Done(sent, err)
		}
	}()
	sent, err = a.write(ctx, h)
	return err
}

// write has h answer and sends the answer. The error is errSend if the client
// did not take it, anything else if there was no end to send.
func (a *h1answer) write(ctx context.Context, h handler) (int64, error) {
	a.resp = h(ctx, a.r)
	if a.resp.Status == statusClientGone {
		return 0, errSend
	}
	if err := a.writeHead(); err != nil {
		return 0, err
	}
	if a.resp.Body == nil || !http1.HasBody(a.r.Method, a.resp.Status) {
		return 0, nil
	}
	n, err := a.copyBody()
	if err != nil && ctx.Err() != nil {
		err = errSend
	}
	return n, err
}

func (a *h1answer) writeHead() error {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.body.final = true
	// A client that was never asked for its body may send it or not: what
	// comes next on the connection is not known.
	a.keep = a.keep && !a.resp.Close && !a.s.draining && a.body.asked
	h := a.frame()
	a.s.c.SetWriteDeadline(time.Now().Add(a.s.stall))
	http1.WriteResponse(a.s.bw, a.resp.Status, statusText(a.resp.Status), h)
	if a.s.bw.Flush() != nil {
		return errSend
	}
	return nil
}

// frame adds to the header what is about this connection: how long the body
// is, and whether more requests may follow.
func (a *h1answer) frame() http1.Header {
	h := slices.Clone(a.resp.Header)
	if h.Get("Date") == "" {
		h.Add("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	a.framed = true
	switch {
	case a.resp.Length >= 0 && a.resp.Status != 204:
		h.Add("Content-Length", strconv.FormatInt(a.resp.Length, 10))
	case !http1.HasBody(a.r.Method, a.resp.Status):
	case a.r.Proto == "HTTP/1.1":
		a.chunked = true
		h.Add("Transfer-Encoding", "chunked")
	default:
		a.keep, a.framed = false, false // HTTP/1.0: the end of the connection is the end of the body
	}
	switch {
	case !a.keep:
		h.Add("Connection", "close")
	case a.r.Proto == "HTTP/1.0":
		h.Add("Connection", "keep-alive")
	}
	return h
}

func (a *h1answer) copyBody() (sent int64, err error) {
	buf := make([]byte, 32<<10)
	for {
		n, readErr := a.resp.Body.Read(buf)
		a.s.c.SetWriteDeadline(time.Now().Add(a.s.stall)) // what does not fit into bw is sent at once
		if a.chunked {
			http1.WriteChunk(a.s.bw, buf[:n])
		} else {
			a.s.bw.Write(buf[:n])
		}
		if readErr == io.EOF && a.chunked {
			a.writeLast()
		}
		if a.s.bw.Flush() != nil {
			return sent, errSend
		}
		sent += int64(n)
		if readErr == io.EOF {
			return sent, nil
		}
		if readErr != nil {
			return sent, brokeOff(readErr)
		}
	}
}

func (a *h1answer) writeLast() {
	var t http1.Header
	if a.resp.Trailer != nil {
		t = a.resp.Trailer()
	}
	http1.WriteLastChunk(a.s.bw, t)
}

// brokeOff is the error of an answer whose body did not come to its end.
func brokeOff(err error) error { return fmt.Errorf("the upstream broke off: %s", plain(err)) }

func statusText(status int) string { return strings.TrimSpace(http.StatusText(status)) }
