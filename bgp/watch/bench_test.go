package watch

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

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

func BenchmarkParseLine(b *testing.B) {
	line := []byte(ris("rrc00.ripe.net", "2001:db8::1", `[3333,1,2,3,65001,64500]`, announce("192.0.2.0/24")))
	for b.Loop() {
		if _, err := parseLine(line, start()); err != nil {
			b.Fatal(err)
		}
	}
}

// fleet is n prefixes of ours, /24 to /20 and /48 to /44, none within another.
func fleet(n int) (out []Own) {
	origins := []uint32{us}
	for i := range n {
		bits := 24 - i%5
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10 + byte(i>>11), byte(i >> 3), byte(i) << 5, 0}), max(bits, 20))
		if i%4 == 3 {
			p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, byte(i >> 8), byte(i), 0}), 48-i%5)
		}
		out = append(out, Own{p.Masked(), origins})
	}
	return out
}

// internetTable is what a looking glass sends: the routes to ours, and to others
// up to n, 200 to a path.
func internetTable(ours []Own, n int) []Route {
	rng := rand.New(rand.NewPCG(1, 2))
	out := make([]Route, 0, n)
	for i, o := range ours {
		out = append(out, Route{Prefix: o.Prefix, ASPath: []uint32{64999, 1 + uint32(i%200), left, us}})
	}
	for len(out) < n {
		path := []uint32{64999}
		for range 2 + rng.IntN(4) {
			path = append(path, 1+rng.Uint32N(64000))
		}
		for range min(200, n-len(out)) {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{64 + byte(rng.IntN(150)), byte(rng.IntN(256)), byte(rng.IntN(256)), 0}), 16+rng.IntN(9))
			if rng.IntN(5) == 0 {
				p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x2a, byte(rng.IntN(256)), byte(rng.IntN(256)), byte(rng.IntN(256)), byte(rng.IntN(256)), 0}), 32+rng.IntN(17))
			}
			out = append(out, Route{Prefix: p.Masked(), ASPath: path})
		}
	}
	return out
}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkFullTable is a looking glass that sends the internet to a box with
// many prefixes, is asked for the state, withdraws everything and ends.
func BenchmarkFullTable(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		ours := fleet(n)
		routes := internetTable(ours, 1_000_000)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				w := New(Options{})
				if err := w.Set(Config{Own: ours, MissingAfter: time.Minute}); err != nil {
					b.Fatal(err)
				}
				empty := heap()
				measure := func(name string, per int, do func()) {
					began := cpu()
					do()
					b.ReportMetric(float64(cpu()-began)/float64(per)/1e3, name)
				}
				send := func(withdrawn bool) {
					for _, r := range routes {
						r.Peer, r.Source, r.Withdrawn = "glass", "peer glass", withdrawn
						w.Observe(r)
					}
				}
				measure("us/route", len(routes), func() { send(false) })
				w.EndOfRIB("peer glass", edge.IPv4)
				b.ReportMetric(float64(empty-before)/1e6, "MB-empty")
				b.ReportMetric(float64(heap()-before)/1e6, "MB-full")
				measure("us/state", 10, func() {
					for range 10 {
						if s := w.State(); len(s.Alarms) > 0 {
							b.Fatalf("%+v", s.Alarms[0])
						}
					}
				})
				other := Config{Own: ours[1:], Elsewhere: ours[:1], MissingAfter: time.Minute}
				measure("us/set", 1, func() {
					if err := w.Set(other); err != nil {
						b.Fatal(err)
					}
				})
				measure("us/default", 1000, func() {
					for range 1000 {
						w.Observe(Route{Prefix: netip.PrefixFrom(netip.IPv4Unspecified(), 0), ASPath: []uint32{1}, Peer: "glass", Source: "peer glass"})
					}
				})
				measure("us/withdrawal", len(routes), func() { send(true) })
				w.Lost("peer glass")
			}
		})
	}
}

// BenchmarkCollectors is a feed of 400 vantage points that all show every prefix,
// of which the feed then says that they are gone.
func BenchmarkCollectors(b *testing.B) {
	ours := fleet(10_000)
	for b.Loop() {
		before := heap()
		j := NewJudge()
		j.Set(Config{Own: ours, MissingAfter: time.Minute}, start())
		began := cpu()
		for v := range 400 {
			for i, o := range ours {
				j.Observe(Route{Prefix: o.Prefix, ASPath: []uint32{uint32(v), uint32(1 + i%20), left, us}, Peer: fmt.Sprint("rrc00 ", v), Source: "feed", At: start()})
			}
		}
		b.ReportMetric(float64(cpu()-began)/4e6, "ns/route")
		b.ReportMetric(float64(heap()-before)/1e6, "MB")
		began = cpu()
		for v := range 400 {
			j.Lost("feed", fmt.Sprint("rrc00 ", v), start())
		}
		b.ReportMetric(float64(cpu()-began)/1e6, "ms-lost")
	}
}

// BenchmarkAllHijacked is the most that can be wrong: every prefix and parts of it.
func BenchmarkAllHijacked(b *testing.B) {
	ours := fleet(10_000)
	before := heap()
	w := New(Options{})
	if err := w.Set(Config{Own: ours}); err != nil {
		b.Fatal(err)
	}
	for v := range 10 {
		for _, o := range ours {
			w.Observe(Route{Prefix: netip.PrefixFrom(o.Prefix.Addr(), o.Prefix.Bits()+1+v%5), ASPath: []uint32{1, 666}, Peer: fmt.Sprint(v), Source: "feed"})
		}
	}
	used := heap() - before
	for b.Loop() {
		if s := w.State(); len(s.Alarms) != maxAlarms || s.More == 0 {
			b.Fatal(len(s.Alarms))
		}
	}
	b.ReportMetric(float64(used)/1e6, "MB")
}
