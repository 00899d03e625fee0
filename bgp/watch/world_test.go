package watch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// world is vantage points with their true tables, of which a Judge is told as
// collectors and looking glasses tell, and what can be known from that, kept in
// the simplest way: the rule of the package, once more.
type world struct {
	*bench
	rng   *rand.Rand
	after time.Duration
	all   []netip.Prefix // that may be ours
	// What is true.
	points []*point
	// What is configured.
	onAir map[netip.Prefix]time.Time // since when
	ours  map[netip.Prefix]bool      // on the air or not
	// What can be known.
	connected bool // the feed
	died      time.Time
	unseen    map[netip.Prefix]time.Time // when the last one was lost
	standing  map[netip.Prefix]map[*point]bool
}

// point is a vantage point: one of the feed, or a watched peer.
type point struct {
	name, source string
	up           bool // its session
	table        map[netip.Prefix]uint32
	known        map[netip.Prefix]string // "has" or "gone"; nothing is known of others
	whole        map[edge.Family]time.Time
	covers       map[netip.Prefix]bool // what was ours when its session began; nil: it has not
}

func (p *point) feed() bool { return p.source == "feed" }

func newWorld(seed uint64, all ...string) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 7)), after: 10 * time.Minute, connected: true,
		onAir: map[netip.Prefix]time.Time{}, ours: map[netip.Prefix]bool{},
		unseen: map[netip.Prefix]time.Time{}, standing: map[netip.Prefix]map[*point]bool{},
	}
	for _, p := range all {
		w.all = append(w.all, prefix(p))
	}
	w.bench = newBench(Config{MissingAfter: w.after})
	w.Connected("feed", w.now)
	for _, name := range []string{"a", "b", "c"} {
		w.points = append(w.points, &point{name: name, source: "feed", up: true})
	}
	for _, name := range []string{"glass", "mirror"} {
		w.points = append(w.points, &point{name: name, source: "peer " + name, up: true})
	}
	for _, p := range w.points {
		p.table, p.known, p.whole = map[netip.Prefix]uint32{}, map[netip.Prefix]string{}, map[edge.Family]time.Time{}
	}
	w.configure()
	return w
}

// configure makes other prefixes ours, and others of them be on the air.
func (w *world) configure() {
	cfg := Config{MissingAfter: w.after}
	for _, p := range w.all {
		was, there := w.onAir[p]
		delete(w.onAir, p)
		switch w.rng.IntN(8) {
		case 0: // not ours
			delete(w.ours, p)
			delete(w.unseen, p)
			delete(w.standing, p)
			for _, v := range w.points {
				delete(v.known, p)
				delete(v.covers, p)
			}
			continue
		case 1:
			cfg.Elsewhere = append(cfg.Elsewhere, own(p.String()))
			delete(w.standing, p)
		default:
			cfg.Own = append(cfg.Own, own(p.String()))
			w.onAir[p] = w.now
			if there {
				w.onAir[p] = was
			}
		}
		w.ours[p] = true
	}
	w.Set(cfg, w.now)
}

// tell delivers what a vantage point has of a prefix; 0: nothing.
func (w *world) tell(v *point, p netip.Prefix, origin uint32) {
	if !v.up || v.feed() && !w.connected {
		return
	}
	if v.covers == nil {
		v.covers = maps.Clone(w.ours)
	}
	w.Observe(Route{Prefix: p, ASPath: []uint32{1, 2, origin}, Peer: v.name, Source: v.source, At: w.now, Withdrawn: origin == 0})
	switch {
	case !w.ours[p]:
	case origin == us:
		v.known[p] = "has"
	case v.known[p] == "has":
		v.known[p] = "gone"
		w.lost(p)
	}
}

// lost notes when nobody has a prefix any more.
func (w *world) lost(p netip.Prefix) {
	if !w.seen(p) {
		w.unseen[p] = w.now
	}
}

func (w *world) seen(p netip.Prefix) bool {
	return slices.ContainsFunc(w.points, func(v *point) bool { return v.known[p] == "has" })
}

// forget drops what is known of a vantage point.
func (w *world) forget(v *point) {
	known := v.known
	v.known, v.covers = map[netip.Prefix]string{}, nil
	clear(v.whole)
	for p, what := range known {
		if what == "has" {
			w.lost(p)
		}
	}
}

// silence drops the words of the feed.
func (w *world) silence() {
	for _, v := range w.points {
		if v.feed() {
			maps.DeleteFunc(v.known, func(_ netip.Prefix, what string) bool { return what == "gone" })
		}
	}
}

// session ends that of a vantage point, or begins it: it tells its table then.
func (w *world) session(v *point) {
	v.up = !v.up
	switch {
	case v.up:
		for p, origin := range v.table {
			w.tell(v, p, origin)
		}
	case v.feed():
		if w.connected { // or it is not told
			w.Lost("feed", v.name, w.now)
			w.forget(v)
		}
	default:
		w.Lost(v.source, "", w.now)
		w.forget(v)
		for _, by := range w.standing {
			delete(by, v)
		}
	}
}

func (w *world) endOfRIB(v *point, f edge.Family) {
	if v.feed() || !v.up {
		return
	}
	if v.covers == nil {
		v.covers = maps.Clone(w.ours)
	}
	w.EndOfRIB(v.source, f, w.now)
	if v.whole[f].IsZero() {
		v.whole[f] = w.now
	}
}

// connect ends the connection to the feed, or begins it.
func (w *world) connect() {
	w.connected = !w.connected
	if !w.connected {
		w.Disconnected("feed", w.now)
		w.died = w.now
		w.silence()
		return
	}
	if w.now.Sub(w.died) > sourceGrace {
		w.endStanding()
	}
	w.Connected("feed", w.now)
}

// endStanding makes the feed bear witness to nothing.
func (w *world) endStanding() {
	for _, by := range w.standing {
		maps.DeleteFunc(by, func(v *point, _ bool) bool { return v.feed() })
	}
}

// step does something, and returns what.
func (w *world) step() string {
	v := w.points[w.rng.IntN(len(w.points))]
	p := w.all[w.rng.IntN(len(w.all))]
	switch w.rng.IntN(20) {
	case 0:
		w.configure()
		return "configure"
	case 1:
		w.session(v)
		return fmt.Sprintf("session of %s is up: %v", v.name, v.up)
	case 2:
		w.connect()
		return fmt.Sprintf("feed is connected: %v", w.connected)
	case 3:
		w.Gap("feed")
		w.silence()
		return "gap"
	case 4, 5:
		f := []edge.Family{edge.IPv4, edge.IPv6}[w.rng.IntN(2)]
		w.endOfRIB(v, f)
		return fmt.Sprintf("end of RIB of %s, %s", v.name, f)
	case 6, 7, 8, 9:
		d := time.Duration(w.rng.Int64N(int64(w.after)))
		w.later(d)
		return "later " + d.String()
	case 10:
		w.tell(v, p, v.table[p]) // again, as a refresh does
		return "again"
	default:
		v.table[p] = []uint32{0, 0, us, us, 666}[w.rng.IntN(5)]
		w.tell(v, p, v.table[p])
		return fmt.Sprintf("%s has %s from %d", v.name, p, v.table[p])
	}
}

// missing are the prefixes of which it is known that they are missing.
func (w *world) missing(t *testing.T) (out []netip.Prefix) {
	if !w.connected && w.now.Sub(w.died) > sourceGrace {
		w.endStanding()
	}
	for _, p := range w.all {
		since, onAir := w.onAir[p]
		if !onAir || w.seen(p) {
			delete(w.standing, p)
			continue
		}
		family := edge.IPv6
		if p.Addr().Is4() {
			family = edge.IPv4
		}
		for _, v := range w.points {
			from, whole := latest(since, w.unseen[p]), v.whole[family]
			if v.known[p] != "gone" {
				if whole.IsZero() || !v.covers[p] {
					continue
				}
				from = latest(from, whole)
			}
			// Who bears witness tells the truth, whatever was not told.
			if v.table[p] == us {
				t.Fatalf("%s is said not to have %s", v.name, p)
			}
			if w.now.Sub(from) >= w.after {
				if w.standing[p] == nil {
					w.standing[p] = map[*point]bool{}
				}
				w.standing[p][v] = true
			}
		}
		if len(w.standing[p]) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// TestMissingInTheWorld: whatever happens, a prefix is missing if and only if the
// rule says so, and whoever bears witness has no route in truth.
func TestMissingInTheWorld(t *testing.T) {
	total := 0
	for seed := range uint64(150) {
		w := newWorld(seed, "192.0.2.0/24", "198.51.100.0/22", "2001:db8::/32", "2001:db9:1::/48")
		for i := range 300 {
			what := w.step()
			want := w.missing(t)
			f := w.Find(w.now)
			var got []netip.Prefix
			for _, a := range f.Alarms {
				if a.Kind == Missing {
					got = append(got, a.Prefix)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d (%s): missing are %s, want %s", seed, i, what, got, want)
			}
			unseen := 0
			for p := range w.onAir {
				if !w.seen(p) && !slices.Contains(want, p) {
					unseen++
				}
			}
			if f.Unseen != unseen {
				t.Fatalf("seed %d, step %d (%s): %d unseen, want %d", seed, i, what, f.Unseen, unseen)
			}
			total += len(want)
			if i%50 == 0 {
				w.check(t)
			}
		}
	}
	if total < 500 {
		t.Errorf("only %d times was anything missing", total)
	}
}

// TestNestedInTheWorld: where prefixes of ours are parts of others, and come and
// go, what is wrong with one is right for the other, and nothing is lost of what
// is counted.
func TestNestedInTheWorld(t *testing.T) {
	for seed := range uint64(80) {
		w := newWorld(seed, "192.0.0.0/8", "192.0.2.0/24", "192.0.2.0/25", "192.0.2.0/26", "::/0", "2001:db8::/32", "2001:db8:1::/48")
		for range 200 {
			w.step()
			w.Find(w.now)
			w.check(t)
		}
		for _, src := range slices.Collect(maps.Keys(w.sources)) {
			w.Lost(src, "", w.now)
		}
		w.check(t)
		if w.held > 0 || len(w.paths.names) > 0 || len(w.covers.routes) > 0 {
			t.Fatalf("seed %d: something is left", seed)
		}
	}
}
