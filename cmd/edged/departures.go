package main

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// departures are the nodes of this site, this one too, that an operator has
// ordered out of a prefix, or that do not serve it, by what they say of themselves.
// While it drains it keeps its share: the packets of flows that it has come in at the
// other nodes now, whose tables learn them by the ring that has chosen it. From then
// on it gets no new flows of the prefix's services while another can take them. From the drain timeout of a service on, after it has gone off the air,
// nothing is sent to it any more while another can take it, and it is told so: then
// it can stop serving.
//
// What a node has said last counts, however old it is, and over a restart of this
// one: who is cut off goes on serving what it is still sent, but who has stopped
// serving need not be heard to be left alone.
type departures map[place]departure

// place is a prefix at a node.
type place struct {
	node   edge.NodeID
	prefix netip.Prefix
}

// departure is how far it is.
type departure struct {
	// closed says that it gets no new flows: its drain time is over.
	closed bool
	// since is when it was seen to be off the air, by the clock of this node; zero:
	// it is not.
	since time.Time
	// over says that nothing is to follow it any more, though the drain timeout may
	// not have passed: it does not serve, or nothing comes to be sent on.
	over bool
	// unneeded says that this node is off the air itself: when the time is over it
	// needs nobody who serves in its place.
	unneeded bool
}

// ended says whether a service with this drain timeout sends it nothing more.
func (d departure) ended(now time.Time, drainTimeout time.Duration) bool {
	return d.over || !d.since.IsZero() && now.Sub(d.since) >= drainTimeout
}

// next takes in what the nodes say now. here says whether this node itself is off the
// air with a prefix, and whether nothing has come for it for a while: then nothing
// can be cut by sending nothing on.
func (was departures) next(self edge.Node, claims map[edge.NodeID][]edge.Claim, now time.Time, here func(netip.Prefix) (off, idle bool)) departures {
	out := departures{}
	for node, said := range claims {
		for _, c := range said {
			if !c.Drained && (!c.Unserved || node == self.ID) {
				continue
			}
			at := place{node, c.Prefix}
			before := was[at]
			drained := c.Rung.WantsOut() || c.Rung == edge.Withdrawn || c.Rung == edge.Withheld
			d := departure{closed: before.closed || drained || c.Unserved}
			if c.Unserved || c.Rung == edge.Withdrawn || c.Rung == edge.Withheld {
				d.since = past(before.since, now)
				if d.since.IsZero() {
					d.since = now
				}
				off, idle := here(c.Prefix)
				d.unneeded = off
				d.over = node != self.ID && (c.Unserved || c.Drained && (before.over || off && idle))
			}
			out[at] = d
		}
	}
	return out
}

// followDepartures takes in the claims of the nodes that this one sends packets to. Of one
// that has not been heard since this process began, what the one before it knew
// holds.
func (d *daemon) followDepartures(now time.Time, members []edge.MemberState) {
	self, was := d.config().Self(), d.departuresBefore()
	claims := map[edge.NodeID][]edge.Claim{self.ID: d.claims()}
	unheard := map[edge.NodeID]bool{}
	for _, m := range members {
		switch {
		case m.Site != self.Site && !d.layout().fellows[m.Node]:
		case m.Age < 0 || len(m.Report.Says) == 0:
			unheard[m.Node] = true
		default:
			claims[m.Node] = withUnknown(d.config(), m.Report.Says)
		}
	}
	next := was.next(self, claims, now, func(p netip.Prefix) (off, idle bool) {
		return d.loop.offSince(p, now) >= settleTime, d.meter.still(p, now)
	})
	for at, dep := range was {
		if unheard[at.node] {
			next[at] = dep
		}
	}
	d.draining.departures = next
	d.keepDepartures()
}

// withUnknown adds the prefixes of c that a node says nothing of: it has another
// configuration, and no table for them.
func withUnknown(c *edge.Config, says []edge.Claim) []edge.Claim {
	said := make(map[netip.Prefix]bool, len(says))
	for i := range says {
		said[says[i].Prefix] = true
	}
	out := slices.Clip(says)
	for i := range c.Fleet.Prefixes {
		if p := c.Fleet.Prefixes[i].Net; !said[p] {
			out = append(out, edge.Claim{Prefix: p, Unserved: true})
		}
	}
	return out
}

// departuresFile keeps the departures of other nodes.
const departuresFile = "departures.json"

// keptDeparture is a departure as it is on disk.
type keptDeparture struct {
	Node   edge.NodeID  `json:"node"`
	Prefix netip.Prefix `json:"prefix"`
	Closed bool         `json:"closed,omitempty"`
	Since  time.Time    `json:"since,omitzero"`
	Over   bool         `json:"over,omitempty"`
}

// departuresBefore are those of the turn before, in the first one those that an
// earlier process has kept.
func (d *daemon) departuresBefore() departures {
	if d.rest.recalled {
		return d.draining.departures
	}
	d.rest.recalled = true
	if err := readState(d.keeper.dir, departuresFile, "drained nodes", &d.rest.told); err != nil {
		d.log.Warn("which nodes are drained is not known until they tell", "err", err)
	}
	out := departures{}
	for _, k := range d.rest.told {
		out[place{k.Node, k.Prefix}] = departure{closed: k.Closed, since: k.Since, over: k.Over}
	}
	return out
}

// keepDepartures has those of the others remembered if they have changed.
func (d *daemon) keepDepartures() {
	kept := []keptDeparture{}
	for at, dep := range d.draining.departures {
		if at.node != d.config().Local.ID {
			kept = append(kept, keptDeparture{at.node, at.prefix, dep.closed, dep.since.Round(0), dep.over})
		}
	}
	slices.SortFunc(kept, func(a, b keptDeparture) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), a.Prefix.Compare(b.Prefix))
	})
	same := func(a, b keptDeparture) bool {
		return a.Node == b.Node && a.Prefix == b.Prefix && a.Closed == b.Closed && a.Since.Equal(b.Since) && a.Over == b.Over
	}
	if !slices.EqualFunc(kept, d.rest.told, same) {
		d.rest.told = kept
		d.keeper.keep(departuresFile, "which nodes are drained", kept)
	}
}

// spared are the places that this node's forwarder sends nothing more to. Until this
// process has filled the tables they may send to anybody.
func (d *daemon) spared() []edge.Spared {
	if len(d.draining.departures) == 0 || d.inherited || len(d.applied.Trusted) == 0 {
		return nil
	}
	used := map[place]bool{}
	for _, s := range d.applied.Services {
		p, _ := d.config().Fleet.PrefixOf(s.VIP.Addr())
		for _, b := range s.Backends {
			used[place{d.layout().nodes[b.Addr], p.Net}] = true
		}
	}
	var out []edge.Spared
	for at, dep := range d.draining.departures {
		if at.node != d.config().Local.ID && !dep.since.IsZero() && !used[at] {
			out = append(out, edge.Spared{Node: at.node, Prefix: at.prefix})
		}
	}
	slices.SortFunc(out, edge.Spared.Compare)
	return out
}

// withDepartures are the statuses as they are to be believed: a node that serves a
// prefix no more is down as a backend of its services, whatever its proxy
// answers. Else a site would count on it that has lost its last other node.
func (m draining) withDepartures(c *edge.Config, statuses []edge.Status, now time.Time) []edge.Status {
	if len(m.departures) == 0 {
		return statuses
	}
	down, nodes := map[edge.ProbeID]time.Time{}, nodesAt(c)
	for _, s := range c.Fleet.Services {
		p, _ := c.Fleet.PrefixOf(s.VIP.Addr())
		for _, t := range targets(c, s) {
			if dep := m.departures[place{nodes[t.addr], p.Net}]; dep.ended(now, s.DrainTimeout) && !t.local {
				down[t.probe] = dep.since
			}
		}
	}
	out := slices.Clone(statuses)
	for i := range out {
		if s := &out[i]; s.State.Alive() && !down[s.Probe].IsZero() {
			s.State, s.LastErr, s.LastErrAt = edge.Down, hasLeft, down[s.Probe]
		}
	}
	return out
}

// hasLeft is why a node is not used that is gone.
const hasLeft = "it is drained or does not serve the prefix, and nothing is sent to it any more"

// statuses are those of the probes, seen with the departures.
func (d *daemon) statuses() []edge.Status {
	return d.draining.withDepartures(d.config(), d.monitor.Statuses(), time.Now())
}
