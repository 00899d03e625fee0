package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
)

// box is what of a daemon has to do with draining, on a state_dir that outlives
// it.
type box struct {
	*daemon
	t      *testing.T
	probes string
	warned strings.Builder
}

// newBox starts on base; previous is what an earlier process ran, nil: nobody did.
func newBox(t *testing.T, dir string, previous, base *edge.Config) *box {
	t.Helper()
	b := &box{t: t, probes: "b0+ b1+ b2+ b3+"}
	base.Local.StateDir = dir
	b.daemon = &daemon{base: base, log: slog.New(slog.NewTextHandler(&b.warned, nil))}
	b.keeper = newKeeper(dir, b.log)
	b.cfg.Store(base)
	var err error
	if b.draining, err = readDraining(dir); err != nil {
		t.Fatal(err)
	}
	if previous == nil {
		previous = base
	}
	b.keep(b.leave(everything(previous), base, time.Now()))
	return b
}

// turn is one turn of the loop.
func (b *box) turn() edge.Table {
	t, m := b.plan(b.config(), probed(b.t, b.probes))
	b.keep(m)
	return t
}

// keep has m on the disk at once: there is no goroutine that would see to it.
func (b *box) keep(m draining) {
	b.t.Helper()
	b.keepDraining(m)
	mustDo(b.t, b.keeper.flush(time.Minute))
}

// reload applies next as adoptConfig does.
func (b *box) reload(next *edge.Config) {
	b.t.Helper()
	planned, m := b.plan(next, probed(b.t, b.probes))
	b.keep(m)
	b.cfg.Store(next)
	if now := b.turn(); !reflect.DeepEqual(planned, now) {
		b.t.Errorf("planned %+v, then %+v", planned, now)
	}
}

func (b *box) wants(want string) {
	b.t.Helper()
	if got := entries(b.turn().Services[0]); got != want {
		b.t.Errorf("%s: table %s, want %s", time.Now().Format("15:04:05"), got, want)
	}
}

func without(id edge.BackendID) func(*edge.Service) {
	return func(s *edge.Service) {
		s.Backends = slices.DeleteFunc(s.Backends, func(b edge.Backend) bool { return b.ID == id })
	}
}

const (
	allFour = "b0:100oqt b1:100oqt b2:100oqt b3:100oqt"
	three   = "b0:100oqt b1:100oqt b2:100oqt"
)

// TestLeaverDrains: TCP follows it to the deadline, a SYN and UDP do not.
func TestLeaverDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox(t, t.TempDir(), nil, serving(lbService()))
		b.wants(allFour)
		next := serving(lbService(without("b3")))
		if _, m := b.plan(next, nil); len(m.Left) != 1 {
			t.Errorf("planned: %+v", m)
		}
		b.wants(allFour) // a plan that is not carried out leaves nothing behind
		b.reload(next)
		b.wants(three + " b3:0t")
		for _, p := range allProbes(b.config()) {
			if strings.Contains(string(p.ID), "b3") {
				t.Errorf("it is still probed: %s", p.ID)
			}
		}
		time.Sleep(time.Minute - time.Nanosecond)
		b.wants(three + " b3:0t")
		time.Sleep(time.Nanosecond)
		b.wants(three)
		if len(b.draining.Left)+len(b.draining.Pools) != 0 {
			t.Errorf("still remembered: %+v", b.draining)
		}
		b.reload(serving(lbService(without("b3")))) // a reload that changes nothing begins nothing
		b.wants(three)
	})
}

// TestWhoDrains: who leaves, how, and what becomes of its flows.
func TestWhoDrains(t *testing.T) {
	change := func(fs ...func(*edge.Service)) *edge.Config { return serving(lbService(fs...)) }
	for _, tt := range []struct {
		name      string
		old, next *edge.Config
		probes    string
		want      string
	}{
		{"it is down: TCP had stayed", change(), change(without("b3")), "b0+ b1+ b2+ b3-", three + " b3:0t"},
		{"it is down: nothing had stayed", change(func(s *edge.Service) { s.Persistence = edge.PersistNever }), change(without("b3")), "b0+ b1+ b2+ b3-", three},
		{"its weight was 0", change(func(s *edge.Service) { s.Backends[3].Weight = 0 }), change(without("b3")), "b0+ b1+ b2+ b3+", three + " b3:0t"},
		{"it goes to another site", change(), change(func(s *edge.Service) { s.Backends[3].Site = "b" }), "", three + " b3:0t"},
		{"it comes with another address", change(), change(func(s *edge.Service) { s.Backends[3].Addr = netip.MustParseAddr("192.0.2.77") }), "b0+ b1+ b2+ b3+", allFour},
		{"it gets another name", change(), change(func(s *edge.Service) { s.Backends[3].ID = "c3" }), "", three + " c3:100oqt b3:0t"},
		{"no drain timeout", change(), change(without("b3"), func(s *edge.Service) { s.DrainTimeout = 0 }), "", three},
		{"UDP", change(func(s *edge.Service) { s.Protocol = edge.UDP }), change(without("b3"), func(s *edge.Service) { s.Protocol = edge.UDP }), "", three},
		{"another VIP", change(), change(without("b3"), func(s *edge.Service) { s.VIP = netip.MustParseAddrPort("198.51.100.54:53") }), "", three},
		{"another service", change(), change(without("b3"), func(s *edge.Service) { s.ID = "new" }), "", "b0:100oqt b1:100oqt b2:100oqt"},
		{"it is the VIP now", change(), change(without("b3"), func(s *edge.Service) { s.VIP = netip.MustParseAddrPort("192.0.2.13:53") }), "", three},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBox(t, t.TempDir(), nil, tt.old)
			b.probes = tt.probes
			b.turn()
			b.reload(tt.next)
			if got := entries(b.turn().Services[0]); got != tt.want {
				t.Errorf("%s: table %s, want %s", tt.name, got, tt.want)
			}
		})
	}
}

// TestLeavesOneService: a backend that leaves one service stays in another, and a
// node that leaves drains in the proxied ones.
func TestLeavesOneService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := func(nodes int, fs ...func(*edge.Service)) *edge.Config {
			c := testConfig()
			c.Fleet.Services[0].DrainTimeout = time.Minute
			c.Fleet.Services = append(c.Fleet.Services, lbService(fs...), lbService(func(s *edge.Service) { s.ID, s.VIP = "other", netip.MustParseAddrPort("198.51.100.54:53") }))
			c.Fleet.Nodes = slices.Delete(c.Fleet.Nodes, nodes, 2)
			return c
		}
		b := newBox(t, t.TempDir(), nil, config(2))
		b.turn()
		b.reload(config(1, without("b3")))
		table := b.turn()
		for i, want := range []string{"a1:100ot a2:0t", three + " b3:0t", allFour} {
			// The probes of web and other have not run: unknown, all alike.
			if got := entries(table.Services[i]); got != want {
				t.Errorf("%s: %s, want %s", table.Services[i].ID, got, want)
			}
		}
		if a1, a2 := table.Services[0].Backends[0], table.Services[0].Backends[1]; !a1.Local || a2.Local || a2.Addr != netip.MustParseAddr("192.0.2.2") {
			t.Errorf("web: %+v", table.Services[0].Backends)
		}
		if len(table.Trusted) != 3 {
			t.Errorf("the node that has left is still trusted: %v", table.Trusted)
		}
	})
}

// TestComesBack: it is a backend as any other, and leaves anew.
func TestComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox(t, t.TempDir(), nil, serving(lbService()))
		b.turn()
		b.reload(serving(lbService(without("b3"))))
		time.Sleep(50 * time.Second)
		b.reload(serving(lbService()))
		b.wants(allFour)
		time.Sleep(20 * time.Second)
		b.wants(allFour)
		b.reload(serving(lbService(without("b3"))))
		time.Sleep(50 * time.Second)
		b.wants(three + " b3:0t")
		b.reload(serving(lbService(without("b3"), func(s *edge.Service) { s.DrainTimeout = 10 * time.Second })))
		b.wants(three) // an operator can end a drain
	})
}

// TestDeadlineSurvivesRestart: it neither ends nor begins again with a process.
func TestDeadlineSurvivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		whole, less := serving(lbService()), serving(lbService(without("b3")))
		b := newBox(t, dir, nil, whole)
		b.turn()
		b.reload(less)
		time.Sleep(30 * time.Second)
		b = newBox(t, dir, less, less)
		b.wants(three + " b3:0t")
		time.Sleep(20 * time.Second)
		b = newBox(t, dir, whole, less) // the process before could not note what it applied
		time.Sleep(10*time.Second - time.Nanosecond)
		b.wants(three + " b3:0t")
		time.Sleep(time.Nanosecond)
		b.wants(three)
		b = newBox(t, dir, less, less)
		b.wants(three)
	})
}

// TestLeftWhileAway: the file has dropped a backend between two processes.
func TestLeftWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox(t, t.TempDir(), serving(lbService()), serving(lbService(without("b3"))))
		b.wants(three + " b3:0t")
		time.Sleep(time.Minute)
		b.wants(three)
	})
}

// TestPoolSurvivesRestart: so does the end of a drain after a failover, and a
// failover that happened while nobody looked begins one.
func TestPoolSurvivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		c := serving(lbService(pools(edge.Failover{Drain: true, Ratio: 1})))
		b := newBox(t, dir, nil, c)
		b.turn()
		time.Sleep(time.Hour)
		b.wants("b0:100oqt b1:100oqt b2:0 b3:0")
		failed := "b0+ b1- b2+ b3+"
		b.probes = failed
		b.wants("b0:0t b1:0t b2:100oqt b3:100oqt")
		time.Sleep(30 * time.Second)
		b = newBox(t, dir, c, c)
		b.probes = failed
		b.wants("b0:0t b1:0t b2:100oqt b3:100oqt")
		time.Sleep(30 * time.Second)
		b.wants("b0:0 b1:0 b2:100oqt b3:100oqt")
		b = newBox(t, dir, c, c) // healthy again meanwhile
		b.wants("b0:100oqt b1:100oqt b2:0t b3:0t")
	})
}

// TestLocalLeaver: the flows of this box's own stack are passed to it as before.
func TestLocalLeaver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here := func(s *edge.Service) { s.Backends[3].Addr = testConfig().Fleet.Nodes[0].Addr4 }
		b := newBox(t, t.TempDir(), nil, serving(lbService(here)))
		b.turn()
		b.reload(serving(lbService(without("b3"))))
		if got := b.turn().Services[0].Backends[3]; got.ID != "b3" || !got.Local {
			t.Errorf("%+v", got)
		}
	})
}

// TestVIPIsLeaver: the forwarder refuses a table in which a service is its own
// backend.
func TestVIPIsLeaver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox(t, t.TempDir(), nil, serving(lbService()))
		b.turn()
		b.reload(serving(lbService(without("b3"))))
		b.wants(three + " b3:0t")
		b.reload(serving(lbService(without("b3"), func(s *edge.Service) { s.VIP = netip.MustParseAddrPort("192.0.2.13:53") })))
		b.wants(three)
	})
}

// TestClockSetBack: a time in the future makes no drain longer.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		m := draining{
			Left:  []leaver{{"lb", "b3", netip.MustParseAddr("192.0.2.13"), time.Now().Add(100 * time.Hour)}},
			Pools: []poolUse{{"lb", edge.PoolPrimary, time.Now().Add(100 * time.Hour)}},
		}
		text, err := json.Marshal(m)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, drainingName), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		less := serving(lbService(pools(edge.Failover{Drain: true}), without("b3")))
		b := newBox(t, dir, less, less)
		b.wants("b0:100oqt b1:100oqt b2:0t b3:0t")
		time.Sleep(time.Minute)
		b.wants("b0:100oqt b1:100oqt b2:0")
	})
}

// TestNoSource: a leaver that this node cannot send to any more does not make the
// forwarder refuse the table.
func TestNoSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v6 := func(s *edge.Service) { s.Backends[3].Addr = netip.MustParseAddr("2001:db8::13") }
		b := newBox(t, t.TempDir(), nil, serving(lbService(v6)))
		b.turn()
		next := serving(lbService(without("b3")))
		b.reload(next)
		b.wants(three + " b3:0t")
		next = serving(lbService(without("b3")))
		next.Fleet.Nodes[0].Addr6 = netip.Addr{}
		b.reload(next)
		b.wants(three)
	})
}

// TestTooManyLeave: drains give way to the configuration, the oldest first.
func TestTooManyLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		many := func(name string, n int) *edge.Config {
			return serving(lbService(func(s *edge.Service) {
				s.Backends = nil
				for i := range n {
					s.Backends = append(s.Backends, edge.Backend{ID: edge.BackendID(fmt.Sprint(name, i)), Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Weight: 1})
				}
			}))
		}
		b := newBox(t, t.TempDir(), nil, many("a", 5))
		b.probes = ""
		b.turn()
		b.reload(many("b", edge.MaxBackends-7))
		if got := len(b.draining.Left); got != 5 || b.warned.Len() > 0 {
			t.Fatalf("%d drain: %s", got, &b.warned)
		}
		time.Sleep(time.Second)
		b.reload(many("c", 4))
		table := b.turn()
		if n := len(table.Services[0].Backends); n != edge.MaxBackends {
			t.Errorf("%d backends in the table, want %d", n, edge.MaxBackends)
		}
		left := ""
		for _, l := range b.draining.Left[:4] {
			left += string(l.Backend) + " "
		}
		if left != "a2 a3 a4 b0 " { // a0 and a1 were the first to leave
			t.Errorf("left: %s", left)
		}
		if !strings.Contains(b.warned.String(), "backends=2") {
			t.Errorf("log: %s", &b.warned)
		}
	})
}
