// Package http1 reads and writes HTTP/1.1 messages (RFC 9112), strictly: what
// two readers could take for two different messages is a fault.
//
// It owns the grammar of heads, chunks and trailers, and the rules that say
// how long a body is. It never holds a socket, a deadline or a goroutine, and
// never repairs what it reads. Package proxy uses it, so it runs in edgeproxy.
package http1

import (
	"fmt"
	"strings"

	"github.com/catchment-dev/edge"
)

// The limits of a message, in bytes and fields.
const (
	// MaxLine bounds one line, without its CRLF.
	MaxLine = 8 << 10
	// MaxFields bounds the fields of a head or of a trailer section.
	MaxFields = 100
	// MaxRequestHead and MaxResponseHead bound a whole head.
	MaxRequestHead  = 16 << 10
	MaxResponseHead = 64 << 10
	// BufferSize is the least size of a bufio.Reader handed to this package.
	BufferSize = MaxLine + 2
)

// Fault is a message that breaks the grammar, as opposed to a connection that
// broke. After one the connection cannot be used: where the next message
// begins is not known.
type Fault struct {
	// Status is the answer that the sender of a request gets: 4xx or 5xx.
	Status int
	Reason edge.Reason
}

// Error implements error.
func (f *Fault) Error() string { return string(f.Reason) }

func fault(status int, format string, args ...any) error {
	return &Fault{Status: status, Reason: edge.Reason(fmt.Sprintf(format, args...))}
}

// Field is one header field. Name is a token, Value has no CR, LF or NUL and
// no space around it.
type Field struct {
	Name, Value string
}

// Header is the fields of a message in the order in which they came. Names
// compare without case. The zero value is empty and ready to use; it is not
// safe for concurrent changes.
type Header []Field

// Get returns the first value of name, or "".
func (h Header) Get(name string) string {
	for _, f := range h {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

// Values returns all values of name in order, nil if there is none.
func (h Header) Values(name string) []string {
	var out []string
	for _, f := range h {
		if strings.EqualFold(f.Name, name) {
			out = append(out, f.Value)
		}
	}
	return out
}

// Tokens returns the members of the comma-separated lists that are the values
// of name, lower case, empty ones left out.
func (h Header) Tokens(name string) []string {
	var out []string
	for _, v := range h.Values(name) {
		for t := range strings.SplitSeq(v, ",") {
			if t = strings.ToLower(strings.Trim(t, " \t")); t != "" {
				out = append(out, t)
			}
		}
	}
	return out
}

// Add appends a field.
func (h *Header) Add(name, value string) { *h = append(*h, Field{name, value}) }

// Set replaces every field called name by one.
func (h *Header) Set(name, value string) {
	h.Keep(func(n string) bool { return !strings.EqualFold(n, name) })
	h.Add(name, value)
}

// Keep removes the fields whose name does not satisfy keep, without touching
// the array that other copies of the header share.
func (h *Header) Keep(keep func(name string) bool) {
	out := make(Header, 0, len(*h)+4)
	for _, f := range *h {
		if keep(f.Name) {
			out = append(out, f)
		}
	}
	*h = out
}
