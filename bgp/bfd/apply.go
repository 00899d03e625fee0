package bfd

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// wanted is a valid config in both its forms.
type wanted struct{ given, normal Config }

// valid returns the valid configs by their ids, and what is wrong with the
// others.
func valid(want []Config) (map[id]wanted, error) {
	out, names := map[id]wanted{}, map[netip.Addr]bool{}
	var errs []error
	for _, c := range want {
		if err := c.Validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		n := c.normal()
		if _, twice := out[n.id()]; twice {
			errs = append(errs, fmt.Errorf("bfd to %s: the peer is named twice", c.Peer))
			continue
		}
		if names[c.Peer] { // of two links: nobody could tell their Status apart
			errs = append(errs, fmt.Errorf("bfd to %s: the peer is named twice: write the interface %s as its zone", c.Peer, n.Interface))
			continue
		}
		names[c.Peer] = true
		out[n.id()] = wanted{c, n}
	}
	return out, errors.Join(errs...)
}

// answerAsks serves the calls that wait.
func (l *loop) answerAsks() {
	for {
		select {
		case a := <-l.asks:
			if a.set {
				a.reply <- answer{err: l.apply(a.want)}
			} else {
				a.reply <- answer{states: l.states(), dropped: counted(&l.unknown)}
			}
		default:
			return
		}
	}
}

func (l *loop) states() []Status {
	out := make([]Status, 0, len(l.sessions))
	for _, s := range l.sessions {
		if !s.leaving {
			out = append(out, s.status())
		}
	}
	slices.SortFunc(out, func(a, b Status) int { return a.Peer.Compare(b.Peer) })
	return out
}

// apply brings about the whole set; see Engine.Set.
func (l *loop) apply(want []Config) error {
	set, err := valid(want)
	errs := []error{err}
	named := map[id]bool{}
	for _, c := range want {
		named[c.normal().id()] = true // also if invalid: then what runs stays
	}
	for _, s := range slices.Clone(l.sessions) {
		if !named[s.id] && !s.leaving {
			l.leave(s)
		}
	}
	now := time.Now()
	for _, c := range slices.SortedFunc(maps.Values(set), func(a, b wanted) int { return a.normal.Peer.Compare(b.normal.Peer) }) {
		s := l.byID[c.normal.id()]
		if s != nil && !s.cfg.sameWay(c.normal) {
			l.drop(s)
			s = nil
		}
		if s == nil {
			s = l.add(c, now)
		} else {
			l.change(s, c, now)
		}
		if s.rx == nil {
			l.open(s, now)
		}
		if s.rx == nil {
			errs = append(errs, s.openErr)
		}
	}
	return errors.Join(errs...)
}

// add makes a session; its sockets are not open yet.
func (l *loop) add(c wanted, now time.Time) *session {
	s := &session{id: c.normal.id(), peer: c.given.Peer, cfg: c.normal, tx: -1}
	s.m = newMachine(now, l.newDiscriminator(), c.normal.timers(), jitter)
	s.m.admin(now, c.normal.AdminDown)
	l.sessions = append(l.sessions, s)
	l.byID[s.id] = s
	return s
}

// change gives a session, which may be about to leave, another config with the
// same sockets.
func (l *loop) change(s *session, c wanted, now time.Time) {
	s.leaving = false
	s.peer, s.cfg = c.given.Peer, c.normal
	s.m.set(c.normal.timers())
	was := s.m.state
	if s.m.admin(now, c.normal.AdminDown) {
		l.changed(s, was)
		if s.rx != nil {
			l.send(s, now, false)
		}
	}
}

// leave begins the end of a session: it stays until the far end has been told.
func (l *loop) leave(s *session) {
	s.leaving = true
	now, was := time.Now(), s.m.state
	if s.m.admin(now, true) && s.rx != nil {
		l.changed(s, was)
		l.send(s, now, false)
	}
}

// drop ends a session at once.
func (l *loop) drop(s *session) {
	l.farewell(s)
	l.remove(s)
	l.sessions = slices.DeleteFunc(l.sessions, func(o *session) bool { return o == s })
}

// farewell tells the far end, in as many packets as make it likely that one
// arrives.
func (l *loop) farewell(s *session) {
	if s.rx == nil {
		return
	}
	now := time.Now()
	s.m.admin(now, true)
	for range farewells {
		l.send(s, now, false)
	}
}

// remove frees what a session has, but for its place in sessions.
func (l *loop) remove(s *session) {
	l.shut(s)
	delete(l.byID, s.id)
	delete(l.ports, s.port)
	delete(l.discriminators, s.m.local)
}

// open opens the sockets of a session, or says in its openErr why not.
func (l *loop) open(s *session, now time.Time) {
	if s.openErr = l.tryOpen(s); s.openErr == nil {
		s.openErr = s.oddity()
	}
	s.retryAt = now.Add(retryPause)
	l.complain(s)
}

func (l *loop) tryOpen(s *session) error {
	index, err := interfaceIndex(s.cfg.Interface)
	if err != nil {
		return fmt.Errorf("bfd to %s: %w", s.peer, err)
	}
	local := s.cfg.Local
	switch {
	case local.IsValid():
	case s.cfg.Peer.Is4():
		local = netip.IPv4Unspecified()
	default:
		local = netip.IPv6Unspecified()
	}
	r, err := l.receiver(place{local, index, s.cfg.Multihop})
	if err != nil {
		return fmt.Errorf("bfd to %s: %w", s.peer, err)
	}
	delete(l.ports, s.port)
	if s.tx, s.port, err = openSender(local, index, s.port, l.pickPort); err != nil {
		l.release(r)
		return fmt.Errorf("bfd to %s: %w", s.peer, err)
	}
	l.ports[s.port] = true
	s.rx, s.to, s.stale = r, sockaddr(s.cfg.Peer, r.port(), index), false
	s.source = source{from: s.cfg.Peer}
	if s.cfg.Peer.Is6() && s.cfg.Peer.IsLinkLocalUnicast() {
		s.source.index = index
	}
	l.bySource[s.source] = s
	return nil
}

// shut closes the sockets of a session.
func (l *loop) shut(s *session) {
	if s.rx == nil {
		return
	}
	delete(l.bySource, s.source)
	unix.Close(s.tx)
	l.release(s.rx)
	s.rx, s.tx = nil, -1
}

// receiver returns the socket of a place, for one more session.
func (l *loop) receiver(p place) (*receiver, error) {
	r := l.receivers[p]
	if r == nil {
		ours := false
		for o := range l.receivers {
			ours = ours || o.multihop == p.multihop && o.local.Is4() == p.local.Is4()
		}
		var err error
		if r, err = openReceiver(p, ours); err != nil {
			return nil, err
		}
		if err := l.watch(r.fd); err != nil {
			unix.Close(r.fd)
			return nil, err
		}
		l.receivers[p], l.byFD[int32(r.fd)] = r, r
	}
	r.users++
	return r, nil
}

func (l *loop) release(r *receiver) {
	if r.users--; r.users > 0 {
		return
	}
	unix.Close(r.fd) // epoll forgets it
	delete(l.receivers, r.place)
	delete(l.byFD, int32(r.fd))
}

// close tells all far ends and frees everything.
func (l *loop) close() {
	for _, s := range l.sessions {
		l.farewell(s)
		l.remove(s)
	}
	l.sessions = nil
	unix.Close(l.wakeFD)
	unix.Close(l.epollFD)
}
