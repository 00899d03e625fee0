package promise

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

var (
	net1 = netip.MustParsePrefix("192.0.2.0/24")
	net2 = netip.MustParsePrefix("2001:db8::/48")
)

// rig is a fleet whose network delivers at once, unless a node is cut.
type rig struct {
	t     *testing.T
	now   time.Time
	nodes map[edge.NodeID]*Node
	held  map[edge.NodeID]bool
	cut   map[edge.NodeID]bool
	sick  map[edge.NodeID]bool // the hint
	drops map[string]int
	log   []string
	sent  []Message
}

// newRig makes nodes from names like "a1": site a, node a1. Floor 1 for net1
// and net2, lease 10 s, settled unless started says otherwise.
func newRig(t *testing.T, floor int, names ...string) *rig {
	r := &rig{t: t, now: time.Unix(1000, 0), nodes: map[edge.NodeID]*Node{}, held: map[edge.NodeID]bool{},
		cut: map[edge.NodeID]bool{}, sick: map[edge.NodeID]bool{}, drops: map[string]int{}}
	for _, name := range names {
		id := edge.NodeID(name)
		r.held[id] = true
		n, err := New(Options{
			Self: id, Boot: 7, Started: r.now.Add(-time.Minute), Settings: rigSettings(floor, names...),
			Held: func(netip.Prefix) bool { return r.held[id] },
			Sick: func(id edge.NodeID, _ netip.Prefix) bool { return r.sick[id] },
			Drop: func(why string) { r.drops[why]++ }, Rand: rand.New(rand.NewPCG(1, 1)),
		})
		if err != nil {
			t.Fatal(err)
		}
		r.nodes[id] = n
	}
	return r
}

func rigSettings(floor int, names ...string) Settings {
	s := Settings{
		Policy:   edge.Guard{PromiseLease: 10 * time.Second, AskTimeout: time.Second, BackOff: 200 * time.Millisecond},
		Prefixes: []edge.Prefix{{Net: net1, MinSites: floor}, {Net: net2, MinSites: floor}},
	}
	for _, name := range names {
		s.Roster = append(s.Roster, edge.Node{ID: edge.NodeID(name), Site: edge.SiteID(name[:1])})
	}
	return s
}

func (r *rig) deliver(out []Message) {
	for len(out) > 0 {
		m := out[0]
		out = out[1:]
		r.sent = append(r.sent, m)
		r.log = append(r.log, fmt.Sprintf("%s>%s %s %s", m.From, m.To, m.Kind, m.Reason))
		if !r.cut[m.From] && !r.cut[m.To] {
			out = append(out, r.nodes[m.To].Receive(r.now, m)...)
		}
	}
}

// pass lets d go by in ticks of 100 ms.
func (r *rig) pass(d time.Duration) {
	for ; d > 0; d -= 100 * time.Millisecond {
		r.now = r.now.Add(100 * time.Millisecond)
		for _, id := range slices.Sorted(maps.Keys(r.nodes)) {
			r.deliver(r.nodes[id].Tick(r.now))
		}
	}
}

func (r *rig) wish(id edge.NodeID, severity int) {
	r.deliver(r.nodes[id].Wish(r.now, net1, Wish{Want: true, Severity: severity, Reason: "test"}))
}

// mute makes id wish without asking.
func (r *rig) mute(id edge.NodeID, severity int) {
	s := r.nodes[id].seats[net1]
	s.wish, s.next = Wish{Want: true, Severity: severity}, r.now.Add(time.Hour)
}

func (r *rig) permit(id edge.NodeID) edge.Permit { return r.nodes[id].Permit(r.now, net1) }

// want fails unless the permit of id is as said, with words in its reason.
func (r *rig) want(id edge.NodeID, ok bool, words ...string) edge.Permit {
	r.t.Helper()
	p := r.permit(id)
	if p.OK != ok {
		r.t.Fatalf("permit of %s: %+v, want ok %v\n%s", id, p, ok, strings.Join(r.log, "\n"))
	}
	for _, w := range words {
		if !strings.Contains(string(p.Reason), w) {
			r.t.Errorf("permit of %s says %q, want %q in it", id, p.Reason, w)
		}
	}
	return p
}

// leave is a withdrawal that succeeds.
func (r *rig) leave(id edge.NodeID) {
	r.t.Helper()
	if _, err := r.nodes[id].Begin(r.now, net1); err != nil {
		r.t.Fatalf("begin %s: %v", id, err)
	}
	r.held[id] = false
	r.deliver(r.nodes[id].End(r.now, net1, true))
}
