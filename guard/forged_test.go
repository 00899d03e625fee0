package guard

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"log"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

type forgery struct {
	name string
	raw  []byte
	want string // the reason under which it is dropped
}

// forger makes letters of b to a, and spoils them.
type forger struct{ boot, seq int64 }

// later is the forger as another process, whose letters are no old ones.
func (f *forger) later() *forger { return &forger{f.boot + 1e9, f.seq + 1} }

func (f *forger) head() head {
	f.seq++
	return head{node: "b", site: "b", boot: f.boot, seq: uint64(f.seq), to: "a"}
}

func (f *forger) messages(key string, spoil func(*head, *promise.Message)) []byte {
	h := f.head()
	m := promise.Message{Kind: promise.Promise, From: "b", To: "a", Prefix: prefix1, Round: promise.Round{Boot: 1, N: 1}, Lease: time.Second}
	if spoil != nil {
		spoil(&h, &m)
	}
	return encodeMessages(h, []promise.Message{m}, keyOf(key))
}

func (f *forger) report(key string, spoil func(*edge.Report)) []byte {
	f.seq++
	r := edge.Report{Node: "b", Site: "b", Boot: f.boot, Seq: uint64(f.seq)}
	if spoil != nil {
		spoil(&r)
	}
	raw, err := encodeReport(r, keyOf(key))
	if err != nil {
		panic(err)
	}
	return raw
}

// body signs any bytes as the body of a letter of b.
func (f *forger) body(kind byte, body string) []byte {
	return sign(append(f.head().append(kind), body...), keyOf("b"))
}

// changed turns over a bit in the middle of the body.
func changed(raw []byte, kind byte) []byte {
	raw = bytes.Clone(raw)
	l, err := open(raw, kind)
	if err != nil {
		panic(err)
	}
	l.body[len(l.body)/2] ^= 1
	return raw
}

// forgeries are what somebody with the gossip key may say to a in the name of b:
// some of it with b's own key, since that may be stolen, or b may be broken.
func forgeries(a *node, boot int64) []forgery {
	f := &forger{boot: boot, seq: 1 << 30} // over what b itself says
	type hd = head
	type msg = promise.Message
	once := f.messages("b", nil)
	return []forgery{
		{"another's key", f.messages("z", nil), "bad_signature"},
		{"the receiver's key", f.messages("a", nil), "bad_signature"},
		{"changed body", changed(f.messages("b", nil), kindMessages), "bad_signature"},
		{"cut signature", once[:len(once)-1], "bad_signature"},
		{"cut head", once[:12], "malformed"},
		{"stranger", f.messages("z", func(h *hd, m *msg) { h.node, h.site, m.From = "z", "z", "z" }), "unknown_sender"},
		{"self", f.messages("a", func(h *hd, m *msg) { h.node, h.site, m.From = "a", "a", "a" }), "self_sent"},
		{"another site", f.messages("b", func(h *hd, _ *msg) { h.site = "a" }), "wrong_site"},
		{"for another", f.messages("b", func(h *hd, _ *msg) { h.to = "b" }), "misdirected"},
		{"for an earlier process", f.messages("b", func(h *hd, _ *msg) { h.toBoot = 77 }), "other_boot"},
		{"for this process", f.messages("b", func(h *hd, _ *msg) { h.toBoot = a.boot }), "stale_round"},
		{"in another's name", f.messages("b", func(_ *hd, m *msg) { m.From = "a" }), "wrong_sender"},
		{"to another inside", f.messages("b", func(_ *hd, m *msg) { m.To = "b" }), "misdirected"},
		{"never asked", once, "stale_round"},
		{"the same again", once, "replayed"},
		{"older process", f.messages("b", func(h *hd, _ *msg) { h.boot-- }), "stale_boot"},
		{"odd JSON", f.body(kindMessages, "{]"), "malformed"},
		{"no messages", f.body(kindMessages, "[]"), "malformed"},
		{"too many", f.body(kindMessages, "["+strings.Repeat("{},", maxBatch)+"{}]"), "malformed"},
		{"too large", f.body(kindMessages, strings.Repeat(" ", maxBatchBytes+1)), "oversize"},
		{"odd prefix", f.messages("b", func(_ *hd, m *msg) { m.Prefix = netip.MustParsePrefix("10.0.0.0/8") }), "unknown_prefix"},
		{"release of nothing", f.messages("b", func(_ *hd, m *msg) { m.Kind = promise.Release }), "stale_release"},
		{"report, another's key", f.report("z", nil), "bad_signature"},
		{"report, changed", changed(f.report("b", nil), kindReport), "bad_signature"},
		{"report of a stranger", f.report("z", func(r *edge.Report) { r.Node, r.Site = "z", "z" }), "unknown_sender"},
		{"report of another site", f.report("b", func(r *edge.Report) { r.Site = "a" }), "wrong_site"},
		{"report of an older process", f.report("b", func(r *edge.Report) { r.Boot-- }), "stale_boot"},
		{"report of this node", f.report("z", func(r *edge.Report) { r.Node, r.Site, r.Boot = "a", "a", maxBoot }), "bad_signature"},
		{"pulse, another's key", f.pulse("z", nil), "bad_signature"},
		{"pulse, changed", changed(f.pulse("b", nil), kindPulse), "bad_signature"},
		{"pulse for another", f.pulse("b", func(p *pulse) { p.to = "b" }), "misdirected"},
		{"pulse of a stranger", f.pulse("z", func(p *pulse) { p.node, p.site = "z", "z" }), "unknown_sender"},
		{"pulse of this node", f.pulse("a", func(p *pulse) { p.node, p.site, p.boot = "a", "a", a.boot }), "self_sent"},
		{"pulse of this node, another's key", f.pulse("z", func(p *pulse) { p.node, p.site, p.boot = "a", "a", maxBoot }), "bad_signature"},
		{"pulse of an older process", f.pulse("b", func(p *pulse) { p.boot-- }), "stale_boot"},
		{"odd pulse", f.body(kindPulse, "12345678"), "malformed"},
		{"odd digest", []byte{version, kindDigest, 1, 'b', 9}, "malformed"},
		{"digest of a stranger", encodeDigest("z", nil), "unknown_sender"},
		{"digest of this node", encodeDigest("a", nil), "self_sent"},
		{"large digest", append(encodeDigest("b", nil), make([]byte, maxDigest)...), "oversize"},
		{"odd state", []byte{version, kindState, 0, 0, 0, 1, 0, 0, 0, 9}, "malformed"},
		{"odd report", f.body(kindReport, "\xff\xff\xff\xff"), "malformed"},
	}
}

// recorder has the gossip key and the place of a node of the roster, and keeps
// all that it is sent.
type recorder struct {
	*memberlist.Memberlist
	mu  sync.Mutex
	got [][]byte
}

func (r *recorder) NodeMeta(int) []byte             { return nil }
func (r *recorder) GetBroadcasts(_, _ int) [][]byte { return nil }
func (r *recorder) LocalState(bool) []byte          { return encodeDigest("c", nil) }
func (r *recorder) MergeRemoteState([]byte, bool)   {}
func (r *recorder) NotifyMsg(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, bytes.Clone(b))
}

// record takes the place of node i.
func (f *fleet) record(i int) *recorder {
	f.t.Helper()
	n := f.roster[i]
	tr, err := listen(context.Background(), n.Gossip, func(string) {})
	if err != nil {
		f.t.Fatal(err)
	}
	r := &recorder{}
	c := memberlist.DefaultLocalConfig()
	c.Name, c.Label, c.SecretKey, c.Transport, c.Delegate = string(n.ID), label, key1, tr, r
	c.AdvertiseAddr, c.AdvertisePort = n.Gossip.Addr().String(), int(n.Gossip.Port())
	c.Logger = log.New(&logLines{log: f.nodes[0].log, drop: func(string) {}}, "", 0)
	if r.Memberlist, err = memberlist.Create(c); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { r.Shutdown() })
	r.Join([]string{f.roster[0].Gossip.String()})
	return r
}

// find returns the newest batch that holds a message of a kind from a node.
func (r *recorder) find(from edge.NodeID, k promise.Kind) ([]byte, promise.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, raw := range slices.Backward(r.got) {
		l, err := open(raw, kindMessages)
		if err != nil || l.node != from {
			continue
		}
		all, _ := decodeMessages(l)
		for _, m := range all {
			if m.Kind == k {
				return raw, m
			}
		}
	}
	return nil, promise.Message{}
}

func (r *recorder) say(t *testing.T, to *node, raw []byte) {
	t.Helper()
	at := &memberlist.Node{Name: string(to.ID), Addr: net.IP(to.Gossip.Addr().AsSlice()), Port: to.Gossip.Port()}
	if err := r.SendReliable(at, raw); err != nil {
		t.Fatal(err)
	}
}

// replay sends what was recorded, and waits for it to be dropped for the reason.
func (f *fleet) replay(r *recorder, to *node, what string, raw []byte, reason string) {
	f.t.Helper()
	if raw == nil {
		f.t.Fatalf("no %s was recorded", what)
	}
	before := to.State().Dropped[reason]
	r.say(f.t, to, raw)
	f.until(what+" at "+string(to.ID)+" counted as "+reason, func() bool { return to.State().Dropped[reason] > before })
}

// TestReplay records what real nodes say to one whose place is taken, and sends it
// again: later, to others, and to those that have been started again and have
// forgotten what they have seen. Nobody is bound by it, or gets leave.
func TestReplay(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 4, 2)
	a, b, d := f.start(0), f.start(1), f.start(3)
	r := f.record(2)
	f.until("a and b know c", func() bool { return a.alive() == 3 && b.alive() == 3 })
	boot, seq := time.Now().UnixNano(), map[edge.NodeID]uint64{}
	seal := func(to *node, m promise.Message) []byte {
		seq[to.ID]++
		m.From, m.To, m.Prefix = "c", to.ID, prefix1
		return encodeMessages(head{node: "c", site: "c", boot: boot, seq: seq[to.ID], to: to.ID, toBoot: to.boot}, []promise.Message{m}, keyOf("c"))
	}
	own, err := encodeReport(edge.Report{Node: "c", Site: "c", Boot: boot, Seq: 1}, keyOf("c"))
	if err != nil {
		t.Fatal(err)
	}
	r.say(t, a, own) // so that a names c's process
	f.until("a has heard of c", func() bool { return a.report("c").Age >= 0 })

	// a asks, with two promises and c's leaves, and gives all back.
	a.Wish(prefix1, sick)
	var intent, release []byte
	var asked promise.Message
	f.until("c is asked", func() bool { intent, asked = r.find("a", promise.Intent); return intent != nil })
	given := seal(a, promise.Message{Kind: promise.Promise, Round: asked.Round, Lease: quick.PromiseLease})
	r.say(t, a, given)
	f.until("a leaves", func() bool { return a.tryLeave() == nil })
	f.until("c is released", func() bool { release, _ = r.find("a", promise.Release); return release != nil })
	a.Wish(prefix1, Wish{})
	// c asks b.
	question := seal(b, promise.Message{Kind: promise.Intent, Round: promise.Round{Boot: boot, N: 1}, Severity: edge.SeveritySick})
	r.say(t, b, question)
	var promised []byte
	f.until("b promises", func() bool { promised, _ = r.find("b", promise.Promise); return promised != nil })
	back := seal(b, promise.Message{Kind: promise.Release, Round: promise.Round{Boot: boot, N: 1}})
	r.say(t, b, back)
	f.until("b is free", func() bool { return len(b.State().Bound) == 0 })

	f.replay(r, a, "a PROMISE", given, "replayed")
	f.replay(r, b, "an INTENT", question, "replayed")
	f.replay(r, b, "a RELEASE", back, "replayed")
	f.replay(r, a, "a PROMISE for c", promised, "misdirected")
	f.replay(r, b, "an INTENT for c", intent, "misdirected")
	f.replay(r, d, "an INTENT for b", question, "misdirected")
	f.replay(r, d, "a RELEASE for c", release, "misdirected")
	f.replay(r, a, "a RELEASE of its own", release, "self_sent")

	b.stop()
	b = f.start(1)
	f.replay(r, b, "an INTENT for b before its restart", question, "other_boot")
	f.replay(r, b, "a RELEASE for b before its restart", back, "other_boot")
	r.Leave(0)
	r.Shutdown()
	c := f.start(2)
	z := f.insider("z", netip.AddrPortFrom(f.roster[2].Gossip.Addr().Next().Next(), 7946))
	r = &recorder{Memberlist: z}
	f.replay(r, c, "an INTENT for who had c's place before", intent, "other_boot")
	for _, n := range f.nodes {
		if bound := n.State().Bound; len(bound) > 0 {
			t.Errorf("%s is bound by what was recorded: %+v", n.ID, bound)
		}
	}
}

// TestFlood: at far more than the normal rate, of garbage and of what was once
// valid, leave is given as ever, and nothing grows.
func TestFlood(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	spare := netip.AddrPortFrom(f.roster[2].Gossip.Addr().Next(), 7946)
	f.startAll()
	a, b := f.nodes[0], f.nodes[1]
	old := &forger{boot: time.Now().UnixNano()}
	valid := [][]byte{}
	for range 20 {
		valid = append(valid, old.messages("b", nil), old.report("b", nil))
	}
	z := f.insider("z", spare)
	to := &memberlist.Node{Name: "a", Addr: net.IP(a.Gossip.Addr().AsSlice()), Port: a.Gossip.Port()}
	for _, raw := range valid {
		if err := z.SendReliable(to, raw); err != nil { // once: from here on they are old
			t.Fatal(err)
		}
	}
	// Not all, perhaps: b hears of them too, and that it has to be a newer process.
	f.until("they were taken", func() bool { return a.report("b").Report.Boot >= old.boot })
	b.mu.Lock()
	b.boot = old.boot + 1 // b itself was started before
	b.mu.Unlock()
	b.Publish(edge.Report{Says: claim("itself")})
	f.until("b is heard", func() bool { return a.report("b").Report.Boot > old.boot })
	before := a.State().Dropped
	h := &hostile{f, a, nil}
	rounds, sent := 0, 0
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end) || rounds < 3; {
		<-tick.C // 2,000 a second: a fleet of hundreds says less
		z.SendBestEffort(to, valid[sent%len(valid)])
		z.SendBestEffort(to, old.later().messages("z", nil))
		if sent++; sent%10 == 0 {
			h.raw("udp", bytes.Repeat([]byte{byte(sent)}, 1000))
			z.SendReliable(to, bytes.Repeat([]byte{version, byte(sent)}, 5000))
		}
		switch {
		case a.Permit(prefix1).OK:
			a.Wish(prefix1, Wish{})
			rounds++
		case len(a.State().Asking) == 0:
			a.Wish(prefix1, sick)
		}
		if time.Since(end) > time.Minute {
			t.Fatalf("%d rounds under the flood", rounds)
		}
	}
	a.mu.Lock()
	if len(a.senders) > 2 || len(a.heard) > 2 || len(a.outbox) > 100 || len(a.inbox.ch) > inboxSize {
		t.Errorf("%d senders, %d heard, %d to be sent, %d in the inbox", len(a.senders), len(a.heard), len(a.outbox), len(a.inbox.ch))
	}
	a.mu.Unlock()
	after := a.State().Dropped
	for _, reason := range []string{"stale_boot", "bad_signature", "wrong_label", "unknown_kind"} {
		t.Logf("%s: %d", reason, after[reason]-before[reason])
		if after[reason]-before[reason] < uint64(sent)/100 {
			t.Errorf("only %d of %d rounds of the flood are counted as %s", after[reason]-before[reason], sent, reason)
		}
	}
}

func TestWindow(t *testing.T) {
	var w window
	for _, step := range []struct {
		n    uint64
		seen bool
	}{{1, false}, {1, true}, {3, false}, {2, false}, {2, true}, {windowSize, false}, {windowSize + 3, false}, {3, true}, {4, false}, {4, true},
		{3 * windowSize, false}, {2*windowSize + 1, false}, {2 * windowSize, true}, {1<<64 - 1, false}, {1<<64 - 1, true}, {1<<64 - 2, false}, {3 * windowSize, true}} {
		if got := w.has(step.n); got != step.seen {
			t.Fatalf("%d seen: %t", step.n, got)
		}
		if !step.seen {
			w.add(step.n)
		}
	}
}

// TestKeyChange: another key of a node counts at once, and the old one no more.
func TestKeyChange(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, 1)
	f.startAll()
	a, b := f.nodes[0], f.nodes[1]
	b.Publish(edge.Report{Says: claim("old key")})
	f.until("a has b's report", func() bool { return a.report("b").Age >= 0 })
	roster := slices.Clone(f.roster)
	roster[1].PublicKey = PublicKey(keyOf("b, the second"))
	with := func(key ed25519.PrivateKey) Settings {
		return Settings{Roster: roster, Prefixes: []edge.Prefix{{Net: prefix1, MinSites: 1}}, Policy: quick, NodeKey: key}
	}
	a.Update(with(nil))
	if a.report("b").Age >= 0 {
		t.Error("a report with the old key goes on to count")
	}
	b.Publish(edge.Report{Says: claim("still the old key")})
	f.counts(a, "bad_signature")
	b.Update(with(keyOf("b"))) // not its own any more: refused
	b.Update(with(keyOf("b, the second")))
	f.until("a believes b again", func() bool { return a.report("b").Age >= 0 })
	f.stillWorks()
}
