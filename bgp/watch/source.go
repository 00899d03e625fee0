package watch

import (
	"strings"
	"time"
)

// source is a feed or a watched peer.
type source struct {
	name  string
	born  uint64 // in the order of births of sources and sights
	alive bool
	died  time.Time
	spots map[string]*spot // by peer: those that have something to do with us
	// whole is when the first table of a family had come entirely, IPv4 first;
	// zero: nobody has said so.
	whole [2]time.Time
	shown int // routes that it has shown, ours or not
	// crowd are sights that more of its vantage points see than are kept.
	crowd map[uint32]struct{}
}

// counts says whether what the source has said of an absence still stands.
func (s *source) counts(now time.Time) bool { return s.alive || now.Sub(s.died) <= sourceGrace }

// spot is a vantage point: what one peer of a source has told. Sights are named
// by their index in the Judge.
type spot struct {
	source *source
	peer   string
	has    map[uint32]uint32   // sights to which it has a route from us, and the path
	gone   map[uint32]struct{} // sights to which it had one and has told that it has none any more
	bad    map[uint32]int      // sights of which it has routes that are wrong, and how many
	covers int                 // routes of it that are held as covers
}

// spot returns the vantage point, which is there from now on.
func (s *source) spot(peer string) *spot {
	sp := s.spots[peer]
	if sp == nil {
		sp = &spot{source: s, peer: strings.Clone(peer)}
		s.spots[sp.peer] = sp
	}
	return sp
}

// rest forgets a vantage point of which nothing is held.
func (sp *spot) rest() {
	if len(sp.has) == 0 && len(sp.gone) == 0 && len(sp.bad) == 0 && sp.covers == 0 {
		delete(sp.source.spots, sp.peer)
	}
}

// name is how evidence names the vantage point.
func (sp *spot) name() string {
	if sp.source.name == "" {
		return sp.peer
	}
	return sp.peer + " (" + sp.source.name + ")"
}

// set puts a key into a map that may not be there yet: most vantage points have
// one kind of news only.
func set[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}
