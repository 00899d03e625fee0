package health

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/catchment-dev/edge"
)

// grpcServer starts grpc-go's server; register puts services into it.
func grpcServer(t *testing.T, register func(*grpc.Server), o ...grpc.ServerOption) netip.AddrPort {
	t.Helper()
	ln := listen(t, "127.0.0.1:0")
	srv := grpc.NewServer(o...)
	register(srv)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return netip.MustParseAddrPort(ln.Addr().String())
}

// grpcHealth registers grpc-go's health service.
func grpcHealth(s *grpc.Server) {
	h := grpchealth.NewServer()
	h.SetServingStatus("shop.Cart", grpc_health_v1.HealthCheckResponse_SERVING)
	h.SetServingStatus("shop.Down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	h.SetServingStatus("shop.New", grpc_health_v1.HealthCheckResponse_UNKNOWN)
	h.SetServingStatus("shop.Odd", grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN)
	h.SetServingStatus("shop.Far", 9)
	grpc_health_v1.RegisterHealthServer(s, h)
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, days(365))
	certs, key := ca.serverFiles("app.example", days(30))
	plain := grpcServer(t, grpcHealth)
	secure := grpcServer(t, grpcHealth, grpc.Creds(must(credentials.NewServerTLSFromFile(certs, key))))
	without := grpcServer(t, func(*grpc.Server) {})
	sick := grpcServer(t, grpcHealth, grpc.UnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return nil, grpcstatus.Error(codes.Unavailable, "the grüße\nare \x1b[1mout")
	}))
	slow := grpcServer(t, grpcHealth, grpc.UnaryInterceptor(func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}))
	refused := closedPort(t)
	checks(t, edge.ProbeGRPC, []check{
		{"whole server", edge.Probe{Addr: plain}, ""},
		{"service", edge.Probe{Addr: plain, GRPCService: "shop.Cart"}, ""},
		{"source", edge.Probe{Addr: plain, Source: netip.MustParseAddr("127.0.0.9")}, ""},
		{"TLS", edge.Probe{Addr: secure, TLS: true, Host: "app.example", CAFile: ca.file}, ""},
		{"TLS, insecure", edge.Probe{Addr: secure, TLS: true, Insecure: true}, ""},
		{"TLS, wrong name", edge.Probe{Addr: secure, TLS: true, Host: "other.example", CAFile: ca.file}, "not other.example"},
		{"not serving", edge.Probe{Addr: plain, GRPCService: "shop.Down"}, "answered NOT_SERVING"},
		{"unknown", edge.Probe{Addr: plain, GRPCService: "shop.New"}, "answered UNKNOWN"},
		{"service unknown", edge.Probe{Addr: plain, GRPCService: "shop.Odd"}, "answered SERVICE_UNKNOWN"},
		{"a status from the future", edge.Probe{Addr: plain, GRPCService: "shop.Far"}, "answered with serving status 9"},
		{"no such service", edge.Probe{Addr: plain, GRPCService: "shop.None"}, "gRPC status NOT_FOUND: unknown service"},
		{"no health service", edge.Probe{Addr: without}, "gRPC status UNIMPLEMENTED: unknown service grpc.health.v1.Health"},
		{"unavailable", edge.Probe{Addr: sick}, "gRPC status UNAVAILABLE: the grüße are [1mout"},
		{"slow", edge.Probe{Addr: slow, Timeout: 2 * time.Second}, "read answer: no answer within 2s"},
		{"TLS against a plain one", edge.Probe{Addr: plain, TLS: true, Insecure: true}, "tls handshake with 127.0.0.1"},
		{"plain against TLS", edge.Probe{Addr: secure}, "read answer: "},
		{"refused", edge.Probe{Addr: refused}, fmt.Sprintf("connect %s: connection refused", refused)},
		{"bad host", edge.Probe{Addr: plain, Host: "a\r\nb"}, `unknown: host "a\r\nb" is not a host name`},
		{"no file of roots", edge.Probe{Addr: secure, TLS: true, CAFile: "/nowhere"}, "unknown: read CA file /nowhere"},
	})
}

// frame is a gRPC message as it travels.
func frame(message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))) + message
}

// TestGRPCNotSpoken meets servers of HTTP/2 that speak no gRPC, or a bad one.
func TestGRPCNotSpoken(t *testing.T) {
	t.Parallel()
	answer := func(kind, body, code string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Trailer", "Grpc-Status")
			fmt.Fprint(w, body)
			if code != "" {
				w.Header().Set("Grpc-Status", code)
			}
		})
	}
	for name, c := range map[string]struct {
		h    http.Handler
		want string
	}{
		"right":       {answer("application/grpc+proto", frame("\x08\x01"), "0"), ""},
		"more fields": {answer("application/grpc", frame("\x12\x02hi\x08\x01\x1d1234\x2112345678"), "0"), ""},
		"web page":    {web(), `answered 404 with content of type "text/plain; charset=utf-8", not gRPC`},
		"text":        {answer("text/html", "hello", ""), `answered 200 with content of type "text/html", not gRPC`},
		"no status":   {answer("application/grpc", frame("\x08\x01"), ""), "answered without a gRPC status"},
		"odd status":  {answer("application/grpc", frame("\x08\x01"), "fine"), `answered with gRPC status "fine"`},
		"code 77":     {answer("application/grpc", frame("\x08\x01"), "77"), "gRPC status 77"},
		"no message":  {answer("application/grpc", "", "0"), "answered with no whole gRPC message"},
		"half":        {answer("application/grpc", frame("\x08\x01")[:6], "0"), "answered with no whole gRPC message"},
		"compressed":  {answer("application/grpc", "\x01"+frame("\x08\x01")[1:], "0"), "answered with a compressed gRPC message"},
		"malformed":   {answer("application/grpc", frame("\x08"), "0"), "read answer: malformed message"},
		"empty":       {answer("application/grpc", frame(""), "0"), "answered UNKNOWN"}, // 0 is not sent
		"too long":    {answer("application/grpc", frame(strings.Repeat("\x12\x00", maxBody)), "0"), "answered without a gRPC status"},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, try(t, edge.Probe{Kind: edge.ProbeGRPC, Addr: serveHTTP2(t, c.h)}), c.want)
		})
	}
}

// FuzzServing: whatever the answer is, it is read without a crash, and passes
// only with the byte of SERVING in it.
func FuzzServing(f *testing.F) {
	for _, s := range []string{frame("\x08\x01"), frame("\x08\x02"), frame(""), frame("\x12\x02hi\x08\x01"), "\x01\x00\x00\x00\x00", frame("\x08\xff\xff"), frame("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := serving(b); err == nil && (len(b) < 7 || !strings.Contains(string(b[5:]), "\x01")) {
			t.Errorf("passed on %q", b)
		}
	})
}
