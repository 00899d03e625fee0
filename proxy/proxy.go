// Package proxy terminates TLS and HTTP on the VIPs of the proxied services
// and has each request answered by an upstream.
//
// It owns the listeners, the certificates, the codecs behind their seam, the
// routes, the pools of upstream connections, the drain and the access log. It
// never chooses a region or an upstream (that is its Picker's), never measures
// or checks one, and never touches routes or interfaces of the box. It runs in
// edgeproxy.
package proxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge"
)

// Options are what New needs.
type Options struct {
	Config *edge.Config
	Picker Picker
	Log    *slog.Logger
	// Listeners are those that Listen returned for Config; the Server owns
	// them from now on.
	Listeners map[netip.AddrPort]*net.TCPListener
	// Stdout gets the access log where the configuration names no file.
	Stdout io.Writer
}

// Server is the proxy. Its methods may be called concurrently.
type Server struct {
	picker  Picker
	log     *slog.Logger
	stdout  io.Writer
	access  *accessLog
	pool    *pool
	metrics *metrics
	tls     *tls.Config
	gen     atomic.Pointer[generation]
	conns   sync.WaitGroup
	open    atomic.Int64
	ready   chan struct{}

	mu        sync.Mutex
	listeners map[netip.AddrPort]*net.TCPListener
	// start begins to accept on a listener; nil unless Run is running.
	start func(netip.AddrPort, *net.TCPListener)
}

// generation is what one configuration means; it is never changed.
type generation struct {
	hash     string
	proxy    edge.Proxy
	bindings map[netip.AddrPort]binding
	certs    []*tls.Certificate
}

// New reads the certificates and opens the access log. Nothing is accepted
// before Run; what connects until then waits in the listeners.
func New(o Options) (*Server, error) {
	gen, err := newGeneration(o.Config)
	if err != nil {
		return nil, err
	}
	out, err := openAccess(gen.proxy.AccessLog, o.Stdout)
	if err != nil {
		return nil, err
	}
	s := &Server{
		picker: o.Picker, log: o.Log, stdout: o.Stdout, listeners: maps.Clone(o.Listeners),
		access: newAccessLog(out, o.Log), pool: newPool(), ready: make(chan struct{}),
	}
	s.metrics = newMetrics(s)
	s.tls = s.tlsConfig()
	s.gen.Store(gen)
	return s, nil
}

func newGeneration(cfg *edge.Config) (*generation, error) {
	b, err := bindings(cfg)
	if err != nil {
		return nil, err
	}
	certs, err := loadCertificates(cfg.Fleet.Proxy.Certificates)
	if err != nil {
		return nil, err
	}
	for at, x := range b {
		if x.tls && len(certs) == 0 {
			return nil, fmt.Errorf("serve %s of service %s: it needs TLS, and no certificate is configured", at, x.service)
		}
	}
	return &generation{hash: cfg.Hash, proxy: cfg.Fleet.Proxy, bindings: b, certs: certs}, nil
}

// String implements task.Task.
func (s *Server) String() string { return "proxy" }

// Ready is closed once every listener accepts.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run serves until ctx ends, then drains: it accepts no more, lets what is in
// flight end within the drain timeout, breaks off the rest and returns nil.
func (s *Server) Run(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // outlives ctx by the drain
	hard, cut := context.WithCancel(life)
	drain, startDrain := context.WithCancel(life)
	var aux sync.WaitGroup
	aux.Go(func() { s.access.run(life) })
	aux.Go(func() { s.pool.run(life) })
	defer aux.Wait()
	defer end()
	defer cut()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-ctx.Done()
		s.closeListeners()
		return nil
	})
	s.startAll(func(at netip.AddrPort, ln *net.TCPListener) {
		g.Go(func() error {
			s.acceptLoop(ctx, at, ln, func(c *net.TCPConn) { s.serve(hard, drain, at, c) })
			return nil
		})
	})
	close(s.ready)
	err := g.Wait()
	startDrain()
	s.awaitConns(cut)
	return err
}

// awaitConns waits for the connections to end, and cuts them off when the
// drain timeout is over.
func (s *Server) awaitConns(cut func()) {
	done := make(chan struct{})
	go func() { // ends by the cut at the latest
		s.conns.Wait()
		close(done)
	}()
	limit := time.NewTimer(s.gen.Load().proxy.DrainTimeout)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		s.log.Warn("drain timeout is over, connections are cut", "connections", s.open.Load())
		cut()
		<-done
	}
}

func (s *Server) startAll(start func(netip.AddrPort, *net.TCPListener)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = start
	for at, ln := range s.listeners {
		start(at, ln)
	}
}

func (s *Server) closeListeners() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = nil
	for _, ln := range s.listeners {
		ln.Close()
	}
	clear(s.listeners)
}

// Reload goes over to cfg without dropping a connection: requests that begin
// from now on see its routes, handshakes its certificates. commit is called
// when nothing can fail any more. On an error everything stays as it was.
// Connections to a VIP that is gone go on until they end.
func (s *Server) Reload(cfg *edge.Config, commit func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	gen, err := newGeneration(cfg)
	if err != nil {
		return err
	}
	if s.start == nil {
		return fmt.Errorf("reload: the proxy does not run")
	}
	out, err := openAccess(gen.proxy.AccessLog, s.stdout)
	if err != nil {
		return err
	}
	old := maps.Clone(s.listeners)
	now, err := Listen(cfg, old) // leaves in old what is not wanted any more
	if err != nil {
		closeFile(out)
		return fmt.Errorf("%w (a process without the right to bind it needs a restart)", err)
	}
	commit()
	s.gen.Store(gen)
	s.access.redirect(out)
	before := s.listeners
	s.listeners = now
	for at, ln := range now {
		if _, ok := before[at]; !ok {
			s.start(at, ln)
		}
	}
	for at, ln := range old {
		s.log.Info("listener closed", "vip", at)
		ln.Close()
	}
	return nil
}

// State returns what the proxy knows of itself: all but the process and the
// load.
func (s *Server) State() edge.ProxyState {
	st := edge.ProxyState{
		ConfigHash: s.gen.Load().hash, Connections: int(s.open.Load()),
		Requests: s.metrics.requests(), Responses: s.metrics.classes(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range slices.SortedFunc(maps.Keys(s.listeners), netip.AddrPort.Compare) {
		st.Listeners = append(st.Listeners, at.String())
	}
	return st
}
