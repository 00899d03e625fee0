package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"runtime/debug"
	"time"
)

// acceptLoop accepts until ln is closed. Any other error passes: no files
// left, a client that has gone already; it must not end the proxy.
func (s *Server) acceptLoop(ctx context.Context, at netip.AddrPort, ln *net.TCPListener, serve func(*net.TCPConn)) {
	pause := 5 * time.Millisecond
	for {
		c, err := ln.AcceptTCP()
		if err == nil {
			pause = 5 * time.Millisecond
			s.conns.Go(func() { serve(c) })
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		s.log.Error("accept", "vip", at, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

// serve serves one connection that came in on the address at.
func (s *Server) serve(hard, drain context.Context, at netip.AddrPort, c net.Conn) {
	s.open.Add(1)
	defer s.open.Add(-1)
	defer c.Close()
	defer func() {
		// One request must not be able to end all the others.
		if p := recover(); p != nil {
			s.panicked(p)
			abort(c)
		}
	}()
	gen := s.gen.Load()
	info := connInfo{client: addrPort(c.RemoteAddr()), vip: at, binding: gen.bindings[at], scheme: "http"}
	var k codec = h1{header: gen.proxy.HeaderTimeout, idle: gen.proxy.IdleTimeout, stall: s.stall}
	if info.tls {
		t, err := handshake(hard, c, gen)
		if err != nil {
			s.metrics.handshakes.Add(1)
			s.log.Debug("tls handshake", "client", info.client, "vip", at, "err", err)
			return
		}
		st := t.ConnectionState()
		if st.DidResume {
			s.metrics.resumed.Add(1)
		} else {
			s.metrics.full.Add(1)
		}
		info.scheme, info.sni, info.ver = "https", st.ServerName, tls.VersionName(st.Version)
		if st.NegotiatedProtocol == "h2" {
			k = h2{idle: gen.proxy.IdleTimeout, stall: s.stall, log: s.log, panicked: s.panicked}
		}
		c = t
	}
	k.Serve(hard, drain, c, func(ctx context.Context, r *Request) *Response { return s.handle(ctx, info, r) })
}

// panicked counts and logs a panic; it is called while that is recovered from.
func (s *Server) panicked(p any) {
	s.metrics.panics.Add(1)
	s.log.Error("panic while serving", "panic", p, "stack", string(debug.Stack()))
}

func handshake(ctx context.Context, c net.Conn, gen *generation) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, gen.proxy.HeaderTimeout)
	defer cancel()
	t := tls.Server(c, gen.tickets.tls)
	return t, t.HandshakeContext(ctx)
}

// tlsConfig serves all generations that have the same ticket keys, which it
// holds; certificates it takes from the generation of the moment.
func (s *Server) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1", "http/1.0"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return pickCertificate(s.gen.Load().certs, hello)
		},
	}
}
