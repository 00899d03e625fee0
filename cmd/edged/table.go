package main

import (
	"bytes"
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

// eligible returns which targets get new flows: the first set that is not empty
// of those with a weight that are up, not known yet, down (a probe may be wrong,
// and a ring without backends serves nobody), and then of those of weight 0. So
// a backend that is new gets nothing before its probe has passed, while others
// are up.
func eligible(ts []target, states map[edge.ProbeID]edge.ProbeState) []target {
	for _, weighted := range []bool{true, false} {
		for _, want := range []edge.ProbeState{edge.Up, edge.Unknown, edge.Down} {
			in := slices.DeleteFunc(slices.Clone(ts), func(t target) bool {
				return t.state(states) != want || (t.weight > 0) != weighted
			})
			if len(in) > 0 {
				return in
			}
		}
	}
	return nil
}

// state is that of the target's probe; one without a probe counts as up.
func (t target) state(states map[edge.ProbeID]edge.ProbeState) edge.ProbeState {
	if t.check.Kind == "" {
		return edge.Up
	}
	return states[t.probe]
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
	all := targets(c, s)
	in := eligible(all, states)
	for _, b := range all {
		entry := edge.TableBackend{ID: b.id, Addr: b.addr, Weight: max(b.weight, 1), Local: b.local}
		switch {
		case slices.ContainsFunc(in, func(o target) bool { return o.id == b.id }):
			// A ring of weights that are all 0 would be empty: if they are all
			// that is left, they share alike.
		case b.weight == 0 && b.state(states) != edge.Down:
			entry.Drain = true // keeps the flows it has
		default:
			continue
		}
		ts.Backends = append(ts.Backends, entry)
	}
	return ts
}

// readSeed derives the key of ring and flow hash from the fleet's secret. White
// space around it does not count: a newline that one box's editor added must not
// give it another ring.
func readSeed(path string) (seed [16]byte, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return seed, fmt.Errorf("read ring seed: %w", err)
	}
	b = bytes.TrimSpace(b)
	if len(b) < 16 || len(b) > 64 {
		return seed, fmt.Errorf("read ring seed: %s has %d characters, 16 to 64 are needed; make one with: openssl rand -hex 32", path, len(b))
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
			b := edge.BackendSummary{ID: t.id, Addr: t.addr, Weight: t.weight, Local: t.local, State: t.state(states)}
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
