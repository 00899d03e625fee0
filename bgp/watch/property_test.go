package watch

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

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
	for p, s := range b.sights {
		if len(s.seen) > maxVantages || len(s.bad) > maxVantages || len(s.cover) > maxCovers || len(s.others) > maxOthers || len(s.alarms) > maxVantages+1 {
			t.Errorf("%s: %d seen, %d bad, %d cover, %d others", p, len(s.seen), len(s.bad), len(s.cover), len(s.others))
		}
		for _, e := range s.seen {
			if cap(e.route.ASPath) > 2*maxPath {
				t.Errorf("%s: a path of %d", p, cap(e.route.ASPath))
			}
		}
	}
	if len(b.sources) > maxSources {
		t.Errorf("%d sources", len(b.sources))
	}
	alarms := b.Alarms(b.now)
	if len(alarms) != maxVantages+1 { // the last parts of the one, the hijack of the other
		t.Errorf("%d alarms", len(alarms))
	}
	if last := alarms[len(alarms)-1]; last.Kind != UnexpectedOrigin || last.Count != maxVantages {
		t.Errorf("%+v", last)
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
			if alarms := b.Alarms(b.now); len(alarms) > 0 {
				t.Fatalf("seed %d: %+v", seed, alarms)
			}
		}
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

func BenchmarkObserve(b *testing.B) {
	j := newBench(Config{Own: []Own{own("192.0.2.0/24"), own("198.51.100.0/22"), own("2001:db8::/32")}})
	other, ours := j.route("a", "203.0.113.0/24", 1, 2, 3), j.route("a", "192.0.2.0/24", 1, left, us)
	b.Run("others", func(b *testing.B) {
		for b.Loop() {
			j.Observe(other)
		}
	})
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			j.Observe(ours)
		}
	})
}
