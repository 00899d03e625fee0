package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/proxy/http1"
)

// HealthPath is answered by edgeproxy itself, on every VIP and whatever the
// Host, without a region: it is what a probe of kind vip asks for, and it must
// say whether this proxy serves, not whether the regions do.
const HealthPath = "/healthz"

// statusClientGone is logged when the client left before there was an answer;
// nobody ever receives it.
const statusClientGone = 499

// connInfo is what is known of a connection before its first request.
type connInfo struct {
	client, vip netip.AddrPort
	binding
	scheme   string // "http" or "https"
	sni, ver string // of TLS
}

// visit is one request on its way through the proxy.
type visit struct {
	connInfo
	line  accessLine
	start time.Time
	in    atomic.Int64
}

// handle answers one request and sees to it that it is counted and logged,
// whatever becomes of it.
func (s *Server) handle(ctx context.Context, c connInfo, r *Request) (resp *Response) {
	v := &visit{connInfo: c, start: time.Now()}
	path, _, _ := strings.Cut(r.Target, "?")
	v.line = accessLine{
		Time: v.start, ID: newRequestID(), Client: c.client.String(), VIP: c.vip.String(), Service: c.service,
		SNI: c.sni, TLS: c.ver, Proto: r.Proto, Method: r.Method, Host: r.Host, Path: path,
	}
	if r.Body != nil {
		r.Body = &countingReader{r: r.Body, n: &v.in}
	}
	defer func() {
		if resp == nil { // the panic goes on from here
			s.end(v, 500, 0, errPanicked)
		}
	}()
	resp = s.answer(ctx, v, r)
	resp.Header.Set("X-Request-Id", v.line.ID)
	inner := resp.Done
	resp.Done = func(sent int64, err error) {
		if inner != nil {
			inner(sent, err)
		}
		s.end(v, resp.Status, sent, err)
	}
	return resp
}

// answer decides who answers.
func (s *Server) answer(ctx context.Context, v *visit, r *Request) *Response {
	switch {
	case r.Fault != nil:
		resp := v.refuse(r.Fault.Status, r.Fault.Reason)
		resp.Close = true
		return resp
	case v.line.Path == HealthPath && (r.Method == "GET" || r.Method == "HEAD"):
		return text(200, "ok")
	case v.health:
		return v.refuse(404, "only "+HealthPath+" is served here")
	case slices.Contains(r.Header.Tokens("Upgrade"), "websocket"):
		resp := v.refuse(501, "websocket is not served yet")
		resp.Close = true // the client may have sent frames behind its request
		return resp
	}
	regions, ok := route(s.gen.Load().proxy.Routes, r.Host, r.Target)
	if !ok {
		return v.refuse(404, "no route matches the host and path")
	}
	return s.forward(ctx, v, r, regions)
}

// end counts and logs a request that is over.
func (s *Server) end(v *visit, status int, sent int64, err error) {
	l := &v.line
	l.Status, l.Out, l.In = status, sent, v.in.Load()
	took := time.Since(v.start)
	l.Duration = float64(took.Microseconds()) / 1000
	if err != nil {
		l.Reason = edge.Reason(plain(err))
	}
	s.metrics.count(l.Region, status, took)
	s.access.write(*l)
}

// refuse is an answer of our own that says why there is no better one.
func (v *visit) refuse(status int, why edge.Reason) *Response {
	v.line.Reason = why
	resp := text(status, string(why))
	resp.Header.Add("X-Edge-Reason", headerSafe(string(why)))
	return resp
}

// text is an answer of our own. What is not about a resource must not be
// cached as one.
func text(status int, line string) *Response {
	body := line + "\n"
	return &Response{
		Status: status,
		Header: http1.Header{{Name: "Content-Type", Value: "text/plain; charset=utf-8"}, {Name: "Cache-Control", Value: "no-store"}},
		Length: int64(len(body)), Body: strings.NewReader(body),
	}
}

// headerSafe makes s fit for a field value: reasons can quote errors of
// others.
func headerSafe(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, s))
}

// newRequestID returns 128 random bits as 32 hex digits.
func newRequestID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

type countingReader struct {
	r io.Reader
	n *atomic.Int64
}

// Read implements io.Reader.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}
