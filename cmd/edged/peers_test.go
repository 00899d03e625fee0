package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// oldOrNew is an edgebgp of the test's own: it has one peer, which holds n prefixes
// in version n.
type oldOrNew struct {
	mu     sync.Mutex
	old    bool // knows neither versions nor renewals
	boot   string
	n      int
	intent []byte
	calls  []string
	fail   int    // answers so many calls with 503
	lie    string // the version that the next change is said to be since
}

func (o *oldOrNew) state() edge.SpeakerState {
	st := edge.SpeakerState{Peers: []edge.PeerState{{Addr: netip.MustParseAddr("10.0.0.1"), Session: "established"}}}
	for i := range o.n {
		st.Peers[0].Held = append(st.Peers[0].Held, edge.HeldPrefix{Net: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, 0, byte(i), 0}), 24)})
	}
	return st
}

func (o *oldOrNew) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := r.URL.Query()
	call := r.Method + " " + r.URL.Path
	if have := q.Get("have"); have != "" {
		call += " since " + have
	}
	o.calls = append(o.calls, call)
	version := func() string { return fmt.Sprintf("%s-%d", o.boot, o.n) }
	switch {
	case o.fail > 0:
		o.fail--
		socket.Fail(w, http.StatusServiceUnavailable, errors.New("for the test"))
		return
	case r.URL.Path == "/v1/renew" && o.old:
		socket.Fail(w, http.StatusNotFound, errors.New("not served"))
		return
	case r.URL.Path == "/v1/renew" && (o.intent == nil || q.Get("intent") != o.boot+"/"+fmt.Sprint(len(o.intent))):
		socket.Fail(w, http.StatusPreconditionFailed, errors.New("send it whole"))
		return
	case r.Method == http.MethodPut:
		var in json.RawMessage
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			socket.Fail(w, http.StatusBadRequest, err)
			return
		}
		o.intent = in
	}
	st := o.state()
	if o.old {
		socket.JSON(w, http.StatusOK, st)
		return
	}
	st.Version = version()
	if o.intent != nil {
		st.Renewal = o.boot + "/" + fmt.Sprint(len(o.intent))
	}
	c := edge.SpeakerChange{SpeakerState: st}
	if q.Get("have") == st.Version {
		c.Since, c.Same.Order = st.Version, true
	} else {
		c.Peers = []edge.PeerChange{{PeerState: st.Peers[0]}}
	}
	if o.lie != "" {
		c.Since, o.lie = o.lie, ""
	}
	socket.JSON(w, http.StatusOK, c)
}

// did returns the calls since the last time.
func (o *oldOrNew) did() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := strings.Join(o.calls, ", ")
	o.calls = nil
	return out
}

func (o *oldOrNew) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

// serveSpeaker returns a client of o.
func serveSpeaker(t *testing.T, o *oldOrNew) *speakerClient {
	t.Helper()
	dir := t.TempDir()
	ln, err := socket.Listen(filepath.Join(dir, "edgebgp.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- socket.Serve(ctx, ln, o) }()
	s := newSpeakerClient(dir)
	t.Cleanup(func() {
		s.c.Close()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestSpeakerClient: what the client returns is what edgebgp has, however little it
// says; and an intent is sent whole unless edgebgp surely has it.
func TestSpeakerClient(t *testing.T) {
	o := &oldOrNew{boot: "a", n: 1}
	s := serveSpeaker(t, o)
	in := edge.Intent{Generation: 1, Announcements: []edge.Announcement{{Net: netip.MustParsePrefix("192.0.2.0/24")}}}
	set := func(name, did string) {
		t.Helper()
		st, err := s.Set(t.Context(), in)
		if err != nil || len(st.Peers) != 1 || len(st.Peers[0].Held) != o.n {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
		if got := o.did(); got != did {
			t.Errorf("%s: did %s, want %s", name, got, did)
		}
	}
	ask := func(name, did string) {
		t.Helper()
		st, err := s.State(t.Context())
		if err != nil || len(st.Peers) != 1 || len(st.Peers[0].Held) != o.n {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
		if got := o.did(); got != did {
			t.Errorf("%s: did %s, want %s", name, got, did)
		}
	}
	ask("first", "GET /v1/state")
	ask("nothing new", "GET /v1/state since a-1")
	set("first intent", "PUT /v1/intent since a-1")
	set("the same", "POST /v1/renew since a-1")
	o.set(func() { o.n = 2 })
	set("the same, but something new", "POST /v1/renew since a-1")
	ask("nothing new", "GET /v1/state since a-2")
	in.Generation = 22
	set("another", "PUT /v1/intent since a-2")
	in.Withdraw = []edge.Withdrawal{{Net: netip.MustParsePrefix("198.51.100.0/24"), Until: time.Unix(1, 0)}}
	set("an order", "PUT /v1/intent since a-2")
	set("the same order", "PUT /v1/intent since a-2")
	in.Withdraw = nil
	set("without it", "PUT /v1/intent since a-2")
	set("without it again", "POST /v1/renew since a-2")
	o.set(func() { o.boot, o.n, o.intent = "b", 1, nil })
	set("a new process", "POST /v1/renew since a-2, PUT /v1/intent since a-2")
	set("the new process again", "POST /v1/renew since b-1")
	o.set(func() { o.intent = []byte("{}") })
	set("somebody else's", "POST /v1/renew since b-1, PUT /v1/intent since b-1")

	// After an error it is not known what is in force.
	o.set(func() { o.fail = 1 })
	if _, err := s.Set(t.Context(), in); err == nil || o.did() != "POST /v1/renew since b-1" {
		t.Errorf("a renewal that fails: %v", err)
	}
	set("after an error", "PUT /v1/intent since b-1")
	o.set(func() { o.fail = 1 })
	in.Generation = 333
	if _, err := s.Set(t.Context(), in); err == nil || o.did() != "PUT /v1/intent since b-1" {
		t.Errorf("an intent that fails: %v", err)
	}
	set("after an error", "PUT /v1/intent since b-1")

	// A change that does not fit is no state.
	o.set(func() { o.lie = "c-1" })
	if st, err := s.State(t.Context()); err == nil || len(st.Peers) != 0 {
		t.Errorf("a change that does not fit: %+v, %v", st, err)
	}
	o.did()
	ask("after it", "GET /v1/state")

	o.set(func() { o.old, o.n = true, 3 })
	set("an older one", "POST /v1/renew since b-1, PUT /v1/intent since b-1")
	set("an older one again", "PUT /v1/intent")
	ask("an older one's state", "GET /v1/state")
	o.set(func() { o.old = false })
	ask("a newer one", "GET /v1/state")
	ask("a newer one again", "GET /v1/state since b-3")
}

// Calls that overlap do not spoil each other's state.
func TestSpeakerClientAtOnce(t *testing.T) {
	o := &oldOrNew{boot: "a", n: 1}
	s := serveSpeaker(t, o)
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			for n := range 50 {
				least := 0
				o.set(func() { o.n = max(o.n, n); least = o.n })
				var st edge.SpeakerState
				var err error
				if i%2 == 0 {
					st, err = s.State(t.Context())
				} else {
					st, err = s.Set(t.Context(), edge.Intent{Generation: uint64(n / 5)})
				}
				if err != nil || len(st.Peers) != 1 || len(st.Peers[0].Held) < least {
					t.Errorf("%d prefixes of %d at least, %v", len(st.Peers[0].Held), least, err)
				}
			}
		})
	}
	work.Wait()
}
