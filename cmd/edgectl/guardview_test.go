package main

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// guarded is a guard on a bad day: one of everything.
func guarded(g *edge.GuardState) {
	g.Prefixes = []edge.GuardedPrefix{
		{Prefix: prefix4, Floor: 1, Needed: 2, Healthy: 1, Capacity: 1500, Regions: map[edge.RegionID]int{"eu": 1}, Sites: []edge.SiteID{"a", "b"}, Silent: []edge.SiteID{"c"},
			Lacks: "1 other sites would stay, and 2 must", Round: &edge.OpenRound{N: 17, Opened: ago(400 * time.Millisecond),
				Held:   []edge.Promised{{Node: "b1", Until: sampleTime.Add(8 * time.Second)}},
				Nacked: map[edge.NodeID]edge.Reason{"c2": "it is \x1b[31mdraining"}, Waiting: []edge.NodeID{"c1"}}},
		{Prefix: prefix6, Floor: 1, Needed: 1, Sites: []edge.SiteID{"a", "b", "c", "d", "e"}, MayLeave: 4},
		{Prefix: prefix6, Needed: 0, Sites: []edge.SiteID{"a"}, MayLeave: 1},
	}
	g.Suspects = []edge.Suspect{
		{Cause: "web-vip#5f3a09c1@serving", Sites: []edge.SiteID{"a", "b", "c"}, Silent: []edge.SiteID{"d", "e"}, Of: 6, Here: true},
		{Cause: "origin#00000000@origin", Sites: []edge.SiteID{"b", "c", "d"}, Of: 6, Trusted: true},
	}
	g.Trust = []edge.Trust{{Check: "origin", By: "b1", Reason: "it is down for good", Since: ago(time.Minute), Until: sampleTime.Add(time.Hour)}}
	g.Forced = []edge.Forced{{Prefix: prefix6, At: ago(10 * time.Minute), Reason: "it ate its packets"}}
	g.Keys = []string{"5e6f7a8b", "1a2b3c4d"}
	g.NodeKeys = map[edge.NodeID]string{"b1": "0a1b2c3d4e5f"}
	g.Past = decisions()
}

func decisions() []edge.GuardDecision {
	return []edge.GuardDecision{
		{Time: ago(time.Minute), Opened: ago(time.Minute + 320*time.Millisecond), Prefix: prefix6, Round: 3, Severity: 1, Wish: "drained: work", Needed: 1, Promised: []edge.NodeID{"b1", "c2"}, Left: true, Reason: "withdrew"},
		{Time: ago(3 * time.Second), Opened: ago(4 * time.Second), Prefix: prefix4, Round: 16, Severity: 10, Wish: "web-vip is down", Needed: 2, Promised: []edge.NodeID{"b1"},
			Nacked: map[edge.NodeID]edge.Reason{"c2": "it is draining"}, Silent: []edge.NodeID{"c1"}, Reason: "1 of 2 other sites promised to stay"},
		{Time: ago(2 * time.Second), Opened: ago(2 * time.Second), Prefix: prefix4, Severity: 10, Wish: "fire", Needed: 2, Left: true, Forced: true, Reason: "forced: fire"},
	}
}

func serveGuard(w http.ResponseWriter, r *http.Request) {
	sites := r.URL.Query()["withdraw"]
	switch {
	case r.URL.Path == "/v1/guard/decisions":
		socket.JSON(w, http.StatusOK, decisions())
	case sites[0] == "x":
		socket.Fail(w, http.StatusBadRequest, errors.New(`"x" is not a site of the configuration`))
	default:
		socket.JSON(w, http.StatusOK, edge.GuardWhatIf{Withdraw: []edge.SiteID{"b", "c"}, Prefixes: []edge.GuardOutcome{
			{Prefix: prefix4, Site: "b", OK: true, Reason: "a, c, d stay, 3 must"},
			{Prefix: prefix4, Site: "c", Reason: "2 other sites would stay, and 3 must"},
		}, Notes: []string{"by what this node has heard: whether the others promise is known only when they are asked"}})
	}
}

// TestDrainUnlessDrained: an order for the same stays, whoever gave it; nothing else keeps
// from ordering.
func TestDrainUnlessDrained(t *testing.T) {
	ordered, gone := edge.Drain{Reason: "an upgrade"}, edge.Decision{Prefix: prefix4, Rung: edge.Withdrawn, Unserved: true}
	for _, c := range []struct {
		drains []edge.Drain
		args   []string
		asked  string
		text   string
	}{
		{nil, nil, "GET POST", "198.51.100.0/24 is withdrawn"},
		{[]edge.Drain{ordered}, nil, "GET", "it is drained already: an upgrade"},
		{[]edge.Drain{ordered}, []string{"--wait", "10s"}, "GET", "all is off the air"},
		{nil, []string{"--wait", "10s"}, "GET POST", "all is off the air"},
		{[]edge.Drain{{Reason: "by file", ByFile: true}}, nil, "GET", "it is drained already: by file"},
		{[]edge.Drain{{Reason: "edgebgp is to stop", Stop: true}}, nil, "GET POST", ""},
		{[]edge.Drain{{Reason: "one of them", Prefix: prefix6}, {Reason: "web", Service: "web"}}, nil, "GET POST", ""},
		{[]edge.Drain{ordered}, []string{prefix6.String()}, "GET POST", ""},
		{[]edge.Drain{{Reason: "one of them", Prefix: prefix6}}, []string{prefix6.String()}, "GET", "it is drained already: one of them"},
	} {
		var asked []string
		path := t.TempDir() + "/edged.sock"
		serve(t, path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.Method)
			st := quiet()
			st.Drains, st.Decisions = c.drains, []edge.Decision{gone}
			socket.JSON(w, http.StatusOK, st)
		}))
		stdout, stderr, code := call(t, false, append([]string{"drain", "--socket", path, "--reason", "power", "--unless-drained"}, c.args...)...)
		if got := strings.Join(asked, " "); code != exitOK || got != c.asked || !strings.Contains(stdout+stderr, c.text) {
			t.Errorf("%v %q: exit %d, asked %s, %q, want %s and %q", c.drains, c.args, code, got, stdout+stderr, c.asked, c.text)
		}
	}
}

// TestDrainWait: it returns when all is withdrawn and unserved, not before, and else
// says what is not.
func TestDrainWait(t *testing.T) {
	var asked atomic.Int32
	var needed int32
	path := t.TempDir() + "/edged.sock"
	serve(t, path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		st := quiet()
		st.Decisions = []edge.Decision{{Prefix: prefix4, Rung: edge.Leaving, Reason: "drained: power"}, {Prefix: prefix6, Rung: edge.Announced}}
		switch n := asked.Add(1); {
		case r.Method == "POST" && r.URL.Path != "/v1/drain":
			t.Errorf("asked %s %s", r.Method, r.URL)
		case n == 3:
			socket.Fail(w, http.StatusServiceUnavailable, errors.New("busy"))
			return
		case n > needed:
			st.Decisions[0].Unserved, st.Decisions[0].Rung = true, edge.Withdrawn
			st.Decisions[1].Unserved = st.Decisions[1].Rung == edge.Withdrawn
		case n > 1:
			st.Decisions[0].Rung, st.Decisions[0].Reason = edge.Withdrawn, "drained: power; its VIPs are still served: a2 may still send packets here"
		}
		socket.JSON(w, http.StatusOK, st)
	}))
	for _, c := range []struct {
		args []string
		need int32
		code int
		text string
	}{
		{[]string{prefix4.String()}, 4, exitOK, "all is off the air, and nothing is served any more"},
		{[]string{"--service", "web"}, 4, exitOK, "all is off the air"},
		{nil, 4, exitRefused, "not drained within 1.5s; the order stays in force:\n  2001:db8:1::/48 is announced"},
		{[]string{prefix4.String()}, 100, exitRefused, "198.51.100.0/24 is withdrawn: drained: power; its VIPs are still served: a2 may still send packets here"},
	} {
		asked.Store(0)
		needed = c.need
		stdout, stderr, code := call(t, false, append([]string{"drain", "--socket", path, "--reason", "power", "--wait", "1500ms"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.text) {
			t.Errorf("%q: exit %d, %q, want %d and %q", c.args, code, stdout+stderr, c.code, c.text)
		}
		if c.code == exitOK && asked.Load() != c.need+1 {
			t.Errorf("%q: asked %d times, want %d", c.args, asked.Load(), c.need+1)
		}
	}
}
