package promise

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
)

// Round names one question of one node. The boot id and the counter together
// never repeat, so an answer to an earlier question cannot be taken for one to
// this.
type Round struct {
	// Boot is when the asking process started, in Unix nanoseconds.
	Boot int64
	// N counts the rounds of that process, from 1.
	N uint64
}

// After says whether r was opened later than o by the same node.
func (r Round) After(o Round) bool {
	return r.Boot > o.Boot || r.Boot == o.Boot && r.N > o.N
}

// Kind is what a message says. The zero value says nothing.
type Kind uint8

// The messages. The numbers go over the wire.
const (
	// Intent asks: may I withdraw, will you stay?
	Intent Kind = 1 + iota
	// Promise answers that the sender stays for the lease.
	Promise
	// Nack answers that it does not promise, and why.
	Nack
	// Release gives a promise back, kept or not.
	Release
)

// String returns "intent", "promise", "nack", "release" or the number.
func (k Kind) String() string {
	switch k {
	case Intent:
		return "intent"
	case Promise:
		return "promise"
	case Nack:
		return "nack"
	case Release:
		return "release"
	}
	return fmt.Sprintf("kind-%d", uint8(k))
}

// Message is one message between two nodes.
type Message struct {
	Kind     Kind
	From, To edge.NodeID
	Prefix   netip.Prefix
	// Round is the asker's: an answer repeats it.
	Round Round
	// Severity (intent) ranks the wish; higher is worse.
	Severity int
	// Reason (intent, nack) says why.
	Reason edge.Reason
	// Well (promise) says that the sender can serve at its best.
	Well bool
	// Veto (nack) says that the question is refused whatever others promise.
	Veto bool
	// Lease (promise) is for how long the sender has bound itself.
	Lease time.Duration
}

// Wish is whether a node wants to withdraw a prefix. The zero value wants to
// stay.
type Wish struct {
	Want bool
	// Severity ranks the wish; of two that want out, the worse may go first.
	Severity int
	Reason   edge.Reason
	// Unfit says that the node stays, but that nobody should count on it who is
	// better off: it drains, or cannot serve and may not leave.
	Unfit bool
	// Well says that the node can serve at its best.
	Well bool
}
