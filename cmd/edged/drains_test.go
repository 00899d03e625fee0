package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/health"
)

// wantInForce compares the orders by command, by their reasons.
func wantInForce(t *testing.T, d *drains, want ...string) {
	t.Helper()
	var got []string
	for _, o := range d.all() {
		got = append(got, o.Reason)
	}
	if !slices.Equal(got, want) {
		t.Errorf("in force are %q, want %q", got, want)
	}
}

// onDisk are the reasons in the last content of drains.json that disk took.
func (s *slowDisk) onDisk(t *testing.T) (out []string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []edge.Drain
	if err := json.Unmarshal([]byte(strings.TrimPrefix(s.wrote[len(s.wrote)-1], drainsFile)), &list); err != nil {
		t.Fatal(err)
	}
	for _, o := range list {
		out = append(out, o.Reason)
	}
	return out
}

// TestDrainsAsked: an order is in force once it is on the disk; while that stalls no
// turn is held, and what ends meanwhile takes no order with it. One that cannot be
// kept is not in force, ever.
func TestDrainsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		k, end := keeps(t, disk)
		defer end()
		k.dir = t.TempDir()
		d, err := openDrains(k)
		if err != nil {
			t.Fatal(err)
		}
		turn := func(news int) {
			t.Helper()
			synctest.Wait()
			began := time.Now()
			if in := d.settle(); len(in) != news || !time.Now().Equal(began) {
				t.Errorf("%d come in force after %s, want %d", len(in), time.Since(began), news)
			}
			d.expire(began)
		}
		d.add(edge.Drain{Prefix: p4, Reason: "short", Until: time.Now().Add(time.Second)})
		turn(1)
		wantInForce(t, d, "short")
		stall := make(chan struct{})
		disk.set(stall, "")
		d.add(edge.Drain{Reason: "node"})
		kept, had := d.remove(netip.Prefix{}, "")
		if !had {
			t.Error("an order that is asked for cannot be taken back")
		}
		d.add(edge.Drain{Prefix: p6, Reason: "six"})
		turn(0)
		wantInForce(t, d, "short")
		time.Sleep(time.Second)
		turn(0)
		wantInForce(t, d)
		close(stall)
		turn(3)
		mustDo(t, kept.wait(t.Context()))
		wantInForce(t, d, "six")
		if got := disk.onDisk(t); !slices.Equal(got, []string{"six"}) {
			t.Errorf("on the disk is %q", got)
		}
		disk.set(nil, drainsFile)
		if err := d.add(edge.Drain{Reason: "refused"}).wait(t.Context()); err == nil || !strings.Contains(err.Error(), "keep orders to drain: no") {
			t.Errorf("answer %v", err)
		}
		turn(0)
		wantInForce(t, d, "six")
		disk.set(nil, "")
		time.Sleep(keepAgain)
		turn(0)
		wantInForce(t, d, "six")
		if got := disk.onDisk(t); !slices.Equal(got, []string{"six"}) {
			t.Errorf("on the disk is %q", got)
		}
	})
}

// TestAnswerWaitsForDisk: an operator is told what could not be kept, and the control
// loop is free while he waits.
func TestAnswerWaitsForDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		k, end := keeps(t, disk)
		defer end()
		log := slog.New(slog.DiscardHandler)
		d := &daemon{keeper: k, log: log, commands: make(chan command), events: &health.Ring{}, drains: &drains{keeper: k}}
		d.cfg.Store(testConfig())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for {
				select {
				case c := <-d.commands:
					c.done <- c.do(ctx)
				case <-ctx.Done():
					return
				}
			}
		}()
		ask := func(serve http.HandlerFunc, body string, code int, want string) {
			t.Helper()
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			serve(w, r)
			if w.Code != code || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: %d %s, want %d %q", body, w.Code, w.Body, code, want)
			}
		}
		disk.set(nil, drainsFile)
		ask(d.serveDrain, `{"reason":"work"}`, http.StatusConflict, "keep orders to drain: no")
		d.drains.settle()
		wantInForce(t, d.drains)
		disk.set(nil, prefersFile)
		c := *d.config()
		c.Local.ID, c.Fleet.Sites = "a1", []edge.Site{{ID: "a"}, {ID: "b"}}
		d.cfg.Store(&c)
		ask(d.servePrefer, `{"sites":["b"],"prepend":2,"reason":"load"}`, http.StatusConflict, "the order is in force, but a restart of this node may forget it: keep orders to move traffic: no")
		if len(d.prefers) != 1 {
			t.Errorf("in force: %+v", d.prefers)
		}
		stall := make(chan struct{})
		defer close(stall)
		disk.set(stall, "")
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			if err := d.order(ctx, func(context.Context) error { return nil }); err != nil || time.Since(began) != time.Second {
				t.Errorf("the loop was held for %s: %v", time.Since(began), err)
			}
		}()
		ask(d.serveDrain, `{"reason":"stalled"}`, http.StatusServiceUnavailable, "the disk of node.state_dir does not answer")
		if time.Since(began) != keepLimit {
			t.Errorf("the answer came after %s", time.Since(began))
		}
	})
}

// TestRemember: the configuration in force is kept, but not one that was edited since.
func TestRemember(t *testing.T) {
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "edge.yaml")
	d := &daemon{path: path, keeper: newKeeper(dir, slog.New(slog.DiscardHandler)), base: &edge.Config{}}
	for _, tt := range []struct{ file, hash, kept string }{
		{"one", "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed", "one"},
		{"two, not applied", "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed", "one"},
	} {
		mustDo(t, os.WriteFile(path, []byte(tt.file), 0o644))
		d.base.Hash = tt.hash
		d.remember()
		mustDo(t, d.keeper.flush(time.Minute))
		if b, err := os.ReadFile(filepath.Join(dir, appliedName)); err != nil || string(b) != tt.kept {
			t.Errorf("kept is %q, %v", b, err)
		}
	}
}
