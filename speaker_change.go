package edge

import (
	"fmt"
	"net/netip"
	"slices"
)

// SpeakerChange is what has changed in the state of edgebgp since the version
// that the reader holds. It answers GET /v1/state?have=VERSION, and PUT
// /v1/intent and POST /v1/renew with the same parameter. What was written to
// hundreds of peers is tens of megabytes: too much to be said again each time
// somebody asks whether it is still so.
//
// In JSON a whole SpeakerState is a whole SpeakerChange, so an edgebgp that knows
// no versions is understood.
type SpeakerChange struct {
	// Since is the version that the change is to be added to; empty: to nothing,
	// it is whole.
	Since string `json:"since,omitempty"`
	// SpeakerState has Version, which is the new one, and everything that is short;
	// the rest only as far as it has changed.
	SpeakerState
	// Same are the parts that have not changed and are left out.
	Same SameParts `json:"same,omitzero"`
	// Order are the addresses of all peers, in order. Empty, and not the same: that
	// of Peers.
	Order []netip.Addr `json:"order,omitempty"`
	// Peers are those that have changed. It hides the one of SpeakerState.
	Peers []PeerChange `json:"peers"`
	// Tables are what peers hold; each is here once, however many peers hold it.
	Tables []TableChange `json:"tables,omitempty"`
}

// PeerChange is a peer that has changed: all of it, but for what is long.
type PeerChange struct {
	PeerState
	// Table says what has become of Held: 0, it is as PeerState says; n, it is what
	// Tables[n-1] makes of it; -1, it has not changed.
	Table int `json:"table,omitempty"`
	// SameNotSent says that NotSent has not changed, and is left out.
	SameNotSent bool `json:"same_not_sent,omitempty"`
}

// TableChange is how what a peer holds has changed.
type TableChange struct {
	// Added says that the change is to be added to what the peer held; else Set is
	// all of it.
	Added bool `json:"added,omitempty"`
	// Set are new or otherwise now, Gone are held no more; in the order of
	// netip.Prefix.Compare.
	Set  []HeldPrefix   `json:"set,omitempty"`
	Gone []netip.Prefix `json:"gone,omitempty"`
}

// SameParts names parts of the state of edgebgp; Order is which peers there are.
type SameParts struct {
	Speaker       bool `json:"speaker,omitempty"`
	Announcements bool `json:"announcements,omitempty"`
	Origins       bool `json:"origins,omitempty"`
	Sightings     bool `json:"sightings,omitempty"`
	Order         bool `json:"order,omitempty"`
}

// With returns the state that c makes of s. It changes neither, and shares memory
// with both, so nobody may change what they hold. An error means that c cannot be
// added to s, or makes no sense: then the whole state has to be asked for.
func (s SpeakerState) With(c SpeakerChange) (SpeakerState, error) {
	if c.Since == "" {
		s = SpeakerState{}
	} else if c.Since != s.Version {
		return SpeakerState{}, fmt.Errorf("change of the speaker's state since %q, which is not the one held, %q", c.Since, s.Version)
	}
	out := c.SpeakerState
	if c.Same.Speaker {
		out.Speaker = s.Speaker
	}
	if c.Same.Announcements {
		out.Announcements = s.Announcements
	}
	if c.Same.Origins {
		out.Origins = s.Origins
	}
	if c.Same.Sightings {
		out.Sightings = s.Sightings
	}
	var err error
	out.Peers, err = s.peersWith(c)
	if err != nil {
		return SpeakerState{}, err
	}
	return out, nil
}

// peersWith are the peers that c makes of those of s.
func (s SpeakerState) peersWith(c SpeakerChange) ([]PeerState, error) {
	peers := make(map[netip.Addr]*PeerState, len(s.Peers))
	for i := range s.Peers {
		peers[s.Peers[i].Addr] = &s.Peers[i]
	}
	order := c.Order
	if c.Same.Order {
		order = addresses(s.Peers)
	} else if len(order) == 0 {
		for _, p := range c.Peers {
			order = append(order, p.Addr)
		}
	}
	made := map[patch][]HeldPrefix{}
	for _, p := range c.Peers {
		now := p.PeerState
		was := peers[p.Addr]
		if was == nil {
			was = &PeerState{}
		}
		if p.SameNotSent {
			now.NotSent = was.NotSent
		}
		var err error
		if now.Held, err = c.held(p, was.Held, made); err != nil {
			return nil, err
		}
		peers[p.Addr] = &now
	}
	var out []PeerState
	for _, addr := range order {
		p := peers[addr]
		if p == nil {
			return nil, fmt.Errorf("change of the speaker's state: nothing is known of its peer %s", addr)
		}
		out = append(out, *p)
	}
	return out, nil
}

// patch is one change of one table: peers that share a table go on sharing it.
type patch struct {
	first *HeldPrefix // of the table before; nil: it is empty
	n     int         // how long that is
	table int
}

// held is what p holds after the change.
func (c SpeakerChange) held(p PeerChange, was []HeldPrefix, made map[patch][]HeldPrefix) ([]HeldPrefix, error) {
	switch {
	case p.Table == -1:
		return was, nil
	case p.Table == 0:
		return sorted(p.Held), nil
	case p.Table < 0 || p.Table > len(c.Tables):
		return nil, fmt.Errorf("change of the speaker's state: peer %s has table %d of %d", p.Addr, p.Table, len(c.Tables))
	}
	t := c.Tables[p.Table-1]
	key := patch{n: len(was), table: p.Table}
	if len(was) > 0 {
		key.first = &was[0]
	}
	if !t.Added {
		key = patch{table: p.Table} // whatever there was
	}
	if out, ok := made[key]; ok {
		return out, nil
	}
	out := t.Set
	if t.Added {
		out = t.addedTo(was)
	}
	out = sorted(out)
	made[key] = out
	return out, nil
}

// addedTo is was with the change made.
func (t TableChange) addedTo(was []HeldPrefix) []HeldPrefix {
	set := make(map[netip.Prefix]bool, len(t.Set)+len(t.Gone))
	for _, h := range t.Set {
		set[h.Net] = true
	}
	for _, net := range t.Gone {
		set[net] = true
	}
	out := make([]HeldPrefix, 0, len(was)+len(t.Set))
	for _, h := range was {
		if !set[h.Net] {
			out = append(out, h)
		}
	}
	return append(out, t.Set...)
}

// sorted makes sure of the order that Holders relies on.
func sorted(list []HeldPrefix) []HeldPrefix {
	if len(list) == 0 {
		return nil
	}
	if !slices.IsSortedFunc(list, HeldPrefix.compare) {
		list = slices.SortedFunc(slices.Values(list), HeldPrefix.compare)
	}
	return list
}

func (h HeldPrefix) compare(o HeldPrefix) int { return h.Net.Compare(o.Net) }

func addresses(peers []PeerState) []netip.Addr {
	out := make([]netip.Addr, len(peers))
	for i, p := range peers {
		out[i] = p.Addr
	}
	return out
}
