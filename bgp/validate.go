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
	return f.join()
}

// join is nil, or one error that matches ErrInvalid and names every fault.
func (f faults) join() error {
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
	if len(s.RPKI.Servers) > 0 && s.RPKI.File != "" {
		f.addf("speaker: rpki has both servers and a file: choose one")
	}
	if s.Watch.URL != "" && s.Watch.File != "" {
		f.addf("speaker: watch has both a url and a file: choose one")
	}
	if s.Watch.MissingAfter < 0 {
		f.addf("speaker: watch: missing after %s is below zero", s.Watch.MissingAfter)
	}
	for i, net := range s.Own {
		if !net.IsValid() || net != net.Masked() {
			f.addf("speaker: own prefix %d (%s) is not a prefix without host bits", i+1, net)
		}
	}
}

func (f *faults) asn(where string, asn uint32) {
	if !edge.IsASN(asn) {
		f.addf("%s: ASN %d is reserved", where, asn)
	}
}

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
		f.attributes(where+": more", a.More)
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
	if len(a.Large) > edge.MaxCommunities {
		f.addf("%s: %d large communities are more than %d", where, len(a.Large), edge.MaxCommunities)
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
		a.Normal, a.Degraded = tidy(a.Normal), tidy(a.Degraded)
	}
	return in
}

// cloneSpeaker returns s with the order taken out of what is a set, and shares no
// memory with it.
func cloneSpeaker(s edge.Speaker) edge.Speaker {
	s.Own = slices.Clone(s.Own)
	s.RPKI.Servers = slices.Clone(s.RPKI.Servers) // in the order of preference
	s.Watch.Origins, s.Watch.Neighbours = slices.Clone(s.Watch.Origins), slices.Clone(s.Watch.Neighbours)
	s.Peers = slices.Clone(s.Peers)
	for i := range s.Peers {
		p := &s.Peers[i]
		p.Families = slices.Sorted(slices.Values(p.Families))
		p.Prefixes = slices.SortedFunc(slices.Values(p.Prefixes), netip.Prefix.Compare)
		p.Announce = tidy(p.Announce)
		if p.Degraded != nil {
			d := tidy(*p.Degraded)
			p.Degraded = &d
		}
		if p.BFD != nil {
			b := *p.BFD
			p.BFD = &b
		}
	}
	return s
}

// tidy returns a with its communities in order, each once, and shares no
// memory with it.
func tidy(a edge.Attributes) edge.Attributes { return a.Plus(edge.Attributes{}) }
