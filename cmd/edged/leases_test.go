package main

import (
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

func readLease(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, leaseName))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(b)), "")
}

// TestOpenLeases: what the file says, or the longest that there may be.
func TestOpenLeases(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, file    string
		inForce, want time.Duration // want: of the process before
		after, err    string
	}{
		{"the first process", "", 10 * time.Second, 0, `{"lease":"10s"}`, ""},
		{"the same lease", `{"lease":"10s"}`, 10 * time.Second, 10 * time.Second, `{"lease":"10s"}`, ""},
		{"a shorter one", `{"lease":"1m0s"}`, 10 * time.Second, time.Minute, `{"lease":"1m0s"}`, ""},
		{"a longer one", `{"lease":"10s"}`, time.Minute, 10 * time.Second, `{"lease":"1m0s"}`, ""},
		{"no JSON", `{"lease":`, 10 * time.Second, 5 * time.Minute, `{"lease":"5m0s"}`, "unexpected end"},
		{"no duration", `{"lease":"ten"}`, 10 * time.Second, 5 * time.Minute, `{"lease":"5m0s"}`, "invalid duration"},
		{"below zero", `{"lease":"-1s"}`, 10 * time.Second, 5 * time.Minute, `{"lease":"5m0s"}`, "is no lease"},
		{"beyond all", `{"lease":"100h"}`, 10 * time.Second, 5 * time.Minute, `{"lease":"5m0s"}`, "is no lease"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newKeeper(t.TempDir(), slog.New(slog.DiscardHandler))
			if tt.file != "" {
				mustDo(t, os.WriteFile(filepath.Join(k.dir, leaseName), []byte(tt.file), 0o600))
			}
			l, before, err := openLeases(k, tt.inForce, time.Now())
			if before != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("before %s, want %s; err %v, want %q", before, tt.want, err, tt.err)
			}
			if got := readLease(t, k.dir); got != tt.after {
				t.Errorf("the file has %s, want %s", got, tt.after)
			}
			if !l.covers(tt.inForce) || !l.covers(tt.want) || l.covers(edge.MaxPromiseLease+1) {
				t.Error("it covers too little, or too much")
			}
		})
	}
}

// TestLeasesFollow: a longer lease comes into force only once it is on disk, and is
// forgotten only once the last promise for it must be over.
func TestLeasesFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, disk := newKeeper("/nowhere", slog.New(slog.DiscardHandler)), &slowDisk{}
		k.replace = disk.replace
		l, _, err := openLeases(k, 10*time.Second, time.Now())
		mustDo(t, err)
		go k.run(t.Context())
		said := func(want ...string) {
			t.Helper()
			synctest.Wait()
			disk.mu.Lock()
			defer disk.mu.Unlock()
			if !slices.Equal(disk.wrote, want) {
				t.Errorf("written: %q, want %q", disk.wrote, want)
			}
			disk.wrote = nil
		}
		file := func(lease string) string { return leaseName + "{\n  \"lease\": \"" + lease + "\"\n}" }
		said(file("10s"))

		mustDo(t, l.cover(t.Context(), 10*time.Second)) // nothing new: no write
		said()
		disk.set(nil, leaseName)
		if err := l.cover(t.Context(), time.Minute); err == nil || l.covers(time.Minute) || !strings.Contains(err.Error(), "fleet.guard.promise_lease: keep how long promises bind: no; nothing was applied") {
			t.Errorf("what is not on disk is covered: %v", err)
		}
		disk.set(nil, "")
		mustDo(t, l.cover(t.Context(), time.Minute))
		said(file("1m0s"))

		start := time.Now()
		l.follow(time.Minute, start)
		l.follow(10*time.Second, start.Add(time.Hour)) // shortened now
		l.follow(10*time.Second, start.Add(time.Hour+time.Minute-1))
		said()
		if !l.covers(time.Minute) {
			t.Error("promises for a minute may be out, and are forgotten")
		}
		l.follow(10*time.Second, start.Add(time.Hour+time.Minute))
		said(file("10s"))
		if l.covers(time.Minute) {
			t.Error("a lease of a minute is covered by a file that says ten seconds")
		}
	})
}

// TestNoLeaveWithinTheLeaseBefore: a process with a shorter lease than the one before
// asks for no leave as long as that one's promises may count.
func TestNoLeaveWithinTheLeaseBefore(t *testing.T) {
	d, _ := forcingDaemon(t)
	c := d.config()
	dir := d.keeper.dir
	c.Local.ID, c.Local.KeyFile, c.Fleet.Guard.KeyFile = "a1", filepath.Join(dir, "a1"), filepath.Join(dir, "gossip")
	c.Local.GossipBind = c.Self().Gossip
	mustDo(t, os.WriteFile(c.Local.KeyFile, pemOf(t, make([]byte, 32)), 0o600))
	mustDo(t, os.WriteFile(c.Fleet.Guard.KeyFile, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n"), 0o600))
	mustDo(t, os.WriteFile(filepath.Join(dir, leaseName), []byte(`{"lease":"2m0s"}`), 0o600))
	mustDo(t, d.openGuard(c))
	d.guard.Wish(p4, promise.Wish{Want: true, Severity: 2, Reason: "it is sick"})
	want := "no leave until " + d.started.Add(2*time.Minute).UTC().Format(time.TimeOnly)
	if p := d.guard.Permit(p4); p.OK || !strings.Contains(string(p.Reason), want) {
		t.Errorf("%+v, want %q", p, want)
	}
}

// TestLeasesOfAFullDisk: a process that has started with a longer lease, and cannot keep
// it, promises for no longer than the one after it will know of.
func TestLeasesOfAFullDisk(t *testing.T) {
	for _, tt := range []struct {
		name, file string
		want       edge.Guard
	}{
		{"a longer lease", `{"lease":"5s"}`, edge.Guard{PromiseLease: 5 * time.Second, AskTimeout: time.Second}},
		{"the first process", "", edge.Guard{PromiseLease: time.Second, AskTimeout: 500 * time.Millisecond}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.file != "" {
				mustDo(t, os.WriteFile(filepath.Join(dir, leaseName), []byte(tt.file), 0o600))
			}
			synctest.Test(t, func(t *testing.T) {
				k, disk := newKeeper(dir, slog.New(slog.DiscardHandler)), &slowDisk{}
				k.replace = disk.replace
				disk.set(nil, leaseName)
				in := edge.Guard{PromiseLease: 20 * time.Second, AskTimeout: time.Second}
				l, _, err := openLeases(k, in.PromiseLease, time.Now())
				if err == nil || l.covers(in.PromiseLease) {
					t.Errorf("what is not on disk is covered: %v", err)
				}
				go k.run(t.Context())
				turn := func() bool {
					time.Sleep(time.Second)
					synctest.Wait()
					l.follow(in.PromiseLease, time.Now())
					return l.paid(in.PromiseLease)
				}
				for range 10 {
					if turn() {
						t.Fatal("it is said to be written")
					}
				}
				if got := l.bound(in); got.PromiseLease != tt.want.PromiseLease || got.AskTimeout != tt.want.AskTimeout {
					t.Errorf("promises for %s and asks for %s, want %s and %s", got.PromiseLease, got.AskTimeout, tt.want.PromiseLease, tt.want.AskTimeout)
				}
				disk.set(nil, "")
				said := 0
				for range 4 {
					if turn() {
						said++
					}
				}
				if said != 1 {
					t.Errorf("that it is written is said %d times", said)
				}
				if got := l.bound(in); !l.covers(in.PromiseLease) || got.PromiseLease != in.PromiseLease || got.AskTimeout != in.AskTimeout {
					t.Errorf("promises for %s though %s is on disk", got.PromiseLease, in.PromiseLease)
				}
			})
		})
	}
}
