package bgp

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
)

// ordered is in with an order to withdraw p for another second.
func ordered(in edge.Intent, p netip.Prefix) edge.Intent {
	in.Announcements = slices.DeleteFunc(slices.Clone(in.Announcements), func(a edge.Announcement) bool { return a.Net == p })
	in.Withdraw = append(slices.Clone(in.Withdraw), edge.Withdrawal{Net: p, Until: time.Now().Add(time.Second)})
	return in
}

// TestForgotten: not one word of an intent that forgets a prefix is carried
// out.
func TestForgotten(t *testing.T) {
	f := &faulty{}
	s := speakerOf(t, f)
	now := time.Now().Add(time.Second)
	s.now = func() time.Time { return now }
	lease := s.lease
	in := plainIntent()
	in.Generation, in.Announcements = 9, nil
	in.Speaker.Lease = time.Minute
	in.Speaker.Peers = nil
	in.Announcements = []edge.Announcement{{Net: netip.MustParsePrefix("203.0.113.0/24"), NextHop: netip.MustParseAddr("192.0.2.1")}}
	for want, withdraw := range map[string][]netip.Prefix{"198.51.100.0/24, 2001:db8::/32": nil, ": 2001:db8::/32": {p4}} {
		for _, p := range withdraw {
			in = ordered(in, p)
		}
		err := s.accept(t.Context(), in)
		if !errors.Is(err, ErrForgotten) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("forgetting gives %v, want %q", err, want)
		}
		if f.did() != "" || s.lease != lease || s.intent.Generation != 3 || len(s.intent.Announcements) != 2 || len(s.engine.peerings) != 1 {
			t.Errorf("a refused intent has changed something: %+v", s.intent)
		}
		in.Withdraw = nil
	}
	s.intent.Announcements = make([]edge.Announcement, 1000)
	if err := s.accept(t.Context(), in); err == nil || len(err.Error()) > 1000 || !strings.HasSuffix(err.Error(), " and 980 more") {
		t.Errorf("forgetting 1000: %v", err)
	}
}

// TestDropped: not one word of an intent is carried out that would end the last
// session that carries what it goes on announcing. What is ordered off the air, or
// held by another peer, or by none, is no reason; what could not be withdrawn is.
func TestDropped(t *testing.T) {
	second := plainIntent().Speaker.Peers[0]
	second.ID, second.Addr = "b", netip.MustParseAddr("192.0.2.3")
	none := func(s *edge.Speaker) { s.Peers = nil }
	other := func(s *edge.Speaker) { s.Peers = slices.Clone(s.Peers); s.Peers[0].Hold += time.Second }
	for name, c := range map[string]struct {
		change   func(*edge.Speaker)
		idle     bool // nobody holds anything
		both     bool // the second peer holds it as well
		withdraw []netip.Prefix
		late     bool // the permits have ended
		refused  bool
		stays    int // announcements that stay against their order
	}{
		"no peer":                       {change: none, refused: true},
		"another session":               {change: other, refused: true},
		"another AS":                    {change: func(s *edge.Speaker) { s.ASN++ }, refused: true},
		"not to be sent it":             {change: func(s *edge.Speaker) { s.Peers = slices.Clone(s.Peers); s.Peers[0].Prefixes = []netip.Prefix{p6} }, refused: true},
		"no session":                    {change: none, idle: true},
		"another peer holds it":         {change: func(s *edge.Speaker) { s.Peers = s.Peers[1:] }, both: true},
		"no peer, though two hold it":   {change: none, both: true, refused: true},
		"all is ordered off":            {change: none, withdraw: []netip.Prefix{p4, p6}},
		"one is ordered off":            {change: none, withdraw: []netip.Prefix{p4}, refused: true},
		"all is ordered off, but late":  {change: none, withdraw: []netip.Prefix{p4, p6}, late: true, stays: 2},
		"a new lease":                   {change: func(s *edge.Speaker) { s.Lease = time.Minute }},
		"another way of announcing it":  {change: func(s *edge.Speaker) { s.Peers = slices.Clone(s.Peers); s.Peers[0].Announce.MED = 7 }},
		"a worker is still at the last": {change: func(s *edge.Speaker) { s.Peers = s.Peers[:1] }, both: true, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := &faulty{}
			s := f.unstarted()
			f.spare(s, "")
			f.spare(s, "")
			first := plainIntent()
			first.Speaker.Peers = append(first.Speaker.Peers, second)
			if err := s.accept(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			f.did()
			for i, p := range first.Speaker.Peers {
				if !c.idle && (i == 0 || c.both) {
					f.states[p.Addr] = relay.State{Session: established, Held: []edge.HeldPrefix{{Net: p4}, {Net: p6}}}
				}
			}
			if strings.HasPrefix(name, "a worker") { // the first peer's session is about to end
				g := s.engine.peerings[first.Speaker.Peers[0].Addr]
				g.busy, g.peer.Hold = true, time.Hour
				defer func() { g.busy = false }()
			}
			in := first
			in.Generation = 9
			c.change(&in.Speaker)
			for _, p := range c.withdraw {
				in = ordered(in, p)
				if c.late {
					in.Withdraw[len(in.Withdraw)-1].Until = time.Now()
				}
			}
			err := s.accept(t.Context(), in)
			if errors.Is(err, ErrForgotten) != c.refused || (err != nil) != (c.refused || c.stays > 0) {
				t.Fatalf("it says %v", err)
			}
			if c.refused && (f.did() != "" || s.intent.Generation != first.Generation) {
				t.Errorf("a refused intent has changed something: %+v", s.intent)
			}
			kept := reflect.DeepEqual(s.intent.Speaker, first.Speaker)
			if kept != (c.refused || c.stays > 0) || c.stays > 0 && len(s.intent.Announcements) != c.stays {
				t.Errorf("in force: %+v", s.intent)
			}
		})
	}
}

// TestPermitEnds: the clock is looked at before each withdrawal, and an end
// that has passed costs only its own prefix.
func TestPermitEnds(t *testing.T) {
	f := &faulty{}
	s := speakerOf(t, f)
	start := time.Now()
	now := start
	s.now = func() time.Time { return now }
	f.fault = func(string) error { now = now.Add(time.Second); return nil } // each call takes a second
	in := plainIntent()
	in.Generation = 4
	in.Announcements[0].Net = netip.MustParsePrefix("203.0.113.0/24")
	in.Announcements = in.Announcements[:1]
	in.Withdraw = []edge.Withdrawal{{Net: p4, Until: start.Add(time.Second)}, {Net: p6, Until: start.Add(time.Second)}, {Net: netip.MustParsePrefix("192.0.2.0/24")}}
	err := s.accept(t.Context(), in)
	if err == nil || !strings.Contains(err.Error(), "2001:db8::/32 stays: the permit to withdraw it has ended") || strings.Contains(err.Error(), "198.51") {
		t.Errorf("the second permit has ended: %v", err)
	}
	if did := f.did(); did != "delete 198.51.100.0/24, add 203.0.113.0/24" {
		t.Errorf("did %s", did)
	}
	if got := s.intent; got.Generation != 4 || len(got.Announcements) != 2 || got.Announcements[1].Net != p6 || got.Withdraw != nil || !s.lease.renewed.Equal(now) || s.failed {
		t.Errorf("in force: %+v, lease renewed %s after, failed %v", got, s.lease.renewed.Sub(start), s.failed)
	}
	// What stays must be named the next time, and is not touched until then.
	if err := s.retry(); err != nil || f.did() != "" {
		t.Errorf("the next attempt: %v", err)
	}
	in.Withdraw = nil
	if err := s.accept(t.Context(), in); !errors.Is(err, ErrForgotten) {
		t.Errorf("what stays is forgotten: %v", err)
	}
	in.Withdraw = []edge.Withdrawal{{Net: p6, Until: now.Add(time.Nanosecond)}}
	if err := s.accept(t.Context(), in); err != nil || f.did() != "delete 2001:db8::/32" || len(s.intent.Announcements) != 1 {
		t.Errorf("ordered again: %v", err)
	}
}

// TestUnsure: after a call that has failed the server is told again, whatever
// it is to be.
func TestUnsure(t *testing.T) {
	no := errors.New("no")
	fail := func(call string) func(string) error {
		return func(c string) error {
			if c == call {
				return no
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		faults string // of the withdrawal of p4
		did    string
		left   int
	}{
		"delete": {"delete 198.51.100.0/24", "delete 198.51.100.0/24, add 198.51.100.0/24", 2},
		"none":   {"", "delete 198.51.100.0/24", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := &faulty{fault: nil}
			s := speakerOf(t, f)
			f.fault = fail(c.faults)
			err := s.accept(t.Context(), ordered(plainIntent(), p4))
			if (err != nil) != (c.faults != "") || err != nil && (!errors.Is(err, no) || !strings.Contains(err.Error(), "198.51.100.0/24 stays: peer a: withdraw")) {
				t.Errorf("withdrawal: %v", err)
			}
			if did := f.did(); did != c.did || len(s.intent.Announcements) != c.left {
				t.Errorf("did %s, %d announcements", did, len(s.intent.Announcements))
			}
		})
	}
	t.Run("neither", func(t *testing.T) {
		f := &faulty{}
		s := speakerOf(t, f)
		f.fault = func(string) error { return no }
		if err := s.accept(t.Context(), ordered(plainIntent(), p4)); !errors.Is(err, no) || s.engine.trouble() == nil {
			t.Errorf("withdrawal: %v", err)
		}
		f.did()
		// Still nothing works, and it is ordered again; then it is announced.
		for range 2 {
			if err := s.accept(t.Context(), ordered(plainIntent(), p4)); !errors.Is(err, no) || !strings.HasPrefix(f.did(), "delete 198.51.100.0/24") {
				t.Errorf("withdrawn again: %v", err)
			}
		}
		f.fault = nil
		if err := s.accept(t.Context(), plainIntent()); err != nil || f.did() != "add 198.51.100.0/24" || s.engine.trouble() != nil {
			t.Errorf("announced again: %v", err)
		}
		if err := s.accept(t.Context(), plainIntent()); err != nil || f.did() != "" {
			t.Errorf("announced for sure: %v", err)
		}
	})
	t.Run("delete, and the rest was given up", func(t *testing.T) {
		f := &faulty{}
		s := speakerOf(t, f)
		f.fault = func(string) error { return context.DeadlineExceeded }
		in := ordered(plainIntent(), p4)
		in.Announcements[0].Normal.MED = 7
		if err := s.accept(t.Context(), in); err == nil || f.did() != "delete 198.51.100.0/24, list" {
			t.Errorf("withdrawal: %v", err)
		}
		f.fault = nil
		if err := s.retry(); err != nil {
			t.Errorf("the next attempt: %v", err)
		}
		f.did()
		if err := s.accept(t.Context(), in); err != nil || !strings.HasPrefix(f.did(), "delete 198.51.100.0/24") || len(s.intent.Announcements) != 1 {
			t.Errorf("withdrawn again: %v", err)
		}
	})
	t.Run("add", func(t *testing.T) {
		f := &faulty{}
		s := speakerOf(t, f)
		f.fault = fail("add 198.51.100.0/24")
		in := plainIntent()
		in.Announcements[0].Degrade = true
		if err := s.accept(t.Context(), in); !errors.Is(err, no) || f.did() != "add 198.51.100.0/24" {
			t.Errorf("degraded: %v", err)
		}
		// It may stand in the table in either way.
		f.fault = nil
		if err := s.accept(t.Context(), ordered(plainIntent(), p4)); err != nil || f.did() != "delete 198.51.100.0/24" {
			t.Errorf("withdrawn: %v", err)
		}
	})
}

// TestServerHangs: a server that does not answer is not waited for longer than its
// caller does, the rest is not tried, and nothing that was not withdrawn is lost.
func TestServerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{}
		s := speakerOf(t, f)
		release := make(chan struct{})
		f.fault = func(string) error { <-release; return nil }
		in := ordered(ordered(plainIntent(), p4), p6)
		for i := range in.Withdraw {
			in.Withdraw[i].Until = time.Now().Add(time.Hour)
		}
		try := func(limit time.Duration) {
			t.Helper()
			start := time.Now()
			err := s.accept(t.Context(), in)
			if !errors.Is(err, errSilent) || !strings.Contains(err.Error(), "198.51.100.0/24 stays: ") || !strings.Contains(err.Error(), "2001:db8::/32 stays: not tried") {
				t.Errorf("withdrawals: %v", err)
			}
			if took := time.Since(start); took != limit || len(s.intent.Announcements) != 2 || s.renewal != "" {
				t.Errorf("after %s: %+v", took, s.intent)
			}
		}
		try(withdrawLimit + patience)
		if st := s.state().Peers[0]; st.Pending == 0 {
			t.Errorf("while it hangs: %+v", st)
		}
		time.Sleep(2 * callLimit)
		if st := s.state().Peers[0]; st.LastErr != errSilent.Error() || st.Pending == 0 || s.untilWake() > retryPause {
			t.Errorf("when it is known to hang: %+v", st)
		}
		try(patience) // at once, but for the second attempt to announce
		close(release)
		synctest.Wait()
		if did := f.did(); !strings.HasSuffix(did, "list, add 198.51.100.0/24") {
			t.Errorf("as soon as it answers: did %s", did)
		}
		if err := s.retry(); err != nil || f.did() != "" {
			t.Errorf("the next attempt: %v", err)
		}
		if st := s.state().Peers[0]; st.LastErr != "" || st.Pending != 0 || s.untilWake() < retryPause {
			t.Errorf("when it answers again: %+v", st)
		}
		if err := s.accept(t.Context(), in); err != nil || f.did() != "delete 198.51.100.0/24, delete 2001:db8::/32" {
			t.Errorf("ordered again: %v", err)
		}
	})
}

// TestSetOfOneWhoHasGone: nothing is begun for a caller who has gone, even if
// the intent had been handed over.
func TestSetOfOneWhoHasGone(t *testing.T) {
	f := &faulty{}
	s := speakerOf(t, f)
	lease := s.lease
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in := ordered(plainIntent(), p4)
	if got := s.answer(t.Context(), ask{ctx: ctx, intent: &in}); !errors.Is(got.err, context.Canceled) {
		t.Errorf("answer: %v", got.err)
	}
	if f.did() != "" || len(s.intent.Announcements) != 2 || s.lease != lease {
		t.Errorf("something was done: %+v", s.intent)
	}
}
