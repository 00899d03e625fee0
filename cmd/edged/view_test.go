package main

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/maglev"
)

// lbService is a service of four backends, each with a TCP check.
func lbService(mutate ...func(*edge.Service)) edge.Service {
	s := edge.Service{
		ID: "lb", VIP: netip.MustParseAddrPort("198.51.100.53:53"), Protocol: edge.AnyProtocol, DrainTimeout: time.Minute,
		Check: edge.Probe{Kind: edge.ProbeTCP}, Affinity: edge.AffinityNone, Tracking: edge.PerConnection, Persistence: edge.PersistByProtocol,
	}
	for i := range 4 {
		s.Backends = append(s.Backends, edge.Backend{
			ID: edge.BackendID(fmt.Sprintf("b%d", i)), Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), Weight: 100, ServerID: string('a' + rune(i)),
		})
	}
	for _, f := range mutate {
		f(&s)
	}
	return s
}

// pools puts b2 and b3 into the failover pool.
func pools(f edge.Failover) func(*edge.Service) {
	return func(s *edge.Service) {
		s.Failover = &f
		s.Backends[2].Failover, s.Backends[3].Failover = true, true
	}
}

func serving(s edge.Service) *edge.Config {
	c := testConfig()
	c.Fleet.Services = []edge.Service{s}
	return c
}

// probed writes the states of the probes of lb: "b0+ b1- b2? b3+7", + up, - down,
// ? unknown, and the weight that the check has said.
func probed(t *testing.T, line string) []edge.Status {
	t.Helper()
	var out []edge.Status
	for _, word := range strings.Fields(line) {
		at := strings.IndexAny(word, "+-?")
		s := edge.Status{Probe: edge.ProbeID("backend/lb/" + word[:at]), State: map[byte]edge.ProbeState{'+': edge.Up, '-': edge.Down, '?': edge.Unknown}[word[at]]}
		if s.State == edge.Down {
			s.LastErr = "refused"
		}
		if word[at+1:] != "" {
			w, err := strconv.Atoi(word[at+1:])
			if err != nil {
				t.Fatalf("%q: %v", word, err)
			}
			s.Weight = &w
		}
		out = append(out, s)
	}
	return out
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// entries writes down a table's backends: the share, and what they keep, t for
// TCP, o for the rest, q if they are told a server id.
func entries(s edge.TableService) string {
	mark := func(on bool, m string) string {
		if on {
			return m
		}
		return ""
	}
	var out []string
	for _, b := range s.Backends {
		out = append(out, fmt.Sprintf("%s:%d", b.ID, b.Weight)+mark(b.KeepOther, "o")+mark(b.ServerID != "", "q")+mark(b.KeepTCP, "t"))
	}
	return strings.Join(out, " ")
}

// TestWhatFollowsWhom: the shares, and which flows may stay on whom.
func TestWhatFollowsWhom(t *testing.T) {
	persist := func(p edge.Persistence, tr edge.Tracking, a edge.Affinity) func(*edge.Service) {
		return func(s *edge.Service) { s.Persistence, s.Tracking, s.Affinity = p, tr, a }
	}
	weights := func(w ...int) func(*edge.Service) {
		return func(s *edge.Service) {
			for i := range w {
				s.Backends[i].Weight = w[i]
			}
		}
	}
	primary, failover := edge.PoolPrimary, edge.PoolFailover
	for _, tt := range []struct {
		name   string
		s      edge.Service
		probes string
		was    poolUse // the pool before; without a service: nothing is known
		pool   edge.Pool
		want   string
	}{
		{"all up", lbService(), "b0+ b1+ b2+ b3+", poolUse{}, primary, "b0:100oqt b1:100oqt b2:100oqt b3:100oqt"},
		{"one down: TCP stays", lbService(), "b0- b1+ b2+ b3+", poolUse{}, primary, "b0:0t b1:100oqt b2:100oqt b3:100oqt"},
		{"one down, never persist", lbService(persist(edge.PersistNever, edge.PerConnection, edge.AffinityNone)), "b0- b1+ b2+ b3+", poolUse{}, primary, "b0:0 b1:100oqt b2:100oqt b3:100oqt"},
		{"one down, always persist", lbService(persist(edge.PersistAlways, edge.PerConnection, edge.AffinityClientIP)), "b0- b1+ b2+ b3+", poolUse{}, primary, "b0:0oqt b1:100oqt b2:100oqt b3:100oqt"},
		{"per session, 5-tuple", lbService(persist(edge.PersistByProtocol, edge.PerSession, edge.AffinityClientIPPortProto)), "b0- b1+ b2+ b3+", poolUse{}, primary, "b0:0t b1:100oqt b2:100oqt b3:100oqt"},
		{"per session, no affinity", lbService(persist(edge.PersistByProtocol, edge.PerSession, edge.AffinityNone)), "b0- b1+ b2+ b3+", poolUse{}, primary, "b0:0t b1:100oqt b2:100oqt b3:100oqt"},
		{"per session, 2-tuple", lbService(persist(edge.PersistByProtocol, edge.PerSession, edge.AffinityClientIP)), "b0- b1+ b2+ b3+", poolUse{}, primary, "b0:0 b1:100oqt b2:100oqt b3:100oqt"},
		{"per connection, 1-tuple", lbService(persist(edge.PersistByProtocol, edge.PerConnection, edge.AffinityClientIPNoDestination)), "b0- b1+ b2+ b3+", poolUse{}, primary, "b0:0t b1:100oqt b2:100oqt b3:100oqt"},
		{"nothing is set", lbService(persist("", "", "")), "b0- b1+ b2+ b3+", poolUse{}, primary, "b0:0t b1:100oqt b2:100oqt b3:100oqt"},
		{"weight 0 keeps all it has", lbService(weights(0)), "b0+ b1+ b2+ b3+", poolUse{}, primary, "b0:0oqt b1:100oqt b2:100oqt b3:100oqt"},
		{"weight 0 and down", lbService(weights(0)), "b0- b1+ b2+ b3+", poolUse{}, primary, "b0:0t b1:100oqt b2:100oqt b3:100oqt"},
		{"a new one waits", lbService(), "b0? b1+ b2+ b3+", poolUse{}, primary, "b0:0oqt b1:100oqt b2:100oqt b3:100oqt"},
		{"a probe that is not there", lbService(), "b1+ b2+ b3+", poolUse{}, primary, "b0:0oqt b1:100oqt b2:100oqt b3:100oqt"},
		{"last resort, by weight", lbService(weights(1, 2, 3, 0), persist(edge.PersistNever, "", "")), "b0- b1- b2- b3-", poolUse{}, primary, "b0:1oqt b1:2oqt b2:3oqt b3:0"},
		{"only weight 0", lbService(weights(0, 0, 0, 0)), "b0+ b1+ b2- b3-", poolUse{}, primary, "b0:1oqt b1:1oqt b2:0t b3:0t"},
		{"not probed", lbService(func(s *edge.Service) { s.Check = edge.Probe{} }), "", poolUse{}, primary, "b0:100oqt b1:100oqt b2:100oqt b3:100oqt"},

		{"primaries", lbService(pools(edge.Failover{})), "b0+ b1- b2+ b3+", poolUse{"lb", primary, noon.Add(-time.Hour)}, primary, "b0:100oqt b1:0t b2:0 b3:0"},
		{"failover without draining", lbService(pools(edge.Failover{})), "b0- b1- b2+ b3-", poolUse{"lb", primary, noon.Add(-time.Hour)}, failover, "b0:0 b1:0 b2:100oqt b3:0t"},
		{"failover with draining", lbService(pools(edge.Failover{Drain: true, Ratio: 1})), "b0+ b1- b2+ b3+", poolUse{"lb", primary, noon.Add(-time.Hour)}, failover, "b0:0t b1:0t b2:100oqt b3:100oqt"},
		{"what is down drains only what persists", lbService(pools(edge.Failover{Drain: true, Ratio: 1}), persist(edge.PersistNever, "", "")), "b0+ b1- b2+ b3+", poolUse{"lb", primary, noon.Add(-time.Hour)}, failover, "b0:0t b1:0 b2:100oqt b3:100oqt"},
		{"just before the end", lbService(pools(edge.Failover{Drain: true, Ratio: 1})), "b0+ b1- b2+ b3+", poolUse{"lb", failover, noon.Add(time.Second - time.Minute)}, failover, "b0:0t b1:0t b2:100oqt b3:100oqt"},
		{"at the end", lbService(pools(edge.Failover{Drain: true, Ratio: 1})), "b0+ b1- b2+ b3+", poolUse{"lb", failover, noon.Add(-time.Minute)}, failover, "b0:0 b1:0 b2:100oqt b3:100oqt"},
		{"failback", lbService(pools(edge.Failover{Drain: true})), "b0+ b1+ b2+ b3+", poolUse{"lb", failover, noon.Add(-time.Hour)}, primary, "b0:100oqt b1:100oqt b2:0t b3:0t"},
		{"dropped: the pool stays", lbService(pools(edge.Failover{DropIfNone: true})), "b0- b1- b2- b3-", poolUse{"lb", failover, noon.Add(-time.Hour)}, failover, "b0:0 b1:0 b2:0t b3:0t"},
		{"dropped at once", lbService(pools(edge.Failover{DropIfNone: true})), "b0- b1- b2- b3-", poolUse{}, primary, "b0:0t b1:0t b2:0 b3:0"},
		{"seen for the first time", lbService(pools(edge.Failover{Drain: true})), "b0+ b1+ b2+ b3+", poolUse{}, primary, "b0:100oqt b1:100oqt b2:0t b3:0t"},
		{"weight 0 in the pool that was left", lbService(pools(edge.Failover{}), weights(0)), "b0+ b1- b2+ b3+", poolUse{"lb", failover, noon.Add(-time.Hour)}, failover, "b0:0 b1:0 b2:100oqt b3:100oqt"},
	} {
		var m draining
		if tt.was.Service != "" {
			m.Pools = []poolUse{tt.was}
		}
		c := serving(tt.s)
		views := look(c, probed(t, tt.probes), m, noon)
		got := table(c, [16]byte{}, views).Services[0]
		if entries(got) != tt.want || got.Pool != tt.pool {
			t.Errorf("%s: pool %q, %s\nwant pool %q, %s", tt.name, got.Pool, entries(got), tt.pool, tt.want)
		}
		if want := tt.s.Failover != nil && !tt.s.Failover.Drain; got.ClearOnSwitch != want {
			t.Errorf("%s: clear on switch is %t", tt.name, got.ClearOnSwitch)
		}
		if got.Affinity != tt.s.Affinity || got.Tracking != tt.s.Tracking || got.Protocol != edge.AnyProtocol {
			t.Errorf("%s: policy %+v", tt.name, got)
		}
	}
}

// ringShares are the shares of the slots that the backends of s get.
func ringShares(t *testing.T, s edge.TableService) []float64 {
	t.Helper()
	var in []maglev.Backend
	for _, b := range s.Backends {
		in = append(in, maglev.Backend{Name: string(b.ID), Weight: b.Weight})
	}
	ring, err := maglev.Build([16]byte{1}, in)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float64, len(in))
	for _, at := range ring {
		out[at] += 1. / maglev.Size
	}
	return out
}

// TestSharesInTheRing goes from the weights, of the configuration or of the
// checks, to the slots of the ring.
func TestSharesInTheRing(t *testing.T) {
	for _, tt := range []struct {
		name      string
		fromCheck bool
		config    []int
		probes    string
		want      []float64
	}{
		{"1:4", false, []int{1, 4}, "b0+ b1+", []float64{0.2, 0.8}},
		{"0:2:6", false, []int{0, 2, 6}, "b0+ b1+ b2+", []float64{0, 0.25, 0.75}},
		{"1:4 said by the checks", true, []int{100, 100}, "b0+1 b1+4", []float64{0.2, 0.8}},
		{"0:2:6 said by the checks", true, []int{100, 100, 100}, "b0+0 b1+2 b2+6", []float64{0, 0.25, 0.75}},
		{"one says nothing", true, []int{100, 100, 100}, "b0+0 b1+2 b2+", []float64{1. / 3, 1. / 3, 1. / 3}},
		{"one that is down says nothing", true, []int{100, 100, 100}, "b0- b1+2 b2+6", []float64{0, 0.25, 0.75}},
		{"all are down, two have said something", true, []int{100, 100, 100}, "b0- b1-2 b2-6", []float64{1. / 9, 2. / 9, 6. / 9}},
		{"all want nothing", true, []int{100, 100}, "b0+0 b1+0", []float64{0.5, 0.5}},
		{"said, but not asked", false, []int{1, 4}, "b0+500 b1+1", []float64{0.2, 0.8}},
	} {
		s := lbService(func(s *edge.Service) {
			s.WeightFromCheck = tt.fromCheck
			s.Backends = s.Backends[:len(tt.config)]
			for i, w := range tt.config {
				s.Backends[i].Weight = w
			}
		})
		c := serving(s)
		slots := ringShares(t, table(c, [16]byte{}, look(c, probed(t, tt.probes), draining{}, noon)).Services[0])
		for i := range slots {
			if math.Abs(slots[i]-tt.want[i]) > 0.001 {
				t.Errorf("%s: backend %d has %.4f of the ring, want %.4f", tt.name, i, slots[i], tt.want[i])
			}
		}
	}
}

// TestReasons: every no has a word.
func TestReasons(t *testing.T) {
	c := serving(lbService(pools(edge.Failover{Drain: true, Ratio: 1}), func(s *edge.Service) {
		s.WeightFromCheck = true
		s.Backends[3].Weight = 0
	}))
	m := draining{
		Pools: []poolUse{{"lb", edge.PoolPrimary, noon.Add(-time.Hour)}},
		Left:  []leaver{{"lb", "old", netip.MustParseAddr("192.0.2.99"), noon.Add(-20 * time.Second)}},
	}
	got := summaries(c, look(c, probed(t, "b0+5 b1- b2+ b3+"), m, noon))[0]
	if got.Pool != edge.PoolFailover || got.Reason != "1 of 2 primary backends are up, less than the failover ratio of 1; all weights count alike: the check of backend b2 says no weight from 0 to 1000" {
		t.Errorf("service: pool %q, %q", got.Pool, got.Reason)
	}
	var lines []string
	for _, b := range got.Backends {
		lines = append(lines, backendLine(b))
	}
	want := []string{
		"backend b0 (192.0.2.10, weight 1) is up, not in the ring: the failover pool is in use; TCP flows that it has follow it until 12:01:00 UTC",
		"backend b1 (192.0.2.11, weight 1) is down, not in the ring: down: refused; TCP flows that it has follow it until 12:01:00 UTC",
		"failover backend b2 (192.0.2.12, weight 1) is up, in the ring",
		"failover backend b3 (192.0.2.13, weight 0) is up, not in the ring: weight 0",
		"backend old (192.0.2.99, weight 0) is unknown, not in the ring: it has left the configuration; TCP flows that it has follow it until 12:00:40 UTC",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("lines:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	m.Pools = []poolUse{{"lb", edge.PoolFailover, noon.Add(-time.Hour)}}
	got = summaries(c, look(c, probed(t, "b0+5 b1- b2+ b3+"), m, noon))[0]
	if line, want := backendLine(got.Backends[0]), "backend b0 (192.0.2.10, weight 1) is up, not in the ring: the failover pool is in use"; line != want {
		t.Errorf("after the drain: %s\nwant: %s", line, want)
	}
	for probes, want := range map[string]string{
		"b0- b1- b2-":  "backend b0 (192.0.2.10, weight 1) is down, in the ring: down, but no other backend is up: refused",
		"b0? b1- b2-":  "backend b0 (192.0.2.10, weight 1) is unknown, in the ring",
		"b0+0 b1+ b2-": "backend b0 (192.0.2.10, weight 1) is up, in the ring",
	} {
		if got := backendLine(summaries(c, look(c, probed(t, probes), m, noon))[0].Backends[0]); got != want {
			t.Errorf("%s: %s\nwant: %s", probes, got, want)
		}
	}
	c.Fleet.Services[0].Failover = nil
	got = summaries(c, look(c, probed(t, "b0+0 b1+0 b2+0 b3+"), m, noon))[0]
	if line, want := backendLine(got.Backends[0]), "backend b0 (192.0.2.10, weight 0) is up, in the ring with weight 1: weight 0, but there is no better backend"; line != want {
		t.Errorf("%s\nwant: %s", line, want)
	}
}
