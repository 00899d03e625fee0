package watch

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestFeed: lines are judged, what is wrong with them is counted, and changes
// are told and logged.
func TestFeed(t *testing.T) {
	synctest.Test(t, inLab(watched(), func(l *lab) {
		w := l.stream()
		if s := l.want(); !s.Connected || s.Source != streamURL || s.LastErr != "" || s.Lines != 0 || !s.LastAt.IsZero() {
			t.Errorf("%+v", s)
		}
		if l.told() != 1 {
			t.Error("the feed was not told of once")
		}
		send(w, good(), "", `{"type":"pong"}`)
		if s := l.want(); s.Lines != 2 || s.Dropped != 0 || !s.LastAt.Equal(time.Now()) {
			t.Errorf("%+v", s)
		}
		if l.told() != 0 {
			t.Error("something was told of lines with no news")
		}
		send(w, hijack())
		l.want(UnexpectedOrigin)
		if l.told() != 1 || l.told() != 0 {
			t.Error("an alarm was not told of once")
		}
		for range 100 {
			send(w, "garbage", strings.Repeat("x", maxLine+1))
		}
		s := l.want(UnexpectedOrigin)
		if s.Lines != 203 || s.Dropped != 200 || !strings.HasPrefix(s.LastErr, "line dropped: a line of more than") {
			t.Errorf("%+v", s)
		}
		if l.told() != 1 {
			t.Error("dropped lines were not told of once")
		}
		send(w, `{"type":"ris_error","data":{"message":"unknown host"}}`)
		if s := l.want(UnexpectedOrigin); s.LastErr != "the feed reports: unknown host" {
			t.Errorf("%+v", s)
		}
		time.Sleep(dropShown)
		if s := l.want(UnexpectedOrigin); s.LastErr != "" {
			t.Errorf("%+v", s)
		}
		l.told()
		send(w, `{"type":"ris_message","data":{"host":"rrc01","peer":"q","type":"RIS_PEER_STATE","state":"down"}}`)
		l.want()
		if l.told() != 1 {
			t.Error("the end of the alarm was not told of")
		}
		l.stop()
		for _, want := range []string{"msg=\"feed connected\"", "msg=alarm kind=unexpected-origin prefix=192.0.2.0/24", "msg=\"alarm ended\" kind=unexpected-origin"} {
			if strings.Count(l.log.String(), want) != 1 {
				t.Errorf("the log has not once %q:\n%s", want, l.log.String())
			}
		}
	}))
}

// TestMissingFeed: time alone makes an alarm, which is told, but only of what was
// seen and withdrawn.
func TestMissingFeed(t *testing.T) {
	synctest.Test(t, inLab(watched(), func(l *lab) {
		w := l.stream()
		send(w, ris("rrc00", "p", `[1]`, announce("203.0.113.0/24")))
		time.Sleep(5 * time.Minute)
		send(w, ris("rrc00", "p", `[1]`, announce("203.0.113.0/24"))) // or it would be silent for too long
		time.Sleep(14 * time.Minute)
		if s := l.want(); s.Unseen != 1 {
			t.Errorf("%+v", s)
		}
		send(w, good(), strings.Replace(ris("rrc00", "p", `null`, `"withdrawals":["192.0.2.0/24"]`), "1767225600.25", "0", 1))
		l.told()
		time.Sleep(10*time.Minute - 3*time.Second)
		l.want()
		time.Sleep(2 * time.Second)
		l.want(Missing)
		if l.told() != 1 {
			t.Error("not told")
		}
	}))
}

// TestReconnect: a stream that is cut is asked for again, with pauses that grow,
// are bounded and jittered, and what it has shown stays.
func TestReconnect(t *testing.T) {
	synctest.Test(t, inLab(watched(), func(l *lab) {
		w := l.stream()
		send(w, hijack())
		io.WriteString(w, `{"type":"ris_mess`)
		w.CloseWithError(io.ErrUnexpectedEOF)
		s := l.want(UnexpectedOrigin)
		if s.Connected || s.LastErr != "unexpected EOF" || s.Lines != 2 || s.Dropped != 1 {
			t.Errorf("%+v", s)
		}
		w = l.stream()
		if s := l.want(UnexpectedOrigin); !s.Connected || !strings.Contains(s.LastErr, "ended within it") {
			t.Errorf("%+v", s)
		}
		w.Close()
		if s := l.want(UnexpectedOrigin); s.LastErr != "the server has ended the stream" {
			t.Errorf("%+v", s)
		}

		l.setRefuse(errors.New("connection refused"))
		time.Sleep(30 * time.Minute)
		dials := l.dialled()[2:]
		different := map[time.Duration]bool{}
		for i := range dials[1:] {
			gap := dials[i+1].Sub(dials[i])
			different[gap] = true
			if most := min(4*firstPause<<min(i, 20), maxPause); gap > most || gap < most*3/4 {
				t.Errorf("%s before dial %d", gap, i+1)
			}
		}
		if len(dials) < 30 || len(different) < 10 {
			t.Errorf("%d dials, %d pauses", len(dials), len(different))
		}
		l.told()
		l.setRefuse(nil)
		w = l.stream()
		l.want(UnexpectedOrigin)
		time.Sleep(steady) // it lasts: the pauses begin anew
		w.Close()
		begin := time.Now()
		l.stream()
		if d := time.Since(begin); d > firstPause {
			t.Errorf("connected after %s", d)
		}
	}))
}

// TestSilence: a stream without a line is not waited for without end.
func TestSilence(t *testing.T) {
	synctest.Test(t, inLab(watched(), func(l *lab) {
		w := l.stream()
		for range 3 {
			time.Sleep(silenceLimit - time.Second)
			send(w, good())
		}
		if n := len(l.dialled()); n != 1 {
			t.Fatalf("%d dials", n)
		}
		time.Sleep(silenceLimit)
		if s := l.want(); s.LastErr != "nothing has come for 15m0s" {
			t.Errorf("%+v", s)
		}
		l.stream()
	}))
}

// TestSet: an equal feed goes on, whatever else changes; another one, or none,
// leaves nothing of it.
func TestSet(t *testing.T) {
	cfg := watched()
	synctest.Test(t, inLab(cfg, func(l *lab) {
		w := l.stream()
		send(w, hijack())
		l.want(UnexpectedOrigin)
		for i := range 1000 {
			next := watched()
			next.MissingAfter += time.Duration(i % 2)
			next.Neighbours = []uint32{left, uint32(i)}
			l.set(next)
		}
		send(w, good())
		if s := l.want(UnexpectedOrigin); s.Lines != 2 || len(l.dialled()) != 1 {
			t.Errorf("%d dials, %+v", len(l.dialled()), s)
		}
		cfg.Own[0].Origins[0] = 666 // is the caller's
		l.want(UnexpectedOrigin)

		next := watched()
		next.URL += "&client=x"
		l.set(next)
		if s := l.State(); len(s.Alarms) > 0 || s.Lines != 0 || s.Source != next.URL { // at once
			t.Errorf("%+v", s)
		}
		w2 := l.stream()
		if _, err := w.Write([]byte("x\n")); err == nil {
			t.Error("the old stream is still read")
		}
		send(w2, hijack())
		l.want(UnexpectedOrigin)
		next.URL = ""
		l.set(next)
		if s := l.want(); s.Source != "" || s.Connected || s.Lines != 0 {
			t.Errorf("%+v", s)
		}
		if l.told() != 1 {
			t.Error("not told")
		}
	}))
}

func TestSetRefuses(t *testing.T) {
	synctest.Test(t, inLab(watched(), func(l *lab) {
		w := l.stream()
		send(w, hijack())
		many := make([]Own, maxOwn+1)
		for _, test := range []struct {
			cfg  Config
			want string
		}{
			{Config{URL: streamURL, File: "/x"}, "url and file are both set"},
			{Config{File: "x"}, `file "x" is not an absolute path`},
			{Config{URL: "ftp://192.0.2.1/"}, "not an http or https URL"},
			{Config{URL: "http://user:secret@/"}, "not an http or https URL"},
			{Config{URL: "http://[::1"}, "not an http or https URL"},
			{Config{MissingAfter: -1}, "missing after -1ns"},
			{Config{Forget: -1}, "forget -1ns is not between"},
			{Config{Forget: 25 * time.Hour}, "forget 25h0m0s is not between"},
			{Config{Own: many}, "16385 prefixes, at most 16384"},
			{Config{Own: []Own{{}}}, "is not a prefix"},
			{Config{Own: []Own{{netip.PrefixFrom(netip.MustParseAddr("192.0.2.1"), 24), []uint32{1}}}}, "192.0.2.1/24 is not a prefix, or has host bits"},
			{Config{Own: []Own{own("::ffff:192.0.2.0/120")}}, "is not a prefix"},
			{Config{Own: []Own{{prefix("192.0.2.0/24"), nil}}}, "192.0.2.0/24 has no origin"},
			{Config{Own: []Own{own("192.0.2.0/24")}, Elsewhere: []Own{own("192.0.2.0/24")}}, "192.0.2.0/24 is listed twice"},
		} {
			if err := l.Set(test.cfg); err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v, want %q", err, test.want)
			}
		}
		l.want(UnexpectedOrigin)
	}))
}

// TestPeers: what watched peers show counts without a feed, until the session ends.
func TestPeers(t *testing.T) {
	cfg := watched()
	cfg.URL = ""
	synctest.Test(t, inLab(cfg, func(l *lab) {
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for n := range 200 {
					l.Observe(Route{Prefix: prefix("192.0.2.0/24"), ASPath: []uint32{uint32(n), 666}, Peer: fmt.Sprint(i), Source: "peer glass"})
					l.State()
				}
			})
		}
		all.Wait()
		if s := l.want(UnexpectedOrigin); s.Alarms[0].Count != 8 || !s.Alarms[0].Last.Equal(time.Now()) {
			t.Errorf("%+v", s)
		}
		l.Observe(Route{Prefix: prefix("192.0.2.0/25"), ASPath: []uint32{666}, Source: "peer glass", At: time.Now().Add(time.Hour)})
		if s := l.want(MoreSpecific, UnexpectedOrigin); !s.Alarms[0].Last.Equal(time.Now()) {
			t.Errorf("%+v", s)
		}
		l.Lost("peer glass")
		l.want()
	}))
}

// TestManyAlarms: the log does not grow with what strangers announce.
func TestManyAlarms(t *testing.T) {
	synctest.Test(t, inLab(Config{Own: []Own{own("2001:db8::/32")}}, func(l *lab) {
		for i := range 60 {
			l.Observe(Route{Prefix: prefix(fmt.Sprintf("2001:db8:%x::/48", i)), ASPath: []uint32{666}, Source: "peer glass"})
		}
		l.told()
		l.stop()
		if n := strings.Count(l.log.String(), "\n"); n != mostLogged+1 || !strings.Contains(l.log.String(), `msg="more alarms" count=44`) {
			t.Errorf("%d lines:\n%s", n, l.log.String())
		}
	}))
}

// TestStaleFeed: what a feed that is no longer wanted still reads does not count.
func TestStaleFeed(t *testing.T) {
	w := New(Options{})
	if err := w.Set(watched()); err != nil {
		t.Fatal(err)
	}
	old := feedOf(w)
	if err := w.Set(Config{Own: watched().Own}); err != nil {
		t.Fatal(err)
	}
	old.up()
	old.line([]byte(hijack()))
	old.line([]byte("garbage"))
	old.trouble("of the past")
	old.down(errors.New("of the past"))
	if s := w.State(); len(s.Alarms) > 0 || s.Connected || s.Lines > 0 || s.LastErr != "" {
		t.Errorf("%+v", s)
	}
}
