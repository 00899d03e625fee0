package xdp

import (
	"testing"

	"github.com/catchment-dev/edge"
)

// A flow that has shown one packet is forgotten after its time too, where the
// next packet would otherwise have found it.
func TestHalfOpenFlowEnds(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 8)
	newRing, feed, moved := byTheRing(t, b), d.feeder(), 0
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b[:4]...)))
	old := make([]int, someFlows)
	for i := range old {
		old[i] = feed.to(t, from(tcpTo(vipA, flagACK), i))
	}
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b...)))
	d.leave(t, -1)
	for i := range old {
		f := from(tcpTo(vipA, flagACK), i)
		got := feed.to(t, f)
		if want := newRing(f, 5); nameOfNumber(got) != want {
			t.Fatalf("flow %d, forgotten, went to b%d, the ring says %s", i, got, want)
		}
		if got != old[i] {
			moved++
		}
	}
	if moved == 0 {
		t.Error("the new ring moves nobody")
	}
}

// A flow follows its own entry only: not one whose hash differs in a single bit,
// of those that the word of a bucket has.
func TestNobodyFollowsAnothersEntry(t *testing.T) {
	d := policyBox(t, 1) // one bucket: all that is in the table is searched
	b := pool(t, 2)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b...)))
	feed := d.feeder()
	f := from(tcpTo(vipA, flagACK), 1)
	own := feed.to(t, f)
	feed.to(t, f)
	for hash, e := range d.flows.All() {
		other := e
		for id, x := range d.state.backend.have {
			if id != e.Backend {
				other.Backend, other.Generation = id, x.gen()
			}
		}
		for bit := range 48 {
			d.forgetFlows()
			d.flows.Put(hash^1<<bit, other, e.Until)
			if got := feed.to(t, f); got != own {
				t.Fatalf("bit %d: the flow follows another's entry to b%d", bit, got)
			}
		}
		d.forgetFlows()
		d.flows.Put(hash, other, e.Until)
		if got := feed.to(t, f); got != 1-own {
			t.Errorf("the flow does not follow its own entry, but goes to b%d", got)
		}
		return
	}
	t.Error("the flow is not in the table")
}
