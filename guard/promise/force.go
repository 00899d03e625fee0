package promise

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// Force begins a withdrawal without a permit, by an operator's order, and returns the
// nodes that this one had promised to stay: they may count on it, and cannot be told.
// An error says why even that may not be. From here to Forced this node promises
// nobody to stay, and its own round is over. A node forces at most FreeLeaves
// prefixes out in ten minutes; an attempt counts as well as a success.
func (n *Node) Force(now time.Time, p netip.Prefix) ([]edge.NodeID, []Message, error) {
	s := n.seats[p.Masked()]
	switch {
	case s == nil:
		return nil, nil, errors.New("the prefix is not in the configuration")
	case s.leaving:
		return nil, nil, errors.New("it is leaving already")
	}
	n.forced = slices.DeleteFunc(n.forced, func(t time.Time) bool { return now.Sub(t) >= edge.ForceWindow })
	if len(n.forced) >= edge.FreeLeaves {
		return nil, nil, fmt.Errorf("%d prefixes have been forced out within %s, which is all that may; the next at %s",
			len(n.forced), edge.ForceWindow, clock(n.forced[0].Add(edge.ForceWindow)))
	}
	n.forced = append(n.forced, now)
	var broken []edge.NodeID
	for _, b := range s.boundTo(now) {
		broken = append(broken, b.To)
	}
	n.close(now, s, "the prefix is forced out")
	s.leaving = true
	n.version++
	return broken, n.flush(), nil
}

// forceLast is how long a withdrawal may take at most that has no permit to end with:
// half of the longest lease of edgebgp.
const forceLast = 30 * time.Second

// Forced says how a withdrawal has ended that was begun by Force. If it failed, this
// node stays, and as after any that failed promises nobody before it can be seen what
// has come of it.
func (n *Node) Forced(now time.Time, p netip.Prefix, why edge.Reason, ok bool) {
	s := n.seats[p.Masked()]
	if s == nil || !s.leaving || s.round != nil {
		return
	}
	s.leaving = false
	n.version++
	d := edge.GuardDecision{
		Time: now, Prefix: s.prefix, Opened: now, Severity: s.wish.Severity, Wish: cmp.Or(s.wish.Reason, why),
		Needed: n.terms(s).sites, Left: ok, Forced: true, Reason: "forced: " + why,
	}
	if ok {
		s.left, s.absent, s.leftAt = true, false, now
		s.refuse(now, "")
	} else {
		s.doubt(now.Add(max(n.policy.PromiseLease, forceLast) + stale))
		d.Reason = "the forced withdrawal failed: " + why
	}
	n.remember(d)
}

// Recall takes in when an earlier process of this node has forced prefixes out, or
// has tried to. Such a withdrawal has no permit to end with: it may still be under way,
// so this node promises nobody before it must be over. How long ago it was is not asked
// for that: a wall clock may have jumped since. For the limit, a time that is yet to
// come is taken for the start.
func (n *Node) Recall(at ...time.Time) {
	if len(at) > 0 {
		n.blind = later(n.blind, n.started.Add(forceLast+stale+taking))
	}
	for _, t := range at {
		n.forced = append(n.forced, n.started.Add(-max(0, n.started.Sub(t))))
	}
	slices.SortFunc(n.forced, time.Time.Compare)
}

// RecallLeft takes in when an earlier process of this node has withdrawn p: it goes on
// to count for what may leave within a minute. A time that is yet to come is taken
// for the start.
func (n *Node) RecallLeft(p netip.Prefix, at time.Time) {
	if age := max(0, n.started.Sub(at)); age < time.Minute {
		n.recent[p.Masked()] = n.started.Add(-age)
	}
}
