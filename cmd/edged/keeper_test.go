package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// slowDisk takes what is written only when it is told to.
type slowDisk struct {
	mu    sync.Mutex
	stall chan struct{} // nil: it takes all at once
	bad   string        // the file that cannot be written, as long as it is not ""
	tries int           // to write that
	wrote []string
	under int
	most  int // writes at a time
}

func (s *slowDisk) replace(path string, b []byte) error {
	s.mu.Lock()
	s.under++
	s.most = max(s.most, s.under)
	stall := s.stall
	s.mu.Unlock()
	if stall != nil {
		<-stall
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.under--
	if filepath.Base(path) == s.bad {
		s.tries++
		return errors.New("no")
	}
	s.wrote = append(s.wrote, filepath.Base(path)+strings.TrimSpace(string(b)))
	return nil
}

func (s *slowDisk) set(stall chan struct{}, bad string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stall, s.bad = stall, bad
}

func (s *slowDisk) tried() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tries
}

// want says what has been written since it was asked last.
func (s *slowDisk) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.wrote, want) || s.most > 1 {
		t.Errorf("written %q by %d at a time, want %q", s.wrote, s.most, want)
	}
	s.wrote = nil
}

// keeps runs a keeper on disk in the bubble of t; end ends it.
func keeps(t *testing.T, disk *slowDisk) (k *keeper, end func()) {
	k = newKeeper("/state", slog.New(slog.DiscardHandler))
	k.replace = disk.replace
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.run(ctx) }()
	return k, func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func wantAlarms(t *testing.T, k *keeper, want ...string) {
	t.Helper()
	got := k.alarms(time.Now())
	if len(got) != len(want) {
		t.Errorf("alarms %v, want %q", got, want)
		return
	}
	for i, err := range got {
		if !strings.Contains(err.Error(), want[i]) {
			t.Errorf("alarm %q, want %q", err, want[i])
		}
	}
}

// TestKeeperOrder: while a write hangs nobody waits who keeps something; then each
// file is written once, as it was handed over last, in the order of the files.
func TestKeeperOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		k, end := keeps(t, disk)
		defer end()
		k.keep("a", "a", 0)
		disk.want(t, "a0")
		stall, began := make(chan struct{}), time.Now()
		disk.set(stall, "")
		for i := range 1000 {
			k.keep("a", "a", i)
			if i == 0 {
				synctest.Wait() // this one is under way, and it stays that
			}
		}
		k.keep("b", "b", 1)
		early := k.order("c", "c", 1)
		k.keep("a", "a", 1000)
		k.keep("c", "c", 2)
		late := k.order("c", "c", 3)
		if len(k.waiting) != 3 || !time.Now().Equal(began) {
			t.Errorf("%d files wait, for %s", len(k.waiting), time.Since(began))
		}
		disk.want(t)
		if early.over() || late.over() {
			t.Error("a receipt for what is not written")
		}
		close(stall)
		disk.want(t, "a0", "a1000", "b1", "c3")
		if err := errors.Join(early.wait(t.Context()), late.wait(t.Context())); err != nil {
			t.Error(err)
		}
		wantAlarms(t, k)
		k.keepRead("d", "d", func() ([]byte, error) { return nil, nil })
		k.keepRead("e", "e", func() ([]byte, error) { return []byte("5"), nil })
		disk.want(t, "e5")
		k.keep("f", "f", func() {})
		disk.want(t)
		wantAlarms(t, k, "f cannot be kept since 2000-01-01 00:00:00, a restart of edged forgets what has changed: f: json")
	})
}

// TestKeeperStall: a disk that hangs is told of, an operator is not kept for ever,
// nor is the end of the process.
func TestKeeperStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		stall := make(chan struct{})
		disk.set(stall, "")
		k, end := keeps(t, disk)
		k.keep("a", "who drains", 1)
		r := k.order("b", "orders", 1)
		began := time.Now()
		if err := r.wait(t.Context()); !errors.Is(err, errDisk) || time.Since(began) != keepLimit {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		wantAlarms(t, k, "the disk of /state does not answer since 2000-01-01 00:00:00: a restart of edged forgets what has changed, first of all who drains")
		end()
		began = time.Now()
		err := k.flush(keepLast)
		if err == nil || err.Error() != "keep who drains: the disk of /state does not answer since 2000-01-01 00:00:00\nkeep orders: it is not written yet" || time.Since(began) != keepLast {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		disk.want(t)
		close(stall)
		if err := k.flush(keepLast); err != nil {
			t.Error(err)
		}
		disk.want(t, "a1", "b1")
		wantAlarms(t, k)
	})
}

// TestKeeperAgain: what cannot be written is tried every two seconds, whatever comes,
// and an order at once; one file that fails does not keep back another.
func TestKeeperAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{bad: "bad"}
		k, end := keeps(t, disk)
		for range 59 * time.Second / beat {
			k.keep("bad", "bad", 1)
			time.Sleep(beat)
		}
		if n := disk.tried(); n != 30 {
			t.Errorf("%d attempts in a minute", n)
		}
		began := time.Now()
		if err := k.order("bad", "orders", 1).wait(t.Context()); err == nil || err.Error() != "keep orders: no" || disk.tried() != 31 || !time.Now().Equal(began) {
			t.Errorf("%v after %d attempts and %s", err, disk.tried(), time.Since(began))
		}
		wantAlarms(t, k, "orders cannot be kept since 2000-01-01 00:00:00, a restart of edged forgets what has changed: bad: no")
		r := k.order("bad", "orders", 2)
		r.despite = "it is in force"
		if err := r.wait(t.Context()); err == nil || err.Error() != "it is in force: keep orders: no" {
			t.Error(err)
		}
		k.keep("good", "good", 1)
		disk.want(t, "good1")
		stall := make(chan struct{})
		disk.set(stall, "bad")
		time.Sleep(keepAgain)
		synctest.Wait()
		r = k.order("bad", "orders", 3) // while the write before is under way, which fails
		disk.set(nil, "bad")
		began = time.Now()
		close(stall)
		if err := r.wait(t.Context()); err == nil || !time.Now().Equal(began) {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		disk.set(nil, "")
		wantAlarms(t, k, "bad: no")
		time.Sleep(keepAgain)
		disk.want(t, "bad3")
		wantAlarms(t, k)
		disk.set(nil, "bad")
		k.keep("bad", "orders", 4)
		synctest.Wait()
		end()
		disk.set(nil, "")
		mustDo(t, k.flush(keepLast)) // the end does not wait for the second attempt
		disk.want(t, "bad4")
	})
}

// TestKeeperFullDisk: on a real disk that is full the old content stays whole, and
// the new one follows once there is room.
func TestKeeperFullDisk(t *testing.T) {
	dir := mounted(t, "tmpfs", "size=64k")
	k := newKeeper(dir, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	mustDo(t, k.order("orders.json", "orders to drain", "old").wait(ctx))
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if err := k.order("orders.json", "orders to drain", "new").wait(ctx); !errors.Is(err, syscall.ENOSPC) || !strings.HasPrefix(err.Error(), "keep orders to drain: ") {
		t.Errorf("the answer is %v", err)
	}
	wantAlarms(t, k, "orders.json: write "+dir+"/orders.json.new: no space left on device")
	wantContent(t, dir, "ballast", "orders.json", "\"old\"\n")
	k.keep("orders.json", "orders to drain", "newer") // not due before the second attempt
	mustDo(t, os.Remove(ballast))
	for deadline := time.Now().Add(time.Minute); len(k.alarms(time.Now())) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(k.alarms(time.Now()))
		}
	}
	wantContent(t, dir, "orders.json", "\"newer\"\n")
}

// wantContent wants these files in dir, of which the last has this content.
func wantContent(t *testing.T, dir string, want ...string) {
	t.Helper()
	var got []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	b, err := os.ReadFile(filepath.Join(dir, want[len(want)-2]))
	if got = append(got, string(b)); err != nil || !slices.Equal(got, want) {
		t.Errorf("there are %q (%v), want %q", got, err, want)
	}
}

// TestKeeperFlush: at a clean end all is on the disk, even if nothing has run.
func TestKeeperFlush(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "anew")
	k := newKeeper(dir, slog.New(slog.DiscardHandler))
	for i := range 10 {
		k.keep(fmt.Sprint(i), "it", -1)
		k.keep(fmt.Sprint(i), "it", i)
	}
	mustDo(t, k.flush(time.Minute))
	for i := range 10 {
		if b, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i))); err != nil || string(b) != fmt.Sprintln(i) {
			t.Errorf("%d: %q, %v", i, b, err)
		}
	}
	mustDo(t, os.RemoveAll(dir))
	mustDo(t, os.WriteFile(dir, nil, 0o644))
	k.keep("a", "what it is", 1)
	if err := k.flush(time.Minute); !errors.Is(err, syscall.ENOTDIR) || !strings.HasPrefix(err.Error(), "keep what it is: ") {
		t.Errorf("the end says %v", err)
	}
}
