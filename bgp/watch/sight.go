package watch

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// sight is what is seen of one of our prefixes.
type sight struct {
	own   Own
	born  uint64 // sources born later have told all that they have of it
	onAir bool
	since time.Time // it is on the air
	seen  int       // vantage points that have a route to it, from us
	crowd int       // sources of which more see it than are kept
	// unseen is when the last vantage point has lost it; zero: none had it.
	unseen time.Time
	words  []word  // of vantage points that had it and have it no more
	bad    []entry // what is wrong, until it is withdrawn or too old
	alarms map[alarmKey]time.Time
	by     []*source // who bears witness to the alarm that it is missing
	again  bool      // its origins are others: what is seen of it is judged anew
}

// alarmKey names an alarm of a sight. The times of alarms are since when they
// are there.
type alarmKey struct {
	kind string
	seen netip.Prefix
}

// word is what the vantage points of one source have told: that they have no
// route any more.
type word struct {
	source *source
	n      int
	at     time.Time // of the last
	last   *spot     // nil: it has changed its mind
}

// entry is a route that is wrong.
type entry struct {
	from   *spot
	prefix netip.Prefix
	path   []uint32
	at     time.Time
	verdict
}

// visible says whether a vantage point may have a route to the prefix, from us.
func (s *sight) visible() bool { return s.seen > 0 || s.crowd > 0 }

// fewer notes that a vantage point has no route any more.
func (s *sight) fewer(at time.Time) {
	if s.seen--; !s.visible() {
		s.unseen = at
	}
}

// thin notes that there is one source less of which more see it than are kept.
func (s *sight) thin(at time.Time) {
	if s.crowd--; !s.visible() {
		s.unseen = at
	}
}

// tell notes that a vantage point says so.
func (s *sight) tell(from *spot, at time.Time) {
	i := slices.IndexFunc(s.words, func(w word) bool { return w.source == from.source })
	if i < 0 {
		i = len(s.words)
		s.words = append(s.words, word{source: from.source})
	}
	w := &s.words[i]
	w.n, w.at, w.last = w.n+1, at, from
}

// untell takes back the word of a vantage point.
func (s *sight) untell(from *spot) {
	i := slices.IndexFunc(s.words, func(w word) bool { return w.source == from.source })
	w := &s.words[i]
	if w.last == from {
		w.last = nil
	}
	if w.n--; w.n == 0 {
		s.words = slices.Delete(s.words, i, i+1)
	}
}

// put keeps a route that is wrong, of which the vantage point has none there
// yet. Of so many the one that was told the longest time ago makes room.
func (s *sight) put(id uint32, e entry, most int) {
	e.path = slices.Clone(tail(e.path))
	set(&e.from.bad, id, e.from.bad[id]+1)
	s.bad = append(s.bad, e)
	for len(s.bad) > most {
		s.remove(id, func(i int) bool { return i == 0 })
	}
}

// drop takes away a wrong route of a vantage point.
func (s *sight) drop(id uint32, from *spot, p netip.Prefix) {
	if from != nil && from.bad[id] > 0 {
		s.remove(id, func(i int) bool { return s.bad[i].from == from && s.bad[i].prefix == p })
	}
}

// lose takes away all wrong routes of a vantage point.
func (s *sight) lose(id uint32, from *spot) {
	s.remove(id, func(i int) bool { return s.bad[i].from == from })
}

// remove takes away what which says, in one pass.
func (s *sight) remove(id uint32, which func(i int) bool) {
	kept := 0
	for i := range s.bad {
		e := s.bad[i]
		if !which(i) {
			s.bad[kept] = e
			kept++
			continue
		}
		if e.from.bad[id]--; e.from.bad[id] == 0 {
			delete(e.from.bad, id)
		}
		e.from.rest()
	}
	clear(s.bad[kept:])
	s.bad = s.bad[:kept]
}

// age forgets evidence from before oldest. A time in the future is a wrong clock
// somewhere: it would count for ever.
func (s *sight) age(id uint32, now, oldest time.Time) {
	old := false
	for i := range s.bad {
		s.bad[i].at = earliest(s.bad[i].at, now)
		old = old || s.bad[i].at.Before(oldest)
	}
	if old {
		s.remove(id, func(i int) bool { return s.bad[i].at.Before(oldest) })
	}
	s.unseen = earliest(s.unseen, now)
}

// finding is an alarm whose evidence is not yet in words.
type finding struct {
	Alarm
	last *entry // the last evidence; for Missing: nil
}

// wrong returns the wrong routes as alarms, those of one kind to one prefix as one.
func (s *sight) wrong() (out []finding) {
	if len(s.bad) == 0 {
		return nil
	}
	for n := range s.bad {
		e := &s.bad[n]
		i := slices.IndexFunc(out, func(f finding) bool { return f.Kind == e.kind && f.Seen == e.prefix })
		if i < 0 {
			i = len(out)
			out = append(out, finding{Alarm: Alarm{Kind: e.kind, Prefix: s.own.Prefix, Seen: e.prefix, Since: e.at}})
		}
		a := &out[i]
		a.Count++
		a.Since, a.Last = earliest(a.Since, e.at), latest(a.Last, e.at)
		a.last = e
	}
	return out
}

// evidence tells of a route, one of n that are wrong in the same way.
func (e entry) evidence(n int) string {
	text := fmt.Sprintf("%s; path %s, seen at %s", e.why, pathText(e.path), e.from.name())
	if n > 1 {
		text += fmt.Sprintf(" and %d more", n-1)
	}
	return text
}

// date orders alarms and gives those that go on the time of their beginning; it
// forgets that of those that have ended.
func (s *sight) date(found []finding) {
	if len(found) == 0 && len(s.alarms) == 0 {
		return
	}
	same := len(found) == len(s.alarms)
	for i := range found {
		a := &found[i]
		since, there := s.alarms[alarmKey{a.Kind, a.Seen}]
		if there {
			a.Since = earliest(a.Since, since)
		}
		same = same && there && a.Since.Equal(since)
	}
	if !same {
		s.alarms = make(map[alarmKey]time.Time, len(found))
		for _, a := range found {
			s.alarms[alarmKey{a.Kind, a.Seen}] = a.Since
		}
	}
	slices.SortFunc(found, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Seen.Addr().Compare(b.Seen.Addr()), cmp.Compare(a.Seen.Bits(), b.Seen.Bits()))
	})
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func latest(times ...time.Time) time.Time {
	return slices.MaxFunc(times, time.Time.Compare)
}
