package watch

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// missing says whether the prefix is missing: see the doc of the package. The
// evidence is put into words by absence.
func (j *Judge) missing(s *sight, now time.Time) (f finding, yes bool) {
	if j.cfg.MissingAfter <= 0 || s.visible() {
		s.by = nil
		return f, false
	}
	f = finding{Alarm: Alarm{Kind: Missing, Prefix: s.own.Prefix, Since: now, Last: now}}
	witness := func(src *source, said time.Time) {
		due := latest(s.since, s.unseen, said).Add(j.cfg.MissingAfter)
		if due.After(now) {
			return
		}
		f.Since = earliest(f.Since, due)
		if !slices.Contains(s.by, src) {
			s.by = append(s.by, src)
		}
	}
	for _, w := range s.words {
		witness(w.source, w.at)
	}
	for _, src := range j.tables {
		if at := src.whole[family(s.own.Prefix.Addr())]; !at.IsZero() && s.born < src.born {
			witness(src, at)
		}
	}
	s.by = slices.DeleteFunc(s.by, func(src *source) bool { return !src.counts(now) })
	f.Count = len(s.by)
	return f, f.Count > 0
}

// absence puts the evidence that a prefix is missing into words.
func (j *Judge) absence(s *sight, now time.Time) string {
	var said []string
	for _, src := range s.by {
		said = append(said, s.absenceBy(src))
	}
	slices.Sort(said)
	text := fmt.Sprintf("announced for %s, and seen by nobody", now.Sub(s.since).Round(time.Second))
	if !s.unseen.IsZero() {
		text += " since " + clock(s.unseen)
	}
	text += ": " + strings.Join(said[:min(len(said), 3)], "; ")
	if len(said) > 3 {
		text += fmt.Sprintf("; and %d more", len(said)-3)
	}
	if p, c, there := j.covers.of(s.own.Prefix); there {
		text += fmt.Sprintf("; there is a route to %s, by %s", p, pathText(c.path))
	}
	return text
}

// absenceBy is what one source has to do with it.
func (s *sight) absenceBy(src *source) string {
	if at := src.whole[family(s.own.Prefix.Addr())]; !at.IsZero() {
		return fmt.Sprintf("%s has sent its whole table, of %d routes, without it", src.name, src.shown)
	}
	i := slices.IndexFunc(s.words, func(w word) bool { return w.source == src })
	if i < 0 {
		return src.name + " told so, and was away since then"
	}
	w := s.words[i]
	text := fmt.Sprintf("of %s %d had it and have lost it", src.name, w.n)
	if w.last != nil {
		text += fmt.Sprintf(", the last %s at %s", w.last.peer, clock(w.at))
	}
	return text
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// EndOfRIB says that a source, a watched peer, has told all the routes of a
// family that it has: what is not among them, and was ours all the time, it has
// not. That holds until the source is lost.
func (j *Judge) EndOfRIB(name string, f edge.Family, now time.Time) {
	src := j.source(name)
	if src == nil {
		return
	}
	if src.whole == [2]time.Time{} {
		j.tables = append(j.tables, src)
	}
	i := 0
	if f == edge.IPv6 {
		i = 1
	}
	if src.whole[i].IsZero() {
		src.whole[i] = now
	}
}

// Connected says that a source is read from now on.
func (j *Judge) Connected(name string, now time.Time) {
	src := j.source(name)
	if src == nil {
		return
	}
	if !src.counts(now) {
		j.forgetWitness(src)
	}
	src.alive = true
}

// Disconnected says that a source cannot be read now. What it has shown stays: a
// feed does not tell again what has not changed. That its vantage points have no
// route any more is not known from now on: they may have one when it is back.
func (j *Judge) Disconnected(name string, now time.Time) {
	src := j.sources[name]
	if src == nil || !src.alive {
		return
	}
	src.alive, src.died = false, now
	j.Gap(name)
}

// Gap says that something of what a source has told may not have come here.
func (j *Judge) Gap(name string) {
	if src := j.sources[name]; src != nil {
		for _, sp := range src.spots {
			j.silence(sp)
		}
	}
}

// silence takes back the words of a vantage point.
func (j *Judge) silence(sp *spot) {
	for id := range sp.gone {
		j.sights[id].untell(sp)
	}
	j.held -= len(sp.gone)
	sp.gone = nil
	sp.rest()
}

// Lost says that a vantage point of a source has no routes any more, which is
// not told by the routers: it bears witness to nothing. With an empty peer the
// source is gone, and all that it has told.
func (j *Judge) Lost(name, peer string, now time.Time) {
	src := j.sources[name]
	switch {
	case src == nil:
	case peer == "":
		for _, sp := range src.spots {
			j.lose(sp, now)
		}
		for id := range src.crowd {
			j.sights[id].thin(now)
		}
		j.forgetWitness(src)
		j.tables = slices.DeleteFunc(j.tables, func(t *source) bool { return t == src })
		delete(j.sources, name)
	case src.spots[peer] != nil:
		j.lose(src.spots[peer], now)
	}
}

// lose takes away all that is held of a vantage point.
func (j *Judge) lose(sp *spot, now time.Time) {
	for id, path := range sp.has {
		j.paths.drop(path)
		j.sights[id].fewer(now)
	}
	j.held -= len(sp.has)
	sp.has = nil
	for id := range sp.bad {
		j.sights[id].lose(id, sp)
	}
	j.covers.lose(sp)
	j.silence(sp)
}

// forgetWitness makes a source bear witness to nothing.
func (j *Judge) forgetWitness(src *source) {
	for _, s := range j.sights {
		if i := slices.Index(s.by, src); i >= 0 {
			s.by = slices.Delete(s.by, i, i+1)
		}
	}
}

// source returns a source, which is there from now on; nil if there are too many.
func (j *Judge) source(name string) *source {
	src := j.sources[name]
	if src == nil && len(j.sources) < maxSources {
		j.births++
		src = &source{name: strings.Clone(name), born: j.births, alive: true, spots: map[string]*spot{}}
		j.sources[src.name] = src
	}
	return src
}
