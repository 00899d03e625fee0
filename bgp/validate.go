package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// ErrInvalid matches the error of an intent that cannot be brought about as it
// is written.
var ErrInvalid = errors.New("intent is not valid")

// Bounds of an intent, beside those that the configuration shares: what Parse
// of edge takes is valid here.
const (
	maxAnnouncements = 10_000
	minLease         = 100 * time.Millisecond
	maxLease         = time.Hour
	minHold          = 3 * time.Second // RFC 4271 section 4.2
	maxHold          = 65535 * time.Second
)

// faults collects what is wrong with an intent, each with its place.
type faults []error

func (f *faults) addf(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

// validate returns nil, or one error that matches ErrInvalid and names every
// fault.
func validate(in edge.Intent) error {
	var f faults
	f.speaker(in.Speaker)
	f.peers(in.Speaker)
	f.announcements(in)
	if len(f) == 0 {
		return nil
	}
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = err.Error()
	}
	return fmt.Errorf("%w: %s", ErrInvalid, strings.Join(texts, "; "))
}

func (f *faults) speaker(s edge.Speaker) {
	f.asn("speaker", s.ASN)
	if !s.RouterID.Is4() || s.RouterID.IsUnspecified() {
		f.addf("speaker: router id %q is not an IPv4 address", s.RouterID)
	}
	if s.Listen < 0 || s.Listen > 65535 {
		f.addf("speaker: listen port %d is not 0 to 65535", s.Listen)
	}
	if s.Lease < minLease || s.Lease > maxLease {
		f.addf("speaker: lease %s is not %s to %s", s.Lease, minLease, maxLease)
	}
}

func (f *faults) asn(where string, asn uint32) {
	if !edge.IsASN(asn) {
		f.addf("%s: ASN %d is reserved", where, asn)
	}
}

func (f *faults) peers(s edge.Speaker) {
	if len(s.Peers) > edge.MaxPeers {
		f.addf("speaker: %d peers are more than %d", len(s.Peers), edge.MaxPeers)
		return
	}
	ids, addrs := map[edge.PeerID]bool{}, map[netip.Addr]bool{}
	for i, p := range s.Peers {
		where := fmt.Sprintf("peer %d (%q)", i+1, p.ID)
		if p.ID == "" {
			f.addf("%s: no id", where)
		}
		if ids[p.ID] {
			f.addf("%s: second peer with this id", where)
		}
		if addrs[p.Addr] {
			f.addf("%s: second peer with address %s", where, p.Addr)
		}
		ids[p.ID], addrs[p.Addr] = true, true
		f.peer(where, s, p)
	}
}

func (f *faults) peer(where string, s edge.Speaker, p edge.Peer) {
	f.asn(where, p.ASN)
	if p.ASN == s.ASN {
		f.addf("%s: ASN %d is our own: only eBGP is spoken", where, p.ASN)
	}
	if !edge.IsHost(p.Addr) {
		f.addf("%s: address %q is not a unicast address without zone", where, p.Addr)
	}
	if p.LocalAddr.IsValid() && (!edge.IsHost(p.LocalAddr) || p.LocalAddr.Is4() != p.Addr.Is4() || p.LocalAddr == p.Addr) {
		f.addf("%s: local address %s is not an address of ours of the family of %s", where, p.LocalAddr, p.Addr)
	}
	f.families(where, p.Families)
	f.timers(where, p)
	if p.Multihop < 0 || p.Multihop > 255 {
		f.addf("%s: multihop %d is not 0 to 255", where, p.Multihop)
	}
	if p.Passive && s.Listen == 0 {
		f.addf("%s: passive, but the speaker listens on no port: the session could never open", where)
	}
	if strings.ContainsRune(p.PasswordFile, 0) {
		f.addf("%s: password file has a zero byte in its name", where)
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

// timers are whole seconds: the wire (hold) and GoBGP (all) know no others,
// and a hold time of 0 would silently become 90 s.
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
}

func seconds(d, lo, hi time.Duration) bool { return d >= lo && d <= hi && d%time.Second == 0 }

// announcements also judges the withdrawals. The two are bounded together: what
// cannot be withdrawn is kept among the announcements.
func (f *faults) announcements(in edge.Intent) {
	if n := len(in.Announcements) + len(in.Withdraw); n > maxAnnouncements {
		f.addf("%d announcements and withdrawals are more than %d", n, maxAnnouncements)
		return
	}
	seen := map[netip.Prefix]bool{}
	for i, a := range in.Announcements {
		where := fmt.Sprintf("announcement %d (%s)", i+1, a.Net)
		if !edge.IsAnnounceable(a.Net) {
			f.addf("%s: not a unicast prefix without host bits", where)
		}
		if seen[a.Net] {
			f.addf("%s: second announcement of this prefix", where)
		}
		seen[a.Net] = true
		if !edge.IsReachable(a.NextHop) || a.NextHop.Is4() != a.Net.Addr().Is4() {
			f.addf("%s: next hop %q is not a routable address of the prefix's family", where, a.NextHop)
		}
		f.attributes(where+": normal", a.Normal)
		f.attributes(where+": degraded", a.Degraded)
	}
	f.withdrawals(in.Withdraw, seen)
}

// withdrawals: an order whose permit has ended is valid, it just comes to
// nothing.
func (f *faults) withdrawals(list []edge.Withdrawal, announced map[netip.Prefix]bool) {
	seen := map[netip.Prefix]bool{}
	for i, w := range list {
		where := fmt.Sprintf("withdrawal %d (%s)", i+1, w.Net)
		switch {
		case !edge.IsAnnounceable(w.Net):
			f.addf("%s: not a unicast prefix without host bits", where)
		case announced[w.Net]:
			f.addf("%s: the prefix is announced by the same intent", where)
		case seen[w.Net]:
			f.addf("%s: second withdrawal of this prefix", where)
		}
		seen[w.Net] = true
	}
}

func (f *faults) attributes(where string, a edge.Attributes) {
	if a.Prepend < 0 || a.Prepend > edge.MaxPrepend {
		f.addf("%s: prepend %d is not 0 to %d", where, a.Prepend, edge.MaxPrepend)
	}
	if len(a.Communities) > edge.MaxCommunities {
		f.addf("%s: %d communities are more than %d", where, len(a.Communities), edge.MaxCommunities)
	}
}

// normal returns a valid intent with the order taken out of what is a set, and
// shares no memory with it.
func normal(in edge.Intent) edge.Intent {
	in.Speaker = cloneSpeaker(in.Speaker)
	in.Withdraw = slices.Clone(in.Withdraw)
	in.Announcements = slices.Clone(in.Announcements)
	for i := range in.Announcements {
		a := &in.Announcements[i]
		a.Normal.Communities = sortedSet(a.Normal.Communities)
		a.Degraded.Communities = sortedSet(a.Degraded.Communities)
	}
	return in
}

// cloneSpeaker returns s with its families sorted, and shares no memory with it.
func cloneSpeaker(s edge.Speaker) edge.Speaker {
	s.Peers = slices.Clone(s.Peers)
	for i := range s.Peers {
		p := &s.Peers[i]
		p.Families = slices.Sorted(slices.Values(p.Families))
	}
	return s
}

func sortedSet(c []edge.Community) []edge.Community {
	return slices.Compact(slices.Sorted(slices.Values(c)))
}
