package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
			w.seen[i], err = follow(ctx, r, f.boxesAt(spec.Name))
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

// follow asks one router until ctx ends, and notes what is new. An answer that does not
// come is an error: what is not seen may be below the floor.
func follow(ctx context.Context, r *lab.Router, boxes map[string]string) (seen []sighting, err error) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		at := time.Now()
		has, err := ask(ctx, r, boxes)
		if ctx.Err() != nil {
			return seen, nil
		}
		if err != nil {
			return seen, fmt.Errorf("ask %s what is announced: %w", r.Name(), err)
		}
		if n := len(seen); n == 0 || !maps.EqualFunc(seen[n-1].paths, has, maps.Equal) {
			seen = append(seen, sighting{at, r.Name(), has})
		}
		select {
		case <-ctx.Done():
			return seen, nil
		case <-tick.C:
		}
	}
}

// ask asks a router for the paths of its boxes.
func ask(ctx context.Context, r *lab.Router, boxes map[string]string) (paths, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if r.Kind() == lab.BIRD {
		out, err := r.Ask(ctx, `show route all where proto ~ "box-*"`)
		if err != nil {
			return nil, err
		}
		return parseBIRD(out)
	}
	out, err := r.Run(ctx, "vtysh", "-d", "bgpd",
		"-c", fmt.Sprintf("show bgp ipv4 unicast %s json", lab.Prefix4), "-c", fmt.Sprintf("show bgp ipv6 unicast %s json", lab.Prefix6))
	if err != nil {
		return nil, err
	}
	return parseFRR(string(out), boxes)
}

// served are the prefixes of the lab.
func served() []netip.Prefix { return []netip.Prefix{lab.Prefix4, lab.Prefix6} }

func nothing() paths {
	p := paths{}
	for _, prefix := range served() {
		p[prefix] = map[string]pathState{}
	}
	return p
}

var (
	birdNet  = regexp.MustCompile(`^([0-9a-f.:]+/\d+)? +unicast \[box-(\S+) `)
	birdMark = regexp.MustCompile(`^\s+BGP\.community:.*\(65535, ?0\)`)
)

// parseBIRD reads "show route all": a network stands before its first path, and what is
// said of a path below it.
func parseBIRD(out string) (paths, error) {
	if !strings.HasPrefix(out, "BIRD ") {
		return nil, fmt.Errorf("that is no answer of BIRD: %.200q", out)
	}
	has := nothing()
	var prefix netip.Prefix
	box := ""
	for line := range strings.Lines(out) {
		if m := birdNet.FindStringSubmatch(line); m != nil {
			if m[1] != "" {
				p, err := netip.ParsePrefix(m[1])
				if err != nil {
					return nil, fmt.Errorf("read network of BIRD: %w", err)
				}
				prefix = p
			}
			if box = m[2]; has[prefix] != nil {
				has[prefix][box] = pathFull
			}
		} else if birdMark.MatchString(line) && has[prefix] != nil && box != "" {
			has[prefix][box] = pathLast
		}
	}
	return has, nil
}

// parseFRR reads one "show bgp ... json" for each prefix, in their order.
func parseFRR(out string, boxes map[string]string) (paths, error) {
	has := nothing()
	d := json.NewDecoder(strings.NewReader(out))
	for _, prefix := range served() {
		var shown struct {
			Paths []struct {
				Community struct{ String string }
				Peer      struct{ PeerID string }
			}
		}
		if err := d.Decode(&shown); err != nil {
			return nil, fmt.Errorf("read what FRR has of %s: %w: %.200q", prefix, err, out)
		}
		for _, p := range shown.Paths {
			box, ok := boxes[p.Peer.PeerID]
			if !ok {
				continue // of another router
			}
			has[prefix][box] = pathFull
			if strings.Contains(p.Community.String, "graceful-shutdown") || strings.Contains(p.Community.String, "65535:0") {
				has[prefix][box] = pathLast
			}
		}
	}
	if err := d.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("FRR says more than was asked: %.200q", out)
	}
	return has, nil
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

// turns are when traffic moves: a path comes, goes, or is marked.
func (f *fleet) turns(seen []sighting) []time.Time {
	known := map[string]bool{}
	var turns []time.Time
	for _, s := range seen {
		if known[s.router] {
			turns = append(turns, s.at)
		}
		known[s.router] = true
	}
	return turns
}

func TestParsePaths(t *testing.T) {
	bird := `BIRD 2.0.12 ready.
Table master4:
198.51.100.0/24      unicast [box-a1 19:00:00.000] * (100) [AS64512i]
	via 10.1.0.2 on a1
	Type: BGP univ
	BGP.as_path: 64512
                     unicast [box-a2 19:00:01.000] (100) [AS64512i]
	via 10.1.1.2 on a2
	BGP.community: (64512,1) (65535,0)

Table master6:
2001:db8:100::/48    unicast [box-a1 19:00:00.000] * (100) [AS64512i]
	via fd00:1:0::2 on a1
`
	want := paths{lab.Prefix4: {"a1": pathFull, "a2": pathLast}, lab.Prefix6: {"a1": pathFull}}
	got, err := parseBIRD(bird)
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	none, err := parseBIRD("BIRD 2.0.12 ready.\n")
	if err != nil || len(none[lab.Prefix4]) != 0 {
		t.Errorf("%v, %v", none, err)
	}
	frr := `{"prefix":"198.51.100.0/24","paths":[
{"peer":{"peerId":"10.2.0.2"},"community":{"string":"64512:1 graceful-shutdown"}},{"peer":{"peerId":"10.2.1.2"}},{"peer":{"peerId":"10.255.0.1"}}]}
{}
`
	want = paths{lab.Prefix4: {"b1": pathLast, "b2": pathFull}, lab.Prefix6: {}}
	got, err = parseFRR(frr, map[string]string{"10.2.0.2": "b1", "10.2.1.2": "b2"})
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	for _, none := range []string{"", "% Unknown command\n", "{}\n", "{}\n{}\n{}\n"} {
		if _, err := parseFRR(none, nil); err == nil {
			t.Errorf("%q is an answer", none)
		}
	}
	if _, err := parseBIRD("Unable to connect to server control socket"); err == nil {
		t.Error("no answer is an answer")
	}
}

// TestLeast: the least is of one moment, over all routers.
func TestLeast(t *testing.T) {
	f := &fleet{Lab: &lab.Lab{Topology: three().topology()}, scale: three()}
	has := func(boxes ...string) paths {
		p := nothing()
		for _, prefix := range served() {
			for _, b := range boxes {
				p[prefix][b] = pathLast
			}
		}
		return p
	}
	start := time.Now()
	at := func(s int, router string, boxes ...string) sighting {
		return sighting{start.Add(time.Duration(s) * time.Second), router, has(boxes...)}
	}
	all := []sighting{at(0, "r-a", "a1", "a2"), at(0, "r-b", "b1"), at(0, "r-c", "c1")}
	for _, c := range []struct {
		what  string
		seen  []sighting
		least int
		turns int
	}{
		{"all", all, 3, 0},
		{"one after the other", append(slices.Clone(all), at(1, "r-a"), at(2, "r-a", "a1"), at(3, "r-b"), at(4, "r-b", "b1")), 2, 4},
		{"two at once", append(slices.Clone(all), at(1, "r-a"), at(2, "r-b"), at(3, "r-b", "b1")), 1, 3},
		{"one box of two", append(slices.Clone(all), at(1, "r-a", "a2")), 3, 1},
		{"a router was never asked", all[:2], 0, 0},
	} {
		if got := f.least(c.seen); got != c.least {
			t.Errorf("%s: %d, want %d", c.what, got, c.least)
		}
		if got := len(f.turns(c.seen)); got != c.turns {
			t.Errorf("%s: %d turns, want %d", c.what, got, c.turns)
		}
	}
}

// TestInTime: a request is excused only if a router turned while it was under way.
func TestInTime(t *testing.T) {
	start := time.Now()
	failed := lab.Samples{{At: start, Took: time.Second, Err: errors.New("reset")}}
	for after, excused := range map[time.Duration]bool{
		-time.Millisecond: false, 500 * time.Millisecond: true, time.Second + watchEvery: true, 3 * time.Second: false,
	} {
		if got := len(inTime(failed, []time.Time{start.Add(after)})) == 0; got != excused {
			t.Errorf("a turn after %s excuses: %v", after, got)
		}
	}
}
