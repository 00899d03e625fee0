package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/health"
)

// proxyCheck is how the other nodes of a site, and this one, are asked whether
// their proxy serves.
func proxyCheck(n edge.Node, addr netip.Addr) edge.Probe {
	return edge.Probe{
		Kind: edge.ProbeHTTP, URL: fmt.Sprintf("http://%s/healthz", netip.AddrPortFrom(addr, n.HealthPort)),
		Interval: 500 * time.Millisecond, Timeout: 400 * time.Millisecond, Rise: 2, Fall: 2,
	}
}

// backendCheck fills the service's check in for one backend; a service without
// a check gives a probe without a kind, which is not run.
func backendCheck(s edge.Service, b edge.Backend) edge.Probe {
	p := s.Check
	port := p.Addr.Port()
	if port == 0 {
		port = s.VIP.Port()
	}
	at := netip.AddrPortFrom(b.Addr, port)
	switch p.Kind {
	case edge.ProbeTCP:
		p.Addr = at
	case edge.ProbeHTTP:
		p.URL = "http://" + at.String() + p.Path
	}
	return p
}

// allProbes are the configured probes and one per backend that has a check.
func allProbes(c *edge.Config) []edge.Probe {
	out := slices.Clone(c.Fleet.Health.Probes)
	for _, s := range c.Fleet.Services {
		for _, t := range targets(c, s) {
			if t.check.Kind != "" {
				out = append(out, t.check)
			}
		}
	}
	return out
}

// probers are the kinds that only edged can run, since they look at the
// forwarder, the proxy and the data path.
func (d *daemon) probers() map[edge.ProbeKind]health.Prober {
	return map[edge.ProbeKind]health.Prober{
		edge.ProbeForwarder: health.ProberFunc(d.probeForwarder),
		edge.ProbeRegions:   health.ProberFunc(d.probeRegions),
		edge.ProbeVIP:       health.ProberFunc(d.probeVIP),
	}
}

// probeForwarder fails too while the tables cannot be applied: the program runs,
// but on what is no longer so.
func (d *daemon) probeForwarder(context.Context, edge.Probe) error {
	if err := d.tableErr.Load(); err != nil {
		return *err
	}
	return d.fwd.Attached()
}

// probeRegions counts the regions that edgeproxy reaches. A proxy that does not
// answer is another probe's matter: here it is unknown.
func (d *daemon) probeRegions(_ context.Context, p edge.Probe) error {
	st, age, err := d.proxy.last()
	if err != nil || age > p.Interval+p.Timeout+2*time.Second {
		return fmt.Errorf("%w: edgeproxy has not said which regions it reaches", edge.ErrUnknown)
	}
	up := 0
	lastErr := ""
	for _, r := range st.Load.Regions {
		if r.Up > 0 {
			up++
		} else if r.LastErr != "" {
			lastErr = fmt.Sprintf("; %s: %s", r.Region, r.LastErr)
		}
	}
	if up < p.AtLeast {
		return fmt.Errorf("%d of %d regions can be reached, at least %d are needed%s", up, len(st.Load.Regions), p.AtLeast, lastErr)
	}
	return nil
}

// probeVIP asks a VIP from the probe's own network namespace, so that the
// request comes in through XDP as a client's does.
func (d *daemon) probeVIP(ctx context.Context, p edge.Probe) error {
	s, ok := d.service(p.Service)
	if !ok {
		return fmt.Errorf("%w: no service %q", edge.ErrUnknown, p.Service)
	}
	scheme := "http"
	if s.TLS {
		scheme = "https"
	}
	p.URL = fmt.Sprintf("%s://%s%s", scheme, s.VIP, p.Path)
	return health.HTTP{Dial: d.vantage.dial}.Probe(ctx, p)
}

func (d *daemon) service(id edge.ServiceID) (edge.Service, bool) {
	c := d.config()
	i := slices.IndexFunc(c.Fleet.Services, func(s edge.Service) bool { return s.ID == id })
	if i < 0 {
		return edge.Service{}, false
	}
	return c.Fleet.Services[i], true
}
