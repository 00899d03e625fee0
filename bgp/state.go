package bgp

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
)

const established = "established"

// state reads back what is.
func (s *Speaker) state() edge.SpeakerState {
	st := edge.SpeakerState{Started: s.started, Announcements: s.announcements()}
	if s.intent == nil {
		return st
	}
	st.Generation = s.intent.Generation
	inForce := cloneSpeaker(s.intent.Speaker)
	st.Speaker = &inForce
	st.LeaseLeft = s.lease.left(s.now())
	st.Expired = s.lease.expired
	paths := s.aides.bfdStates()
	for _, p := range s.intent.Speaker.Peers {
		st.Peers = append(st.Peers, s.engine.state(p, st.Announcements, paths[p.Addr]))
	}
	s.judge()
	st.Origins, st.RPKI = s.verdict.origins, s.rpkiState()
	st.Sightings, st.Watch = s.aides.sightings()
	return st
}

// state is one peer: from its relay as far as it goes.
func (e *engine) state(p edge.Peer, list []edge.Announcement, path *edge.BFDState) edge.PeerState {
	st := edge.PeerState{ID: p.ID, Addr: p.Addr, ASN: p.ASN, Session: "idle"}
	if p.BFD != nil {
		st.BFD = path
	}
	g := e.peerings[p.Addr]
	if g == nil {
		st.LastErr = "not set up yet"
		return st
	}
	st.Flaps, st.LastErr, st.LastErrAt = g.flaps, g.lastErr, g.lastErrAt
	live := relay.State{}
	if g.relayed {
		live, _ = e.sessions.State(p.Addr)
		fill(&st, g, live)
	}
	if g.refusal != "" {
		st.LastErr = string(g.refusal)
	}
	if g.hung {
		st.LastErr = errSilent.Error()
	}
	st.NotSent = notSent(g, live, list)
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
// what the router can take, and by the relay's last look at it.
func notSent(g *peering, live relay.State, list []edge.Announcement) (out []edge.NotSent) {
	why := maps.Clone(g.notSent)
	for net, reason := range live.NotSent {
		why[net] = edge.Reason(reason)
	}
	if live.Session == established {
		for net, r := range g.routes {
			if reason := unfit(net, r, live); reason != "" {
				why[net] = reason
			}
		}
	}
	for _, a := range list {
		if reason := why[a.Net]; reason != "" {
			out = append(out, edge.NotSent{Net: a.Net, Reason: reason})
		}
	}
	slices.SortFunc(out, func(a, b edge.NotSent) int {
		return cmp.Or(a.Net.Addr().Compare(b.Net.Addr()), cmp.Compare(a.Net.Bits(), b.Net.Bits()))
	})
	return out
}

// unfit says why the router of a session cannot be sent a route; empty: it can.
func unfit(net netip.Prefix, r route, live relay.State) edge.Reason {
	family := edge.IPv6
	if net.Addr().Is4() {
		family = edge.IPv4
	}
	switch {
	case !slices.Contains(negotiated(live), family):
		return edge.Reason(fmt.Sprintf("the router does not speak %s in this session", family))
	case family == edge.IPv4 && !r.nextHop.Is4() && !slices.Contains(live.Remote.ExtendedNextHop, edge.IPv4):
		return edge.Reason(fmt.Sprintf("the router takes no IPv6 next hop (%s) for IPv4: it has not offered RFC 8950", r.nextHop))
	}
	return ""
}
