// Package wire is the codec of the BGP messages that Catchment needs: OPEN,
// UPDATE of IPv4 and IPv6 unicast, NOTIFICATION, KEEPALIVE and ROUTE-REFRESH.
//
// It owns how bytes become values and back, which faults end a session, and
// with which NOTIFICATION (RFC 4271 section 6, RFC 7606). It never opens a
// socket, never starts a goroutine and never keeps the caller's bytes: what it
// returns is a copy. No input makes it panic, and one message costs less than
// 64 KiB of memory whatever is in it. It runs in edgebgp, between the routers
// and everything else: no other parser sees an UPDATE of a router.
//
// Add-path, extended messages and confederations are not spoken: we never offer
// them.
package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Sizes of a message in bytes (RFC 4271 section 4.1).
const (
	// HeaderLen is the header that every message has, and a whole KEEPALIVE.
	HeaderLen = 19
	// MaxLen is the longest message, with its header.
	MaxLen = 4096
)

// Type is the type of a message (RFC 4271 section 4.1, RFC 2918).
type Type uint8

// The types of messages.
const (
	TypeOpen         Type = 1
	TypeUpdate       Type = 2
	TypeNotification Type = 3
	TypeKeepalive    Type = 4
	TypeRouteRefresh Type = 5
)

// String returns the name as the RFCs write it, "type 9" for an unknown one.
func (t Type) String() string {
	switch t {
	case TypeOpen:
		return "OPEN"
	case TypeUpdate:
		return "UPDATE"
	case TypeNotification:
		return "NOTIFICATION"
	case TypeKeepalive:
		return "KEEPALIVE"
	case TypeRouteRefresh:
		return "ROUTE-REFRESH"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// lengths returns the shortest and the longest message of a type; ok is false
// for a type that there is not.
func (t Type) lengths() (shortest, longest int, ok bool) {
	switch t {
	case TypeOpen:
		return openLen, MaxLen, true
	case TypeUpdate:
		return updateLen, MaxLen, true
	case TypeNotification:
		return notificationLen, MaxLen, true
	case TypeKeepalive:
		return HeaderLen, HeaderLen, true
	case TypeRouteRefresh:
		// Outbound route filters (RFC 5291) make it longer.
		return refreshLen, MaxLen, true
	}
	return 0, 0, false
}

// Message is one message as it was on the wire.
type Message struct {
	Type Type
	// Raw is the whole message with its header. It is valid until the next Read.
	Raw []byte
}

// Reader cuts a byte stream into messages. It is not for two goroutines at once.
type Reader struct {
	r io.Reader
	// have counts the bytes of the message in buf that have come so far: a read
	// that runs into a deadline loses nothing.
	have int
	buf  [MaxLen]byte
	bad  *Error
}

// NewReader returns a Reader of r. It never reads further than the end of the
// message that is asked for.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Read returns the next message, whose type is known and whose length is one
// that the type may have; nothing further is looked at. It returns the errors of
// the io.Reader as they are: io.EOF between two messages,
// io.ErrUnexpectedEOF within one; after a timeout it can be called again. A
// fault of the header is an *Error (RFC 4271 section 6.1), and so is every
// further Read, since the stream has no known beginning of a message any more.
func (r *Reader) Read() (Message, error) {
	if r.bad != nil {
		return Message{}, r.bad
	}
	if err := r.fill(HeaderLen); err != nil {
		return Message{}, err
	}
	n, bad := checkHeader(r.buf[:HeaderLen])
	if bad != nil {
		r.bad = bad
		return Message{}, bad
	}
	if err := r.fill(n); err != nil {
		return Message{}, err
	}
	r.have = 0
	return Message{Type: Type(r.buf[18]), Raw: r.buf[:n:n]}, nil
}

// fill reads until buf has n bytes.
func (r *Reader) fill(n int) error {
	idle := 0
	for r.have < n {
		got, err := r.r.Read(r.buf[r.have:n])
		r.have += got
		switch {
		case r.have >= n:
		case err == io.EOF && r.have > 0:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case got == 0:
			// What io.Reader discourages must not become a busy loop.
			if idle++; idle == 100 {
				return io.ErrNoProgress
			}
		}
	}
	return nil
}

// checkHeader returns the length of the message that begins with b, which has
// at least HeaderLen bytes (RFC 4271 section 6.1).
func checkHeader(b []byte) (int, *Error) {
	for _, c := range b[:16] {
		if c != 0xff {
			return 0, &Error{Code: codeHeader, Subcode: headerSync, Text: "the marker is not all ones"}
		}
	}
	n, t := int(binary.BigEndian.Uint16(b[16:])), Type(b[18])
	length := []byte{b[16], b[17]} // a copy: b is the reader's
	if n < HeaderLen || n > MaxLen {
		return 0, &Error{codeHeader, headerLength, length, fmt.Sprintf("a length of %d is not within %d to %d", n, HeaderLen, MaxLen)}
	}
	shortest, longest, ok := t.lengths()
	if !ok {
		return 0, &Error{codeHeader, headerType, []byte{byte(t)}, fmt.Sprintf("there is no message type %d", t)}
	}
	if n < shortest || n > longest {
		return 0, &Error{codeHeader, headerLength, length, fmt.Sprintf("%s of %d bytes", t, n)}
	}
	return n, nil
}

// body returns what follows the header of raw, which must be exactly one
// message of the type.
func body(raw []byte, want Type) ([]byte, *Error) {
	if len(raw) < HeaderLen {
		return nil, &Error{Code: codeHeader, Subcode: headerLength, Text: fmt.Sprintf("%d bytes are no header", len(raw))}
	}
	n, bad := checkHeader(raw)
	switch {
	case bad != nil:
		return nil, bad
	case Type(raw[18]) != want:
		return nil, &Error{codeHeader, headerType, []byte{raw[18]}, fmt.Sprintf("%s is no %s", Type(raw[18]), want)}
	case n != len(raw):
		return nil, &Error{codeHeader, headerLength, []byte{raw[16], raw[17]}, fmt.Sprintf("the header says %d bytes, it is %d", n, len(raw))}
	}
	return raw[HeaderLen:], nil
}

// marshal puts a header before the parts of a body, which fit into MaxLen.
func marshal(t Type, parts ...[]byte) []byte {
	b := make([]byte, HeaderLen, HeaderLen+16)
	for i := range 16 {
		b[i] = 0xff
	}
	b[18] = byte(t)
	for _, p := range parts {
		b = append(b, p...)
	}
	binary.BigEndian.PutUint16(b[16:], uint16(len(b)))
	return b
}

// Keepalive returns a KEEPALIVE (RFC 4271 section 4.4).
func Keepalive() []byte { return marshal(TypeKeepalive) }
