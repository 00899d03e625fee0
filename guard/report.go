package guard

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/catchment-dev/edge"
)

// heard is the newest report of a node.
type heard struct {
	report edge.Report
	raw    []byte    // as it was sent, so that it can be passed on unchanged
	at     time.Time // when it was news, on this node's clock
}

// refreshEvery is how often a report is sent again in which no claim is new.
const refreshEvery = time.Second

// Publish tells the fleet about this node. It never blocks and may be called
// as often as one likes: a new claim, view of a shared dependency or order goes
// out at once, new figures of load and signs of life at most once a second, the
// latest ones. Of r the node, the site and the numbers are filled in here.
func (g *Guard) Publish(r edge.Report) {
	r.Node, r.Site = g.self, g.roster.Load().self.Site
	r.Says, r.Load.Regions = slices.Clone(r.Says), slices.Clone(r.Load.Regions)
	r.Shared, r.Prefer, r.Spared = maps.Clone(r.Shared), slices.Clone(r.Prefer), slices.Clone(r.Spared)
	cloneMore(&r)
	tidyReport(&r) // what is compared below has been sent tidied
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending = &r
	g.refresh(time.Now())
}

// refresh publishes what is pending if it is time. The lock is held.
func (g *Guard) refresh(now time.Time) {
	r := g.pending
	if r == nil || g.seq > 0 && now.Sub(g.own.at) < refreshEvery && sameNews(*r, g.own.report) {
		return
	}
	g.pending = nil
	g.publish(*r)
}

// sameNews says whether b tells all of a that is not to wait.
func sameNews(a, b edge.Report) bool {
	return sameClaims(a.Says, b.Says) && maps.Equal(a.Shared, b.Shared) && slices.Equal(a.Spared, b.Spared) && slices.EqualFunc(a.Prefer, b.Prefer, edge.Preference.Equal) && sameMore(a, b)
}

func sameClaims(a, b []edge.Claim) bool {
	return slices.EqualFunc(a, b, func(x, y edge.Claim) bool {
		same := x.Since.Equal(y.Since) // not ==: one came as text
		x.Since, y.Since = time.Time{}, time.Time{}
		return same && x == y
	})
}

// publish numbers, encodes and sends off a report. The lock is held.
func (g *Guard) publish(r edge.Report) {
	g.seq++
	r.Boot, r.Seq = g.boot, g.seq
	err := checkReport(&r) // the others would: better to hear of it here
	var raw []byte
	if err == nil {
		raw, err = encodeReport(r, g.key)
	}
	if err != nil {
		g.drops.add("own_report")
		g.log.Error("report cannot be sent", "err", err)
		return
	}
	g.own = heard{report: r, raw: raw, at: time.Now()}
	g.spread(g.self, raw)
}

// spread queues a report for gossip, in place of any older one of that node.
// One that does not fit into a packet goes another way: see largeReports, and
// the state exchange.
func (g *Guard) spread(id edge.NodeID, raw []byte) {
	if len(raw) <= maxRumor {
		g.rumors.QueueBroadcast(rumor{id: id, raw: raw})
	}
}

// rumor is a report in the gossip queue.
type rumor struct {
	id  edge.NodeID
	raw []byte
}

var _ memberlist.NamedBroadcast = rumor{}

func (r rumor) Name() string    { return string(r.id) }
func (r rumor) Message() []byte { return r.raw }
func (r rumor) Finished()       {}
func (r rumor) Invalidates(o memberlist.Broadcast) bool {
	other, ok := o.(rumor)
	return ok && other.id == r.id
}

// hear takes a report that came from the network; age is how old it was when
// it was sent to us.
func (g *Guard) hear(raw []byte, age time.Duration, relay bool) {
	l, err := open(raw, kindReport)
	if err != nil {
		g.drops.add(err.Error())
		return
	}
	from, err := g.roster.Load().author(l.head)
	news := false
	if err == nil {
		g.mu.Lock()
		news, err = g.isNews(l.head)
		g.mu.Unlock()
	}
	if err == nil && !news {
		return // the normal fate of gossip: heard before
	}
	if err == nil && !l.by(from.PublicKey) {
		err = errSignature
	}
	if err == nil && l.node == g.self {
		g.hearOfSelf(l.head)
		return
	}
	var r edge.Report
	if err == nil {
		r, err = decodeReport(l)
	}
	if err != nil {
		g.drops.add(err.Error())
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.heard[l.node]
	if news, _ := g.isNews(l.head); !news || !g.stillKey(from) {
		return
	}
	g.noteBoot(l.head)
	g.heard[l.node] = &heard{report: r, raw: raw, at: time.Now().Add(-age)}
	if relay {
		g.spread(l.node, raw)
	}
	if old == nil || !sameClaims(old.report.Says, r.Says) || !sameMore(old.report, r) {
		g.signal()
	}
}

// raiseSpread is by how much boot ids that are raised differ, in nanoseconds: less
// than a restart takes.
const raiseSpread = 1 << 27

// hearOfSelf finds out that the others hold a report of an earlier process of
// this node for the newer one, since the clock went back over the restart. The
// boot id is raised over it, or nobody would listen to this process: by a length at
// random, since a process in between may have been raised over the same report, and
// answers to that one must not count for this.
func (g *Guard) hearOfSelf(h head) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.boot <= g.boot || h.boot > maxBoot {
		return
	}
	to := h.boot + 1
	if to <= maxBoot-raiseSpread {
		to += rand.Int64N(raiseSpread)
	}
	g.log.Warn("the clock has gone back over the restart: boot id raised", "from", g.boot, "to", to)
	g.boot = to
	g.core.RaiseBoot(g.boot)
	if g.seq > 0 {
		g.publish(g.own.report)
	}
}

// Members returns how the gossip sees every other node of the roster, also
// those never heard of, in the order of the configuration.
func (g *Guard) Members() []edge.MemberState {
	others := g.roster.Load().others
	out := make([]edge.MemberState, len(others))
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, n := range others {
		out[i] = edge.MemberState{Node: n.ID, Site: n.Site, Alive: g.up.is(n.ID), Age: -1}
		if h := g.heard[n.ID]; h != nil {
			out[i].Report, out[i].Age = h.report, max(0, time.Since(h.at))
		}
	}
	return out
}

// knownSick is the protocol's hint whom to ask last. The lock is held.
func (g *Guard) knownSick(id edge.NodeID, p netip.Prefix) bool {
	h := g.heard[id]
	if h == nil {
		return false
	}
	i := slices.IndexFunc(h.report.Says, func(c edge.Claim) bool { return c.Prefix == p })
	if i < 0 {
		return false
	}
	c := h.report.Says[i]
	return !c.Announcing || c.Health == edge.Sick || c.Rung.WantsOut()
}

// forget drops what was heard of nodes that left the roster, or have another key
// or site now: nobody would believe it any more. The lock is held.
func (g *Guard) forget(was, is *roster) {
	for id, old := range was.byID {
		if n, ok := is.byID[id]; !ok || n.PublicKey != old.PublicKey || n.Site != old.Site {
			delete(g.heard, id)
			delete(g.senders, id)
		}
	}
}

// localState is everything this node knows, for the exchange of states.
func (g *Guard) localState() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	var all []heard
	if g.own.raw != nil {
		all = append(all, g.own)
	}
	for _, h := range g.heard {
		all = append(all, *h)
	}
	return encodeState(now, all)
}

// mergeState takes what another node knows.
func (g *Guard) mergeState(b []byte) {
	err := decodeState(b, func(age time.Duration, raw []byte) { g.hear(raw, age, false) })
	if err != nil {
		g.drops.add(err.Error())
	}
}

// largeReports sends this node's report to each live member directly when it
// does not fit into a gossip packet. At most once a second: reports may be
// published far more often.
type largeReports struct {
	sent uint64 // Seq
	at   time.Time
}

func (l *largeReports) push(now time.Time, g *Guard, links *links) {
	g.mu.Lock()
	raw, seq := g.own.raw, g.own.report.Seq
	g.mu.Unlock()
	if len(raw) <= maxRumor || seq == l.sent || now.Sub(l.at) < time.Second {
		return
	}
	l.sent, l.at = seq, now
	for _, n := range g.roster.Load().others {
		if g.up.is(n.ID) {
			links.to(n).report(raw)
		}
	}
}

// counters count what was dropped, by reason.
type counters struct {
	mu sync.Mutex
	by map[string]uint64
}

func (c *counters) add(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by[reason]++
}

func (c *counters) all() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]uint64, len(c.by))
	for k, v := range c.by {
		out[k] = v
	}
	return out
}
