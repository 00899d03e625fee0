package bgp

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/catchment-dev/edge"
)

// view is the state as it was shown last. It notes in which version each part
// became what it is, so as to say what has changed since any of them. The zero
// value has shown nothing; one goroutine at a time uses it.
type view struct {
	// name is that of the process: no other one has had it, nor will.
	name    string
	version uint64
	state   edge.SpeakerState // all but its peers
	since   struct{ speaker, announcements, origins, sightings, order uint64 }
	order   []netip.Addr
	peers   map[netip.Addr]*shown
}

// shown is a peer as it was shown last. What its slices hold is never changed:
// answers that share them are on their way.
type shown struct {
	st edge.PeerState
	// Since which version the table, NotSent, and all the rest are what they are.
	held, notSent, rest uint64
	// delta is what has made the table of the one that the peer held from version
	// beforeAt until held; nil: that would be no less than the table.
	delta    *edge.TableChange
	beforeAt uint64
}

// show takes in the state as it is now. Slices that are those of the last time
// are not looked into.
func (v *view) show(now edge.SpeakerState) {
	next, changed := v.version+1, false
	note := func(same bool, since *uint64) {
		if !same {
			*since, changed = next, true
		}
	}
	note(now.Speaker == v.state.Speaker || reflect.DeepEqual(now.Speaker, v.state.Speaker), &v.since.speaker)
	note(alike(now.Announcements, v.state.Announcements), &v.since.announcements)
	note(alike(now.Origins, v.state.Origins), &v.since.origins)
	note(alike(now.Sightings, v.state.Sightings), &v.since.sightings)
	order := make([]netip.Addr, len(now.Peers))
	peers := make(map[netip.Addr]*shown, len(now.Peers))
	all := tables{known: map[tableKey][][]edge.HeldPrefix{}, deltas: map[step]*edge.TableChange{}}
	for i, p := range now.Peers {
		order[i] = p.Addr
		s, news := v.peers[p.Addr], false
		if s == nil {
			p.Held = all.share(inOrder(p.Held))
			s, news = &shown{st: p, held: next, beforeAt: next, notSent: next, rest: next}, true
		} else {
			news = s.show(p, next, all)
		}
		changed = changed || news
		peers[p.Addr] = s
	}
	note(slices.Equal(order, v.order), &v.since.order)
	if changed || v.version == 0 {
		v.version = next
	}
	now.Peers = nil
	v.state, v.order, v.peers = now, order, peers
}

// held is what a peer was shown to hold, in the memory that it shares with others.
func (v *view) held(addr netip.Addr) []edge.HeldPrefix {
	if s := v.peers[addr]; s != nil {
		return s.st.Held
	}
	return nil
}

// show takes in the peer as it is in version next, and says whether it is
// otherwise than before.
func (s *shown) show(p edge.PeerState, next uint64, all tables) bool {
	was := s.st
	news := false
	if sameTable(p.Held, was.Held) {
		p.Held = all.share(was.Held)
	} else {
		p.Held = all.share(inOrder(p.Held))
		s.delta, s.beforeAt = all.delta(was.Held, p.Held), s.held
		s.held, news = next, true
	}
	if !alike(p.NotSent, was.NotSent) {
		s.notSent, news = next, true
	}
	s.st = p
	p.Held, was.Held, p.NotSent, was.NotSent = nil, nil, nil, nil
	if !reflect.DeepEqual(p, was) {
		s.rest, news = next, true
	}
	return news
}

// alike compares two lists, at once if they are the same memory.
func alike[T any](a, b []T) bool {
	if len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) {
		return true
	}
	return len(a) == len(b) && reflect.DeepEqual(a, b)
}

// sameTable is alike for what peers hold, of which there is much.
func sameTable(a, b []edge.HeldPrefix) bool {
	if len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) {
		return true
	}
	return slices.EqualFunc(a, b, sameHeld)
}

// inOrder makes sure of what the differences rely on.
func inOrder(table []edge.HeldPrefix) []edge.HeldPrefix {
	order := func(a, b edge.HeldPrefix) int { return a.Net.Compare(b.Net) }
	if slices.IsSortedFunc(table, order) {
		return table
	}
	return slices.SortedFunc(slices.Values(table), order)
}

func sameHeld(a, b edge.HeldPrefix) bool {
	return a.Net == b.Net && a.NextHop == b.NextHop && a.Prepend == b.Prepend && a.MED == b.MED && a.LocalPref == b.LocalPref &&
		slices.Equal(a.Communities, b.Communities) && slices.Equal(a.Large, b.Large)
}

// tables are the different ones that the peers hold, by how long they are and how
// they begin, and the ways from one to another: hundreds of peers hold the same.
type tables struct {
	known  map[tableKey][][]edge.HeldPrefix
	deltas map[step]*edge.TableChange
}

type tableKey struct {
	n       int
	net     netip.Prefix
	nextHop netip.Addr
}

// step is from one table to another; nil is an empty one.
type step struct{ from, to *edge.HeldPrefix }

// share returns a table with the content of this one: the one that was seen before,
// if there is one.
func (t tables) share(table []edge.HeldPrefix) []edge.HeldPrefix {
	if len(table) == 0 {
		return nil
	}
	key := tableKey{len(table), table[0].Net, table[0].NextHop}
	for _, known := range t.known[key] {
		if sameTable(known, table) {
			return known
		}
	}
	t.known[key] = append(t.known[key], table)
	return table
}

// delta is the difference between two tables; nil: it is no less than to is.
func (t tables) delta(from, to []edge.HeldPrefix) *edge.TableChange {
	key := step{first(from), first(to)}
	if d, ok := t.deltas[key]; ok {
		return d
	}
	d := difference(from, to)
	if len(d.Set)+len(d.Gone) >= len(to) {
		d = nil
	}
	t.deltas[key] = d
	return d
}

// changes says what has changed since the version have, or everything, if that is
// not one of this process.
func (v *view) changes(have string) edge.SpeakerChange {
	c := edge.SpeakerChange{SpeakerState: v.state}
	c.Version = fmt.Sprintf("%s-%d", v.name, v.version)
	n, known := v.number(have)
	if known {
		c.Since = have
		c.Same = edge.SameParts{
			Speaker: n >= v.since.speaker, Announcements: n >= v.since.announcements,
			Origins: n >= v.since.origins, Sightings: n >= v.since.sightings, Order: n >= v.since.order,
		}
	}
	if c.Same.Speaker {
		c.Speaker = nil
	}
	if c.Same.Announcements {
		c.Announcements = nil
	}
	if c.Same.Origins {
		c.Origins = nil
	}
	if c.Same.Sightings {
		c.Sightings = nil
	}
	if !c.Same.Order {
		c.Order = v.order
	}
	w := writer{change: &c, whole: map[*edge.HeldPrefix]int{}, deltas: map[*edge.TableChange]int{}}
	for _, addr := range v.order {
		s := v.peers[addr]
		switch {
		case !known:
			w.peer(s, 0)
		case n < max(s.held, s.notSent, s.rest):
			w.peer(s, n)
		}
	}
	return c
}

// number is that of a version of this process; false: it is none.
func (v *view) number(version string) (n uint64, ok bool) {
	rest, ok := strings.CutPrefix(version, v.name+"-")
	if !ok {
		return 0, false
	}
	if _, err := fmt.Sscanf(rest, "%d", &n); err != nil || fmt.Sprint(n) != rest {
		return 0, false
	}
	return n, n > 0 && n <= v.version
}

// writer puts the peers into a change, and each table once: by the numbers that
// they have in there.
type writer struct {
	change *edge.SpeakerChange
	whole  map[*edge.HeldPrefix]int // by its first line
	deltas map[*edge.TableChange]int
}

// peer adds what has changed of s since version n; 0: all of it.
func (w writer) peer(s *shown, n uint64) {
	p := edge.PeerChange{PeerState: s.st}
	p.Held = nil
	switch {
	case n > 0 && n >= s.held:
		p.Table = -1
	case n > 0 && n >= s.beforeAt && s.delta != nil:
		if w.deltas[s.delta] == 0 {
			w.deltas[s.delta] = w.add(*s.delta)
		}
		p.Table = w.deltas[s.delta]
	case len(s.st.Held) > 0:
		if w.whole[first(s.st.Held)] == 0 {
			w.whole[first(s.st.Held)] = w.add(edge.TableChange{Set: s.st.Held})
		}
		p.Table = w.whole[first(s.st.Held)]
	}
	if n > 0 && n >= s.notSent {
		p.NotSent, p.SameNotSent = nil, true
	}
	w.change.Peers = append(w.change.Peers, p)
}

// add returns the number of a table that was not there.
func (w writer) add(t edge.TableChange) int {
	w.change.Tables = append(w.change.Tables, t)
	return len(w.change.Tables)
}

func first(t []edge.HeldPrefix) *edge.HeldPrefix {
	if len(t) == 0 {
		return nil
	}
	return &t[0]
}

// difference is what makes to of from; both are in order.
func difference(from, to []edge.HeldPrefix) *edge.TableChange {
	t := &edge.TableChange{Added: true}
	for len(from) > 0 || len(to) > 0 {
		order := 0
		switch {
		case len(from) == 0:
			order = 1
		case len(to) == 0:
			order = -1
		default:
			order = from[0].Net.Compare(to[0].Net)
		}
		switch {
		case order < 0:
			t.Gone = append(t.Gone, from[0].Net)
			from = from[1:]
		case order > 0:
			t.Set = append(t.Set, to[0])
			to = to[1:]
		default:
			if !sameHeld(from[0], to[0]) {
				t.Set = append(t.Set, to[0])
			}
			from, to = from[1:], to[1:]
		}
	}
	return t
}
