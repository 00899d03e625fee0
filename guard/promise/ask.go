package promise

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
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
	case w.Want && had && s.round != nil && !s.granted && s.round.order() != (w.Severity == edge.SeverityDrain):
		// It would be answered for another cause than it has.
		n.close(now, s, "asks anew, for another cause")
		s.next = now.Add(n.between(jitterMin, jitterMax))
	case w.Want && !had:
		n.version++
		s.refuse(now, "")
		s.next = later(s.next, now.Add(n.between(jitterMin, jitterMax)))
	case !w.Want && had:
		n.version++
		n.close(now, s, "")
		s.refuse(now, "")
	}
	return n.flush()
}

// seek opens a round if there is cause for one and nothing against it. What bars
// from leaving bars from asking: it would bind others for nothing.
func (n *Node) seek(now time.Time, s *seat) {
	switch bar := n.bar(now, s); {
	case s.round != nil || s.failed != nil || s.leaving: // also by force, without a round
	case bar == "" && !now.Before(s.next):
		n.open(now, s)
	case bar != "" && s.wish.Want && !s.left && s.since.IsZero():
		s.since = now
	}
}

func (n *Node) open(now time.Time, s *seat) {
	n.counter++
	s.round = &round{
		id: Round{Boot: n.boot, N: n.counter}, opened: now, put: 1, last: now, terms: termsOf(s.floor, n.policy.Of(s.of), n.places), wish: s.wish,
		sites: maps.Clone(n.sites), asked: map[edge.NodeID]time.Time{},
		promised: map[edge.NodeID]promised{}, nacked: map[edge.NodeID]edge.Reason{},
	}
	s.round.wide = s.round.order() // each has a veto, and most of all who is sick
	n.ask(now, s, func(id edge.NodeID) bool { return s.round.wide || !n.sick(id, s.prefix) })
	n.version++
	n.progress(now, s)
}

// ask puts the question to those of the roster that want picks and that have
// not been asked in this round.
func (n *Node) ask(now time.Time, s *seat, want func(edge.NodeID) bool) {
	for _, id := range n.others {
		if _, done := s.round.asked[id]; done || !want(id) {
			continue
		}
		s.round.asked[id] = now
		n.put(s, id)
	}
}

func (n *Node) put(s *seat, id edge.NodeID) {
	n.send(Message{Kind: Intent, To: id, Prefix: s.prefix, Round: s.round.id, Severity: s.wish.Severity, Reason: s.wish.Reason})
}

// repeat puts the question again to those that have not answered: it may be lost,
// or the answer. A promise counts from the first time all the same.
func (n *Node) repeat(now time.Time, s *seat) {
	r := s.round
	if r.put > repeats || now.Sub(r.last) < n.policy.AskTimeout/(repeats+1) {
		return
	}
	r.put, r.last = r.put+1, now
	for _, id := range r.names() {
		if !r.heard(id) {
			n.put(s, id)
		}
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
		if s.round.put == 1 {
			n.drop("replayed") // who has promised is bound, whatever else it says
		}
		return
	}
	if m.Kind == Nack {
		s.round.nacked[m.From] = m.Reason
		if m.Veto && !s.granted {
			n.close(now, s, edge.Reason(fmt.Sprintf("%s: %s", m.From, m.Reason)))
			return
		}
	} else {
		if m.Lease <= 0 || m.Lease > leaseMax {
			n.drop("bad_lease")
			return
		}
		delete(s.round.nacked, m.From)
		// No longer than by the own lease: after a restart nothing else is known of
		// how long the process before may have had leave.
		s.round.promised[m.From] = promised{asked.Add(Span(min(m.Lease, n.policy.PromiseLease))), m.Well}
	}
	n.version++
	n.progress(now, s)
}

// progress moves an open round on: to a permit, to more nodes, or to its end.
func (n *Node) progress(now time.Time, s *seat) {
	if s.failed != nil && !now.Before(s.failed.until) {
		n.release(now, s, s.failed)
		s.failed = nil
	}
	if s.round == nil || s.leaving {
		return
	}
	t := n.tally(now, s)
	answered := s.round.answered()
	switch {
	case t.ok:
		if !s.granted {
			s.granted = true
			s.refuse(now, "")
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
	default:
		n.repeat(now, s)
	}
}

// tally is what the promises of a round amount to.
type tally struct {
	ok     bool
	sites  []edge.SiteID // ascending; own site first if a sibling stays
	needed int
	lacks  edge.Reason
	until  time.Time
}

// tally counts the sites, other than this one, of which a node has promised.
//
// If another node of this node's own site has promised to stay, the site as a
// whole does not withdraw when this node does, so no other site sees a change
// and that promise alone is enough.
func (n *Node) tally(now time.Time, s *seat) tally {
	r, want := s.round, n.terms(s)
	t := tally{needed: want.sites}
	var sibling time.Time
	var all []offer
	for id, p := range r.promised {
		site := r.sites[id]
		switch {
		case !now.Before(p.until) || n.sites[id] != site || site == "": // in the roster in between only
		case site == n.site:
			sibling = later(sibling, p.until)
		default:
			all = append(all, offer{site, p})
		}
	}
	in := stay{}
	if s.floor == 0 && r.terms.sites == 0 {
		t.until = r.opened.Add(Span(n.policy.PromiseLease)) // no floor is configured
	}
	// The longest first: the promise that completes the terms is the one with
	// which the permit ends.
	slices.SortFunc(all, func(a, b offer) int { return b.until.Compare(a.until) })
	for _, o := range all {
		was := in[o.site]
		was.well = was.well || o.well
		in[o.site] = was
		if t.until.IsZero() && want.met(in, n.places) {
			t.until = o.until
		}
	}
	t.sites, t.lacks = slices.Sorted(maps.Keys(in)), want.lack(in, n.places)
	if !sibling.IsZero() {
		t.sites, t.lacks = slices.Insert(t.sites, 0, n.site), ""
		t.until = later(t.until, sibling)
	}
	t.ok = now.Before(t.until) && (!sibling.IsZero() || !r.order() || r.answered() || now.Sub(r.opened) >= n.policy.AskTimeout)
	return t
}

// answered says whether everybody has answered who was asked. Who leaves by an
// order waits for that, if it does not take too long: each has a veto.
func (r *round) answered() bool { return len(r.promised)+len(r.nacked) == len(r.asked) }

// names are those that were asked, ascending.
func (r *round) names() []edge.NodeID {
	out := make([]edge.NodeID, 0, len(r.asked))
	for id := range r.asked {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// heard says whether id has answered.
func (r *round) heard(id edge.NodeID) bool {
	_, yes := r.promised[id]
	_, no := r.nacked[id]
	return yes || no
}

// offer is a promise of a node of a site.
type offer struct {
	site edge.SiteID
	promised
}

// terms are those that the round of s must meet: what they were when it was
// opened, and what they are now.
func (n *Node) terms(s *seat) terms {
	t := termsOf(s.floor, n.policy.Of(s.of), n.places)
	if s.round != nil {
		t = s.round.terms.and(t)
	}
	if t.cover {
		t = t.demand(n.load())
	}
	return t
}

// verdict says who did not promise, and why, for the operator.
func (n *Node) verdict(r *round, t tally) edge.Reason {
	const most = 6 // names in the text; fleets are larger than a line
	var no []string
	for _, id := range r.names() {
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
	text := fmt.Sprintf("%d of %d other sites promised to stay", len(t.sites), t.needed)
	for _, more := range append([]string{string(t.lacks)}, no...) {
		if more != "" {
			text += "; " + more
		}
	}
	return edge.Reason(text)
}

// close ends the open round, if there is one, gives its promises back and
// keeps why. A withdrawal that is under way is left to End.
func (n *Node) close(now time.Time, s *seat, why edge.Reason) {
	if s.round == nil || s.leaving {
		return
	}
	n.release(now, s, s.round)
	n.keep(now, s, why)
	s.round, s.granted = nil, false
	s.refuse(now, why)
	s.next = now.Add(n.backOff())
	n.version++
}

// release tells everybody that was asked, also those whose answer was lost, but
// not those that have refused: and that twice, as one that does not hear of it is
// bound for the whole lease.
func (n *Node) release(now time.Time, s *seat, r *round) {
	for _, id := range r.names() {
		if _, no := r.nacked[id]; no {
			continue
		}
		n.send(Message{Kind: Release, To: id, Prefix: s.prefix, Round: r.id})
		n.echoes = append(n.echoes, echo{now.Add(echoAfter), n.out[len(n.out)-1]})
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
