package bgp

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
)

const established = "established"

// state reads back what is. Slices in it are those of the last time if nothing has
// changed, and are not changed later.
func (s *Speaker) state() edge.SpeakerState {
	st := edge.SpeakerState{Started: s.started, Announcements: s.announcements(), KeepErr: s.keep.err, Stopping: s.stopping}
	if s.intent == nil {
		return st
	}
	st.Generation = s.intent.Generation
	st.Speaker = &s.intent.Speaker // in force, and not changed
	st.LeaseLeft, st.Expired, st.Renewal = s.lease.left(s.now()), s.lease.expired, s.renewal
	st.Peers = s.peers()
	if s.hub != nil && s.hub.Hub != nil {
		r := s.hub.Refusals()
		st.Refused, st.LastRefused = r.ByReason, r.Last
	}
	s.judge()
	st.Origins, st.RPKI = s.verdict.origins, s.rpkiState()
	st.Sightings, st.Watch = s.aides.sightings()
	return st
}

// peers are those of the intent, in its order, then those that are being removed.
func (s *Speaker) peers() []edge.PeerState {
	all := slices.Concat(s.intent.Speaker.Peers, s.engine.leaving())
	looks := make(map[netip.Addr]*look, len(all))
	var work sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, p := range all {
		l := s.looks[p.Addr]
		if l == nil || looks[p.Addr] != nil {
			l = &look{}
		}
		looks[p.Addr] = l
		if s.engine.seen(l, p) {
			continue
		}
		slots <- struct{}{}
		work.Go(func() { // a thousand prefixes of each may have changed
			s.engine.look(l, p)
			<-slots
		})
	}
	work.Wait()
	s.looks = looks
	paths := s.aides.bfdStates()
	list := make([]edge.PeerState, len(all))
	for i, p := range all {
		list[i] = looks[p.Addr].st
		if p.BFD != nil {
			list[i].BFD = paths[p.Addr]
		}
	}
	return list
}

// look is a look at a peer, and what it was of.
type look struct {
	st  edge.PeerState // but for BFD
	id  edge.PeerID
	asn uint32
	of  *peering
	rev uint64 // of that
	// live is what the hub has said, in its revision liveRev; liveOld: it has to be
	// asked again.
	hub      *link
	live     relay.State
	relayed  bool
	liveRev  uint64
	liveOld  bool
	complete bool // the hub has revisions
}

// revisions is of a hub that can say, at little cost, whether anything of a peer's
// State may have changed: then the number is another one.
type revisions interface {
	Revision(peer netip.Addr) uint64
}

// seen says whether nothing has changed since the look l, and notes what it has to
// be of otherwise. The numbers are taken before the state is: what changes behind
// them is seen the next time.
func (e *engine) seen(l *look, p edge.Peer) bool {
	was := *l
	l.id, l.asn, l.of, l.hub = p.ID, p.ASN, e.peerings[p.Addr], e.link
	if l.of != nil {
		l.of.mu.Lock()
		l.rev = l.of.rev
		l.of.mu.Unlock()
	}
	l.complete = false
	if e.link != nil {
		if r, ok := e.link.sessions.(revisions); ok {
			l.liveRev, l.complete = r.Revision(p.Addr), true
		}
	}
	l.liveOld = !l.complete || !was.complete || l.liveRev != was.liveRev || l.hub != was.hub
	return !l.liveOld && l.of == was.of && l.rev == was.rev && l.id == was.id && l.asn == was.asn
}

// look brings l up to date.
func (e *engine) look(l *look, p edge.Peer) {
	if l.liveOld {
		l.live, l.relayed = relay.State{}, false
		if l.hub != nil {
			l.live, l.relayed = l.hub.sessions.State(p.Addr)
		}
	}
	l.st = e.state(l, p)
}

// leaving are the peers that are being removed.
func (e *engine) leaving() (list []edge.Peer) {
	e.any(func(g *peering) bool {
		if g.last != nil && g.last.gone != "" && !g.removed && g.peer.Addr.IsValid() {
			list = append(list, g.peer)
		}
		return false
	})
	slices.SortFunc(list, func(a, b edge.Peer) int { return a.Addr.Compare(b.Addr) })
	return list
}

// running is s with the peers as their sessions have them: a worker may still be at
// what an earlier intent has changed.
func (e *engine) running(s edge.Speaker) edge.Speaker {
	s.Peers = slices.Clone(s.Peers)
	for i := range s.Peers {
		g := e.peerings[s.Peers[i].Addr]
		if g == nil {
			continue
		}
		g.mu.Lock()
		if g.link != nil && g.busy {
			s.Peers[i] = g.peer
		}
		g.mu.Unlock()
	}
	return s
}

// state is one peer: from its relay as far as it goes.
func (e *engine) state(l *look, p edge.Peer) edge.PeerState {
	st := edge.PeerState{ID: p.ID, Addr: p.Addr, ASN: p.ASN, Session: "idle"}
	g, live := l.of, l.live
	if g == nil {
		st.LastErr = "not set up yet"
		return st
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	st.Flaps, st.LastErr, st.LastErrAt = g.flaps, g.lastErr, g.lastErrAt
	if l.relayed && g.link == l.hub {
		fill(&st, g, live)
	} else {
		live = relay.State{}
	}
	if g.refusal != "" {
		st.LastErr = string(g.refusal)
	}
	if g.silent {
		st.LastErr = errSilent.Error()
	}
	st.NotSent, st.Pending = notSent(g, live), g.pending()
	return st
}

// fill takes over what the relay says.
func fill(st *edge.PeerState, g *peering, live relay.State) {
	st.Session, st.Since = live.Session, live.Since
	st.Flaps += live.Flaps
	if live.LastErr != "" && !live.LastErrAt.Before(st.LastErrAt) {
		st.LastErr, st.LastErrAt = live.LastErr, live.LastErrAt
	}
	st.Held, st.Messages = live.Held, live.Counts
	st.Received, st.OverLimit, st.Default = live.Received, live.OverLimit, live.Default
	st.FirstReceived, st.Local = live.First, live.Local
	if live.Session != established {
		return
	}
	st.RemoteID = live.Remote.ID
	st.Families = negotiated(live)
	st.Hold = min(live.Ours.Hold, live.Remote.Hold)
	st.Keepalive = g.peer.Keepalive
	if st.Hold < live.Ours.Hold {
		// As the server does it: a third of the hold time (RFC 4271 section 4.4).
		st.Keepalive = (st.Hold / 3).Truncate(time.Second)
	}
}

// negotiated are the families that both ends have offered.
func negotiated(live relay.State) (out []edge.Family) {
	for _, f := range live.Ours.Families {
		if slices.Contains(live.Remote.Families, f) {
			out = append(out, f)
		}
	}
	return out
}

// notSent joins why the peer is not sent some announcements: by the intent, by
// what the router can take, and by the relay's last look at it. The caller has the
// lock of g.
func notSent(g *peering, live relay.State) []edge.NotSent {
	why := maps.Clone(g.notSent)
	note := func(net netip.Prefix, reason edge.Reason) {
		if why == nil {
			why = map[netip.Prefix]edge.Reason{}
		}
		why[net] = reason
	}
	for net, reason := range live.NotSent {
		if _, stands := g.routes[net]; stands {
			note(net, edge.Reason(reason))
		}
	}
	if live.Session == established {
		families := negotiated(live)
		for net, r := range g.routes {
			if reason := unfit(net, r.route, families, live); reason != "" {
				note(net, reason)
			}
		}
	}
	if len(why) == 0 {
		return nil
	}
	out := make([]edge.NotSent, 0, len(why))
	for net, reason := range why {
		out = append(out, edge.NotSent{Net: net, Reason: reason})
	}
	slices.SortFunc(out, func(a, b edge.NotSent) int {
		return cmp.Or(a.Net.Addr().Compare(b.Net.Addr()), cmp.Compare(a.Net.Bits(), b.Net.Bits()))
	})
	return out
}

// unfit says why the router of a session cannot be sent a route; empty: it can.
func unfit(net netip.Prefix, r *route, families []edge.Family, live relay.State) edge.Reason {
	family := edge.IPv6
	if net.Addr().Is4() {
		family = edge.IPv4
	}
	switch {
	case !slices.Contains(families, family):
		return edge.Reason(fmt.Sprintf("the router does not speak %s in this session", family))
	case family == edge.IPv4 && !r.nextHop.Is4() && !slices.Contains(live.Remote.ExtendedNextHop, edge.IPv4):
		return edge.Reason(fmt.Sprintf("the router takes no IPv6 next hop (%s) for IPv4: it has not offered RFC 8950", r.nextHop))
	}
	return ""
}
