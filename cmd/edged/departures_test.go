package main

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// webView is service web seen with a1 (this node) and a2 in these
// states.
func webView(t *testing.T, all departures, a1, a2 edge.ProbeState, now time.Time) (view, []edge.Status) {
	t.Helper()
	c := testConfig()
	c.Fleet.Services[0].DrainTimeout = time.Minute
	m := draining{departures: all}
	statuses := []edge.Status{{Probe: "backend/web/a1", State: a1}, {Probe: "backend/web/a2", State: a2}}
	statuses = m.withDepartures(c, statuses, now)
	return look(c, statuses, m, now)[0], statuses
}

// TestDepartures: who gets new flows, whose flows stay, and what is believed of a
// node that is drained.
func TestDepartures(t *testing.T) {
	now := noon
	at := func(n edge.NodeID) place { return place{n, p4} }
	off := func(ago time.Duration) departure { return departure{closed: true, since: now.Add(-ago)} }
	out := departure{closed: true}
	for _, tt := range []struct {
		name   string
		all    departures
		a1, a2 edge.ProbeState
		want   map[edge.BackendID]int // shares of the backends in the table
		down   bool                   // a2 is down for whoever asks
	}{
		{"nobody", nil, edge.Up, edge.Up, map[edge.BackendID]int{"a1": 100, "a2": 100}, false},
		{"of another prefix", departures{{"a2", p6}: out}, edge.Up, edge.Up, map[edge.BackendID]int{"a1": 100, "a2": 100}, false},
		{"the other one, whose flows are still learned", departures{at("a2"): {}}, edge.Up, edge.Up, map[edge.BackendID]int{"a1": 100, "a2": 100}, false},
		{"the other one", departures{at("a2"): out}, edge.Up, edge.Up, map[edge.BackendID]int{"a1": 100, "a2": 0}, false},
		{"this one", departures{at("a1"): out}, edge.Up, edge.Up, map[edge.BackendID]int{"a1": 0, "a2": 100}, false},
		{"both", departures{at("a1"): out, at("a2"): out}, edge.Up, edge.Up, map[edge.BackendID]int{"a1": 100, "a2": 100}, false},
		{"better drained than down", departures{at("a2"): out}, edge.Down, edge.Up, map[edge.BackendID]int{"a1": 0, "a2": 100}, false},
		{"off the air, flows are there", departures{at("a2"): off(59 * time.Second)}, edge.Up, edge.Up, map[edge.BackendID]int{"a1": 100, "a2": 0}, false},
		{"its time is over", departures{at("a2"): off(time.Minute)}, edge.Up, edge.Up, map[edge.BackendID]int{"a1": 100}, true},
		{"its time is over, but this one is down", departures{at("a2"): off(time.Minute)}, edge.Down, edge.Up, map[edge.BackendID]int{"a1": 0, "a2": 100}, true},
		{"and this one is off the air itself", departures{at("a2"): {closed: true, since: now.Add(-time.Minute), unneeded: true}}, edge.Down, edge.Up, map[edge.BackendID]int{"a1": 100}, true},
		{"gone, and this one is down", departures{at("a2"): {closed: true, since: now, over: true}}, edge.Down, edge.Up, map[edge.BackendID]int{"a1": 100}, true},
		{"this one is never dismissed", departures{at("a1"): off(time.Hour)}, edge.Down, edge.Down, map[edge.BackendID]int{"a1": 100, "a2": 100}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, statuses := webView(t, tt.all, tt.a1, tt.a2, now)
			got := map[edge.BackendID]int{}
			for _, b := range v.table(testConfig().Self()).Backends {
				got[b.ID] = b.Weight
				if !b.KeepTCP && b.Weight == 0 && tt.a1 == edge.Up && tt.a2 == edge.Up {
					t.Errorf("%s loses the flows that it has", b.ID)
				}
			}
			if !maps.Equal(got, tt.want) {
				t.Errorf("shares %v, want %v", got, tt.want)
			}
			if down := statuses[1].State == edge.Down; down != tt.down {
				t.Errorf("a2 is %s: %s", statuses[1].State, statuses[1].LastErr)
			}
		})
	}
}

// TestDeparturesNext: how what the nodes say becomes departures.
func TestDeparturesNext(t *testing.T) {
	self := testConfig().Self()
	off, idle := true, false
	say := func(was departures, at time.Time, rung edge.Rung, more ...func(*edge.Claim)) departures {
		c := edge.Claim{Prefix: p4, Rung: rung, Drained: true}
		for _, f := range more {
			f(&c)
		}
		return was.next(self, map[edge.NodeID][]edge.Claim{"a2": {c}}, at, func(netip.Prefix) (bool, bool) { return off, idle })
	}
	at := place{"a2", p4}
	d := say(nil, noon, edge.Draining)
	if dep, ok := d[at]; !ok || dep.closed || !dep.since.IsZero() {
		t.Errorf("draining: %+v", d)
	}
	for _, r := range []edge.Rung{edge.Leaving, edge.LastResort} {
		if dep := say(d, noon, r)[at]; !dep.closed || !dep.since.IsZero() {
			t.Errorf("%s: %+v", r, dep)
		}
	}
	d = say(d, noon, edge.Withdrawn)
	d = say(d, noon.Add(time.Second), edge.Withdrawn)
	if dep := d[at]; !dep.since.Equal(noon) || dep.over {
		t.Errorf("withdrawn: %+v", dep)
	}
	if e := say(d, noon.Add(time.Second), edge.Announced); !e[at].since.IsZero() {
		t.Errorf("back on the air, but drained: %+v", e[at])
	}
	// A restarted process that has not yet decided anything has said nothing.
	if e := say(d, noon, ""); !e[at].since.IsZero() || !e[at].closed {
		t.Errorf("nothing decided: %+v", e[at])
	}
	if e := say(d, noon, edge.Withdrawn, func(c *edge.Claim) { c.Unserved = true }); !e[at].over {
		t.Error("a node that serves no more is sent flows")
	}
	off, idle = false, true
	if e := say(d, noon, edge.Withdrawn)[at]; e.over || e.unneeded {
		t.Errorf("this node is quiet, but on the air: %+v", e)
	}
	off = true
	d = say(d, noon, edge.Withdrawn)
	idle = false
	if d = say(d, noon, edge.Withdrawn); !d[at].over {
		t.Error("what was over is not over any more, while the node is still drained")
	}
	if e := say(d, noon, edge.Withdrawn, func(c *edge.Claim) { c.Drained = false }); len(e) > 0 {
		t.Errorf("undrained: %+v", e)
	}
	if e := say(nil, noon, edge.Withdrawn, func(c *edge.Claim) { c.Drained, c.Unserved = false, true }); !e[at].over {
		t.Error("undrained, but its VIPs are not back yet: it is sent flows")
	}
	d = say(nil, noon.Add(time.Hour), edge.Withdrawn)
	if d = say(d, noon, edge.Withdrawn); d[at].since.After(noon) {
		t.Errorf("the clock was set back, and it is off the air since %s", d[at].since)
	}
}

// TestMeterStill: traffic is over only when it is known to be.
func TestMeterStill(t *testing.T) {
	c := testConfig()
	m, now, packets := newMeter(), noon, uint64(0)
	sample := func(more uint64) {
		now, packets = now.Add(time.Second), packets+more
		m.observe(now, c, edge.ForwarderStats{Services: []edge.ServiceCount{{Service: "web", Packets: packets}}})
	}
	if m.still(p4, now) {
		t.Error("still before anything was counted")
	}
	for range 5 {
		sample(1)
	}
	if m.still(p4, now) {
		t.Error("still after less than the settle time")
	}
	sample(1)
	if !m.still(p4, now) {
		t.Error("not still after the settle time")
	}
	if m.still(p4, now.Add(meterLimit)) {
		t.Error("still by a counter that was not read for long")
	}
	if m.still(p6, now) {
		t.Error("still where nothing is counted")
	}
	sample(2)
	if m.still(p4, now) {
		t.Error("still with packets")
	}
	packets = 0 // the counters begin anew
	sample(0)
	if m.still(p4, now) {
		t.Error("still after the counters began anew")
	}
}

// TestDeparturesKept: what a node has said last counts over a restart of this one,
// until it is heard again.
func TestDeparturesKept(t *testing.T) {
	d, now, members := restRig(t)
	said := edge.Claim{Prefix: p4, Rung: edge.Withdrawn, Drained: true, Unserved: true}
	members[0].Report.Says = []edge.Claim{said, {Prefix: p6}}
	d.followDepartures(now, members)
	if err := d.keeper.flush(keepLast); err != nil {
		t.Fatal(err)
	}
	next, _, _ := restRig(t)
	next.keeper = d.keeper
	members[0].Age, members[0].Report = -1, edge.Report{}
	for range 2 {
		next.followDepartures(now.Add(time.Second), members)
		if dep := next.draining.departures[place{"a2", p4}]; !dep.over || !dep.since.Equal(now) {
			t.Fatalf("after a restart: %+v", next.draining.departures)
		}
	}
	members[0].Age = 0 // a report that says nothing of any prefix is none
	next.followDepartures(now.Add(time.Second), members)
	if !next.draining.departures[place{"a2", p4}].over {
		t.Error("forgotten after an empty report")
	}
	members[0].Report.Says = []edge.Claim{{Prefix: p4, Rung: edge.Announced}, {Prefix: p6}}
	next.followDepartures(now.Add(time.Second), members)
	if _, is := next.draining.departures[place{"a2", p4}]; is {
		t.Error("it is back, and is not used")
	}
	next.followDepartures(now.Add(time.Second), nil) // it has left the roster
	if _, is := next.draining.departures[place{"a2", p4}]; is {
		t.Error("who is no member is remembered")
	}
}

// TestDeparturesOther: a node that has another configuration, without the prefix, is
// sent nothing of it.
func TestDeparturesOther(t *testing.T) {
	d, now, members := restRig(t)
	d.drains.list = nil
	members[0].Report.Says = []edge.Claim{{Prefix: p6, Rung: edge.Announced}}
	d.followDepartures(now, members)
	if !d.draining.departures[place{"a2", p4}].over || len(d.draining.departures) != 1 {
		t.Errorf("departures: %+v", d.draining.departures)
	}
	// A node of another site is of interest as a backend of all sites.
	members[1].Age, members[1].Report.Says = 0, []edge.Claim{{Prefix: p4, Drained: true, Rung: edge.Withdrawn}, {Prefix: p6}}
	if d.followDepartures(now, members); len(d.draining.departures) != 1 {
		t.Errorf("departures: %+v", d.draining.departures)
	}
	withEcho(d, edge.Backend{ID: "one", Addr: netip.MustParseAddr("192.0.2.1"), Weight: 100}, edge.Backend{ID: "three", Addr: netip.MustParseAddr("192.0.2.3"), Weight: 100})
	d.meter.busy[p4] = now
	d.followDepartures(now, members)
	if dep := d.draining.departures[place{"b1", p4}]; !dep.since.Equal(now) {
		t.Errorf("departures: %+v", d.draining.departures)
	}
	views := look(d.config(), nil, d.draining, now)
	if b := views[1].table(d.config().Self()).Backends; len(b) != 2 || b[0].Weight != 100 || b[1].Weight != 0 {
		t.Errorf("backends of echo: %+v", b)
	}
}

// TestSpared: what is said to be sent nowhere any more is what the tables say, also
// of backends that have left the configuration.
func TestSpared(t *testing.T) {
	d, now, _ := restRig(t)
	want := func(n int, when string) {
		t.Helper()
		if got := d.spared(); len(got) != n {
			t.Errorf("%s: %v", when, got)
		}
	}
	d.draining.departures = departures{{"a2", p4}: {closed: true, since: now, over: true}, {"a1", p4}: {closed: true, since: now}}
	want(0, "in the table")
	d.applied = table(d.config(), d.seed, look(d.config(), nil, d.draining, now))
	want(1, "not in the table")
	d.inherited = true
	want(0, "the tables are those of the process before")
	d.inherited = false
	d.applied.Services[0].Backends = append(d.applied.Services[0].Backends, edge.TableBackend{ID: "old", Addr: netip.MustParseAddr("192.0.2.2"), KeepTCP: true})
	want(0, "a backend that has left drains there")
	d.applied = edge.Table{}
	want(0, "nothing was applied")
}
