package bgp_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// TestRPKI: what is invalid is not announced anew, and what runs is never taken
// away.
func TestRPKI(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{})
	roa := func(asn uint32) {
		t.Helper()
		b, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"buildtime": time.Now().UTC().Format(time.RFC3339)},
			"roas":     []any{map[string]any{"prefix": net4.String(), "maxLength": 24, "asn": fmt.Sprint("AS", asn), "ta": "x"}},
		})
		must(t, err)
		must(t, os.WriteFile(s.dir+"/new.json", b, 0o600))
		must(t, os.Rename(s.dir+"/new.json", s.dir+"/vrps.json"))
	}
	roa(64999)
	in := intentOf(peerN(1))
	all := in.Announcements
	in.Announcements = nil
	in.Speaker.RPKI = edge.RPKI{File: s.dir + "/vrps.json", RefuseInvalid: true}
	s.set(in)
	eventually(t, func() string {
		if st := s.state().RPKI; st.Items != 1 || !strings.Contains(st.Source, "vrps.json") {
			return fmt.Sprintf("%+v", st)
		}
		return ""
	})
	in.Announcements = all
	s.set(in)
	r.has(net6, normal6) // not found
	s.shows("r1", numbers(1, 1))
	st := s.state()
	if r.route(net4) != nil || !strings.HasPrefix(string(st.Peers[0].NotSent[0].Reason), "RPKI invalid-origin: ") {
		t.Errorf("an invalid one is announced: %+v", st.Peers[0].NotSent)
	}
	if len(st.Origins) != 2 || st.Origins[0].Validity != "invalid-origin" || st.Origins[1].Validity != "not-found" || st.Origins[0].Evidence == "" {
		t.Errorf("origins: %+v", st.Origins)
	}
	// A restart does not let it slip through.
	s.proc.Stop(syscall.SIGKILL)
	s.start()
	r.has(net6, normal6)
	if r.route(net4) != nil {
		t.Error("announced after a restart")
	}
	roa(4200000001)
	r.has(net4, normal4)
	s.shows("r1", numbers(2, 0))
	if st := s.state(); st.Origins[0].Validity != "valid" || st.Peers[0].NotSent != nil {
		t.Errorf("after the ROA was corrected: %+v, %+v", st.Origins, st.Peers[0].NotSent)
	}
	// Once it is on the air it stays, whatever comes.
	roa(64999)
	eventually(t, func() string {
		if st := s.state(); st.Origins[0].Validity != "invalid-origin" {
			return fmt.Sprintf("%+v", st.Origins)
		}
		return ""
	})
	s.set(in)
	r.has(net4, normal4)
	if p := s.peer("r1"); p.Messages.WithdrawsSent != 0 || p.NotSent != nil {
		t.Errorf("taken away: %+v", p)
	}
}

// TestWatch: a peer that is only watched shows what the world makes of our
// prefixes, and is sent nothing.
func TestWatch(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{
		top:     `protocol static leak { ipv4; route 192.0.2.0/24 blackhole; route 192.0.2.128/25 blackhole; route 198.51.100.0/24 blackhole; }`,
		exports: `where source = RTS_STATIC`,
	})
	p := peerN(1)
	p.Watch, p.DefaultRoute = true, true
	in := intentOf(p)
	s.set(in)
	s.established("r1")
	eventually(t, func() string {
		kinds := map[string]netip.Prefix{}
		for _, sight := range s.state().Sightings {
			kinds[sight.Kind] = sight.Seen
		}
		if kinds["unexpected-origin"] != net4 || kinds["more-specific"] != netip.MustParsePrefix("192.0.2.128/25") || len(kinds) != 2 {
			return fmt.Sprintf("%+v", s.state().Sightings)
		}
		return ""
	})
	if st := s.peer("r1"); st.Received != 3 || len(st.FirstReceived) != 3 || st.Default || st.Held != nil || len(st.NotSent) != 2 || r.route(net4) != nil {
		t.Errorf("the watched peer: %+v", st)
	}
	// What a peer has shown is gone with its session.
	in.Speaker.Peers = nil
	s.set(in)
	eventually(t, func() string {
		if seen := s.state().Sightings; len(seen) != 0 {
			return fmt.Sprintf("%+v", seen)
		}
		return ""
	})
}
