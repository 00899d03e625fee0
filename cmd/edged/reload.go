package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// reload reads the configuration again and applies it: parse whole, compare,
// then in an order that never misdirects. On any error the running generation
// stays. It runs in the control loop.
// blocked is the blocklist of that configuration, read before: of a large one
// that takes longer than the loop may.
func (d *daemon) reload(ctx context.Context, blocked blocklist) ([]string, error) {
	changes, err := d.tryReload(ctx, blocked)
	if err != nil {
		d.configErr = err.Error()
		return nil, err
	}
	d.configErr = ""
	return changes, nil
}

// prepareReload does what the control loop has no time for: it reads the blocklist,
// and has a longer lease of promises on disk before the first of them. What is wrong
// with the configuration itself is for the reload to tell.
func (d *daemon) prepareReload(ctx context.Context) (blocklist, error) {
	c, err := edge.Load(d.path)
	if err != nil {
		return blocklist{}, nil
	}
	if err := d.leases.cover(ctx, c.Fleet.Guard.PromiseLease); err != nil {
		return blocklist{}, err
	}
	return d.blocker.read(c.Local.Forwarder.Blocklist)
}

func (d *daemon) tryReload(ctx context.Context, blocked blocklist) ([]string, error) {
	old := d.config()
	parsed, err := edge.Load(d.path)
	if err != nil {
		return nil, err
	}
	if err := d.mayReload(ctx, old, parsed); err != nil {
		return nil, err
	}
	keys, err := readGuardKeys(parsed)
	if err != nil {
		return nil, fmt.Errorf("%w; nothing was applied", err)
	}
	if blocked.path != parsed.Local.Forwarder.Blocklist || !d.leases.covers(parsed.Fleet.Guard.PromiseLease) {
		return nil, errors.New("the configuration was changed while it was read; nothing was applied: reload again")
	}
	leaves := carryOver(parsed, old, d.onAirNow())
	next := leaves.with(parsed)
	statuses := d.statuses()
	proxy, _, _ := d.proxy.last()
	// Adding goes maps, then probes, then the announcement. The forwarder
	// refuses a table whole, so nothing has happened yet if it does.
	if err := d.tryApply(ctx, next, leaves, statuses); err != nil {
		d.appliedAt = time.Time{} // has the next turn apply the old table again
		return nil, errors.Join(err, tidyHost(next, d.served(old), d.guards()...))
	}
	d.blocker.want(blocked)
	d.base, d.leaving = parsed, leaves
	changes := append(edge.Diff(old, parsed), d.keys.diff(keys)...)
	now, _, _ := d.proxy.last()
	changes = append(changes, ticketDiff(proxy.TicketKeys, now.TicketKeys)...)
	d.keys = keys
	d.adoptConfig(next, statuses)
	d.hostErr = tidyHost(old, d.served(next), d.guards()...)
	d.log.Info("configuration applied", "generation", d.generation)
	return changes, nil
}

func (d *daemon) tryApply(ctx context.Context, next *edge.Config, leaves leaving, statuses []edge.Status) error {
	if err := prepareHost(d.served(next), d.guards()...); err != nil {
		return fmt.Errorf("prepare host: %w", err)
	}
	// All that can be refused is asked before the first packet meets the table.
	t, _ := d.plan(next, statuses)
	if err := d.fwd.Check(t); err != nil {
		return err
	}
	if len(d.rest.resting) > 0 { // those that rest must fit in again
		if err := d.fwd.Check(table(next, d.seed, look(next, statuses, d.draining, time.Now()))); err != nil {
			return err
		}
	}
	if err := d.reloadProxy(ctx, next, leaves); err != nil {
		return err
	}
	if err := d.fwd.Apply(ctx, t); err != nil {
		return fmt.Errorf("apply table: %w", err)
	}
	return nil
}

// reloadProxy has edgeproxy read the configuration, if a service needs it: a box
// of L4 services alone may not run one. One that hangs must not hold up the turn.
func (d *daemon) reloadProxy(ctx context.Context, next *edge.Config, leaves leaving) error {
	if !needsProxy(d.config()) && !needsProxy(next) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, next.Local.Speaker.Lease/2)
	defer cancel()
	return d.proxy.reload(ctx, leaves.services)
}

// ticketDiff says which ticket keys edgeproxy had and has, by their names. It alone
// reads that file: edged may not.
func ticketDiff(was, now []string) []string {
	if slices.Equal(was, now) {
		return nil
	}
	names := func(keys []string) string { return cmp.Or(strings.Join(keys, ", "), "of its own") }
	return []string{fmt.Sprintf("content of fleet.proxy.ticket_key_file: keys %s -> %s", names(was), names(now))}
}

// needsProxy says whether any service is terminated by edgeproxy.
func needsProxy(c *edge.Config) bool {
	return slices.ContainsFunc(c.Fleet.Services, func(s edge.Service) bool { return s.Proxied })
}

// mayReload refuses what a running edged can't change.
func (d *daemon) mayReload(ctx context.Context, old, parsed *edge.Config) error {
	if !d.loop.adopted {
		return errors.New("edgebgp has not yet said what it announces; nothing was applied")
	}
	if d.inherited {
		return errors.New("edged has just been started, and its first round of probes is not over; nothing was applied: try again in a moment")
	}
	effort := edge.EffortOf(old, parsed)
	if effort.Edged != "" {
		return fmt.Errorf("%s has changed, which needs a restart of edged (nothing is withdrawn by it); nothing was applied", effort.Edged)
	}
	if effort.DataPlane != "" {
		return fmt.Errorf("node.forwarder.flows, half_flows or node.bpf_dir has changed, which needs the data plane loaded anew: edgectl drain, wait until it is withdrawn, stop edged, remove %s, start edged, edgectl undrain; nothing was applied", old.Local.BPFDir)
	}
	if old.Local.DrainFile != parsed.Local.DrainFile && len(d.drains.byFile) > 0 {
		return fmt.Errorf("node.drain_file has changed, and %s orders drains, which would end with it: remove it first, or restart edged if it cannot be reached; nothing was applied", old.Local.DrainFile)
	}
	speaker := ordered(parsed.Local.Speaker)
	d.loop.bgp.Lease = speaker.Lease // not a matter of the sessions
	if why := d.loop.mayChange(ctx, speaker); why != "" {
		return fmt.Errorf("node.bgp has changed, and %s: edgectl drain, wait until it is withdrawn, reload, edgectl undrain; nothing was applied", why)
	}
	return nil
}

func (d *daemon) adoptConfig(next *edge.Config, statuses []edge.Status) {
	t, m := d.plan(next, statuses)
	d.keepDraining(m)
	d.cfg.Store(next)
	d.generation++
	d.applied, d.appliedAt = t, time.Now()
	d.tableErr.Store(nil)
	d.updateGuard(next)
	d.monitor.Set(allProbes(next))
	d.loop.forget(next)
	d.proxy.keep(d.leaving.services)
	d.remember()
}

// carryFromSpeaker is carryOver for a fresh start: edgebgp announces what an
// earlier edged, with an earlier configuration, told it to.
func (d *daemon) carryFromSpeaker() {
	before := d.base
	if d.previous != nil {
		before = d.previous
	}
	d.leaving = carryOver(d.base, before, d.loop.state.Announcements)
	next := d.leaving.with(d.base)
	d.keepDraining(d.leave(everything(before), next, time.Now()))
	if len(d.leaving.prefixes) > 0 {
		d.cfg.Store(next)
		d.updateGuard(next)
		d.monitor.Set(allProbes(next))
		d.proxy.keep(d.leaving.services)
		d.hostErr = prepareHost(d.served(next), d.guards()...)
	}
	d.hostErr = errors.Join(d.hostErr, tidyHost(before, d.served(next), d.guards()...))
	d.remember()
}

// drainOf is the order that concerns p: an operator's, or that the
// configuration has dropped it.
func (d *daemon) drainOf(p netip.Prefix) *edge.Drain {
	if has(d.leaving.prefixes, p) {
		return &edge.Drain{Prefix: p, Reason: "it is no longer in the configuration"}
	}
	return d.drains.of(p, func(id edge.ServiceID) netip.Addr {
		s, _ := d.service(id)
		return s.VIP.Addr()
	})
}

// departed forgets a prefix that has left and has been gone for long enough
// that the routers send nothing any more: removing goes withdraw, wait, maps.
func (d *daemon) departed(now time.Time, members []edge.MemberState) {
	gone := func(p edge.Prefix) bool {
		return d.mayDepart(p.Net, now, members)
	}
	if !slices.ContainsFunc(d.leaving.prefixes, gone) {
		return
	}
	before := d.config()
	d.leaving.prefixes = slices.DeleteFunc(d.leaving.prefixes, gone)
	d.leaving.services = slices.DeleteFunc(d.leaving.services, func(s edge.Service) bool {
		at, _ := before.Fleet.PrefixOf(s.VIP.Addr())
		return !has(d.leaving.prefixes, at.Net)
	})
	next := d.leaving.with(d.base)
	d.adoptConfig(next, d.statuses())
	d.appliedAt = time.Time{} // has the next turn apply it
	d.hostErr = tidyHost(before, d.served(next), d.guards()...)
}

// mayDepart says whether nothing comes any more for a prefix that has left: the
// drain timeouts of its services end the wait, since who has taken them out of the
// configuration has said that they go.
func (d *daemon) mayDepart(p netip.Prefix, now time.Time, members []edge.MemberState) bool {
	off, services := d.loop.offSince(p, now), d.servicesOf(p)
	if off < settleTime || len(services) == 0 {
		return off >= settleTime
	}
	longest := settleTime
	for _, s := range services {
		longest = max(longest, s.DrainTimeout)
	}
	return off >= longest || d.meter.still(p, now) && d.used(p, now, members) == ""
}

// settleTime is how long the services of a withdrawn prefix are still served.
const settleTime = 5 * time.Second

// onAirNow are the prefixes on the air. The configuration in force has them all:
// what an earlier one announced is carried over.
func (d *daemon) onAirNow() []edge.Announcement {
	var out []edge.Announcement
	for _, p := range d.config().Fleet.Prefixes {
		if d.loop.onAir[p.Net] {
			out = append(out, edge.Announcement{Net: p.Net, NextHop: d.config().Self().Addr(p.Net.Addr()), Normal: p.Announce, Degraded: p.Degraded})
		}
	}
	return out
}

// leaving is what the configuration has dropped while it was still announced:
// the prefixes and their services stay until the guard permits the withdrawal,
// as with any other.
type leaving struct {
	prefixes []edge.Prefix
	services []edge.Service
	// hops are addresses that this node is to have no more, and that are the next hops
	// of what it announces still.
	hops []netip.Addr
}

// carryOver finds what next drops of what is on the air. A prefix that no
// configuration in memory knows (edged was restarted with a new file) gets the
// highest floor of the fleet.
func carryOver(next, old *edge.Config, onAir []edge.Announcement) leaving {
	var out leaving
	for _, a := range onAir {
		// edgebgp refuses an intent whole of which one next hop is of the other family.
		if v4 := a.Net.Addr().Is4(); next.Self().Addr(a.Net.Addr()).Is4() != v4 && a.NextHop.IsValid() && a.NextHop.Is4() == v4 {
			out.hops = append(out.hops, a.NextHop)
		}
		if has(next.Fleet.Prefixes, a.Net) {
			continue
		}
		p := edge.Prefix{Net: a.Net, MinSites: highestFloor(next), Announce: a.Normal, Degraded: a.Degraded}
		if i := slices.IndexFunc(old.Fleet.Prefixes, func(o edge.Prefix) bool { return o.Net == a.Net }); i >= 0 {
			p = old.Fleet.Prefixes[i]
		}
		p.Needs = nil // the probes may be gone from the configuration as well
		out.prefixes = append(out.prefixes, p)
		out.services = append(out.services, orphans(old, next, a.Net)...)
	}
	return out
}

// with returns the configuration that is in force while l is leaving.
func (l leaving) with(c *edge.Config) *edge.Config {
	out := *c
	out.Fleet.Prefixes = append(slices.Clone(c.Fleet.Prefixes), l.prefixes...)
	out.Fleet.Services = append(slices.Clone(c.Fleet.Services), l.services...)
	if len(l.hops) == 0 {
		return &out
	}
	out.Fleet.Nodes = slices.Clone(c.Fleet.Nodes)
	i := slices.IndexFunc(out.Fleet.Nodes, func(n edge.Node) bool { return n.ID == c.Local.ID })
	for _, hop := range l.hops {
		if hop.Is4() {
			out.Fleet.Nodes[i].Addr4 = hop
		} else {
			out.Fleet.Nodes[i].Addr6 = hop
		}
	}
	return &out
}

func orphans(old, next *edge.Config, p netip.Prefix) []edge.Service {
	var out []edge.Service
	for _, s := range old.Fleet.Services {
		at, ok := old.Fleet.PrefixOf(s.VIP.Addr())
		clash := slices.ContainsFunc(next.Fleet.Services, func(o edge.Service) bool {
			return o.ID == s.ID || o.VIP == s.VIP && o.Protocol == s.Protocol
		})
		if ok && at.Net == p && !clash {
			s.Needs = nil
			out = append(out, s)
		}
	}
	return out
}

// highestFloor is the floor of a prefix of which nothing is known any more; a
// fleet of one site has none.
func highestFloor(c *edge.Config) int {
	k := min(1, len(c.Fleet.Sites)-1)
	for _, p := range c.Fleet.Prefixes {
		k = max(k, p.MinSites)
	}
	return k
}

func has(ps []edge.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(ps, func(o edge.Prefix) bool { return o.Net == p })
}
