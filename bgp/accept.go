package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// ErrNoRenewal matches the error of a renewal of an intent that is not in force.
var ErrNoRenewal = errors.New("that intent is not in force: send it whole")

// accept makes in the intent, with what it could not withdraw, and applies it.
func (s *Speaker) accept(ctx context.Context, in edge.Intent) error {
	if err := s.foreign(in); err != nil {
		return err
	}
	if err := s.forgotten(in); err != nil {
		return err
	}
	// Tried before anything is stopped: a port that is taken must not cost the
	// sessions that run.
	if err := s.hub.canListen(in.Speaker.Listen); err != nil {
		return err
	}
	if err := s.dropped(in); err != nil {
		return err
	}
	s.prolong(in.Speaker.Lease)
	stays, failed := s.withdraw(ctx, in.Withdraw)
	in.Announcements, in.Withdraw = slices.Concat(in.Announcements, stays), nil
	if len(stays) > 0 { // the settings may need that they leave first
		if err := s.dropped(in); err != nil {
			failed = errors.Join(failed, fmt.Errorf("the settings stay as they are: %v", err)) // not ErrForgotten: much is done
			in.Speaker = s.intent.Speaker
		}
	}
	s.intent, s.listed, s.renewal = &in, nil, ""
	s.judge()
	// Behind the withdrawals: a restart amid them announces too much rather
	// than too little.
	s.save()
	err := s.apply(ctx)
	if err == nil {
		err = s.engine.rest(ctx, patience)
	}
	// Our own work is not edged's silence.
	s.lease.renew(s.now(), in.Speaker.Lease)
	if failed = errors.Join(failed, err); failed == nil {
		s.accepted++
		s.renewal = fmt.Sprintf("%s-%d", s.view.name, s.accepted)
	}
	return failed
}

// renew makes the lease of the intent in force begin again.
func (s *Speaker) renew(ctx context.Context, renewal string) error {
	if renewal != s.renewal {
		return ErrNoRenewal
	}
	if s.prolong(s.intent.Speaker.Lease) || s.failed {
		if err := s.apply(ctx); err != nil {
			return err
		}
		return s.engine.rest(ctx, patience)
	}
	return s.engine.trouble()
}

// prolong makes the lease begin again, and says whether it had run out.
func (s *Speaker) prolong(length time.Duration) bool {
	expired := s.lease.expired
	if expired {
		s.log.Info("lease renewed: announcing as told again", "expired_for", s.now().Sub(s.lease.end()).Round(time.Millisecond))
		s.listed = nil
	}
	s.lease.renew(s.now(), length)
	return expired
}

// apply hands the intent to the workers, as the lease lets it be announced. It
// withdraws nothing but what the settings of a peer do not send it any more.
func (s *Speaker) apply(ctx context.Context) error {
	s.failed, s.tried = true, s.now()
	if err := s.openHub(ctx); err != nil {
		return err
	}
	// First: what a watched peer shows at once is judged by whether it is ours.
	s.aides.set(s.intent)
	if err := s.engine.set(ctx, s.wish()); err != nil {
		return err
	}
	s.failed = false
	return nil
}

// wish is the intent as the engine takes it.
func (s *Speaker) wish() *wish {
	list := s.announcements()
	if s.version == 0 || !slices.EqualFunc(s.sent, list, sentAlike) || s.verdict.news {
		s.tell(list)
		s.sent, s.verdict.news = list, false
		s.version++
	}
	hops := map[netip.Addr]bool{}
	for _, a := range list {
		hops[a.NextHop] = true
	}
	return &wish{
		speaker: s.intent.Speaker, key: keyOf(s.intent.Speaker), link: s.engine.link,
		announcements: list, hops: hops, refused: s.verdict.refused, version: s.version,
		restarting: s.restarting,
	}
}

// restarting says whether p may be told that we have restarted: its own time for
// that has not passed, and the packets were forwarded all the while.
func (s *Speaker) restarting(p edge.Peer) bool {
	return p.RestartTime > 0 && !s.restored.IsZero() && s.now().Before(s.restored.Add(p.RestartTime)) &&
		s.forwarding != nil && s.forwarding()
}

// sentAlike says whether the peers are sent the same for both.
func sentAlike(a, b edge.Announcement) bool {
	return a.Net == b.Net && a.NextHop == b.NextHop && a.Degrade == b.Degrade && a.Shutdown == b.Shutdown &&
		a.Normal.Equal(b.Normal) && a.Degraded.Equal(b.Degraded) && a.More.Equal(b.More)
}

// tell logs what of list is announced anew or otherwise.
func (s *Speaker) tell(list []edge.Announcement) {
	old := map[netip.Prefix]edge.Announcement{}
	for _, a := range s.sent {
		old[a.Net] = a
	}
	for _, a := range list {
		was, stands := old[a.Net]
		if stands && sentAlike(was, a) {
			continue
		}
		attrs := a.Normal
		if a.Degrade {
			attrs = a.Degraded
		}
		s.log.Info("announce", "prefix", a.Net, "next_hop", a.NextHop, "degraded", a.Degrade, "shutdown", a.Shutdown, "reason", a.Reason,
			"prepend", attrs.Prepend, "med", attrs.MED, "communities", attrs.Communities, "update", stands)
	}
}

// announcements are those of the intent, degraded if the lease has run out. The
// list is the same memory until they change.
func (s *Speaker) announcements() []edge.Announcement {
	if s.intent == nil || s.listed != nil {
		return s.listed
	}
	s.listed = s.intent.Announcements
	if s.lease.expired {
		s.listed = make([]edge.Announcement, len(s.intent.Announcements))
		for i, a := range s.intent.Announcements {
			a.Degrade, a.Reason = true, s.lease.reason()
			s.listed[i] = a
		}
	}
	return s.listed
}
