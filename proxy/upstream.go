package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/catchment-dev/edge/proxy/http1"
)

const (
	// bodyStall is how long a body may stand still, in either direction.
	bodyStall = 60 * time.Second
	// continueWait is how long an upstream may think about an Expect before
	// the body is sent anyway (RFC 9110 section 10.1.1 demands a limit).
	continueWait = time.Second
	// maxInterim bounds the 1xx answers before the final one.
	maxInterim = 16
)

// Why a round trip gave no answer. Nothing has been sent to the client yet.
var (
	errDial    = errors.New("could not connect to the upstream")
	errStale   = errors.New("the upstream had closed the pooled connection")
	errBroke   = errors.New("the upstream closed the connection without an answer")
	errLate    = errors.New("the upstream did not answer in time")
	errGarbled = errors.New("the answer of the upstream is malformed")
	errClient  = errors.New("the client gave up")
)

// trip is one attempt to have a request answered.
type trip struct {
	addr netip.AddrPort
	// fresh refuses a pooled connection.
	fresh bool
	req   *Request
	// header is what the upstream gets, but for the framing.
	header http1.Header
	// wait bounds the time from the end of the request to the answer's head,
	// stall a body that stands still.
	wait, stall time.Duration
}

// exchange is a trip on its connection.
type exchange struct {
	trip
	pool *pool
	u    *upstreamConn
	stop func() bool // detaches the connection from the request's context

	goAhead  func()        // lets a body go that waits for 100 Continue
	going    chan struct{} // closed by goAhead
	settle   func()        // keeps a body that still waits from going at all
	settled  chan struct{} // closed by settle
	reading  chan struct{} // closed when the upload is about to read
	headOut  chan struct{} // closed when the head has been written
	uploaded chan struct{} // closed when the upload goroutine ends

	mu       sync.Mutex
	headRead bool
	ended    bool  // the client's body has been read to its end
	sent     bool  // the whole request is on its way
	sendErr  error // why the client's body could not be read
	released bool
	reusable bool // the answer allows another request after it
	keep     time.Duration
}

// roundTrip sends the request and returns the answer as soon as its head is
// there. The body of the request goes on flowing while that of the answer is
// read. finish must be called once the answer is done with.
func (p *pool) roundTrip(ctx context.Context, t trip) (resp *Response, x *exchange, err error) {
	u, err := p.get(ctx, t.addr, t.fresh)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, errClient
		}
		return nil, nil, fmt.Errorf("%w: %w", errDial, err)
	}
	x = &exchange{trip: t, pool: p, u: u, going: make(chan struct{}), settled: make(chan struct{}),
		reading: make(chan struct{}), headOut: make(chan struct{}), uploaded: make(chan struct{})}
	x.goAhead = sync.OnceFunc(func() { close(x.going) })
	x.settle = sync.OnceFunc(func() { close(x.settled) })
	x.stop = context.AfterFunc(ctx, func() { u.Close() })
	x.send(ctx)
	head, err := x.readHead()
	if err == nil {
		resp, err = x.open(head)
	}
	if err != nil {
		err = x.why(ctx, err)
		x.finish()
		return nil, x, err
	}
	return resp, x, nil
}

// send writes the head and starts the upload. A failed write is not an error
// yet: the upstream may have answered before it closed.
func (x *exchange) send(ctx context.Context) {
	h := slices.Clone(x.header)
	switch {
	case x.req.Length > 0:
		h.Add("Content-Length", strconv.FormatInt(x.req.Length, 10))
	case x.req.Length < 0:
		h.Add("Transfer-Encoding", "chunked")
	case x.req.Method != "GET" && x.req.Method != "HEAD" && x.req.Method != "OPTIONS":
		h.Add("Content-Length", "0")
	}
	if x.req.Continue && x.req.Body != nil {
		h.Add("Expect", "100-continue")
	}
	if x.req.Body != nil {
		// Joined by nobody: it ends when the connection is closed or the codec
		// ends the client's body, and one of them always happens.
		go x.upload(ctx)
		if !x.req.Continue {
			<-x.reading // before the answer can be there: a codec may ask for the body at the first Read
		}
	}
	x.u.SetWriteDeadline(time.Now().Add(x.wait))
	http1.WriteRequest(x.u.bw, x.req.Method, x.req.Target, h)
	x.u.bw.Flush() // see above
	close(x.headOut)
	if x.req.Body == nil {
		x.ended, x.sent = true, true
		close(x.uploaded)
		x.u.SetReadDeadline(time.Now().Add(x.wait))
	}
}

func (x *exchange) upload(ctx context.Context) {
	defer close(x.uploaded)
	if x.req.Continue {
		select {
		case <-x.going:
		case <-time.After(continueWait):
		case <-x.settled:
			return
		case <-ctx.Done():
			return
		}
	}
	readErr, writeErr := x.copyBody()
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case errors.Is(readErr, errBodyOver):
		// The final answer has begun before the body: it is not wanted.
	case readErr != nil:
		// Half a request must not look like a whole one to the upstream.
		x.sendErr = readErr
		x.u.Close()
	case writeErr == nil:
		x.sent = true
	}
	if readErr == nil && !x.headRead {
		x.u.SetReadDeadline(time.Now().Add(x.wait))
	}
}

func (x *exchange) copyBody() (readErr, writeErr error) {
	buf := make([]byte, 32<<10)
	close(x.reading)
	for {
		n, err := x.req.Body.Read(buf)
		<-x.headOut
		x.u.SetWriteDeadline(time.Now().Add(x.stall))
		if x.req.Length < 0 {
			http1.WriteChunk(x.u.bw, buf[:n])
		} else {
			x.u.bw.Write(buf[:n])
		}
		if err == io.EOF {
			x.mu.Lock()
			x.ended = true
			x.mu.Unlock()
			if x.req.Length < 0 {
				http1.WriteLastChunk(x.u.bw, x.req.Trailer())
			}
			return nil, x.u.bw.Flush()
		}
		if err != nil {
			return err, nil
		}
		if err := x.u.bw.Flush(); err != nil {
			return nil, err
		}
	}
}

func (x *exchange) readHead() (http1.ResponseHead, error) {
	if _, err := x.u.br.Peek(1); err != nil {
		if x.u.reused && !isTimeout(err) {
			return http1.ResponseHead{}, errStale
		}
		return http1.ResponseHead{}, err
	}
	for range maxInterim {
		h, err := http1.ReadResponse(x.u.br)
		if err != nil {
			return h, err
		}
		switch {
		case h.Status == 100:
			x.goAhead()
		case h.Status == 101:
			return h, &http1.Fault{Status: 502, Reason: "the upstream switches protocols without having been asked"}
		case h.Status < 200:
			stripHop(&h.Header)
			x.req.Inform(h.Status, h.Header)
		default:
			return h, nil
		}
	}
	return http1.ResponseHead{}, &http1.Fault{Status: 502, Reason: "too many 1xx answers"}
}

// open makes the Response of a head.
func (x *exchange) open(h http1.ResponseHead) (*Response, error) {
	n, err := http1.ResponseLength(x.req.Method, h)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	x.headRead = true
	x.reusable = n != http1.UntilClose && h.Minor == 1 && !slices.Contains(h.Header.Tokens("Connection"), "close")
	x.keep = keepFor(h.Header)
	x.mu.Unlock()
	x.settle() // a final answer to an Expect: the body is not wanted
	resp := &Response{Status: h.Status, Length: max(n, -1)}
	declared, ok, _ := http1.ContentLength(h.Header) // ResponseLength has checked it
	resp.Header = h.Header
	stripHop(&resp.Header)
	if !http1.HasBody(x.req.Method, h.Status) {
		if resp.Length = -1; ok && h.Status != 204 {
			resp.Length = declared
		}
		x.release()
		return resp, nil
	}
	b := &upstreamBody{x: x, body: http1.NewBody(x.u.br, n)}
	resp.Body, resp.Trailer = b, b.body.Trailer
	if n == 0 {
		x.release()
	}
	return resp, nil
}

// upstreamBody reads the body of an answer.
type upstreamBody struct {
	x    *exchange
	body *http1.Body
}

// Read implements io.Reader. The end gives the connection back to the pool.
func (b *upstreamBody) Read(p []byte) (int, error) {
	if b.body.Done() {
		return b.body.Read(p) // the connection may be another request's by now
	}
	b.x.u.SetReadDeadline(time.Now().Add(b.x.stall))
	n, err := b.body.Read(p)
	if b.body.Done() {
		b.x.release()
	}
	return n, err
}

// release ends the exchange after a whole answer: the connection goes back to
// the pool if both directions are at the end of a message.
func (x *exchange) release() {
	x.mu.Lock()
	if x.ended && !x.sent {
		// The answer can overtake the note that the last byte was sent.
		x.mu.Unlock()
		select {
		case <-x.uploaded:
		case <-time.After(100 * time.Millisecond):
		}
		x.mu.Lock()
	}
	defer x.mu.Unlock()
	if x.released {
		return
	}
	x.released = true
	if x.stop() && x.sent && x.reusable && x.u.br.Buffered() == 0 {
		x.pool.put(x.u, x.keep)
		return
	}
	x.u.Close()
}

// finish ends the exchange wherever it stands. After release it does nothing.
func (x *exchange) finish() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.settle()
	if x.released {
		return
	}
	x.released = true
	x.stop()
	x.u.Close()
}

// why finds the cause of a failed trip: the client's faults first, since they
// make the upstream's side fail too.
func (x *exchange) why(ctx context.Context, err error) error {
	x.mu.Lock()
	sendErr := x.sendErr
	x.mu.Unlock()
	var f *http1.Fault
	switch {
	case errors.As(sendErr, &f):
		return sendErr
	case sendErr != nil || ctx.Err() != nil:
		return errClient
	case errors.Is(err, errStale):
		return errStale
	case isTimeout(err):
		return errLate
	case errors.As(err, &f):
		return fmt.Errorf("%w: %s", errGarbled, f.Reason)
	}
	return fmt.Errorf("%w: %s", errBroke, plain(err))
}

// plain leaves the addresses out of a network error: they are in the log line
// already, and no business of the client that reads the reason.
func plain(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	var sys *os.SyscallError
	if errors.As(err, &sys) {
		err = sys.Err
	}
	return strings.ToLower(err.Error())
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
