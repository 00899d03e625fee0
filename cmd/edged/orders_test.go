package main

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/health"
)

func TestParseDrainFile(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		text string
		want []edge.Drain
		err  string
	}{
		{"", []edge.Drain{{Reason: "the drain file is there"}}, ""},
		{"# nothing but a comment\n", []edge.Drain{{Reason: "the drain file is there"}}, ""},
		{"node", []edge.Drain{{Reason: "by the drain file"}}, ""},
		{"node  new   disk # ticket", []edge.Drain{{Reason: "new disk"}}, ""},
		{"node until 2026-01-02T03:04:05Z x\n\nprefix 198.51.100.0/24 y\nservice web\n", []edge.Drain{
			{Until: at, Reason: "x"}, {Prefix: p4, Reason: "y"}, {Service: "web", Reason: "by the drain file"},
		}, ""},
		{"prefix", nil, `line 1: "prefix" names nothing`},
		{"node\nprefix 198.51.100.1/24", nil, `line 2: "198.51.100.1/24" is not a prefix`},
		{"site a", nil, `"site": expected node`},
		{"node until", nil, "until without a time"},
		{"node until tomorrow", nil, "expected a time like"},
		{"node " + strings.Repeat("x", maxReason+1), nil, "at most 500"},
		{strings.Repeat("node\n", maxDrainLines+1), nil, "more than 256"},
	} {
		got, err := parseDrainFile(tt.text)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%.40q: %v, want %q", tt.text, err, tt.err)
			continue
		}
		if len(got) != len(tt.want) {
			t.Errorf("%.40q: %+v", tt.text, got)
			continue
		}
		for i, o := range tt.want {
			o.ByFile = true
			if got[i] != o {
				t.Errorf("%.40q: %+v, want %+v", tt.text, got[i], o)
			}
		}
	}
}

func FuzzDrainFile(f *testing.F) {
	for _, s := range []string{"", "node x", "prefix 198.51.100.0/24 until 2026-01-02T03:04:05Z", "service web # c", "\x00\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseDrainFile(text)
		if err == nil && len(list) == 0 {
			t.Fatal("a drain file that is there orders nothing")
		}
	})
}

// TestFollowDrainFile: the file drains while it is there; a new order counts at
// once, one that vanishes only when the file has been so for a while; one that is
// wrong changes nothing; an order with an end ends.
func TestFollowDrainFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drain")
	d := testDrains(t, t.TempDir())
	d.file.first, d.file.next = time.Minute, time.Minute // a busy machine is no fault
	now := time.Now()
	look := func(want int, why string) {
		t.Helper()
		if d.follow(path, now); len(d.byFile) != want || (d.fileErr == nil) != (why == "") || d.fileErr != nil && !strings.Contains(d.fileErr.Error(), why) {
			t.Errorf("orders %+v, error %v; want %d and %q", d.byFile, d.fileErr, want, why)
		}
	}
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	later := func() { now = now.Add(fileSettle) }
	look(0, "")
	write("node work")
	look(1, "")
	if o := d.of(p4, nowhere); o == nil || o.Reason != "work" || !d.node() {
		t.Errorf("the node is not drained: %+v", o)
	}
	// Whoever replaces it takes it away for a moment, and writes it line by line.
	mustDo(t, os.Remove(path))
	look(1, "")
	write("")
	look(1, "")
	write("prefix 198.51.100.0/24 later")
	look(2, "")
	later()
	look(1, "")
	if d.node() || d.of(p6, nowhere) != nil || d.of(p4, nowhere) == nil {
		t.Errorf("orders %+v", d.byFile)
	}
	write("nodes work")
	look(1, "expected node, prefix P or service S; what it ordered before stays")
	later()
	look(1, "expected node")
	// A restart of edged knows what was in force.
	mustDo(t, d.keeper.flush(time.Minute))
	if again := testDrains(t, d.keeper.dir); len(again.byFile) != 1 {
		t.Errorf("kept %+v", again.byFile)
	}
	write("prefix 198.51.100.0/24 x\nnode until " + now.Add(-time.Second).Format(time.RFC3339) + " over")
	look(1, "")
	write("")
	look(1, "")
	later()
	look(1, "")
	if !d.node() {
		t.Errorf("an empty file does not drain the node: %+v", d.byFile)
	}
	mustDo(t, os.Remove(path))
	mustDo(t, syscall.Mkfifo(path, 0o644))
	look(1, "not a regular file")
	mustDo(t, os.Remove(path))
	look(1, "")
	later()
	look(0, "")
}

// testDrains opens the orders that are kept in dir.
func testDrains(t *testing.T, dir string) *drains {
	t.Helper()
	d, err := openDrains(newKeeper(dir, slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDrainsExpire(t *testing.T) {
	d := testDrains(t, t.TempDir())
	now := time.Now()
	for _, o := range []edge.Drain{{Reason: "for ever"}, {Prefix: p4, Reason: "an hour", Until: now.Add(time.Hour)}, {Service: "web", Reason: "a minute", Until: now.Add(time.Minute)}} {
		d.add(o)
	}
	mustDo(t, d.keeper.flush(time.Minute))
	d.settle()
	at := func(id edge.ServiceID) netip.Addr { return map[edge.ServiceID]netip.Addr{"web": p6.Addr().Next()}[id] }
	for p, want := range map[netip.Prefix]string{p4: "an hour", p6: "service web: a minute"} {
		if o := d.of(p, at); o == nil || o.Reason != want {
			t.Errorf("%s is drained by %+v, want %q", p, o, want)
		}
	}
	if ended := d.expire(now.Add(time.Minute)); len(ended) != 1 || ended[0].Service != "web" {
		t.Errorf("ended: %+v", ended)
	}
	mustDo(t, d.keeper.flush(time.Minute))
	if again := testDrains(t, d.keeper.dir); len(again.list) != 2 {
		t.Errorf("kept %+v", again.list)
	}
	if o := d.of(p6, at); o == nil || o.Reason != "for ever" {
		t.Errorf("%s is drained by %+v", p6, o)
	}
}

func TestOthersView(t *testing.T) {
	c := testConfig()
	c.Fleet.Nodes = append(c.Fleet.Nodes, edge.Node{ID: "b2", Site: "b"}, edge.Node{ID: "c1", Site: "c"}, edge.Node{ID: "d1", Site: "d"})
	member := func(id edge.NodeID, site edge.SiteID, s edge.ProbeState) edge.MemberState {
		return edge.MemberState{Node: id, Site: site, Alive: true, Report: edge.Report{Shared: map[edge.ProbeID]edge.ProbeState{"dep": s}}}
	}
	stale, dead, silent := member("d1", "d", edge.Down), member("c1", "c", edge.Down), member("c1", "c", edge.Unknown)
	stale.Age, dead.Alive = time.Minute, false
	for name, tt := range map[string]struct {
		members []edge.MemberState
		want    health.Others
	}{
		"nobody":                    {nil, health.Others{Roster: 3}},
		"this site does not count":  {[]edge.MemberState{member("a2", "a", edge.Down)}, health.Others{Roster: 3}},
		"one up, one full, one not": {[]edge.MemberState{member("b1", "b", edge.Up), member("c1", "c", edge.Full), member("d1", "d", edge.Down)}, health.Others{Up: 2, Down: 1, Roster: 3}},
		"a site is as its worst":    {[]edge.MemberState{member("b1", "b", edge.Down), member("b2", "b", edge.Up)}, health.Others{Down: 1, Roster: 3}},
		"in either order":           {[]edge.MemberState{member("b1", "b", edge.Up), member("b2", "b", edge.Down)}, health.Others{Down: 1, Roster: 3}},
		"old and unknown":           {[]edge.MemberState{stale}, health.Others{Roster: 3}},
		"only called dead":          {[]edge.MemberState{dead}, health.Others{Down: 1, Roster: 3}},
		"unknown":                   {[]edge.MemberState{silent}, health.Others{Roster: 3}},
		"a stranger":                {[]edge.MemberState{member("x", "x", edge.Down)}, health.Others{Roster: 3}},
	} {
		if got := othersView(c, tt.members, "dep", 10*time.Second); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

func TestMeter(t *testing.T) {
	c := testConfig()
	m, now, packets := newMeter(), time.Unix(1000, 0), uint64(0)
	pass := func(rate uint64) {
		now, packets = now.Add(time.Second), packets+rate
		m.observe(now, c, edge.ForwarderStats{Services: []edge.ServiceCount{{Service: "web", Packets: packets}}})
	}
	pass(0)
	pass(10_000)
	m.drains(p4, now)
	m.drains(p6, now)
	if m.quiet(p4) {
		t.Error("quiet at once")
	}
	pass(10_000)
	pass(10_000)
	if m.quiet(p4) {
		t.Error("quiet at the full rate")
	}
	pass(501)
	if m.quiet(p4) {
		t.Error("quiet at a little over a twentieth")
	}
	pass(499)
	if !m.quiet(p4) {
		t.Error("not quiet at less than a twentieth")
	}
	if m.quiet(p6) {
		t.Error("a prefix of which nothing is counted is quiet")
	}
	packets = 0 // the counters began anew
	pass(5)
	m.drains(p4, now)
	pass(15)
	pass(15)
	if !m.quiet(p4) {
		t.Error("our own probes count as traffic")
	}
}

// TestWhatIf: it says what would become of the prefixes, and changes nothing.
func TestWhatIf(t *testing.T) {
	r := newRig(t)
	r.step(t, 0)
	r.step(t, time.Second)
	sent := r.speaker.sets
	out, err := r.loop.whatIf(r.in, map[edge.ProbeID]edge.ProbeState{"web": edge.Down})
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range out.Then {
		if d.Rung != edge.Leaving || !strings.Contains(string(d.Reason), "web is down: assumed") || out.Now[i].Rung != edge.Announced {
			t.Errorf("then %+v, now %+v", d, out.Now[i])
		}
	}
	if len(out.Notes) != 2 || !strings.Contains(out.Notes[0], "1 other site must promise to stay, 2 announce it now") {
		t.Errorf("notes %q", out.Notes)
	}
	if r.loop.last[p4].Rung != edge.Announced || r.speaker.sets != sent || r.guard.wishes[p4].Want {
		t.Error("it has changed something")
	}
	r.step(t, time.Second)
	r.want(t, edge.Announced, true)
	r.in.others = func(netip.Prefix) int { return 0 }
	if out, _ = r.loop.whatIf(r.in, map[edge.ProbeID]edge.ProbeState{"web": edge.Down}); !strings.Contains(strings.Join(out.Notes, ""), "last resort") {
		t.Errorf("notes %q", out.Notes)
	}
	if _, err := r.loop.whatIf(r.in, map[edge.ProbeID]edge.ProbeState{"nothing": edge.Down}); err == nil || !strings.Contains(err.Error(), "no probe nothing") {
		t.Errorf("an unknown probe: %v", err)
	}
}
