package bgp_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRestartAlone(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{})
	in := intentOf(peerN(1))
	in.Generation, in.Speaker.Lease = 7, time.Hour
	s.set(degraded(in))
	r.has(net4, degraded4)

	s.proc.Stop(syscall.SIGKILL)
	eventually(t, func() string { return differ(net4, r.route(net4), nil) })
	s.start()
	st := s.state()
	if st.Generation != 7 || st.Expired || st.LeaseLeft <= 50*time.Minute {
		t.Errorf("restored: generation %d, expired %v, lease left %s", st.Generation, st.Expired, st.LeaseLeft)
	}
	if diff := cmp.Diff(&in.Speaker, st.Speaker, equateAddrs); diff != "" {
		t.Errorf("restored settings (-want +got):\n%s", diff)
	}
	r.has(net4, degraded4) // as it was told last, and nobody has told it since
	r.has(net6, degraded6)
	s.holds("r1", degraded(in))

	for name, spoil := range map[string]func([]byte) []byte{
		"cut off":      func(b []byte) []byte { return b[:len(b)/2] },
		"other boot":   func(b []byte) []byte { return slices.Concat([]byte(`{"boot_id":"0`), b[len(`{"boot_id":"`):]) },
		"not valid":    func(b []byte) []byte { return []byte(strings.Replace(string(b), `"asn":4200000001`, `"asn":0`, 1)) },
		"trailing":     func(b []byte) []byte { return append(b, '{') },
		"binary noise": func([]byte) []byte { return []byte{0, 1, 2, 255} },
	} {
		s.proc.Stop(syscall.SIGKILL)
		good, err := os.ReadFile(s.dir + "/state")
		must(t, err)
		must(t, os.WriteFile(s.dir+"/state", spoil(slices.Clone(good)), 0o600))
		s.start()
		if st := s.state(); st.Generation != 0 || st.Announcements != nil || st.Peers != nil {
			t.Errorf("%s: started with %+v", name, st)
		}
		must(t, os.WriteFile(s.dir+"/state", good, 0o600))
	}
	// What another version has written there is taken for what is known of it.
	s.proc.Stop(syscall.SIGKILL)
	good, err := os.ReadFile(s.dir + "/state")
	must(t, err)
	newer := bytes.Replace(good, []byte(`"generation":7`), []byte(`"generation":7,"new":{"a":[1]}`), 1)
	must(t, os.WriteFile(s.dir+"/state", slices.Concat([]byte(`{"new":1,`), newer[1:]), 0o600))
	s.start()
	if st := s.state(); bytes.Equal(good, newer) || st.Generation != 7 || len(st.Announcements) != 2 {
		t.Errorf("restored from another version's file: %+v", st)
	}
	r.has(net4, degraded4)
	s.set(in) // works as ever, and is kept again
	r.has(net4, normal4)
	s.proc.Stop(syscall.SIGKILL)
	s.start()
	r.has(net4, normal4)
}

func TestRouterRestart(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{session: "passive;"}) // all the dialling is ours
	in := intentOf(peerN(1))
	s.set(in)
	r.has(net4, normal4)
	r.proc.Stop(syscall.SIGKILL)
	eventually(t, func() string {
		p := s.peer("r1")
		if p.Session == "established" || p.Flaps != 1 || p.LastErr == "" || p.Held != nil {
			return fmt.Sprintf("%+v", p)
		}
		return ""
	})
	// Away for as long as a reload takes: we are amid failing connects.
	gone := time.Now()
	eventually(t, func() string {
		if p := s.peer("r1"); time.Since(gone) < 15*time.Second || !strings.Contains(p.LastErr, "connect ") {
			return p.LastErr
		}
		return ""
	})
	r.start()
	back := time.Now()
	r.has(net4, normal4)
	r.has(net6, normal6)
	// We try every 2 s, and do not wait the longer the more often it was in vain.
	if took := s.peer("r1").Since.Sub(back); took > 12*time.Second {
		t.Errorf("the session is back %s after its router", took)
	}
}

func TestServerSettings(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{})
	in := intentOf(peerN(1))
	s.set(in)
	r.has(net4, normal4)

	// A port that is taken costs nothing.
	taken := in
	taken.Speaker.Listen = 1790
	var release func() error
	must(t, s.ns.Run(func() (err error) { release, err = occupy(1790); return err }))
	if _, err := s.call("PUT", "/v1/intent", taken); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a port that is taken: %v", err)
	}
	if p := s.peer("r1"); p.Session != "established" || p.Flaps != 0 {
		t.Errorf("the session after a refused port: %+v", p)
	}
	must(t, release())

	r.configure(birdOptions{asn: 64999})
	if out := r.birdc("configure"); !strings.Contains(out, "Reconfig") {
		t.Fatal(out)
	}
	// Before, it would be a withdrawal that nobody has ordered.
	eventually(t, func() string {
		if p := s.peer("r1"); p.Session == "established" {
			return "the router has not ended the session"
		}
		return ""
	})
	in.Speaker.ASN = 64999
	in.Speaker.Listen = 1790
	s.set(in)
	r.has(net4, &seen{path: "64999", communities: normal4.communities, nextHop: normal4.nextHop})
	if p := s.peer("r1"); p.Flaps == 0 {
		t.Errorf("the restart of the server is not counted: %+v", p)
	}
	s.set(degraded(in))
	r.has(net4, &seen{path: "64999 64999 64999 64999", med: 500, communities: degraded4.communities, nextHop: "10.0.1.1"})
	s.holds("r1", degraded(in))
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	in := intentOf(peerN(1))
	s.set(in)
	bad := intentOf(peerN(1), peerN(1))
	bad.Speaker.ASN = 0
	for name, c := range map[string]struct {
		method, path string
		body         any
		want         []string
	}{
		"no JSON":   {"PUT", "/v1/intent", "{", []string{"400", "read body"}},
		"empty":     {"PUT", "/v1/intent", `{}`, []string{"400", "speaker: ASN 0"}},
		"not valid": {"PUT", "/v1/intent", bad, []string{"400", "intent is not valid", "speaker: ASN 0", "second peer with this id", "second peer with address"}},
		"path":      {"GET", "/v1/intent", nil, []string{"404", "not served"}},
	} {
		_, err := s.call(c.method, c.path, c.body)
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q in it", name, err, w)
			}
		}
	}
	if st := s.state(); st.Generation != 1 || len(st.Peers) != 1 || len(st.Announcements) != 2 {
		t.Errorf("bad requests have changed the state: %+v", st)
	}
}
