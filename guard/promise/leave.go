package promise

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// Permit answers whether this node may withdraw prefix p now.
func (n *Node) Permit(now time.Time, p netip.Prefix) edge.Permit {
	s := n.seats[p.Masked()]
	if s == nil {
		return edge.Permit{Refused: true, Reason: "the prefix is not in the configuration"}
	}
	out := edge.Permit{Needed: n.terms(s).sites, Refused: s.refused != "", Reason: s.refused, BlockedSince: s.blocked(now)}
	if s.round != nil {
		t := n.tally(now, s)
		out.Needed, out.Promised, out.Lacks = t.needed, t.sites, t.lacks
		if t.ok {
			out.Until = t.until
		}
	}
	bar := n.bar(now, s)
	switch {
	case bar != "":
		out.Until, out.Reason, out.Refused = time.Time{}, bar, s.wish.Want && !s.left
	case !out.Until.IsZero():
		out.OK, out.Refused, out.BlockedSince = true, false, time.Time{}
		out.Reason = edge.Reason(fmt.Sprintf("promised to stay: %v", out.Promised))
	case out.Reason == "" && s.round != nil:
		out.Reason = edge.Reason(fmt.Sprintf("asking: %d of %d other sites have promised to stay", len(out.Promised), out.Needed))
	case out.Reason == "":
		out.Reason = "about to ask"
	}
	return out
}

// bar is what forbids to leave whatever the others promise; empty: nothing.
func (n *Node) bar(now time.Time, s *seat) edge.Reason {
	switch {
	case !s.wish.Want:
		return "no wish to leave"
	case s.left:
		return "already withdrawn"
	case now.Before(n.quiet):
		return edge.Reason(fmt.Sprintf("promises given before the start at %s are forgotten, so no leave until %s", clock(n.started), clock(n.quiet)))
	}
	if at, ok := n.mayLeave(now, s.prefix); !ok {
		return edge.Reason(fmt.Sprintf("%d prefixes have left within a minute, which is all that may; the next at %s", len(n.recent), clock(at)))
	}
	if b := s.boundTo(now); len(b) > 0 {
		return edge.Reason(fmt.Sprintf("bound by a promise to %s to stay, until %s at the latest", b[0].To, clock(b[0].Until)))
	}
	if s.wish.Severity != edge.SeverityDrain {
		return ""
	}
	if why := n.forSickness(now, n.site); why != "" {
		return why
	}
	return n.tooMany(n.orders(now, n.site))
}

// mayLeave says whether p may leave as one more prefix within a minute, and if
// not, when it may. One that leaves again is no further one; one whose withdrawal
// has failed counts, since it may have left all the same.
func (n *Node) mayLeave(now time.Time, p netip.Prefix) (time.Time, bool) {
	maps.DeleteFunc(n.recent, func(_ netip.Prefix, t time.Time) bool { return now.Sub(t) >= time.Minute })
	if n.policy.MaxLeaves <= 0 { // it is not limited
		return time.Time{}, true
	}
	// A share is rounded down, but not for what a float cannot hold exactly.
	most := max(edge.FreeLeaves, int(n.policy.MaxLeaves*float64(len(n.seats))+1e-9))
	if _, again := n.recent[p]; again || len(n.recent) < most {
		return time.Time{}, true
	}
	first := now
	for _, t := range n.recent {
		if t.Before(first) {
			first = t
		}
	}
	return first.Add(time.Minute), false
}

// blockedAfter is how long a wish must have been refused to be called blocked.
const blockedAfter = 5 * time.Second

// refuse notes why there is no permit; empty: nothing is refused.
func (s *seat) refuse(now time.Time, why edge.Reason) {
	if why == "" {
		s.since = time.Time{}
	} else if s.since.IsZero() {
		s.since = now
	}
	s.refused = why
}

// blocked is since when this node has been refused, once that is long enough.
func (s *seat) blocked(now time.Time) time.Time {
	if s.since.IsZero() || now.Sub(s.since) < blockedAfter {
		return time.Time{}
	}
	return s.since
}

// pastMax is how many rounds that are over are remembered.
const pastMax = 50

// keep remembers how a round has ended, and on what.
func (n *Node) keep(now time.Time, s *seat, why edge.Reason) {
	r := s.round
	d := edge.GuardDecision{
		Time: now, Prefix: s.prefix, Round: r.id.N, Opened: r.opened, Severity: r.wish.Severity, Wish: r.wish.Reason,
		Needed: n.terms(s).sites, Left: s.left, Reason: why, Nacked: maps.Clone(r.nacked),
	}
	switch {
	case d.Left:
		d.Reason = "withdrew"
	case why == "":
		d.Reason = "it does not want to leave any more"
	}
	for id := range r.promised {
		d.Promised = append(d.Promised, id)
	}
	slices.Sort(d.Promised)
	for id := range r.asked {
		_, yes := r.promised[id]
		_, no := r.nacked[id]
		if !yes && !no {
			d.Silent = append(d.Silent, id)
		}
	}
	slices.Sort(d.Silent)
	n.remember(d)
}

func (n *Node) remember(d edge.GuardDecision) {
	n.past = append(n.past, d)
	if len(n.past) > pastMax {
		n.past = slices.Delete(n.past, 0, len(n.past)-pastMax)
	}
}

// Past are the last rounds that are over, oldest first.
func (n *Node) Past() []edge.GuardDecision { return slices.Clone(n.past) }

func clock(t time.Time) string { return t.UTC().Format("15:04:05") }

// Asking returns the permit of every prefix with a wish.
func (n *Node) Asking(now time.Time) map[netip.Prefix]edge.Permit {
	out := map[netip.Prefix]edge.Permit{}
	for p, s := range n.seats {
		if s.wish.Want {
			out[p] = n.Permit(now, p)
		}
	}
	return out
}

// Begin starts a withdrawal: it returns until when it must be over, or an
// error that says why it may not be. From here to End this node promises
// nobody to stay.
func (n *Node) Begin(now time.Time, p netip.Prefix) (time.Time, error) {
	pm := n.Permit(now, p)
	if !pm.OK {
		return time.Time{}, errors.New(string(pm.Reason))
	}
	s := n.seats[p.Masked()]
	if s.leaving {
		return time.Time{}, errors.New("it is leaving already")
	}
	s.leaving, s.round.until = true, pm.Until
	n.recent[s.prefix] = now
	n.version++
	return pm.Until, nil
}

// End says how the withdrawal went. If it succeeded, the promises are given
// back: others may leave now. If not, this node stays, but the withdrawal may
// still take effect late (a request that timed out, say): so the promises are
// given back only at the end of the permit, before which no new round opens (its
// release would free the promisers of the old one), and this node promises nobody
// to stay for one lease, nor before it can be seen what has come of it.
func (n *Node) End(now time.Time, p netip.Prefix, ok bool) []Message {
	s := n.seats[p.Masked()]
	if s == nil || !s.leaving {
		return nil
	}
	s.leaving = false
	if ok {
		s.left, s.absent, s.leftAt = true, false, now
		n.close(now, s, "")
		return n.flush()
	}
	s.failed = s.round
	s.doubt(later(now.Add(n.policy.PromiseLease), s.round.until.Add(stale)))
	n.keep(now, s, "the withdrawal failed")
	s.round, s.granted = nil, false
	s.refuse(now, "the withdrawal failed")
	s.next = now.Add(n.backOff())
	n.version++
	n.progress(now, s)
	return n.flush()
}
