package rpki

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestVersions is RFC 8210 section 7.
func TestVersions(t *testing.T) {
	zero := func(c *cache) {
		t.Helper()
		c.expect(resetQuery(0))
		c.send(response(0, 3), prefix4(0, true, 2, 64500), endOfData0(3, 1))
		if s := c.l.want(two()[0]); s.Source != "rtr 192.0.2.1:323 version 0" || s.LastErr != "" || !s.Expires.Equal(time.Now().Add(defaultExpire)) {
			t.Errorf("%+v", s)
		}
		c.silent(time.Hour - time.Second)
		c.expect(serialQuery(0, 3, 1))
	}
	t.Run("by error report", func(t *testing.T) {
		synctest.Test(t, inLab(only(cacheA), func(l *lab) {
			c := l.accept(cacheA)
			c.expect(resetQuery(1))
			c.send(failure(0, codeVersion, resetQuery(1), "no"))
			c.closed()
			zero(l.accept(cacheA))
			if _, dials := l.seen(); dials[0] != dials[1] {
				t.Errorf("dialled at %v, want at once", dials)
			}
		}))
	})
	t.Run("by answer", func(t *testing.T) {
		synctest.Test(t, inLab(only(cacheA), func(l *lab) {
			c := l.accept(cacheA)
			c.expect(resetQuery(1))
			c.send(notification(2, 99, 99), notification(0, 3, 9)) // say nothing yet
			c.send(response(0, 3), prefix4(0, true, 2, 64500), endOfData0(3, 1))
			l.want(two()[0])
			c.silent(time.Hour - time.Second)
			c.expect(serialQuery(0, 3, 1))
			c.conn.Close()
			l.accept(cacheA).expect(resetQuery(1)) // it may have been upgraded
		}))
	})
	t.Run("no version at all", func(t *testing.T) {
		synctest.Test(t, inLab(only(cacheA), func(l *lab) {
			for _, v := range []uint8{1, 0} {
				c := l.accept(cacheA)
				c.expect(resetQuery(v))
				c.send(failure(v, codeVersion, resetQuery(v), "never"))
				c.closed()
			}
			if _, s := l.wantUnknown(); !strings.Contains(s.LastErr, "unsupported version (never)") {
				t.Errorf("%+v", s)
			}
		}))
	})
	t.Run("a newer one", func(t *testing.T) {
		synctest.Test(t, inLab(only(cacheA), func(l *lab) {
			c := l.accept(cacheA)
			c.expect(resetQuery(1))
			c.send(response(2, 3))
			c.refused(codeVersion, response(2, 3))
		}))
	})
	t.Run("later", func(t *testing.T) { // differences of version 0 do not fit to the data of version 1
		synctest.Test(t, inLab(only(cacheA), func(l *lab) {
			c := l.accept(cacheA)
			c.serve()
			l.want(two()...)
			c.conn.Close()
			c = l.accept(cacheA)
			c.expect(serialQuery(1, 7, 5))
			c.send(response(0, 7))
			c.closed()
			l.want(two()...)
			zero(l.accept(cacheA))
		}))
	})
}
