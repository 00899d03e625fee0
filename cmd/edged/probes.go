package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/health"
)

// proxyCheck is how the other nodes of a site, and this one, are asked whether
// their proxy serves.
func proxyCheck(c *edge.Config, n edge.Node, addr netip.Addr) edge.Probe {
	p := c.Fleet.Health.NodeCheck
	p.URL = fmt.Sprintf("http://%s/healthz", netip.AddrPortFrom(addr, n.HealthPort))
	return p
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
		edge.ProbeBGP:       health.ProberFunc(d.probeBGP),
		edge.ProbeBFD:       health.ProberFunc(d.probeBFD),
	}
}

// probeForwarder fails too while the tables cannot be applied: the program runs,
// but on what is no longer so.
func (d *daemon) probeForwarder(context.Context, edge.Probe) error {
	if err := d.tableErr.Load(); err != nil {
		return *err
	}
	if err := d.fwd.Attached(); err != nil {
		return err
	}
	st, err := d.fwd.Stats()
	if err != nil {
		return fmt.Errorf("%w: read the forwarder's counters: %w", edge.ErrUnknown, err)
	}
	return d.counts.look(received(d.config().Local.Forwarder.Interfaces), st.Received)
}

// countProbe compares what the uplinks have received with what the program has
// seen. The probe that uses it never runs twice at once.
type countProbe struct {
	known           bool
	uplinks, packet uint64
}

// unseen is how many packets the program may miss between two looks: the two
// counters are not read in one instant.
const unseen = 1000

func (c *countProbe) look(uplinks, seen uint64) error {
	was := *c
	*c = countProbe{true, uplinks, seen}
	if !was.known || uplinks < was.uplinks || seen != was.packet || uplinks-was.uplinks < unseen {
		return nil
	}
	return fmt.Errorf("the uplinks have received %d packets, and the program has counted none of them", uplinks-was.uplinks)
}

// received sums the packets of the uplinks by the kernel's counters. One that
// cannot be read counts as silent: that it is there, Attached says.
func received(interfaces []string) (sum uint64) {
	for _, name := range interfaces {
		if b, err := os.ReadFile("/sys/class/net/" + name + "/statistics/rx_packets"); err == nil {
			n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
			sum += n
		}
	}
	return sum
}

// probeBGP counts the established sessions. What edgebgp said too long ago is not
// known any more.
func (d *daemon) probeBGP(_ context.Context, p edge.Probe) error {
	return d.probeSpeaker(p, "BGP sessions are established", func(s edge.PeerState) (bool, string) {
		return s.Session == "established", s.LastErr
	})
}

// probeBFD counts the BFD sessions that are up.
func (d *daemon) probeBFD(_ context.Context, p edge.Probe) error {
	return d.probeSpeaker(p, "BFD sessions are up", func(s edge.PeerState) (bool, string) {
		return bfdState(s) == "up", bfdError(s)
	})
}

func (d *daemon) probeSpeaker(p edge.Probe, what string, good func(edge.PeerState) (bool, string)) error {
	h := d.held.Load()
	if time.Since(h.at) > readBackLimit+p.Interval {
		return fmt.Errorf("%w: edgebgp has not said how its sessions are", edge.ErrUnknown)
	}
	up, of, why := 0, 0, ""
	for _, s := range h.state.Peers {
		if watched(h.state.Speaker, s.ID) {
			continue // it carries nothing of ours
		}
		of++
		if ok, err := good(s); ok {
			up++
		} else if err != "" {
			why = fmt.Sprintf("; %s: %s", s.ID, err)
		}
	}
	if up >= p.AtLeast {
		return nil
	}
	return fmt.Errorf("%d of %d %s, at least %d are needed%s", up, of, what, p.AtLeast, why)
}

// watched says whether the session with a peer is receive only.
func watched(s *edge.Speaker, id edge.PeerID) bool {
	return s != nil && slices.ContainsFunc(s.Peers, func(p edge.Peer) bool { return p.ID == id && p.Watch })
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
	if (*d.off.Load())[s.ID] {
		return fmt.Errorf("%w: service %s is drained", edge.ErrUnknown, s.ID)
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
