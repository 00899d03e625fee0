package bgp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
)

// many is plainIntent with n prefixes.
func many(n int) edge.Intent {
	in := plainIntent()
	base := in.Announcements[0]
	in.Announcements = nil
	for i := range n {
		a := base
		a.Net = netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24)
		in.Announcements = append(in.Announcements, a)
	}
	return in
}

// slow is a fault that lets every call take so long.
func slow(d time.Duration) func(string) error {
	return func(string) error { <-time.After(d); return nil }
}

// TestSetDoesNotWait: what takes long goes on behind the answer, is counted as long
// as it is not done, and its error comes with the next renewal.
func TestSetDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{}
		s := f.unstarted()
		f.spare(s, "")
		f.fault = slow(time.Millisecond)
		in, begun := many(1000), time.Now()
		if err := s.accept(t.Context(), in); err != nil || time.Since(begun) != patience {
			t.Errorf("first intent: %v after %s", err, time.Since(begun))
		}
		if st := s.state(); st.Peers[0].Pending < 700 || st.Peers[0].Pending > 800 || st.Renewal == "" || st.Generation != in.Generation {
			t.Errorf("after a quarter: %+v", st)
		}
		if err := s.renew(t.Context(), s.renewal); err != nil || time.Since(begun) != patience {
			t.Errorf("renewed: %v after %s", err, time.Since(begun))
		}
		// The session does not open before everything is there.
		if _, there := f.State(in.Speaker.Peers[0].Addr); there || strings.Contains(f.did(), "relay") {
			t.Error("the peer is there before its paths")
		}
		if err := s.engine.rest(t.Context(), time.Minute); err != nil || s.state().Peers[0].Pending != 0 || !strings.HasSuffix(f.did(), "meet AS64501, relay a") {
			t.Errorf("done: %v", err)
		}
		// All prefixes change, and the server begins to refuse.
		f.fault = func(c string) error {
			time.Sleep(time.Millisecond)
			if strings.Contains(c, "20.0.90.0/24") {
				return errors.New("no")
			}
			return nil
		}
		in = many(1000)
		for i := range in.Announcements {
			in.Announcements[i].Degrade = true
		}
		if err := s.accept(t.Context(), in); err != nil || s.renewal == "" {
			t.Errorf("before the error: %v", err)
		}
		s.engine.rest(t.Context(), time.Minute)
		if err := s.renew(t.Context(), s.renewal); err == nil || err.Error() != "peer a: announce 20.0.90.0/24: no" {
			t.Errorf("the error behind the answer: %v", err)
		}
		if st := s.state(); st.Peers[0].Pending != 1 || s.untilWake() > retryPause {
			t.Errorf("with an error: %+v", st.Peers[0])
		}
		f.fault = nil
		if err := s.retry(); err != nil || s.state().Peers[0].Pending != 0 {
			t.Errorf("the next attempt: %v", err)
		}
	})
}

// TestNewerGoesFirst: an intent that is half done gives way to a newer one, and
// nothing of it comes back.
func TestNewerGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{}
		s := f.unstarted()
		f.spare(s, "")
		f.fault = slow(time.Millisecond)
		in := many(1000)
		if err := s.accept(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		f.did()
		// Amid it, one that stands, one that does not yet, and another way for the rest.
		first, last := in.Announcements[0].Net, in.Announcements[999].Net
		in = ordered(ordered(in, first), last)
		for i := range in.Announcements {
			in.Announcements[i].Degrade = true
		}
		begun := time.Now()
		if err := s.accept(t.Context(), in); err != nil || time.Since(begun) > patience+2*atATime*time.Millisecond {
			t.Errorf("withdrawals: %v after %s", err, time.Since(begun))
		}
		s.engine.rest(t.Context(), time.Minute)
		did := f.did()
		if i := strings.Index(did, "delete "+first.String()); i < 0 || strings.Contains(did[i:], "add "+first.String()) {
			t.Errorf("%s is not withdrawn for good: %s", first, did)
		}
		if strings.Contains(did, last.String()) {
			t.Errorf("%s has never stood: %s", last, did)
		}
		g := s.engine.peerings[in.Speaker.Peers[0].Addr]
		if len(g.routes) != 998 || s.state().Peers[0].Pending != 0 {
			t.Errorf("%d routes", len(g.routes))
		}
		for net, r := range g.routes {
			if r.unsure || r.attrs.Prepend != 10 {
				t.Errorf("%s: %+v", net, r)
			}
		}
	})
}

// TestLateWithdrawal: a prefix whose order was given up stays, also if the server
// carries the order out later.
func TestLateWithdrawal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{}
		s := speakerOf(t, f)
		f.fault = slow(withdrawLimit + time.Second)
		in := ordered(plainIntent(), p4)
		in.Withdraw[0].Until = time.Now().Add(time.Minute)
		if err := s.accept(t.Context(), in); !errors.Is(err, errSilent) || len(s.intent.Announcements) != 2 {
			t.Errorf("given up: %v", err)
		}
		if err := s.engine.rest(t.Context(), time.Minute); err != nil || f.did() != "delete 198.51.100.0/24, add 198.51.100.0/24" {
			t.Errorf("it is not announced again: %v", err)
		}
		// One whose permit ends while the worker is busy is not begun.
		f.fault = slow(500 * time.Millisecond)
		in = plainIntent()
		in.Announcements[1].Degrade = true
		in.Announcements[1].Degraded.MED = 9
		if err := s.accept(t.Context(), in); err != nil {
			t.Error(err)
		}
		in = ordered(in, p4)
		in.Withdraw[0].Until = time.Now().Add(100 * time.Millisecond)
		if err := s.accept(t.Context(), in); !errors.Is(err, errLate) || len(s.intent.Announcements) != 2 {
			t.Errorf("too late: %v", err)
		}
		s.engine.rest(t.Context(), time.Minute)
		if did := f.did(); strings.Contains(did, "delete") {
			t.Errorf("too late: did %s", did)
		}
		// Nor one that was given up before, however long its permit is.
		f.fault = slow(withdrawLimit + time.Second)
		in = plainIntent()
		if err := s.accept(t.Context(), in); err != nil {
			t.Error(err)
		}
		in = ordered(in, p4)
		in.Withdraw[0].Until = time.Now().Add(time.Minute)
		if err := s.accept(t.Context(), in); !errors.Is(err, errSilent) || len(s.intent.Announcements) != 2 {
			t.Errorf("given up before it was begun: %v", err)
		}
		s.engine.rest(t.Context(), time.Minute)
		if did := f.did(); strings.Contains(did, "delete") {
			t.Errorf("given up before it was begun: did %s", did)
		}
	})
}

// TestServerIsReplaced: one that does not answer is replaced if another one does,
// behind which nothing was missing; and not again at once.
func TestServerIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{}
		s := f.unstarted()
		f.spare(s, "x ")
		if err := s.accept(t.Context(), plainIntent()); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		f.states[plainIntent().Speaker.Peers[0].Addr] = relay.State{Session: established}
		f.mu.Unlock()
		var dead sync.Map // the first word of their calls
		dead.Store("x", true)
		f.fault = func(c string) error {
			name, _, _ := strings.Cut(c, " ")
			if _, yes := dead.Load(name); yes {
				<-t.Context().Done()
			}
			return nil
		}
		in := plainIntent()
		in.Announcements[0].Degrade = true
		s.accept(t.Context(), in)
		for range 4 {
			s.retry()
		}
		// There is no other one: the session is better than none.
		f.did()
		if st := s.state().Peers[0]; st.LastErr != errSilent.Error() || st.Pending != 1 || st.Flaps != 0 || len(f.hub) != 1 {
			t.Errorf("nothing to replace it with: %+v", st)
		}
		dead.Store("y", true)
		f.spare(s, "y ")
		s.retry()
		if did := f.did(); strings.Contains(did, "relay") || len(f.hub) != 1 {
			t.Errorf("another one that does not answer: did %s", did)
		}
		f.spare(s, "z ")
		err := s.retry()
		want := "x list, z add 198.51.100.0/24, z add 2001:db8::/32, unrelay 192.0.2.254: " + newServerOf + ", z leave, z meet AS64501, relay a"
		if did := f.did(); err != nil || strings.ReplaceAll(did, "z leave, ", "") != strings.ReplaceAll(want, "z leave, ", "") {
			t.Errorf("replaced: did %s, want %s, %v", did, want, err)
		}
		if st := s.state().Peers[0]; st.LastErr != newServerOf || st.Pending != 0 || st.Flaps != 1 {
			t.Errorf("replaced: %+v", st)
		}
		dead.Store("z", true)
		f.spare(s, "v ")
		s.accept(t.Context(), plainIntent())
		for range 4 {
			s.retry()
		}
		if did := f.did(); strings.Contains(did, "v ") {
			t.Errorf("replaced again at once: did %s", did)
		}
		time.Sleep(replacePause)
		if err := s.retry(); err != nil || !strings.HasSuffix(f.did(), "relay a") {
			t.Errorf("replaced again: %v", err)
		}
	})
}

// TestAsleep: what a server has missed while it did not answer is made up for as soon
// as it does.
func TestAsleep(t *testing.T) {
	f := &faulty{}
	s := speakerOf(t, f)
	f.fault = func(string) error { return context.DeadlineExceeded }
	if err := s.accept(t.Context(), ordered(plainIntent(), p4)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("withdrawal: %v", err)
	}
	f.fault = nil
	s.retry()
	f.did()
	g := s.engine.peerings[plainIntent().Speaker.Peers[0].Addr]
	g.change(func() { g.silent = true })
	f.fault = func(string) error { return context.DeadlineExceeded }
	in := plainIntent()
	in.Speaker.Peers[0].ImportLimit = 77
	if err := s.accept(t.Context(), in); err != nil || f.hub[g.addr].Peer.ImportLimit == 77 || s.state().Peers[0].LastErr != errSilent.Error() {
		t.Errorf("nothing is missing at the server: %v, %+v", err, s.state().Peers[0])
	}
	f.fault = nil
	g.change(func() { g.silent = false }) // it has answered something else
	if err := s.retry(); err != nil || f.hub[g.addr].Peer.ImportLimit != 77 {
		t.Errorf("what was missed: %v, %+v", err, f.hub[g.addr])
	}
}

// TestRenewWithoutHub: a renewal does not look fine while there are no sessions.
func TestRenewWithoutHub(t *testing.T) {
	f := &faulty{}
	s := speakerOf(t, f)
	taken, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s.intent.Speaker.Listen = taken.Addr().(*net.TCPAddr).Port
	s.hub, s.failed = nil, true
	if err := s.renew(t.Context(), s.renewal); err == nil || !strings.Contains(err.Error(), "run relay: ") {
		t.Errorf("renewed without a hub: %v", err)
	}
}

// TestRenew: only the intent in force is renewed, only if all of it was accepted,
// and the renewal is as good as the intent.
func TestRenew(t *testing.T) {
	f := &faulty{}
	s := speakerOf(t, f)
	now := time.Now()
	s.now = func() time.Time { return now }
	s.lease.renew(now, 5*time.Second)
	first := s.renewal
	now = now.Add(4 * time.Second)
	if err := s.renew(t.Context(), first); err != nil || s.lease.left(now) != 5*time.Second || f.did() != "" {
		t.Errorf("renewed: %v, %+v", err, s.lease)
	}
	for _, other := range []string{"x", first + "1", s.view.name + "-0"} {
		now = now.Add(time.Second)
		if err := s.renew(t.Context(), other); !errors.Is(err, ErrNoRenewal) || s.lease.left(now) == 5*time.Second {
			t.Errorf("renewed by %q: %v", other, err)
		}
	}
	// Run out: it is degraded, and announced as told again by the renewal.
	now = now.Add(time.Minute)
	s.retry()
	if st := s.state(); f.did() != "add 198.51.100.0/24" || !st.Expired || !st.Announcements[0].Degrade {
		t.Errorf("run out: %+v", st)
	}
	if err := s.renew(t.Context(), first); err != nil || f.did() != "add 198.51.100.0/24" || s.state().Expired {
		t.Errorf("renewed after the end: %v", err)
	}
	// What stays in spite of its order is in force, and not what was sent.
	f.fault = func(string) error { return errors.New("no") }
	if err := s.accept(t.Context(), ordered(plainIntent(), p4)); err == nil || s.renewal != "" || s.state().Renewal != "" {
		t.Errorf("not accepted whole: %v, %q", err, s.renewal)
	}
	if err := s.renew(t.Context(), first); !errors.Is(err, ErrNoRenewal) {
		t.Errorf("renewed by the one before: %v", err)
	}
	if _, err := New(Options{}).Renew(t.Context(), "", ""); !errors.Is(err, ErrNoRenewal) {
		t.Errorf("renewed by nothing: %v", err)
	}
	f.fault = nil
	s.retry()
	if err := s.accept(t.Context(), plainIntent()); err != nil || s.renewal == "" || s.renewal == first {
		t.Errorf("accepted again: %v, %q", err, s.renewal)
	}
}
