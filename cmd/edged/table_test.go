package main

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

func ids(ts []target) (out []edge.BackendID) {
	for _, t := range ts {
		out = append(out, t.id)
	}
	return out
}

func TestTargetsOfProxiedService(t *testing.T) {
	c := testConfig()
	ts := targets(c, c.Fleet.Services[0])
	if len(ts) != 2 || ts[0].id != "a1" || !ts[0].local || ts[1].id != "a2" || ts[1].local {
		t.Fatalf("targets: %+v", ts)
	}
	if want := "http://192.0.2.2:9181/healthz"; ts[1].check.URL != want || ts[1].check.ID != "backend/web/a2" {
		t.Errorf("check of a2: %+v", ts[1].check)
	}
}

func TestTargetsOfOtherSite(t *testing.T) {
	c := testConfig()
	s := edge.Service{ID: "dns", VIP: netip.MustParseAddrPort("198.51.100.53:53"), Protocol: edge.UDP, Backends: []edge.Backend{
		{ID: "d2", Addr: netip.MustParseAddr("192.0.2.9"), Site: "b", Weight: 100},
		{ID: "d1", Addr: netip.MustParseAddr("192.0.2.8"), Weight: 100},
		{ID: "d0", Addr: netip.MustParseAddr("192.0.2.7"), Site: "a", Weight: 100},
	}, Check: edge.Probe{Kind: edge.ProbeTCP}}
	ts := targets(c, s)
	if len(ts) != 2 || ts[0].id != "d0" || ts[1].id != "d1" {
		t.Fatalf("targets: %v", ids(ts))
	}
	if got := ts[0].check.Addr.String(); got != "192.0.2.7:53" {
		t.Errorf("check goes to %s", got)
	}
}

func TestTableTrustsTheFleetOnly(t *testing.T) {
	c := testConfig()
	tab := table(c, [16]byte{}, look(c, nil, draining{}, noon))
	if len(tab.Trusted) != 5 || len(tab.Services) != 1 || len(tab.Services[0].Backends) != 2 {
		t.Errorf("table: %+v", tab)
	}
}

// nowhere says that no service has a VIP.
func nowhere(edge.ServiceID) netip.Addr { return netip.Addr{} }

func TestDrainsSurvive(t *testing.T) {
	dir := t.TempDir()
	d := testDrains(t, dir)
	all, one := edge.Drain{Reason: "all"}, edge.Drain{Prefix: p4, Reason: "one"}
	for _, o := range []edge.Drain{all, one, {Prefix: p4, Reason: "two"}} {
		d.add(o)
	}
	mustDo(t, d.keeper.flush(time.Minute))
	again := testDrains(t, dir)
	if got := again.of(p4, nowhere); got == nil || got.Reason != "two" {
		t.Errorf("drain of %s: %+v", p4, got)
	}
	if got := again.of(p6, nowhere); got == nil || got.Reason != "all" {
		t.Errorf("drain of %s: %+v", p6, got)
	}
	if _, had := again.remove(netip.Prefix{}, ""); !had {
		t.Error("nothing to remove")
	}
	if _, had := again.remove(netip.Prefix{}, ""); had {
		t.Error("removed twice")
	}
	if again.of(p6, nowhere) == nil {
		t.Error("a drain is taken back before that is on the disk")
	}
	mustDo(t, again.keeper.flush(time.Minute))
	again.settle()
	if again.of(p6, nowhere) != nil {
		t.Error("a drain that was taken back is still there")
	}
}

// TestDrainsUnreadable: to ignore an order to leave would announce what an
// operator took out.
func TestDrainsUnreadable(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "drains.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openDrains(newKeeper(dir, slog.New(slog.DiscardHandler))); err == nil {
		t.Error("a broken file was taken for no drains")
	}
}

// TestReadSeed: what an editor adds around the secret gives no other ring.
func TestReadSeed(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "seed")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a, err := readSeed(write("0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := readSeed(write(" 0123456789abcdef\n")); err != nil || a != b {
		t.Errorf("with white space: %x, %v; want %x", b, err, a)
	}
	for _, bad := range []string{"", "too short\n", strings.Repeat("x", 65)} {
		if _, err := readSeed(write(bad)); err == nil {
			t.Errorf("a seed of %d characters was taken", len(bad))
		}
	}
}

// TestCarryOver: what the new configuration drops while it is on the air stays,
// with its services, and keeps its floor.
func TestCarryOver(t *testing.T) {
	old := testConfig()
	old.Fleet.Prefixes[0].MinSites = 2
	next := testConfig()
	next.Fleet.Prefixes, next.Fleet.Services = next.Fleet.Prefixes[1:], nil
	unknown := netip.MustParsePrefix("203.0.113.0/24")
	l := carryOver(next, old, []edge.Announcement{{Net: p4}, {Net: p6}, {Net: unknown, Degraded: edge.Attributes{MED: 7}}})
	if len(l.prefixes) != 2 || l.prefixes[0].MinSites != 2 || l.prefixes[1].Degraded.MED != 7 || l.prefixes[1].MinSites < 1 {
		t.Fatalf("prefixes: %+v", l.prefixes)
	}
	if len(l.services) != 1 || l.services[0].ID != "web" {
		t.Fatalf("services: %+v", l.services)
	}
	eff := l.with(next)
	if len(eff.Fleet.Prefixes) != 3 || len(next.Fleet.Prefixes) != 1 {
		t.Errorf("in force: %d prefixes, parsed: %d", len(eff.Fleet.Prefixes), len(next.Fleet.Prefixes))
	}
}

// TestCarryOverNextHop: what leaves keeps its next hop, though the node is to have no
// address of that family any more: edgebgp would refuse the intent, and with it every
// withdrawal.
func TestCarryOverNextHop(t *testing.T) {
	old, next := testConfig(), testConfig()
	next.Fleet.Prefixes = next.Fleet.Prefixes[:1]
	next.Fleet.Nodes = slices.Clone(next.Fleet.Nodes)
	next.Fleet.Nodes[0].Addr6 = netip.Addr{}
	hop4, hop6 := old.Self().Addr4, old.Self().Addr6
	on := []edge.Announcement{{Net: p4, NextHop: hop4}, {Net: p6, NextHop: hop6}}
	l := newLoop(&faultySpeaker{}, &permitting{})
	l.onAir[p4], l.onAir[p6] = true, true
	eff := carryOver(next, old, on).with(next)
	for _, a := range l.intent(inputs{config: eff}).Announcements {
		if a.NextHop != old.Self().Addr(a.Net.Addr()) || a.NextHop.Is4() != a.Net.Addr().Is4() {
			t.Errorf("%s has the next hop %s", a.Net, a.NextHop)
		}
	}
	if next.Self().Addr6.IsValid() {
		t.Error("the configuration itself is changed")
	}
	if eff := carryOver(next, old, on[:1]).with(next); eff.Self().Addr6.IsValid() {
		t.Error("an address is kept that nothing needs")
	}
	old.Fleet.Prefixes = old.Fleet.Prefixes[:1]
	moved := testConfig()
	moved.Fleet.Nodes[0].Addr4 = netip.MustParseAddr("192.0.2.77")
	if eff := carryOver(moved, old, on).with(moved); eff.Self().Addr4 != moved.Self().Addr4 {
		t.Error("a new address of the same family is not taken")
	}
}
