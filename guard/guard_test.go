package guard

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

var sick = Wish{Want: true, Severity: edge.SeveritySick, Reason: "proxy: connection refused"}

func claim(reason edge.Reason) []edge.Claim {
	return []edge.Claim{{Prefix: prefix1, Announcing: true, Rung: edge.Announced, Health: edge.Healthy, Since: time.Now(), Reason: reason}}
}

func TestReportsSpread(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 5, 1)
	f.start(0)
	if m := f.nodes[0].Members(); len(m) != 4 || m[0].Alive || m[0].Age >= 0 || m[0].Node != "b" || m[0].Site != "b" {
		t.Errorf("members before any was seen: %+v", m)
	}
	f.startRest()
	for _, n := range f.nodes {
		n.Publish(edge.Report{Says: claim("first of " + edge.Reason(n.ID)), Load: edge.LoadRow{Demand: 12.5, Regions: []edge.RegionView{{Region: "eu", Up: 1, Of: 2, RTT: time.Millisecond}}}})
	}
	saysOf := func(words edge.Reason) func() bool {
		return func() bool {
			for _, n := range f.nodes {
				for _, m := range n.Members() {
					if len(m.Report.Says) != 1 || !strings.HasPrefix(string(m.Report.Says[0].Reason), string(words)) || m.Age < 0 {
						return false
					}
				}
			}
			return true
		}
	}
	f.until("all know all", saysOf("first"))
	if m := f.nodes[0].report("c").Report; m.Load.Demand != 12.5 || m.Load.Regions[0].Region != "eu" || m.Site != "c" || m.Boot == 0 {
		t.Errorf("report of c at a: %+v", m)
	}
	began := time.Now()
	for _, n := range f.nodes {
		n.Publish(edge.Report{Says: claim("second of " + edge.Reason(n.ID)), Load: edge.LoadRow{}})
	}
	f.until("all know the second", saysOf("second"))
	t.Logf("second report of 5 known to all after %s", time.Since(began))
}

// manyClaims makes claims until the report has at least the size in bytes.
func manyClaims(t *testing.T, size int) []edge.Claim {
	var out []edge.Claim
	for i := 0; ; i++ {
		out = append(out, edge.Claim{
			Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), Announcing: true,
			Rung: edge.Degraded, Health: edge.HealthDegraded, Reason: edge.Reason(fmt.Sprintf("probe %d failed: %x", i, i*7919)),
		})
		if i%4 > 0 {
			continue
		}
		raw, err := encodeReport(edge.Report{Node: "a", Site: "a", Boot: time.Now().UnixNano(), Says: out}, keyOf("a"))
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) >= size {
			return out
		}
	}
}

// TestLargeReports: claims that just fit into a packet, and that do not, arrive
// before the next exchange of states.
func TestLargeReports(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	f.startAll()
	for _, size := range []int{maxRumor - 60, maxRumor + 1, 3 * maxRumor} {
		says := manyClaims(t, size)
		took := time.Hour
		for try := range 3 { // the machine does other things beside the tests
			says = slices.Clone(says)
			says[0].Reason = edge.Reason(fmt.Sprintf("probe 0 failed: %d", try)) // of one length
			began := time.Now()
			f.nodes[0].Publish(edge.Report{Says: says, Load: edge.LoadRow{}})
			f.until("b and c have the report", func() bool {
				return sameClaims(f.nodes[1].report("a").Report.Says, says) && sameClaims(f.nodes[2].report("a").Report.Says, says)
			})
			if took = min(took, time.Since(began)); took < 8*time.Second {
				break
			}
		}
		t.Logf("%d claims, over %d bytes: after %s", len(says), size, took)
		if took > 8*time.Second {
			t.Errorf("%d claims took %s: they came with the exchange of states", len(says), took)
		}
	}
}

func TestPermitAndLeave(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 4, 3)
	// What it looks at does not end while it looks, on a busy machine either.
	slow := edge.Guard{PromiseLease: 12 * time.Second, AskTimeout: 3 * time.Second, BackOff: 2 * time.Second}
	for i := range f.roster {
		f.start(i, func(o *Options) { o.Policy = slow })
	}
	f.until("all see all alive", func() bool { return f.seen(3) })
	a := f.nodes[0]
	if err := a.tryLeave(); err == nil || !strings.Contains(err.Error(), "no wish") {
		t.Errorf("left without a wish: %v", err)
	}
	a.Wish(prefix1, sick)
	if p := a.Permit(prefix1); p.OK || p.Needed != 3 {
		t.Errorf("permit at once: %+v", p)
	}
	f.until("a has its permit", func() bool { return a.Permit(prefix1).OK })
	p := a.State().Asking[prefix1]
	if fmt.Sprint(p.Promised) != "[b c d]" || time.Until(p.Until) > slow.PromiseLease {
		t.Errorf("permit: %+v", p)
	}
	bound := f.nodes[1].State().Bound
	if len(bound) != 1 || bound[0].To != "a" || bound[0].Prefix != prefix1 {
		t.Errorf("b is bound: %+v", bound)
	}
	bad := errors.New("edgebgp does not answer")
	var deadline time.Time
	err := a.Leave(context.Background(), prefix1, func(ctx context.Context) error {
		deadline, _ = ctx.Deadline()
		return bad
	})
	if !errors.Is(err, bad) || !deadline.Equal(p.Until) && time.Until(deadline) > slow.PromiseLease {
		t.Errorf("failed withdrawal: %v, deadline %s", err, deadline)
	}
	if p := a.Permit(prefix1); p.OK || !strings.Contains(string(p.Reason), "the withdrawal failed") {
		t.Errorf("permit after it: %+v", p)
	}
	f.until("a leaves with a new permit", func() bool { return a.tryLeave() == nil })
	f.until("all are free again", func() bool {
		return len(f.nodes[1].State().Bound)+len(f.nodes[2].State().Bound)+len(f.nodes[3].State().Bound) == 0
	})
	b := f.nodes[1]
	b.Wish(prefix1, sick)
	f.until("b is refused since a is gone", func() bool {
		p := b.Permit(prefix1)
		return p.Refused && strings.Contains(string(p.Reason), "a: it ")
	})
	b.Wish(prefix1, Wish{})
	if s := b.State(); len(s.Asking) != 0 {
		t.Errorf("still asking: %+v", s.Asking)
	}
}

// TestManyPrefixes: a site that falls sick asks for all its prefixes at once.
func TestManyPrefixes(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 2)
	var all []edge.Prefix
	for i := range 300 {
		all = append(all, edge.Prefix{Net: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), MinSites: 2})
	}
	for i := range f.roster {
		f.start(i, func(o *Options) {
			o.Prefixes, o.Held = all, func(netip.Prefix) bool { return true }
			// A round puts each question three times, which fits the queue of a
			// link; that of the next round on a busy machine need not.
			o.Policy.PromiseLease, o.Policy.AskTimeout = 16*time.Second, 8*time.Second
		})
	}
	a := f.nodes[0]
	for _, p := range all {
		a.Wish(p.Net, sick)
	}
	f.until("a permit for each", func() bool {
		for _, p := range all {
			if !a.Permit(p.Net).OK {
				return false
			}
		}
		return true
	})
	for _, n := range f.nodes {
		for reason, count := range n.State().Dropped {
			if reason == "send_queue_full" || reason == "inbox_full" || reason == "send_expired" {
				t.Errorf("%s: %s %d", n.ID, reason, count)
			}
		}
	}
}

// TestAllSick: of five nodes with a floor of three, two leave and no more.
func TestAllSick(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 5, 3)
	f.startAll()
	for _, n := range f.nodes {
		n.Wish(prefix1, sick)
	}
	refused := 0
	f.until("two left, and the others were refused many times", func() bool {
		for _, n := range f.nodes {
			if n.held.Load() && n.Permit(prefix1).OK && n.tryLeave() == nil {
				n.Wish(prefix1, Wish{})
			}
			if p := n.Permit(prefix1); p.Refused && n.held.Load() {
				refused++
			}
		}
		if on := f.announcing(); on < f.floor {
			t.Fatalf("%d sites announce, floor %d", on, f.floor)
		}
		return f.announcing() == 3 && refused > 500
	})
}

func TestAloneStays(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	a := f.start(0)
	a.Wish(prefix1, sick)
	if p := a.Permit(prefix1); p.OK || !p.Refused || !strings.Contains(string(p.Reason), "forgotten") {
		t.Errorf("permit right after the start: %+v", p)
	}
	f.until("a is refused for want of answers", func() bool {
		return strings.Contains(string(a.Permit(prefix1).Reason), "0 of 1 other sites promised to stay; b: no answer; c: no answer")
	})
	if err := a.tryLeave(); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("left alone: %v", err)
	}
}

// TestStopAndRejoin: a node that stops is noticed within seconds, and one that
// starts again at the same address is taken back, its newer reports too.
func TestStopAndRejoin(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	f.startAll()
	c := f.nodes[2]
	c.Publish(edge.Report{Says: claim("before"), Load: edge.LoadRow{}})
	f.until("a knows c's report", func() bool { return f.nodes[0].report("c").Age >= 0 })
	began := time.Now()
	c.stop()
	f.nodes[2] = nil
	f.until("c is seen dead", func() bool { return f.seen(1) })
	t.Logf("dead after %s", time.Since(began))
	if f.nodes[0].report("c").Age < 0 {
		t.Error("the last report of a dead node is lost")
	}
	began = time.Now()
	c = f.start(2)
	f.until("c is back", func() bool { return f.seen(2) })
	t.Logf("back after %s", time.Since(began))
	c.Publish(edge.Report{Says: claim("after"), Load: edge.LoadRow{}})
	f.until("its report replaces the old one", func() bool { return f.nodes[0].report("c").Report.Says[0].Reason == "after" })
}

// TestClockWentBack: a restarted node whose clock is behind is listened to.
func TestClockWentBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, 1)
	f.startAll()
	later := edge.Report{Node: "b", Site: "b", Boot: time.Now().Add(time.Hour).UnixNano(), Seq: 9, Says: claim("old")}
	raw, err := encodeReport(later, keyOf("b"))
	if err != nil {
		t.Fatal(err)
	}
	f.nodes[0].hear(raw, time.Minute, false)
	if m := f.nodes[0].report("b"); m.Age < time.Minute {
		t.Errorf("age of an old report: %s", m.Age)
	}
	f.nodes[1].Publish(edge.Report{Says: claim("new"), Load: edge.LoadRow{}})
	f.until("a believes b's new report", func() bool { return f.nodes[0].report("b").Report.Says[0].Reason == "new" })
}

func TestChangedSignals(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, 1)
	f.startAll()
	a, b := f.nodes[0], f.nodes[1]
	drain := func() {
		select {
		case <-a.Changed():
		default:
		}
	}
	signalled := func(what string, do func()) {
		t.Helper()
		drain()
		do()
		select {
		case <-a.Changed():
		case <-time.After(20 * time.Second):
			t.Errorf("no signal: %s", what)
		}
	}
	signalled("a claim", func() { b.Publish(edge.Report{Says: claim("x"), Load: edge.LoadRow{}}) })
	signalled("a wish", func() { a.Wish(prefix1, sick) })
	f.until("permit", func() bool { return a.Permit(prefix1).OK })
	signalled("the loss of a permit", func() {})
}

func TestUpdateRoster(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	both, prefixes := f.roster[:2], []edge.Prefix{{Net: prefix1, MinSites: 1}}
	small := func(o *Options) { o.Roster = both }
	a, b := f.start(0, small), f.start(1, small)
	f.start(2)
	f.until("a and b see each other", func() bool { return a.alive() == 1 && b.alive() == 1 })
	f.until("c is a stranger", func() bool { return a.State().Dropped["stranger"] > 0 })
	update := func(n *node, roster []edge.Node, policy edge.Guard) {
		n.Update(Settings{Roster: roster, Prefixes: prefixes, Policy: policy})
	}
	update(a, f.roster, quick)
	update(b, f.roster, quick)
	f.until("c is in", func() bool { return f.seen(2) })
	update(a, f.roster[1:], quick) // without itself: refused
	update(a, f.roster, edge.Guard{})
	if len(a.Members()) != 2 {
		t.Error("took an update that cannot work")
	}
}

func TestNewRefuses(t *testing.T) {
	f := newFleet(t, 2, 1)
	good := f.options(0)
	good.Held = func(netip.Prefix) bool { return true }
	for name, spoil := range map[string]func(*Options){
		"short key":  func(o *Options) { o.Keys = [][]byte{key1[:16]} },
		"no key":     func(o *Options) { o.Keys = nil },
		"same key":   func(o *Options) { o.Keys = [][]byte{key1, key2, key1} },
		"many keys":  func(o *Options) { o.Keys = manyKeys(MaxKeys + 1) },
		"no own key": func(o *Options) { o.NodeKey = nil },
		"b's key":    func(o *Options) { o.NodeKey = keyOf("b") },
		"odd key":    func(o *Options) { o.NodeKey = keyOf("z") },
		"one key for two": func(o *Options) {
			o.Roster = slices.Clone(o.Roster)
			o.Roster[1].PublicKey = o.Roster[0].PublicKey
		},
		"no public key": func(o *Options) {
			o.Roster = slices.Clone(o.Roster)
			o.Roster[1].PublicKey = edge.NodeKey{}
		},
		"no bind":    func(o *Options) { o.Bind = netip.AddrPort{} },
		"no held":    func(o *Options) { o.Held = nil },
		"not in it":  func(o *Options) { o.Self = "z" },
		"twice":      func(o *Options) { o.Roster = append(o.Roster[:2:2], o.Roster[0]) },
		"no address": func(o *Options) { o.Roster = []edge.Node{{ID: "a", Site: "a", PublicKey: PublicKey(keyOf("a"))}} },
		"policy":     func(o *Options) { o.Policy.PromiseLease = o.Policy.AskTimeout },
	} {
		o := good
		spoil(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	g, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Run(ctx); err != nil {
		t.Errorf("run with an ended context: %v", err)
	}
	if err := g.Run(ctx); err == nil {
		t.Error("ran twice")
	}
}
