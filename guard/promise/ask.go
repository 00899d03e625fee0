package promise

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// Wish says whether this node wants to withdraw prefix p. Saying the same
// again changes nothing. The end of a wish ends the round and gives the
// promises back. A prefix that is not configured has no wishes.
func (n *Node) Wish(now time.Time, p netip.Prefix, w Wish) []Message {
	s := n.seats[p.Masked()]
	if s == nil || s.wish == w {
		return nil
	}
	had := s.wish.Want
	s.wish = w
	switch {
	case w.Want && !had:
		n.version++
		s.refused = ""
		s.next = later(s.next, now.Add(n.between(jitterMin, jitterMax)))
	case !w.Want && had:
		n.version++
		n.close(now, s, "")
		s.refused = ""
	}
	return n.flush()
}

// mayAsk says whether there is cause for a round and nothing against it.
func (n *Node) mayAsk(now time.Time, s *seat) bool {
	return s.wish.Want && s.round == nil && s.failed == nil && !s.leaving && !s.left && len(s.boundTo(now)) == 0 && !now.Before(n.quiet)
}

func (n *Node) open(now time.Time, s *seat) {
	n.counter++
	s.round = &round{
		id: Round{Boot: n.boot, N: n.counter}, opened: now, needed: s.floor,
		sites: maps.Clone(n.sites), asked: map[edge.NodeID]time.Time{},
		promised: map[edge.NodeID]time.Time{}, nacked: map[edge.NodeID]edge.Reason{},
	}
	n.ask(now, s, func(id edge.NodeID) bool { return !n.sick(id, s.prefix) })
	n.version++
	n.progress(now, s)
}

// ask puts the question to those of the roster that want picks and that have
// not been asked in this round: nobody is asked twice.
func (n *Node) ask(now time.Time, s *seat, want func(edge.NodeID) bool) {
	for _, id := range n.others {
		if _, done := s.round.asked[id]; done || !want(id) {
			continue
		}
		s.round.asked[id] = now
		n.send(Message{Kind: Intent, To: id, Prefix: s.prefix, Round: s.round.id, Severity: s.wish.Severity, Reason: s.wish.Reason})
	}
}

// onAnswer takes a promise or a refusal, of this round only.
func (n *Node) onAnswer(now time.Time, s *seat, m Message) {
	if s.round == nil || s.round.id != m.Round {
		n.drop("stale_round")
		return
	}
	asked, ok := s.round.asked[m.From]
	if !ok {
		n.drop("not_asked")
		return
	}
	if _, has := s.round.promised[m.From]; has {
		n.drop("replayed") // who has promised is bound, whatever else it says
		return
	}
	if m.Kind == Nack {
		s.round.nacked[m.From] = m.Reason
	} else {
		if m.Lease <= 0 || m.Lease > leaseMax {
			n.drop("bad_lease")
			return
		}
		delete(s.round.nacked, m.From)
		s.round.promised[m.From] = asked.Add(Span(m.Lease))
	}
	n.version++
	n.progress(now, s)
}

// progress moves an open round on: to a permit, to more nodes, or to its end.
func (n *Node) progress(now time.Time, s *seat) {
	if s.failed != nil && !now.Before(s.failed.until) {
		n.release(s, s.failed)
		s.failed = nil
	}
	if s.round == nil || s.leaving {
		return
	}
	t := n.tally(now, s)
	answered := len(s.round.promised)+len(s.round.nacked) == len(s.round.asked)
	switch {
	case t.ok:
		if !s.granted {
			s.granted, s.refused = true, ""
			n.version++
		}
	case s.granted:
		n.close(now, s, "the permit has lapsed unused")
	case !s.round.wide && (answered || now.Sub(s.round.opened) >= min(widenAfter, n.policy.AskTimeout/2)):
		s.round.wide = true
		n.ask(now, s, func(edge.NodeID) bool { return true })
		n.progress(now, s)
	case s.round.wide && answered, now.Sub(s.round.opened) >= n.policy.AskTimeout:
		n.close(now, s, n.verdict(s.round, t))
	}
}

// tally is what the promises of a round amount to.
type tally struct {
	ok     bool
	sites  []edge.SiteID // ascending; own site first if a sibling stays
	needed int
	until  time.Time
}

// tally counts the sites, other than this one, of which a node has promised.
//
// If another node of this node's own site has promised to stay, the site as a
// whole does not withdraw when this node does, so no other site sees a change
// and that promise alone is enough.
func (n *Node) tally(now time.Time, s *seat) tally {
	r := s.round
	t := tally{needed: max(r.needed, s.floor)}
	best := map[edge.SiteID]time.Time{}
	for id, end := range r.promised {
		site := r.sites[id]
		if now.Before(end) && n.sites[id] == site {
			best[site] = later(best[site], end)
		}
	}
	sibling := best[n.site]
	delete(best, n.site)
	t.sites = slices.Sorted(maps.Keys(best))
	ends := slices.SortedFunc(maps.Values(best), func(a, b time.Time) int { return b.Compare(a) })
	switch {
	case t.needed == 0:
		t.until = r.opened.Add(Span(n.policy.PromiseLease)) // no floor is configured
	case len(ends) >= t.needed:
		t.until = ends[t.needed-1]
	}
	if !sibling.IsZero() {
		t.sites = slices.Insert(t.sites, 0, n.site)
		t.until = later(t.until, sibling)
	}
	t.ok = now.Before(t.until)
	return t
}

// verdict says who did not promise, and why, for the operator.
func (n *Node) verdict(r *round, t tally) edge.Reason {
	const most = 6 // names in the text; fleets are larger than a line
	var no []string
	for _, id := range slices.Sorted(maps.Keys(r.asked)) {
		if _, ok := r.promised[id]; ok {
			continue
		}
		why, ok := r.nacked[id]
		if !ok {
			why = "no answer"
		}
		no = append(no, fmt.Sprintf("%s: %s", id, why))
	}
	if len(r.asked) == 0 {
		no = append(no, "there is no other node to ask")
	}
	if len(no) > most {
		no = append(no[:most], fmt.Sprintf("and %d more", len(no)-most))
	}
	return edge.Reason(fmt.Sprintf("%d of %d other sites promised to stay; %s", len(t.sites), t.needed, strings.Join(no, "; ")))
}

// close ends the open round, if there is one, gives its promises back and
// keeps why. A withdrawal that is under way is left to End.
func (n *Node) close(now time.Time, s *seat, why edge.Reason) {
	if s.round == nil || s.leaving {
		return
	}
	n.release(s, s.round)
	s.round, s.granted, s.refused = nil, false, why
	s.next = now.Add(n.backOff())
	n.version++
}

// release tells everybody that was asked: also those whose answer was lost.
func (n *Node) release(s *seat, r *round) {
	for _, id := range slices.Sorted(maps.Keys(r.asked)) {
		n.send(Message{Kind: Release, To: id, Prefix: s.prefix, Round: r.id})
	}
}

// backOff is the pause after a round that failed: longer for those that rank
// to stay, and never the same for two.
func (n *Node) backOff() time.Duration {
	before := 0
	for _, id := range n.others {
		if id > n.self {
			before++
		}
	}
	rank := float64(before) / float64(len(n.sites))
	return time.Duration(float64(n.policy.BackOff) * (1 + rank + n.rand.Float64()))
}

func (n *Node) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(n.rand.Int64N(int64(hi-lo)))
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
