package watch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// TestMissing is the rule in the doc of the package.
func TestMissing(t *testing.T) {
	const (
		after   = 10 * time.Minute
		net     = "192.0.2.0/24"
		missing = "missing 192.0.2.0/24 - 1"
		hijack  = "unexpected-origin 192.0.2.0/24 192.0.2.0/24 1"
	)
	never := func(t *testing.T, b *bench) {
		t.Helper()
		for range 50 {
			b.want(t)
			b.later(59 * time.Minute)
		}
		if f := b.Find(b.now); f.Unseen != 1 {
			t.Errorf("%+v", f)
		}
	}
	begins := func(t *testing.T, b *bench, more ...string) Alarm {
		t.Helper()
		b.later(after - 1)
		b.want(t, more...)
		b.later(1)
		a := b.want(t, append([]string{missing}, more...)...)[0]
		if !a.Since.Equal(b.now) {
			t.Errorf("%+v", a)
		}
		return a
	}
	for name, script := range map[string]func(*testing.T, *bench){
		// Nobody has told anything.
		"no source":               never,
		"a feed that shows none":  func(t *testing.T, b *bench) { b.Connected("feed", b.now); never(t, b) },
		"a feed that shows other": func(t *testing.T, b *bench) { b.see("a", "203.0.113.0/24", 1); never(t, b) },
		"a cover": func(t *testing.T, b *bench) {
			b.see("a", "192.0.0.0/16", 1)
			b.withdraw("a", "192.0.0.0/16")
			never(t, b)
		},
		"a withdrawal of what was never seen": func(t *testing.T, b *bench) {
			b.see("a", "203.0.113.0/24", 1)
			b.withdraw("a", net)
			never(t, b)
		},
		"only a hijack was ever seen": func(t *testing.T, b *bench) {
			b.see("a", net, 1, 666)
			b.later(59 * time.Minute)
			b.want(t, hijack)
			b.withdraw("a", net)
			never(t, b)
		},

		// It is seen.
		"seen once and stable": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.later(1000 * time.Hour)
			b.want(t)
			if f := b.Find(b.now); f.Unseen != 0 {
				t.Errorf("%+v", f)
			}
		},
		"seen leaking": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us, 2, us)
			b.later(1000 * time.Hour)
			b.want(t)
		},
		"one of two has lost it": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.see("b", net, 2, us)
			b.withdraw("a", net)
			b.later(1000 * time.Hour)
			b.want(t)
		},

		// It was withdrawn.
		"withdrawn": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.see("b", net, 2, us)
			b.later(time.Hour)
			b.withdraw("a", net)
			b.later(time.Hour)
			b.withdraw("b", net)
			a := begins(t, b)
			if a.Evidence != "announced for 2h10m0s, and seen by nobody since 2026-01-01T02:00:00Z: of feed 2 had it and have lost it, the last b at 2026-01-01T02:00:00Z" {
				t.Errorf("%+v", a)
			}
			b.see("a", "0.0.0.0/0", 1, 2) // no route to it
			b.see("a", "192.0.0.0/16", 1, 3)
			if a = b.want(t, missing)[0]; !strings.HasSuffix(a.Evidence, "; there is a route to 192.0.0.0/16, by 1 3") {
				t.Errorf("%+v", a)
			}
			b.withdraw("a", "192.0.0.0/16")
			if a = b.want(t, missing)[0]; !strings.HasSuffix(a.Evidence, "; there is a route to 0.0.0.0/0, by 1 2") {
				t.Errorf("%+v", a)
			}
			b.see("c", net, 1, us)
			b.want(t)
			b.withdraw("c", net)
			begins(t, b)
		},
		"the hijacker has taken it": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.see("a", net, 1, 666)
			begins(t, b, hijack)
		},
		"one has withdrawn it and the other is gone": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.see("b", net, 2, us)
			b.withdraw("a", net)
			b.later(time.Hour)
			b.Lost("feed", "b", b.now)
			begins(t, b)
		},
		"back and withdrawn again": func(t *testing.T, b *bench) {
			for range 10 {
				b.see("a", net, 1, us)
				b.later(after)
				b.withdraw("a", net)
				b.later(after - 1)
				b.want(t)
			}
			b.later(1)
			b.want(t, missing)
		},

		// Those who know are gone before it is an alarm.
		"the session with the collector has ended": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.Lost("feed", "a", b.now)
			never(t, b)
		},
		"and ended after the withdrawal": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.withdraw("a", net)
			b.later(after - 1)
			b.Lost("feed", "a", b.now)
			never(t, b)
		},
		"the feed was away for a moment": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.withdraw("a", net)
			b.Disconnected("feed", b.now)
			b.Connected("feed", b.now)
			never(t, b)
			b.withdraw("a", net) // says nothing new: it was not seen since
			never(t, b)
		},
		"lines were lost": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.withdraw("a", net)
			b.Gap("feed")
			never(t, b)
		},
		"seen before the feed was away": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.see("b", net, 2, us)
			b.Disconnected("feed", b.now)
			b.later(time.Hour)
			b.Connected("feed", b.now)
			b.withdraw("a", net)
			b.later(1000 * time.Hour)
			b.want(t)
			b.withdraw("b", net)
			begins(t, b)
		},

		// It is an alarm: what is not known does not end it.
		"the feed comes and goes": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.withdraw("a", net)
			begin := begins(t, b).Since
			b.Lost("feed", "a", b.now)
			b.want(t, missing)
			b.Disconnected("feed", b.now)
			b.later(sourceGrace)
			b.want(t, missing)
			b.Connected("feed", b.now)
			a := b.want(t, missing)[0]
			if !a.Since.Equal(begin) || !strings.HasSuffix(a.Evidence, ": feed told so, and was away since then") {
				t.Errorf("%+v", a)
			}
			b.later(1000 * time.Hour)
			b.want(t, missing)
			b.Disconnected("feed", b.now)
			b.later(sourceGrace + 1)
			b.want(t)
			b.Connected("feed", b.now)
			never(t, b)
		},
		"the feed is back when it is too late": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.withdraw("a", net)
			begins(t, b)
			b.Disconnected("feed", b.now)
			b.later(sourceGrace + 1) // nobody looks
			b.Connected("feed", b.now)
			never(t, b)
		},
		"another feed": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.withdraw("a", net)
			begins(t, b)
			b.Lost("feed", "", b.now)
			never(t, b)
		},

		// A watched peer has told everything.
		"not in the whole table": func(t *testing.T, b *bench) {
			b.glass("203.0.113.0/24", 1)
			b.later(time.Hour)
			b.want(t)
			b.EndOfRIB("peer glass", edge.IPv4, b.now)
			b.later(time.Minute)
			b.EndOfRIB("peer glass", edge.IPv4, b.now) // another one changes nothing
			b.later(-time.Minute)
			a := begins(t, b)
			if a.Evidence != "announced for 1h10m0s, and seen by nobody: peer glass has sent its whole table, of 1 routes, without it" {
				t.Errorf("%+v", a)
			}
			b.glass(net, 1, us)
			b.want(t)
			b.glass(net)
			begins(t, b)
			b.Lost("peer glass", "", b.now)
			never(t, b) // nobody is left to ask
			b.EndOfRIB("peer glass", edge.IPv4, b.now)
			if a = begins(t, b); !strings.Contains(a.Evidence, "of 0 routes") {
				t.Errorf("%+v", a)
			}
		},
		"the table is not whole": func(t *testing.T, b *bench) { b.glass("203.0.113.0/24", 1); never(t, b) },
		"the whole table of the other family": func(t *testing.T, b *bench) {
			b.EndOfRIB("peer glass", edge.IPv6, b.now)
			never(t, b)
		},
		"in the table that was not whole": func(t *testing.T, b *bench) {
			b.glass(net, 1, us)
			b.later(time.Hour)
			b.glass(net)
			begins(t, b)
		},
		"hijacked in the whole table": func(t *testing.T, b *bench) {
			b.glass(net, 1, 666)
			b.EndOfRIB("peer glass", edge.IPv4, b.now)
			begins(t, b, hijack)
		},
		"the feed sees it": func(t *testing.T, b *bench) {
			b.EndOfRIB("peer glass", edge.IPv4, b.now)
			b.see("a", net, 1, us)
			b.later(1000 * time.Hour)
			b.want(t)
			b.Lost("feed", "a", b.now)
			begins(t, b)
		},
		"ours only after the table had begun": func(t *testing.T, b *bench) {
			with := b.cfg
			b.Set(Config{MissingAfter: after}, b.now)
			b.glass(net, 1, us) // was not kept
			b.Set(with, b.now)
			b.EndOfRIB("peer glass", edge.IPv4, b.now)
			never(t, b)
		},
		"with other origins by now": func(t *testing.T, b *bench) {
			b.Set(Config{Own: []Own{{prefix(net), []uint32{us}}}, MissingAfter: after}, b.now)
			b.glass(net, 1, also)
			b.EndOfRIB("peer glass", edge.IPv4, b.now)
			b.later(2 * time.Hour) // the evidence of it is too old
			b.want(t, missing)
			b.Set(Config{Own: []Own{own(net)}, MissingAfter: after}, b.now)
			never(t, b)
		},

		"withdrawn, of another origin by now": func(t *testing.T, b *bench) {
			b.see("a", net, 1, us)
			b.withdraw("a", net)
			b.Set(Config{Own: []Own{{prefix(net), []uint32{666}}}, MissingAfter: after}, b.now)
			never(t, b)
		},
		"seen with what was an origin of ours": func(t *testing.T, b *bench) {
			b.see("a", net, 1, also)
			b.Set(Config{Own: []Own{{prefix(net), []uint32{us}}}, MissingAfter: after}, b.now)
			b.later(59 * time.Minute)
			b.want(t, hijack)
			b.later(time.Hour)
			never(t, b)
		},

		// It is on the air, or not.
		"off and on the air": func(t *testing.T, b *bench) {
			on, off := b.cfg, Config{Elsewhere: b.cfg.Own, MissingAfter: after}
			b.see("a", net, 1, us)
			b.withdraw("a", net)
			begins(t, b)
			b.Set(off, b.now)
			b.later(time.Hour)
			b.want(t)
			b.Set(on, b.now) // announced anew: what has lost it should have it back
			begins(t, b)
			b.Set(off, b.now)
			b.see("a", net, 1, us) // another site is
			b.later(time.Hour)
			b.Set(on, b.now)
			b.later(time.Hour)
			b.want(t)
		},
		"switched off": func(t *testing.T, b *bench) {
			with := b.cfg
			b.see("a", net, 1, us)
			b.withdraw("a", net)
			begins(t, b)
			b.Set(Config{Own: b.cfg.Own}, b.now)
			never(t, b)
			b.Set(with, b.now)
			b.want(t, missing)
		},
		"no prefix of ours for a while": func(t *testing.T, b *bench) {
			with := b.cfg
			b.see("a", net, 1, us)
			b.withdraw("a", net)
			begins(t, b)
			b.Set(Config{MissingAfter: after}, b.now)
			b.Set(with, b.now)
			never(t, b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(Config{Own: []Own{own(net)}, MissingAfter: after})
			script(t, b)
			b.check(t)
		})
	}
}

// TestMissingBySeveral: the sources are counted, and some are named.
func TestMissingBySeveral(t *testing.T) {
	b := newBench(Config{Own: []Own{own("192.0.2.0/24")}, MissingAfter: time.Minute})
	b.see("a", "192.0.2.0/24", 1, us)
	b.withdraw("a", "192.0.2.0/24")
	for i := range 4 {
		b.EndOfRIB(fmt.Sprintf("peer %d", i), edge.IPv4, b.now)
	}
	b.later(time.Minute)
	a := b.want(t, "missing 192.0.2.0/24 - 5")[0]
	if !strings.HasPrefix(a.Evidence, "announced for 1m0s, and seen by nobody since 2026-01-01T00:00:00Z: of feed 1 had it and have lost it, the last a at ") || !strings.HasSuffix(a.Evidence, "; and 2 more") {
		t.Errorf("%+v", a)
	}
}

// TestMissingManyVantages: however many have seen it, it is missing when the last
// of them has lost it; where there are more than are kept, that is not known.
func TestMissingManyVantages(t *testing.T) {
	b := newBench(Config{Own: []Own{own("192.0.2.0/24")}, MissingAfter: time.Minute})
	for i := range maxSpots {
		b.see(fmt.Sprint(i), "192.0.2.0/24", 1, us)
	}
	for i := range maxSpots {
		b.want(t)
		b.withdraw(fmt.Sprint(maxSpots-1-i), "192.0.2.0/24")
		b.later(time.Hour)
	}
	b.want(t, "missing 192.0.2.0/24 - 1")
	b.see("one more", "192.0.2.0/24", 1, us)
	b.withdraw("one more", "192.0.2.0/24")
	b.later(time.Hour)
	b.want(t)
	b.EndOfRIB("peer glass", edge.IPv4, b.now)
	b.Lost("feed", "", b.now) // and with it those that were not kept
	b.later(time.Minute)
	b.want(t, "missing 192.0.2.0/24 - 1")
	b.check(t)

	b.held = maxHeld // no room at all
	b.see("a", "192.0.2.0/24", 1, us)
	b.want(t)
}
