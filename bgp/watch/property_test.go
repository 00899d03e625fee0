package watch

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// tally is what there is of one sight.
type tally struct{ seen, said, bad, crowd int }

// check holds all that is counted against what is there.
func (b *bench) check(t *testing.T) {
	t.Helper()
	tallies, uses := b.tally(t)
	for id, s := range b.sights {
		got := tally{s.seen, 0, len(s.bad), s.crowd}
		for _, w := range s.words {
			got.said += w.n
		}
		if got != tallies[id] || b.index[s.own.Prefix] != uint32(id) || len(s.bad) > b.share {
			t.Fatalf("%s: %+v, want %+v", s.own.Prefix, got, tallies[id])
		}
		for _, e := range s.bad {
			if e.from.source.spots[e.from.peer] != e.from || b.sources[e.from.source.name] != e.from.source || len(e.path) > maxPath {
				t.Fatalf("%s: evidence of a vantage point that is gone: %+v", s.own.Prefix, e)
			}
		}
	}
	live := 0
	for name, u := range b.paths.list {
		if name > 0 && u.uses != uses[uint32(name)] {
			t.Fatalf("path %d has %d uses, counted %d", name, uses[uint32(name)], u.uses)
		}
		if u.uses > 0 {
			live++
		}
	}
	if len(b.paths.names) != live {
		t.Fatalf("%d names of %d paths", len(b.paths.names), live)
	}
}

// tally counts what the vantage points have, and the uses of paths.
func (b *bench) tally(t *testing.T) (tallies []tally, uses map[uint32]int) {
	t.Helper()
	tallies, uses = make([]tally, len(b.sights)), map[uint32]int{}
	covers, held := map[*spot]int{}, 0
	for p, c := range b.covers.routes {
		covers[c.from]++
		if !b.inside(p) {
			t.Fatalf("%s covers nothing", p)
		}
	}
	for name, src := range b.sources {
		for id := range src.crowd {
			tallies[id].crowd++
		}
		for peer, sp := range src.spots {
			if sp.source != src || src.name != name || sp.peer != peer || sp.covers != covers[sp] {
				t.Fatalf("%+v", sp)
			}
			if len(sp.has)+len(sp.gone)+len(sp.bad)+sp.covers == 0 {
				t.Fatalf("nothing is held of %s", sp.name())
			}
			held += len(sp.has) + len(sp.gone)
			for id, path := range sp.has {
				tallies[id].seen++
				uses[path]++
			}
			for id := range sp.gone {
				tallies[id].said++
				if _, both := sp.has[id]; both {
					t.Fatalf("%s is seen and gone by %s", b.sights[id].own.Prefix, sp.name())
				}
			}
			for id, n := range sp.bad {
				tallies[id].bad += n
			}
		}
	}
	if b.held != held {
		t.Fatalf("%d are held, counted %d", held, b.held)
	}
	return tallies, uses
}

// TestBounds: whatever is shown, memory is bounded.
func TestBounds(t *testing.T) {
	b := newBench(Config{Own: []Own{own("10.0.0.0/8"), own("2001:db8::/32")}, MissingAfter: time.Minute})
	path := slices.Repeat([]uint32{us}, 1000)
	for i := range 6000 {
		peer, host := fmt.Sprint("peer ", i), netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1})
		b.see(peer, "10.0.0.0/8", path...)
		b.see(peer, "2001:db8::/32", 1, 666)
		b.see(peer, netip.PrefixFrom(host, 32).String(), 1, 666)
		b.see(peer, "0.0.0.0/0", 1)
		r := b.route(peer, "10.0.0.0/8", us)
		r.Source = peer
		b.Observe(r)
	}
	b.check(t)
	if n := len(b.sources["feed"].spots); n > maxSpots+2*maxShare+maxCovers {
		t.Errorf("%d vantage points", n)
	}
	if len(b.sources) > maxSources || len(b.covers.routes) != 1 {
		t.Errorf("%d sources, %d covers", len(b.sources), len(b.covers.routes))
	}
	alarms := b.Find(b.now).Alarms
	if len(alarms) != maxShare+1 { // the last parts of the one, the hijack of the other
		t.Errorf("%d alarms", len(alarms))
	}
	if last := alarms[len(alarms)-1]; last.Kind != UnexpectedOrigin || last.Count != maxShare {
		t.Errorf("%+v", last)
	}
	for s := range maxSources {
		b.Lost(fmt.Sprint("peer ", s), "", b.now)
	}
	b.Lost("feed", "", b.now)
	b.check(t)
	if len(b.sources) > 0 || b.held > 0 || len(b.covers.routes) > 0 || len(b.paths.names) > 0 {
		t.Errorf("something is left: %d sources, %d held", len(b.sources), b.held)
	}
}

// TestManyCovers: of the routes that our prefixes are parts of some are kept, of
// the vantage points of the others nothing.
func TestManyCovers(t *testing.T) {
	var cfg Config
	for i := range byte(20) {
		cfg.Own = append(cfg.Own, own(fmt.Sprintf("%x00:1:2:3::/64", 0x20+i)))
	}
	b := newBench(cfg)
	for i, o := range cfg.Own {
		for bits := range 63 {
			b.see(fmt.Sprint(i, bits), netip.PrefixFrom(o.Prefix.Addr(), bits).Masked().String(), 1, 2)
		}
	}
	b.check(t)
	if n := len(b.covers.routes); n != maxCovers {
		t.Errorf("%d covers", n)
	}
	b.see("b", "::/0", 3)
	b.withdraw("0 0", "::/0") // is not its route any more
	if p, c, there := b.covers.of(prefix("::/1")); !there || p != prefix("::/0") || c.path[0] != 3 {
		t.Errorf("%s %v", p, c)
	}
	b.check(t)
}

// TestManyPaths: where there are more paths than are kept, routes are counted all
// the same; what is wrong with them later is not known.
func TestManyPaths(t *testing.T) {
	cfg := Config{Own: []Own{own("192.0.2.0/24"), own("198.51.100.0/24")}, MissingAfter: time.Minute}
	b := newBench(cfg)
	for i := range uint32(maxPaths) {
		b.paths.put([]uint32{i})
	}
	b.see("a", "192.0.2.0/24", 1, 2, us)
	b.want(t)
	if b.paths.put([]uint32{5}) == 0 || b.paths.put([]uint32{1, 2, us}) != 0 {
		t.Error("paths are not bounded, or not shared")
	}
	with := cfg
	with.Neighbours = []uint32{left}
	b.Set(with, b.now)
	b.later(time.Hour)
	b.want(t) // it is seen
	b.Set(Config{Own: []Own{{prefix("192.0.2.0/24"), []uint32{also}}}, MissingAfter: time.Minute}, b.now)
	if f := b.Find(b.now); f.Unseen != 1 || len(f.Alarms) > 0 {
		t.Errorf("%+v", f)
	}
}

// TestShare: the more prefixes there are, the fewer wrong routes are held of each,
// and none of them is left out.
func TestShare(t *testing.T) {
	for _, n := range []int{1, 256, 300, 5000} {
		var cfg Config
		for i := range n {
			cfg.Own = append(cfg.Own, Own{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), []uint32{us}})
		}
		b := newBench(cfg)
		for round := range 70 {
			for i, o := range cfg.Own {
				if round < 10 || i%50 == 0 {
					b.see(fmt.Sprint(round), o.Prefix.String(), 1, 666)
				}
			}
		}
		b.check(t)
		f := b.Find(b.now)
		if len(f.Alarms)+f.More != n || len(f.Alarms) > maxAlarms || f.Alarms[0].Count != min(max(maxBad/n, minShare), maxShare) {
			t.Errorf("%d prefixes: %d alarms and %d more, the first by %d", n, len(f.Alarms), f.More, f.Alarms[0].Count)
		}
		b.later(defaultForget + 1)
		b.want(t)
		b.check(t)
	}
}

func TestObserveDropsNonsense(t *testing.T) {
	b := newBench(Config{Own: []Own{own("192.0.2.0/24"), own("::/0")}})
	for _, r := range []Route{{}, {Prefix: prefix("::ffff:192.0.2.0/120"), ASPath: []uint32{666}}, {Prefix: netip.PrefixFrom(netip.Addr{}, 3)}} {
		b.Observe(r)
	}
	b.want(t)
	b.Observe(Route{Prefix: netip.PrefixFrom(netip.MustParseAddr("192.0.2.9"), 24), ASPath: []uint32{666}, At: b.now}) // host bits
	b.want(t, "unexpected-origin 192.0.2.0/24 192.0.2.0/24 1")
}

// TestNoFalseAlarm: our own correct announcements are never an alarm, from
// whatever vantage point, in whatever order, with whatever else is in the table,
// as long as one vantage point has each of them.
func TestNoFalseAlarm(t *testing.T) {
	for seed := range uint64(16) {
		r := rand.New(rand.NewPCG(seed, 1))
		cfg := Config{
			Own:          []Own{own("192.0.2.0/24"), own("198.51.100.0/22"), own("198.51.101.0/24"), own("2001:db8::/32"), own("2001:db8:1::/48")},
			Elsewhere:    []Own{own("198.51.103.0/24"), own("2001:db8:2::/48")},
			MissingAfter: time.Minute,
		}
		if r.IntN(2) == 0 {
			cfg.Neighbours = []uint32{left, right}
		}
		b := newBench(cfg)
		all := slices.Concat(cfg.Own, cfg.Elsewhere)
		for _, o := range all {
			b.see("anchor", o.Prefix.String(), correctPath(r)...)
		}
		for range 1000 {
			peer := fmt.Sprint("peer ", r.IntN(200))
			o := all[r.IntN(len(all))].Prefix.String()
			switch r.IntN(8) {
			case 0:
				b.withdraw(peer, o)
			case 1: // of others
				b.see(peer, "203.0.113.0/24", 1, 666)
				b.see(peer, "192.0.0.0/16", 1, 666)
				b.see(peer, "::/0", 1, 666)
			case 2:
				b.later(time.Duration(r.Int64N(int64(2 * time.Hour))))
			case 3:
				b.Disconnected("feed", b.now)
				b.later(time.Duration(r.Int64N(int64(2 * time.Minute))))
				b.Connected("feed", b.now)
			case 4:
				b.Set(cfg, b.now)
			case 5:
				b.Lost("feed", peer, b.now)
			default:
				b.see(peer, o, correctPath(r)...)
			}
			if alarms := b.Find(b.now).Alarms; len(alarms) > 0 {
				t.Fatalf("seed %d: %+v", seed, alarms)
			}
		}
		b.check(t)
	}
}

// correctPath is a path as it can be to what we announce: strangers, one of our
// neighbours, and we, prepended, with or without the other origin.
func correctPath(r *rand.Rand) (path []uint32) {
	for range r.IntN(6) {
		path = append(path, 1+r.Uint32N(64000))
	}
	end := [][]uint32{{us}, {also}, {us, also}, {left, also}}[r.IntN(4)]
	path = append(path, []uint32{left, right}[r.IntN(2)])
	for _, n := range end {
		path = append(path, slices.Repeat([]uint32{n}, 1+r.IntN(5))...)
	}
	return path
}
