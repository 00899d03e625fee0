package health

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
)

var (
	prefixA = netip.MustParsePrefix("198.51.100.0/24")
	prefixB = netip.MustParsePrefix("198.51.100.128/25")
	prefix6 = netip.MustParsePrefix("2001:db8:1::/48")
)

// fleet is the graph of the tests:
//
//	every prefix    proxy hard, regions soft
//	prefixA         extra soft
//	service web     in prefixA: serving hard = all(web-vip, proxy)
//	service api     in prefixB: quorum hard = 2 of (b1, b2, b3)
//	service dns6    in prefix6: either soft = any(d1, quorum)
func fleet() *edge.Config {
	return &edge.Config{Fleet: edge.Fleet{
		Prefixes: []edge.Prefix{{Net: prefixA, Needs: []edge.Need{{On: "extra", Class: edge.Soft}}}, {Net: prefixB}, {Net: prefix6}},
		Services: []edge.Service{
			{ID: "web", VIP: netip.MustParseAddrPort("198.51.100.10:443"), Needs: []edge.Need{{On: "serving", Class: edge.Hard}}},
			{ID: "api", VIP: netip.MustParseAddrPort("198.51.100.200:443"), Needs: []edge.Need{{On: "quorum", Class: edge.Hard}}},
			{ID: "dns6", VIP: netip.MustParseAddrPort("[2001:db8:1::5]:53"), Needs: []edge.Need{{On: "either", Class: edge.Soft}}},
			{ID: "lost", VIP: netip.MustParseAddrPort("203.0.113.1:1"), Needs: []edge.Need{{On: "nowhere", Class: edge.Hard}}},
		},
		Health: edge.HealthConfig{
			Needs: []edge.Need{{On: "proxy", Class: edge.Hard}, {On: "regions", Class: edge.Soft}},
			Groups: []edge.Group{
				{ID: "serving", Mode: edge.All, Of: []edge.ProbeID{"web-vip", "proxy"}},
				{ID: "quorum", Mode: edge.AtLeast, K: 2, Of: []edge.ProbeID{"b1", "b2", "b3"}},
				{ID: "either", Mode: edge.Any, Of: []edge.ProbeID{"d1", "quorum"}},
			},
		},
	}}
}

var allIDs = []edge.ProbeID{"proxy", "regions", "extra", "web-vip", "b1", "b2", "b3", "d1"}

// statuses has every probe up except those of down and unknown.
func statuses(down, unknown string) []edge.Status {
	var out []edge.Status
	for _, id := range allIDs {
		s := edge.Status{Probe: id, State: edge.Up, LastRun: time.Unix(1, 0)}
		switch {
		case strings.Contains(" "+down+" ", " "+string(id)+" "):
			s.State, s.LastErr = edge.Down, "err-"+string(id)
		case strings.Contains(" "+unknown+" ", " "+string(id)+" "):
			s.State, s.LastRun = edge.Unknown, time.Time{}
		}
		out = append(out, s)
	}
	return out
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	type want struct {
		h edge.Health
		r edge.Reason
	}
	fine := want{edge.Healthy, ""}
	proxy := want{edge.Sick, "proxy is down: err-proxy"}
	regions := want{edge.HealthDegraded, "regions is down: err-regions"}
	noRegions := want{edge.Healthy, "regions is unknown: it has not run yet (counts as no failure)"}
	for _, c := range []struct {
		name, down, unknown string
		a, b, six           want
	}{
		{"all up", "", "", fine, fine, fine},
		{"a hard need of all", "proxy", "", proxy, proxy, proxy},
		{"a soft need of all", "regions", "", regions, regions, regions},
		{"a soft need unknown", "", "regions", noRegions, noRegions, noRegions},
		{"a soft need of one prefix", "extra", "", want{edge.HealthDegraded, "extra is down: err-extra"}, fine, fine},
		{"a service's, through a group", "web-vip", "", want{edge.Sick, "serving → web-vip is down: err-web-vip"}, fine, fine},
		{"both members: the shared root is named once", "web-vip proxy", "",
			want{edge.Sick, "proxy is down: err-proxy; serving → web-vip is down: err-web-vip"}, proxy, proxy},
		{"hard beats soft", "web-vip regions", "", want{edge.Sick, "serving → web-vip is down: err-web-vip"}, regions, regions},
		{"two soft", "extra regions", "", want{edge.HealthDegraded, "regions is down: err-regions; extra is down: err-extra"}, regions, regions},
		{"soft down, soft unknown", "extra", "regions",
			want{edge.HealthDegraded, "extra is down: err-extra; regions is unknown: it has not run yet (counts as no failure)"}, noRegions, noRegions},
		{"hard unknown", "", "web-vip", want{edge.HealthUnknown, "serving → web-vip is unknown: it has not run yet"}, fine, fine},
		{"hard unknown beats soft down", "extra", "web-vip", want{edge.HealthUnknown, "serving → web-vip is unknown: it has not run yet"}, fine, fine},
		{"hard down beats hard unknown", "proxy", "web-vip", proxy, proxy, proxy},
		{"1 of 3 down, 2 needed", "b1", "", fine, fine, fine},
		{"2 of 3 down, 2 needed", "b1 b3", "", fine, want{edge.Sick, "quorum → b1 is down: err-b1; quorum → b3 is down: err-b3"}, fine},
		{"1 down, 1 unknown: it depends", "b1", "b2", fine, want{edge.HealthUnknown, "quorum → b2 is unknown: it has not run yet"}, fine},
		{"2 down, 1 unknown: down whatever", "b1 b2", "b3", fine, want{edge.Sick, "quorum → b1 is down: err-b1; quorum → b2 is down: err-b2"}, fine},
		{"1 unknown, 2 up: up whatever", "", "b3", fine, fine, fine},
		{"any: one is enough", "d1", "", fine, fine, fine},
		{"any: none left, nested", "d1 b1 b2", "", fine, want{edge.Sick, "quorum → b1 is down: err-b1; quorum → b2 is down: err-b2"},
			want{edge.HealthDegraded, "either → d1 is down: err-d1; either → quorum → b1 is down: err-b1; either → quorum → b2 is down: err-b2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Evaluate(fleet(), statuses(c.down, c.unknown), View{})
			for p, cond := range got { // TestSeverity has it
				if (cond.Health == edge.Sick) != (cond.Severity > 0) || cond.Doubtful {
					t.Errorf("%s: %+v", p, cond)
				}
				cond.Severity = 0
				got[p] = cond
			}
			exp := map[netip.Prefix]edge.Condition{
				prefixA: {Health: c.a.h, Reason: c.a.r},
				prefixB: {Health: c.b.h, Reason: c.b.r},
				prefix6: {Health: c.six.h, Reason: c.six.r},
			}
			if d := cmp.Diff(exp, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
				t.Error(d)
			}
		})
	}
}

// lone is the view of a site that is alone with whatever is down at it.
var lone = View{Now: time.Unix(1000, 0), Others: func(edge.ProbeID) Others { return Others{Up: 9, Roster: 9, Since: time.Unix(1, 0)} }}

// one evaluates a single prefix that needs g hard.
func one(groups []edge.Group, s ...edge.Status) edge.Condition {
	c := &edge.Config{Fleet: edge.Fleet{
		Prefixes: []edge.Prefix{{Net: prefixA}},
		Health:   edge.HealthConfig{Groups: groups, Needs: []edge.Need{{On: "g", Class: edge.Hard}}},
	}}
	return Evaluate(c, s, lone)[prefixA]
}

// TestEvaluateMistakes: what Parse should have refused takes no site down.
func TestEvaluateMistakes(t *testing.T) {
	t.Parallel()
	down := edge.Status{Probe: "p", State: edge.Down, LastErr: "e"}
	for name, c := range map[string]struct {
		groups []edge.Group
		health edge.Health
		reason edge.Reason
	}{
		"no such probe":    {nil, edge.HealthUnknown, "g is unknown: there is no such probe here"},
		"depends on self":  {[]edge.Group{{ID: "g", Mode: edge.All, Of: []edge.ProbeID{"g"}}}, edge.HealthUnknown, "g → g is unknown: it depends on itself"},
		"a longer cycle":   {[]edge.Group{{ID: "g", Mode: edge.Any, Of: []edge.ProbeID{"h"}}, {ID: "h", Mode: edge.All, Of: []edge.ProbeID{"g"}}}, edge.HealthUnknown, "g → h → g is unknown: it depends on itself"},
		"more than it has": {[]edge.Group{{ID: "g", Mode: edge.AtLeast, K: 2, Of: []edge.ProbeID{"p"}}}, edge.HealthUnknown, "g is unknown: it needs 2 of 1 members"},
		"any of nothing":   {[]edge.Group{{ID: "g", Mode: edge.Any}}, edge.HealthUnknown, "g is unknown: it needs 1 of 0 members"},
		"all of nothing":   {[]edge.Group{{ID: "g", Mode: edge.All}}, edge.Healthy, ""},
	} {
		if got := one(c.groups, down); got.Health != c.health || got.Reason != c.reason {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := Evaluate(&edge.Config{}, nil, View{}); len(got) != 0 {
		t.Errorf("no prefixes: %v", got)
	}
}

func TestReasonIsBounded(t *testing.T) {
	t.Parallel()
	g := edge.Group{ID: "g", Mode: edge.All}
	var s []edge.Status
	for i := range 100 {
		id := edge.ProbeID(fmt.Sprintf("p%02d", i))
		g.Of = append(g.Of, id)
		s = append(s, edge.Status{Probe: id, State: edge.Down, LastErr: "e"})
	}
	want := edge.Reason("g → p00 is down: e; g → p01 is down: e; g → p02 is down: e; g → p03 is down: e; and 96 more")
	if got := one([]edge.Group{g}, s...); got.Reason != want {
		t.Errorf("reason %q", got.Reason)
	}
}

// TestEvaluateProperties, over random graphs and states:
//   - no hard need can be down: never sick;
//   - monotone: a probe that goes from down to up never makes a prefix worse;
//   - unknown is honest: whatever a definite answer is, it stays the same
//     whichever way the unknown probes turn out;
//   - the order of the statuses does not matter.
func TestEvaluateProperties(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		c, s := randomGraph(rnd)
		base := Evaluate(c, s, lone)[prefixA]
		rnd.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
		if got := Evaluate(c, s, lone)[prefixA]; got != base {
			t.Fatalf("seed %d: order matters: %+v, %+v", seed, got, base)
		}
		if (base.Health == edge.Healthy) != (base.Reason == "" || strings.Contains(string(base.Reason), "counts as no failure")) && base.Health != edge.HealthDegraded && base.Health != edge.HealthFull {
			t.Fatalf("seed %d: %+v", seed, base)
		}
		for i := range s {
			was := s[i].State
			// A soft group that is unknown counts as no failure, so that to know
			// that it is full can be worse.
			if was == edge.Down && (known(s) || !has(s, edge.Full)) || was == edge.Full && known(s) {
				s[i].State = edge.Up
				if was == edge.Down && known(s) && rnd.IntN(2) == 0 {
					s[i].State = edge.Full
				}
				if better := Evaluate(c, s, lone)[prefixA]; worse(better.Health, base.Health) {
					t.Fatalf("seed %d: %s up: from %+v to %+v", seed, s[i].Probe, base, better)
				}
			}
			s[i].State = was
		}
		resolved := Evaluate(c, resolve(rnd, s), lone)[prefixA]
		if base.Health == edge.Sick && resolved.Health != edge.Sick {
			t.Fatalf("seed %d: sick by an unknown probe: %+v, then %+v", seed, base, resolved)
		}
		if !hasShared(c) && base.Health != edge.Sick && base.Health != edge.HealthUnknown && resolved.Health == edge.Sick {
			t.Fatalf("seed %d: a hard unknown was taken for up: %+v, then %+v", seed, base, resolved)
		}
	}
}

func has(s []edge.Status, state edge.ProbeState) bool {
	return slices.ContainsFunc(s, func(s edge.Status) bool { return s.State == state })
}

func known(s []edge.Status) bool { return !has(s, edge.Unknown) }

// hasShared: an unknown shared need counts as no failure, even where it can be
// this site's own fault.
func hasShared(c *edge.Config) bool {
	return slices.ContainsFunc(c.Fleet.Health.Needs, func(n edge.Need) bool { return n.Class == edge.Shared })
}

// worse says whether a is worse than b; unknown can be compared with neither.
func worse(a, b edge.Health) bool {
	return a != edge.HealthUnknown && b != edge.HealthUnknown && a > b
}

func resolve(rnd *rand.Rand, s []edge.Status) []edge.Status {
	out := append([]edge.Status(nil), s...)
	for i := range out {
		if out[i].State == edge.Unknown {
			out[i].State = edge.Up + edge.ProbeState(rnd.IntN(3))
		}
	}
	return out
}

func randomGraph(rnd *rand.Rand) (*edge.Config, []edge.Status) {
	var names []edge.ProbeID
	var s []edge.Status
	for i := range 2 + rnd.IntN(6) {
		id := edge.ProbeID(fmt.Sprintf("p%d", i))
		names = append(names, id)
		s = append(s, edge.Status{Probe: id, State: edge.ProbeState(rnd.IntN(4)), LastErr: "e"})
	}
	c := &edge.Config{Fleet: edge.Fleet{Prefixes: []edge.Prefix{{Net: prefixA}}}}
	for i := range rnd.IntN(5) {
		g := edge.Group{ID: edge.ProbeID(fmt.Sprintf("g%d", i)), Mode: []edge.GroupMode{edge.All, edge.Any, edge.AtLeast}[rnd.IntN(3)]}
		for _, n := range rnd.Perm(len(names))[:1+rnd.IntN(len(names))] {
			g.Of = append(g.Of, names[n])
		}
		g.K = 1 + rnd.IntN(len(g.Of))
		c.Fleet.Health.Groups = append(c.Fleet.Health.Groups, g)
		names = append(names, g.ID)
	}
	for range 1 + rnd.IntN(4) {
		n := edge.Need{On: names[rnd.IntN(len(names))], Class: []edge.NeedClass{edge.Hard, edge.Soft, edge.Shared}[rnd.IntN(3)]}
		c.Fleet.Health.Needs = append(c.Fleet.Health.Needs, n)
	}
	return c, s
}

// TestShared: a shared dependency that is down counts as this site's own fault
// only if others are known to be without that fault, and few have it.
func TestShared(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for _, tt := range []struct {
		name   string
		down   time.Duration
		others *Others // nil: nothing is known
		health edge.Health
		reason string
	}{
		{"alone with it", 10 * time.Second, &Others{Up: 9, Roster: 9}, edge.Sick, "p is down: e"},
		{"not for long", 10*time.Second - 1, &Others{Up: 9, Roster: 9}, edge.HealthDegraded, "not held against this site in the first 10s"},
		{"the others have just recovered", time.Hour, &Others{Up: 9, Roster: 9, Since: now.Add(1 - 10*time.Second)}, edge.HealthDegraded, "not held against this site in the first 10s"},
		{"the others have recovered a while ago", time.Hour, &Others{Up: 9, Roster: 9, Since: now.Add(-10 * time.Second)}, edge.Sick, "p is down: e"},
		{"nothing is known", time.Hour, nil, edge.HealthDegraded, "only 0 of 0 other sites"},
		{"nobody is heard", time.Hour, &Others{Roster: 9}, edge.HealthDegraded, "only 0 of 9 other sites"},
		{"half are heard", time.Hour, &Others{Up: 4, Roster: 8}, edge.HealthDegraded, "only 4 of 8 other sites"},
		{"more than half are", time.Hour, &Others{Up: 5, Roster: 8}, edge.Sick, "p is down: e"},
		{"another has it", time.Hour, &Others{Up: 2, Down: 1, Roster: 3}, edge.HealthDegraded, "down at 1 of 3 other sites too"},
		{"one other of many has it", time.Hour, &Others{Up: 8, Down: 1, Roster: 9}, edge.Sick, "p is down: e"},
		{"three of ten have it", time.Hour, &Others{Up: 7, Down: 2, Roster: 9}, edge.HealthDegraded, "down at 2 of 9 other sites too"},
		{"all have it", time.Hour, &Others{Down: 9, Roster: 9}, edge.HealthDegraded, "down at 9 of 9"},
		{"of two sites, the other has not", time.Hour, &Others{Up: 1, Roster: 1}, edge.Sick, "p is down: e"},
	} {
		view := View{Now: now}
		if tt.others != nil {
			view.Others = func(edge.ProbeID) Others {
				o := *tt.others
				if o.Fine() && o.Since.IsZero() {
					o.Since = time.Unix(1, 0)
				}
				return o
			}
		}
		c := &edge.Config{Fleet: edge.Fleet{
			Prefixes: []edge.Prefix{{Net: prefixA}},
			Health:   edge.HealthConfig{Needs: []edge.Need{{On: "p", Class: edge.Shared}}},
		}}
		s := []edge.Status{{Probe: "p", State: edge.Down, LastErr: "e", Since: now.Add(-tt.down)}}
		got := Evaluate(c, s, view)[prefixA]
		if got.Health != tt.health || !strings.Contains(string(got.Reason), tt.reason) {
			t.Errorf("%s: %+v, want %s with %q", tt.name, got, tt.health, tt.reason)
		}
		// A slow probe gets the time to see that it is up again.
		c.Fleet.Health.Probes = []edge.Probe{{ID: "p", Interval: 20 * time.Minute, Timeout: time.Minute, Rise: 2}}
		if got := Evaluate(c, s, view)[prefixA]; got.Health != edge.HealthDegraded {
			t.Errorf("%s, with a slow probe: %+v", tt.name, got)
		}
		if shared := SharedStates(c, s); len(shared) != 1 || shared["p"] != edge.Down {
			t.Errorf("%s: the others are told %v", tt.name, shared)
		}
	}
}

// TestFull: a full member keeps a group alive, and shows through unless enough
// others have room.
func TestFull(t *testing.T) {
	t.Parallel()
	state := map[byte]edge.ProbeState{'u': edge.Up, 'f': edge.Full, 'd': edge.Down, '?': edge.Unknown}
	for _, tt := range []struct {
		states string
		mode   edge.GroupMode
		k      int
		want   edge.Health
	}{
		{"uuu", edge.All, 0, edge.Healthy},
		{"ufu", edge.All, 0, edge.HealthFull},
		{"fd", edge.All, 0, edge.Sick},
		{"f?", edge.All, 0, edge.HealthUnknown},
		{"uf", edge.Any, 0, edge.Healthy},
		{"fd", edge.Any, 0, edge.HealthFull},
		{"f?", edge.Any, 0, edge.HealthUnknown},
		{"dd", edge.Any, 0, edge.Sick},
		{"uufd", edge.AtLeast, 2, edge.Healthy},
		{"ufdd", edge.AtLeast, 2, edge.HealthFull},
		{"fddd", edge.AtLeast, 2, edge.Sick},
		{"uf?d", edge.AtLeast, 2, edge.HealthUnknown},
		{"ff?d", edge.AtLeast, 2, edge.HealthFull},
	} {
		g := edge.Group{ID: "g", Mode: tt.mode, K: tt.k}
		var s []edge.Status
		for i := range tt.states {
			id := edge.ProbeID(fmt.Sprintf("p%d", i))
			g.Of = append(g.Of, id)
			s = append(s, edge.Status{Probe: id, State: state[tt.states[i]], LastErr: "e"})
		}
		if got := one([]edge.Group{g}, s...); got.Health != tt.want {
			t.Errorf("%s of %q (k %d): %+v, want %s", tt.mode, tt.states, tt.k, got, tt.want)
		}
	}
}

func TestTracker(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	var tr Tracker
	for i, c := range []struct {
		health edge.Health
		reason edge.Reason
		since  int
	}{
		{edge.HealthUnknown, "", 0},
		{edge.Healthy, "", 1},
		{edge.Healthy, "", 1},
		{edge.Sick, "a", 3},
		{edge.Sick, "b", 3}, // another reason is no other health
		{edge.Healthy, "", 5},
	} {
		in := map[netip.Prefix]edge.Condition{prefixA: {Health: c.health, Reason: c.reason}}
		got := tr.Update(at(i), in)[prefixA]
		if got.Since != at(c.since) || got.Reason != c.reason || got.Health != c.health {
			t.Errorf("step %d: %+v", i, got)
		}
		if !in[prefixA].Since.IsZero() {
			t.Errorf("step %d: the argument was changed", i)
		}
	}
	tr.Update(at(10), nil)
	if got := tr.Update(at(11), map[netip.Prefix]edge.Condition{prefixA: {Health: edge.Healthy}}); got[prefixA].Since != at(11) {
		t.Errorf("a prefix that came back: %+v", got)
	}
}
