package console

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
)

var (
	host4   = netip.MustParseAddr("192.0.2.10")
	host6   = netip.MustParseAddr("2001:db8:ffff::10")
	prefix4 = netip.MustParsePrefix("198.51.100.0/24")
	prefix6 = netip.MustParsePrefix("2001:db8:1::/48")
	cover   = netip.MustParsePrefix("203.0.113.0/24")
	leaving = netip.MustParsePrefix("192.0.2.128/25")
)

// source is a status that the test changes. Its time moves by itself, as the
// control loop of edged moves it, unless frozen.
type source struct {
	mu     sync.Mutex
	status edge.SystemStatus
	frozen bool
	hang   chan struct{} // not nil: Status waits for it
	asked  int
}

func (s *source) Status() edge.SystemStatus {
	s.mu.Lock()
	s.asked++
	hang := s.hang
	s.mu.Unlock()
	if hang != nil {
		<-hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.frozen {
		s.status.Time = time.Now()
	}
	return s.status
}

// change lets f alter the status, also inside those of its lists that the tests
// alter: what Status has returned stays as it was.
func (s *source) change(f func(*edge.SystemStatus)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Decisions = slices.Clone(s.status.Decisions)
	s.status.Forwarder.Verdicts = slices.Clone(s.status.Forwarder.Verdicts)
	f(&s.status)
}

func claims(rung edge.Rung, health edge.Health, announcing bool, reason edge.Reason) []edge.Claim {
	var out []edge.Claim
	for _, p := range []netip.Prefix{prefix4, prefix6} {
		out = append(out, edge.Claim{Prefix: p, Announcing: announcing, Rung: rung, Health: health, Reason: reason, Since: time.Now()})
	}
	return out
}

func other(node, site string, age time.Duration, says []edge.Claim) edge.MemberState {
	return edge.MemberState{Node: edge.NodeID(node), Site: edge.SiteID(site), Alive: age >= 0 && age < time.Minute, Age: age,
		Report: edge.Report{Node: edge.NodeID(node), Site: edge.SiteID(site), Says: says}}
}

// sample is a node on a bad day: one of everything.
func sample() edge.SystemStatus {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	return edge.SystemStatus{
		Node: "ams1", Site: "ams", Version: "v0.1.0", Time: now, Started: ago(26 * time.Hour), Generation: 7, ConfigHash: strings.Repeat("3fa9", 16),
		Alarms: []string{
			"prefix 198.51.100.0/24 wants to leave and may not: 1 of 2 sites have promised to stay",
			"BGP peer rr2 is active: connect 192.0.2.2:179: connection refused",
		},
		Decisions: []edge.Decision{
			{Prefix: prefix4, Rung: edge.LastResort, Since: ago(95 * time.Second), Severity: 2,
				Reason: "serving → web-vip is down: answered 503, expected 200; may not withdraw: 1 of 2 sites have promised to stay"},
			{Prefix: prefix6, Rung: edge.Announced, Since: ago(26 * time.Hour)},
			{Prefix: cover, Rung: edge.Degraded, Since: ago(12 * time.Minute), Reason: "regions is down: 1 of 3 regions can be reached, at least 2 are needed"},
			{Prefix: leaving, Rung: edge.Draining, Since: ago(20 * time.Second), Reason: "drained: service web: new certificates"},
		},
		Conditions: []edge.PrefixHealth{
			{Prefix: prefix4, MinSites: 2, Condition: edge.Condition{Health: edge.Sick, Since: ago(97 * time.Second), Reason: "serving → web-vip is down: answered 503, expected 200"}},
			{Prefix: prefix6, MinSites: 1, Condition: edge.Condition{Health: edge.HealthUnknown, Reason: "dns is unknown: probe could not run: too many open files"}},
			{Prefix: cover, MinSites: 1, Condition: edge.Condition{Health: edge.HealthDegraded, Since: ago(12 * time.Minute), Reason: "regions is down"}},
			{Prefix: leaving, MinSites: 1, Condition: edge.Condition{Health: edge.HealthFull, Since: ago(4 * time.Minute), Reason: "web is full"}},
		},
		Probes: []edge.Status{
			{Probe: "dns", LastErr: "probe could not run: too many open files", LastErrAt: ago(time.Second)},
			{Probe: "api", State: edge.Full, Since: ago(4 * time.Minute), LastRun: now, Took: 900 * time.Microsecond, LastErr: "alive but full: answered 429", LastErrAt: now, Streak: 2},
			{Probe: "forwarder", State: edge.Up, Since: ago(26 * time.Hour), LastRun: now, Took: 40 * time.Microsecond},
			{Probe: "proxy", State: edge.Up, Since: ago(3 * time.Hour), LastRun: now, Took: 2100 * time.Microsecond,
				LastErr: "process 4711 does not exist", LastErrAt: ago(3 * time.Hour)},
			{Probe: "regions", State: edge.Down, Since: ago(12 * time.Minute), LastRun: now, LastErr: "1 of 3 regions can be reached, at least 2 are needed", LastErrAt: now, Streak: 1},
			{Probe: "web-vip", State: edge.Down, Since: ago(97 * time.Second), LastRun: now, Took: 1800 * time.Microsecond, LastErr: "answered 503, expected 200", LastErrAt: now},
		},
		Drains: []edge.Drain{
			{Service: "web", Reason: "new certificates", Since: ago(12 * time.Minute), Until: now.Add(48 * time.Minute)},
			{Reason: "line card", Since: ago(3 * time.Minute), ByFile: true},
		},
		Prefers: []edge.Preference{
			{Sites: []edge.SiteID{"fra", "lon"}, Prepend: 2, MED: 50, Reason: "ams is full", By: "fra1", Since: ago(2 * time.Minute), Until: now.Add(58 * time.Minute)},
			{Prefix: prefix6, Reason: "taken back", By: "lon1", Since: ago(time.Minute), Until: now.Add(time.Hour)},
		},
		Speaker: sampleSpeaker(now),
		Guard:   sampleGuard(now),
		Proxy: edge.ProxyState{PID: 4711, Started: ago(3 * time.Hour), Connections: 1842, Requests: 9182734,
			Responses: map[string]uint64{"2xx": 9180000, "4xx": 2500, "5xx": 234},
			Load: edge.LoadRow{Demand: 1420, Regions: []edge.RegionView{
				{Region: "eu-west", RTT: 8300 * time.Microsecond, Up: 3, Of: 3, Sent: 900, Allowance: 1000},
				{Region: "us-east", RTT: 84 * time.Millisecond, Up: 1, Of: 2, Sent: 520, Allowance: 480, LastErr: "u2: connect 10.2.0.2:80: connection refused"},
				{Region: "ap-south", Up: 0, Of: 2, LastErr: "u1: connect 10.3.0.1:80: no answer within 2s"},
			}}},
		Forwarder: edge.ForwarderStats{Mode: "native", Interfaces: []string{"eth0", "eth1"}, Received: 48291034, Flows: 1048576, Verdicts: []edge.VerdictCount{
			{Action: "tx", Reason: "encapsulated to a backend", Count: 30000000}, {Action: "pass", Reason: "not for a VIP", Count: 18000000},
			{Action: "pass", Reason: "backend is this box", Count: 291000}, {Action: "drop", Reason: "truncated packet", Count: 34}, {Action: "drop", Reason: "no backend"},
		}},
		Services: []edge.ServiceSummary{
			{ID: "web", VIP: netip.MustParseAddrPort("198.51.100.10:443"), Protocol: edge.TCP, Prefix: prefix4, Backends: []edge.BackendSummary{
				{ID: "ams1", Addr: netip.MustParseAddr("10.0.0.1"), Weight: 1, Local: true, State: edge.Up, InRing: true},
				{ID: "ams2", Addr: netip.MustParseAddr("10.0.0.2"), Weight: 1, State: edge.Down, Reason: "connect 10.0.0.2:8080: no answer within 400ms"},
			}},
			{ID: "dns", VIP: netip.MustParseAddrPort("[2001:db8:1::53]:53"), Protocol: edge.UDP, Prefix: prefix6},
			{ID: "all", VIP: netip.MustParseAddrPort("[2001:db8:1::77]:0"), Protocol: edge.AnyProtocol, Prefix: prefix6},
		},
	}
}

// sampleGuard has a member of every kind.
func sampleGuard(now time.Time) edge.GuardState {
	return edge.GuardState{
		Members: []edge.MemberState{
			other("fra1", "fra", 700*time.Millisecond, claims(edge.Announced, edge.Healthy, true, "")),
			other("fra2", "fra", 900*time.Millisecond, claims(edge.Withdrawn, edge.Sick, false, "")),
			other("lon1", "lon", 1200*time.Millisecond, claims(edge.Draining, edge.HealthDegraded, true, "regions is down")),
			other("nyc1", "nyc", 45*time.Second, claims(edge.Announced, edge.Healthy, true, "")),
			other("sin1", "sin", 800*time.Millisecond, claims(edge.Withdrawn, edge.Sick, false, "proxy is down")),
			other("syd1", "syd", -1, nil),
		},
		Bound:   []edge.Binding{{Prefix: prefix6, To: "lon1", Until: now.Add(8 * time.Second)}},
		Asking:  map[netip.Prefix]edge.Permit{prefix4: {Needed: 2, Promised: []edge.SiteID{"fra"}, Refused: true, Reason: "1 of 2 sites have promised to stay", BlockedSince: now.Add(-2 * time.Minute)}},
		Dropped: map[string]uint64{"bad signature": 3, "stale round": 12},
		Prefixes: []edge.GuardedPrefix{
			{Prefix: prefix4, Floor: 2, Needed: 3, Healthy: 1, Capacity: 1500, Regions: map[edge.RegionID]int{"eu": 1}, Sites: []edge.SiteID{"ams", "fra", "lon"}, Silent: []edge.SiteID{"nyc", "syd"},
				Lacks: "2 other sites would stay, and 3 must", Round: &edge.OpenRound{N: 17, Opened: now.Add(-400 * time.Millisecond),
					Held: []edge.Promised{{Node: "fra1", Until: now.Add(8 * time.Second)}}, Nacked: map[edge.NodeID]edge.Reason{"lon1": "it is draining"}, Waiting: []edge.NodeID{"syd1"}}},
			{Prefix: prefix6, Floor: 1, Needed: 1, Sites: []edge.SiteID{"ams", "fra"}, MayLeave: 1},
			{Prefix: cover, Sites: []edge.SiteID{"ams"}, MayLeave: 1},
		},
		Suspects: []edge.Suspect{{Cause: "web-vip#5f3a09c1@serving", Sites: []edge.SiteID{"ams", "fra", "sin"}, Silent: []edge.SiteID{"nyc", "syd"}, Of: 6, Here: true}},
		Trust:    []edge.Trust{{Check: "origin", By: "fra1", Reason: "it is down for good", Since: now.Add(-time.Minute), Until: now.Add(59 * time.Minute)}},
		Forced:   []edge.Forced{{Prefix: leaving, At: now.Add(-10 * time.Minute), Reason: "it ate its packets"}},
		NodeKeys: map[edge.NodeID]string{"fra1": "0a1b2c3d4e5f"},
		Past: []edge.GuardDecision{
			{Time: now.Add(-time.Minute), Opened: now.Add(-time.Minute - 320*time.Millisecond), Prefix: prefix6, Round: 3, Severity: 1, Wish: "drained: work", Needed: 1, Promised: []edge.NodeID{"fra1", "lon1"}, Left: true, Reason: "withdrew"},
			{Time: now.Add(-4 * time.Second), Opened: now.Add(-5 * time.Second), Prefix: prefix4, Round: 16, Severity: 10, Wish: "web-vip is down", Needed: 3, Promised: []edge.NodeID{"fra1"},
				Nacked: map[edge.NodeID]edge.Reason{"lon1": "it is draining"}, Silent: []edge.NodeID{"syd1"}, Reason: "1 of 3 other sites promised to stay"},
		},
	}
}
