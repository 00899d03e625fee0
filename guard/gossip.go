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
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

const (
	// rejoinEvery is the pause between attempts to reach nodes that are not
	// alive: memberlist never does, and stays split after a partition.
	rejoinEvery = 2 * time.Second
	// rejoinAtOnce bounds the attempts under way. One that succeeds brings the
	// whole other side back.
	rejoinAtOnce = 8
	// streamTimeout bounds each use of a TCP connection, and the connecting.
	streamTimeout = 2 * time.Second
)

// label tells our gossip from any other on the same port. It is authenticated
// with each packet.
const label = "catchment"

// memberlistConfig is the LAN configuration, tuned: a dead node is noticed in
// 3 to 5 seconds (a false alarm costs nothing, membership is only a hint), and
// states are exchanged often enough for reports that do not fit a packet.
func (g *Guard) memberlistConfig(tr *transport) *memberlist.Config {
	self := g.roster.Load().self
	c := memberlist.DefaultLANConfig()
	c.Name = string(self.ID)
	c.Label = label
	c.Keyring = g.keys.ring
	c.Transport = tr
	c.BindAddr, c.BindPort = g.bind.Addr().String(), int(g.bind.Port())
	c.AdvertiseAddr, c.AdvertisePort = self.Gossip.Addr().String(), int(self.Gossip.Port())
	c.TCPTimeout = streamTimeout
	c.ProbeInterval, c.ProbeTimeout = time.Second, 500*time.Millisecond
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = 3, 2
	c.AwarenessMaxMultiplier = 2
	c.PushPullInterval = 10 * time.Second
	c.DeadNodeReclaimTime = 5 * time.Second // the roster says what address a node has
	c.EnableCompression = false             // reports are packed already
	c.Logger = log.New(&logLines{log: g.log, drop: g.drops.add}, "", 0)
	c.Delegate, c.Events = (*delegate)(g), g.up
	c.Alive, c.Conflict, c.Merge = (*admission)(g), (*admission)(g), (*admission)(g)
	return c
}

// rejoin tries to reach the nodes that are not alive, for ever.
func (g *Guard) rejoin(ctx context.Context, list *memberlist.Memberlist, spawn func(func() error)) error {
	slots := make(chan struct{}, rejoinAtOnce)
	t := time.NewTicker(rejoinEvery)
	defer t.Stop()
	for {
		dead := g.dead()
		rand.Shuffle(len(dead), func(i, j int) { dead[i], dead[j] = dead[j], dead[i] })
		for _, n := range dead {
			select {
			case slots <- struct{}{}:
			default:
				continue
			}
			spawn(func() error {
				defer func() { <-slots }()
				if _, err := list.Join([]string{string(n.ID) + "/" + n.Gossip.String()}); err != nil {
					g.log.Debug("member not reached", "member", n.ID, "err", err)
				}
				return nil
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (g *Guard) dead() []edge.Node {
	var out []edge.Node
	for _, n := range g.roster.Load().others {
		if !g.up.is(n.ID) {
			out = append(out, n)
		}
	}
	return out
}

// take reads one message from the inbox.
func (g *Guard) take(raw []byte) {
	kind, err := kindOf(raw)
	if err != nil {
		g.drops.add(err.Error())
		return
	}
	switch kind {
	case kindReport:
		g.hear(raw, 0, true)
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

// delegate is what memberlist calls for our data. None of it blocks.
type delegate Guard

var _ memberlist.Delegate = (*delegate)(nil)

func (d *delegate) NodeMeta(int) []byte { return nil }

func (d *delegate) NotifyMsg(b []byte) {
	if len(b) > maxReport {
		d.drops.add(string(errOversize))
		return
	}
	if !(*Guard)(d).worth(b) {
		return
	}
	select {
	case d.inbox <- bytes.Clone(b): // memberlist uses b again
	default:
		d.drops.add("inbox_full")
	}
}

func (d *delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.rumors.GetBroadcasts(overhead, limit)
}

func (d *delegate) LocalState(bool) []byte            { return (*Guard)(d).localState() }
func (d *delegate) MergeRemoteState(b []byte, _ bool) { (*Guard)(d).mergeState(b) }

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
