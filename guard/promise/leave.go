package promise

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
)

// Permit answers whether this node may withdraw prefix p now.
func (n *Node) Permit(now time.Time, p netip.Prefix) edge.Permit {
	s := n.seats[p.Masked()]
	if s == nil {
		return edge.Permit{Refused: true, Reason: "the prefix is not in the configuration"}
	}
	out := edge.Permit{Needed: s.floor, Refused: s.refused != "", Reason: s.refused}
	if s.round != nil {
		t := n.tally(now, s)
		out.Needed, out.Promised = t.needed, t.sites
		if t.ok {
			out.Until = t.until
		}
	}
	bar := n.bar(now, s)
	switch {
	case bar != "":
		out.Until, out.Reason, out.Refused = time.Time{}, bar, s.wish.Want && !s.left
	case !out.Until.IsZero():
		out.OK, out.Refused = true, false
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
	if b := s.boundTo(now); len(b) > 0 {
		return edge.Reason(fmt.Sprintf("bound by a promise to %s to stay, until %s at the latest", b[0].To, clock(b[0].Until)))
	}
	return ""
}

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
	n.version++
	return pm.Until, nil
}

// End says how the withdrawal went. If it succeeded, the promises are given
// back: others may leave now. If not, this node stays, but the withdrawal may
// still take effect late (a request that timed out, say): so the promises are
// given back only at the end of the permit, before which no new round opens (its
// release would free the promisers of the old one), and for one lease this node
// promises nobody to stay.
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
	s.failed, s.unsure = s.round, now.Add(n.policy.PromiseLease)
	s.round, s.granted, s.refused = nil, false, "the withdrawal failed"
	s.next = now.Add(n.backOff())
	n.version++
	n.progress(now, s)
	return n.flush()
}
