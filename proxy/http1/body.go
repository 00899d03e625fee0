package http1

import (
	"bufio"
	"io"
	"strconv"
	"strings"
)

// Lengths of a body that are not a number of bytes.
const (
	// Chunked bodies end with the last chunk (RFC 9112 section 7.1).
	Chunked int64 = -1
	// UntilClose bodies, only of responses, end with the connection.
	UntilClose int64 = -2
)

// maxChunkLine bounds the line with a chunk's size and its extensions, so that
// small chunks cannot carry a flood of ignored bytes.
const maxChunkLine = 256

// requestLength applies RFC 9112 section 6.3 without its leniency: two
// statements of the length are a fault even where they agree.
func requestLength(h Header, minor int) (int64, error) {
	te := h.Values("Transfer-Encoding")
	if len(te) > 0 && len(h.Values("Content-Length")) > 0 {
		return 0, fault(400, "there is both a Content-Length and a Transfer-Encoding")
	}
	if len(te) == 0 {
		n, _, err := ContentLength(h)
		return n, err
	}
	if minor == 0 {
		return 0, fault(400, "there is a Transfer-Encoding in an HTTP/1.0 message")
	}
	if len(te) != 1 || !strings.EqualFold(te[0], "chunked") {
		return 0, fault(501, "the transfer coding is not chunked")
	}
	return Chunked, nil
}

// ContentLength returns the Content-Length of h, and whether there is one.
func ContentLength(h Header) (n int64, ok bool, err error) {
	v := h.Values("Content-Length")
	if len(v) == 0 {
		return 0, false, nil
	}
	if len(v) > 1 {
		return 0, false, fault(400, "there is more than one Content-Length")
	}
	if v[0] == "" || strings.Trim(v[0], "0123456789") != "" {
		return 0, false, fault(400, "the Content-Length is not a number")
	}
	if n, err = strconv.ParseInt(v[0], 10, 63); err != nil {
		return 0, false, fault(400, "the Content-Length is too large")
	}
	return n, true, nil
}

// ResponseLength returns how long the body of the answer h to a request with
// the given method is: bytes, Chunked or UntilClose.
func ResponseLength(method string, h ResponseHead) (int64, error) {
	cl, ok, err := ContentLength(h.Header)
	if err != nil {
		return 0, err
	}
	te := h.Header.Values("Transfer-Encoding")
	switch {
	case len(te) > 0 && ok:
		return 0, fault(502, "there is both a Content-Length and a Transfer-Encoding")
	case len(te) > 0 && (len(te) != 1 || !strings.EqualFold(te[0], "chunked") || h.Minor == 0):
		return 0, fault(502, "the transfer coding is not chunked")
	case !HasBody(method, h.Status):
		return 0, nil
	case len(te) > 0:
		return Chunked, nil
	case ok:
		return cl, nil
	}
	return UntilClose, nil
}

// HasBody says whether an answer with this status to a request with this
// method can have a body (RFC 9112 section 6.3).
func HasBody(method string, status int) bool {
	return method != "HEAD" && status >= 200 && status != 204 && status != 304
}

// Body reads one body. It ends with io.EOF exactly where the body ends; an end
// of the connection before that is io.ErrUnexpectedEOF, broken chunking a
// *Fault. Errors stick. Not safe for concurrent use.
type Body struct {
	br *bufio.Reader
	// left counts the bytes until the end of the body or of the chunk.
	left    int64
	kind    int64 // Chunked, UntilClose, or >= 0
	inChunk bool
	trailer Header
	err     error
}

// NewBody reads the body of the given length from br.
func NewBody(br *bufio.Reader, length int64) *Body {
	b := &Body{br: br, kind: length}
	if length >= 0 {
		b.left = length
	}
	if length == 0 {
		b.err = io.EOF
	}
	return b
}

// Done says whether the body has been read to its end.
func (b *Body) Done() bool { return b.err == io.EOF }

// Trailer returns the trailer fields, once Done.
func (b *Body) Trailer() Header { return b.trailer }

// Read implements io.Reader. It returns what is there and does not wait for
// more. It returns io.EOF with the last bytes if the end is known by then.
func (b *Body) Read(p []byte) (int, error) {
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	n, err := b.read(p)
	b.err = err
	return n, err
}

func (b *Body) read(p []byte) (int, error) {
	if b.kind == UntilClose {
		return b.br.Read(p)
	}
	if b.kind == Chunked && b.left == 0 {
		if err := b.nextChunk(); err != nil {
			return 0, err
		}
	}
	n, err := b.br.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	switch {
	case err != nil:
		return n, noEOF(err)
	case b.left == 0 && b.kind >= 0:
		return n, io.EOF
	}
	return n, nil
}

// nextChunk reads up to the data of the next chunk, or the trailer section
// behind the last one, for which it returns io.EOF.
func (b *Body) nextChunk() error {
	left := maxChunkLine
	if b.inChunk {
		if line, err := readLine(b.br, &left); err != nil || line != "" {
			return orFault(err, "a chunk is longer than its size says")
		}
		b.inChunk = false
	}
	line, err := readLine(b.br, &left)
	if err != nil {
		return noEOF(err)
	}
	size, err := parseChunkSize(line)
	if err != nil {
		return err
	}
	if size > 0 {
		b.left, b.inChunk = size, true
		return nil
	}
	left = MaxRequestHead
	t, err := readFields(b.br, &left)
	if err != nil {
		return err
	}
	b.trailer = CleanTrailer(t)
	return io.EOF
}

func orFault(err error, reason string) error {
	if err == nil {
		return fault(400, "%s", reason)
	}
	return noEOF(err)
}

func parseChunkSize(line string) (int64, error) {
	digits, ext, _ := strings.Cut(line, ";")
	if len(digits) > 15 || strings.Trim(digits, "0123456789abcdefABCDEF") != "" || !ValidValue(ext) {
		return 0, fault(400, "a chunk size is not a number")
	}
	n, err := strconv.ParseInt(digits, 16, 64)
	if err != nil {
		return 0, fault(400, "a chunk size is not a number")
	}
	return n, nil
}

// CleanTrailer drops the fields that may not stand in a trailer section (RFC
// 9110 section 6.5.1) because a reader that merges them into the head would be
// deceived.
func CleanTrailer(t Header) Header {
	t.Keep(func(name string) bool {
		switch strings.ToLower(name) {
		case "content-length", "transfer-encoding", "host", "te", "trailer", "connection", "keep-alive",
			"upgrade", "authorization", "proxy-authorization", "cookie", "set-cookie", "content-type",
			"content-encoding", "content-range", "expect", "range", "cache-control", "location",
			"www-authenticate", "proxy-authenticate", "x-forwarded-for", "x-forwarded-proto",
			"x-forwarded-host", "x-request-id", "forwarded":
			return false
		}
		return true
	})
	return t
}
