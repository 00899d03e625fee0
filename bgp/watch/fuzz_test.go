package watch

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// FuzzJudge: whatever is told in whatever order, what is counted is what is there,
// alarms are of what is ours and on the air, and nothing is left in the end. Four
// bytes are a step: what, of which prefix, by whom, with which path.
func FuzzJudge(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 1, 1, 0, 0, 9, 0, 0, 9, 9, 9, 9, 9})
	f.Add([]byte{0, 1, 0, 1, 6, 0xff, 0, 0, 6, 0x55, 0, 1, 0, 1, 1, 2, 2, 0, 0, 0})
	f.Add([]byte{5, 0, 3, 0, 0, 3, 3, 0, 1, 3, 3, 0, 7, 2, 0, 9, 3, 0, 3, 0})
	f.Add([]byte{0, 2, 0, 3, 0, 4, 0, 2, 0, 6, 0, 1, 6, 3, 0, 2, 4, 0, 0, 0, 8, 0, 0, 0})
	prefixes := []netip.Prefix{
		prefix("0.0.0.0/0"), prefix("192.0.2.0/24"), prefix("192.0.2.0/25"), prefix("192.0.2.0/26"), prefix("192.0.2.64/26"), prefix("192.0.2.1/32"),
		prefix("2001:db8::/32"), prefix("2001:db8::/48"), prefix("2001:db8::/128"), prefix("::/0"), prefix("203.0.113.0/24"),
	}
	paths := [][]uint32{{1, left, us}, {1, 2, 666}, {77, us}, {us, 5, us}, {also}, nil, {1, 2, 3, left, us, us}}
	sources := []string{"feed", "peer a", "peer b"}
	f.Fuzz(func(t *testing.T, steps []byte) {
		b := newBench(Config{Own: []Own{own("192.0.2.0/24")}, MissingAfter: time.Minute})
		for ; len(steps) >= 4; steps = steps[4:] {
			p, source, peer := prefixes[int(steps[1])%len(prefixes)], sources[int(steps[2])%len(sources)], string('a'+rune(steps[2]/3%5))
			path := paths[int(steps[3])%len(paths)]
			switch steps[0] % 10 {
			case 0, 1:
				b.Observe(Route{Prefix: p, ASPath: path, Peer: peer, Source: source, At: b.now, Withdrawn: steps[0]%10 == 1})
			case 2:
				b.Lost(source, peer, b.now)
			case 3:
				b.Lost(source, "", b.now)
			case 4:
				b.Disconnected("feed", b.now)
			case 5:
				b.EndOfRIB(source, []edge.Family{edge.IPv4, edge.IPv6}[steps[3]%2], b.now)
			case 6: // two bits for each prefix: not ours, or on the air, or elsewhere
				cfg := Config{MissingAfter: time.Minute, Neighbours: [][]uint32{nil, {left}}[steps[3]%2]}
				for i, which := range []netip.Prefix{prefixes[1], prefixes[2], prefixes[6], prefixes[int(steps[2])%2*9]} {
					o := Own{which, [][]uint32{{us}, {us, also}}[steps[3]/2%2]}
					switch steps[1] >> (2 * i) & 3 {
					case 1, 2:
						cfg.Own = append(cfg.Own, o)
					case 3:
						cfg.Elsewhere = append(cfg.Elsewhere, o)
					}
				}
				b.Set(cfg, b.now)
			case 7:
				b.Gap(source)
			case 8:
				b.Connected("feed", b.now)
			case 9:
				b.later(time.Duration(steps[3]) * time.Second)
			}
			b.check(t)
			for _, a := range b.Find(b.now).Alarms {
				id, ours := b.index[a.Prefix]
				if !ours || !b.sights[id].onAir || a.Kind == Missing && b.sights[id].visible() || a.Count < 1 || a.Since.IsZero() ||
					a.Last.Before(a.Since) || a.Last.After(b.now) || a.Evidence == "" || strings.Contains(a.Evidence, "%!") {
					t.Fatalf("%+v", a)
				}
			}
			b.check(t)
		}
		for _, s := range sources {
			b.Lost(s, "", b.now)
		}
		b.check(t)
		if b.held > 0 || len(b.paths.names) > 0 || len(b.covers.routes) > 0 || len(b.tables) > 0 {
			t.Fatal("something is left")
		}
	})
}
