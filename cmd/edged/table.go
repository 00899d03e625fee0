package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// target is one backend of a service as this node uses it.
type target struct {
	id       edge.BackendID
	addr     netip.Addr
	weight   int
	failover bool
	serverID string
	local    bool
	probe    edge.ProbeID
	check    edge.Probe
	// What its probe says; look fills it in.
	state   edge.ProbeState
	lastErr string
	// leaving says that it is on its way out of the prefix: see departures.
	leaving bool
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
			t.check = proxyCheck(c, n, t.addr)
			out = append(out, t)
		}
	} else {
		for _, b := range s.Backends {
			if b.Site != "" && b.Site != self.Site {
				continue
			}
			t := target{id: b.ID, addr: b.Addr, weight: b.Weight, failover: b.Failover, serverID: b.ServerID, local: isSelf(self, b.Addr)}
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

func isSelf(n edge.Node, a netip.Addr) bool { return a == n.Addr4 || a == n.Addr6 }

// view is one service as this node sees it now. The forwarder's table and the
// status are made of it, so that they cannot differ.
type view struct {
	service edge.Service
	targets []target
	gone    []target // nodes that have left the prefix: nothing is sent to them
	choice  edge.Choice
	alike   edge.Reason // why the weights of the checks do not count; empty: they do
	use     poolUse
	left    []leaver
	now     time.Time
}

// look works out who gets new flows of each service, from the configuration, the
// probes and what is remembered of the time before.
func look(c *edge.Config, statuses []edge.Status, m draining, now time.Time) []view {
	known := make(map[edge.ProbeID]edge.Status, len(statuses))
	for _, s := range statuses {
		known[s.Probe] = s
	}
	var nodes map[netip.Addr]edge.NodeID
	if len(m.departures) > 0 {
		nodes = nodesAt(c)
	}
	var out []view
	for _, s := range c.Fleet.Services {
		v := view{service: s, targets: targets(c, s), now: now}
		v.dismiss(c, m.departures, nodes, known)
		v.choose(known)
		v.use = m.pool(s.ID, v.choice, now)
		v.left = m.of(c.Self(), v)
		out = append(out, v)
	}
	return out
}

// choose takes in what the probes say and lets edge.Eligible choose. A backend
// that is not probed counts as up.
func (v *view) choose(known map[edge.ProbeID]edge.Status) {
	in, said := make([]edge.Candidate, len(v.targets)), make([]*int, len(v.targets))
	for i := range v.targets {
		t := &v.targets[i]
		s := known[t.probe]
		t.state, t.lastErr, said[i] = s.State, s.LastErr, s.Weight
		if t.leaving && t.lastErr == hasLeft { // to the health; who is still here serves
			t.state, t.lastErr = edge.Up, ""
		}
		if t.state == edge.Full { // alive: to shed load is what weights are for
			t.state = edge.Up
		}
		if t.check.Kind == "" {
			t.state = edge.Up
		}
		in[i] = edge.Candidate{ID: t.id, State: t.state, Weight: t.weight, Failover: t.failover}
	}
	v.yield(in)
	if v.service.WeightFromCheck {
		in, v.alike = edge.WeighByCheck(in, said)
		for i := range in {
			v.targets[i].weight = in[i].Weight
		}
	}
	v.choice = edge.Eligible(in, v.service.Failover)
}

// dismiss takes out the nodes that have left the prefix of the service, and notes
// who is about to. One whose time is over but that serves still is kept while this
// node is on the air and nobody is up who stays.
func (v *view) dismiss(c *edge.Config, all departures, nodes map[netip.Addr]edge.NodeID, known map[edge.ProbeID]edge.Status) {
	if len(all) == 0 {
		return
	}
	p, _ := c.Fleet.PrefixOf(v.service.VIP.Addr())
	stays := false
	for i := range v.targets {
		t := &v.targets[i]
		t.leaving = all[place{nodes[t.addr], p.Net}].closed
		up := t.check.Kind == "" || known[t.probe].State.Alive()
		stays = stays || up && !t.leaving && t.weight > 0
	}
	v.targets = slices.DeleteFunc(v.targets, func(t target) bool {
		d := all[place{nodes[t.addr], p.Net}]
		ended := (stays || d.unneeded) && d.ended(v.now, v.service.DrainTimeout)
		if !t.leaving || t.local || !d.over && !ended {
			return false
		}
		v.gone = append(v.gone, t)
		return true
	})
}

// yield takes their share from the nodes that are about to leave, if there is one
// up that stays: to be drained is better than to be down.
func (v *view) yield(in []edge.Candidate) {
	stays := func(c edge.Candidate) bool { return c.State == edge.Up && c.Weight > 0 }
	var out []int
	some := false
	for i, t := range v.targets {
		if t.leaving {
			out = append(out, i)
		} else {
			some = some || stays(in[i])
		}
	}
	for _, i := range out {
		if some {
			in[i].Weight, v.targets[i].weight = 0, 0
		}
	}
}

// unused says whether t is of the pool that new flows do not go to.
func (v view) unused(t target) bool {
	return v.service.Failover != nil && t.failover != (v.use.Pool == edge.PoolFailover)
}

// switchEnd is until when TCP flows may stay in the pool that a failover has
// left; zero if they may not.
func (v view) switchEnd() time.Time {
	if f := v.service.Failover; f == nil || !f.Drain {
		return time.Time{}
	}
	return v.use.Since.Add(v.service.DrainTimeout)
}

// keeps says which of the flows that target i has may follow it. In the ring all
// do, and with weight 0 all that there are. One that is down keeps those that the
// service's persistence says, one that has not been probed all: unknown changes
// nothing. What a failover has left keeps TCP until switchEnd.
func (v view) keeps(i int) (tcp, other bool) {
	t := v.targets[i]
	if v.choice.Shares[i] > 0 {
		return true, true
	}
	tcp, other = true, true
	if t.state == edge.Down {
		tcp, other = persists(v.service)
	}
	if v.unused(t) {
		tcp, other = tcp && v.now.Before(v.switchEnd()), false
	}
	return tcp, other
}

// persists says which flows stay on a backend that is down.
func persists(s edge.Service) (tcp, other bool) {
	switch s.Persistence {
	case edge.PersistNever:
		return false, false
	case edge.PersistAlways:
		return true, true
	}
	fiveTuple := s.Affinity == "" || s.Affinity == edge.AffinityNone || s.Affinity == edge.AffinityClientIPPortProto
	return s.Tracking != edge.PerSession || fiveTuple, false
}

// backend is what the forwarder is told of target i. A QUIC packet follows a
// server id to any backend that has one: it is not told that of a backend which
// UDP does not follow.
func (v view) backend(i int) edge.TableBackend {
	t := v.targets[i]
	b := edge.TableBackend{ID: t.id, Addr: t.addr, Weight: v.choice.Shares[i], Local: t.local}
	b.KeepTCP, b.KeepOther = v.keeps(i)
	if b.KeepOther {
		b.ServerID = t.serverID
	}
	return b
}

// table is all that the forwarder needs.
func table(c *edge.Config, seed [16]byte, views []view) edge.Table {
	self := c.Self()
	t := edge.Table{Source4: self.Addr4, Source6: self.Addr6, Seed: seed}
	for _, n := range c.Fleet.Nodes {
		for _, a := range []netip.Addr{n.Addr4, n.Addr6} {
			if a.IsValid() {
				t.Trusted = append(t.Trusted, a)
			}
		}
	}
	for _, v := range views {
		t.Services = append(t.Services, v.table(self))
	}
	return t
}

func (v view) table(self edge.Node) edge.TableService {
	s := v.service
	ts := edge.TableService{
		ID: s.ID, VIP: s.VIP, Protocol: s.Protocol, Encap: s.Encap, Affinity: s.Affinity, Tracking: s.Tracking,
		IdleTimeout: s.IdleTimeout, Pool: v.use.Pool, ClearOnSwitch: s.Failover != nil && !s.Failover.Drain,
		QUIC: s.QUIC, SYNLimit: s.SYNLimit,
	}
	for i := range v.targets {
		ts.Backends = append(ts.Backends, v.backend(i))
	}
	for _, l := range v.left {
		ts.Backends = append(ts.Backends, edge.TableBackend{ID: l.Backend, Addr: l.Addr, Local: isSelf(self, l.Addr), KeepTCP: true})
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
func summaries(c *edge.Config, views []view) []edge.ServiceSummary {
	var out []edge.ServiceSummary
	for _, v := range views {
		p, _ := c.Fleet.PrefixOf(v.service.VIP.Addr())
		sum := edge.ServiceSummary{
			ID: v.service.ID, VIP: v.service.VIP, Protocol: v.service.Protocol, Prefix: p.Net, Pool: v.use.Pool, Reason: v.choice.Reason,
		}
		if sum.Reason == "" {
			sum.Reason = v.alike
		} else if v.alike != "" {
			sum.Reason += "; " + v.alike
		}
		for i := range v.targets {
			sum.Backends = append(sum.Backends, v.summary(i))
		}
		for _, t := range v.gone {
			sum.Backends = append(sum.Backends, edge.BackendSummary{ID: t.id, Addr: t.addr, Weight: t.weight, State: edge.Down, Reason: hasLeft})
		}
		for _, l := range v.left {
			sum.Backends = append(sum.Backends, edge.BackendSummary{
				ID: l.Backend, Addr: l.Addr, Local: isSelf(c.Self(), l.Addr),
				DrainingUntil: l.Since.Add(v.service.DrainTimeout), Reason: "it has left the configuration",
			})
		}
		out = append(out, sum)
	}
	return out
}

func (v view) summary(i int) edge.BackendSummary {
	t := v.targets[i]
	b := edge.BackendSummary{
		ID: t.id, Addr: t.addr, Weight: t.weight, EffectiveWeight: v.choice.Shares[i], InRing: v.choice.Shares[i] > 0,
		Local: t.local, State: t.state, Reason: v.reason(i),
	}
	if v.service.Failover != nil && t.failover {
		b.Pool = edge.PoolFailover
	}
	if keeps, _ := v.keeps(i); keeps && v.unused(t) {
		b.DrainingUntil = v.switchEnd()
	}
	return b
}

// reason says why target i gets no new flows, or why it does all the same.
func (v view) reason(i int) edge.Reason {
	t, inRing := v.targets[i], v.choice.Shares[i] > 0
	switch {
	case inRing && t.state == edge.Down:
		return edge.Reason("down, but no other backend is up: " + t.lastErr)
	case inRing && t.leaving:
		return "it is being drained, but there is no better backend"
	case inRing && t.weight == 0:
		return "weight 0, but there is no better backend"
	case inRing:
		return ""
	case t.state == edge.Down:
		return edge.Reason("down: " + t.lastErr)
	case t.leaving && t.weight == 0:
		return "it is being drained"
	case t.weight == 0:
		return "weight 0"
	case v.unused(t) && t.failover:
		return "the primary pool is in use"
	case v.unused(t):
		return "the failover pool is in use"
	}
	return "others are preferred"
}
