package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	us    = 64500
	also  = 64501 // may originate our prefixes, too
	left  = 65001 // our neighbours
	right = 65002
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func own(s string) Own { return Own{prefix(s), []uint32{us, also}} }

func start() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// bench is a Judge at a time.
type bench struct {
	*Judge
	now time.Time
}

func newBench(cfg Config) *bench {
	b := &bench{NewJudge(), start()}
	b.Set(cfg, b.now)
	return b
}

func (b *bench) route(peer, p string, path ...uint32) Route {
	return Route{Prefix: prefix(p), ASPath: path, Peer: peer, Source: "feed", At: b.now}
}

func (b *bench) see(peer, p string, path ...uint32) { b.Observe(b.route(peer, p, path...)) }

func (b *bench) withdraw(peer, p string) {
	r := b.route(peer, p)
	r.Withdrawn = true
	b.Observe(r)
}

// glass is what the watched peer shows; without a path it withdraws.
func (b *bench) glass(p string, path ...uint32) {
	b.Observe(Route{Prefix: prefix(p), ASPath: path, Peer: "glass", Source: "peer glass", At: b.now, Withdrawn: len(path) == 0})
}

func (b *bench) later(d time.Duration) { b.now = b.now.Add(d) }

// want compares alarms, each as "kind prefix seen count".
func (b *bench) want(t *testing.T, want ...string) []Alarm {
	t.Helper()
	alarms := b.Find(b.now).Alarms
	var got []string
	for _, a := range alarms {
		seen := "-"
		if a.Seen.IsValid() {
			seen = a.Seen.String()
		}
		got = append(got, fmt.Sprintf("%s %s %s %d", a.Kind, a.Prefix, seen, a.Count))
		if a.Evidence == "" || a.Since.IsZero() || a.Last.Before(a.Since) || a.Last.After(b.now) {
			t.Fatalf("%+v", a)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got  %q\nwant %q", got, want)
	}
	return alarms
}

// TestRoutes is how a route is judged.
func TestRoutes(t *testing.T) {
	cfg := Config{
		Own:        []Own{own("192.0.2.0/24"), own("198.51.100.0/22"), own("198.51.101.0/24"), own("2001:db8::/32")},
		Elsewhere:  []Own{own("198.51.102.0/24"), own("2001:db8:5::/48")},
		Neighbours: []uint32{left, right},
	}
	for _, test := range []struct {
		name, prefix string
		path         []uint32
		want         string // kind, prefix, evidence
	}{
		{"ours", "192.0.2.0/24", []uint32{1, 2, left, us}, ""},
		{"prepended", "192.0.2.0/24", []uint32{1, right, right, us, us, us}, ""},
		{"from our router", "192.0.2.0/24", []uint32{us}, ""},
		{"of our own AS", "192.0.2.0/24", nil, ""},
		{"the other origin", "192.0.2.0/24", []uint32{1, 2, also}, ""},
		{"the other origin behind us", "192.0.2.0/24", []uint32{1, left, us, also}, ""},
		{"we behind the other origin", "192.0.2.0/24", []uint32{1, 9, also, us}, ""},
		{"IPv6", "2001:db8::/32", []uint32{1, left, us}, ""},
		{"inner prefix of ours", "198.51.101.0/24", []uint32{1, left, us}, ""},
		{"of another site", "198.51.102.0/24", []uint32{1, 77, us}, ""},
		{"less specific", "192.0.0.0/16", []uint32{1, 666}, ""},
		{"default", "0.0.0.0/0", []uint32{1}, ""},
		{"not ours", "203.0.113.0/24", []uint32{1, 666}, ""},
		{"next to ours", "192.0.3.0/24", []uint32{1, 666}, ""},
		{"inside of our own AS", "192.0.2.7/32", nil, ""},

		{"hijack", "192.0.2.0/24", []uint32{1, 2, 666}, "unexpected-origin 192.0.2.0/24 AS666 originates it, which only AS64500, AS64501 may; path 1 2 666, seen at rrc00 (feed)"},
		{"hijack behind us", "192.0.2.0/24", []uint32{1, left, us, 666}, "unexpected-origin 192.0.2.0/24 AS666"},
		{"hijack, IPv6", "2001:db8::/32", []uint32{666}, "unexpected-origin 2001:db8::/32 AS666"},
		{"part", "192.0.2.128/25", []uint32{1, 666}, "more-specific 192.0.2.0/24 AS666 originates a part of it; path 1 666"},
		{"part with our origin", "192.0.2.128/25", []uint32{1, left, us}, "more-specific 192.0.2.0/24 AS64500 originates a part"},
		{"host", "2001:db8::1/128", []uint32{1, 666}, "more-specific 2001:db8::/32 AS666"},
		{"part of the inner one", "198.51.101.0/25", []uint32{1, 666}, "more-specific 198.51.101.0/24 AS666"},
		{"part of the outer one", "198.51.103.0/24", []uint32{1, 666}, "more-specific 198.51.100.0/22 AS666"},
		{"prefix of another site hijacked", "198.51.102.0/24", []uint32{1, 666}, "more-specific 198.51.100.0/22 AS666"},
		{"part of the prefix of another site", "198.51.102.0/25", []uint32{1, left, us}, "more-specific 198.51.100.0/22 AS64500"},
		{"neighbour", "192.0.2.0/24", []uint32{1, 2, 77, us}, "leak 192.0.2.0/24 AS77 stands next to AS64500 and is no neighbour of it; path 1 2 77 64500"},
		{"neighbour behind which the other stands", "192.0.2.0/24", []uint32{1, 77, us, also}, "leak 192.0.2.0/24 AS77"},
		{"middle", "192.0.2.0/24", []uint32{1, left, us, 2, right, us}, "leak 192.0.2.0/24 AS64500 stands in the middle"},
		{"middle of the other origin's", "192.0.2.0/24", []uint32{1, left, us, 2, also}, "leak 192.0.2.0/24 AS64500 stands in the middle"},
		{"long path", "192.0.2.0/24", slices.Concat(slices.Repeat([]uint32{1}, 200), []uint32{666}), "path 1 1 1 1 1 1 1 ... 1 1 1 1 1 1 666, seen"},
	} {
		b := newBench(cfg)
		b.see("rrc00", test.prefix, test.path...)
		alarms := b.Find(b.now).Alarms
		var got string
		for _, a := range alarms {
			got += fmt.Sprintf("%s %s %s\n", a.Kind, a.Prefix, a.Evidence)
		}
		if test.want == "" && got != "" || !strings.Contains(got, test.want) || len(alarms) > 1 {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
		b.withdraw("rrc00", test.prefix)
		b.want(t)
	}
}

func TestAnyNeighbour(t *testing.T) {
	b := newBench(Config{Own: []Own{own("192.0.2.0/24")}})
	b.see("a", "192.0.2.0/24", 1, 77, us)
	b.want(t)
	b.see("a", "192.0.2.0/24", 1, us, 77, us) // the middle needs no neighbours
	b.want(t, "leak 192.0.2.0/24 192.0.2.0/24 1")
}

// TestAlarm is the life of one: it begins, is confirmed, and ends where all of
// its evidence is withdrawn, replaced or too old.
func TestAlarm(t *testing.T) {
	b := newBench(Config{Own: []Own{own("192.0.2.0/24")}})
	begin := b.now
	b.see("a", "192.0.2.0/24", 1, 666)
	b.later(time.Minute)
	b.see("b", "192.0.2.0/24", 2, 666)
	b.later(time.Minute)
	a := b.want(t, "unexpected-origin 192.0.2.0/24 192.0.2.0/24 2")[0]
	if !a.Since.Equal(begin) || !a.Last.Equal(begin.Add(time.Minute)) || !strings.Contains(a.Evidence, "at b (feed) and 1 more") {
		t.Errorf("%+v", a)
	}

	b.withdraw("a", "192.0.2.0/24") // another one goes on with it
	b.see("c", "192.0.2.0/24", 3, 667)
	if a := b.want(t, "unexpected-origin 192.0.2.0/24 192.0.2.0/24 2")[0]; !a.Since.Equal(begin) {
		t.Errorf("%+v", a)
	}
	b.see("b", "192.0.2.0/24", 2, us) // replaced by what is right
	b.want(t, "unexpected-origin 192.0.2.0/24 192.0.2.0/24 1")

	b.later(defaultForget - time.Second)
	b.see("c", "192.0.2.0/24", 3, 667) // confirmed
	b.later(defaultForget)
	if a := b.want(t, "unexpected-origin 192.0.2.0/24 192.0.2.0/24 1")[0]; !a.Since.Equal(begin) {
		t.Errorf("%+v", a)
	}
	b.later(time.Second)
	b.want(t)
	b.see("c", "192.0.2.0/24", 3, 667) // a new one
	if a := b.want(t, "unexpected-origin 192.0.2.0/24 192.0.2.0/24 1")[0]; !a.Since.Equal(b.now) {
		t.Errorf("%+v", a)
	}

	b.Lost("feed", "c", b.now)
	b.want(t)
	b.see("c", "192.0.2.1/32", 3, 667)
	b.see("c", "192.0.2.2/32", 3, 667)
	b.see("d", "192.0.2.2/32", 3, 667)
	b.want(t, "more-specific 192.0.2.0/24 192.0.2.1/32 1", "more-specific 192.0.2.0/24 192.0.2.2/32 2")
	b.Lost("other", "", b.now)
	b.want(t, "more-specific 192.0.2.0/24 192.0.2.1/32 1", "more-specific 192.0.2.0/24 192.0.2.2/32 2")
	b.Lost("feed", "", b.now)
	b.want(t)
}

// TestClock: evidence from the future does not last for ever.
func TestClock(t *testing.T) {
	b := newBench(Config{Own: []Own{own("192.0.2.0/24")}, Forget: time.Minute})
	r := b.route("a", "192.0.2.0/24", 666)
	r.At = b.now.Add(1000 * time.Hour)
	b.Observe(r)
	b.want(t, "unexpected-origin 192.0.2.0/24 192.0.2.0/24 1")
	b.later(time.Minute + time.Second)
	b.want(t)
	r.At = b.now.Add(-time.Hour) // nor does what a file has of yesterday count
	b.Observe(r)
	b.want(t)
}

// TestSetJudgesAnew: another configuration is about the routes that are there.
func TestSetJudgesAnew(t *testing.T) {
	cfg := Config{Own: []Own{own("192.0.2.0/24")}}
	b := newBench(cfg)
	begin := b.now
	b.see("a", "192.0.2.0/24", 1, 77, us)
	b.see("b", "192.0.2.0/24", 1, 666)
	b.see("c", "192.0.2.0/25", 1, left, us)
	b.see("d", "192.0.0.0/16", 1, 666)
	hijack, part := "unexpected-origin 192.0.2.0/24 192.0.2.0/24 1", "more-specific 192.0.2.0/24 192.0.2.0/25 1"
	b.want(t, part, hijack)
	b.later(time.Minute)

	with := cfg
	with.Neighbours = []uint32{left}
	b.Set(with, b.now)
	if a := b.want(t, "leak 192.0.2.0/24 192.0.2.0/24 1", part, hijack); !a[1].Since.Equal(begin) {
		t.Errorf("%+v", a[1])
	}
	b.check(t)

	b.Set(Config{Own: []Own{{prefix("192.0.2.0/24"), []uint32{us, 666}}, own("192.0.2.0/25")}}, b.now)
	b.want(t)
	b.Set(cfg, b.now)
	if a := b.want(t, part, hijack); !a[0].Since.Equal(b.now) { // it was right meanwhile
		t.Errorf("%+v", a[0])
	}
	b.Set(Config{Own: []Own{own("198.51.100.0/24")}}, b.now)
	b.want(t)
	b.Set(cfg, b.now) // nothing was kept of what was not ours
	b.want(t)
}
