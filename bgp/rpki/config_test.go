package rpki

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func (l *lab) set(cfg Config) {
	l.t.Helper()
	if err := l.client.Set(cfg); err != nil {
		l.t.Fatal(err)
	}
}

// TestSetEqual: an equal configuration is none: the session goes on.
func TestSetEqual(t *testing.T) {
	cfg := Config{Servers: []string{cacheA, "[2001:db8:0::2]:323"}, Refresh: time.Hour}
	synctest.Test(t, inLab(cfg, func(l *lab) {
		c := l.accept(cacheA)
		c.serve()
		l.want(two()...)
		before, _ := l.seen()
		for range 1000 {
			l.set(Config{Servers: []string{cacheA, cacheB}, Refresh: time.Hour})
		}
		c.silent(time.Hour - time.Second)
		changes, dials := l.seen()
		if len(dials) != 1 || changes != before {
			t.Errorf("%d dials, %d changes told", len(dials), changes-before)
		}
		cfg.Servers[0] = "192.0.2.99:323" // is the caller's
		l.set(Config{Servers: []string{cacheA, cacheB}, Refresh: time.Hour})
		c.expect(serialQuery(1, 7, 5))
	}))
}

// TestSetOnce: what is set before Run runs is followed by one connection.
func TestSetOnce(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		l.accept(cacheA).serve()
		l.want(two()...)
		if _, dials := l.seen(); len(dials) != 1 {
			t.Errorf("%d dials", len(dials))
		}
	}))
}

// TestSetKeeps: a cache that stays in the list keeps its data.
func TestSetKeeps(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		c := l.accept(cacheA)
		c.serve()
		l.want(two()...)
		l.set(Config{Servers: []string{cacheB, cacheA}, Refresh: time.Minute})
		l.want(two()...)
		c.closed()
		l.accept(cacheB).conn.Close()
		c = l.accept(cacheA)
		c.expect(serialQuery(1, 7, 5))
		begin := time.Now()
		c.send(response(1, 7), endOfData(7, 5, 3600, 600, 7200))
		c.expect(serialQuery(1, 7, 5))
		if d := time.Since(begin); d != time.Minute {
			t.Errorf("asked after %s", d)
		}
	}))
}

// TestSetRemoves: a source that is taken away leaves nothing.
func TestSetRemoves(t *testing.T) {
	for name, cfg := range map[string]Config{"nothing": {}, "another": only(cacheB), "file": {File: "/nonexistent/vrps.json"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, inLab(only(cacheA), func(l *lab) {
				c := l.accept(cacheA)
				c.serve()
				l.want(two()...)
				l.set(cfg)
				if set, status := l.client.Current(); set.Len() != 0 || status != (Status{}) { // at once
					t.Fatalf("%d VRPs, %+v", set.Len(), status)
				}
				c.closed()
				synctest.Wait()
				l.set(only(cacheA))
				l.accept(cacheA).serve() // all of it: nothing was kept
				if s := l.want(two()...); s.LastErr != "" {
					t.Errorf("%+v", s)
				}
			}))
		})
	}
}

// TestSetWhileAnswering: what an old source finds out late does not count.
func TestSetWhileAnswering(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		c := l.accept(cacheA)
		c.expect(resetQuery(1))
		c.send(response(1, 7), prefix4(1, true, 2, 64500))
		l.set(Config{})
		c.conn.Write(endOfData(7, 5, 3600, 600, 7200))
		c.closed()
		if _, s := l.wantUnknown(); s != (Status{}) {
			t.Errorf("%+v", s)
		}
	}))
}

func TestSetRefuses(t *testing.T) {
	var many []string
	for n := range maxServers + 1 {
		many = append(many, fmt.Sprintf("192.0.2.%d:323", n))
	}
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		c := l.accept(cacheA)
		c.serve()
		l.want(two()...)
		for _, test := range []struct {
			cfg  Config
			want string
		}{
			{Config{Servers: []string{cacheA}, File: "/x"}, "servers and file are both set: choose one"},
			{Config{Servers: many}, "17 servers, at most 16"},
			{only("rtr.example.net:323"), `"rtr.example.net:323" is not an address and a port, as in`},
			{only("192.0.2.1"), `"192.0.2.1" is not an address and a port`},
			{only("192.0.2.1:0"), `"192.0.2.1:0" is not an address and a port`},
			{only(""), `"" is not an address and a port`},
			{only(cacheB, "[2001:db8:0:0::2]:323"), "[2001:db8:0:0::2]:323 is listed twice"},
			{Config{Servers: []string{cacheA}, Refresh: time.Millisecond}, "refresh 1ms is not between 1s and 24h"},
			{Config{Servers: []string{cacheA}, Refresh: 25 * time.Hour}, "refresh 25h0m0s is not between"},
			{Config{Servers: []string{cacheA}, Refresh: -1}, "refresh -1ns is not between"},
		} {
			if err := l.client.Set(test.cfg); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%+v: %v, want %q", test.cfg, err, test.want)
			}
		}
		l.want(two()...)
		c.silent(time.Minute) // the old configuration runs on
	}))
}
