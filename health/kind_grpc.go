package health

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/catchment-dev/edge"
)

// grpcKind is the prober of kind grpc: one call of grpc.health.v1.Health/Check
// over a new connection. SERVING passes.
//
// It speaks gRPC over HTTP/2 itself: for one call of one method, whose messages
// have one field each, a client library would be a second engine beside ours,
// with its own pool, back-off and goroutines.
type grpcKind struct{ trust *trust }

func (k grpcKind) Probe(ctx context.Context, p edge.Probe) error {
	o := opening{address: p.Addr.String(), name: serverName(p.Host, p.Addr.Addr().String()), tls: p.TLS}
	if strings.ContainsAny(p.Host, " \t\r\n/") {
		return fmt.Errorf("%w: host %q is not a host name", edge.ErrUnknown, p.Host)
	}
	c, err := o.open(ctx, k.trust, p)
	if err != nil {
		return err
	}
	defer c.close()
	answer, err := c.h2.RoundTrip(checkCall(p).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("read answer: %w", http2Error(ctx, err, p))
	}
	defer answer.Body.Close()
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "application/grpc") {
		return fmt.Errorf("answered %d with content of type %.40q, not gRPC", answer.StatusCode, clean(kind))
	}
	// To its end, since the status comes behind it.
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxBody))
	if err != nil {
		return fmt.Errorf("read answer: %w", http2Error(ctx, err, p))
	}
	if err := grpcStatus(answer); err != nil {
		return err
	}
	return serving(body)
}

// checkCall is the request of one call (gRPC over HTTP/2, "Requests").
func checkCall(p edge.Probe) *http.Request {
	message := []byte{}
	if p.GRPCService != "" {
		message = append(message, 1<<3|2) // field 1, length-delimited
		message = binary.AppendUvarint(message, uint64(len(p.GRPCService)))
		message = append(message, p.GRPCService...)
	}
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))) // 0: not compressed
	frame = append(frame, message...)
	u := &url.URL{Scheme: "http", Host: p.Addr.String(), Path: "/grpc.health.v1.Health/Check"}
	if p.TLS {
		u.Scheme = "https"
	}
	return &http.Request{
		Method: http.MethodPost, URL: u, Host: p.Host,
		Header: http.Header{
			"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "User-Agent": {"catchment-probe"},
		},
		Body: io.NopCloser(bytes.NewReader(frame)), ContentLength: int64(len(frame)),
	}
}

// grpcCodes are the names of the status codes, by number.
func grpcCodes() []string {
	return []string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
		"UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
	}
}

// grpcStatus returns what is wrong with the status of a call. It comes in the
// trailer, or in the head of an answer that has no more than that.
func grpcStatus(answer *http.Response) error {
	from := answer.Trailer
	if from.Get("Grpc-Status") == "" {
		from = answer.Header
	}
	text := from.Get("Grpc-Status")
	code, err := strconv.ParseUint(text, 10, 16)
	switch {
	case text == "":
		return errors.New("answered without a gRPC status")
	case err != nil:
		return fmt.Errorf("answered with gRPC status %.20q", text)
	case code == 0:
		return nil
	}
	name := "gRPC status " + strconv.FormatUint(code, 10)
	if codes := grpcCodes(); code < uint64(len(codes)) {
		name = "gRPC status " + codes[code]
	}
	message := from.Get("Grpc-Message")
	if plain, err := url.PathUnescape(message); err == nil {
		message = plain
	}
	if message = clean(message); message == "" {
		return errors.New(name)
	}
	return fmt.Errorf("%s: %s", name, message)
}

// serving reads the HealthCheckResponse in the one frame of an answer.
func serving(body []byte) error {
	if len(body) < 5 || uint64(binary.BigEndian.Uint32(body[1:])) != uint64(len(body)-5) {
		return errors.New("answered with no whole gRPC message")
	}
	if body[0] != 0 {
		return errors.New("answered with a compressed gRPC message")
	}
	status, err := healthStatus(body[5:])
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	names := []string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}
	switch {
	case status == 1:
		return nil
	case status < uint64(len(names)):
		return fmt.Errorf("answered %s", names[status])
	}
	return fmt.Errorf("answered with serving status %d", status)
}

// healthStatus returns field 1, a varint, of a message of protocol buffers.
// Fields that it does not know it passes over, as a newer server may add some.
func healthStatus(b []byte) (status uint64, err error) {
	broken := errors.New("malformed message")
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 || tag>>3 == 0 {
			return 0, broken
		}
		b = b[n:]
		var size uint64
		switch tag & 7 {
		case 0:
			v, n := binary.Uvarint(b)
			if n <= 0 {
				return 0, broken
			}
			if tag>>3 == 1 {
				status = v
			}
			size = uint64(n)
		case 1:
			size = 8
		case 2:
			v, n := binary.Uvarint(b)
			if n <= 0 {
				return 0, broken
			}
			b, size = b[n:], v
		case 5:
			size = 4
		default:
			return 0, broken // groups, which nobody has used for ages
		}
		if size > uint64(len(b)) {
			return 0, broken
		}
		b = b[size:]
	}
	return status, nil
}
