package bgp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	gobgplog "github.com/osrg/gobgp/v3/pkg/log"

	"github.com/catchment-dev/edge"
)

func TestLease(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	var l lease
	if l.left(start) != 0 || l.expire(at(time.Hour)) || l.expired {
		t.Error("a lease that was never granted runs out")
	}
	l.renew(start, 5*time.Second)
	for _, c := range []struct {
		after   time.Duration
		left    time.Duration
		first   bool
		expired bool
	}{
		{0, 5 * time.Second, false, false},
		{4999 * time.Millisecond, time.Millisecond, false, false},
		{5 * time.Second, 0, true, true},
		{6 * time.Second, 0, false, true},
	} {
		if left, first := l.left(at(c.after)), l.expire(at(c.after)); left != c.left || first != c.first || l.expired != c.expired {
			t.Errorf("after %s: left %s, first %v, expired %v; want %+v", c.after, left, first, l.expired, c)
		}
	}
	if r := l.reason(at(6 * time.Second)); r != "lease expired: edged has not renewed for 6s" {
		t.Errorf("reason %q", r)
	}
	if l.renew(at(7*time.Second), time.Second); l.expired || l.left(at(7*time.Second)) != time.Second {
		t.Errorf("renewed: %+v", l)
	}
}

// Calls that come all the time must not put off what time brings about.
func TestWakeIsNotPutOff(t *testing.T) {
	now := time.Unix(1000, 0)
	s := New(Options{Now: func() time.Time { return now }})
	if d := s.untilWake(); d < time.Minute {
		t.Errorf("an idle speaker wakes after %s", d)
	}
	s.lease.renew(now, 5*time.Second)
	s.failed, s.tried = true, now
	now = now.Add(600 * time.Millisecond)
	if d := s.untilWake(); d != 400*time.Millisecond {
		t.Errorf("retry after another %s", d)
	}
	s.failed = false
	if d := s.untilWake(); d != 4400*time.Millisecond {
		t.Errorf("lease ends after another %s", d)
	}
	s.failed, now = true, now.Add(time.Hour)
	if d := s.untilWake(); d != 0 {
		t.Errorf("what is overdue waits %s", d)
	}
}

// The loop itself, without a server: the lease only needs an intent.
func TestSetEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Set(ctx, goodIntent()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Set before Run: %v", err)
		}
		bad := goodIntent()
		bad.Speaker.ASN = 0
		if _, err := s.Set(ctx, bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("Set of an intent that is not valid: %v", err)
		}
		run, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(run) }()
		<-s.Ready()
		if st, err := s.State(t.Context()); err != nil || st.Started.IsZero() || st.LeaseLeft != 0 || st.Expired {
			t.Errorf("State of an idle speaker: %+v, %v", st, err)
		}
		time.Sleep(3 * time.Hour) // virtual: the idle loop turns now and then
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if _, err := s.State(t.Context()); !errors.Is(err, errStopped) {
			t.Errorf("State after Run: %v", err)
		}
	})
}

func TestCallIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		start := time.Now()
		_, err := call(t.Context(), "try", func(context.Context) (int, error) { <-release; return 1, nil })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != callLimit || !strings.Contains(err.Error(), "try: no answer") {
			t.Errorf("a call that hangs: %v after %s", err, time.Since(start))
		}
		close(release)
		if v, err := call(t.Context(), "try", func(context.Context) (int, error) { return 2, nil }); v != 2 || err != nil {
			t.Errorf("a call that works: %d, %v", v, err)
		}
	})
}

// newsOf returns a journal, its clock, and what feeds it as GoBGP does.
func newsOf(addr netip.Addr) (j *journal, now *time.Time, event func(api.PeerState_SessionState), note func(string, ...any)) {
	start := time.Unix(1000, 0)
	now = &start
	j = newJournal(func() time.Time { return *now })
	event = func(s api.PeerState_SessionState) {
		*now = now.Add(time.Second)
		j.observe(&api.WatchEventResponse{Event: &api.WatchEventResponse_Peer{Peer: &api.WatchEventResponse_PeerEvent{
			Type: api.WatchEventResponse_PeerEvent_STATE,
			Peer: &api.Peer{State: &api.PeerState{NeighborAddress: addr.String(), SessionState: s}},
		}}})
	}
	note = func(msg string, kv ...any) {
		f := gobgplog.Fields{"Topic": "Peer", "Key": addr.String()}
		for i := 0; i < len(kv); i += 2 {
			f[kv[i].(string)] = kv[i+1]
		}
		j.note(msg, f)
	}
	return j, now, event, note
}

func TestJournal(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	j, now, event, note := newsOf(addr)
	event(api.PeerState_ESTABLISHED) // not known yet: nothing happens
	j.add(addr)
	event(api.PeerState_ESTABLISHED)
	up := *now
	note("received notification", "Communicated-Reason", "maintenance")
	if r := j.get(addr); r.flaps != 0 || !r.since.Equal(up) || r.lastErr != "" {
		t.Errorf("up: %+v", r)
	}
	note("state changed", "old", "BGP_FSM_ESTABLISHED", "new", "BGP_FSM_IDLE", "reason", "notification-received x")
	event(api.PeerState_IDLE)
	if r := j.get(addr); r.flaps != 1 || r.session != "idle" || r.lastErr != `session lost: notification-received x: "maintenance"` {
		t.Errorf("lost: %+v", r)
	}
	note("failed to connect", "Error", errors.New("connection refused"))
	if r := j.get(addr); r.lastErr != "connect: connection refused" {
		t.Errorf("refused: %+v", r)
	}
	note("sent notification", "Data", errors.New("bad peer AS"))
	note("state changed", "old", "BGP_FSM_OPENSENT", "new", "BGP_FSM_IDLE", "reason", "invalid-msg")
	if r := j.get(addr); r.lastErr != "sent notification: bad peer AS" {
		t.Errorf("notified: %+v", r)
	}
	note("failed to set md5", "Err", fmt.Errorf("set: %w", net.ErrClosed))
	if err := j.keyErr(addr); err != nil {
		t.Errorf("a closed listener counts: %v", err)
	}
	note("failed to set md5", "Err", errors.New("no"))
	if err := j.keyErr(addr); err == nil {
		t.Error("a key that cannot be set does not count")
	}
	// Ending it ourselves counts once, though GoBGP tells of it as well.
	event(api.PeerState_ESTABLISHED)
	j.lost(addr, "changed")
	event(api.PeerState_IDLE)
	if r := j.get(addr); r.flaps != 2 || r.lastErr != "changed" {
		t.Errorf("ended: %+v", r)
	}
	// Lines that make no sense change nothing.
	note("state changed")
	j.note("state changed", gobgplog.Fields{"Topic": "Peer", "Key": 7})
	j.note("x", nil)
	j.observe(nil)
	if j.keep(nil); j.get(addr).session != "" {
		t.Error("not forgotten")
	}
}

func TestReadKey(t *testing.T) {
	dir := t.TempDir()
	files := 0
	file := func(content string) string {
		files++
		p := filepath.Join(dir, fmt.Sprint("key", files))
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	long := strings.Repeat("k", 80)
	for _, c := range []struct {
		path, key, err string
	}{
		{"", "", ""},
		{file("secret"), "secret", ""},
		{file("pass word\n"), "pass word", ""},
		{file("crlf\r\n"), "crlf", ""},
		{file(long), long, ""},
		{file(long[:79] + "\r\n"), long[:79], ""},
		{file("x" + long), "", "longer than 80 bytes"},
		{file("y" + long + "\n"), "", "longer than 80 bytes"},
		{file("\n"), "", "is empty"},
		{file(""), "", "is empty"},
		{dir + "/absent", "", "no such file"},
		{dir, "", "not a regular file"},
		{"/dev/zero", "", "not a regular file"},
	} {
		key, err := readKey(edge.Peer{PasswordFile: c.path})
		if key != c.key || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v; want %q, %q", c.path, key, err, c.key, c.err)
		}
	}
}

func TestTestKey(t *testing.T) {
	for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
		if err := testKey(netip.MustParseAddr(a), "key"); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func TestConnectRetry(t *testing.T) {
	for d, want := range map[time.Duration]uint64{time.Second: 1, 2 * time.Second: 1, 5 * time.Second: 2, time.Minute: 30} {
		if got := connectRetry(d); got != want {
			t.Errorf("%s: %d, want %d", d, got, want)
		}
	}
}

func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for _, want := range []string{"one", "two"} {
		if err := replaceFile(path, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if b, _ := os.ReadFile(path); string(b) != want {
			t.Errorf("%q, want %q", b, want)
		}
	}
	if err := replaceFile(filepath.Join(path, "x"), nil); err == nil {
		t.Error("a file below a file")
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %s", st.Mode())
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Errorf("left behind: %v", list)
	}
}

// FuzzKept: a state file is refused, or it holds a valid intent of this boot.
func FuzzKept(f *testing.F) {
	b, err := json.Marshal(kept{BootID: "boot", Intent: goodIntent()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := decodeKept(b, "boot")
		if err == nil && validate(in) != nil {
			t.Fatalf("restored what is not valid: %v", validate(in))
		}
	})
}
