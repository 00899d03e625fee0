package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/catchment-dev/edge"
)

// Reload is another configuration.
type Reload struct {
	Config *edge.Config
	// Keep are services that may not be in Config any more but are still
	// announced: those that are proxied, and whose VIP and protocol no service
	// of Config has, are served as if they were in it. While one of them has
	// TLS, the certificates that serve now go on serving names for which Config
	// has none. The next Reload has to name them again.
	Keep []edge.Service
	// Commit is called when nothing can fail any more; nil: nothing is.
	Commit func()
}

// config returns the configuration with the kept services in it, and whether
// one of those has TLS.
func (r Reload) config() (cfg *edge.Config, tls bool) {
	c := *r.Config
	c.Fleet.Services = slices.Clone(c.Fleet.Services)
	for _, k := range r.Keep {
		same := func(s edge.Service) bool { return s.VIP == k.VIP && s.Protocol == k.Protocol }
		if k.Proxied && !slices.ContainsFunc(c.Fleet.Services, same) {
			c.Fleet.Services = append(c.Fleet.Services, k)
			tls = tls || k.TLS
		}
	}
	return &c, tls
}

// Reload goes over to another configuration without dropping a connection:
// requests that begin from now on see its routes, handshakes its certificates and
// its ticket keys.
// On an error everything stays as it was. Connections to a VIP that is gone go
// on until they end.
func (s *Server) Reload(r Reload) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg, keepCerts := r.config()
	before := s.gen.Load()
	gen, err := newGeneration(cfg, before, keepCerts)
	if err != nil {
		return err
	}
	keys, err := ticketKeysOf(cfg)
	if err != nil {
		return err
	}
	gen.tickets = s.ticketsOf(keys, before.tickets)
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
	if r.Commit != nil {
		r.Commit()
	}
	s.gen.Store(gen)
	s.access.redirect(out)
	were := s.listeners
	s.listeners = now
	for at, ln := range now {
		if _, ok := were[at]; !ok {
			s.start(at, ln)
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(old), netip.AddrPort.Compare) {
		s.log.Info("listener closed", "vip", at)
		old[at].Close()
	}
	return nil
}
