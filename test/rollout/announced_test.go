package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge/test/lab"
)

// watchEvery is how often each router is asked.
const watchEvery = 500 * time.Millisecond

// pathState is how a router has the path of a box.
type pathState string

const (
	pathFull pathState = "as usual"
	pathLast pathState = "marked with 65535:0"
)

// paths are those that a router has of its boxes: by prefix and box.
type paths map[netip.Prefix]map[string]pathState

// sighting is what a router had from a time on.
type sighting struct {
	at     time.Time
	router string
	paths  paths
}

func (s sighting) String() string {
	return fmt.Sprintf("%s %s %v", s.at.Format("15:04:05.000"), s.router, s.paths)
}

// announced asks all routers again and again what they have of their boxes, by their
// BGP: a path that nobody prefers is in no kernel, and is announced all the same.
type announced struct {
	group errgroup.Group
	seen  [][]sighting // by router
}

func (f *fleet) watch(ctx context.Context) *announced {
	w := &announced{seen: make([][]sighting, len(f.Topology.Routers))}
	for i, spec := range f.Topology.Routers {
		r := f.Routers[spec.Name]
		w.group.Go(func() (err error) {
			w.seen[i], err = f.follow(ctx, r)
			return err
		})
	}
	return w
}

// wait waits for the end of the context; the sightings are in the order of their times.
func (w *announced) wait() ([]sighting, error) {
	err := w.group.Wait()
	all := slices.Concat(w.seen...)
	slices.SortStableFunc(all, func(a, b sighting) int { return a.at.Compare(b.at) })
	return all, err
}

// boxesAt are the boxes at a router, by their addresses.
func (f *fleet) boxesAt(router string) map[string]string {
	at := map[string]string{}
	for name, b := range f.Boxes {
		if b.Router == router {
			at[b.Addr4] = name
		}
	}
	return at
}

// mostUnread is how many answers in a row may not be whole. What is not seen may be
// below the floor.
const mostUnread = 4

// follow asks one router until ctx ends, and once more then, and notes what is new: what
// has just happened belongs to what was done before.
func (f *fleet) follow(ctx context.Context, r *lab.Router) (seen []sighting, err error) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	boxes, unread := f.boxesAt(r.Name()), 0
	for last := false; ; {
		at := time.Now()
		has, err := f.paths(context.WithoutCancel(ctx), r, boxes)
		if err == nil {
			if n := len(seen); n == 0 || !maps.EqualFunc(seen[n-1].paths, has, maps.Equal) {
				seen = append(seen, sighting{at, r.Name(), has})
			}
			unread = 0
		} else if unread++; unread > mostUnread {
			return seen, fmt.Errorf("ask %s what is announced: %w", r.Name(), err)
		}
		if last && err == nil {
			return seen, nil
		}
		select {
		case <-ctx.Done():
			last = true
		case <-tick.C:
		}
	}
}

// least is for how few sites any of the prefixes was announced at any time, from when
// all routers were known.
func (f *fleet) least(seen []sighting) int {
	now := map[string]paths{}
	least := len(f.Topology.Sites)
	for _, s := range seen {
		now[s.router] = s.paths
		if len(now) < len(f.Topology.Routers) {
			continue
		}
		for _, prefix := range served() {
			n := 0
			for _, has := range now {
				n += min(1, len(has[prefix]))
			}
			least = min(least, n)
		}
	}
	if len(now) < len(f.Topology.Routers) {
		return 0
	}
	return least
}

// moves are when the traffic of a whole site moves: no box of it has a path any more
// that is as usual, or the first has one again.
func (f *fleet) moves(seen []sighting) []time.Time {
	known := map[string]paths{}
	var moves []time.Time
	for _, s := range seen {
		before, ok := known[s.router]
		known[s.router] = s.paths
		for _, prefix := range served() {
			if ok && before.attracts(prefix) != s.paths.attracts(prefix) {
				moves = append(moves, s.at)
				break
			}
		}
	}
	return moves
}

// leaves are the boxes that have left, in their order, and those paths of them that were
// not marked before.
func leaves(seen []sighting) (left, unmarked []string) {
	known := map[string]paths{}
	for _, s := range seen {
		before := known[s.router]
		known[s.router] = s.paths
		gone := map[string]bool{}
		for prefix, boxes := range before {
			for box, state := range boxes {
				if _, ok := s.paths[prefix][box]; ok {
					continue
				}
				gone[box] = true
				if state != pathLast {
					unmarked = append(unmarked, fmt.Sprintf("%s of %s at %s", prefix, box, s.at.Format("15:04:05.000")))
				}
			}
		}
		for box := range gone {
			if !slices.ContainsFunc(served(), func(p netip.Prefix) bool { return s.paths[p][box] != "" }) {
				left = append(left, box)
			}
		}
	}
	return left, unmarked
}

// attracts says whether there is a path that routers prefer.
func (p paths) attracts(prefix netip.Prefix) bool {
	for _, state := range p[prefix] {
		if state == pathFull {
			return true
		}
	}
	return false
}

// TestLeast: the least is of one moment, over all routers.
func TestLeast(t *testing.T) {
	f := &fleet{Lab: &lab.Lab{Topology: three().topology()}, scale: three()}
	has := func(state pathState, boxes ...string) paths {
		p := nothing()
		for _, prefix := range served() {
			for _, b := range boxes {
				p[prefix][b] = state
			}
		}
		return p
	}
	start := time.Now()
	sees := func(s int, router string, state pathState, boxes ...string) sighting {
		return sighting{start.Add(time.Duration(s) * time.Second), router, has(state, boxes...)}
	}
	at := func(s int, router string, boxes ...string) sighting { return sees(s, router, pathFull, boxes...) }
	all := []sighting{at(0, "r-a", "a1", "a2"), at(0, "r-b", "b1"), at(0, "r-c", "c1")}
	for _, c := range []struct {
		what  string
		seen  []sighting
		least int
		moves int
	}{
		{"all", all, 3, 0},
		{"one after the other", append(slices.Clone(all), at(1, "r-a"), at(2, "r-a", "a1"), at(3, "r-b"), at(4, "r-b", "b1")), 2, 4},
		{"two at once", append(slices.Clone(all), at(1, "r-a"), at(2, "r-b"), at(3, "r-b", "b1")), 1, 3},
		{"one box of two", append(slices.Clone(all), at(1, "r-a", "a2"), at(2, "r-a", "a1", "a2")), 3, 0},
		{"marked, and then away", append(slices.Clone(all), sees(1, "r-b", pathLast, "b1"), at(2, "r-b")), 2, 1},
		{"marked, and back", append(slices.Clone(all), sees(1, "r-b", pathLast, "b1"), at(2, "r-b", "b1")), 3, 2},
		{"a router was never asked", all[:2], 0, 0},
	} {
		if got := f.least(c.seen); got != c.least {
			t.Errorf("%s: %d, want %d", c.what, got, c.least)
		}
		if got := len(f.moves(c.seen)); got != c.moves {
			t.Errorf("%s: %d moves, want %d", c.what, got, c.moves)
		}
	}
}

// TestLeaves: who leaves has told so before, with each prefix.
func TestLeaves(t *testing.T) {
	is := func(v4, v6 pathState) paths {
		p := nothing()
		for prefix, state := range map[netip.Prefix]pathState{lab.Prefix4: v4, lab.Prefix6: v6} {
			if state != "" {
				p[prefix]["a1"] = state
			}
		}
		return p
	}
	for _, c := range []struct {
		what           string
		seen           []paths
		left, unmarked int
	}{
		{"marked", []paths{is(pathFull, pathFull), is(pathLast, pathLast), is("", "")}, 1, 0},
		{"one after the other", []paths{is(pathFull, pathFull), is(pathLast, pathLast), is(pathLast, ""), is("", ""), is(pathFull, pathFull)}, 1, 0},
		{"one prefix unmarked", []paths{is(pathFull, pathFull), is(pathFull, pathLast), is("", "")}, 1, 1},
		{"unmarked", []paths{is(pathFull, pathFull), is("", "")}, 1, 2},
		{"back before it has left", []paths{is(pathFull, pathFull), is(pathLast, pathLast), is(pathLast, ""), is(pathFull, pathFull)}, 0, 0},
		{"twice", []paths{is(pathLast, pathLast), is("", ""), is(pathFull, pathFull), is(pathLast, pathLast), is("", "")}, 2, 0},
	} {
		var seen []sighting
		for _, p := range c.seen {
			seen = append(seen, sighting{time.Now(), "r-a", p})
		}
		if left, unmarked := leaves(seen); len(left) != c.left || len(unmarked) != c.unmarked {
			t.Errorf("%s: left %v, unmarked %v", c.what, left, unmarked)
		}
	}
}

// TestOutside: a connection is excused only if a site's traffic moved while it was open.
func TestOutside(t *testing.T) {
	start := time.Now()
	broken := lab.Samples{{At: start, Took: time.Second, Broke: errors.New("reset")}}
	for after, excused := range map[time.Duration]bool{
		-time.Millisecond: false, 500 * time.Millisecond: true, time.Second + watchEvery: true, 3 * time.Second: false,
	} {
		if got := len(outside(broken, []time.Time{start.Add(after)})) == 0; got != excused {
			t.Errorf("a move after %s excuses: %v", after, got)
		}
	}
}
