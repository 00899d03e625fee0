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

// Judge holds the routes to our prefixes and says what is wrong with them. It
// reads no clock and does no I/O. It is not safe for several goroutines. Its
// memory is bounded: of a prefix there are at most 64 good and 64 bad routes, the
// oldest make room, and the names of 1024 more vantage points that had a good one.
type Judge struct {
	cfg     Config
	sights  map[netip.Prefix]*sight
	sorted  []netip.Prefix // of sights, by address
	lengths []int          // of sights, each once, the longest first
	sources map[string]*source
}

// source is a feed or a watched peer.
type source struct {
	alive bool
	since time.Time // it has been alive, short breaks aside
	died  time.Time
	shown bool // any route at all
}

// NewJudge returns a Judge without prefixes.
func NewJudge() *Judge {
	return &Judge{sights: map[netip.Prefix]*sight{}, sources: map[string]*source{}}
}

// Set makes cfg what is judged by; URL and File do not matter. It judges anew
// what is there: prefixes that stay keep their routes, and since when they are
// on the air. Cfg must be one that Watcher.Set takes, and belongs to the Judge.
func (j *Judge) Set(cfg Config, now time.Time) {
	old := j.sights
	j.cfg, j.sights, j.sorted, j.lengths = cfg, map[netip.Prefix]*sight{}, nil, nil
	for i, own := range slices.Concat(cfg.Own, cfg.Elsewhere) {
		s := &sight{own: own, onAir: i < len(cfg.Own), since: now, alarms: map[alarmKey]time.Time{}}
		if was := old[own.Prefix]; was != nil {
			s.unseen, s.alarms = was.unseen, was.alarms
			if slices.Equal(own.Origins, was.own.Origins) {
				s.others = was.others
			}
			if s.onAir && was.onAir {
				s.since = was.since
			}
		}
		j.sights[own.Prefix] = s
		j.sorted = append(j.sorted, own.Prefix)
		j.lengths = append(j.lengths, own.Prefix.Bits())
	}
	slices.SortFunc(j.sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	slices.Sort(j.lengths)
	j.lengths = slices.Compact(j.lengths)
	slices.Reverse(j.lengths)
	for _, r := range routesOf(old) {
		j.place(r)
	}
}

// routesOf returns what is held, each route once, the oldest first.
func routesOf(sights map[netip.Prefix]*sight) []Route {
	held := map[vantage]Route{}
	for _, s := range sights {
		for _, v := range []vantages{s.bad, s.cover, s.seen} {
			for _, e := range v {
				held[e.route.at()] = e.route
			}
		}
	}
	return slices.SortedFunc(maps.Values(held), func(a, b Route) int { return a.At.Compare(b.At) })
}

// Observe takes what a vantage point shows. A route without a valid prefix, or
// of one source too many, is dropped. Routes that do not touch our prefixes only
// show that the source is alive.
func (j *Judge) Observe(r Route) {
	if !r.Prefix.IsValid() || r.Prefix.Addr().Is4In6() {
		return
	}
	src := j.sources[r.Source]
	if src == nil {
		if len(j.sources) >= maxSources {
			return
		}
		src = &source{alive: true, since: r.At}
		j.sources[r.Source] = src
	}
	src.shown = true
	r.Prefix = r.Prefix.Masked()
	j.drop(r)
	if !r.Withdrawn {
		j.place(r)
	}
}

// drop takes away what the vantage point had as its route to the prefix.
func (j *Judge) drop(r Route) {
	if s := j.sights[r.Prefix]; s != nil {
		s.drop(r)
	}
	for s := range j.around(r.Prefix) {
		s.drop(r)
	}
	for s := range j.inside(r.Prefix) {
		s.drop(r)
	}
}

// place judges a route and keeps it where it touches a prefix.
func (j *Judge) place(r Route) {
	exact := j.sights[r.Prefix]
	why := verdict{}
	if exact != nil {
		why = judgePath(exact.own, j.cfg.Neighbours, r.ASPath)
		exact.take(r, why)
	}
	// A part of a prefix of ours, and not itself known as ours, or not with this
	// origin. The inmost prefix is concerned.
	if (exact == nil || !exact.onAir && why.kind == UnexpectedOrigin) && len(r.ASPath) > 0 {
		for s := range j.around(r.Prefix) {
			if s.onAir {
				s.bad.put(entry{keep(r), verdict{MoreSpecific, fmt.Sprintf("AS%d originates a part of it", r.ASPath[len(r.ASPath)-1])}}, maxVantages)
				break
			}
		}
	}
	for s := range j.inside(r.Prefix) {
		s.cover.put(entry{route: keep(r)}, maxCovers)
	}
}

// around yields the prefixes of ours of which p is a true part, the longest first.
func (j *Judge) around(p netip.Prefix) func(yield func(*sight) bool) {
	return func(yield func(*sight) bool) {
		for _, bits := range j.lengths {
			if bits >= p.Bits() {
				continue
			}
			if s := j.sights[netip.PrefixFrom(p.Addr(), bits).Masked()]; s != nil && !yield(s) {
				return
			}
		}
	}
}

// inside yields the prefixes of ours that are a true part of p.
func (j *Judge) inside(p netip.Prefix) func(yield func(*sight) bool) {
	return func(yield func(*sight) bool) {
		i, _ := slices.BinarySearchFunc(j.sorted, p.Addr(), func(own netip.Prefix, at netip.Addr) int { return own.Addr().Compare(at) })
		for ; i < len(j.sorted) && p.Contains(j.sorted[i].Addr()); i++ {
			if j.sorted[i].Bits() > p.Bits() && !yield(j.sights[j.sorted[i]]) {
				return
			}
		}
	}
}

// Connected says that a source is read from now on.
func (j *Judge) Connected(name string, now time.Time) {
	src := j.sources[name]
	if src == nil {
		src = &source{since: now}
		j.sources[name] = src
	}
	if !src.alive && now.Sub(src.died) > sourceGrace {
		src.since = now
	}
	src.alive = true
}

// Disconnected says that a source cannot be read now. What it has shown stays:
// a feed does not tell again what has not changed.
func (j *Judge) Disconnected(name string, now time.Time) {
	if src := j.sources[name]; src != nil && src.alive {
		src.alive, src.died = false, now
	}
}

// Lost says that a vantage point of a source has no routes any more; with an
// empty peer none of it has, and the source is forgotten.
func (j *Judge) Lost(name, peer string, now time.Time) {
	for _, s := range j.sights {
		s.lose(now, func(v vantage) bool { return v.source == name && (peer == "" || v.peer == peer) })
	}
	if peer == "" {
		delete(j.sources, name)
	}
}

// Alarms returns what is wrong at now, ordered by prefix, kind and what is seen.
// Evidence that is too old is forgotten.
func (j *Judge) Alarms(now time.Time) (out []Alarm) {
	oldest := now.Add(-cmp.Or(j.cfg.Forget, defaultForget))
	for _, p := range j.sorted {
		s := j.sights[p]
		s.age(now, oldest)
		if !s.onAir {
			continue
		}
		found := s.wrong()
		if a, yes := j.missing(s, now); yes {
			found = append(found, a)
		}
		out = append(out, s.date(found)...)
	}
	return out
}

// missing says whether nobody sees the prefix. Its time runs from when it was
// announced, when it was last seen or when the source came, whichever is last.
func (j *Judge) missing(s *sight, now time.Time) (a Alarm, yes bool) {
	if j.cfg.MissingAfter <= 0 || s.visible() {
		return a, false
	}
	var names []string
	a = Alarm{Kind: Missing, Prefix: s.own.Prefix, Last: now}
	for name, src := range j.sources {
		from := latest(s.since, s.unseen, src.since)
		gone := !src.alive && now.Sub(src.died) > sourceGrace
		if gone || !src.shown || now.Sub(from) < j.cfg.MissingAfter {
			continue
		}
		names = append(names, name)
		if at := from.Add(j.cfg.MissingAfter); a.Since.IsZero() || at.Before(a.Since) {
			a.Since = at
		}
	}
	slices.Sort(names)
	a.Count = len(names)
	a.Evidence = fmt.Sprintf("announced for %s, and not seen by %s", now.Sub(s.since).Round(time.Second), some(names, 3))
	if n := len(s.cover); n > 0 {
		a.Evidence += fmt.Sprintf("; there is a route to %s, by %s", s.cover[n-1].route.Prefix, pathText(s.cover[n-1].route.ASPath))
	}
	return a, len(names) > 0
}

func latest(times ...time.Time) time.Time {
	return slices.MaxFunc(times, time.Time.Compare)
}

// some shows the first of several names.
func some(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
