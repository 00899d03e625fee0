package wire

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/catchment-dev/edge"
)

// Table is what one direction of a session carries: the prefixes that were
// announced and not withdrawn since, each with its path. The zero value is
// empty and without limit. A new session needs a new Table. It is not for two
// goroutines at once.
type Table struct {
	// Limit is how many prefixes, of all families together, are kept; 0 keeps
	// all. A kept prefix costs some 100 bytes, and its path up to 8 KiB that it
	// shares with those of the same message.
	Limit int

	paths  map[netip.Prefix]*Path
	ipv6   int
	missed int
}

// Apply makes the changes of an UPDATE. Beyond the limit, prefixes that are not
// in the table yet are counted and not kept.
func (t *Table) Apply(u Update) {
	for _, p := range u.Withdrawn {
		t.withdraw(p.Masked())
	}
	if t.paths == nil {
		t.paths = map[netip.Prefix]*Path{}
	}
	var shared *Path
	for i, p := range u.Announced {
		if path := u.PathOf(i); shared == nil || shared.NextHop != path.NextHop {
			shared = &path
		}
		t.announce(p.Masked(), shared)
	}
}

func (t *Table) withdraw(p netip.Prefix) {
	if _, ok := t.paths[p]; !ok {
		return
	}
	delete(t.paths, p)
	if p.Addr().Is6() {
		t.ipv6--
	}
}

func (t *Table) announce(p netip.Prefix, path *Path) {
	if _, ok := t.paths[p]; !ok {
		if t.Limit > 0 && len(t.paths) >= t.Limit {
			t.missed++
			return
		}
		if p.Addr().Is6() {
			t.ipv6++
		}
	}
	t.paths[p] = path
}

// Get returns the path of a prefix. Its slices and numbers belong to the table:
// do not change them.
func (t *Table) Get(p netip.Prefix) (Path, bool) {
	path, ok := t.paths[p.Masked()]
	if !ok {
		return Path{}, false
	}
	return *path, true
}

// Len is how many prefixes of a family the table has.
func (t *Table) Len(f edge.Family) int {
	switch f {
	case edge.IPv4:
		return len(t.paths) - t.ipv6
	case edge.IPv6:
		return t.ipv6
	}
	return 0
}

// All returns the prefixes in the order of netip.Prefix.Compare, IPv4 first,
// with their paths, as Get does. The table must not change meanwhile.
func (t *Table) All() iter.Seq2[netip.Prefix, Path] {
	return func(yield func(netip.Prefix, Path) bool) {
		for _, p := range slices.SortedFunc(maps.Keys(t.paths), netip.Prefix.Compare) {
			if !yield(p, *t.paths[p]) {
				return
			}
		}
	}
}

// Over says whether more prefixes than Limit were announced. It stays so, since
// what was not kept cannot be known to be withdrawn.
func (t *Table) Over() bool { return t.missed > 0 }

// Missed is how many announcements of prefixes were not kept.
func (t *Table) Missed() int { return t.missed }
