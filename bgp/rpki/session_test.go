package rpki

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func only(servers ...string) Config { return Config{Servers: servers} }

// TestSession: all, then what is new by time and by notification, then all
// again because the cache says so.
func TestSession(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		c := l.accept(cacheA)
		begin := time.Now()
		c.serve()
		want := Status{Source: "rtr 192.0.2.1:323 version 1", Serial: 5, VRPs: 2, Updated: begin, Expires: begin.Add(2 * time.Hour)}
		if diff := cmp.Diff(want, l.want(two()...)); diff != "" {
			t.Error(diff)
		}
		if changes, _ := l.seen(); changes != 2 { // Set, and the data
			t.Errorf("%d changes told", changes)
		}

		c.silent(time.Hour - time.Second)
		c.expect(serialQuery(1, 7, 5))
		if d := time.Since(begin); d != time.Hour {
			t.Errorf("asked after %s", d)
		}
		c.send(response(1, 7), prefix4(1, false, 3, 64501), prefix4(1, true, 4, 0), endOfData(7, 6, 3600, 600, 7200))
		if s := l.want(two()[0], vrp("192.0.4.0/24", 24, 0)); s.Serial != 6 || !s.Expires.Equal(time.Now().Add(2*time.Hour)) {
			t.Errorf("%+v", s)
		}

		c.send(notification(1, 7, 6)) // we have that
		c.silent(time.Minute)
		c.send(notification(1, 7, 7))
		c.expect(serialQuery(1, 7, 6))
		changes, _ := l.seen()
		c.send(response(1, 7), endOfData(7, 7, 3600, 600, 7200)) // nothing has changed
		if s := l.want(two()[0], vrp("192.0.4.0/24", 24, 0)); s.Serial != 7 {
			t.Errorf("%+v", s)
		}
		if now, _ := l.seen(); now != changes {
			t.Error("a change was told, but nothing has changed")
		}

		c.expect(serialQuery(1, 7, 7))
		c.send(raw(1, 8, 0))
		c.expect(resetQuery(1))
		l.want(two()[0], vrp("192.0.4.0/24", 24, 0)) // until there is better
		c.send(response(1, 9), prefix4(1, true, 9, 9), endOfData(9, 1, 3600, 600, 7200))
		l.want(vrp("192.0.9.0/24", 24, 9))
		c.expect(serialQuery(1, 9, 1))
	}))
}

// TestSessionLost: a cache that is back is asked for what is new.
func TestSessionLost(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		c := l.accept(cacheA)
		c.serve()
		l.want(two()...)
		c.conn.Close()
		if s := l.want(two()...); s.LastErr != "rtr cache 192.0.2.1:323: read: EOF" {
			t.Errorf("%+v", s)
		}
		c = l.accept(cacheA)
		c.expect(serialQuery(1, 7, 5))
		c.send(response(1, 7), prefix4(1, false, 3, 64501), endOfData(7, 6, 3600, 600, 7200))
		if s := l.want(two()[0]); s.LastErr != "" {
			t.Errorf("%+v", s)
		}
	}))
}

// TestNewSession is RFC 8210 section 5.1: another session id voids the data.
func TestNewSession(t *testing.T) {
	for name, begin := range map[string]func(c *cache) (quoted []byte){
		"notify":      func(c *cache) []byte { return notification(1, 8, 5) },
		"response":    func(c *cache) []byte { c.expect(serialQuery(1, 7, 5)); return response(1, 8) },
		"end of data": func(c *cache) []byte { c.expect(serialQuery(1, 7, 5)); return endOfData(8, 6, 3600, 600, 7200) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, inLab(only(cacheA), func(l *lab) {
				c := l.accept(cacheA)
				c.serve()
				l.want(two()...)
				quoted := begin(c)
				if name == "end of data" {
					c.send(response(1, 7))
				}
				c.send(quoted)
				c.refused(codeCorrupt, quoted)
				if v, _ := l.wantUnknown(); !strings.Contains(v.Evidence, "new session") {
					t.Errorf("%v", v)
				}
				c = l.accept(cacheA)
				c.expect(resetQuery(1))
				c.send(response(1, 8), prefix4(1, true, 2, 64500), endOfData(8, 5, 3600, 600, 7200))
				l.want(two()[0])
			}))
		})
	}
}

// TestExpiry: data that nobody confirms end at their time, whatever goes on.
func TestExpiry(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		c := l.accept(cacheA)
		c.serve()
		end := time.Now().Add(2 * time.Hour)
		l.want(two()...)
		l.setRefuse(cacheA, true)
		c.conn.Close()
		time.Sleep(time.Until(end) - 1)
		l.want(two()...)
		changes, _ := l.seen()
		time.Sleep(time.Nanosecond)
		v, s := l.wantUnknown()
		if !strings.HasPrefix(v.Evidence, "the VRPs expired at 2000-01-01T02:00:0") || s.LastErr == "" {
			t.Errorf("%v, %+v", v, s)
		}
		if now, _ := l.seen(); now != changes+1 {
			t.Errorf("%d changes told", now-changes)
		}
		l.setRefuse(cacheA, false)
		c = l.accept(cacheA) // what has expired is void, RFC 8210 section 6
		c.expect(resetQuery(1))
		c.send(response(1, 7), prefix4(1, true, 2, 64500), endOfData(7, 5, 3600, 600, 7200))
		if s := l.want(two()[0]); s.LastErr != "" {
			t.Errorf("%+v", s)
		}
	}))
}

func TestIntervals(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		version                uint8
		refresh, retry, expire uint32
		longest                time.Duration
		want                   intervals
	}{
		{1, 3600, 600, 7200, 0, intervals{3600 * s, 600 * s, 7200 * s}},
		{1, 0, 0, 0, 0, intervals{s, s, 600 * s}},
		{1, 1, 1, 600, 0, intervals{s, s, 600 * s}},
		{1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 0, intervals{86400 * s, 7200 * s, 172800 * s}},
		{1, 86400, 7200, 172800, 0, intervals{86400 * s, 7200 * s, 172800 * s}},
		{1, 86400, 7200, 600, 0, intervals{300 * s, 300 * s, 600 * s}}, // expire is the longest
		{1, 3600, 600, 7200, time.Minute, intervals{time.Minute, 600 * s, 7200 * s}},
		{1, 30, 600, 7200, time.Minute, intervals{30 * s, 600 * s, 7200 * s}},
		{0, 1, 1, 1, 0, intervals{3600 * s, 600 * s, 7200 * s}},
		{0, 0, 0, 0, time.Minute, intervals{time.Minute, 600 * s, 7200 * s}},
	} {
		got := intervalsOf(pdu{version: test.version, refresh: test.refresh, retry: test.retry, expire: test.expire}, test.longest)
		if got != test.want {
			t.Errorf("%+v: got %+v", test, got)
		}
	}
}

// TestMalformed: what is wrong is reported with its code, and the data in use
// stay.
func TestMalformed(t *testing.T) {
	bad := raw(1, 4, 0, append([]byte{1, 24, 33, 0, 192, 0, 2, 0}, u32(1)...)...)
	for _, test := range []struct {
		name   string
		before [][]byte // sent first, as an answer to a Serial Query
		bad    []byte
		code   uint16
		quoted []byte // nil: bad
	}{
		{"prefix", [][]byte{response(1, 7)}, bad, codeCorrupt, nil},
		{"length", [][]byte{response(1, 7)}, raw(1, 4, 0, 1, 2, 3), codeCorrupt, raw(1, 4, 0, 1, 2, 3)[:8]},
		{"type", nil, raw(1, 99, 0), codeKind, nil},
		{"query", nil, raw(1, 2, 0), codeKind, nil},
		{"router key in version 0", nil, raw(0, 9, 0, make([]byte, 40)...), codeOtherVersion, raw(0, 9, 0, make([]byte, 40)...)[:8]},
		{"version", [][]byte{response(1, 7)}, prefix4(0, true, 9, 9), codeOtherVersion, prefix4(0, true, 9, 9)[:8]},
		{"version 2", [][]byte{response(1, 7)}, prefix4(2, true, 9, 9), codeOtherVersion, prefix4(2, true, 9, 9)[:8]},
		{"VRPs without a response", nil, prefix4(1, true, 9, 9), codeCorrupt, nil},
		{"two responses", [][]byte{response(1, 7)}, response(1, 7), codeCorrupt, nil},
		{"reset in an answer", [][]byte{response(1, 7)}, raw(1, 8, 0), codeCorrupt, nil},
		{"withdrawal", [][]byte{response(1, 7), prefix4(1, false, 9, 9)}, endOfData(7, 6, 3600, 600, 7200), codeUnknownRecord, prefix4(1, false, 9, 9)},
		{"duplicate", [][]byte{response(1, 7), prefix4(1, true, 2, 64500)}, endOfData(7, 6, 3600, 600, 7200), codeDuplicate, prefix4(1, true, 2, 64500)},
		{"twice", [][]byte{response(1, 7), prefix4(1, true, 9, 9), prefix4(1, true, 9, 9)}, endOfData(7, 6, 3600, 600, 7200), codeDuplicate, prefix4(1, true, 9, 9)},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, inLab(only(cacheA), func(l *lab) {
				c := l.accept(cacheA)
				c.serve()
				c.expect(serialQuery(1, 7, 5))
				c.send(bytes.Join(test.before, nil), test.bad)
				if test.quoted == nil {
					test.quoted = test.bad
				}
				if test.name == "type" || test.name == "query" {
					test.quoted = test.bad[:8]
				}
				c.refused(test.code, test.quoted)
				if s := l.want(two()...); s.LastErr == "" {
					t.Error("no error is shown")
				}
				c = l.accept(cacheA)
				c.serve() // all of it: the two disagree
				if s := l.want(two()...); s.LastErr != "" {
					t.Errorf("%+v", s)
				}
			}))
		})
	}
}

// TestUnasked: only notifications come unasked.
func TestUnasked(t *testing.T) {
	for _, bad := range [][]byte{response(1, 7), endOfData(7, 6, 3600, 600, 7200), prefix4(1, true, 9, 9), raw(1, 8, 0)} {
		synctest.Test(t, inLab(only(cacheA), func(l *lab) {
			c := l.accept(cacheA)
			c.serve()
			l.want(two()...)
			c.send(bad)
			c.refused(codeCorrupt, bad)
			l.want(two()...)
		}))
	}
}

// TestErrorReport: one is never answered by another, however malformed.
func TestErrorReport(t *testing.T) {
	for _, test := range []struct {
		name string
		in   []byte
		want string
	}{
		{"internal", failure(1, 1, resetQuery(1), "disk\x1b[2J full"), "the cache reports: internal error (disk[2J full)"},
		{"of another version", failure(2, 3, nil, ""), "the cache reports: invalid request"},
		{"code", failure(1, 99, nil, ""), "the cache reports: code 99"},
		{"length", []byte{1, 10, 0, 0, 0xff, 0, 0, 0}, "length of 4278190080"},
		{"short", []byte{1, 10, 0, 0, 0, 0, 0, 8}, "length of 8"},
		{"quote", raw(1, 10, 0, u32(99, 0)...), "quotes 99"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, inLab(only(cacheA), func(l *lab) {
				c := l.accept(cacheA)
				c.expect(resetQuery(1))
				c.send(test.in)
				c.closed()
				if _, s := l.wantUnknown(); !strings.Contains(s.LastErr, test.want) {
					t.Errorf("%q, want %q", s.LastErr, test.want)
				}
			}))
		})
	}
}

// TestSilence: a cache that says nothing, or a little now and then, holds a
// session for a bounded time only.
func TestSilence(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		c := l.accept(cacheA)
		begin := time.Now()
		c.expect(resetQuery(1))
		c.closed()
		if d := time.Since(begin); d != silenceLimit {
			t.Errorf("closed after %s", d)
		}
		if _, s := l.wantUnknown(); !strings.Contains(s.LastErr, "does not answer") {
			t.Errorf("%+v", s)
		}

		c = l.accept(cacheA)
		begin = time.Now()
		c.expect(resetQuery(1))
		slow := c.conn
		go func() {
			slow.Write(response(1, 7))
			for n := byte(0); ; n++ { // ends with the session
				time.Sleep(silenceLimit - time.Second)
				if _, err := slow.Write(prefix4(1, true, n, 1)); err != nil {
					return
				}
			}
		}()
		c.closed()
		if d := time.Since(begin); d != answerLimit {
			t.Errorf("closed after %s", d)
		}
		if _, s := l.wantUnknown(); !strings.Contains(s.LastErr, "does not finish") {
			t.Errorf("%+v", s)
		}

		c = l.accept(cacheA) // half a PDU
		c.expect(resetQuery(1))
		c.send(response(1, 7), prefix4(1, true, 2, 64500)[:11])
		c.closed()
		l.wantUnknown()
	}))
}

// TestSlowPDU: nothing is lost of a PDU that comes in pieces, even where a query
// goes out in between.
func TestSlowPDU(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		c := l.accept(cacheA)
		c.serve()
		l.want(two()...)
		note := notification(1, 7, 6)
		c.send(note[:9])
		c.expect(serialQuery(1, 7, 5))
		c.send(note[9:])
		for _, b := range bytes.Join([][]byte{response(1, 7), prefix4(1, true, 4, 4), endOfData(7, 6, 3600, 600, 7200)}, nil) {
			time.Sleep(time.Second)
			c.send([]byte{b})
		}
		l.want(two()[0], two()[1], vrp("192.0.4.0/24", 24, 4))
	}))
}

// TestStorm: notifications without end are answered by a query a second.
func TestStorm(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		c := l.accept(cacheA)
		c.serve()
		l.want(two()...)
		queries := 0
		go func() {
			for b := make([]byte, 12); ; {
				if _, err := c.conn.Read(b); err != nil {
					return
				}
				queries++
				c.conn.Write(bytes.Join([][]byte{response(1, 7), endOfData(7, 5, 3600, 600, 7200)}, nil))
			}
		}()
		for n := range uint32(10_000) {
			c.send(notification(1, 7, 100+n))
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if queries < 9 || queries > 11 {
			t.Errorf("%d queries in 10 s", queries)
		}
		l.want(two()...)
	}))
}
