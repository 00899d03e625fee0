package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// ErrForgotten matches the error of an intent that was refused because it would
// take a prefix off the air that it does not withdraw: it says nothing of one that is
// announced, or ends the last session that carries one.
var ErrForgotten = errors.New("intent is refused, nothing is withdrawn by being forgotten")

var errNotTried = fmt.Errorf("not tried: %w", errSilent)

// maxNamed bounds how many prefixes an error names.
const maxNamed = 20

// forgotten returns an error that matches ErrForgotten if in says nothing of a
// prefix that is announced, or may be. Those are the prefixes of the intent in
// force: what could not be withdrawn is among them, and nothing else is ever
// put into the server.
func (s *Speaker) forgotten(in edge.Intent) error {
	if s.intent == nil {
		return nil
	}
	named := map[netip.Prefix]bool{}
	for _, a := range in.Announcements {
		named[a.Net] = true
	}
	for _, w := range in.Withdraw {
		named[w.Net] = true
	}
	var missing []string
	for _, a := range s.intent.Announcements {
		if !named[a.Net] {
			missing = append(missing, a.Net.String())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	more := ""
	if n := len(missing) - maxNamed; n > 0 {
		more, missing = fmt.Sprintf(" and %d more", n), missing[:maxNamed]
	}
	return fmt.Errorf("%w: announced, but neither in announcements nor in withdraw: %s%s", ErrForgotten, strings.Join(missing, ", "), more)
}

// dropped returns an error that matches ErrForgotten if in would end the session, or
// change what is sent in it, of every peer that holds a prefix which in goes on
// announcing. Who has worked in out has looked as well, but a moment ago.
func (s *Speaker) dropped(in edge.Intent) error {
	if s.intent == nil || reflect.DeepEqual(s.intent.Speaker, in.Speaker) {
		return nil
	}
	announced := s.inForce()
	st := edge.SpeakerState{Peers: s.peers()}
	for _, a := range in.Announcements {
		if _, ok := announced[a.Net]; ok {
			st.Announcements = append(st.Announcements, a)
		}
	}
	if why := edge.DropsRoutes(s.engine.running(s.intent.Speaker), in.Speaker, st); why != "" {
		return fmt.Errorf("%w: the settings of the speaker differ, and %s", ErrForgotten, why)
	}
	return nil
}

// foreign returns an error that matches ErrInvalid if in would announce what is
// not ours. One that is announced already stays: a change of the configuration
// is no withdrawal.
func (s *Speaker) foreign(in edge.Intent) error {
	if len(in.Speaker.Own) == 0 {
		return nil
	}
	announced := s.inForce()
	var f faults
	for i, a := range in.Announcements {
		if _, ok := announced[a.Net]; !ok && !contains(in.Speaker.Own, a.Net) {
			f.addf("announcement %d (%s): outside of the fleet's prefixes: add it to fleet.prefixes", i+1, a.Net)
		}
	}
	return f.join()
}

// inForce are the announcements of the intent in force.
func (s *Speaker) inForce() map[netip.Prefix]edge.Announcement {
	m := map[netip.Prefix]edge.Announcement{}
	if s.intent != nil {
		for _, a := range s.intent.Announcements {
			m[a.Net] = a
		}
	}
	return m
}

// withdraw carries out the orders about what is announced. It returns the
// announcements that stay in spite of their order, and why: they go on as they
// are, since the leave to withdraw may end, so nothing is tried again later.
func (s *Speaker) withdraw(ctx context.Context, orders []edge.Withdrawal) (stays []edge.Announcement, err error) {
	announced := s.inForce()
	var errs []error
	var gone []netip.Prefix
	silent := false
	for _, w := range orders {
		a, ok := announced[w.Net]
		if !ok {
			continue
		}
		err := errNotTried
		if !silent {
			err = s.leave(ctx, w)
		}
		if err != nil {
			// Each further one would only be waited for as long.
			silent = silent || errors.Is(err, errSilent)
			stays = append(stays, a)
			errs = append(errs, fmt.Errorf("%s stays: %w", w.Net, err))
			s.log.Error("withdrawal has failed, the prefix stays", "prefix", w.Net, "until", w.Until, "err", err)
			continue
		}
		gone = append(gone, w.Net)
		s.verdict.forget(w.Net)
	}
	s.confirm(ctx, gone)
	return stays, errors.Join(errs...)
}

// confirm waits for as long as confirmLimit until the routers have been sent the
// withdrawals: the servers have been told, and their words are on the way. A
// router that does not read is not waited for any longer; the state shows what it
// holds.
func (s *Speaker) confirm(ctx context.Context, gone []netip.Prefix) {
	if len(gone) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, confirmLimit)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if !s.unmoved(gone) && !holdsAny(s.peers(), gone) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// unmoved says that a peer which held one of the prefixes has been written nothing
// since: to look at all that the others hold would be work for nothing.
func (s *Speaker) unmoved(gone []netip.Prefix) bool {
	if s.engine.link == nil {
		return false
	}
	hub, ok := s.engine.link.sessions.(revisions)
	if !ok {
		return false
	}
	for addr, l := range s.looks {
		if l.complete && l.hub == s.engine.link && holdsAny([]edge.PeerState{l.st}, gone) && hub.Revision(addr) == l.liveRev {
			return true
		}
	}
	return false
}

func holdsAny(peers []edge.PeerState, nets []netip.Prefix) bool {
	st := edge.SpeakerState{Peers: peers}
	return slices.ContainsFunc(nets, func(net netip.Prefix) bool { return st.Holders(net) > 0 })
}

// leave withdraws one prefix, unless its permit has ended by now, however long
// the order has been on its way. If a server does not answer nothing is tried:
// the prefix would be taken from the other peers only, and given back to them.
func (s *Speaker) leave(ctx context.Context, w edge.Withdrawal) error {
	if now := s.now(); !now.Before(w.Until) {
		return fmt.Errorf("the permit to withdraw it has ended at %s, and now is %s", w.Until.Format(time.RFC3339Nano), now.Format(time.RFC3339Nano))
	}
	if s.engine.silent() {
		return errNotTried
	}
	return s.engine.withdraw(ctx, w, s.intent.Speaker.ASN)
}
