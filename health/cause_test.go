package health

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

const webVIP = edge.Cause("web-vip#00000000@serving")

// jury has a witness for each word, "SITE:SECONDS" failing for so long, "SITE" well,
// "SITE:SECONDS!" or "SITE!" the same and not heard of since.
func jury(sites, words string) Jury {
	var j Jury
	for _, s := range strings.Fields(sites) {
		j.Sites = append(j.Sites, edge.SiteID(s))
	}
	for _, word := range strings.Fields(words) {
		w := Witness{Heard: !strings.HasSuffix(word, "!"), Fails: map[edge.Cause]time.Duration{}}
		site, age, fails := strings.Cut(strings.TrimSuffix(word, "!"), ":")
		w.Site = edge.SiteID(site)
		if fails {
			d, err := time.ParseDuration(age + "s")
			if err != nil {
				panic(err)
			}
			w.Fails[webVIP] = d
		}
		j.Witnesses = append(j.Witnesses, w)
	}
	return j
}

// TestJury: a check is suspect if more than two sites, and more than 30 %, fail it
// within a minute, and silence counts as failing.
func TestJury(t *testing.T) {
	t.Parallel()
	const six = "a b c d e f"
	for _, c := range []struct {
		sites, words string
		holds, known bool
		says         string
	}{
		{six, "a:1 b c d e f", false, false, "at 1 of 6 sites"},
		{six, "a:1 b:2 c d e f", false, false, "at 2 of 6 sites"},
		{six, "a:1 b:2 c:59 d e f", true, true, "common cause: web-vip at 3 of 6 sites"},
		{six, "a:0 b:2 c:61 d:61 e f", true, true, "at 3 of 6 sites"}, // b, c, d
		{six, "a:1 b:2 c:63 d:64 e f", false, false, "at 2 of 6 sites"},
		{six, "a:0 b:61 c:122 d:183 e:244 f:305", false, false, "at 1 of 6 sites"},
		{six, "a:1", true, false, "at 6 of 6 sites, 5 of them not heard of"},
		{six, "a:1 b c d", true, false, "at 3 of 6 sites, 2 of them not heard of"},
		{six, "a:1 b c d e", false, false, "at 2 of 6 sites, 1 of them not heard of"},
		{six, "a:1 b:1! c d e f", false, false, "at 2 of 6 sites, 1 of them not heard of"},
		{six, "a:1 a:2 a:3 b c d e f", false, false, "at 1 of 6 sites"},
		{six, "a:1 b:2 b c:2 c d e f", true, true, "at 3 of 6 sites"},
		{six, "a:1 b:2! b c:2! c d e f", true, true, "at 3 of 6 sites"}, // a node of each still says well
		{six, "a:1 b:1 x:1 y:1 c d e f", false, false, "at 2 of 6 sites"},
		{"a b c", "a:1 b:1 c", false, false, "at 2 of 3 sites"},
		{"a b c", "a:1 b:1 c:1", true, true, "at 3 of 3 sites"},
		{"a b", "a:1 b:1", false, false, "at 2 of 2 sites"},
		{"a b c d e f g h i j", "a:1 b:1 c:1 d e f g h i j", false, false, "at 3 of 10 sites"}, // 30 %, not more
		{"a b c d e f g h i j", "a:1 b:1 c:1 d:1 e f g h i j", true, true, "at 4 of 10 sites"},
	} {
		s := jury(c.sites, c.words).Try(webVIP)
		if s.Holds() != c.holds || s.Known() != c.known || !strings.HasSuffix(s.String(), c.says) {
			t.Errorf("%s: %t, %t, %s; want %t, %t, %q", c.words, s.Holds(), s.Known(), s, c.holds, c.known, c.says)
		}
	}
	j := jury(six, "a:1 b:2 c:59 d e f")
	j.Trusted = func(id edge.ProbeID) bool { return id == "web-vip" }
	if s := j.Try(webVIP); s.Holds() || s.Known() || !s.Trusted {
		t.Errorf("trusted: %+v", s)
	}
}

// TestJuryIsMonotone: whatever is known, one that fails more, or is silent in
// addition, never makes a check less suspect.
func TestJuryIsMonotone(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(5, 5))
	count := func(s edge.Suspect) int { return len(s.Sites) + len(s.Silent) }
	for range 20000 {
		var j Jury
		for i := range 1 + rnd.IntN(12) {
			id := edge.SiteID(fmt.Sprintf("s%02d", i))
			j.Sites = append(j.Sites, id)
			for range 1 + rnd.IntN(2) {
				w := Witness{Site: id, Heard: rnd.IntN(4) > 0}
				if rnd.IntN(2) == 0 {
					w.Fails = map[edge.Cause]time.Duration{webVIP: time.Duration(rnd.IntN(200)) * time.Second}
				}
				j.Witnesses = append(j.Witnesses, w)
			}
		}
		before := j.Try(webVIP)
		next := j
		next.Witnesses = slices.Clone(j.Witnesses)
		w, what := &next.Witnesses[rnd.IntN(len(j.Witnesses))], ""
		switch {
		case rnd.IntN(2) == 0:
			w.Heard, what = false, "falls silent"
		case w.Fails == nil:
			w.Fails, what = map[edge.Cause]time.Duration{webVIP: time.Duration(rnd.IntN(200)) * time.Second}, "fails"
		default:
			continue
		}
		if after := next.Try(webVIP); count(after) < count(before) || before.Holds() && !after.Holds() {
			t.Fatalf("a node of %s %s: %s becomes %s\n%+v", w.Site, what, before, after, j)
		}
	}
}

// suspecting is a view in which some checks fail elsewhere, by what Try would say.
func suspecting(all map[edge.ProbeID]edge.Suspect) View {
	return View{Now: time.Unix(100, 0), Suspect: func(c edge.Cause) edge.Suspect {
		s := all[c.Check()]
		s.Cause = c
		return s
	}}
}

var (
	fiveFail   = edge.Suspect{Sites: []edge.SiteID{"a", "b", "c", "d", "e"}, Of: 6}
	fiveSilent = edge.Suspect{Sites: []edge.SiteID{"a"}, Silent: []edge.SiteID{"b", "c", "d", "e"}, Of: 6}
	justHere   = edge.Suspect{Sites: []edge.SiteID{"a"}, Of: 6}
)

// TestCommonCause: a suspect check degrades; what fails besides takes the prefix away
// all the same; the reason names it.
func TestCommonCause(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, down, unknown string
		suspects            map[edge.ProbeID]edge.Suspect
		prefix              netip.Prefix
		health              edge.Health
		severity            int
		doubtful            bool
		reason              string
	}{
		{"alone", "web-vip", "", map[edge.ProbeID]edge.Suspect{"web-vip": justHere}, prefixA, edge.Sick, 10, false, "serving → web-vip is down: err-web-vip"},
		{"everywhere", "web-vip", "", map[edge.ProbeID]edge.Suspect{"web-vip": fiveFail}, prefixA, edge.HealthDegraded, 0, false,
			"serving → web-vip is down: err-web-vip (common cause: web-vip at 5 of 6 sites)"},
		{"nobody is heard", "web-vip", "", map[edge.ProbeID]edge.Suspect{"web-vip": fiveSilent}, prefixA, edge.HealthDegraded, 10, true,
			"serving → web-vip is down: err-web-vip (common cause: web-vip at 5 of 6 sites, 4 of them not heard of)"},
		{"everywhere, and another thing here", "web-vip proxy", "", map[edge.ProbeID]edge.Suspect{"web-vip": fiveFail, "proxy": justHere}, prefixA, edge.Sick, 10, false,
			"proxy is down: err-proxy; serving → web-vip is down: err-web-vip"},
		{"two things everywhere", "web-vip proxy", "", map[edge.ProbeID]edge.Suspect{"web-vip": fiveFail, "proxy": fiveFail}, prefixA, edge.HealthDegraded, 0, false, "common cause: proxy at 5 of 6"},
		{"and the rest of the group is unknown", "web-vip", "proxy", map[edge.ProbeID]edge.Suspect{"web-vip": fiveFail}, prefixA, edge.HealthUnknown, 0, false, "proxy is unknown"},
		{"one of the two that break a quorum", "b1 b3", "", map[edge.ProbeID]edge.Suspect{"b1": fiveFail, "b3": justHere}, prefixB, edge.HealthDegraded, 0, false, "b1 is down: err-b1 (common cause: b1 at 5"},
		{"one of three", "b1 b2 b3", "", map[edge.ProbeID]edge.Suspect{"b1": fiveFail, "b2": justHere, "b3": justHere}, prefixB, edge.Sick, 10, false, "quorum → b2 is down"},
		{"a need of all, everywhere", "proxy", "", map[edge.ProbeID]edge.Suspect{"proxy": fiveFail}, prefix6, edge.HealthDegraded, 0, false, "common cause: proxy at 5 of 6 sites"},
		{"a soft one is nobody's cause", "regions", "", map[edge.ProbeID]edge.Suspect{"regions": fiveFail}, prefix6, edge.HealthDegraded, 0, false, "regions is down: err-regions"},
	} {
		got := Evaluate(fleet(), statuses(c.down, c.unknown), suspecting(c.suspects))[c.prefix]
		if got.Health != c.health || got.Severity != c.severity || got.Doubtful != c.doubtful || !strings.Contains(string(got.Reason), c.reason) {
			t.Errorf("%s: %+v, want %s, severity %d, doubtful %t, %q", c.name, got, c.health, c.severity, c.doubtful, c.reason)
		}
	}
	// A shared one has a rule of its own.
	c := fleet()
	c.Fleet.Health.Needs[0].Class = edge.Shared
	v := suspecting(map[edge.ProbeID]edge.Suspect{"proxy": fiveFail})
	if got := Evaluate(c, statuses("proxy", ""), v)[prefix6]; got.Health != edge.HealthDegraded || strings.Contains(string(got.Reason), "common cause") {
		t.Errorf("shared: %+v", got)
	}
	believed := edge.Suspect{Sites: fiveFail.Sites, Of: fiveFail.Of, Trusted: true}
	v = suspecting(map[edge.ProbeID]edge.Suspect{"proxy": believed})
	if got := Evaluate(c, statuses("proxy", ""), v)[prefix6]; got.Health != edge.Sick || got.Severity != edge.SeverityDown {
		t.Errorf("shared, and an operator has it believed: %+v", got)
	}
	if got := Evaluate(c, statuses("", "proxy"), v)[prefix6]; got.Health == edge.Sick {
		t.Errorf("shared and believed, but not known to be down: %+v", got)
	}
	v = suspecting(map[edge.ProbeID]edge.Suspect{"b1": believed, "b2": fiveFail})
	c.Fleet.Health.Needs[0].On = "quorum"
	if got := Evaluate(c, statuses("b1 b2", ""), v)[prefix6]; got.Health == edge.Sick {
		t.Errorf("shared, one of two is believed: %+v", got)
	}
}

// TestSeverity: of two services that cannot be served one is half, and a need of the
// prefix is all.
func TestSeverity(t *testing.T) {
	t.Parallel()
	c := fleet()
	c.Fleet.Services = append(c.Fleet.Services,
		edge.Service{ID: "two", VIP: netip.MustParseAddrPort("198.51.100.11:1"), Needs: []edge.Need{{On: "b1", Class: edge.Hard}}},
		edge.Service{ID: "three", VIP: netip.MustParseAddrPort("198.51.100.12:1")},
		edge.Service{ID: "four", VIP: netip.MustParseAddrPort("198.51.100.13:1"), Needs: []edge.Need{{On: "b1", Class: edge.Soft}, {On: "b2", Class: edge.Hard}}})
	for down, want := range map[string]int{"web-vip": 4, "web-vip b1": 6, "web-vip b1 b2": 8, "b1": 4, "proxy": 10, "regions": 0, "": 0} {
		if got := Evaluate(c, statuses(down, ""), View{})[prefixA]; got.Severity != want {
			t.Errorf("%q: %+v, want severity %d", down, got, want)
		}
	}
}

// TestCauses: what is told to the others is every check that could take a prefix
// away, by one name at every site, and nothing else.
func TestCauses(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	at := func(list []edge.Status) []edge.Status {
		for i := range list {
			list[i].Since = now.Add(-time.Duration(i+1) * time.Second)
		}
		return list
	}
	names := func(c *edge.Config, list []edge.Status) map[string]time.Duration {
		out := map[string]time.Duration{}
		for _, f := range Causes(c, list, now) {
			if !f.Cause.Valid() {
				t.Errorf("%q is not valid", f.Cause)
			}
			_, need, _ := strings.Cut(string(f.Cause), "@")
			out[string(f.Cause.Check())+"@"+need] = f.Age
		}
		return out
	}
	for down, want := range map[string]map[string]time.Duration{
		"":              {},
		"regions extra": {},
		"proxy":         {"proxy@proxy": time.Second, "proxy@serving": time.Second},
		"web-vip":       {"web-vip@serving": 4 * time.Second},
		"b1":            {},
		"b1 b3":         {"b1@quorum": 5 * time.Second, "b3@quorum": 5 * time.Second}, // since the second one is
	} {
		if got := names(fleet(), at(statuses(down, ""))); !maps.Equal(got, want) {
			t.Errorf("%q: %v, want %v", down, got, want)
		}
	}
	backends := func(node string, timeout time.Duration) (*edge.Config, []edge.Status) {
		c := fleet()
		c.Fleet.Services = []edge.Service{{ID: "web", VIP: c.Fleet.Services[0].VIP, Check: edge.Probe{Kind: edge.ProbeTCP, Timeout: timeout}, Needs: []edge.Need{{On: "web/backends", Class: edge.Hard}}}}
		id := edge.ProbeID("backend/web/" + node)
		c.Fleet.Health.Groups = []edge.Group{{ID: "web/backends", Mode: edge.Any, Of: []edge.ProbeID{id}}}
		return c, append(statuses("", ""), edge.Status{Probe: id, State: edge.Down})
	}
	of := func(c *edge.Config, list []edge.Status) edge.Cause { return Causes(c, list, now)[0].Cause }
	a, b, other := of(backends("a1", time.Second)), of(backends("b1", time.Second)), of(backends("a1", 2*time.Second))
	if a != b || a == other || a.Check() != "web/backends" {
		t.Errorf("causes of backends: %s, %s, %s", a, b, other)
	}
}

// TestDefinition: the same check is the same at every node, another one is not.
func TestDefinition(t *testing.T) {
	t.Parallel()
	p := edge.Probe{ID: "x", Kind: edge.ProbeHTTP, URL: "http://192.0.2.1/", Timeout: time.Second}
	same, other := p, p
	same.ID, same.Source, same.Interface = "y", netip.MustParseAddr("192.0.2.9"), "eth7"
	other.Status = 204
	if definition(p) != definition(same) || definition(p) == definition(other) || len(definition(p)) != 8 {
		t.Errorf("%s, %s, %s", definition(p), definition(same), definition(other))
	}
}
