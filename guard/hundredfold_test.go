package guard

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

// TestHundredfold: 100 times the normal rate of valid traffic costs a bounded
// amount of work and memory, and does not hold up a decision. It is not parallel:
// the work is that of the process.
func TestHundredfold(t *testing.T) {
	f := newFleet(t, 5, 3)
	f.startAll()
	halt := f.tellAll()
	defer halt()
	f.until("all known", f.known)
	decide := func(n *node) time.Duration {
		n.Wish(prefix1, sick)
		began := time.Now()
		f.until("a permit", func() bool { return n.Permit(prefix1).OK })
		took := time.Since(began)
		n.Wish(prefix1, Wish{})
		return took
	}
	f.until("the first promises are not forgotten any more", func() bool { return time.Since(f.nodes[4].started) > quick.PromiseLease })
	decide(f.nodes[0])
	before := decide(f.nodes[0])
	const tries = 3 // the machine does other things beside the tests
	for i := range tries {
		bad := f.flooded(uint64(i)*inFlood, func() time.Duration { return decide(f.nodes[0]) })
		if bad == "" {
			break
		}
		t.Log(bad)
		if i == tries-1 {
			t.Errorf("%d times too much", tries)
		}
	}
	t.Logf("a permit before took %s", before)
	for _, n := range f.nodes[1:] { // what it says now is newer than the flood
		n.mu.Lock()
		n.seq, n.beats = floodSeq+tries*inFlood, floodSeq+tries*inFlood
		n.mu.Unlock()
		n.Publish(edge.Report{Says: claim("after the flood")})
	}
	f.until("the last word of each is known", func() bool {
		for _, n := range f.nodes[1:] {
			if m := f.nodes[0].report(n.ID); m.Age > f.nodes[0].fresh() || m.Report.Seq < floodSeq+tries*inFlood {
				return false
			}
		}
		return true
	})
}

// Normal is at most a report, a message and a pulse a second of each node.
const (
	floodRate = 100
	floodTime = 3 * time.Second
	inFlood   = uint64(floodTime/time.Second) * floodRate // of each
)

// flooded has all but the first node send it a flood, while it decides again and
// again, and says what was too much; empty: nothing. first numbers the flood.
func (f *fleet) flooded(first uint64, decide func() time.Duration) (bad string) {
	t := f.t
	t.Helper()
	var all []func()
	for i := range inFlood {
		for _, n := range f.nodes[1:] {
			all = append(all, n.flood(t, f.nodes[0], first+i))
		}
	}
	late := make(chan time.Duration, 1)
	go func() {
		began, sent := time.Now(), 0
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for sent < len(all) {
			<-tick.C
			for due := int(time.Since(began).Seconds() * floodRate * 4); sent < min(due, len(all)); sent++ {
				all[sent]()
			}
		}
		late <- time.Since(began) - floodTime
	}()
	began, work, memory := time.Now(), processTime(t), heap()
	var slowest time.Duration
	for time.Since(began) < floodTime {
		slowest = max(slowest, decide())
	}
	window := time.Since(began)
	used, grown := processTime(t)-work, int64(heap())-int64(memory)
	longer := <-late
	t.Logf("%.0f messages a second: %.0f %% of a core for all five, heap %+d KiB, permits within %s",
		float64(3*len(all))/floodTime.Seconds(), 100*used.Seconds()/window.Seconds(), grown>>10, slowest)
	switch {
	case longer > floodTime/2:
		return fmt.Sprintf("the flood took %s longer: it was none of 100 times the rate", longer)
	case used > window*3/2:
		return fmt.Sprintf("the flood took %s of work in %s", used, window)
	case grown > 64<<20:
		return fmt.Sprintf("the heap grew by %d bytes", grown)
	case slowest > 3*time.Second:
		return fmt.Sprintf("a permit took %s", slowest)
	}
	return ""
}

// floodSeq is over what the nodes themselves say.
const floodSeq = 1 << 20

// flood prepares a new report of n, a pulse and a message, and returns what sends
// them to one node.
func (n *node) flood(t *testing.T, to *node, i uint64) func() {
	t.Helper()
	raw, err := encodeReport(edge.Report{Node: n.ID, Site: n.Site, Boot: n.boot, Seq: floodSeq + i, Says: claim(edge.Reason(fmt.Sprint("flood ", i)))}, keyOf(n.ID))
	if err != nil {
		t.Fatal(err)
	}
	beat := encodePulse(pulse{head: head{node: n.ID, site: n.Site, boot: n.boot, seq: floodSeq + i, to: to.ID, toBoot: to.boot}, stands: floodSeq + i}, keyOf(n.ID))
	message := promise.Message{Kind: promise.Release, From: n.ID, To: to.ID, Prefix: prefix1, Round: promise.Round{Boot: 1, N: i}}
	return func() {
		(*delegate)(to.Guard).NotifyMsg(raw)
		(*delegate)(to.Guard).NotifyMsg(beat)
		n.do(func(time.Time) []promise.Message { return []promise.Message{message} })
	}
}

// processTime is how much CPU time this process has used.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap is what is in use, in bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestInbox: what waits is bounded in number and in bytes, and what is asked does
// not wait behind what is told.
func TestInbox(t *testing.T) {
	g := alone(t, 2)
	d := (*delegate)(g)
	state := []byte{version, kindState}
	for range 2 * inboxSize {
		d.NotifyMsg(state)
	}
	if n := g.drops.all()["inbox_full"]; n != inboxSize || len(g.inbox.ch) != inboxSize {
		t.Errorf("%d dropped, %d kept", n, len(g.inbox.ch))
	}
	for len(g.inbox.ch) > 0 {
		g.take(g.inbox.read(<-g.inbox.ch), nil)
	}
	large := append(state, make([]byte, maxReport)...)
	for range 100 {
		d.NotifyMsg(large)
	}
	if n := g.inbox.bytes.Load(); n > inboxBytes || len(g.inbox.ch) != inboxBytes/len(large) {
		t.Errorf("%d bytes wait in %d messages", n, len(g.inbox.ch))
	}
	d.NotifyMsg((&forger{boot: 5}).messages("b", nil))
	if len(g.asks.ch) != 1 {
		t.Errorf("a question waits behind reports: %v", g.drops.all())
	}
	for len(g.inbox.ch) > 0 {
		g.take(g.inbox.read(<-g.inbox.ch), nil)
	}
	if n := g.inbox.bytes.Load(); n != 0 {
		t.Errorf("%d bytes wait in an empty inbox", n)
	}
}
