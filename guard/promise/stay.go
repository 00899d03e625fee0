package promise

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// onIntent answers a question. Each is judged once: a second copy only gets the
// promise again that stands, since that may have been lost. Any other copy is a
// replay, and so is one that was overtaken by its own release.
func (n *Node) onIntent(now time.Time, s *seat, m Message) {
	n.look(now, s)
	if last, ok := s.seen[m.From]; ok && !m.Round.After(last) {
		if b, ok := s.bound[m.From]; ok && b.round == m.Round && now.Before(b.until) && n.stands(now, s) {
			n.answer(m, Promise, "") // for as long as then: the lease may be another now
		} else {
			n.drop("stale_round")
		}
		return
	}
	s.seen[m.From] = m.Round
	n.gone(now, s)
	if why := n.unplanned(now, m); why != "" {
		n.send(Message{Kind: Nack, To: m.From, Prefix: m.Prefix, Round: m.Round, Reason: why, Veto: true})
		return
	}
	if why := n.refusal(now, s, m); why != "" {
		n.answer(m, Nack, why)
		return
	}
	// Bound first, answered after: there is no moment between in which this
	// node could still leave. An older binding to the same node only gets
	// longer.
	s.bound[m.From] = binding{
		round: m.Round, until: later(s.bound[m.From].until, now.Add(n.policy.PromiseLease)), lease: n.policy.PromiseLease,
		planned: m.Severity == edge.SeverityDrain,
	}
	n.close(now, s, edge.Reason(fmt.Sprintf("gave its round up so that %s can go first", m.From)))
	n.version++
	n.answer(m, Promise, "")
}

// stands says whether nothing has come between a promise and its sender: sessions
// that are lost, or an operator's force.
func (n *Node) stands(now time.Time, s *seat) bool {
	return !s.leaving && !s.left && !now.Before(s.unsure) && n.held(s.prefix) && now.Sub(s.heldFrom) >= taking
}

// refusal says why this node does not promise; empty: it does.
func (n *Node) refusal(now time.Time, s *seat, m Message) edge.Reason {
	switch b, bound := s.bound[m.From]; {
	case s.leaving:
		return "it is leaving"
	case s.left:
		return "it has withdrawn"
	case !n.held(s.prefix):
		return "it does not announce the prefix"
	case now.Before(n.blind):
		return "it has started a moment ago, and what it did before may still take effect"
	case now.Before(s.unsure):
		return "its own withdrawal failed a moment ago, with an outcome that is not known"
	case now.Sub(s.heldFrom) < taking:
		return "it announces the prefix since a moment ago, and its routers may not have taken it yet"
	case bound && now.Before(b.until) && b.round.Boot != m.Round.Boot:
		// Which process is the later one the ids do not tell if a clock went back, and
		// the release of one must not free of what the other counts on.
		return "it is bound to another process of the same node"
	case (s.wish.Want || s.wish.Unfit) && !staysBefore(s.wish.Severity, n.self, m):
		switch {
		case s.wish.Severity == edge.SeverityDrain:
			return "it is draining"
		case s.wish.Unfit:
			return "it cannot serve itself"
		}
		return "it wants to leave too, and goes first"
	}
	return ""
}

// unplanned says why nobody may leave by an order now; empty: one may, or m asks
// for another cause. It is a rule of order and no promise: a node that was not
// reached cannot object.
func (n *Node) unplanned(now time.Time, m Message) edge.Reason {
	if m.Severity != edge.SeverityDrain {
		return ""
	}
	if why := n.forSickness(now, n.sites[m.From]); why != "" {
		return why
	}
	orders := n.orders(now, n.sites[m.From])
	for _, p := range n.order {
		// This node itself: those that refuse it do not count it. Of two that ask each
		// other for two prefixes one goes first, as with one.
		s := n.seats[p]
		if n.sites[m.From] != n.site && s.round != nil && s.round.order() && (s.granted || !staysBefore(m.Severity, n.self, m)) {
			orders[n.site] = true
		}
	}
	return n.tooMany(orders)
}

// orders are the sites that leave any prefix by an order, as far as this node has
// promised them to stay; without one.
func (n *Node) orders(now time.Time, but edge.SiteID) map[edge.SiteID]bool {
	out := map[edge.SiteID]bool{}
	for _, p := range n.order {
		for to, b := range n.seats[p].bound {
			if site := n.sites[to]; b.planned && now.Before(b.until) && site != but {
				out[site] = true
			}
		}
	}
	return out
}

func (n *Node) tooMany(orders map[edge.SiteID]bool) edge.Reason {
	if most := n.policy.MaxPlanned; most > 0 && len(orders) >= most {
		return edge.Reason(fmt.Sprintf("%d sites are leaving by an order already, and %d may at a time", len(orders), most))
	}
	return ""
}

// forSickness says who leaves any prefix for sickness, as far as this node knows, and
// is not of this site.
func (n *Node) forSickness(now time.Time, but edge.SiteID) edge.Reason {
	for _, p := range n.order {
		s := n.seats[p]
		if s.sick() && but != n.site {
			return "it wants to leave for sickness itself, and orders wait for that"
		}
		for to, b := range s.bound {
			if now.Before(b.until) && n.sites[to] != but && !b.planned {
				return edge.Reason(fmt.Sprintf("%s is leaving for sickness, and orders wait for that", to))
			}
		}
	}
	return ""
}

// sick says whether this node asks for leave for sickness, or is leaving for it: also
// if it is well again meanwhile, or does not know whether it has left.
func (s *seat) sick() bool {
	return s.round != nil && (s.wish.Severity > edge.SeverityDrain || !s.round.order()) || s.failed != nil && !s.failed.order()
}

// staysBefore ranks a node that wants to leave against one that asks: the less
// severe stays; of equals, the one whose id comes first. Every pair of nodes
// agrees on it, so two that ask each other cannot both be refused for good.
func staysBefore(severity int, self edge.NodeID, m Message) bool {
	return severity < m.Severity || severity == m.Severity && self < m.From
}

func (n *Node) answer(m Message, k Kind, why edge.Reason) {
	a := Message{Kind: k, To: m.From, Prefix: m.Prefix, Round: m.Round, Reason: why}
	if k == Promise {
		s := n.seats[m.Prefix]
		a.Lease, a.Well = s.bound[m.From].lease, s.wish.Well
	}
	n.send(a)
}

// onRelease frees this node of the promise of exactly that round. A release
// that overtakes its own question makes the question stale.
func (n *Node) onRelease(s *seat, m Message) {
	if _, ok := s.bound[m.From]; !ok && m.Round == s.seen[m.From] {
		return // once more: see release
	}
	if m.Round.After(s.seen[m.From]) {
		s.seen[m.From] = m.Round
	}
	if b, ok := s.bound[m.From]; !ok || b.round != m.Round {
		n.drop("stale_release")
		return
	}
	delete(s.bound, m.From)
	n.version++
}

// idle says whether there is nothing of this seat that must not be forgotten.
func (s *seat) idle(now time.Time) bool {
	return s.round == nil && s.failed == nil && !s.leaving && !now.Before(s.unsure) && len(s.bound) == 0
}

// lapse frees this node of promises whose lease has run out.
func (n *Node) lapse(now time.Time, s *seat) {
	for to, b := range s.bound {
		if !now.Before(b.until) {
			delete(s.bound, to)
			n.version++
		}
	}
}

// boundTo returns to whom this node is bound now, longest first.
func (s *seat) boundTo(now time.Time) []edge.Binding {
	var out []edge.Binding
	for to, b := range s.bound {
		if now.Before(b.until) {
			out = append(out, edge.Binding{Prefix: s.prefix, To: to, Until: b.until})
		}
	}
	slices.SortFunc(out, func(a, b edge.Binding) int {
		if c := b.Until.Compare(a.Until); c != 0 {
			return c
		}
		return strings.Compare(string(a.To), string(b.To))
	})
	return out
}

// look follows since when the prefix is held.
func (n *Node) look(now time.Time, s *seat) {
	switch {
	case !n.held(s.prefix):
		s.heldFrom = time.Time{}
	case s.heldFrom.IsZero():
		s.heldFrom = now
	}
}

// doubt has it unknown until then what has come of a withdrawal. That the prefix was
// gone in between need not have been seen, so until then it may also have come back.
func (s *seat) doubt(until time.Time) {
	s.unsure = until
	if !s.heldFrom.IsZero() {
		s.heldFrom = later(s.heldFrom, until)
	}
}

// gone finds out whether a prefix that this node has withdrawn is back. What
// the speaker was last seen to hold may be older than the withdrawal, so it is
// believed only once it has shown the prefix gone, or after a whole lease and
// longer than it can be old.
func (n *Node) gone(now time.Time, s *seat) {
	if !s.left {
		return
	}
	if !n.held(s.prefix) {
		s.absent = true
		return
	}
	if s.absent || now.Sub(s.leftAt) >= max(n.policy.PromiseLease, stale) {
		// It may have been announced again just now, without having been seen absent.
		s.left, s.absent, s.heldFrom = false, false, now
		n.version++
	}
}

// Bound returns the promises that this node has given and not been released
// from, by prefix.
func (n *Node) Bound(now time.Time) []edge.Binding {
	out := []edge.Binding{}
	for _, s := range n.seats {
		out = append(out, s.boundTo(now)...)
	}
	slices.SortStableFunc(out, func(a, b edge.Binding) int { return comparePrefix(a.Prefix, b.Prefix) })
	return out
}

func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}
