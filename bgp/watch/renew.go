package watch

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// told is a route of a source that is to be placed again.
type told struct {
	source *source
	route  Route
}

// Set makes cfg what is judged by; URL and File do not matter. It judges anew
// what is there: prefixes that stay keep their routes, and since when they are
// on the air. Cfg must be one that Watcher.Set takes, and belongs to the Judge.
func (j *Judge) Set(cfg Config, now time.Time) {
	neighbours := !slices.Equal(cfg.Neighbours, j.cfg.Neighbours)
	routes := j.takeRoutes(now)
	old := j.sights
	j.cfg = cfg
	j.install(cfg, now)
	for _, src := range j.sources {
		routes = append(routes, j.move(src, old, neighbours, now)...)
	}
	for _, s := range j.sights {
		s.again = false
	}
	slices.SortStableFunc(routes, func(a, b told) int { return a.route.At.Compare(b.route.At) })
	for _, t := range routes {
		j.place(t.source, t.route)
	}
}

// takeRoutes takes out what is held of routes that are wrong, and of covers.
func (j *Judge) takeRoutes(now time.Time) (out []told) {
	take := func(from *spot, p netip.Prefix, path []uint32, at time.Time) {
		out = append(out, told{from.source, Route{Prefix: p, ASPath: path, Peer: from.peer, Source: from.source.name, At: at}})
	}
	for i, s := range j.sights {
		for _, e := range s.bad {
			take(e.from, e.prefix, e.path, e.at)
		}
		s.remove(uint32(i), func(int) bool { return true })
	}
	for p, c := range j.covers.routes {
		take(c.from, p, c.path, now)
		j.covers.drop(c.from, p)
	}
	return out
}

// install makes the prefixes of cfg the sights, and keeps those that are there.
func (j *Judge) install(cfg Config, now time.Time) {
	next := make([]*sight, 0, len(cfg.Own)+len(cfg.Elsewhere))
	for i, own := range slices.Concat(cfg.Own, cfg.Elsewhere) {
		var s *sight
		if id, there := j.index[own.Prefix]; there {
			s = j.sights[id]
			s.again = !slices.Equal(own.Origins, s.own.Origins)
		} else {
			s = &sight{}
		}
		if s.born == 0 || s.again {
			j.births++
			s.born = j.births
		}
		onAir := i < len(cfg.Own)
		if !s.onAir || !onAir {
			s.since = now
		}
		if !onAir || s.again {
			s.by = nil
		}
		s.own, s.onAir = own, onAir
		next = append(next, s)
	}
	slices.SortFunc(next, func(a, b *sight) int {
		p, q := a.own.Prefix, b.own.Prefix
		return cmp.Or(p.Addr().Compare(q.Addr()), cmp.Compare(p.Bits(), q.Bits()))
	})
	j.sights, j.index, j.lengths = next, make(map[netip.Prefix]uint32, len(next)), [2][]int{}
	for i, s := range next {
		p := s.own.Prefix
		j.index[p] = uint32(i)
		if l := &j.lengths[family(p.Addr())]; !slices.Contains(*l, p.Bits()) {
			*l = append(*l, p.Bits())
		}
	}
	for f := range j.lengths {
		slices.Sort(j.lengths[f])
		slices.Reverse(j.lengths[f])
	}
	j.share = min(max(maxBad/max(len(next), 1), minShare), maxShare)
}

// move makes what the vantage points of a source have told of the old sights be
// about those there are now, and returns routes that may be wrong now, of one
// prefix as many as are held.
func (j *Judge) move(src *source, old []*sight, neighbours bool, now time.Time) (out []told) {
	if !neighbours && slices.Equal(old, j.sights) && !slices.ContainsFunc(old, func(s *sight) bool { return s.again }) {
		return nil
	}
	crowd := src.crowd
	src.crowd = nil
	for id := range crowd {
		if to, stays := j.index[old[id].own.Prefix]; stays {
			set(&src.crowd, to, struct{}{})
		}
	}
	found := map[netip.Prefix]int{}
	for _, sp := range src.spots {
		j.moveGone(sp, old)
		has := sp.has
		sp.has = nil
		j.held -= len(has)
		for id, name := range has {
			s := old[id]
			p := s.own.Prefix
			path, known := j.paths.get(name)
			to, stays := j.index[p]
			keep, wrong := stays, false
			switch {
			case !known:
				keep = stays && !s.again
			case !stays:
				wrong = j.touches(p)
			case s.again || neighbours:
				v := judgePath(s.own, j.cfg.Neighbours, path)
				keep, wrong = v.kind != UnexpectedOrigin, v.kind != ""
			}
			if wrong && found[p] < j.share {
				found[p]++
				out = append(out, told{src, Route{Prefix: p, ASPath: path, Peer: sp.peer, Source: src.name, At: now}})
			}
			if !keep {
				j.paths.drop(name)
				s.fewer(now)
				continue
			}
			set(&sp.has, to, name)
			j.held++
		}
		sp.rest()
	}
	return out
}

// moveGone does so with the words of one vantage point.
func (j *Judge) moveGone(sp *spot, old []*sight) {
	gone := sp.gone
	sp.gone = nil
	j.held -= len(gone)
	for id := range gone {
		to, stays := j.index[old[id].own.Prefix]
		if !stays || old[id].again {
			old[id].untell(sp)
			continue
		}
		set(&sp.gone, to, struct{}{})
		j.held++
	}
}

// touches says whether a prefix is a part of one of ours on the air, or one of
// ours of it.
func (j *Judge) touches(p netip.Prefix) bool {
	_, part := j.outer(p)
	return part || j.inside(p)
}
