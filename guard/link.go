package guard

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

const (
	// linkQueue bounds the messages that wait for one node.
	linkQueue = 1024
	// messageLife is after when a message that still waits is not worth
	// sending: its round is long over.
	messageLife = 5 * time.Second
)

// links are the ways to the other nodes, each with its own queue, so that one
// that does not answer holds up nobody else. Only one goroutine uses it.
type links struct {
	send func(*memberlist.Node, []byte) error
	// seal makes the bytes of the seq-th batch to a node.
	seal  func(to edge.NodeID, seq uint64, batch []promise.Message) []byte
	drop  func(string)
	log   *slog.Logger
	by    map[edge.NodeID]*link
	sent  map[edge.NodeID]*atomic.Uint64 // batches, whatever the address was
	spawn func(func() error)             // runs what ends before Run returns
}

// to returns the link to n; after a change of its address it is a new one.
func (l *links) to(n edge.Node) *link {
	at := l.by[n.ID]
	if at == nil || at.gossip != n.Gossip {
		if l.sent[n.ID] == nil {
			l.sent[n.ID] = &atomic.Uint64{}
		}
		at = &link{links: l, gossip: n.Gossip, sent: l.sent[n.ID], node: &memberlist.Node{
			Name: string(n.ID), Addr: net.IP(n.Gossip.Addr().AsSlice()), Port: n.Gossip.Port(),
		}}
		l.by[n.ID] = at
	}
	return at
}

// link is the queue to one node. It has a goroutine only while there is
// something to send.
type link struct {
	*links
	gossip netip.AddrPort
	node   *memberlist.Node
	sent   *atomic.Uint64

	mu    sync.Mutex
	queue []outgoing
	large []byte // the newest large report
	lacks []byte // a state of what the node lacks, by its last digest
	busy  bool
}

type outgoing struct {
	promise.Message
	expires time.Time
}

// push queues a message, or drops and counts it.
func (k *link) push(m promise.Message, life time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) >= linkQueue {
		k.drop("send_queue_full")
		return
	}
	k.queue = append(k.queue, outgoing{m, time.Now().Add(life)})
	k.wake()
}

// report queues a large report in place of one that still waits.
func (k *link) report(raw []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.large = raw
	k.wake()
}

// state queues a state in place of one that still waits.
func (k *link) state(raw []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lacks = raw
	k.wake()
}

func (k *link) wake() {
	if k.busy {
		return
	}
	k.busy = true
	k.spawn(func() error {
		for {
			batch, raw, ok := k.next()
			if !ok {
				return nil
			}
			if len(batch) > 0 {
				raw = k.seal(edge.NodeID(k.node.Name), k.sent.Add(1), batch)
			}
			if raw == nil {
				continue
			}
			if err := k.send(k.node, raw); err != nil {
				k.drop("send_failed")
				k.log.Debug("message not sent", "to", k.node.Name, "err", err)
			}
		}
	})
}

// next takes what is to be sent next: all messages that wait, in one go, as
// each sending costs two round trips; then a report.
func (k *link) next() (batch []promise.Message, raw []byte, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for len(k.queue) > 0 && len(batch) < maxBatch {
		if m := k.queue[0]; now.Before(m.expires) {
			batch = append(batch, m.Message)
		} else {
			k.drop("send_expired")
		}
		k.queue = k.queue[1:]
	}
	if len(batch) > 0 {
		return batch, nil, true
	}
	if raw := k.large; raw != nil {
		k.large = nil
		return nil, raw, true
	}
	if raw := k.lacks; raw != nil {
		k.lacks = nil
		return nil, raw, true
	}
	k.busy = false
	return nil, nil, false
}
