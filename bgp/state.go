package bgp

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/apiutil"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/catchment-dev/edge"
)

const established = "established"

// readTables is the part of GoBGP's server that is read.
type readTables interface {
	ListPeer(context.Context, *api.ListPeerRequest, func(*api.Peer)) error
	ListPath(context.Context, *api.ListPathRequest, func(*api.Destination)) error
}

// state reads back what is.
func (s *Speaker) state(ctx context.Context) (edge.SpeakerState, error) {
	st := edge.SpeakerState{Started: s.started, Announcements: s.announcements()}
	if s.intent == nil {
		return st, nil
	}
	st.Generation = s.intent.Generation
	inForce := cloneSpeaker(s.intent.Speaker)
	st.Speaker = &inForce
	st.LeaseLeft = s.lease.left(s.now())
	st.Expired = s.lease.expired
	if s.engine == nil {
		for _, p := range s.intent.Speaker.Peers {
			st.Peers = append(st.Peers, edge.PeerState{ID: p.ID, Addr: p.Addr, ASN: p.ASN, Session: "idle", LastErr: "the BGP server does not run"})
		}
		return st, nil
	}
	peers, err := s.engine.state(ctx, s.intent.Speaker.Peers)
	st.Peers = peers
	return st, err
}

func (e *engine) state(ctx context.Context, list []edge.Peer) ([]edge.PeerState, error) {
	live, err := e.listPeers(ctx)
	if err != nil {
		return nil, err
	}
	lingering := e.lingering(list)
	out := make([]edge.PeerState, len(list)+len(lingering))
	for i, p := range slices.Concat(list, lingering) {
		rec := e.journal.get(p.Addr)
		st := edge.PeerState{ID: p.ID, Addr: p.Addr, ASN: p.ASN, Session: "idle", Since: rec.since, Flaps: rec.flaps, LastErr: rec.lastErr}
		if reason := e.refusals[p.Addr]; reason != "" {
			st.LastErr = string(reason)
		}
		if i >= len(list) {
			st.LastErr = "not in the intent, but could not be removed: tried again with the next intent"
		}
		if l := live[p.Addr]; l != nil {
			st.Session = sessionName(l.State.GetSessionState())
			if st.Held, err = e.heldBy(ctx, p.Addr, l); err != nil {
				return nil, err
			}
		}
		out[i] = st
	}
	return out, nil
}

func sessionName(s api.PeerState_SessionState) string { return strings.ToLower(s.String()) }

func (e *engine) listPeers(ctx context.Context) (map[netip.Addr]*api.Peer, error) {
	return call(ctx, "list peers", func(ctx context.Context) (map[netip.Addr]*api.Peer, error) {
		m := map[netip.Addr]*api.Peer{}
		err := e.read.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
			if a, err := netip.ParseAddr(p.GetConf().GetNeighborAddress()); err == nil {
				m[a] = p
			}
		})
		return m, err
	})
}

// heldBy lists the Adj-RIB-Out of an established session. GoBGP computes it for
// every configured family, sent or not, so only those that the peer has
// negotiated are asked for. What it lists has been handed to the session's
// writer; TCP may still be carrying it.
func (e *engine) heldBy(ctx context.Context, addr netip.Addr, p *api.Peer) ([]edge.HeldPrefix, error) {
	if sessionName(p.State.GetSessionState()) != established {
		return nil, nil
	}
	var out []edge.HeldPrefix
	for _, f := range negotiated(p) {
		list, err := call(ctx, "list what "+addr.String()+" holds", func(ctx context.Context) ([]edge.HeldPrefix, error) {
			return e.adjOut(ctx, addr, f)
		})
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	slices.SortFunc(out, func(a, b edge.HeldPrefix) int { return a.Net.Compare(b.Net) })
	return out, nil
}

func (e *engine) adjOut(ctx context.Context, addr netip.Addr, f *api.Family) ([]edge.HeldPrefix, error) {
	var list []edge.HeldPrefix
	var bad error
	req := &api.ListPathRequest{TableType: api.TableType_ADJ_OUT, Name: addr.String(), Family: f}
	err := e.read.ListPath(ctx, req, func(d *api.Destination) {
		for _, path := range d.Paths {
			h, err := held(path, e.key.asn)
			if err != nil {
				bad = err
				continue
			}
			list = append(list, h)
		}
	})
	if err == nil {
		err = bad
	}
	return list, err
}

// negotiated are the families that both ends have offered. A peer that names
// none speaks IPv4 (RFC 4760 section 8).
func negotiated(p *api.Peer) []*api.Family {
	theirs := map[bgp.RouteFamily]bool{}
	caps, err := apiutil.UnmarshalCapabilities(p.State.GetRemoteCap())
	if err != nil {
		return nil
	}
	for _, c := range caps {
		if mp, ok := c.(*bgp.CapMultiProtocol); ok {
			theirs[mp.CapValue] = true
		}
	}
	if len(theirs) == 0 {
		theirs[bgp.RF_IPv4_UC] = true
	}
	var out []*api.Family
	for _, a := range p.AfiSafis {
		if f := a.GetConfig().GetFamily(); f != nil && theirs[apiutil.ToRouteFamily(f)] {
			out = append(out, f)
		}
	}
	return out
}
