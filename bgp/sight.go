package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/watch"
	"github.com/catchment-dev/edge/bgp/wire"
)

// lookouts are the peers that are watched, by id and by address.
type lookouts struct {
	ids   map[edge.PeerID]bool
	addrs map[netip.Addr]edge.PeerID
}

func lookoutsOf(s edge.Speaker) *lookouts {
	l := &lookouts{map[edge.PeerID]bool{}, map[netip.Addr]edge.PeerID{}}
	for _, p := range s.Peers {
		if p.Watch {
			l.ids[p.ID], l.addrs[p.Addr] = true, p.ID
		}
	}
	return l
}

// source names a watched peer to the watch.
func source(id edge.PeerID) string { return "peer " + string(id) }

// watchOf is what the watch has to know of the intent.
func watchOf(in *edge.Intent) watch.Config {
	s := in.Speaker
	c := watch.Config{URL: s.Watch.URL, File: s.Watch.File, Neighbours: s.Watch.Neighbours, MissingAfter: s.Watch.MissingAfter}
	origins := append([]uint32{s.ASN}, s.Watch.Origins...)
	here := map[netip.Prefix]bool{}
	for _, a := range in.Announcements {
		here[a.Net] = true
		c.Own = append(c.Own, watch.Own{Prefix: a.Net, Origins: origins})
	}
	for _, net := range s.Own {
		if !here[net] {
			c.Elsewhere = append(c.Elsewhere, watch.Own{Prefix: net, Origins: origins})
		}
	}
	return c
}

// look makes the watch follow the intent.
func (a *aides) look(in *edge.Intent) {
	now := lookoutsOf(in.Speaker)
	before := a.lookouts.Swap(now)
	w := in.Speaker.Watch
	if w.URL == "" && w.File == "" && len(now.ids) == 0 && a.running["watch"] == nil {
		return
	}
	a.start("watch", a.watch.Run)
	a.note("watch", a.watch.Set(watchOf(in)))
	if before == nil {
		return
	}
	for id := range before.ids {
		if !now.ids[id] {
			a.watch.Lost(source(id))
		}
	}
}

// receive hands what a watched peer sends to the watch. It must not block.
func (a *aides) receive(id edge.PeerID, u wire.Update) {
	if l := a.lookouts.Load(); l == nil || !l.ids[id] {
		return
	}
	r := watch.Route{Peer: string(id), Source: source(id), At: time.Now()}
	for _, p := range u.Announced {
		r.Prefix, r.ASPath = p, u.Path.ASPath
		a.watch.Observe(r)
	}
	r.ASPath, r.Withdrawn = nil, true
	for _, p := range u.Withdrawn {
		r.Prefix = p
		a.watch.Observe(r)
	}
	if u.EndOfRIB != "" {
		a.watch.EndOfRIB(source(id), u.EndOfRIB)
	}
}

// sessionChanged makes the watch forget what a peer has shown whose session is
// gone: it shows nothing any more. It must not block.
func (a *aides) sessionChanged(peer netip.Addr) {
	l, h := a.lookouts.Load(), a.links.Load()
	if l == nil || h == nil || l.addrs[peer] == "" {
		return
	}
	if st, ok := h.State(peer); !ok || st.Session != established {
		a.watch.Lost(source(l.addrs[peer]))
	}
}

// The state goes to edged several times a second: it shows so many sightings of
// one prefix, and so many in all. They are in the log, too.
const (
	maxOfPrefix  = 8
	maxSightings = 256
)

// sightings are what the watch has seen, and how its feed does.
func (a *aides) sightings() (out []edge.Sighting, feed edge.SourceState) {
	if a.running["watch"] == nil {
		return nil, feed
	}
	st := a.watch.State()
	seen := map[netip.Prefix]int{}
	for i, alarm := range st.Alarms {
		if seen[alarm.Prefix]++; seen[alarm.Prefix] > maxOfPrefix {
			continue
		}
		if len(out) == maxSightings {
			feed.LastErr = fmt.Sprintf("%d alarms more than are shown", len(st.Alarms)-i+st.More)
			break
		}
		out = append(out, edge.Sighting{
			Kind: alarm.Kind, Net: alarm.Prefix, Seen: alarm.Seen, Evidence: alarm.Evidence, Since: alarm.Since, Last: alarm.Last,
		})
	}
	feed = edge.SourceState{Source: st.Source, Updated: st.LastAt, Items: int(st.Lines), LastErr: cmp.Or(st.LastErr, feed.LastErr)}
	if why := a.failed["watch"]; why != "" {
		feed.LastErr = why
	}
	return out, feed
}
