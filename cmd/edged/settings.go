package main

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/catchment-dev/edge"
)

// ordered returns the settings with the families of each peer in the order in
// which edgebgp reports them, so that two can be compared.
func ordered(s edge.Speaker) edge.Speaker {
	s.Peers = slices.Clone(s.Peers)
	for i := range s.Peers {
		s.Peers[i].Families = slices.Sorted(slices.Values(s.Peers[i].Families))
	}
	return s
}

// dropsRoutes says which prefix would lose its last session if the BGP settings
// changed from old to next while the peers hold what st says; empty: none. To
// change a peer ends its session, and to change the AS, the router id or the
// port ends all: that is a withdrawal which nobody has permitted, so it has to
// wait until the prefixes are off the air.
func dropsRoutes(old, next edge.Speaker, st edge.SpeakerState) string {
	all := old.ASN != next.ASN || old.RouterID != next.RouterID || old.Listen != next.Listen
	stays := func(id edge.PeerID) bool {
		is := func(p edge.Peer) bool { return p.ID == id }
		i, j := slices.IndexFunc(old.Peers, is), slices.IndexFunc(next.Peers, is)
		return !all && i >= 0 && j >= 0 && reflect.DeepEqual(old.Peers[i], next.Peers[j])
	}
	held, kept := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, p := range st.Peers {
		for _, h := range p.Held {
			if p.Session == "established" {
				held[h.Net] = true
				kept[h.Net] = kept[h.Net] || stays(p.ID)
			}
		}
	}
	for _, a := range st.Announcements {
		if held[a.Net] && !kept[a.Net] {
			return fmt.Sprintf("it would end every session that holds %s", a.Net)
		}
	}
	return ""
}
