package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/figure"
	"github.com/catchment-dev/edge/test/lab"
)

func TestMain(m *testing.M) {
	lab.Janitor()
	goleak.VerifyTestMain(m)
}

// TestFloor is the short form of what the command does: one site leaves alone, all
// break under a cut, all break without one. Then one is forced out, and that must be
// seen.
func TestFloor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	bin := t.TempDir()
	// Without the race detector, which the end to end test has: it would take more than
	// two cores to run 27 daemons, and what starves gets no promises in time.
	if err := lab.Build(ctx, bin, false); err != nil {
		t.Fatal(err)
	}
	r, err := newRig(ctx, bin, ordinary())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Log(timeline(r.book.changes()), r.lab.Logs(30))
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	alone := func(t *testing.T) { leavesInTime(ctx, t, r) }
	cut := func(t *testing.T) {
		o, err := r.play(ctx, round{n: 1, kind: trusted, after: spread(r.names()), cut: &cut{
			shape: split, sides: [][]string{{"a", "d", "g", "h"}, {"b", "c", "e", "f", "i"}}, at: breakAt - time.Second,
		}})
		t.Log(o.line(len(r.sites)))
		if err != nil || len(o.wrong) > 0 || len(o.losses) < 2*3 || o.ignored == 0 {
			t.Fatalf("%v\n%s", err, strings.Join(o.wrong, "\n"))
		}
	}
	forced := func(t *testing.T) {
		before, after, err := r.force(ctx, round{kind: distinct, after: spread(r.names())})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(before.line(len(r.sites)))
		if len(before.wrong) > 0 || before.lowest(len(r.sites)) != floor || len(before.losses) < 2*6 {
			t.Errorf("before the force: %s", strings.Join(before.wrong, "\n"))
		}
		if text := strings.Join(after.wrong, "\n"); after.lowest(len(r.sites)) != floor-1 || strings.Count(text, "below the floor") != len(prefixes()) || !strings.Contains(text, "no round of the guard permitted it") {
			t.Errorf("a site is forced out, and what is seen of it is %q", text)
		}
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{{"one site leaves alone", alone}, {"all break under a cut", cut}, {"one is forced out", forced}} {
		if !t.Run(part.name, part.run) {
			return // the rest would only show consequences
		}
	}
}

// leavesInTime tries again if it took too long: a machine that starves is not what is
// tested.
func leavesInTime(ctx context.Context, t *testing.T, r *rig) {
	for _, s := range r.sites[4:7] {
		a, err := r.single(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(a)
		if a.detected <= 0 || a.asked <= a.detected || a.gone <= a.asked {
			t.Fatalf("the times are not in their order: %+v", a)
		}
		if a.gone-a.detected <= goneWithin {
			return
		}
	}
	t.Errorf("not once within %s", goneWithin)
}

// spread breaks the sites one after the other.
func spread(sites []string) map[string]time.Duration {
	out := map[string]time.Duration{}
	for i, s := range sites {
		out[s] = time.Duration(i) * breakWithin / time.Duration(len(sites))
	}
	return out
}

// page makes changes of lines "MILLISECONDS SITE 4|6 +|-", after all sites are there.
func page(sites []string, lines ...string) []change {
	var out []change
	for _, s := range sites {
		for _, p := range prefixes() {
			out = append(out, change{time.UnixMilli(0), s, p, true})
		}
	}
	for _, l := range lines {
		var ms int64
		var s, family, what string
		if _, err := fmt.Sscan(l, &ms, &s, &family, &what); err != nil {
			panic(err)
		}
		out = append(out, change{time.UnixMilli(ms), s, prefixes()[map[string]int{"4": 0, "6": 1}[family]], what == "+"})
	}
	return out
}

func TestJudge(t *testing.T) {
	sites := []string{"a", "b", "c", "d", "e"}
	for name, c := range map[string]struct {
		lines  []string
		told   map[string]int
		lowest int
		wrong  []string
	}{
		"nothing":      {nil, nil, 5, nil},
		"to the floor": {[]string{"10 a 4 -", "20 b 4 -"}, map[string]int{"a": 1, "b": 1}, 3, nil},
		"families are two fleets": {
			[]string{"10 a 4 -", "20 b 4 -", "30 c 6 -", "31 d 6 -"}, map[string]int{"a": 1, "b": 1, "c": 1, "d": 1}, 3, nil,
		},
		"below":              {[]string{"10 a 4 -", "20 b 4 -", "30 c 4 -"}, map[string]int{"a": 1, "b": 1, "c": 1}, 2, []string{"below the floor of 3: 01:00:00.030 c"}},
		"below for a moment": {[]string{"10 a 4 -", "20 b 4 -", "30 c 4 -", "31 c 4 +"}, map[string]int{"a": 1, "b": 1, "c": 1}, 2, []string{"below the floor"}},
		"one in, one out":    {[]string{"10 a 4 -", "20 b 4 -", "30 a 4 +", "31 c 4 -"}, map[string]int{"a": 1, "b": 1, "c": 1}, 3, nil},
		"one out, one in":    {[]string{"10 a 4 -", "20 b 4 -", "30 c 4 -", "31 a 4 +"}, map[string]int{"a": 1, "b": 1, "c": 1}, 2, []string{"below the floor"}},
		"told out of order":  {[]string{"20 b 4 -", "31 c 4 -", "10 a 4 -", "30 a 4 +"}, map[string]int{"a": 1, "b": 1, "c": 1}, 3, nil},
		"replaced":           {[]string{"10 a 6 -", "20 b 6 -", "30 c 6 -", "31 c 6 +"}, map[string]int{"a": 1, "b": 1}, 3, nil},
		"not replaced":       {[]string{"10 a 6 -", "20 b 6 -", "30 c 6 -", "32 c 6 +", "40 c 6 -", "41 c 6 +"}, map[string]int{"a": 1, "b": 1, "c": 1}, 2, []string{"below the floor of 3: 01:00:00.030 c"}},
		"hidden":             {[]string{"10 a 6 -"}, map[string]int{"a": 2}, 4, []string{"site a was told 2 withdrawals, and its kernel lost the routes 1 times"}},
		"not told":           {[]string{"10 a 6 -"}, nil, 4, []string{"site a was told 0 withdrawals, and its kernel lost the routes 1 times"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &outcome{round: round{cut: &cut{shape: bridge}}} // else each loss needs a round of the guard
			o.judge(sites, page(sites, c.lines...), c.told)
			same(t, o, c.lowest, c.wrong)
		})
	}
}

func same(t *testing.T, o *outcome, lowest int, wrong []string) {
	t.Helper()
	if got := o.lowest(5); got != lowest || len(o.wrong) != len(wrong) {
		t.Fatalf("lowest %d, wrong %q; want %d, %q", got, o.wrong, lowest, wrong)
	}
	for i, w := range wrong {
		if !strings.Contains(o.wrong[i], strings.ReplaceAll(w, "01:00:00.030", time.UnixMilli(30).Format("15:04:05.000"))) {
			t.Errorf("got %q, want %q", o.wrong[i], w)
		}
	}
}

// TestJudgeRounds: five sites, of which a, b, c and d hear each other.
func TestJudgeRounds(t *testing.T) {
	sites := []string{"a", "b", "c", "d", "e"}
	round := func(opened, closed int64, promised ...edge.NodeID) []edge.GuardDecision {
		at := func(ms int64) time.Time { return time.UnixMilli(ms) }
		return []edge.GuardDecision{
			{Prefix: prefixes()[1], Left: true, Opened: at(150), Time: at(210)},
			{Prefix: prefixes()[0], Left: false, Opened: at(150), Time: at(210)},
			{Prefix: prefixes()[0], Left: true, Opened: at(opened), Time: at(closed), Promised: promised},
		}
	}
	three := []edge.NodeID{"b1", "c1", "d1"}
	for name, c := range map[string]struct {
		shape   shape // empty: no cut
		lines   []string
		said    []edge.GuardDecision
		excused int
		wrong   []string
	}{
		"promised":              {"", []string{"200 a 4 -"}, round(150, 210, three...), 0, nil},
		"too few have promised": {"", []string{"200 a 4 -"}, round(150, 210, "b1", "c1"), 0, []string{"promised by [b1 c1], of which [] have gone"}},
		"one of them has gone":  {bridge, []string{"80 b 4 -", "200 a 4 -"}, round(150, 210, three...), 0, []string{"promised by [b1 c1 d1], of which [b] have gone"}},
		"long ago":              {bridge, []string{"80 b 4 -", "9000 a 4 -"}, round(150, 9010, three...), 0, nil},
		"no round":              {"", []string{"200 a 4 -"}, nil, 0, []string{"no round of the guard permitted it"}},
		"as many as must":       {split, []string{"200 a 4 -"}, round(150, 210, three...), 0, nil},
		"one too many":          {split, []string{"80 b 4 -", "200 a 4 -"}, round(150, 210, "c1", "d1", "e1"), 0, []string{"on its side of the cut, where 2 stay"}},
		"alone":                 {oneWay, []string{"200 e 4 -"}, round(150, 210, three...), 0, []string{"on its side of the cut, where 0 stay"}},
		"by an older promise":   {split, []string{"200 e 4 -"}, round(90, 210, three...), 1, nil},
		"no sides":              {bridge, []string{"200 e 4 -"}, round(150, 210, three...), 0, nil},
		"before the cut":        {split, []string{"95 e 4 -"}, nil, 0, nil},
		"after the cut":         {split, []string{"305 e 4 -"}, nil, 0, nil},
		"by a round that ended": {split, []string{"200 a 4 -"}, round(-2000, -1000, three...), 0, []string{"no round of the guard permitted it"}},
		"by one to come":        {split, []string{"200 a 4 -"}, round(220, 250, three...), 0, []string{"no round of the guard permitted it"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &outcome{cutAt: time.UnixMilli(100), healedAt: time.UnixMilli(300), said: map[string][]edge.GuardDecision{"a": c.said, "e": c.said}}
			if c.shape != "" {
				o.cut = &cut{shape: c.shape, sides: [][]string{{"a", "b", "c", "d"}, {"e"}}}
			}
			told := map[string]int{}
			for _, l := range c.lines {
				told[strings.Fields(l)[1]]++
			}
			o.judge(sites, page(sites, c.lines...), told)
			same(t, o, 5-len(c.lines), c.wrong)
			if o.excused != c.excused {
				t.Errorf("%d are excused, want %d", o.excused, c.excused)
			}
		})
	}
}

func TestDraw(t *testing.T) {
	sites := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}
	seen := map[string]bool{}
	for n := range 2000 {
		r := draw(7, n, sites)
		seen[string(r.kind)] = true
		for _, after := range r.after {
			if after < 0 || after >= breakWithin {
				t.Fatalf("%s: a site breaks after %s", r, after)
			}
		}
		if len(r.after) != len(sites) || (r.cut != nil) != (n%2 == 1) {
			t.Fatalf("%s: %d sites break", r, len(r.after))
		}
		if r.cut == nil {
			continue
		}
		var all, sizes []string
		for _, side := range r.cut.sides {
			all, sizes = append(all, side...), append(sizes, fmt.Sprint(len(side)))
		}
		if slices.Sort(all); !slices.Equal(all, sites) || slices.Contains(sizes, "0") {
			t.Fatalf("%s: not a partition", r)
		}
		seen[string(r.cut.shape)] = true
		if r.cut.shape != bridge {
			seen[strings.Join(sizes, "/")] = true
		}
	}
	for _, want := range []string{"distinct", "trusted", "suspect", "split", "one-way", "bridge", "1/8", "2/7", "3/6", "4/5"} {
		if !seen[want] {
			t.Errorf("%s is never drawn", want)
		}
	}
	if a, b := draw(7, 3, sites), draw(7, 3, sites); a.String() != b.String() || a.String() == draw(8, 3, sites).String() {
		t.Error("a seed is not what a round is drawn from")
	}
}

func TestDeaf(t *testing.T) {
	sides := [][]string{{"a"}, {"b"}, {"c"}}
	for _, c := range []struct {
		cut  cut
		want string // who is deaf to whom
	}{
		{cut{shape: split, sides: sides[:2]}, "ab ba"},
		{cut{shape: oneWay, sides: sides[:2]}, "ab"},
		{cut{shape: bridge, sides: sides}, "ab ba"},
	} {
		var got []string
		for _, a := range []string{"a", "b", "c"} {
			for _, b := range []string{"a", "b", "c"} {
				if c.cut.deaf(a, b) {
					got = append(got, a+b)
				}
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", c.cut.shape, got, c.want)
		}
	}
}

func TestReport(t *testing.T) {
	at := time.Unix(0, 0)
	lost := func(stay int) loss { return loss{change{at, "a", netip.Prefix{}, false}, make([]string, stay)} }
	rep := &report{sites: 9, rounds: []*outcome{
		{round: round{kind: distinct}, losses: []loss{lost(8), lost(3)}, settled: time.Second},
		{round: round{kind: trusted, cut: &cut{}}, losses: []loss{lost(2)}, ignored: 7, wrong: []string{"below"}},
	}, singles: []alone{{"a", time.Second, 2 * time.Second, 2500 * time.Millisecond}}}
	path := filepath.Join(t.TempDir(), "bench", "floor.json")
	if err := rep.write(path); err != nil {
		t.Fatal(err)
	}
	got, err := figure.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []figure.Figure{
		{Name: "lowest", Value: 2, Unit: "sites", Against: "floor", Ratio: 2. / 3}, {Name: "below_floor", Value: 1, Unit: "withdrawals"}, {Name: "wrong", Value: 1, Unit: "findings"},
		{Name: "rounds", Value: 2, Unit: "rounds"}, {Name: "rounds_cut", Value: 1, Unit: "rounds"}, {Name: "cut_dropped", Value: 7, Unit: "packets"},
		{Name: "withdrawals", Value: 3, Unit: "routes"},
		{Name: "all_left", Value: 1, Unit: "s"}, {Name: "all_left_worst", Value: 1, Unit: "s"},
		{Name: "one_detected", Value: 1, Unit: "s"}, {Name: "one_detected_worst", Value: 1, Unit: "s"},
		{Name: "one_asked", Value: 1, Unit: "s"}, {Name: "one_asked_worst", Value: 1, Unit: "s"},
		{Name: "one_gone", Value: 1.5, Unit: "s", Against: "aim", Ratio: 0.75}, {Name: "one_gone_worst", Value: 1.5, Unit: "s", Against: "aim", Ratio: 0.75},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

// TestEdit: what the template says may have changed, and the check be gone.
func TestEdit(t *testing.T) {
	yaml := "hold: 3s\nhold_max: 3s\npromise_lease: 10s\nask_timeout: 1s\nmax_cycles: 100\n      - {on: shared, class: hard}\n" +
		`      - {name: shared, kind: http, url: "http://10.30.0.2:8080/healthz", body: ok}` + "\n"
	want := "hold: 1s\nhold_max: 1s\npromise_lease: 5s\n    sick_drain_time: 0s\nask_timeout: 2s\nmax_cycles: 1000\n      - {on: shared, class: hard}\n      - {on: own, class: hard}\n" +
		`      - {name: shared, kind: http, url: "http://10.30.0.2:8080/healthz", body: ok}` + "\n" +
		`      - {name: own, kind: http, url: "http://10.30.0.2:8080/healthz/a1", body: ok}` + "\n"
	if got := edit("a1", yaml, hasty()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
