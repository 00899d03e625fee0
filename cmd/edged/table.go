package main

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/catchment-dev/edge"
)

// target is one backend of a service as this node uses it.
type target struct {
	id     edge.BackendID
	addr   netip.Addr
	weight int
	local  bool
	probe  edge.ProbeID
	check  edge.Probe
}

// targets returns the backends that this node uses for s, sorted by name: the
// nodes of its own site for a proxied service, else those of the configuration
// that belong to its site or to none. A backend of another site would drag
// every packet through the backbone.
func targets(c *edge.Config, s edge.Service) []target {
	self := c.Self()
	var out []target
	if s.Proxied {
		for _, n := range c.Fleet.Nodes {
			if n.Site != self.Site {
				continue
			}
			t := target{id: edge.BackendID(n.ID), addr: n.Addr(s.VIP.Addr()), weight: defaultWeight, local: n.ID == self.ID}
			t.check = proxyCheck(n, t.addr)
			out = append(out, t)
		}
	} else {
		for _, b := range s.Backends {
			if b.Site != "" && b.Site != self.Site {
				continue
			}
			t := target{id: b.ID, addr: b.Addr, weight: b.Weight, local: b.Addr == self.Addr4 || b.Addr == self.Addr6}
			t.check = backendCheck(s, b)
			out = append(out, t)
		}
	}
	for i := range out {
		out[i].probe = edge.ProbeID("backend/" + string(s.ID) + "/" + string(out[i].id))
		out[i].check.ID = out[i].probe
	}
	slices.SortFunc(out, func(a, b target) int { return cmp.Compare(a.id, b.id) })
	return out
}

// defaultWeight is the share of a node of a proxied service.
const defaultWeight = 100

// backendStates maps each backend's probe to its state. A backend that has no
// probe, or whose probe has not run, is unknown.
func backendStates(statuses []edge.Status) map[edge.ProbeID]edge.ProbeState {
	m := make(map[edge.ProbeID]edge.ProbeState, len(statuses))
	for _, s := range statuses {
		m[s.Probe] = s.State
	}
	return m
}

// eligible returns which targets may get new flows: those not down that have a
// weight; if there are none, the ones that are down and have a weight (a
// probe may be wrong, and a ring without backends serves nobody); and so on
// for those of weight 0.
func eligible(ts []target, states map[edge.ProbeID]edge.ProbeState) []target {
	up := func(t target) bool { return states[t.probe] != edge.Down }
	for _, want := range []func(target) bool{
		func(t target) bool { return up(t) && t.weight > 0 },
		func(t target) bool { return !up(t) && t.weight > 0 },
		up,
	} {
		if in := slices.Collect(filter(ts, want)); len(in) > 0 {
			return in
		}
	}
	return ts
}

func filter[T any](in []T, keep func(T) bool) func(yield func(T) bool) {
	return func(yield func(T) bool) {
		for _, v := range in {
			if keep(v) && !yield(v) {
				return
			}
		}
	}
}

// table is all that the forwarder needs, from the configuration and the state
// of the backends.
func table(c *edge.Config, seed [16]byte, statuses []edge.Status) edge.Table {
	self := c.Self()
	t := edge.Table{Source4: self.Addr4, Source6: self.Addr6, Seed: seed}
	for _, n := range c.Fleet.Nodes {
		for _, a := range []netip.Addr{n.Addr4, n.Addr6} {
			if a.IsValid() {
				t.Trusted = append(t.Trusted, a)
			}
		}
	}
	states := backendStates(statuses)
	for _, s := range c.Fleet.Services {
		t.Services = append(t.Services, tableService(c, s, states))
	}
	return t
}

func tableService(c *edge.Config, s edge.Service, states map[edge.ProbeID]edge.ProbeState) edge.TableService {
	ts := edge.TableService{ID: s.ID, VIP: s.VIP, Protocol: s.Protocol, Encap: s.Encap}
	for _, b := range eligible(targets(c, s), states) {
		// A ring of weights that are all 0 would be empty: they are all that is
		// left, so they share alike.
		ts.Backends = append(ts.Backends, edge.TableBackend{ID: b.id, Addr: b.addr, Weight: max(b.weight, 1), Local: b.local})
	}
	return ts
}

// readSeed derives the key of ring and flow hash from the fleet's secret.
func readSeed(path string) (seed [16]byte, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return seed, fmt.Errorf("read ring seed: %w", err)
	}
	if len(b) < 16 {
		return seed, fmt.Errorf("read ring seed: %s has %d bytes, at least 16 are needed", path, len(b))
	}
	sum := sha256.Sum256(b)
	copy(seed[:], sum[:])
	return seed, nil
}

// summaries are the services as status and console show them.
func summaries(c *edge.Config, statuses []edge.Status) []edge.ServiceSummary {
	states := backendStates(statuses)
	errs := map[edge.ProbeID]string{}
	for _, s := range statuses {
		errs[s.Probe] = s.LastErr
	}
	var out []edge.ServiceSummary
	for _, s := range c.Fleet.Services {
		p, _ := c.Fleet.PrefixOf(s.VIP.Addr())
		sum := edge.ServiceSummary{ID: s.ID, VIP: s.VIP, Protocol: s.Protocol, Prefix: p.Net}
		all := targets(c, s)
		in := eligible(all, states)
		for _, t := range all {
			b := edge.BackendSummary{ID: t.id, Addr: t.addr, Weight: t.weight, Local: t.local, State: states[t.probe]}
			b.InRing = slices.ContainsFunc(in, func(o target) bool { return o.id == t.id })
			b.Reason = ringReason(b, errs[t.probe])
			sum.Backends = append(sum.Backends, b)
		}
		out = append(out, sum)
	}
	return out
}

func ringReason(b edge.BackendSummary, lastErr string) edge.Reason {
	switch {
	case b.InRing && b.State == edge.Down:
		return edge.Reason("down, but no other backend is up: " + lastErr)
	case b.InRing:
		return ""
	case b.State == edge.Down:
		return edge.Reason("down: " + lastErr)
	case b.Weight == 0:
		return "weight 0"
	}
	return "others are preferred"
}
