package main

import (
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard"
	"github.com/catchment-dev/edge/health"
)

// freshOf is how old the word of a node may be to count.
func freshOf(c *edge.Config) time.Duration {
	return guard.Fresh(len(c.Fleet.Nodes), c.Fleet.Guard.PromiseLease)
}

// sharedBy says how the other sites see a shared dependency: by those nodes only
// that are alive and whose word is known to stand still. A site counts
// as down if a node of it says so, as up if one says that and none the contrary.
func (d *daemon) sharedBy(members []edge.MemberState) func(edge.ProbeID) health.Others {
	c, fresh := d.config(), freshOf(d.config())
	return func(id edge.ProbeID) health.Others {
		o := othersView(c, members, id, fresh)
		o.Since = d.fine[id]
		return o
	}
}

// followShared notes since when the others are without the fault of each shared
// dependency. It is to be called in each turn.
func (d *daemon) followShared(now time.Time, members []edge.MemberState, shared map[edge.ProbeID]edge.ProbeState) {
	c, fresh, next := d.config(), freshOf(d.config()), map[edge.ProbeID]time.Time{}
	for id := range shared {
		if !othersView(c, members, id, fresh).Fine() {
			continue
		}
		next[id] = now
		if was, ok := d.fine[id]; ok {
			next[id] = was
		}
	}
	d.fine = next
}

func othersView(c *edge.Config, members []edge.MemberState, id edge.ProbeID, fresh time.Duration) health.Others {
	own := c.Self().Site
	sites := map[edge.SiteID]edge.ProbeState{}
	for _, n := range c.Fleet.Nodes {
		if n.Site != own {
			sites[n.Site] = edge.Unknown
		}
	}
	for _, m := range members {
		was, ok := sites[m.Site]
		if !ok || m.Age < 0 || m.Age > fresh {
			continue
		}
		switch s := m.Report.Shared[id]; {
		case s == edge.Down:
			sites[m.Site] = edge.Down
		case s.Alive() && was == edge.Unknown:
			sites[m.Site] = edge.Up
		}
	}
	out := health.Others{Roster: len(sites)}
	for _, s := range sites {
		switch s {
		case edge.Down:
			out.Down++
		case edge.Up:
			out.Up++
		}
	}
	return out
}
