package bgp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/bfd"
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
	if r := l.reason(); r != "lease expired: edged has not renewed since 1970-01-01 00:16:40 UTC" {
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
		if _, err := s.Set(ctx, goodIntent(), ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Set before Run: %v", err)
		}
		bad := goodIntent()
		bad.Speaker.ASN = 0
		if _, err := s.Set(ctx, bad, ""); !errors.Is(err, ErrInvalid) {
			t.Errorf("Set of an intent that is not valid: %v", err)
		}
		run, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(run) }()
		<-s.Ready()
		if st, err := s.State(t.Context(), ""); err != nil || st.Started.IsZero() || st.LeaseLeft != 0 || st.Expired {
			t.Errorf("State of an idle speaker: %+v, %v", st, err)
		}
		time.Sleep(3 * time.Hour) // virtual: the idle loop turns now and then
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if _, err := s.State(t.Context(), ""); !errors.Is(err, errStopped) {
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

// TestKeep: an intent that cannot be kept is shown, tried again each second, and
// shown no more once it is.
func TestKeep(t *testing.T) {
	dir := tinyDisk(t)
	f := &faulty{}
	s := f.unstarted()
	s.keep.path = filepath.Join(dir, "state")
	f.spare(s, "")
	in := plainIntent()
	if err := s.accept(t.Context(), in); err != nil || s.state().KeepErr != "" {
		t.Fatalf("kept: %v, %q", err, s.keep.err)
	}
	kept, err := os.ReadFile(s.keep.path)
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	in.Generation++
	want := "write state file " + s.keep.path + ": no space left on device"
	if err := s.accept(t.Context(), in); err != nil || s.state().KeepErr != want || s.untilWake() > retryPause || s.renewal == "" {
		t.Errorf("on a full disk: %v, %q", err, s.keep.err)
	}
	if err := s.retry(); err != nil || s.state().KeepErr != want {
		t.Errorf("on a full disk still: %v, %q", err, s.keep.err)
	}
	if b, err := os.ReadFile(s.keep.path); err != nil || string(b) != string(kept) {
		t.Errorf("the old file is spoilt: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := s.retry(); err != nil || s.state().KeepErr != "" || s.untilWake() < retryPause {
		t.Errorf("with room again: %v, %q", err, s.keep.err)
	}
	if k, err := load(s.keep.path); err != nil || k.Intent.Generation != in.Generation {
		t.Errorf("kept: %v, %+v", err, k.Intent)
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Errorf("left behind: %v", list)
	}
}

// tinyDisk is a file system of 64 KiB.
func tinyDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
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
		k, err := decodeKept(b, "boot")
		if err == nil && validate(k.Intent) != nil {
			t.Fatalf("restored what is not valid: %v", validate(k.Intent))
		}
	})
}

// TestPathFails: a session is ended when BFD falls, once, and not again on BFD's
// way back, when the router's BGP may be there already.
func TestPathFails(t *testing.T) {
	a := newSpeakerAides()
	r1 := netip.MustParseAddr("10.0.1.2")
	for i, tt := range []struct {
		state bfd.State
		lost  bool
		fails bool
	}{
		{bfd.Down, false, false},
		{bfd.Init, false, false},
		{bfd.Up, false, false},
		{bfd.Down, true, true},
		{bfd.Init, true, false},
		{bfd.Down, true, false},
		{bfd.Init, true, false},
		{bfd.Up, false, false},
		{bfd.Down, false, false}, // the other end has said admin-down
		{bfd.Up, false, false},
		{bfd.AdminDown, false, false},
	} {
		a.pathChanged(bfd.Status{Peer: r1, State: tt.state, Lost: tt.lost})
		_, fails := a.fails[r1]
		if fails != tt.fails {
			t.Errorf("change %d to %s: the session ends: %t, want %t", i, tt.state, fails, tt.fails)
		}
		clear(a.fails)
	}
}

func newSpeakerAides() *aides {
	return &aides{alarm: make(chan struct{}, 1), fails: map[netip.Addr]string{}, up: map[netip.Addr]bool{}}
}
