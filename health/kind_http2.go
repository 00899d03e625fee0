package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/catchment-dev/edge"
)

// maxHead is how large the head of an answer over HTTP/2 may be, in bytes.
const maxHead = 64 << 10

// http2Kind is the prober of kind http2: one GET of p.URL over a new connection
// of HTTP/2 (RFC 9113), by ALPN for https, by prior knowledge for http. What it
// expects of the answer is what HTTP does, and targets can say their weight.
type http2Kind struct{ trust *trust }

func (k http2Kind) Probe(ctx context.Context, p edge.Probe) error {
	_, err := k.Weigh(ctx, p)
	return err
}

func (k http2Kind) Weigh(ctx context.Context, p edge.Probe) (*int, error) {
	u, address, err := target(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", edge.ErrUnknown, err)
	}
	o := opening{address: address, name: serverName(p.Host, u.Hostname()), tls: u.Scheme == "https"}
	c, err := o.open(ctx, k.trust, p)
	if err != nil {
		return nil, err
	}
	defer c.close()
	return c.get(ctx, p, u)
}

// opening says how to open a connection of HTTP/2.
type opening struct {
	address, name string
	tls           bool
}

// http2Conn is a connection of HTTP/2 for one request.
type http2Conn struct {
	raw  net.Conn // the TCP connection
	h2   *http.ClientConn
	stop func() bool
}

// open connects, does the handshake, and starts HTTP/2.
func (o opening) open(ctx context.Context, t *trust, p edge.Probe) (*http2Conn, error) {
	roots, err := t.roots(ctx, p)
	if err != nil {
		return nil, err
	}
	raw, err := connect(ctx, from(p.Source), p, o.address)
	if err != nil {
		return nil, err
	}
	c := &http2Conn{raw: raw, stop: context.AfterFunc(ctx, func() { raw.Close() })}
	over := raw
	if o.tls {
		s := security{name: o.name, roots: roots, h2: true}
		if over, err = s.handshake(ctx, raw, p); err != nil {
			c.close()
			return nil, err
		}
	}
	if c.h2, err = overHTTP2(ctx, over); err != nil {
		c.close()
		return nil, fmt.Errorf("start HTTP/2: %w", http2Error(ctx, err, p))
	}
	return c, nil
}

// close ends the connection, and with it the goroutine that reads from it.
func (c *http2Conn) close() {
	c.stop()
	if c.h2 != nil {
		_ = c.h2.Close() // says goodbye, too
	}
	_ = c.raw.Close()
}

// overHTTP2 starts HTTP/2 over an open connection. The transport is only the
// way that net/http has to make one of it; it keeps nothing.
func overHTTP2(ctx context.Context, c net.Conn) (*http.ClientConn, error) {
	scheme := "http"
	if _, ok := c.(*tls.Conn); ok {
		scheme = "https"
	}
	given := func(context.Context, string, string) (net.Conn, error) { return c, nil }
	var only http.Protocols
	only.SetHTTP2(true)
	only.SetUnencryptedHTTP2(true)
	t := &http.Transport{
		DialContext: given, DialTLSContext: given, Protocols: &only,
		DisableCompression: true, MaxResponseHeaderBytes: maxHead,
	}
	return t.NewClientConn(ctx, scheme, c.RemoteAddr().String())
}

// get sends the request, judges the answer and reads the weight in it.
func (c *http2Conn) get(ctx context.Context, p edge.Probe, u *url.URL) (*int, error) {
	r := (&http.Request{Method: http.MethodGet, URL: u, Host: p.Host, Header: http.Header{
		"User-Agent": {"catchment-probe"}, "Accept": {"*/*"},
	}}).WithContext(ctx)
	answer, err := c.h2.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", http2Error(ctx, err, p))
	}
	defer answer.Body.Close()
	if err := judgeStatus(answer.StatusCode, p); err != nil {
		return weight(answer.Header), err
	}
	if p.Body != "" {
		if err := search(ctx, answer.Body, p); err != nil {
			return nil, err
		}
	}
	return weight(answer.Header), nil
}

// http2Error is broken for what net/http says of HTTP/2, which can be long.
func http2Error(ctx context.Context, err error, p edge.Probe) error {
	err = broken(ctx, err, p)
	if errors.Is(err, edge.ErrUnknown) {
		return err
	}
	return errors.New(clean(err.Error()))
}
