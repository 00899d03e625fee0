package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// Bounds of a peer.
const (
	maxHops       = 254 // of TTL security: a packet with TTL 1 has come 254 hops at most
	maxRestart    = 4095 * time.Second
	maxImport     = 10_000_000
	minBFD        = 50 * time.Millisecond
	maxBFD        = 10 * time.Second
	minMultiplier = 2
	maxMultiplier = 50
	maxInterface  = 15 // IFNAMSIZ of Linux, less the zero byte
	maxPrefixes   = maxAnnouncements
)

func (f *faults) peers(s edge.Speaker) {
	if len(s.Peers) > edge.MaxPeers {
		f.addf("speaker: %d peers are more than %d", len(s.Peers), edge.MaxPeers)
		return
	}
	ids, places, addrs := map[edge.PeerID]bool{}, map[place]bool{}, map[netip.Addr]bool{}
	for i, p := range s.Peers {
		where := fmt.Sprintf("peer %d (%q)", i+1, p.ID)
		if p.ID == "" {
			f.addf("%s: no id", where)
		}
		if ids[p.ID] {
			f.addf("%s: second peer with this id", where)
		}
		at := placeOf(p)
		switch {
		case places[at]:
			f.addf("%s: second peer with %s", where, at)
		case addrs[p.Addr]: // the name of the peer to all that follows
			f.addf("%s: second peer with address %s: write it with the zone %s", where, p.Addr, p.Interface)
		}
		ids[p.ID], places[at], addrs[p.Addr] = true, true, true
		f.peer(where, s, p)
	}
}

// place is where a peer is: what no two peers have in common.
type place struct {
	addr netip.Addr // without a zone
	link string     // of a link-local address, which many routers have on every link
}

// scoped says that a is an address of a link. Not of IPv4: the kernel routes its
// link-local addresses as any others.
func scoped(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

func placeOf(p edge.Peer) place {
	if scoped(p.Addr) {
		return place{p.Addr.WithZone(""), p.Interface}
	}
	return place{addr: p.Addr}
}

func (at place) String() string {
	if at.link == "" {
		return "address " + at.addr.String()
	}
	return fmt.Sprintf("address %s on interface %s", at.addr, at.link)
}

func (f *faults) peer(where string, s edge.Speaker, p edge.Peer) {
	f.asn(where, p.ASN)
	f.addresses(where, p)
	f.families(where, p.Families)
	f.timers(where, p)
	f.hops(where, p)
	f.bfd(where, p)
	f.policy(where, p)
	if p.Passive && s.Listen == 0 {
		f.addf("%s: passive, but the speaker listens on no port: the session could never open: set listen, or take passive away", where)
	}
	if strings.ContainsRune(p.PasswordFile, 0) {
		f.addf("%s: password file has a zero byte in its name", where)
	}
}

func (f *faults) addresses(where string, p edge.Peer) {
	bare, zone := p.Addr.WithZone(""), p.Addr.Zone()
	switch {
	case !edge.IsHost(bare):
		f.addf("%s: address %q is not a unicast address", where, p.Addr)
	case zone != "" && (!scoped(bare) || zone != p.Interface):
		f.addf("%s: address %s: a zone is the interface (%q) of a link-local IPv6 address: write it without zone", where, p.Addr, p.Interface)
	case scoped(bare) && p.Interface == "":
		f.addf("%s: address %s is link-local: set interface to the one that it is on", where, p.Addr)
		// One without a zone is from an edged that did not know them.
	}
	if p.LocalAddr.IsValid() && (!edge.IsHost(p.LocalAddr) || p.LocalAddr.Is4() != p.Addr.Is4() || p.LocalAddr == bare) {
		f.addf("%s: local address %s is not an address of ours of the family of %s", where, p.LocalAddr, p.Addr)
	}
	if scoped(bare) && p.Multihop > 0 {
		f.addf("%s: multihop %d to %s, which is link-local: one hop away: take multihop away", where, p.Multihop, p.Addr)
	}
	if len(p.Interface) > maxInterface || strings.ContainsAny(p.Interface, "/ \x00\t\n") || p.Interface == "." || p.Interface == ".." {
		f.addf("%s: interface %q is not the name of an interface: it has at most %d bytes, no slash and no space", where, p.Interface, maxInterface)
	}
	for _, hop := range []struct {
		name string
		addr netip.Addr
	}{{"next_hop4", p.NextHop4}, {"next_hop6", p.NextHop6}} {
		switch {
		case !hop.addr.IsValid():
		case !edge.IsReachable(hop.addr):
			f.addf("%s: %s %s is not a routable address", where, hop.name, hop.addr)
		case hop.addr == p.Addr:
			f.addf("%s: %s %s is the peer itself: set an address of this node", where, hop.name, hop.addr)
		}
	}
	if p.NextHop6.Is4() {
		f.addf("%s: next_hop6 %s is not an IPv6 address", where, p.NextHop6)
	}
}

func (f *faults) families(where string, list []edge.Family) {
	if len(list) == 0 {
		f.addf("%s: no families", where)
	}
	for i, fam := range list {
		if fam != edge.IPv4 && fam != edge.IPv6 {
			f.addf("%s: family %q is not %s or %s", where, fam, edge.IPv4, edge.IPv6)
		}
		if slices.Contains(list[:i], fam) {
			f.addf("%s: family %q twice", where, fam)
		}
	}
}

// timers are whole seconds: the wire (hold, restart) and GoBGP (all) know no
// others, and a hold time of 0 would silently become 90 s.
func (f *faults) timers(where string, p edge.Peer) {
	if !seconds(p.Hold, minHold, maxHold) {
		f.addf("%s: hold %s is not a whole number of seconds from %s to %s", where, p.Hold, minHold, maxHold)
	}
	if !seconds(p.Keepalive, time.Second, maxHold) || p.Keepalive >= p.Hold {
		f.addf("%s: keepalive %s is not a whole number of seconds from 1s to below hold", where, p.Keepalive)
	}
	if !seconds(p.ConnectRetry, time.Second, time.Hour) {
		f.addf("%s: connect retry %s is not a whole number of seconds from 1s to 1h", where, p.ConnectRetry)
	}
	if !seconds(p.RestartTime, 0, maxRestart) {
		f.addf("%s: restart time %s is not a whole number of seconds from 0s to %s", where, p.RestartTime, maxRestart)
	}
}

func seconds(d, lo, hi time.Duration) bool { return d >= lo && d <= hi && d%time.Second == 0 }

func (f *faults) hops(where string, p edge.Peer) {
	if p.Multihop < 0 || p.Multihop > 255 {
		f.addf("%s: multihop %d is not 0 to 255", where, p.Multihop)
	}
	if p.TTLSecurity < 0 || p.TTLSecurity > maxHops {
		f.addf("%s: ttl security %d is not 0 to %d", where, p.TTLSecurity, maxHops)
	}
	if p.TTLSecurity > 0 && p.Multihop > 0 {
		f.addf("%s: both ttl security and multihop: ttl security says how many hops away the peer is at most, so take multihop away", where)
	}
}

func (f *faults) bfd(where string, p edge.Peer) {
	if p.BFD == nil {
		return
	}
	for _, i := range []struct {
		name string
		d    time.Duration
	}{{"min_tx", p.BFD.MinTx}, {"min_rx", p.BFD.MinRx}} {
		if i.d < minBFD || i.d > maxBFD {
			f.addf("%s: bfd: %s %s is not %s to %s", where, i.name, i.d, minBFD, maxBFD)
		}
	}
	if p.BFD.Multiplier < minMultiplier || p.BFD.Multiplier > maxMultiplier {
		f.addf("%s: bfd: multiplier %d is not %d to %d", where, p.BFD.Multiplier, minMultiplier, maxMultiplier)
	}
	if farAway(p) && !p.LocalAddr.IsValid() {
		f.addf("%s: bfd over several hops needs local_address: the peer knows the session by it (RFC 5883)", where)
	}
}

func (f *faults) policy(where string, p edge.Peer) {
	if len(p.Prefixes) > maxPrefixes {
		f.addf("%s: %d prefixes are more than %d", where, len(p.Prefixes), maxPrefixes)
	}
	for i, net := range p.Prefixes {
		if !edge.IsAnnounceable(net) {
			f.addf("%s: prefix %d (%s) is not a unicast prefix without host bits", where, i+1, net)
		}
	}
	f.attributes(where+": announce", p.Announce)
	if p.Degraded != nil {
		f.attributes(where+": degraded", *p.Degraded)
	}
	if p.ImportLimit < 0 || p.ImportLimit > maxImport {
		f.addf("%s: import limit %d is not 0 to %d", where, p.ImportLimit, maxImport)
	}
	if p.Watch && (len(p.Prefixes) > 0 || p.Degraded != nil || !p.Announce.Equal(edge.Attributes{}) || p.NextHop4.IsValid() || p.NextHop6.IsValid() || p.AllowLonger) {
		f.addf("%s: watch: the peer is sent nothing, so prefixes, announce, degraded, next hops and allow_longer make no sense: take them away, or watch", where)
	}
}
