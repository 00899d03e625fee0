package relay

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// refreshPause is how often GoBGP is asked to send everything anew. Its queue
// has no bound: a router that asks without end, and reads nothing, must not
// fill it.
const refreshPause = time.Second

// refresh is when a ROUTE-REFRESH of one family is, or was last, passed on.
type refresh struct {
	at    time.Time
	timer *time.Timer
}

// fromRouter does what a message of an established session wants; false: the
// session has ended.
func (s *session) fromRouter(m wire.Message) bool {
	switch m.Type {
	case wire.TypeKeepalive:
		return s.feed()
	case wire.TypeUpdate:
		return s.received(m.Raw)
	case wire.TypeRouteRefresh:
		return s.refresh(m.Raw)
	case wire.TypeNotification:
		s.notified(m.Raw)
		return false
	}
	s.unexpected(m.Type)
	return false
}

// server is the connection to GoBGP; nil: the session is over.
func (s *session) server() *leg {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.leg
}

// toServer writes to GoBGP, or ends the session.
func (s *session) toServer(b []byte) bool {
	l := s.server()
	if l == nil {
		return false
	}
	if !l.write(b) {
		s.finish(farewell{why: "the BGP server of this peer does not take what it is sent", code: codeCease, subcode: ceaseShutdown})
		return false
	}
	return true
}

// feed tells GoBGP that the router lives, whatever message has shown it. Not for
// every one of a flood: GoBGP's hold timer is at most a tenth ahead of ours.
func (s *session) feed() bool {
	if time.Since(s.fed) < s.hold/10 {
		return true
	}
	s.fed = time.Now()
	return s.toServer(wire.Keepalive())
}

// received reads an UPDATE of the router. Whatever is in it, the session stays:
// we use nothing of it, and a router must not be able to take us off the air.
func (s *session) received(raw []byte) bool {
	p := s.p
	u, err := wire.ParseUpdate(raw, s.remote.FourOctet)
	p.mu.Lock()
	p.rev++
	p.counts.UpdatesReceived++
	if err != nil || len(u.Strange) > 0 {
		p.counts.Malformed++
	}
	if err == nil {
		// Without the paths: they are large, and nobody asks for them.
		s.in.Apply(wire.Update{Announced: u.Announced, Withdrawn: u.Withdrawn})
		s.noteDefault(u)
	}
	id := p.c.Peer.ID
	p.mu.Unlock()
	if err != nil {
		p.log.Debug("an UPDATE of the router cannot be read", "err", err)
		return s.feed()
	}
	if p.h.o.OnReceive != nil {
		p.h.o.OnReceive(id, u)
	}
	if f := u.EndOfRIB; f != "" && !s.ribs[f] && slices.Contains(s.ours.Families, f) && slices.Contains(s.remote.Families, f) {
		s.ribs[f] = true
		return s.toServer(wire.EndOfRIB(f))
	}
	return s.feed()
}

// noteDefault keeps whether there is a default route. p.mu is held.
func (s *session) noteDefault(u wire.Update) {
	set := func(prefixes []netip.Prefix, there bool) {
		for _, p := range prefixes {
			switch {
			case p.Bits() != 0:
			case p.Addr().Is4():
				s.default4 = there
			default:
				s.default6 = there
			}
		}
	}
	set(u.Withdrawn, false)
	set(u.Announced, true)
}

// refresh passes on a ROUTE-REFRESH, at most one of a family per refreshPause.
// One that comes too early is passed on later, together with those that come
// until then: the router gets everything as it is after its last question.
func (s *session) refresh(raw []byte) bool {
	f, ok := wire.ParseRouteRefresh(raw)
	if !ok || !slices.Contains(s.ours.Families, f) || !slices.Contains(s.remote.Families, f) {
		s.malformed()
		return true
	}
	now := time.Now()
	r := s.refreshes[f]
	if r == nil {
		r = &refresh{}
		s.refreshes[f] = r
	}
	switch wait := r.at.Add(refreshPause).Sub(now); {
	case r.at.After(now): // one is on its way
		return true
	case wait > 0:
		r.at = now.Add(wait)
		again := slices.Clone(raw)
		r.timer = time.AfterFunc(wait, func() { s.toServer(again) })
		return true
	}
	r.at = now
	return s.toServer(raw)
}

func (s *session) stopRefreshes() {
	for _, r := range s.refreshes {
		if r.timer != nil {
			r.timer.Stop()
		}
	}
}

// fromServer passes on what GoBGP says. If it cannot be written, the reader of
// the session learns that too, perhaps with the router's NOTIFICATION before.
func (s *session) fromServer(m wire.Message) {
	switch m.Type {
	case wire.TypeKeepalive:
		s.send(m.Raw)
	case wire.TypeUpdate:
		s.announce(m.Raw)
	case wire.TypeNotification:
		n, err := wire.ParseNotification(m.Raw)
		if err != nil {
			n = wire.Notification{Code: codeCease, Subcode: ceaseShutdown}
		}
		f := farewell{why: "the BGP server of this peer sent " + n.String(), code: n.Code, subcode: n.Subcode, data: n.Data}
		if n.Code == codeHold {
			f.why = holdExpired(s.holdTime())
		}
		s.finish(f)
	}
	// A ROUTE-REFRESH would ask for routes that nobody wants.
}

func (s *session) holdTime() time.Duration {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.hold
}

// announce writes an UPDATE of GoBGP to the router, if all that it announces may
// be, and notes what the router holds by then.
func (s *session) announce(raw []byte) {
	p := s.p
	p.mu.Lock()
	ours, remote := s.ours, s.remote
	p.mu.Unlock()
	u, err := wire.ParseUpdate(raw, remote.FourOctet)
	if err != nil {
		p.log.Error("an UPDATE of the BGP server cannot be read: it is not sent", "err", err)
		return
	}
	if refused := refusals(u, p.config(), forServer(ours, remote)); len(refused) > 0 {
		s.stop(u, refused)
		return
	}
	if s.hop != nil && len(u.Announced) > 0 {
		raw = s.hop.apply(raw)
		u, err = wire.ParseUpdate(raw, remote.FourOctet)
		if err != nil {
			p.log.Error("an UPDATE with the next hop of the link cannot be read: it is not sent", "err", err)
			return
		}
	}
	if !s.send(raw) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rev++
	p.counts.UpdatesSent++
	p.counts.WithdrawsSent += uint64(len(u.Withdrawn))
	s.out.Apply(u)
	for _, list := range [][]netip.Prefix{u.Announced, u.Withdrawn} {
		for _, prefix := range list {
			delete(s.notSent, prefix)
		}
	}
}

// refusals are the prefixes that u must not announce, and why. agreed is what
// both ends have offered.
func refusals(u wire.Update, c Config, agreed wire.Open) map[netip.Prefix]string {
	refused := map[netip.Prefix]string{}
	for i, prefix := range u.Announced {
		f := edge.IPv4
		if prefix.Addr().Is6() {
			f = edge.IPv6
		}
		switch hop := u.PathOf(i).NextHop; {
		case c.Allowed == nil || !c.Allowed(prefix):
			refused[prefix] = "the prefix may not be announced to this peer"
		case !slices.Contains(agreed.Families, f):
			refused[prefix] = fmt.Sprintf("the router does not take %s", f)
		case f == edge.IPv4 && hop.Is6() && !slices.Contains(agreed.ExtendedNextHop, f):
			refused[prefix] = "the router does not take an IPv6 next hop for IPv4 (RFC 8950)"
		}
	}
	return refused
}

// stop keeps a whole message from the wire.
func (s *session) stop(u wire.Update, refused map[netip.Prefix]string) {
	s.p.log.Error("an UPDATE of the BGP server is not sent", "refused", refused, "announces", len(u.Announced), "withdraws", len(u.Withdrawn))
	first := slices.SortedFunc(maps.Keys(refused), netip.Prefix.Compare)[0]
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.rev++
	for _, prefix := range u.Announced {
		why, ok := refused[prefix]
		if !ok {
			why = fmt.Sprintf("in one message with %s, which is refused", first)
		}
		s.notSent[prefix] = why
	}
}

// The first so many of what the router sends are shown, if there are few enough to
// be put in order.
const (
	firstOf  = 20
	sortable = 1000
)

// describe adds to st what the session knows. p.mu is held.
func (s *session) describe(st *State) {
	local := s.conn.LocalAddr().(*net.TCPAddr).AddrPort()
	st.Local = netip.AddrPortFrom(zoned(local.Addr(), s.p.c.Peer), local.Port())
	st.Ours = s.ours
	if s.state >= openconfirm {
		st.Remote = s.remote
	}
	if s.state != established {
		return
	}
	st.Received = s.in.Len(edge.IPv4) + s.in.Len(edge.IPv6)
	if st.Received <= sortable {
		for prefix := range s.in.All() {
			if len(st.First) == firstOf {
				break
			}
			st.First = append(st.First, prefix)
		}
	}
	st.OverLimit = s.in.Over()
	st.Default = s.p.c.Peer.DefaultRoute && (s.default4 || s.default6)
	st.NotSent = maps.Clone(s.notSent)
	st.Held = make([]edge.HeldPrefix, 0, s.out.Len(edge.IPv4)+s.out.Len(edge.IPv6))
	for prefix, path := range s.out.All() {
		st.Held = append(st.Held, held(prefix, path, s.p.c))
	}
}

// held is how the router holds a prefix.
func held(prefix netip.Prefix, path wire.Path, c Config) edge.HeldPrefix {
	h := edge.HeldPrefix{Net: prefix, NextHop: zoned(path.NextHop, c.Peer)}
	for _, as := range path.ASPath {
		if as == c.ASN {
			h.Prepend++
		}
	}
	if c.Peer.ASN != c.ASN && h.Prepend > 0 {
		h.Prepend-- // the one that eBGP adds
	}
	if path.MED != nil {
		h.MED = *path.MED
	}
	if path.LocalPref != nil {
		h.LocalPref = *path.LocalPref
	}
	h.Communities, h.Large = slices.Clone(path.Communities), slices.Clone(path.Large)
	return h
}
