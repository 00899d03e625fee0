package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

const (
	// stopPause is the time between two looks at what the peers hold while Leave
	// waits. It is also what who has had the last prefix withdrawn is given to read
	// the answer.
	stopPause = 100 * time.Millisecond
	// stopTell is how often the log says what is waited for.
	stopTell = 30 * time.Second
)

// Leave waits until the end of this process would take nothing from any router, and
// returns nil; the caller then ends Run. Until then the speaker goes on announcing and
// does what it is told, and SpeakerState.Stopping says since when it is to stop: edged
// takes that for an order to drain, so that no prefix goes but with the guard's leave.
//
// Nothing is taken if no established peer holds anything (read back from the wire), nor
// from peers of graceful restart, which keep the routes while the packets are known to
// be forwarded. If it is so at once, Leave returns at once and Stopping is not said.
//
// It never gives up by itself: without edged nobody gives leave. When ctx ends, its
// error names what is still announced; Stopping stays. It may be called while Run
// works, by one goroutine at a time.
func (s *Speaker) Leave(ctx context.Context) error {
	var told time.Time
	var held []string // at the last look
	expired := false
	for looks, gone := 0, 0; ; looks++ {
		r := s.hand(ctx, ask{leave: true})
		if r.err != nil {
			return waited(r.err, held)
		}
		if held = r.held; len(held) > 0 {
			gone = 0
		} else if gone++; looks == 0 || gone > 1 {
			return nil
		}
		if now := s.now(); gone == 0 && (r.expired != expired || now.Sub(told) >= stopTell) {
			s.tellWait(r)
			told, expired = now, r.expired
		}
		select {
		case <-time.After(stopPause):
		case <-ctx.Done():
			return waited(ctx.Err(), held)
		}
	}
}

func waited(err error, held []string) error {
	if len(held) == 0 {
		return fmt.Errorf("wait for leave: %w", err)
	}
	return fmt.Errorf("wait for leave: %w; still announced: %s", err, strings.Join(held, ", "))
}

func (s *Speaker) tellWait(r answer) {
	if r.expired {
		s.log.Warn("waiting to stop, but edged does not renew the lease, and nobody else gives leave: start edged, or send SIGTERM again to stop without leave", "announced", r.held)
		return
	}
	s.log.Info("waiting to stop until the guard has given leave, which edged asks for: see edgectl status; SIGTERM again stops without leave", "announced", r.held)
}

// toStop notes that the process is to stop, unless it can at once, and says what its
// end would take from a router, with the reason that edged has given for how it is
// announced.
func (s *Speaker) toStop() answer {
	held := s.atStake()
	if len(held) == 0 {
		return answer{}
	}
	if s.stopping.IsZero() {
		s.stopping = s.now()
	}
	reasons := map[netip.Prefix]edge.Reason{}
	for _, a := range s.announcements() {
		reasons[a.Net] = a.Reason
	}
	r := answer{expired: s.lease.expired}
	for i, net := range held {
		if i == maxNamed {
			r.held = append(r.held, fmt.Sprintf("%d more", len(held)-maxNamed))
			break
		}
		text := net.String()
		if why := reasons[net]; why != "" {
			text += " (" + string(why) + ")"
		}
		r.held = append(r.held, text)
	}
	return r
}

// atStake are the prefixes that a router would drop if this process ended now.
func (s *Speaker) atStake() []netip.Prefix {
	if s.intent == nil {
		return nil
	}
	held := map[netip.Prefix]bool{}
	proven := s.forwarding != nil && s.forwarding()
	for _, p := range s.peers() {
		if p.Session != established {
			continue
		}
		for _, h := range p.Held {
			if !proven || !s.keeps(p.Addr, h.Net) {
				held[h.Net] = true
			}
		}
	}
	list := make([]netip.Prefix, 0, len(held))
	for net := range held {
		list = append(list, net)
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return list
}

// keeps says whether the router keeps a route when the connection ends: both ends have
// offered graceful restart, and we for that family (RFC 4724 section 4.2).
func (s *Speaker) keeps(peer netip.Addr, net netip.Prefix) bool {
	l := s.looks[peer]
	if l == nil || l.live.Ours.GracefulRestart == nil || l.live.Remote.GracefulRestart == nil {
		return false
	}
	family := edge.IPv6
	if net.Addr().Is4() {
		family = edge.IPv4
	}
	_, offered := l.live.Ours.GracefulRestart.Families[family]
	return offered
}
