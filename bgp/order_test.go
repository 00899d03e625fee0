package bgp_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
)

// TestForgottenIsRefused: no router loses what an intent does not name, however
// often it is sent, and the lease runs on.
func TestForgottenIsRefused(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{})
	in := intentOf(peerN(1))
	if st := s.set(in); cmp.Diff(&in.Speaker, st.Speaker, equateAddrs) != "" {
		t.Errorf("settings in force: %+v", st.Speaker)
	}
	s.established("r1")
	r.has(net4, normal4)
	r.has(net6, normal6)
	in.Speaker.Lease = 2 * time.Second
	s.set(in)

	bad := in
	bad.Generation, bad.Speaker.Peers, bad.Announcements = 2, nil, in.Announcements[1:]
	empty := bad
	empty.Announcements = nil
	alone, other := in, in // what is announced is named, but nobody would hold it any more
	alone.Speaker.Peers = nil
	other.Speaker.Peers = []edge.Peer{peerN(1)}
	other.Speaker.Peers[0].Hold = 30 * time.Second
	eventually(t, func() string {
		for want, in := range map[string]edge.Intent{
			"nor in withdraw: 192.0.2.0/24": bad, "192.0.2.0/24, 2001:db8:1::/48": empty,
			"it would take 192.0.2.0/24 from every peer that holds it": alone, "take 192.0.2.0/24 from every peer that holds it": other,
		} {
			if _, err := s.call("PUT", "/v1/intent", in); err == nil || !strings.HasPrefix(err.Error(), "409: ") || !strings.HasSuffix(err.Error(), want) {
				t.Fatalf("an intent that forgets: %v, want %q", err, want)
			}
		}
		if st := s.state(); st.Generation != 1 || len(st.Peers) != 1 || len(st.Announcements) != 2 {
			t.Fatalf("an intent that forgets has changed the state: %+v", st)
		} else if !st.Expired {
			return "the lease has not run out"
		}
		return ""
	})
	r.has(net4, degraded4)
	r.has(net6, degraded6)
	s.set(in)
	r.has(net4, normal4)
	if p := s.peer("r1"); p.Flaps != 0 {
		t.Errorf("%d flaps", p.Flaps)
	}
	if _, withdraws := r.counts(); withdraws != 0 {
		t.Errorf("the router has received %d withdrawals", withdraws)
	}
}

// TestPermitHasEnded: the prefix stays and the caller is told; all else of the
// intent is done.
func TestPermitHasEnded(t *testing.T) {
	t.Parallel()
	s, r, in := announced(t)

	new4 := netip.MustParsePrefix("198.51.100.0/24")
	late := withdrawn(in, time.Now().Add(-time.Millisecond), net4)
	late.Withdraw = append(late.Withdraw, edge.Withdrawal{Net: net6, Until: time.Now().Add(time.Minute)})
	late.Announcements[0].Net, late.Announcements[0].NextHop = new4, netip.MustParseAddr("10.0.1.1")
	st, err := s.call("PUT", "/v1/intent", late)
	if err == nil || !strings.HasPrefix(err.Error(), "503: 192.0.2.0/24 stays: the permit to withdraw it has ended at ") || strings.Contains(err.Error(), net6.String()) {
		t.Errorf("a permit that has ended: %v", err)
	}
	if len(st.Announcements) != 2 || st.Announcements[1].Net != net4 || st.Holders(net6) != 0 || st.Holders(net4) != 1 {
		t.Errorf("state beside the error: %+v", st)
	}
	r.has(new4, normal4)
	r.has(net6, nil)
	r.has(net4, normal4)
	// A restart does not lose it either.
	s.proc.Stop(9)
	s.start()
	r.has(net4, normal4)
	r.has(new4, normal4)
	r.has(net6, nil)
	// What is gone may be ordered again, under any permit.
	done := withdrawn(in, time.Time{}, net6)
	done.Withdraw = append(done.Withdraw, edge.Withdrawal{Net: new4, Until: time.Now().Add(time.Minute)})
	s.set(done)
	r.has(new4, nil)
	r.has(net4, normal4)
}

// TestNewerEdged: what edgebgp does not know it ignores.
func TestNewerEdged(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	b, err := json.Marshal(intentOf(peerN(1)))
	must(t, err)
	body := `{"new":{"a":[1]},` + strings.Replace(string(b[1:]), `"id":"r1"`, `"id":"r1","new":true`, 1)
	if st, err := s.call("PUT", "/v1/intent", body); err != nil || len(st.Peers) != 1 || len(st.Announcements) != 2 || strings.Count(body, "new") != 2 {
		t.Errorf("an intent with new keys: %+v, %v", st, err)
	}
	if _, err := s.call("PUT", "/v1/intent", body+"{}"); err == nil || !strings.HasPrefix(err.Error(), "400: read body: ") {
		t.Errorf("two intents in one: %v", err)
	}
}
