package main

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// restRig is a daemon of which only what a rest is decided from is there: a1 is
// drained, and has been off the air for long.
func restRig(t *testing.T) (d *daemon, now time.Time, members []edge.MemberState) {
	t.Helper()
	now = noon.Add(time.Hour)
	c := testConfig()
	c.Fleet.Services[0].DrainTimeout = time.Minute
	c.Fleet.Health.Probes = append(c.Fleet.Health.Probes, edge.Probe{ID: "web-vip", Kind: edge.ProbeVIP, Service: "web"})
	d = &daemon{loop: newLoop(&faultySpeaker{}, &permitting{}), meter: newMeter(), drains: &drains{list: []edge.Drain{{Reason: "work"}}}}
	d.cfg.Store(c)
	d.keeper = newKeeper(t.TempDir(), slog.New(slog.DiscardHandler))
	d.applied = table(c, d.seed, look(c, nil, d.draining, now))
	d.off.Store(&map[edge.ServiceID]bool{})
	d.loop.adopted = true
	for _, p := range c.Fleet.Prefixes {
		d.loop.last[p.Net] = edge.Decision{Prefix: p.Net, Rung: edge.Withdrawn, Since: noon, Reason: "drained: work"}
	}
	d.meter.at, d.meter.count[p4] = now, 100
	d.rest.resting, d.rest.woken = map[netip.Prefix]time.Time{}, map[netip.Prefix]time.Time{}
	members = []edge.MemberState{
		{Node: "a2", Site: "a", Report: edge.Report{Says: []edge.Claim{{Prefix: p4}}, Spared: []edge.Spared{{Node: "a1", Prefix: p4}}}},
		{Node: "b1", Site: "b", Age: -1},
	}
	return d, now, members
}

func withPrefix(d *daemon, p edge.Prefix) {
	c := *d.config()
	c.Fleet.Prefixes = append(slices.Clone(c.Fleet.Prefixes), p)
	d.cfg.Store(&c)
}

func withEcho(d *daemon, b ...edge.Backend) {
	c := *d.config()
	c.Fleet.Services = append(slices.Clone(c.Fleet.Services), edge.Service{ID: "echo", VIP: netip.MustParseAddrPort("198.51.100.53:53"), Protocol: edge.UDP, DrainTimeout: time.Minute, Backends: b})
	d.cfg.Store(&c)
}

// TestMustServe: each of the reasons for which a drained prefix is served still.
func TestMustServe(t *testing.T) {
	wide := netip.MustParsePrefix("198.51.0.0/16")
	for _, tt := range []struct {
		name string
		but  func(d *daemon, members []edge.MemberState)
		want string // empty: it need not be served
	}{
		{"it is over", func(*daemon, []edge.MemberState) {}, ""},
		{"it has left a moment ago", func(d *daemon, _ []edge.MemberState) {
			d.loop.last[p4] = edge.Decision{Prefix: p4, Rung: edge.Withdrawn, Since: noon.Add(time.Hour - settleTime + 1)}
		}, "off the air for less than"},
		{"packets come", func(d *daemon, _ []edge.MemberState) { d.meter.busy[p4] = noon.Add(time.Hour - time.Second) }, "packets still come"},
		{"nobody counts", func(d *daemon, _ []edge.MemberState) { d.meter.at = noon }, "packets still come"},
		{"the other node sends flows", func(_ *daemon, m []edge.MemberState) { m[0].Report.Spared = nil }, "a2 may still send"},
		{"it has spared another prefix only", func(_ *daemon, m []edge.MemberState) { m[0].Report.Spared[0].Prefix = p6 }, "a2 may still send"},
		{"it was never heard of", func(_ *daemon, m []edge.MemberState) { m[0].Age = -1 }, "a2 may still send"},
		{"it has said so of an earlier drain", func(_ *daemon, m []edge.MemberState) { m[0].Age = time.Hour + 1 }, "a2 may still send"},
		{"it has been dead since", func(_ *daemon, m []edge.MemberState) { m[0].Age = time.Hour - time.Minute }, ""},
		{"it was undrained for a moment", func(d *daemon, _ []edge.MemberState) {
			d.rest.since = map[netip.Prefix]time.Time{p4: noon.Add(time.Hour - settleTime + 1)}
		}, "off the air for less than"},
		{"it has not got the prefix", func(_ *daemon, m []edge.MemberState) { m[0].Report = edge.Report{} }, ""},
		{"a covering prefix is announced", func(d *daemon, _ []edge.MemberState) {
			withPrefix(d, edge.Prefix{Net: wide})
			d.loop.onAir[wide] = true
		}, "198.51.0.0/16, which attracts its packets too"},
		{"a covering prefix may be announced", func(d *daemon, _ []edge.MemberState) {
			withPrefix(d, edge.Prefix{Net: wide})
			d.drains.list = []edge.Drain{{Prefix: p4, Reason: "work"}}
		}, "198.51.0.0/16, which attracts its packets too"},
		{"a covering prefix is drained as well", func(d *daemon, _ []edge.MemberState) { withPrefix(d, edge.Prefix{Net: wide}) }, ""},
		{"a longer prefix is announced", func(d *daemon, _ []edge.MemberState) {
			long := netip.MustParsePrefix("198.51.100.128/25")
			withPrefix(d, edge.Prefix{Net: long})
			d.loop.onAir[long] = true
		}, ""},
		{"a backend of all sites, another site has it in use", func(d *daemon, m []edge.MemberState) {
			withEcho(d, edge.Backend{ID: "one", Addr: netip.MustParseAddr("192.0.2.1")})
			m[1].Age, m[1].Report = 0, edge.Report{Says: []edge.Claim{{Prefix: p4}}}
		}, "b1 may still send"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, now, members := restRig(t)
			tt.but(d, members)
			if !d.resting(p4) {
				t.Fatal("it is not ready to rest")
			}
			why := string(d.mustServe(p4, now, members))
			if (why == "") != (tt.want == "") || !strings.Contains(why, tt.want) {
				t.Errorf("mustServe = %q, want %q", why, tt.want)
			}
		})
	}
}

// TestResting: only an order that has taken the prefix off the air lets it rest.
func TestResting(t *testing.T) {
	for name, but := range map[string]func(*daemon){
		"nothing is known of the air": func(d *daemon) { d.loop.adopted = false },
		"it is not drained":           func(d *daemon) { d.drains.list = nil },
		"it leaves the configuration": func(d *daemon) { d.leaving.prefixes = []edge.Prefix{{Net: p4}} },
		"it is on the air":            func(d *daemon) { d.loop.last[p4] = edge.Decision{Rung: edge.LastResort} },
	} {
		d, _, _ := restRig(t)
		if but(d); d.resting(p4) {
			t.Errorf("%s, and yet it may rest", name)
		}
	}
}

// TestUnserved: a prefix that was drained comes back only after its VIPs are
// there, and have answered since.
func TestUnserved(t *testing.T) {
	d, now, _ := restRig(t)
	probe := edge.Status{Probe: "web-vip", State: edge.Up, LastRun: now.Add(-time.Second)}
	want := func(part string) {
		t.Helper()
		why := string(d.unserved([]edge.Status{probe})(p4))
		if (why == "") != (part == "") || !strings.Contains(why, part) {
			t.Errorf("unserved = %q, want %q", why, part)
		}
	}
	want("")
	d.rest.resting[p4] = now
	want("are not served yet")
	if got := d.served(d.config()).Fleet.Services; len(got) != 0 {
		t.Errorf("%d services are served", len(got))
	}
	if !strings.Contains(string(d.standing()[0].Reason), "not served any more") {
		t.Errorf("an operator reads %q", d.standing()[0].Reason)
	}
	if c := d.claims()[0]; !c.Drained || !c.Unserved {
		t.Errorf("the fleet reads %+v", c)
	}
	delete(d.rest.resting, p4)
	d.rest.woken[p4] = now
	want("web-vip has not passed since")
	probe.LastRun, probe.LastErrAt = now.Add(time.Second), now.Add(time.Second)
	want("web-vip has not passed since") // it ran, and that was unknown or a failure
	probe.LastRun = now.Add(2 * time.Second)
	want("")
	probe.State = edge.Down
	want("") // a matter of the needs
	probe.LastRun = now.Add(-time.Second)
	want("web-vip has not passed since")
}

// TestUnservedAround: a prefix comes on the air after the VIPs of all that are in
// it, and after the forwarder has its services.
func TestUnservedAround(t *testing.T) {
	wide := netip.MustParsePrefix("198.51.0.0/16")
	d, now, _ := restRig(t)
	withPrefix(d, edge.Prefix{Net: wide})
	d.rest.resting[p4] = now
	if why := d.unserved(nil)(wide); !strings.Contains(string(why), "198.51.100.0/24 are not served yet") {
		t.Errorf("what is around it may come on the air: %q", why)
	}
	if why := d.unserved(nil)(p6); why != "" {
		t.Errorf("what has nothing to do with it may not: %s", why)
	}
	delete(d.rest.resting, p4)
	d.applied.Services = nil
	if why := d.unserved(nil)(wide); !strings.Contains(string(why), "the forwarder has not got the services") {
		t.Errorf("without a table: %q", why)
	}
	if c := d.claims()[0]; !c.Unserved {
		t.Error("the fleet does not hear that there is no table")
	}
}

// TestOffDuty: the VIPs of a drained prefix are asked as long as somebody may be
// attracted to them, and not before they are in the table again.
func TestOffDuty(t *testing.T) {
	wide := netip.MustParsePrefix("198.51.0.0/16")
	d, now, _ := restRig(t)
	want := func(off bool) {
		t.Helper()
		d.noteDrained(now)
		if d.offDuty(); (*d.off.Load())["web"] != off {
			t.Errorf("off duty: %t, want %t", !off, off)
		}
	}
	want(true)
	withPrefix(d, edge.Prefix{Net: wide})
	want(true)
	d.loop.onAir[wide] = true
	want(false)
	d.drains.list = nil
	d.rest.woken[p4], d.applied.Services = now, nil
	want(true)
	d.applied = table(d.config(), d.seed, look(d.config(), nil, d.draining, now))
	want(false)
}

// TestNoteDrained: an undrain in between begins the wait anew.
func TestNoteDrained(t *testing.T) {
	d, now, members := restRig(t)
	d.noteDrained(now)
	d.noteDrained(now.Add(time.Minute))
	if at := d.rest.since[p4]; !at.Equal(now) {
		t.Errorf("drained since %s", at)
	}
	order := d.drains.list
	d.drains.list = nil
	d.noteDrained(now.Add(time.Minute))
	d.drains.list = order
	now = now.Add(2 * time.Minute)
	d.noteDrained(now)
	d.meter.at = now
	if why := d.mustServe(p4, now, members); !strings.Contains(string(why), "less than") {
		t.Errorf("a moment after the undrain: %q", why)
	}
}
