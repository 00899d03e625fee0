package guard

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
)

// alone returns a guard of a fleet of n that does not run.
func alone(t *testing.T, n int, tweak ...func(*Options)) *Guard {
	t.Helper()
	f := newFleet(t, n, 0)
	o := f.options(0)
	for _, do := range tweak {
		do(&o)
	}
	o.Held = func(netip.Prefix) bool { return true }
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestPublishIsPaced: what is new goes out at once, figures by how much they have
// changed and how large the fleet is, and what is the same not at all.
func TestPublishIsPaced(t *testing.T) {
	row := func(demand float64) edge.LoadRow {
		return edge.LoadRow{Demand: demand, Regions: []edge.RegionView{{Region: "eu", Up: 1, Of: 1, RTT: 10 * time.Millisecond}}}
	}
	for _, c := range []struct {
		what     string
		nodes    int
		load     func(second int) edge.LoadRow
		min, max uint64 // reports in 10 minutes
	}{
		{"nothing changes", 12, func(int) edge.LoadRow { return row(100) }, 1, 1},
		{"a small fleet, busy", 20, func(i int) edge.LoadRow { return row(float64(100 * (1 + i%2))) }, 590, 601},
		{"a small fleet, noise", 20, func(i int) edge.LoadRow { return row(100 + float64(i%3)) }, 15, 21},
		{"300, busy", 300, func(i int) edge.LoadRow { return row(float64(100 * (1 + i%2))) }, 55, 140},
		{"300, noise", 300, func(i int) edge.LoadRow { return row(100 + float64(i%3)) }, 1, 4},
		{"300, an upstream fails once", 300, func(i int) edge.LoadRow {
			r := row(100)
			if i > 300 {
				r.Regions[0].Up = 0
			}
			return r
		}, 2, 2},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, says := alone(t, c.nodes), claim("same")
				for i := range 600 {
					for range 4 {
						g.Publish(edge.Report{Says: says, Load: c.load(i)})
						time.Sleep(250 * time.Millisecond)
					}
				}
				if g.seq < c.min || g.seq > c.max {
					t.Errorf("%d reports in 10 minutes, want %d to %d", g.seq, c.min, c.max)
				}
				if age := time.Since(g.vouched); age > time.Second {
					t.Errorf("vouched %s ago", age)
				}
			})
		})
	}
}

// TestNewsGoesAtOnce: but one node cannot keep the whole fleet busy.
func TestNewsGoesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := alone(t, 300)
		for i := range newsBurst {
			g.Publish(edge.Report{Says: claim(edge.Reason(fmt.Sprint("claim ", i)))})
			if g.seq != uint64(i+1) || g.rumored != g.seq {
				t.Errorf("claim %d did not go out at once", i)
			}
		}
		stood := g.vouched
		time.Sleep(100 * time.Millisecond)
		g.Publish(edge.Report{Says: claim("too many")})
		if g.seq != newsBurst || g.vouched != stood {
			t.Errorf("%d reports; vouched for one that is not the last word: %t", g.seq, g.vouched != stood)
		}
		time.Sleep(newsEvery)
		g.refresh(time.Now())
		if g.seq != newsBurst+1 || g.own.report.Says[0].Reason != "too many" {
			t.Errorf("%d reports, the last one %+v", g.seq, g.own.report.Says)
		}
		g.Publish(edge.Report{Says: g.own.report.Says, Load: edge.LoadRow{Demand: math.NaN()}})
		time.Sleep(newsEvery)
		g.refresh(time.Now())
		if g.drops.all()["own_report"] != 1 {
			t.Errorf("a load that is no number: %v", g.drops.all())
		}
	})
}

// TestFresh: what the fleet sizes come to, by calculation.
func TestFresh(t *testing.T) {
	for _, c := range []struct {
		nodes        int
		pulse, fresh time.Duration
	}{{2, time.Second, 10 * time.Second}, {20, time.Second, 10 * time.Second}, {24, 3200 * time.Millisecond, 10 * time.Second}, {30, 4 * time.Second, 12 * time.Second}, {300, 40 * time.Second, 120 * time.Second}} {
		g := alone(t, c.nodes, func(o *Options) { o.Policy.PromiseLease = 10 * time.Second })
		if got := pulseEvery(c.nodes); got != c.pulse || g.fresh() != c.fresh {
			t.Errorf("%d nodes: pulses each %s, fresh for %s; want %s, %s", c.nodes, got, g.fresh(), c.pulse, c.fresh)
		}
	}
}

// told is a report of b as it comes from the network.
func told(t *testing.T, node edge.NodeID, boot int64, seq uint64) []byte {
	t.Helper()
	raw, err := encodeReport(edge.Report{Node: node, Site: edge.SiteID(node), Boot: boot, Seq: seq, Says: claim(edge.Reason(fmt.Sprint(seq)))}, keyOf(node))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestPulseKeepsAWordFresh: the sender vouches for its last report, and for no
// other; what it said before it was asleep is as old as that.
func TestPulseKeepsAWordFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := alone(t, 3)
		boot := time.Now().UnixNano()
		g.Publish(edge.Report{Says: claim("own")})
		g.hear(told(t, "b", boot, 4), 0, false)
		if m := g.Members()[0]; m.Age != g.doubt() || m.Said != 0 {
			t.Errorf("passed on by others: %s, said %s ago", m.Age, m.Said)
		}
		time.Sleep(time.Minute)
		p := pulse{head: head{node: "b", site: "b", boot: boot, to: "a", toBoot: g.boot}, stands: 4, age: 2 * time.Second, made: 3 * time.Minute}
		next := func(do func()) func() {
			return func() {
				time.Sleep(2 * time.Second)
				p.seq++
				do()
			}
		}
		for _, s := range []struct {
			what          string
			do            func()
			age, said     time.Duration
			answer, lacks bool
		}{
			{"the first of a process that is not known but by its report", next(func() {}), 2 * time.Second, 3 * time.Minute, false, true},
			{"for another process", next(func() { p.toBoot = 77 }), 4 * time.Second, 182 * time.Second, true, true},
			{"for any", next(func() { p.toBoot = 0 }), 6 * time.Second, 184 * time.Second, true, true},
			{"a newer report", next(func() { p.toBoot, p.stands = g.boot, 5 }), 8 * time.Second, 186 * time.Second, true, true},
			{"and again at once", func() { p.seq++ }, 8 * time.Second, 186 * time.Second, false, false},
			{"back at an old one: it is not believed", next(func() { p.stands, p.age = 3, 0 }), 10 * time.Second, 188 * time.Second, false, true},
			{"it has ours", next(func() { g.hear(told(t, "b", boot, 5), 0, false); p.stands, p.knows = 5, head{boot: g.boot, seq: g.seq} }), 0, 3 * time.Minute, false, false},
			{"an earlier process", next(func() { p.boot-- }), 2 * time.Second, 182 * time.Second, false, true},
			{"a later one", next(func() { p.boot += 2 }), 4 * time.Second, 184 * time.Second, true, false},
		} {
			s.do()
			answer, lacks := g.note(p, time.Now())
			m := g.Members()[0]
			if answer != s.answer || (lacks != nil) != s.lacks || m.Age != s.age || m.Said != s.said {
				t.Errorf("%s: answer %t, lacks %t, age %s, said %s; want %+v", s.what, answer, lacks != nil, m.Age, m.Said, s)
			}
		}
	})
}

// TestNewerThanVouched: a report that comes after a pulse was said since then; one
// that comes before its own pulse is vouched for by that.
func TestNewerThanVouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := alone(t, 2)
		p := pulse{head: head{node: "b", site: "b", boot: 5, seq: 1, to: "a", toBoot: g.boot}, stands: 2, made: time.Second}
		g.note(p, time.Now())
		time.Sleep(3 * time.Second)
		g.hear(told(t, "b", 5, 1), 0, false)
		if m := g.Members()[0]; m.Age != g.doubt() {
			t.Errorf("older than what stands: %s", m.Age)
		}
		time.Sleep(takeEvery)
		g.hear(told(t, "b", 5, 2), 0, true)
		if m := g.Members()[0]; m.Age != 3*time.Second+takeEvery || m.Said != 4*time.Second+takeEvery {
			t.Errorf("what stands: %s, said %s ago", m.Age, m.Said)
		}
		time.Sleep(takeEvery)
		g.hear(told(t, "b", 5, 9), 0, true)
		if m := g.Members()[0]; m.Age != 3*time.Second+2*takeEvery || m.Said != 0 {
			t.Errorf("newer: %s, said %s ago", m.Age, m.Said)
		}
	})
}

// TestReadsTheLatest: of many reports of one node that come at once, the last one
// is read, and few. A forged one pushes none out.
func TestReadsTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := alone(t, 3)
		for i := range 100 {
			g.hear(told(t, "b", 1, uint64(i+1)), 0, true)
			forged, err := encodeReport(edge.Report{Node: "b", Site: "b", Boot: 1, Seq: uint64(1000 + i)}, keyOf("c"))
			if err != nil {
				t.Fatal(err)
			}
			g.hear(forged, 0, true)
		}
		if m := g.Members()[0].Report; m.Seq != 1 {
			t.Errorf("read %d", m.Seq)
		}
		time.Sleep(takeEvery)
		g.readLate(time.Now())
		if m := g.Members()[0].Report; m.Seq != 100 || m.Says[0].Reason != "100" {
			t.Errorf("then %d, %+v", m.Seq, m.Says)
		}
		if n := g.drops.all()["bad_signature"]; n != 100 {
			t.Errorf("%d forged ones counted", n)
		}
	})
}

// TestChecksAreBounded: signatures beyond what there is time for are not checked.
func TestChecksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := alone(t, 2)
		most := int(checkBurst / checkCost(nil))
		beat := func(i int) error {
			_, err := g.takePulse(encodePulse(pulse{head: head{node: "b", site: "b", boot: 5, seq: uint64(i), to: "a"}}, keyOf("a")))
			return err
		}
		g.checks[kindPulse].spend(time.Now(), checkBurst-10*checkCost(nil), checkBurst) // by others
		for i := range 20 {
			want := errTooMany
			if i < 9 { // a pulse is not of 0 bytes
				want = errSignature
			}
			if err := beat(i + 1); err != want {
				t.Errorf("pulse %d: %v", i, err)
			}
		}
		time.Sleep(time.Second)
		if err := beat(most); err != errSignature {
			t.Errorf("a second later: %v", err)
		}
	})
}

// TestDigest: each side is sent what it lacks, and no more, and no word is fresh for
// what a digest says.
func TestDigest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, c := alone(t, 4), alone(t, 4)
		c.self = "c"
		a.Publish(edge.Report{Says: claim("a")})
		a.hear(told(t, "b", 1, 7), time.Hour, false)
		a.hear(told(t, "d", 1, 2), time.Hour, false)
		c.hear(told(t, "b", 1, 7), time.Hour, false)
		c.hear(told(t, "d", 1, 3), time.Hour, false)
		from, all, err := decodeDigest(c.digest())
		if err != nil || from != "c" || len(all) != 2 {
			t.Fatalf("digest of %s: %+v, %v", from, all, err)
		}
		var lacks []byte
		if lacks = a.lacking(from, all); lacks == nil || string(lacks) != string(appendState([]byte{version, kindState}, a.own.raw, 0)) {
			t.Errorf("c lacks %d bytes", len(lacks))
		}
		if a.lacking(from, all) != nil {
			t.Error("and again at once")
		}
		if age := a.Members()[0].Age; age != time.Hour {
			t.Errorf("age of b: %s", age)
		}
		_, all, _ = decodeDigest(a.digest())
		time.Sleep(takeEvery)
		a.mergeState(c.lacking("a", all))
		if m := a.Members()[2]; m.Report.Seq != 3 || m.Age != time.Hour+takeEvery {
			t.Errorf("d at a: %+v", m)
		}
	})
}

// TestStateIsBounded: what is sent at once fits; one report that is larger goes alone.
func TestStateIsBounded(t *testing.T) {
	g := alone(t, 4)
	for i, id := range []edge.NodeID{"b", "c", "d"} {
		g.heard[id] = &heard{report: edge.Report{Boot: 1, Seq: 1}, raw: make([]byte, stateSize/2+i)}
	}
	if n := len(g.lacking("d", nil)); n > stateSize || n < stateSize/2 {
		t.Errorf("%d bytes at once", n)
	}
	g.heard = map[edge.NodeID]*heard{"b": {report: edge.Report{Boot: 1, Seq: 1}, raw: make([]byte, 2*stateSize)}}
	if n := len(g.lacking("c", nil)); n < 2*stateSize {
		t.Errorf("a large report: %d bytes", n)
	}
}

// TestFloodOfMessages: letters of the protocol come first, but forged ones without end
// leave time for the signs of life of the others.
func TestFloodOfMessages(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	f.startAll()
	a, says := f.nodes[0], claim("same")
	fresh := func() bool {
		for _, n := range f.nodes {
			n.Publish(edge.Report{Says: says})
		}
		m := a.report("c")
		return m.Age >= 0 && m.Age < 1500*time.Millisecond
	}
	f.until("c is heard", fresh)
	body := bytes.Repeat([]byte(" "), maxBatchBytes) // as dear to check as may be
	raw := sign(append(head{node: "b", site: "b", boot: maxBoot, seq: 1, to: "a"}.append(kindMessages), body...), keyOf("z"))
	stop, over := make(chan struct{}), sync.WaitGroup{}
	over.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			for range 2 * inboxBytes / len(raw) { // it is full all the time
				(*delegate)(a.Guard).NotifyMsg(raw)
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	})
	defer over.Wait()
	defer close(stop)
	oldest, begin := time.Duration(0), time.Now()
	f.until("six seconds are over", func() bool {
		fresh()
		oldest = max(oldest, a.report("c").Age)
		return time.Since(begin) > 6*time.Second
	})
	if n := a.State().Dropped["bad_signature"]; n < 100 || oldest > 4*time.Second {
		t.Errorf("%d forged letters read, meanwhile c was last heard %s ago", n, oldest)
	}
}
