package console

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/health"
)

// sampleSpeaker has a peer of every kind, and a world that is not as it should
// be.
func sampleSpeaker(now time.Time) edge.SpeakerState {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	both := []edge.Family{edge.IPv4, edge.IPv6}
	held := []edge.HeldPrefix{
		{Net: prefix4, NextHop: host4, Attributes: edge.Attributes{Prepend: 2, MED: 100, LocalPref: 50,
			Communities: []edge.Community{edge.GracefulShutdown}, Large: []edge.LargeCommunity{{Global: 4200000001, Local1: 7, Local2: 9}}}},
		{Net: prefix6, NextHop: host6}, {Net: cover, NextHop: host4}, {Net: leaving, NextHop: host4},
	}
	return edge.SpeakerState{
		Generation: 7, Started: ago(90 * 24 * time.Hour), LeaseLeft: 8200 * time.Millisecond,
		Peers: []edge.PeerState{
			{ID: "rr1", Addr: netip.MustParseAddr("192.0.2.1"), ASN: 64500, Session: "established", Since: ago(26 * time.Hour), Flaps: 1, Held: held,
				LastErr: "hold timer expired", LastErrAt: ago(26 * time.Hour), Local: netip.AddrPortFrom(host4, 43121), Hold: 9 * time.Second, Keepalive: 3 * time.Second,
				RemoteID: netip.MustParseAddr("10.255.0.1"), Families: both, Received: 3, Default: true,
				Messages: edge.MessageCounts{UpdatesSent: 12, WithdrawsSent: 1, UpdatesReceived: 4, Malformed: 2},
				BFD:      &edge.BFDState{State: "up", Remote: "up", Since: ago(26 * time.Hour), Detect: 900 * time.Millisecond, Flaps: 1}},
			{ID: "rr2", Addr: netip.MustParseAddr("192.0.2.2"), ASN: 64500, Session: "active", Since: ago(40 * time.Second), Flaps: 3,
				LastErr: "connect 192.0.2.2:179: connection refused", LastErrAt: ago(4 * time.Second),
				BFD: &edge.BFDState{State: "down", Remote: "down", Since: ago(41 * time.Second), Diag: "control detection time expired", Detect: 150 * time.Millisecond, Flaps: 3}},
			{ID: "rr3", Addr: netip.MustParseAddr("192.0.2.3"), ASN: 64500, Session: "established", Since: ago(3 * time.Minute), Held: held[2:3],
				BFD: &edge.BFDState{State: "down", Remote: "unknown", Since: ago(3 * time.Minute)}},
			{ID: "transit6", Addr: netip.MustParseAddr("2001:db8:ffff::2"), ASN: 4200000001, Session: "established", Since: ago(5 * time.Hour), Held: held[1:2],
				NotSent: []edge.NotSent{
					{Net: prefix4, Reason: "the router does not speak ipv4 in this session"},
					{Net: leaving, Reason: "longer than /24, to a peer of another AS: set allow_longer on the peer if it takes it"},
					{Net: cover, Reason: "the router does not speak ipv4 in this session"},
				},
				Received: 1200, OverLimit: true,
				BFD: &edge.BFDState{State: "admin-down", Remote: "up", Since: ago(time.Minute), Diag: "administratively down"}},
		},
		Origins: []edge.Origin{
			{Net: prefix4, Validity: "invalid-length", Evidence: "198.51.100.0/22 AS64500 allows up to /23"},
			{Net: prefix6, Validity: "valid", Evidence: "2001:db8::/32 AS64500 allows up to /48"},
			{Net: cover, Validity: "not-found"}, {Net: leaving, Validity: "unknown"},
		},
		RPKI: edge.SourceState{Source: "192.0.2.5:3323", Updated: ago(3 * time.Minute), Items: 412345, LastErr: "192.0.2.4:3323: connection refused"},
		Sightings: []edge.Sighting{
			{Kind: "unexpected-origin", Net: prefix4, Seen: prefix4, Evidence: "AS666 originates it: path 3333 1103 666, seen by rrc00 of AS3333", Since: ago(4 * time.Minute), Last: ago(2 * time.Second)},
			{Kind: "more-specific", Net: prefix4, Seen: netip.MustParsePrefix("198.51.100.128/25"), Evidence: "path 3333 666", Since: ago(3 * time.Minute), Last: ago(time.Minute)},
			{Kind: "leak", Net: cover, Evidence: "AS64999 stands next to us and is no neighbour", Since: ago(time.Hour), Last: ago(time.Minute)},
			{Kind: "missing", Net: prefix6, Evidence: "announced for 11m, seen by nobody", Since: ago(time.Minute), Last: now},
		},
		Watch: edge.SourceState{Source: "https://ris-live.example/v1/stream", Updated: ago(2 * time.Second), Items: 81},
	}
}

// samplePast has 120 events, of which the last are one of each kind.
func samplePast() *health.Ring {
	r, now := &health.Ring{}, time.Now()
	for i := range 115 {
		from, to := "down", "up"
		if i%2 == 0 {
			from, to = to, from
		}
		r.Add(edge.Event{Time: now.Add(time.Duration(i-200) * time.Minute), Kind: "probe", Subject: "regions", From: from, To: to, Evidence: fmt.Sprintf("round %d", i)})
	}
	for i, e := range []edge.Event{
		{Kind: "bfd", Subject: "rr2", From: "up", To: "down", Evidence: "control detection time expired"},
		{Kind: "peer", Subject: "rr2", From: "established", To: "idle", Evidence: "BFD is down: control detection time expired"},
		{Kind: "probe", Subject: "api", From: "up", To: "full", Evidence: "alive but full: answered 429"},
		{Kind: "prefix", Subject: leaving.String(), From: "announced", To: "draining", Evidence: "drained: service web: new certificates"},
		{Kind: "probe", Subject: "dns", From: "up", To: "unknown"},
	} {
		e.Time = now.Add(time.Duration(i*40-200) * time.Second)
		r.Add(e)
	}
	return r
}

// past is a ring that the test can replace, as a restart does.
type past struct {
	mu   sync.Mutex
	ring *health.Ring
}

func (p *past) replace(r *health.Ring) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ring = r
}

func (p *past) Since(since uint64) ([]edge.Event, uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ring.Since(since)
}
