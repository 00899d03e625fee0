//lint:file-ignore SA1019 x/net deprecates its Server in favour of the copy in net/http, but that copy (go1.26) lacks checks of authority and path that this one has
package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/proxy/http1"
)

// h2 is the codec of HTTP/2, by golang.org/x/net/http2: the only place in the
// proxy that knows net/http's requests, until a codec of our own fills it.
type h2 struct {
	// idle bounds a connection without a stream, stall a body that stands
	// still.
	idle, stall time.Duration
	log         *slog.Logger
	// panicked is told of panics: x/net hides them.
	panicked func(any)
}

const (
	// pingAfter is how long a client may be silent before it gets a PING,
	// pingWait how long it may take for the answer.
	pingAfter = 15 * time.Second
	pingWait  = 5 * time.Second
)

// server returns the pair that x/net/http2 wants. Each connection has its own:
// that is what makes one connection drain without the others. All limits are
// written out, since the defaults are those of an origin, not of an edge.
func (k h2) server() (*http.Server, *http2.Server, error) {
	base := &http.Server{
		MaxHeaderBytes: http1.MaxRequestHead,
		ErrorLog:       slog.NewLogLogger(k.log.Handler(), slog.LevelDebug),
	}
	srv := &http2.Server{
		MaxConcurrentStreams:         100,
		MaxReadFrameSize:             16384,
		MaxUploadBufferPerStream:     64 << 10,
		MaxUploadBufferPerConnection: 1 << 20,
		MaxDecoderHeaderTableSize:    4096,
		MaxEncoderHeaderTableSize:    4096,
		IdleTimeout:                  k.idle,
		ReadIdleTimeout:              pingAfter,
		PingTimeout:                  pingWait,
		WriteByteTimeout:             k.stall,
	}
	return base, srv, http2.ConfigureServer(base, srv)
}

// Serve implements codec.
func (k h2) Serve(ctx, drain context.Context, c net.Conn, h handler) {
	defer c.Close()
	base, srv, err := k.server()
	if err != nil {
		k.log.Error("configure http2", "err", err)
		return
	}
	defer context.AfterFunc(ctx, func() { abort(c) })()
	asked, ended := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(asked) })
	defer close(ended)
	defer context.AfterFunc(drain, func() {
		// The GOAWAY of x/net refuses what is on its way: a connection that was
		// accepted gets the time for its first request.
		select {
		case <-asked:
		case <-ended:
		case <-time.After(freshDrain):
		}
		base.Shutdown(ctx) // knows no connection of its own; it sends the GOAWAY
	})()
	srv.ServeConn(c, &http2.ServeConnOpts{
		Context:    ctx,
		BaseConfig: base,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			first()
			a := h2answer{k: k, w: w, rc: http.NewResponseController(w)}
			if drain.Err() != nil {
				w.Header().Set("Connection", "close") // a GOAWAY, in case the first came too early
			}
			a.serve(r, h)
		}),
	})
}

// h2answer is one stream.
type h2answer struct {
	k    h2
	w    http.ResponseWriter
	rc   *http.ResponseController
	body *h2body // nil if there is none
	resp *Response
}

func (a *h2answer) serve(r *http.Request, h handler) {
	var sent int64
	err := errPanicked // unless write returns
	defer func() {
		if p := recover(); p != nil {
			a.k.panicked(p)
		}
		a.end(r, sent, err)
		if err != nil {
			panic(http.ErrAbortHandler) // makes it RST_STREAM instead of a clean end
		}
	}()
	a.resp = h(r.Context(), a.request(r))
	if a.resp.Status == statusClientGone {
		err = errSend
		return
	}
	sent, err = a.write(r)
}

// end ends the request and lets the upstream go.
func (a *h2answer) end(r *http.Request, sent int64, err error) {
	if a.body != nil {
		a.body.finish(err == nil)
	}
	if err != nil && err != errPanicked && r.Context().Err() != nil {
		err = errSend
	}
	if a.resp != nil {
		a.resp.Done(sent, err)
	}
}

// request makes the Request of a stream. HTTP/2 has no framing that could be
// mistaken, but what we write upstream has: hence the checks. Continue is never
// set: x/net hides an Expect and sends the 100 at the first Read.
func (a *h2answer) request(r *http.Request) *Request {
	q := &Request{
		Proto: "HTTP/2", Method: r.Method, Host: r.Host, Target: r.RequestURI,
		Length: r.ContentLength, Inform: a.inform,
	}
	if err := q.fill(r); err != nil {
		var f *http1.Fault
		if errors.As(err, &f) {
			q.Fault = f
		}
	}
	if q.Length != 0 {
		a.body = &h2body{r: r.Body, rc: a.rc, stall: a.k.stall}
		q.Body = a.body
		q.Trailer = func() http1.Header { return http1.CleanTrailer(toHeader(r.Trailer)) }
	}
	return q
}

// fill checks r and takes its header.
func (q *Request) fill(r *http.Request) error {
	bad := func(reason edge.Reason) error { return &http1.Fault{Status: 400, Reason: "the " + reason} }
	q.Header = toHeader(r.Header)
	for _, f := range q.Header {
		if !http1.ValidToken(f.Name) || !http1.ValidValue(f.Value) {
			return bad("header holds a field that HTTP/1.1 cannot carry")
		}
	}
	switch {
	case q.Method == "CONNECT":
		return &http1.Fault{Status: 501, Reason: "CONNECT is not served"}
	case !http1.ValidToken(q.Method):
		return bad("method is not a token")
	case !http1.ValidHost(q.Host):
		return bad("authority is not a host with an optional port")
	}
	if host := r.Header["Host"]; len(host) > 1 || len(host) == 1 && !strings.EqualFold(host[0], q.Host) {
		return bad("authority is not the Host")
	}
	// x/net takes a length that it cannot read for none at all.
	n, ok, err := http1.ContentLength(q.Header)
	if err != nil {
		return err
	}
	if ok && n != q.Length {
		return bad("Content-Length is not that of the body")
	}
	q.Header.Keep(func(name string) bool { return !strings.EqualFold(name, "Host") })
	return http1.CheckTarget(q.Method, q.Target)
}

func (a *h2answer) inform(status int, h http1.Header) {
	fields := a.w.Header()
	for _, f := range h {
		fields.Add(f.Name, f.Value)
	}
	a.w.WriteHeader(status)
	clear(fields) // they must not be repeated by the final answer
}

// write sends the answer.
func (a *h2answer) write(r *http.Request) (int64, error) {
	h := a.w.Header()
	h["Content-Type"] = nil // never to be guessed
	for _, f := range a.resp.Header {
		h.Add(f.Name, f.Value)
	}
	if a.resp.Length >= 0 && a.resp.Status != 204 {
		h.Set("Content-Length", strconv.FormatInt(a.resp.Length, 10))
	}
	a.w.WriteHeader(a.resp.Status)
	if a.resp.Body == nil || !http1.HasBody(r.Method, a.resp.Status) {
		return 0, nil
	}
	if a.resp.Length != 0 && a.rc.Flush() != nil {
		return 0, errSend
	}
	return a.copyBody()
}

func (a *h2answer) copyBody() (sent int64, err error) {
	buf := make([]byte, 32<<10)
	for {
		n, readErr := a.resp.Body.Read(buf)
		if n > 0 {
			a.rc.SetWriteDeadline(time.Now().Add(a.k.stall))
			if _, err := a.w.Write(buf[:n]); err != nil {
				return sent, errSend
			}
			sent += int64(n)
		}
		if readErr == io.EOF {
			a.trailers()
			return sent, nil
		}
		if readErr != nil {
			return sent, brokeOff(readErr)
		}
		if a.rc.Flush() != nil {
			return sent, errSend
		}
		// A deadline that passes resets the stream, also if nothing is being
		// written: the wait for the upstream is not the client's.
		a.rc.SetWriteDeadline(time.Time{})
	}
}

func (a *h2answer) trailers() {
	if a.resp.Trailer == nil {
		return
	}
	for _, f := range a.resp.Trailer() {
		a.w.Header().Add(http.TrailerPrefix+f.Name, f.Value)
	}
}

// toHeader makes a Header, sorted so that it does not depend on the map.
func toHeader(m http.Header) http1.Header {
	var h http1.Header
	for _, name := range slices.Sorted(maps.Keys(m)) {
		for _, v := range m[name] {
			h.Add(name, strings.Trim(v, " \t"))
		}
	}
	return h
}

// h2body gives each read of a stream its deadline.
type h2body struct {
	r     io.Reader
	rc    *http.ResponseController
	stall time.Duration

	reading sync.Mutex // one reader at a time; taken before mu
	ended   bool       // read to its end

	mu    sync.Mutex
	begun bool // somebody has read
	over  bool
}

// Read implements io.Reader.
func (b *h2body) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if !b.arm() {
		return 0, errBodyOver
	}
	n, err := b.r.Read(p)
	b.ended = err == io.EOF
	b.disarm()
	return n, err
}

// disarm takes the deadline of a read away, but not that of finish: one that
// passes breaks the body, also if it is the upstream that keeps us from reading.
func (b *h2body) disarm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		b.rc.SetReadDeadline(time.Time{})
	}
}

func (b *h2body) arm() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return false
	}
	b.begun = true
	b.rc.SetReadDeadline(time.Now().Add(b.stall))
	return true
}

// finish ends the body. After a whole answer it takes in a little of what is
// still coming: some clients (curl 7.88) take the RST_STREAM that tells them to
// stop, which is sent with NO_ERROR, for a failure of the answer. A body that
// nobody has begun to read is left alone: the first Read can send a 100, and
// the final answer is out.
func (b *h2body) finish(whole bool) {
	b.mu.Lock()
	b.over = true
	begun := b.begun
	b.rc.SetReadDeadline(time.Now().Add(lingerTime))
	b.mu.Unlock()
	if !whole || !begun {
		return
	}
	b.reading.Lock() // the upload may be in its last Read
	defer b.reading.Unlock()
	if !b.ended {
		io.CopyN(io.Discard, b.r, lingerBytes) // what is left after that is reset
	}
}
