// Package proxy terminates TLS and HTTP on the VIPs of the proxied services
// and has each request answered by an upstream.
//
// It owns the listeners, the certificates, the codecs behind their seam, the
// routes, the pools of upstream connections, the drain and the access log. It
// never chooses a region or an upstream (that is its Picker's), never measures
// or checks one, and never touches routes or interfaces of the box. It runs in
// edgeproxy.
//
// Nothing that stands still hangs for ever. What waits, and what ends it:
//
//	TLS handshake; a connection's first request      proxy.header_timeout
//	head of a request, from its first byte           proxy.header_timeout (HTTP/1)
//	connection between two requests                  proxy.idle_timeout
//	HTTP/2 preface; client that is silent            10 s (x/net); pingAfter + pingWait
//	body that the client does not go on sending      bodyStall
//	answer that the client does not go on reading    bodyStall
//	connect to an upstream                           dialTimeout, at most maxChoices times
//	Expect that the upstream does not answer         continueWait, then the body goes
//	request that the upstream does not read          proxy.upstream_timeout (head), bodyStall
//	head of the answer, from the request's last byte proxy.upstream_timeout; 1xx do not extend it
//	body that the upstream does not go on sending    bodyStall
//	rest of a request when the answer is out         lingerTime, lingerBytes
//	connections when the process ends                proxy.drain_timeout, then they are cut
//
// bodyStall runs anew with every read and write that gets something done: a
// body that moves, however slowly, may take as long as it likes, and as long as
// a request is still being sent its answer has no limit.
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
	stall   time.Duration // bodyStall
	metrics *metrics
	gen     atomic.Pointer[generation]
	conns   sync.WaitGroup
	open    atomic.Int64
	ready   chan struct{}

	mu        sync.Mutex
	listeners map[netip.AddrPort]*net.TCPListener
	// start begins to accept on a listener; nil unless Run is running.
	start func(netip.AddrPort, *net.TCPListener)
}

// generation is what one configuration means; it is never changed once it
// serves.
type generation struct {
	hash  string
	proxy edge.Proxy
	// bindings are those of the configuration, and those that earlier ones had
	// on addresses that are not served any more: connections that were accepted
	// there may still have to begin.
	bindings map[netip.AddrPort]binding
	certs    []*tls.Certificate
	tickets  *tickets
}

// inherit adds what only before knows: what was served on addresses that are
// gone, and, if certs says so, its certificates, behind the new ones.
func (g *generation) inherit(before *generation, certs bool) {
	for at, b := range before.bindings {
		if _, ok := g.bindings[at]; !ok {
			g.bindings[at] = b
		}
	}
	for _, old := range before.certs {
		same := func(c *tls.Certificate) bool { return c.Leaf.Equal(old.Leaf) }
		if certs && !slices.ContainsFunc(g.certs, same) {
			g.certs = append(g.certs, old)
		}
	}
}

// New reads the certificates and the ticket keys and opens the access log. Nothing
// is accepted before Run; what connects until then waits in the listeners.
//
// Ticket keys that cannot be used do not keep a proxy from starting: without them
// clients that come back do a full handshake, without the proxy nothing is served.
// State tells, so that it is an alarm.
func New(o Options) (*Server, error) {
	gen, err := newGeneration(o.Config, nil, false)
	if err != nil {
		return nil, err
	}
	keys, keysErr := ticketKeysOf(o.Config)
	if keysErr != nil {
		o.Log.Error("the ticket keys of the fleet are not in use", "err", keysErr)
	}
	out, err := openAccess(gen.proxy.AccessLog, o.Stdout)
	if err != nil {
		return nil, err
	}
	s := &Server{
		picker: o.Picker, log: o.Log, stdout: o.Stdout, listeners: maps.Clone(o.Listeners),
		access: newAccessLog(out, o.Log), pool: newPool(), stall: bodyStall, ready: make(chan struct{}),
	}
	s.metrics = newMetrics(s)
	gen.tickets = s.ticketsOf(keys, nil)
	gen.tickets.err = keysErr
	s.gen.Store(gen)
	return s, nil
}

// newGeneration works out what cfg means, but for the ticket keys. before is the
// generation that serves now; nil: none.
func newGeneration(cfg *edge.Config, before *generation, keepCerts bool) (*generation, error) {
	b, err := bindings(cfg)
	if err != nil {
		return nil, err
	}
	certs, err := loadCertificates(cfg.Fleet.Proxy.Certificates)
	if err != nil {
		return nil, err
	}
	g := &generation{hash: cfg.Hash, proxy: cfg.Fleet.Proxy, bindings: b, certs: certs}
	if before != nil {
		g.inherit(before, keepCerts)
	}
	for _, s := range cfg.Fleet.Services {
		if s.Proxied && s.TLS && len(g.certs) == 0 {
			return nil, fmt.Errorf("serve %s of service %s: it needs TLS, and no certificate is configured", s.VIP, s.ID)
		}
	}
	return g, nil
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

// State returns what the proxy knows of itself: all but the process and the
// load.
func (s *Server) State() edge.ProxyState {
	gen := s.gen.Load()
	st := edge.ProxyState{
		ConfigHash: gen.hash, TicketKeys: gen.tickets.names(), Connections: int(s.open.Load()),
		Requests: s.metrics.requests(), Responses: s.metrics.classes(),
	}
	if err := gen.tickets.err; err != nil {
		st.TicketErr = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range slices.SortedFunc(maps.Keys(s.listeners), netip.AddrPort.Compare) {
		st.Listeners = append(st.Listeners, at.String())
	}
	return st
}
