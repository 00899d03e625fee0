package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/image/firewall"
)

// explain says why things are as they are. what is a prefix, a VIP (an address,
// with or without a port), or a flow: see parseFlow.
func (d *daemon) explain(what string) (edge.Explanation, error) {
	what = strings.TrimSpace(what)
	st := d.Status()
	if strings.ContainsAny(what, " \t") {
		return explainFlow(d.fwd, what, func(f edge.Flow) string { return hostFirewall(d.config(), firewall.Applied, f) })
	}
	if p, err := netip.ParsePrefix(what); err == nil {
		return explainPrefix(d.config(), st, p.Masked())
	}
	if a, err := netip.ParseAddr(what); err == nil {
		return explainVIP(d.config(), st, what, netip.AddrPortFrom(a, 0))
	}
	if a, err := netip.ParseAddrPort(what); err == nil {
		return explainVIP(d.config(), st, what, a)
	}
	return edge.Explanation{}, fmt.Errorf("%q is not a prefix (198.51.100.0/24), a VIP (198.51.100.10 or 198.51.100.10:443) or a flow (tcp 192.0.2.1:40000 198.51.100.10:443)", what)
}

func explainVIP(c *edge.Config, st edge.SystemStatus, what string, vip netip.AddrPort) (edge.Explanation, error) {
	e := edge.Explanation{What: what, Kind: "vip"}
	var prefix netip.Prefix
	for _, s := range st.Services {
		if s.VIP.Addr() != vip.Addr() || vip.Port() != 0 && s.VIP.Port() != 0 && vip.Port() != s.VIP.Port() {
			continue
		}
		prefix = s.Prefix
		e.Lines = append(e.Lines, sentence(fmt.Sprintf("service %s: %s in %s", s.ID, edge.VIPText(s.VIP, s.Protocol), s.Prefix), s.Reason))
		for _, b := range s.Backends {
			e.Lines = append(e.Lines, "  "+backendLine(b))
		}
	}
	if len(e.Lines) == 0 {
		return e, fmt.Errorf("%s is not the VIP of a service: the forwarder passes its packets to the stack untouched", what)
	}
	of, err := explainPrefix(c, st, prefix)
	if err != nil {
		return e, err
	}
	e.Lines = append(e.Lines, of.Lines...)
	return e, nil
}

func backendLine(b edge.BackendSummary) string {
	where := b.Addr.String()
	if b.Local {
		where = "this box"
	}
	ring := "in the ring"
	switch {
	case !b.InRing:
		ring = "not in the ring"
	case b.EffectiveWeight != b.Weight:
		ring = fmt.Sprintf("in the ring with weight %d", b.EffectiveWeight)
	}
	kind := "backend"
	if b.Pool == edge.PoolFailover {
		kind = "failover backend"
	}
	line := sentence(fmt.Sprintf("%s %s (%s, weight %d) is %s, %s", kind, b.ID, where, b.Weight, b.State, ring), b.Reason)
	if !b.DrainingUntil.IsZero() {
		line += "; TCP flows that it has follow it until " + clock(b.DrainingUntil)
	}
	return line
}

func explainPrefix(c *edge.Config, st edge.SystemStatus, p netip.Prefix) (edge.Explanation, error) {
	e := edge.Explanation{What: p.String(), Kind: "prefix"}
	i := slices.IndexFunc(st.Decisions, func(d edge.Decision) bool { return d.Prefix == p })
	if i < 0 {
		if has(c.Fleet.Prefixes, p) {
			e.Lines = []string{p.String() + " is withheld: edgebgp has not yet said what it announces"}
			return e, nil
		}
		return e, fmt.Errorf("%s is not a prefix of the configuration", p)
	}
	d := st.Decisions[i]
	e.Lines = append(e.Lines, sentence(fmt.Sprintf("%s is %s since %s", p, d.Rung, clock(d.Since)), d.Reason))
	for _, h := range st.Conditions {
		if h.Prefix == p {
			e.Lines = append(e.Lines, sentence("health is "+h.Health.String(), h.Reason))
		}
	}
	if permit, asked := st.Guard.Asking[p]; asked && d.Rung.WantsOut() {
		e.Lines = append(e.Lines, permitLine(permit))
	}
	e.Lines = append(e.Lines, peerLines(st, p)...)
	return explainFleet(e, st, p), nil
}

func permitLine(p edge.Permit) string {
	if p.OK {
		return fmt.Sprintf("the guard permits leaving: %v have promised to stay, %d needed", p.Promised, p.Needed)
	}
	return sentence(fmt.Sprintf("the guard does not permit leaving: %d of %d sites have promised to stay", len(p.Promised), p.Needed), p.Reason)
}

func peerLines(st edge.SystemStatus, p netip.Prefix) []string {
	var out []string
	for _, peer := range st.Speaker.Peers {
		line := fmt.Sprintf("peer %s (%s) holds nothing of it", peer.ID, peer.Session)
		for _, h := range peer.Held {
			if h.Net == p {
				line = fmt.Sprintf("peer %s holds it: next hop %s, prepend %d, MED %d, communities %v", peer.ID, h.NextHop, h.Prepend, h.MED, h.Communities)
			}
		}
		out = append(out, line)
	}
	return out
}

func explainFleet(e edge.Explanation, st edge.SystemStatus, p netip.Prefix) edge.Explanation {
	for _, b := range st.Guard.Bound {
		if b.Prefix == p {
			e.Lines = append(e.Lines, fmt.Sprintf("this node has promised %s to stay until %s", b.To, clock(b.Until)))
		}
	}
	for _, m := range st.Guard.Members {
		if m.Node == st.Node {
			continue
		}
		if m.Age < 0 {
			e.Lines = append(e.Lines, fmt.Sprintf("node %s (site %s) has never been heard of", m.Node, m.Site))
			continue
		}
		for _, cl := range m.Report.Says {
			if cl.Prefix == p {
				e.Lines = append(e.Lines, sentence(fmt.Sprintf("node %s (site %s) said %.1f s ago: %s, announcing: %t", m.Node, m.Site, m.Age.Seconds(), cl.Rung, cl.Announcing), cl.Reason))
			}
		}
	}
	return e
}

// clock is how a time of day is written.
func clock(t time.Time) string { return t.UTC().Format("15:04:05 MST") }

func sentence(s string, why edge.Reason) string {
	if why == "" {
		return s
	}
	return s + ": " + string(why)
}
