package proxy

import (
	"context"
	"io"
	"net"

	"github.com/catchment-dev/edge/proxy/http1"
)

// codec is the seam between the versions of HTTP and the rest of the proxy. A
// codec turns the bytes of one client connection into Requests and Responses
// into bytes; routes, regions, retries and logs are none of its business.
//
// Serve owns c and closes it. It returns once c is done for: the client has
// left, the protocol was broken, or drain is done and nothing is in flight any
// more. The end of ctx breaks the connection off. It calls h once for each
// request, for several at once where the protocol allows it, each with a
// context that ends when the client gives the request up.
type codec interface {
	Serve(ctx, drain context.Context, c net.Conn, h handler)
}

// handler answers one request; it never returns nil.
type handler func(ctx context.Context, r *Request) *Response

// Request is a request as a codec hands it over. What is in it has been
// checked: whoever writes it out again as HTTP/1.1 writes a valid message.
type Request struct {
	// Fault is set if what came was no valid request; then only the fields
	// that could still be read are set. The handler answers it all the same,
	// so that it is logged; in HTTP/1, where it is not known where the next
	// request would begin, the connection ends with that.
	Fault *http1.Fault
	// Proto is "HTTP/1.0", "HTTP/1.1" or "HTTP/2".
	Proto  string
	Method string
	// Host is the authority as sent; Target is in origin form or "*".
	Host, Target string
	// Header is without Host.
	Header http1.Header
	// Length is that of the body: 0 is none, -1 not known yet.
	Length int64
	// Body is nil exactly if Length is 0. It may be read by one goroutine
	// while another one writes the answer. Once Response.Done has been called
	// each Read fails.
	Body io.Reader
	// Trailer returns the trailer fields after Body has returned io.EOF.
	Trailer func() http1.Header
	// Continue says that the client sends the body only when asked: the first
	// Read of Body asks.
	Continue bool
	// Inform sends a 1xx answer other than 100 and 101 on its way.
	Inform func(status int, h http1.Header)
}

// Response is an answer as the handler returns it.
type Response struct {
	Status int
	// Header is without framing and without anything hop-by-hop.
	Header http1.Header
	// Length is that of the body, -1 if it is not known. Where an answer has
	// no body (HEAD, 304) it is what the Content-Length says.
	Length int64
	// Body may be nil. The codec passes on what one Read returns without
	// waiting for more. An error other than io.EOF breaks the stream or the
	// connection, so that the client cannot take it for the end. The codec
	// does not close it: that is for Done.
	Body io.Reader
	// Trailer, if not nil, returns the trailer fields after Body has ended.
	Trailer func() http1.Header
	// Close ends the connection after the answer (HTTP/1 only).
	Close bool
	// Done is called exactly once, last of all: with the number of bytes of
	// the body that were sent, and why it was not all of them.
	Done func(sent int64, err error)
}
