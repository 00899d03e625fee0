// Package promise is the protocol by which a site gets leave to withdraw: it
// asks the others, and those that promise to stay for a lease bind themselves.
//
// It owns the rounds that one node opens and the promises that it gives, for
// every prefix. It never reads a clock, opens a socket or starts a goroutine:
// time and messages are passed in, messages come out, so that a simulator can
// drive it as well as package guard, which runs it inside edged.
//
// Why it is safe: a node withdraws only while it holds promises, of its
// current round, from MinSites other sites. A promise is counted from the
// sending of the question and for less than the lease; the promiser is bound
// from the receipt, which is later, and for the whole lease. So whatever the
// delay, and with no agreement of clocks but of their rate (within 10 %), the
// time in which a promise is counted lies inside the time in which it binds.
package promise

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// Settings are what the configuration says; Update replaces them.
type Settings struct {
	// Roster is every node of the fleet. Nothing heard by gossip changes it.
	Roster []edge.Node
	// Sites say in which region each site is, and what it can serve.
	Sites    []edge.Site
	Prefixes []edge.Prefix
	Policy   edge.Guard
}

// Options are what a Node is made of.
type Options struct {
	Self edge.NodeID
	// Boot is the boot id of the rounds: higher than that of any earlier
	// process of this node.
	Boot int64
	// Started is when this process began: for one lease after it there is no
	// permit.
	Started time.Time
	// LeaseBefore is the longest lease for which an earlier process of this node
	// may have promised, if that is more than its own: to be kept on disk. 0: none.
	LeaseBefore time.Duration
	Settings
	// Held says whether this node announces a prefix *now*: read back from
	// the speaker, not intended, no longer than two seconds ago.
	Held func(netip.Prefix) bool
	// Sick is a hint whom to ask last; nil knows of none. It is never counted.
	Sick func(edge.NodeID, netip.Prefix) bool
	// Demand is how many requests a second the fleet serves now, and whether that
	// is known; nil knows of none. It is asked only if the policy covers it.
	Demand func() (float64, bool)
	// Drop counts a message that was ignored, by reason; nil counts nowhere.
	Drop func(reason string)
	// Rand spreads the rounds in time.
	Rand *rand.Rand
}

// Pauses of a round that are not configured.
const (
	// jitterMin and jitterMax spread the first rounds of nodes that fall sick
	// of one cause, so that the later ones know of the earlier.
	jitterMin = 200 * time.Millisecond
	jitterMax = 500 * time.Millisecond
	// widenAfter is when those who are known to be sick are asked too.
	widenAfter = 500 * time.Millisecond
	// A question that is not answered is put again repeats times within the ask
	// timeout, and what is given back once more after echoAfter: for messages that
	// are lost.
	repeats   = 2
	echoAfter = 400 * time.Millisecond
	// marginMax is taken off a promise, on top of a tenth of its lease: for
	// the withdrawal itself, which takes time after the permit was looked at.
	marginMax = 500 * time.Millisecond
	// taking is how long a prefix must have been held before it is promised to stay:
	// Held says what the routers were sent, and they need a moment until they have it
	// in force. FRR in the lab took 60 ms, in which another site had left for it.
	taking = 2 * time.Second
	// stale is how old what Held says may be.
	stale = 2 * time.Second
	// leaseMax bounds what another node's promise can claim.
	leaseMax = time.Hour
)

// Span is for how long after the question a promise with this lease counts.
func Span(lease time.Duration) time.Duration {
	return lease - lease/10 - min(marginMax, lease/10)
}

// CheckPolicy says what is wrong with p: every duration must be above zero,
// and a promise must outlive the wait for it.
func CheckPolicy(p edge.Guard) error {
	switch {
	case p.PromiseLease <= 0 || p.AskTimeout <= 0 || p.BackOff <= 0:
		return errors.New("check guard policy: lease, ask timeout and back-off must be above zero")
	case p.PromiseLease > leaseMax:
		return fmt.Errorf("check guard policy: lease %s is above %s", p.PromiseLease, leaseMax)
	case Span(p.PromiseLease) <= p.AskTimeout:
		return fmt.Errorf("check guard policy: lease %s is too short for an ask timeout of %s", p.PromiseLease, p.AskTimeout)
	}
	return nil
}

// Node is the state machine of one node. Its methods must not be called
// concurrently; now must never go back from one call to the next.
type Node struct {
	self    edge.NodeID
	site    edge.SiteID
	boot    int64
	counter uint64
	// No permit before quiet: promises of the process before are forgotten
	// here, but others may still count them for a lease. No promise before blind:
	// what that process was withdrawing may go for as long as its permit, be read
	// back later still, and be announced again without having been seen gone.
	started, quiet, blind time.Time

	before time.Duration // the longest lease of earlier processes

	held func(netip.Prefix) bool
	sick func(edge.NodeID, netip.Prefix) bool
	drop func(string)
	rand *rand.Rand
	load func() (float64, bool)

	policy edge.Guard
	sites  map[edge.NodeID]edge.SiteID
	places map[edge.SiteID]edge.Site    // those of sites
	others []edge.NodeID                // ascending, without self
	keys   map[edge.NodeID]edge.NodeKey // with which each last spoke, also those that have left the roster
	seats  map[netip.Prefix]*seat
	order  []netip.Prefix             // keys of seats, ascending: same input, same output
	recent map[netip.Prefix]time.Time // withdrawals begun in the last minute
	past   []edge.GuardDecision
	forced []time.Time // forced withdrawals of the last edge.ForceWindow

	out     []Message
	echoes  []echo
	version uint64
}

// echo is a message that is sent once more.
type echo struct {
	at time.Time
	m  Message
}

// seat is what this node has to do with one prefix: both sides of it.
type seat struct {
	prefix netip.Prefix
	// floor is MinSites; retired says that the configuration no longer has the
	// prefix, whose last floor goes on to hold until it is off the air.
	floor   int
	retired bool
	of      edge.Prefix // as configured last

	// As the asker.
	wish    Wish
	round   *round
	next    time.Time   // no round before this
	refused edge.Reason // why the last round failed; sticky until the next permit
	since   time.Time   // since when it is
	granted bool        // the round has had enough promises
	leaving bool        // between Begin and End
	failed  *round      // of a withdrawal whose outcome is not known
	unsure  time.Time   // after such a one: no promise before this

	// After a withdrawal: see gone.
	left   bool
	absent bool // the speaker has been seen without the prefix
	leftAt time.Time

	// As the one asked.
	heldFrom time.Time // since when Held has said so without a break; zero: it does not
	bound    map[edge.NodeID]binding
	seen     map[edge.NodeID]Round
}

type binding struct {
	round   Round
	until   time.Time
	lease   time.Duration // as promised
	planned bool          // the one it is given to leaves by an order
}

// promised is one promise that a round has got.
type promised struct {
	until time.Time // when it stops to count
	well  bool
}

// order says whether the round is to leave by an order.
func (r *round) order() bool { return r.wish.Severity == edge.SeverityDrain }

// round is one open question.
type round struct {
	id     Round
	wish   Wish // what it was opened for
	opened time.Time
	put    int       // how often the question has been
	last   time.Time // when it was
	terms  terms
	wide   bool
	// sites are those of the roster at the opening: a later roster can only
	// take promises away from this round.
	sites    map[edge.NodeID]edge.SiteID
	asked    map[edge.NodeID]time.Time
	promised map[edge.NodeID]promised
	nacked   map[edge.NodeID]edge.Reason
	until    time.Time // end of the permit that a withdrawal was begun with
}

// New returns a Node, or an error if the options cannot work.
func New(o Options) (*Node, error) {
	if o.Held == nil || o.Rand == nil {
		return nil, errors.New("make promise node: Held and Rand are needed")
	}
	n := &Node{
		self: o.Self, boot: o.Boot, started: o.Started, before: o.LeaseBefore,
		held: o.Held, sick: o.Sick, drop: o.Drop, rand: o.Rand,
		seats: map[netip.Prefix]*seat{}, keys: map[edge.NodeID]edge.NodeKey{}, load: o.Demand, recent: map[netip.Prefix]time.Time{},
	}
	if n.load == nil {
		n.load = func() (float64, bool) { return 0, false }
	}
	if n.sick == nil {
		n.sick = func(edge.NodeID, netip.Prefix) bool { return false }
	}
	if n.drop == nil {
		n.drop = func(string) {}
	}
	if _, err := n.Update(o.Started, o.Settings); err != nil {
		return nil, err
	}
	for p, s := range n.seats {
		if n.held(p) { // as it was before this process: see blind
			s.heldFrom = n.started.Add(-taking)
		}
	}
	return n, nil
}

// Update takes a new configuration. An error leaves everything as it was. A
// floor that went down, or a roster that grew, counts for new rounds only; a
// floor that went up and a node that is gone count at once.
func (n *Node) Update(now time.Time, s Settings) ([]Message, error) {
	if err := CheckPolicy(s.Policy); err != nil {
		return nil, err
	}
	sites := map[edge.NodeID]edge.SiteID{}
	for _, m := range s.Roster {
		sites[m.ID] = m.Site
	}
	site, ok := sites[n.self]
	if !ok || len(sites) != len(s.Roster) {
		return nil, fmt.Errorf("update roster: node %q must be in it, and every node once", n.self)
	}
	n.rekeyed(s.Roster)
	moved := n.site != site
	n.policy, n.sites, n.site = s.Policy, sites, site
	n.places = map[edge.SiteID]edge.Site{}
	for _, id := range sites {
		n.places[id] = edge.Site{ID: id}
	}
	for _, p := range s.Sites {
		if _, ok := n.places[p.ID]; ok {
			n.places[p.ID] = p
		}
	}
	lease := max(s.Policy.PromiseLease, n.before)
	n.quiet = later(n.quiet, n.started.Add(lease))
	n.blind = later(n.blind, n.started.Add(Span(lease)+stale+taking))
	n.others = n.others[:0:0]
	for id := range sites {
		if id != n.self {
			n.others = append(n.others, id)
		}
	}
	slices.Sort(n.others)
	for _, p := range n.order {
		n.seats[p].retired = true
		if moved {
			n.close(now, n.seats[p], "this node has moved to another site")
		}
	}
	for _, p := range s.Prefixes {
		n.seat(p)
	}
	n.order = slices.SortedFunc(maps.Keys(n.seats), comparePrefix)
	n.version++
	return n.flush(), nil
}

func (n *Node) seat(of edge.Prefix) {
	p := of.Net.Masked()
	s := n.seats[p]
	if s == nil {
		s = &seat{prefix: p, bound: map[edge.NodeID]binding{}, seen: map[edge.NodeID]Round{}}
		n.seats[p] = s
	}
	s.floor, s.retired, s.of = max(0, of.MinSites), false, of
}

// RaiseBoot makes new rounds use boot id b if that is higher: for a node whose
// clock went back over a restart, and whose questions the others would take
// for replays. No other process of this node may ever use b: else two rounds would
// have one name, and an answer to the one, late, would count for the other.
func (n *Node) RaiseBoot(b int64) { n.boot = max(n.boot, b) }

// Reboot makes new rounds use boot id b, also if that is lower: for a node with a new
// key, since who had the old one may have used up the ids. As with RaiseBoot, no other
// process may ever use it.
func (n *Node) Reboot(b int64) { n.boot = b }

// rekeyed forgets which questions have come from a node that has another key: nothing
// that was signed with the old one is believed again, and who had stolen that may have
// used up the numbers of rounds. What it was promised stands.
func (n *Node) rekeyed(nodes []edge.Node) {
	for _, m := range nodes {
		if was, ok := n.keys[m.ID]; ok && was != m.PublicKey {
			for _, s := range n.seats {
				delete(s.seen, m.ID)
			}
		}
		n.keys[m.ID] = m.PublicKey
	}
}

// Version changes whenever what Permit, Asking or Bound say may have changed.
func (n *Node) Version() uint64 { return n.version }

// Receive takes one message and returns what there is to send. A message that
// is stale, replayed, for another prefix or from outside of the roster is
// ignored and counted.
func (n *Node) Receive(now time.Time, m Message) []Message {
	s := n.seats[m.Prefix]
	switch {
	case m.From == n.self:
		n.drop("self_sent")
	case m.To != n.self:
		n.drop("misdirected")
	case n.sites[m.From] == "":
		n.drop("unknown_sender")
	case s == nil:
		n.drop("unknown_prefix")
		if m.Kind == Intent {
			n.answer(m, Nack, "it does not know the prefix")
		}
	case m.Kind == Intent:
		n.onIntent(now, s, m)
	case m.Kind == Release:
		n.onRelease(s, m)
	case m.Kind == Promise || m.Kind == Nack:
		n.onAnswer(now, s, m)
	default:
		n.drop("unknown_kind")
	}
	return n.flush()
}

// Tick lets time pass: rounds open, widen and end, promises lapse. It must be
// called several times a second.
func (n *Node) Tick(now time.Time) []Message {
	for len(n.echoes) > 0 && !now.Before(n.echoes[0].at) {
		n.send(n.echoes[0].m)
		n.echoes = n.echoes[1:]
	}
	var over []netip.Prefix // taken out when all have been looked at
	for _, p := range n.order {
		s := n.seats[p]
		n.lapse(now, s)
		n.look(now, s)
		n.gone(now, s)
		n.progress(now, s)
		n.seek(now, s)
		if s.retired && !s.wish.Want && s.idle(now) && !n.held(p) {
			over = append(over, p)
		}
	}
	for _, p := range over {
		delete(n.seats, p)
	}
	if len(over) > 0 {
		n.order = slices.DeleteFunc(n.order, func(p netip.Prefix) bool { return n.seats[p] == nil })
	}
	return n.flush()
}

func (n *Node) send(m Message) {
	m.From = n.self
	n.out = append(n.out, m)
}

func (n *Node) flush() []Message {
	out := n.out
	n.out = nil
	return out
}
