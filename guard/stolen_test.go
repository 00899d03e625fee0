package guard

import (
	"crypto/ed25519"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

// TestStolenKeyEnds: who had a node's key has used up its numbers, at the others and at
// itself. With another key it speaks and asks as ever, with no restart of anybody, and
// after one of its own as well.
func TestStolenKeyEnds(t *testing.T) {
	for _, boot := range []int64{maxBoot, maxBoot - 1} {
		t.Run(fmt.Sprint(boot), func(t *testing.T) { stolenKeyEnds(t, boot) })
	}
}

func stolenKeyEnds(t *testing.T, boot int64) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	spare := netip.AddrPortFrom(f.roster[2].Gossip.Addr().Next(), 7946)
	f.startAll()
	a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
	r := &recorder{Memberlist: f.insider("z", spare)}
	for _, to := range []*node{b, c} {
		m := promise.Message{Kind: promise.Intent, From: "a", To: to.ID, Prefix: prefix1, Round: promise.Round{Boot: boot, N: math.MaxUint64}, Severity: edge.SeveritySick}
		for seq := range uint64(2) {
			r.say(t, to, encodeMessages(head{node: "a", site: "a", boot: boot, seq: seq + 1, to: to.ID}, []promise.Message{m}, keyOf("a")))
		}
		f.until(string(to.ID)+" has taken one question, and not the other", func() bool { return to.State().Dropped["stale_round"] == 1 })
	}
	own, err := encodeReport(edge.Report{Node: "a", Site: "a", Boot: boot, Seq: math.MaxUint64}, keyOf("a"))
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []*node{a, b, c} {
		r.say(t, to, own)
	}
	f.until("all have heard of it", func() bool {
		return b.report("a").Report.Boot >= boot && c.report("a").Report.Boot >= boot && (a.State().Dropped["boot_spent"] > 0 || a.bootNow() > boot)
	})

	roster := slices.Clone(f.roster)
	roster[0].PublicKey = PublicKey(keyOf("a, the second"))
	with := func(key ed25519.PrivateKey) Settings {
		return Settings{Roster: roster, Prefixes: []edge.Prefix{{Net: prefix1, MinSites: 1}}, Policy: quick, NodeKey: key}
	}
	a.Update(with(keyOf("a, the second")))
	b.Update(with(nil))
	c.Update(with(nil))
	works := func(words edge.Reason) {
		t.Helper()
		f.until("a is heard: "+string(words), func() bool {
			a.Publish(edge.Report{Says: claim(words)})
			m := b.report("a")
			return m.Age >= 0 && m.Age < 2*time.Second && len(m.Report.Says) == 1 && m.Report.Says[0].Reason == words
		})
		a.Wish(prefix1, sick)
		f.until("a gets leave: "+string(words), func() bool { return a.Permit(prefix1).OK })
	}
	works("itself")
	a.stop()
	a = f.start(0, func(o *Options) { o.Roster, o.NodeKey = roster, keyOf("a, the second") })
	works("its next process")
}

func (n *node) bootNow() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.boot
}

// TestSealLeavesOldRoundsOut: with a new key nothing is said of rounds whose boot id is
// above its own: it would use up the new numbers. Answers are of others' rounds.
func TestSealLeavesOldRoundsOut(t *testing.T) {
	g := alone(t, 2)
	old, now := promise.Round{Boot: g.boot + 1}, promise.Round{Boot: g.boot}
	for _, c := range []struct {
		kind promise.Kind
		of   promise.Round
		sent bool
	}{{promise.Intent, old, false}, {promise.Release, old, false}, {promise.Promise, old, true}, {promise.Nack, old, true}, {promise.Intent, now, true}, {promise.Release, now, true}} {
		raw := g.seal("b", 1, []promise.Message{{Kind: c.kind, From: "a", To: "b", Prefix: prefix1, Round: c.of}})
		if (raw != nil) != c.sent {
			t.Errorf("%s of boot id %d sent: %t", c.kind, c.of.Boot-g.boot, raw != nil)
		}
	}
}
