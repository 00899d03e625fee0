package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// change is what a router's kernel has said of its site's route.
type change struct {
	at     time.Time
	site   string
	prefix netip.Prefix
	there  bool
}

func (c change) String() string {
	what := "gone"
	if c.there {
		what = "there"
	}
	return fmt.Sprintf("%s %s %s: %s", c.at.Format("15:04:05.000"), c.site, c.prefix, what)
}

// book has every change at every router. Several goroutines may use it at once.
type book struct {
	sites []string
	mu    sync.Mutex
	all   []change
}

func newBook(sites []string) *book { return &book{sites: sites} }

func (b *book) write(c change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, c)
}

// present are the sites whose routers have a route now, as far as has been said.
func (b *book) present(p netip.Prefix) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.in(p)
}

func (b *book) in(p netip.Prefix) []string {
	in := map[string]bool{}
	for _, c := range b.all {
		if c.prefix == p {
			in[c.site] = c.there
		}
	}
	return among(b.sites, in)
}

// turn begins a page: all sites are present, or it is an error, and what was before
// is forgotten.
func (b *book) turn() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var page []change
	for _, p := range prefixes() {
		if in := b.in(p); len(in) != len(b.sites) {
			return fmt.Errorf("begin a round: only %v have %s", in, p)
		}
		for _, s := range b.sites {
			page = append(page, change{time.Now(), s, p, true})
		}
	}
	b.all = page
	return nil
}

// changes are those since turn.
func (b *book) changes() []change {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.all)
}

// last is when the last change was.
func (b *book) last() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	var t time.Time
	for _, c := range b.all {
		if c.at.After(t) {
			t = c.at
		}
	}
	return t
}

func among(sites []string, in map[string]bool) []string {
	var out []string
	for _, s := range sites {
		if in[s] {
			out = append(out, s)
		}
	}
	return out
}

// replaceGap is within how much time an addition may make a replacement of the deletion
// before it: BIRD replaces an IPv6 route by both, in one go.
const replaceGap = 100 * time.Millisecond

// gap is a route that was deleted and added again, by their places in a list.
type gap struct {
	from, to int
	long     time.Duration
}

// actual leaves out what was only a replacement, and sorts by time. told is how many
// prefixes each site has withdrawn by what its router's BGP has heard: gaps are short
// or real, and if there are more real ones than deletions that nothing follows at once,
// the longest gaps are. A site may well leave and be back in a moment.
func actual(all []change, told map[string]int) []change {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b change) int { return a.at.Compare(b.at) })
	gaps, sure := map[string][]gap{}, map[string]int{}
	for i, c := range all {
		if c.there {
			continue
		}
		if g, ok := gapAt(all, i); ok {
			gaps[c.site] = append(gaps[c.site], g)
		} else {
			sure[c.site]++
		}
	}
	drop := map[int]bool{}
	for s, of := range gaps {
		slices.SortFunc(of, func(a, b gap) int { return cmp.Compare(b.long, a.long) })
		for _, g := range of[min(len(of), max(0, told[s]-sure[s])):] {
			drop[g.from], drop[g.to] = true, true
		}
	}
	var out []change
	for i, c := range all {
		if !drop[i] {
			out = append(out, c)
		}
	}
	return out
}

// gapAt is the gap that a deletion may begin.
func gapAt(all []change, from int) (gap, bool) {
	c := all[from]
	for to := from + 1; to < len(all) && c.prefix.Addr().Is6(); to++ {
		if next := all[to]; next.site == c.site && next.prefix == c.prefix {
			long := next.at.Sub(c.at)
			return gap{from, to, long}, next.there && long < replaceGap
		}
	}
	return gap{}, false
}

// loss is a route that has gone, and who stayed.
type loss struct {
	change
	stay []string
}

func (l loss) String() string {
	return fmt.Sprintf("%s; %d stay: %s", l.change, len(l.stay), strings.Join(l.stay, " "))
}

// losses goes through the changes of a prefix in their order, which are without
// replacements.
func losses(sites []string, p netip.Prefix, all []change) []loss {
	in := map[string]bool{}
	var out []loss
	for _, c := range all {
		if c.prefix != p {
			continue
		}
		was := in[c.site]
		in[c.site] = c.there
		if was && !c.there {
			out = append(out, loss{c, among(sites, in)})
		}
	}
	return out
}
