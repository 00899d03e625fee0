package bgp

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
	"github.com/catchment-dev/edge/bgp/wire"
)

// TestAtStake: what the end of the process would take from a router.
func TestAtStake(t *testing.T) {
	both := map[edge.Family]bool{edge.IPv4: true, edge.IPv6: true}
	capable := func(families map[edge.Family]bool) wire.Open {
		return wire.Open{GracefulRestart: &wire.GracefulRestart{Time: time.Minute, Families: families}}
	}
	held := []edge.HeldPrefix{{Net: p4}, {Net: p6}}
	plain := relay.State{Session: established, Held: held}
	keeps := relay.State{Session: established, Held: held, Ours: capable(both), Remote: capable(nil)}
	for name, c := range map[string]struct {
		peers  []relay.State
		proven bool
		want   []netip.Prefix
	}{
		"no session":                  {nil, true, nil},
		"holds nothing":               {[]relay.State{{Session: established}}, true, nil},
		"not established":             {[]relay.State{{Session: "openconfirm", Held: held}}, true, nil},
		"holds all":                   {[]relay.State{plain}, true, []netip.Prefix{p4, p6}},
		"holds one":                   {[]relay.State{{Session: established, Held: held[1:]}}, true, []netip.Prefix{p6}},
		"keeps all":                   {[]relay.State{keeps, keeps}, true, nil},
		"keeps all, but not proven":   {[]relay.State{keeps}, false, []netip.Prefix{p4, p6}},
		"one of two keeps":            {[]relay.State{keeps, plain}, true, []netip.Prefix{p4, p6}},
		"we have not offered":         {[]relay.State{{Session: established, Held: held, Remote: capable(both)}}, true, []netip.Prefix{p4, p6}},
		"the router has not":          {[]relay.State{{Session: established, Held: held, Ours: capable(both)}}, true, []netip.Prefix{p4, p6}},
		"not offered for this family": {[]relay.State{{Session: established, Held: held, Ours: capable(map[edge.Family]bool{edge.IPv4: true}), Remote: capable(both)}}, true, []netip.Prefix{p6}},
	} {
		f := &faulty{}
		s := f.unstarted()
		s.forwarding = func() bool { return c.proven }
		in := plainIntent()
		in.Speaker.Peers = append(in.Speaker.Peers, in.Speaker.Peers[0])
		in.Speaker.Peers[1].ID, in.Speaker.Peers[1].Addr = "b", netip.MustParseAddr("192.0.2.3")
		f.spare(s, "")
		f.spare(s, "")
		if err := s.accept(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		for i, st := range c.peers {
			f.states[in.Speaker.Peers[i].Addr] = st
		}
		if got := s.atStake(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		if s.toStop(); s.stopping.IsZero() != (len(c.want) == 0) {
			t.Errorf("%s: stopping since %s", name, s.stopping)
		}
	}
	if s := New(Options{}); len(s.toStop().held) != 0 || !s.stopping.IsZero() {
		t.Error("one that was never told anything has to wait")
	}
}

// TestLeave: it goes on for as long as anything is held, says since when, and ends when
// nothing has been held for two looks.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{}
		s := speakerOf(t, f)
		addr := s.intent.Speaker.Peers[0].Addr
		s.intent.Announcements[0].Reason = "it is drained"
		holds := func(nets ...netip.Prefix) {
			f.mu.Lock()
			defer f.mu.Unlock()
			st := relay.State{Session: established}
			for _, net := range nets {
				st.Held = append(st.Held, edge.HeldPrefix{Net: net})
			}
			f.states[addr] = st
		}
		holds(p4, p6)
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go func() { // Run, without its servers
			for {
				select {
				case a := <-s.asks:
					a.reply <- s.answer(ctx, a)
				case <-ctx.Done():
					return
				}
			}
		}()
		begun := time.Now()
		left := make(chan error, 1)
		wait, giveUp := context.WithCancel(ctx)
		go func() { left <- s.Leave(wait) }()
		time.Sleep(time.Hour)
		if c, err := s.State(ctx, ""); err != nil || !c.Stopping.Equal(begun) || len(left) > 0 {
			t.Fatalf("after an hour: stopping since %s, %v", c.Stopping, err)
		}
		giveUp()
		if err := <-left; !errors.Is(err, context.Canceled) || !strings.HasSuffix(err.Error(), "still announced: 198.51.100.0/24 (it is drained), 2001:db8::/32") {
			t.Errorf("given up: %v", err)
		}
		go func() { left <- s.Leave(ctx) }()
		time.Sleep(time.Minute)
		holds(p6)
		time.Sleep(time.Minute)
		if len(left) > 0 {
			t.Fatal("it leaves while one is held")
		}
		gone := time.Now()
		holds()
		if err := <-left; err != nil || time.Since(gone) < stopPause || time.Since(gone) > 2*stopPause {
			t.Errorf("nothing is held any more: %v after %s", err, time.Since(gone))
		}
		begun = time.Now()
		if err := s.Leave(ctx); err != nil || !time.Now().Equal(begun) {
			t.Errorf("nothing was held: %v after %s", err, time.Since(begun))
		}
		end()
		synctest.Wait()
		close(s.done)
		if err := s.Leave(t.Context()); !errors.Is(err, errStopped) {
			t.Errorf("Run has ended: %v", err)
		}
	})
}
