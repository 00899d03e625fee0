package guard

import (
	"maps"
	"math"
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
	at     time.Time // when it was last known to stand, on this node's clock
	made   time.Time // when it was made, as far as that is known
}

// takeEvery is how often reports of one node are read, the latest ones. None that
// means well has that many.
const takeEvery = 100 * time.Millisecond

// Publish tells the fleet about this node. It never blocks, and it is to be
// called more often than each second, also if nothing is new: what it was last
// called with is what this node vouches for, and the others count on how long
// ago that was. A new claim, view of a shared dependency or order goes out at
// once, new figures of load when they have changed by something and so often as
// the size of the fleet allows, once a second in a small one; figures that have
// hardly changed, slowly. What is the same is not sent again. Of r the node, the
// site and the numbers are filled in here.
func (g *Guard) Publish(r edge.Report) {
	r.Node, r.Site = g.self, g.roster.Load().self.Site
	r.Says, r.Load.Regions = slices.Clone(r.Says), slices.Clone(r.Load.Regions)
	r.Shared, r.Prefer, r.Spared = maps.Clone(r.Shared), slices.Clone(r.Prefer), slices.Clone(r.Spared)
	cloneMore(&r)
	tidyReport(&r) // what is compared below has been sent tidied
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.pending = &r
	g.refresh(now)
	if g.seq > 0 && sameNews(r, g.own.report) {
		g.vouched = now
	}
}

// refresh publishes what is pending if it is time. The lock is held.
func (g *Guard) refresh(now time.Time) {
	if r := g.pending; r != nil && g.due(*r, now) {
		g.pending = nil
		g.publish(*r)
	}
}

// due says whether r is to be sent now. The lock is held.
func (g *Guard) due(r edge.Report, now time.Time) bool {
	n, size, since := len(g.roster.Load().byID), len(g.own.raw), now.Sub(g.own.at)
	switch {
	case g.seq == 0 || !sameNews(r, g.own.report):
		if !g.news.take(now, newsEvery, newsBurst) {
			return false
		}
		g.newsAt = now
		return true
	case since < loadLeast:
		return false
	case moved(r.Load, g.own.report.Load):
		return g.loads.take(now, loadEvery(n, size), loadBurst)
	}
	return since >= driftEvery(n, size) && !sameLoad(r.Load, g.own.report.Load)
}

// moved says whether a figure of load is one that the others' proxies would
// reckon otherwise with.
func moved(a, b edge.LoadRow) bool {
	return far(a.Demand, b.Demand) || !slices.EqualFunc(a.Regions, b.Regions, func(x, y edge.RegionView) bool {
		return x.Region == y.Region && x.Up == y.Up && x.Of == y.Of &&
			!far(x.Sent, y.Sent) && !far(x.Allowance, y.Allowance) && !far(float64(x.RTT), float64(y.RTT))
	})
}

// far says whether two figures differ by a twentieth, or one of them is nothing.
func far(a, b float64) bool {
	return a != b && (a == 0 || b == 0 || math.Abs(a-b) > 0.05*max(a, b))
}

func sameLoad(a, b edge.LoadRow) bool {
	return a.Demand == b.Demand && slices.Equal(a.Regions, b.Regions)
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
	if time.Since(g.newsAt) < spreadTime && len(raw) <= maxRumor {
		g.rumored = r.Seq
		g.spread(g.self, raw)
	}
}

// spread queues a report for gossip, in place of any older one of that node.
// One that does not fit into a packet goes another way: see courier.
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
// it was sent to us, by who sent it.
func (g *Guard) hear(raw []byte, age time.Duration, relay bool) {
	l, from, err := g.signed(raw, kindReport, func(h head) error {
		switch news, err := g.isNews(h); {
		case err != nil:
			return err
		case !news:
			return errHeard
		}
		return g.mayCheck(kindReport, raw)
	})
	switch {
	case err == errHeard: // the normal fate of gossip
	case err != nil:
		g.drops.add(err.Error())
	case l.node == g.self:
		g.hearOfSelf(l.head)
	default:
		if u := (unread{letter: l, from: from, said: time.Now().Add(-age), relay: relay}); g.readNow(u) {
			g.read(u)
		}
	}
}

// errHeard is why a report is passed over that is no news; it is not counted.
const errHeard = dropped("heard")

// unread is a report whose signature is good.
type unread struct {
	letter
	from  edge.Node
	said  time.Time // by who sent it
	relay bool
}

func (u *unread) olderThan(h head) bool {
	return u.boot < h.boot || u.boot == h.boot && u.seq < h.seq
}

// read takes a report in.
func (g *Guard) read(u unread) {
	l := u.letter
	r, err := decodeReport(l)
	if err != nil {
		g.drops.add(err.Error())
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.heard[l.node]
	if l.boot < g.bootOf(l.node) || old != nil && !l.newer(old.report) || !g.stillThere(u.from) {
		return
	}
	// Who passes a report on may have recorded it: it counts as old until its node
	// itself is heard.
	h := &heard{report: r, raw: l.raw, made: u.said, at: time.Now().Add(-g.doubt())}
	if u.said.Before(h.at) {
		h.at = u.said
	}
	if old != nil && old.report.Boot == r.Boot && old.at.After(h.at) {
		h.at = old.at // it has said more since then
	}
	h.heed(g.noteBoot(l.head))
	g.heard[l.node] = h
	if u.relay {
		g.spread(l.node, l.raw)
	}
	if old == nil || !sameClaims(old.report.Says, r.Says) || !sameMore(old.report, r) {
		g.signal()
	}
}

// raiseSpread is by how much boot ids that are raised differ, in nanoseconds: less
// than a restart takes.
const raiseSpread = 1 << 27

// readNow says whether a report is to be read now; if not, it is kept until it is,
// or a newer one comes.
func (g *Guard) readNow(u unread) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, now := g.peer(u.node), time.Now()
	if now.Sub(p.read) < takeEvery {
		if late := g.late[u.node]; late == nil || late.olderThan(u.head) {
			g.late[u.node] = &u
		}
		return false
	}
	p.read = now
	delete(g.late, u.node)
	return true
}

// readLate reads what had to wait.
func (g *Guard) readLate(now time.Time) {
	var due []*unread
	g.mu.Lock()
	for id, u := range g.late {
		if p := g.peer(id); now.Sub(p.read) >= takeEvery {
			due, p.read = append(due, u), now
			delete(g.late, id)
		}
	}
	g.mu.Unlock()
	for _, u := range due {
		g.read(*u)
	}
}

// hearOfSelf finds out that the others hold an earlier process of
// this node for the newer one, by a report or a sign of life of that, since the clock went back over the restart. The
// boot id is raised over it, or nobody would listen to this process: by a length at
// random, since a process in between may have been raised over the same report, and
// answers to that one must not count for this.
func (g *Guard) hearOfSelf(h head) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case h.boot <= g.boot:
		return
	case h.boot >= maxBoot: // no clock says that, and nobody would hear of one above
		g.drops.add("boot_spent")
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
		g.newsAt = time.Now()
		g.publish(g.own.report)
	}
}

// fresh is Fresh of this fleet. The lock is held.
func (g *Guard) fresh() time.Duration { return Fresh(len(g.roster.Load().byID), g.core.Lease()) }

// doubt is how old a word counts at least that its node has not vouched for: too old
// for all that asks for one of late. The lock is held.
func (g *Guard) doubt() time.Duration { return max(g.fresh(), demandAge) + time.Millisecond }

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
			out[i].Report, out[i].Age, out[i].Said = h.report, max(0, time.Since(h.at)), max(0, time.Since(h.made))
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
			delete(g.peers, id)
			delete(g.late, id)
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
