package main

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/catchment-dev/edge"
)

// received is how much a peer has sent; listed says that the list follows.
func (s *status) received(p edge.PeerState, listed bool) {
	if p.Session != "established" {
		s.say(plain, "  received: nothing is kept beyond the end of a session")
		return
	}
	c, told := s.configured(p.ID)
	text := fmt.Sprintf("  received: %s", count(p.Received, "prefix"))
	if told {
		text = fmt.Sprintf("  received: %d of at most %s (import_limit)", p.Received, count(cmp.Or(c.ImportLimit, defaultImportLimit), "prefix"))
	}
	t := plain
	if p.OverLimit {
		t, text = bad, text+", and more came: until the session ends those are neither kept nor counted"
	}
	text += "; none is used"
	switch {
	case p.Default:
		text += "; a default route is among them"
	case told && c.DefaultRoute:
		text += "; no default route is among them"
	}
	if p.Received > 0 && !listed {
		text += fmt.Sprintf("; edgectl bgp %s has more on them", p.ID)
	}
	s.say(t, text)
}

// defaultImportLimit is that of a peer without one.
const defaultImportLimit = 1000

// configured are the settings of a peer; false if edgebgp has not told them.
func (s *status) configured(id edge.PeerID) (edge.Peer, bool) {
	if s.Speaker.Speaker == nil {
		return edge.Peer{}, false
	}
	for _, p := range s.Speaker.Speaker.Peers {
		if p.ID == id {
			return p, true
		}
	}
	return edge.Peer{}, false
}

// rejected lists what a peer has sent, as far as edgebgp hands it out, and says
// where that is cut.
func (s *status) rejected(p edge.PeerState) {
	if p.Received == 0 || p.Session != "established" {
		return
	}
	c, _ := s.configured(p.ID)
	var rows [][]cell
	for _, r := range p.FirstReceived {
		rows = append(rows, []cell{{r.String(), plain}, {s.whyRejected(r, c), plain}})
	}
	if len(rows) > 0 {
		s.table([]string{"RECEIVED", "NOT USED BECAUSE"}, rows)
	}
	switch more := p.Received - len(rows); {
	case more <= 0 && p.OverLimit:
		s.say(warn, "these are all that are kept; what came beyond import_limit is not")
		return
	case more <= 0:
		s.say(plain, "these are all")
		return
	case len(rows) == 0:
		s.section(warn, "what it has sent is not listed: edgebgp counts it, and hands out none of so many")
	default:
		s.say(warn, fmt.Sprintf("the list is cut after %s: edgebgp hands out the first %d, in their order; %d more are counted only",
			p.FirstReceived[len(rows)-1], len(rows), more))
	}
	s.say(plain, "the router itself lists all that it sends: in FRR advertised-routes of the neighbor, in BIRD show route export")
}

// whyRejected says why a route of a peer is not used.
func (s *status) whyRejected(r netip.Prefix, c edge.Peer) string {
	for _, d := range s.Decisions {
		if own := d.Prefix; own.Overlaps(r) && own.Bits() <= r.Bits() {
			if own == r {
				return "it is ours, from another site or from a stranger: node.bgp.watch tells which"
			}
			return fmt.Sprintf("it is a part of ours (%s): node.bgp.watch tells who announces it", own)
		}
	}
	switch {
	case c.Watch:
		return "the peer is only watched"
	case r.Bits() == 0 && c.DefaultRoute:
		return "a default route is noted, and not followed"
	case r.Bits() == 0:
		return "a default route is not followed"
	}
	return "edgebgp takes no route from a peer, it only announces"
}
