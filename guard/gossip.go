package guard

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

const (
	// rejoinEvery is the pause between attempts to reach nodes that are not
	// alive: memberlist never does, and stays split after a partition.
	rejoinEvery = 2 * time.Second
	// rejoinAtOnce bounds the attempts under way.
	rejoinAtOnce = 8
	// rejoinMost is how long one node is left alone after an attempt at most: in
	// a fleet of 300 all others try, and a node with a wrong key answers them.
	rejoinMost = 15 * time.Second
	// quickProbes is the size of a fleet up to which the failure detector is quick.
	quickProbes = 30 // nodes
	// streamTimeout bounds each use of a TCP connection, and the connecting: two
	// SYNs may be lost, and a question is old by then.
	streamTimeout = 5 * time.Second
)

// label tells our gossip from any other on the same port. It is authenticated
// with each packet.
const label = "catchment"

// memberlistConfig is the WAN configuration, tuned. As it is, it takes 40 seconds
// to notice that one of ten nodes is dead. That need not be quick, as nothing is
// decided by membership and signs of life of our own tell how old a word is, but
// an operator looks at it.
func (g *Guard) memberlistConfig(tr *transport) *memberlist.Config {
	self := g.roster.Load().self
	c := memberlist.DefaultWANConfig()
	c.Name = string(self.ID)
	c.Label = label
	c.Keyring = g.keys.ring
	c.Transport = tr
	c.BindAddr, c.BindPort = g.bind.Addr().String(), int(g.bind.Port())
	c.AdvertiseAddr, c.AdvertisePort = self.Gossip.Addr().String(), int(self.Gossip.Port())
	c.TCPTimeout = streamTimeout
	// A round trip around the world takes 0.3 s: 1 s is enough for a packet, and
	// the second that is left for a ping over TCP. A suspect has 8 s in a fleet of
	// ten to say that it is alive. In a large fleet each false alarm is told by all to
	// all, so the probes stay at 5 and 3 s, and a suspect of 300 has 50 s.
	if len(g.roster.Load().byID) <= quickProbes {
		c.ProbeInterval, c.ProbeTimeout = 2*time.Second, time.Second
	}
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = 4, 3 // three times that if nobody else suspects it
	c.AwarenessMaxMultiplier = 4                      // a box that is slow itself suspects later, but within the minute
	// Nothing is sent while there is no news: to be quick costs nothing at rest,
	// and a claim has to be everywhere within 5 s.
	c.GossipInterval = 200 * time.Millisecond
	c.DeadNodeReclaimTime = 5 * time.Second // the roster says what address a node has
	c.EnableCompression = false             // reports are packed already
	c.Logger = log.New(&logLines{log: g.log, drop: g.drops.add}, "", 0)
	c.Delegate, c.Events = (*delegate)(g), g.up
	c.Alive, c.Conflict, c.Merge = (*admission)(g), (*admission)(g), (*admission)(g)
	if g.tune != nil {
		g.tune(c)
	}
	return c
}

// rejoin tries to reach the nodes that are not alive, for ever: one at a time, more
// at once while none is reached, and none for a while after one was, since it
// brings others. When a whole fleet starts, each would join each otherwise.
func (g *Guard) rejoin(ctx context.Context, list *memberlist.Memberlist, spawn func(func() error)) error {
	tried, done := map[edge.NodeID]time.Time{}, make(chan bool, rejoinAtOnce)
	underway, most, quiet := 0, 1, time.Time{}
	t := time.NewTicker(rejoinEvery)
	defer t.Stop()
	for {
		dead, now := g.dead(), time.Now()
		rest := rejoinRest(len(dead), len(g.roster.Load().others))
		for _, n := range dead {
			if underway >= most || now.Before(quiet) {
				break
			}
			if now.Sub(tried[n.ID]) < rest {
				continue
			}
			tried[n.ID] = now
			underway++
			spawn(func() error {
				_, err := list.Join([]string{string(n.ID) + "/" + n.Gossip.String()})
				if err != nil {
					g.log.Debug("member not reached", "member", n.ID, "err", err)
				}
				done <- err == nil // never blocks: it has room for all
				return nil
			})
		}
		for tick := false; !tick; {
			select {
			case <-ctx.Done():
				return nil
			case ok := <-done:
				underway--
				if ok {
					most, quiet = 1, time.Now().Add(afterJoin(len(g.roster.Load().others)))
				} else {
					most = min(2*most, rejoinAtOnce)
				}
			case <-t.C:
				tick = true
			}
		}
	}
}

// afterJoin is how long a node waits for what a join of another one of n brings.
func afterJoin(n int) time.Duration {
	return min(rejoinEvery+time.Duration(n)*time.Second/30, rejoinMost)
}

// rejoinRest is how long a node is left alone that was not reached, when so many
// are dead of others: the fewer are, the more nodes try each of them.
func rejoinRest(dead, others int) time.Duration {
	return min(time.Duration(others-dead)*time.Second/20, rejoinMost)
}

// dead are the nodes that are not alive, in any order, but those first that have
// been heard of late: memberlist has missed that they are there, which it may do in
// a fleet of any size, and finds out with the next exchange of states.
func (g *Guard) dead() []edge.Node {
	var heard, silent []edge.Node
	g.mu.Lock()
	defer g.mu.Unlock()
	now, of := time.Now(), max(isolatedAfter, g.fresh()/2)
	for _, n := range g.roster.Load().others {
		switch p := g.peers[n.ID]; {
		case g.up.is(n.ID):
		case p != nil && now.Sub(p.at) < of:
			heard = append(heard, n)
		default:
			silent = append(silent, n)
		}
	}
	rand.Shuffle(len(heard), func(i, j int) { heard[i], heard[j] = heard[j], heard[i] })
	rand.Shuffle(len(silent), func(i, j int) { silent[i], silent[j] = silent[j], silent[i] })
	return append(heard, silent...)
}

// take reads one message.
func (g *Guard) take(raw []byte, post *courier) {
	kind, err := kindOf(raw)
	if err != nil {
		g.drops.add(err.Error())
		return
	}
	switch kind {
	case kindReport:
		g.hear(raw, 0, true)
	case kindState:
		g.mergeState(raw)
	case kindPulse:
		post.hearPulse(raw)
	case kindDigest:
		post.compare(raw)
	case kindMessages:
		all, err := g.takeMessages(raw)
		if err != nil {
			g.drops.add(err.Error())
			return
		}
		for _, m := range all {
			g.log.Debug("receive", "kind", m.Kind, "from", m.From, "prefix", m.Prefix, "round", m.Round.N, "reason", m.Reason)
		}
		g.do(func(now time.Time) (out []promise.Message) {
			for _, m := range all { // in one step: what follows it is dear with many prefixes
				out = append(out, g.core.Receive(now, m)...)
			}
			return out
		})
	default:
		g.drops.add(string(errKind))
	}
}

// inboxSize and inboxBytes bound what waits in a mailbox; more is dropped.
const (
	inboxSize  = 1024
	inboxBytes = 16 << 20
)

// mailbox holds what has come and is not read yet. Who takes from ch calls read.
type mailbox struct {
	ch    chan []byte
	bytes atomic.Int64
}

func newMailbox() *mailbox { return &mailbox{ch: make(chan []byte, inboxSize)} }

// put keeps a copy of b, since memberlist uses it again; false: there is no room.
func (m *mailbox) put(b []byte) bool {
	size := int64(len(b))
	if m.bytes.Add(size) <= inboxBytes {
		select {
		case m.ch <- bytes.Clone(b):
			return true
		default:
		}
	}
	m.bytes.Add(-size)
	return false
}

func (m *mailbox) read(b []byte) []byte {
	m.bytes.Add(-int64(len(b)))
	return b
}

// delegate is what memberlist calls for our data. None of it blocks.
type delegate Guard

var _ memberlist.Delegate = (*delegate)(nil)

func (d *delegate) NodeMeta(int) []byte { return nil }

func (d *delegate) NotifyMsg(b []byte) {
	if len(b) > maxMessage {
		d.drops.add(string(errOversize))
		return
	}
	if !(*Guard)(d).worth(b) {
		return
	}
	inbox := d.inbox
	if b[1] == kindMessages {
		inbox = d.asks
	}
	if !inbox.put(b) {
		d.drops.add("inbox_full")
	}
}

func (d *delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.rumors.GetBroadcasts(overhead, limit)
}

func (d *delegate) LocalState(bool) []byte            { return (*Guard)(d).digest() }
func (d *delegate) MergeRemoteState(b []byte, _ bool) { d.NotifyMsg(b) }

// admission lets only nodes of the roster in, at their address of the roster.
type admission Guard

// NotifyAlive is asked before a node is taken as a member.
func (a *admission) NotifyAlive(n *memberlist.Node) error {
	if err := a.admit(n); err != nil {
		a.drops.add(err.Error())
		return err
	}
	return nil
}

func (a *admission) admit(n *memberlist.Node) error {
	want, ok := a.roster.Load().byID[edge.NodeID(n.Name)]
	addr, _ := netip.AddrFromSlice(n.Addr)
	switch {
	case !ok:
		return dropped("stranger")
	case want.Gossip != netip.AddrPortFrom(addr.Unmap(), n.Port):
		return dropped("wrong_address")
	}
	return nil
}

// NotifyConflict hears that one name is used at two addresses: the roster was
// changed, and the old one is not forgotten yet.
func (a *admission) NotifyConflict(_, _ *memberlist.Node) { a.drops.add("conflict") }

// NotifyMerge refuses a fleet that has no node in common with ours. One that
// merely has others too is taken, less the others: a new roster does not reach
// all nodes at once.
func (a *admission) NotifyMerge(peers []*memberlist.Node) error {
	for _, n := range peers {
		if a.admit(n) == nil {
			return nil
		}
	}
	a.drops.add("foreign_fleet")
	return fmt.Errorf("merge gossip: none of %d nodes is in the roster", len(peers))
}

// liveness is the failure detector's opinion. It has its own lock: memberlist
// calls it while it holds one of its own.
type liveness struct {
	mu      sync.Mutex
	on      map[edge.NodeID]bool
	changed func()
	log     *slog.Logger
}

func (l *liveness) is(id edge.NodeID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.on[id]
}

func (l *liveness) set(n *memberlist.Node, on bool) {
	l.mu.Lock()
	l.on[edge.NodeID(n.Name)] = on
	l.mu.Unlock()
	l.log.Info("member seen", "member", n.Name, "alive", on)
	l.changed()
}

// NotifyJoin, NotifyLeave and NotifyUpdate implement memberlist.EventDelegate.
func (l *liveness) NotifyJoin(n *memberlist.Node)   { l.set(n, true) }
func (l *liveness) NotifyLeave(n *memberlist.Node)  { l.set(n, false) }
func (l *liveness) NotifyUpdate(n *memberlist.Node) {}

// logLines takes memberlist's log: the lines go to debug, and those that say
// that something was thrown away are counted. There is no other way to learn
// of a packet that could not be decrypted; a test holds that text fast.
type logLines struct {
	log  *slog.Logger
	drop func(string)
}

// rejected are parts of lines and their reason; the first that fits counts.
var rejected = [...]struct{ part, reason string }{
	{"no installed keys could decrypt", "wrong_key"},
	{"refused by the transport", ""}, // counted there
	{"handler queue full", "inbox_full"},
	{"Too many pending push/pull", "inbox_full"},
	{"larger than limit", "oversize"},
	{"exceeds limit", "oversize"},
	{"failed to receive", "malformed"},
	{"Failed to receive", "malformed"},
	{"Failed to decode", "malformed"},
	{"Failed to decompress", "malformed"},
	{"Failed to read remote state", "malformed"},
	{"invalid msgType", "malformed"},
	{"not supported", "malformed"},
	{"missing message type", "malformed"},
	{"invalid checksum", "malformed"},
}

// Write takes one line.
func (l *logLines) Write(b []byte) (int, error) {
	line := strings.TrimSpace(string(b))
	for _, r := range rejected {
		if strings.Contains(line, r.part) {
			if r.reason != "" {
				l.drop(r.reason)
			}
			break
		}
	}
	l.log.Debug(clean(line, 4*maxText))
	return len(b), nil
}
