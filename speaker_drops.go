package edge

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
)

// DropsRoutes says which announcement of st would lose its last session if the BGP
// settings changed from old to next while the peers hold what st says; empty: none. To
// change what a session depends on ends it, to change the AS, the router id or the
// port ends all, a peer may be told not to be sent a prefix any more, and routers
// drop a session whose BFD is taken off: each is a withdrawal which nobody has
// permitted, so it has to wait until the prefixes are off the air. edged asks before it
// tells edgebgp, and edgebgp before it does what it is told. It is pure.
func DropsRoutes(old, next Speaker, st SpeakerState) string {
	all := old.ASN != next.ASN || old.RouterID != next.RouterID || old.Listen != next.Listen
	stays := func(far PeerState, net netip.Prefix) bool {
		is := func(p Peer) bool { return p.Addr == far.Addr }
		i, j := slices.IndexFunc(old.Peers, is), slices.IndexFunc(next.Peers, is)
		if all || i < 0 || j < 0 || next.Unsent(next.Peers[j], net) != "" || dropsPath(old.Peers[i], next.Peers[j], far.BFD) {
			return false
		}
		a, b := old.Peers[i].Session(), next.Peers[j].Session()
		if a.KeyStamp == "" { // by an edged that knew of none: the key is the one that is used
			b.KeyStamp = ""
		}
		return reflect.DeepEqual(a, b)
	}
	held, kept := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, p := range st.Peers {
		for _, h := range p.Held {
			if p.Session == "established" {
				held[h.Net] = true
				kept[h.Net] = kept[h.Net] || stays(p, h.Net)
			}
		}
	}
	for _, a := range st.Announcements {
		if held[a.Net] && !kept[a.Net] {
			return fmt.Sprintf("it would take %s from every peer that holds it", a.Net)
		}
	}
	return ""
}

// dropsPath says whether a router would end the session because BFD with it is taken
// off: the last that it hears of BFD is admin-down, which BIRD and FRR take for a
// failure of the path, against RFC 5882 section 3.2. One that has none with us any more
// does not mind.
func dropsPath(old, next Peer, st *BFDState) bool {
	return old.BFD != nil && next.BFD == nil && st != nil && (st.State == "up" || st.State == "init" || st.Remote == "up")
}
