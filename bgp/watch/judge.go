package watch

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// Judge holds the routes to our prefixes and says what is wrong with them. It
// reads no clock and does no I/O. It is not safe for several goroutines. Its
// memory is bounded, whatever is told: see the bounds of the package.
type Judge struct {
	cfg     Config
	sights  []*sight                // by address and length
	index   map[netip.Prefix]uint32 // of sights
	lengths [2][]int                // of sights, by family, each once, the longest first
	share   int                     // wrong routes that are held of one sight
	sources map[string]*source
	tables  []*source // whose whole table has come, of one family at least
	paths   paths
	covers  covers
	held    int // entries of has and gone of all spots
	births  uint64
}

// NewJudge returns a Judge without prefixes.
func NewJudge() *Judge {
	return &Judge{sources: map[string]*source{}, paths: newPaths(), covers: newCovers()}
}

// Observe takes what a vantage point shows. A route without a valid prefix, or
// of one source too many, is dropped. A route that does not touch our prefixes
// only shows that the source has a table.
func (j *Judge) Observe(r Route) {
	if !r.Prefix.IsValid() || r.Prefix.Addr().Is4In6() {
		return
	}
	src := j.source(r.Source)
	if src == nil {
		return
	}
	r.Prefix = r.Prefix.Masked()
	if r.Withdrawn {
		j.withdraw(src, r)
		return
	}
	src.shown++
	j.place(src, r)
}

// place is what a prefix has to do with ours.
type place struct {
	exact, outer     uint32 // the sight of itself; the inmost one on the air of which it is a part
	isExact, isInner bool   // whether there is one
}

func (j *Judge) find(p netip.Prefix) (at place) {
	at.exact, at.isExact = j.index[p]
	at.outer, at.isInner = j.outer(p)
	return at
}

// withdraw takes away what the vantage point had as its route to the prefix.
func (j *Judge) withdraw(src *source, r Route) {
	sp := src.spots[r.Peer]
	if sp == nil {
		return // it has told nothing that touches us
	}
	at := j.find(r.Prefix)
	if at.isExact {
		j.leave(sp, at.exact, r.At)
	}
	j.drop(sp, r.Prefix, at)
}

// drop takes away what was wrong with the route of a vantage point, and the
// route as a cover.
func (j *Judge) drop(sp *spot, p netip.Prefix, at place) {
	if sp == nil {
		return
	}
	if at.isExact {
		j.sights[at.exact].drop(at.exact, sp, p)
	}
	if at.isInner {
		j.sights[at.outer].drop(at.outer, sp, p)
	}
	j.covers.drop(sp, p)
}

// place judges a route and keeps it where it touches a prefix.
func (j *Judge) place(src *source, r Route) {
	at := j.find(r.Prefix)
	j.drop(src.spots[r.Peer], r.Prefix, at)
	wrong := func(id uint32, v verdict) {
		j.sights[id].put(id, entry{src.spot(r.Peer), r.Prefix, r.ASPath, r.At, v}, j.share)
	}
	elsewhere := true // it is not ours, or another one's where it is ours
	if at.isExact {
		s := j.sights[at.exact]
		v := judgePath(s.own, j.cfg.Neighbours, r.ASPath)
		if v.kind == UnexpectedOrigin {
			j.leave(src.spots[r.Peer], at.exact, r.At)
		} else {
			j.enter(src, at.exact, r)
		}
		if v.kind != "" {
			wrong(at.exact, v)
		}
		elsewhere = !s.onAir && v.kind == UnexpectedOrigin
	}
	// A part of a prefix of ours, and not itself known as ours, or not with this
	// origin. The inmost prefix is concerned.
	if elsewhere && at.isInner && len(r.ASPath) > 0 {
		wrong(at.outer, verdict{MoreSpecific, fmt.Sprintf("AS%d originates a part of it", r.ASPath[len(r.ASPath)-1])})
	}
	if j.inside(r.Prefix) {
		j.covers.put(src.spot(r.Peer), r.Prefix, r.ASPath)
	}
}

// enter notes that a vantage point has a route to a sight, from us.
func (j *Judge) enter(src *source, id uint32, r Route) {
	s, sp := j.sights[id], src.spots[r.Peer]
	if sp != nil {
		if path, had := sp.has[id]; had {
			sp.has[id] = j.paths.put(r.ASPath) // first, as it is most often the same
			j.paths.drop(path)
			return
		}
		if _, was := sp.gone[id]; was {
			s.untell(sp)
			delete(sp.gone, id)
			j.held--
		}
	}
	if j.held >= maxHeld || sp == nil && len(src.spots) >= maxSpots {
		if _, there := src.crowd[id]; !there {
			set(&src.crowd, id, struct{}{})
			s.crowd++
		}
		return
	}
	sp = src.spot(r.Peer)
	set(&sp.has, id, j.paths.put(r.ASPath))
	s.seen++
	j.held++
}

// leave notes that a vantage point has no route to a sight, from us, any more.
func (j *Judge) leave(sp *spot, id uint32, at time.Time) {
	if sp == nil {
		return
	}
	path, had := sp.has[id]
	if !had {
		return
	}
	j.paths.drop(path)
	delete(sp.has, id)
	set(&sp.gone, id, struct{}{})
	s := j.sights[id]
	s.fewer(at)
	s.tell(sp, at)
}

// around yields the sights of which p is a true part, the longest first.
func (j *Judge) around(p netip.Prefix) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, bits := range j.lengths[family(p.Addr())] {
			if bits >= p.Bits() {
				continue
			}
			if id, there := j.index[netip.PrefixFrom(p.Addr(), bits).Masked()]; there && !yield(id) {
				return
			}
		}
	}
}

// outer returns the inmost sight on the air of which p is a true part.
func (j *Judge) outer(p netip.Prefix) (uint32, bool) {
	for id := range j.around(p) {
		if j.sights[id].onAir {
			return id, true
		}
	}
	return 0, false
}

// inside says whether a prefix of ours is a true part of p.
func (j *Judge) inside(p netip.Prefix) bool {
	i, _ := slices.BinarySearchFunc(j.sights, p.Addr(), func(s *sight, at netip.Addr) int { return s.own.Prefix.Addr().Compare(at) })
	for ; i < len(j.sights) && p.Contains(j.sights[i].own.Prefix.Addr()); i++ {
		if j.sights[i].own.Prefix.Bits() > p.Bits() {
			return true
		}
	}
	return false
}

// Findings are what is wrong.
type Findings struct {
	Alarms []Alarm // ordered by prefix, kind and what is seen; at most 4096
	More   int     // alarms beyond
	// Unseen are prefixes on the air that no vantage point shows and that are
	// not missing: nothing is known of them, or not for long enough.
	Unseen int
}

// Find returns what is wrong at now. Evidence that is too old is forgotten.
func (j *Judge) Find(now time.Time) (out Findings) {
	oldest := now.Add(-cmp.Or(j.cfg.Forget, defaultForget))
	for i, s := range j.sights {
		s.age(uint32(i), now, oldest)
		if !s.onAir {
			continue
		}
		found := s.wrong()
		if f, yes := j.missing(s, now); yes {
			found = append(found, f)
		} else if !s.visible() {
			out.Unseen++
		}
		s.date(found)
		for _, f := range found {
			if len(out.Alarms) >= maxAlarms {
				out.More++
				continue
			}
			if f.Kind == Missing {
				f.Evidence = j.absence(s, now)
			} else {
				f.Evidence = f.last.evidence(f.Count)
			}
			out.Alarms = append(out.Alarms, f.Alarm)
		}
	}
	return out
}
