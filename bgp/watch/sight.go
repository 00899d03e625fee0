package watch

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// sight is what is seen of one of our prefixes.
type sight struct {
	own    Own
	onAir  bool
	since  time.Time // it is on the air
	unseen time.Time // when the last vantage point has lost it; zero: none had it
	// seen are routes to it with an origin of ours, which last until they are
	// withdrawn: nobody repeats a route that is stable.
	seen vantages
	// others had such a route when it made room: a feed has more vantage points
	// than we keep, and those that tell last are those that flap.
	others map[vantage]struct{}
	bad    vantages // what is wrong, until it is withdrawn or too old
	// cover are routes to what it is a part of.
	cover  vantages
	alarms map[alarmKey]time.Time // since when they are there
}

type alarmKey struct {
	kind string
	seen netip.Prefix
}

// entry is a route with what is wrong with it.
type entry struct {
	route Route
	verdict
}

// vantage names a route: a vantage point has one to a prefix.
type vantage struct {
	source, peer string
	prefix       netip.Prefix
}

func (r Route) at() vantage { return vantage{r.Source, r.Peer, r.Prefix} }

// vantages are entries, the one that was told last at the end.
type vantages []entry

func (v *vantages) drop(at vantage) {
	*v = slices.DeleteFunc(*v, func(e entry) bool { return e.route.at() == at })
}

// put adds an entry that is not there. The one that was told the longest time
// ago makes room, and is returned.
func (v *vantages) put(e entry, most int) (out entry, full bool) {
	if full = len(*v) >= most; full {
		out = (*v)[0]
		*v = slices.Delete(*v, 0, 1)
	}
	*v = append(*v, e)
	return out, full
}

// keep returns a route that shares no memory and is of a bounded size. The end
// of the path is what is judged.
func keep(r Route) Route {
	path := r.ASPath
	if len(path) > maxPath {
		path = path[len(path)-maxPath:]
	}
	r.ASPath = slices.Clone(path)
	r.Peer = strings.Clone(r.Peer)
	return r
}

// take keeps a route to the prefix itself.
func (s *sight) take(r Route, v verdict) {
	r = keep(r)
	if v.kind != UnexpectedOrigin {
		out, full := s.seen.put(entry{route: r}, maxVantages)
		if full && len(s.others) < maxOthers {
			if s.others == nil {
				s.others = map[vantage]struct{}{}
			}
			s.others[out.route.at()] = struct{}{}
		}
	}
	if v.kind != "" {
		s.bad.put(entry{r, v}, maxVantages)
	}
}

// visible says whether a vantage point has a route to the prefix, from us.
func (s *sight) visible() bool { return len(s.seen) > 0 || len(s.others) > 0 }

// drop takes away the route of a vantage point.
func (s *sight) drop(r Route) {
	had, at := s.visible(), r.at()
	s.seen.drop(at)
	s.bad.drop(at)
	s.cover.drop(at)
	delete(s.others, at)
	if had && !s.visible() {
		s.unseen = r.At
	}
}

// lose takes away all routes that gone says.
func (s *sight) lose(now time.Time, gone func(vantage) bool) {
	had := s.visible()
	for _, v := range []*vantages{&s.seen, &s.bad, &s.cover} {
		*v = slices.DeleteFunc(*v, func(e entry) bool { return gone(e.route.at()) })
	}
	maps.DeleteFunc(s.others, func(v vantage, _ struct{}) bool { return gone(v) })
	if had && !s.visible() {
		s.unseen = now
	}
}

// age forgets evidence from before oldest. A time in the future is a wrong clock
// somewhere: it would count for ever.
func (s *sight) age(now, oldest time.Time) {
	for i := range s.bad {
		if s.bad[i].route.At.After(now) {
			s.bad[i].route.At = now
		}
	}
	s.bad = slices.DeleteFunc(s.bad, func(e entry) bool { return e.route.At.Before(oldest) })
	if s.unseen.After(now) {
		s.unseen = now
	}
}

// wrong returns the bad routes as alarms, those of one kind to one prefix as one.
func (s *sight) wrong() (out []Alarm) {
	at := map[alarmKey]int{}
	for _, e := range s.bad {
		key := alarmKey{e.kind, e.route.Prefix}
		i, there := at[key]
		if !there {
			i = len(out)
			at[key] = i
			out = append(out, Alarm{Kind: e.kind, Prefix: s.own.Prefix, Seen: e.route.Prefix, Since: e.route.At})
		}
		a := &out[i]
		a.Count++
		a.Since, a.Last = earliest(a.Since, e.route.At), latest(a.Last, e.route.At)
		a.Evidence = e.evidence(a.Count)
	}
	return out
}

// evidence tells of a route, one of n that are wrong in the same way.
func (e entry) evidence(n int) string {
	text := fmt.Sprintf("%s; path %s, seen at %s", e.why, pathText(e.route.ASPath), e.route.Peer)
	if e.route.Source != "" {
		text += " (" + e.route.Source + ")"
	}
	if n > 1 {
		text += fmt.Sprintf(" and %d more", n-1)
	}
	return text
}

// date orders alarms and gives those that go on the time of their beginning; it
// forgets that of those that have ended.
func (s *sight) date(found []Alarm) []Alarm {
	now := map[alarmKey]time.Time{}
	for i := range found {
		a := &found[i]
		key := alarmKey{a.Kind, a.Seen}
		if since, there := s.alarms[key]; there {
			a.Since = earliest(a.Since, since)
		}
		now[key] = a.Since
	}
	s.alarms = now
	slices.SortFunc(found, func(a, b Alarm) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Seen.Addr().Compare(b.Seen.Addr()), cmp.Compare(a.Seen.Bits(), b.Seen.Bits()))
	})
	return found
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
