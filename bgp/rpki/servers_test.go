package rpki

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestOrder: the first cache that can be used is, an earlier one again when it
// is back, and the trouble of the earlier ones is shown all the time.
func TestOrder(t *testing.T) {
	synctest.Test(t, inLab(Config{Servers: []string{cacheA, cacheB}, Refresh: time.Hour}, func(l *lab) {
		c := l.accept(cacheA)
		l.nobody(cacheB)
		c.serve()
		l.want(two()...)

		l.setRefuse(cacheA, true)
		c.conn.Close()
		c = l.accept(cacheB)
		if s := l.want(two()...); s.Source != "rtr "+cacheA+" version 1" {
			t.Errorf("%+v", s)
		}
		c.expect(resetQuery(1)) // its serial is not that of the other
		c.send(response(1, 1), prefix4(1, true, 9, 9), endOfData(1, 1, 3600, 600, 7200))
		if s := l.want(vrp("192.0.9.0/24", 24, 9)); s.Source != "rtr "+cacheB+" version 1" || !strings.HasPrefix(s.LastErr, "rtr cache "+cacheA) {
			t.Errorf("%+v", s)
		}

		// Again and again it is looked for the first: no news.
		changes, _ := l.seen()
		for range 10 {
			begin := time.Now()
			c.closed()
			if d := time.Since(begin); d != preferPause {
				t.Errorf("left after %s", d)
			}
			c = l.accept(cacheB)
			c.expect(serialQuery(1, 1, 1))
			c.send(response(1, 1), endOfData(1, 1, 3600, 600, 7200))
			l.want(vrp("192.0.9.0/24", 24, 9))
		}
		if now, _ := l.seen(); now > changes+1 { // "connection refused" instead of "EOF"
			t.Errorf("%d changes told", now-changes)
		}

		l.setRefuse(cacheA, false)
		c.closed()
		c = l.accept(cacheA)
		c.serve()
		if s := l.want(two()...); s.Source != "rtr "+cacheA+" version 1" || s.LastErr != "" {
			t.Errorf("%+v", s)
		}
		c.silent(preferPause + time.Minute) // the first is not left
		l.nobody(cacheB)
	}))
}

// TestNoData: a cache that has nothing yet is left for the next one, and asked
// again when its time has come.
func TestNoData(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA, cacheB), func(l *lab) {
		a := l.accept(cacheA)
		a.expect(resetQuery(1))
		a.send(failure(1, codeNoData, resetQuery(1), ""))
		a.closed()
		b := l.accept(cacheB)
		b.serve()
		if s := l.want(two()...); s.LastErr != "rtr cache "+cacheA+": the cache reports: no data available" {
			t.Errorf("%+v", s)
		}
		b.closed()
		a = l.accept(cacheA)
		a.serve()
		if s := l.want(two()...); s.LastErr != "" || !strings.Contains(s.Source, cacheA) {
			t.Errorf("%+v", s)
		}
	}))
}

// TestBackOff: the way back from a loss is short, to useless data long, and
// never without a pause.
func TestBackOff(t *testing.T) {
	gaps := func(dials []time.Time) (out []time.Duration) {
		for i := range dials[1:] {
			out = append(out, dials[i+1].Sub(dials[i]))
		}
		return out
	}
	t.Run("refused", func(t *testing.T) {
		synctest.Test(t, inLab(only(cacheA), func(l *lab) {
			c := l.accept(cacheA)
			l.setRefuse(cacheA, true)
			c.conn.Close()
			time.Sleep(time.Hour)
			changes, dials := l.seen()
			for i, gap := range gaps(dials) {
				if most := min(time.Second<<min(i, 20), firstRetry); gap > most || gap < most*3/4 {
					t.Errorf("%s after dial %d", gap, i)
				}
			}
			if len(dials) < 3600/5 || changes > 3 { // Set, EOF, refused
				t.Errorf("%d dials, %d changes told", len(dials), changes)
			}
		}))
	})
	t.Run("useless", func(t *testing.T) {
		synctest.Test(t, inLab(only(cacheA), func(l *lab) {
			for range 15 {
				c := l.accept(cacheA)
				c.expect(resetQuery(1))
				c.send(response(1, 7), prefix4(1, true, 1, 1), prefix4(1, true, 1, 1), endOfData(7, 1, 1, 1, 600))
				c.refused(codeDuplicate, prefix4(1, true, 1, 1))
			}
			_, dials := l.seen()
			all := gaps(dials)
			if last := all[len(all)-1]; last < defaultRetry*3/4 || last > defaultRetry {
				t.Errorf("the last pause is %s", last)
			}
		}))
	})
}

// TestTooMany: what is taken from a cache is bounded, in one answer and in all.
func TestTooMany(t *testing.T) {
	synctest.Test(t, inLab(Config{}, func(l *lab) {
		l.client.most = 3
		if err := l.client.Set(only(cacheA)); err != nil {
			t.Fatal(err)
		}
		c := l.accept(cacheA)
		c.expect(resetQuery(1))
		c.send(response(1, 7))
		for n := range byte(4) {
			c.send(prefix4(1, true, n, 1))
		}
		c.closed()
		if _, s := l.wantUnknown(); !strings.Contains(s.LastErr, "more than 3") {
			t.Errorf("%+v", s)
		}
		c = l.accept(cacheA)
		c.serve()
		l.want(two()...)
		c.expect(serialQuery(1, 7, 5))
		c.send(response(1, 7), prefix4(1, true, 8, 1), prefix4(1, true, 9, 1), endOfData(7, 6, 3600, 600, 7200))
		c.closed()
		if s := l.want(two()...); !strings.Contains(s.LastErr, "more than 3") {
			t.Errorf("%+v", s)
		}
	}))
}

// TestPrefer: however long the first cache was away, and whatever retry interval
// it wants, it is looked for when its time has come.
func TestPrefer(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA, cacheB), func(l *lab) {
		c := l.accept(cacheA)
		c.expect(resetQuery(1))
		c.send(response(1, 7), endOfData(7, 5, 86400, 7200, 172800))
		l.want()
		l.setRefuse(cacheA, true)
		c.conn.Close()
		l.setRefuse(cacheB, true)
		time.Sleep(40 * time.Hour) // by now its pause is 7200 s
		for len(l.conns[cacheB]) > 0 {
			l.accept(cacheB).conn.Close()
		}
		l.setRefuse(cacheB, false)
		b := l.accept(cacheB)
		b.expect(resetQuery(1))
		l.setRefuse(cacheA, false)
		b.send(response(1, 7), endOfData(7, 5, 86400, 7200, 172800))
		b.closed()
		begin := time.Now()
		l.accept(cacheA)
		if d := time.Since(begin); d != 0 {
			t.Errorf("connected after %s", d)
		}
	}))
}
