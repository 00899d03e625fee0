// Package bgp is the BGP speaker: it announces what it is told under a lease,
// to each peer in its own way, and reports what was written to each.
//
// It owns the sessions with the routers. Each peer has a GoBGP server of its
// own, which holds the paths and never meets a router: a relay (bgp/relay) owns
// the connection, and lets through what it has read itself. Nothing is ever
// imported and no kernel route is ever touched. It also runs BFD (bgp/bfd), the
// RPKI client (bgp/rpki) and the watch over our prefixes (bgp/watch). It never
// decides what to announce: it is handed the whole intent and works out the
// difference. It withdraws only what an intent orders by name, and before the
// permit of that order ends: not what is forgotten, and when the lease on the
// intent runs out it degrades every announcement and withdraws none. The process
// edgebgp runs it, and nothing else.
package bgp

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

// retryPause is the time between two attempts to bring about an intent of
// which some part has failed.
const retryPause = time.Second

var errStopped = errors.New("the speaker has stopped")

// Options are what a Speaker needs. The zero value is usable: it logs nothing
// and keeps no state file.
type Options struct {
	// Log gets the state changes of sessions, peers and announcements; nil
	// drops them.
	Log *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// StatePath is the file that keeps the last intent for a restart of this
	// process within the same boot; it belongs on a tmpfs. Empty keeps none.
	StatePath string
	// KeepsForwarding says whether packets are forwarded whatever this process
	// does, at the moment it is asked; several goroutines may ask. Without it,
	// no peer is told to keep our routes through a restart (RFC 4724).
	KeepsForwarding func() bool
}

// Speaker is the task of edgebgp. Set and State may be called by several
// goroutines at once; they wait until Run is ready.
type Speaker struct {
	log        *slog.Logger
	now        func() time.Time
	statePath  string
	forwarding func() bool

	ready chan struct{}
	done  chan struct{}
	asks  chan ask
	wake  chan struct{} // something has changed that Run has to look at; size 1

	// The rest is touched by the goroutine of Run only, and by workers that it
	// waits for: each server is driven by one hand, so no lock is ever held
	// across one of GoBGP's calls.
	started  time.Time
	restored time.Time    // when the kept intent was restored; zero: it was not
	intent   *edge.Intent // nil: none yet
	lease    lease
	engine   *engine
	hub      *hub // nil: does not run
	aides    aides
	verdict  verdict
	sent     []edge.Announcement // what version is about
	version  uint64
	failed   bool      // a part of the intent has not been brought about
	tried    time.Time // when the intent was applied last
	saved    []byte    // what the state file holds
}

// ask is one call of Set (intent) or State (nil), handed to Run's goroutine.
type ask struct {
	ctx    context.Context // the caller's
	intent *edge.Intent
	reply  chan answer
}

type answer struct {
	state edge.SpeakerState
	err   error
}

// New returns a Speaker that does nothing until Run.
func New(o Options) *Speaker {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Speaker{
		log: o.Log, now: o.Now, statePath: o.StatePath, forwarding: o.KeepsForwarding,
		ready: make(chan struct{}), done: make(chan struct{}), asks: make(chan ask), wake: make(chan struct{}, 1),
	}
	s.aides.init(s)
	s.engine = newEngine(s)
	return s
}

// String implements task.Task.
func (s *Speaker) String() string { return "bgp speaker" }

// Ready is closed once the intent of the state file, if there is one, has been
// restored and Set and State are answered.
func (s *Speaker) Ready() <-chan struct{} { return s.ready }

// Run works until ctx ends, then closes every session, so that the routers
// drop our routes at once, and returns nil. With a peer of graceful restart only
// the connection is closed: the router keeps them. It is called once. GoBGP's
// main loop cannot be ended: for each peer there has ever been at the same time
// two parked goroutines stay behind.
func (s *Speaker) Run(ctx context.Context) error {
	defer close(s.done)
	// Sessions and aides outlive ctx by what it takes to say goodbye.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer s.goodbye(work)
	s.aides.ctx = work
	s.started = s.now()
	s.restore(work)
	close(s.ready)
	for {
		timer := time.NewTimer(s.untilWake())
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case a := <-s.asks:
			a.reply <- s.answer(work, a)
		case <-s.wake:
			s.look(work)
		case <-s.hub.ended():
			s.lostHub()
		case <-timer.C:
			// Who waits to be heard has not been silent.
			select {
			case a := <-s.asks:
				a.reply <- s.answer(work, a)
			default:
				s.tick(work)
			}
		}
		timer.Stop()
	}
}

// Set brings about the whole intent: what is in it and runs already is left
// alone, peers that are not in it are removed, prefixes are withdrawn if it
// orders that. The same intent again only renews the lease.
//
// An intent that is not valid (ErrInvalid, every fault named), that forgets a
// prefix (ErrForgotten), that needs a port which is taken, or whose ctx ends
// before it is begun, changes nothing and renews nothing. Any other error means
// that a part about prefixes could not be brought about; the rest has been.
// Announcing is tried again each second. A prefix that could not be withdrawn
// goes on being announced as before: the leave to withdraw may have ended, so
// the order has to be given again. A peer that cannot be added or changed is no
// error: its PeerState says why, and it is tried again each second. A key file
// is read when its peer is added and with each new generation: another content
// is another session.
//
// The state is that after the call, also beside an error; it is the zero one if
// the intent is not valid or ctx ended first. What was withdrawn is no longer
// held there, unless a router does not take it: that is waited for 250 ms.
func (s *Speaker) Set(ctx context.Context, in edge.Intent) (edge.SpeakerState, error) {
	if err := validate(in); err != nil {
		return edge.SpeakerState{}, err
	}
	in = normal(in)
	return s.ask(ctx, &in)
}

// State reads back what is: from what was written to the routers, not from the
// intent.
func (s *Speaker) State(ctx context.Context) (edge.SpeakerState, error) {
	return s.ask(ctx, nil)
}

func (s *Speaker) ask(ctx context.Context, in *edge.Intent) (edge.SpeakerState, error) {
	a := ask{ctx: ctx, intent: in, reply: make(chan answer, 1)}
	select {
	case s.asks <- a:
	case <-s.done:
		return edge.SpeakerState{}, errStopped
	case <-ctx.Done():
		return edge.SpeakerState{}, ctx.Err()
	}
	select {
	case r := <-a.reply:
		return r.state, r.err
	case <-ctx.Done():
		return edge.SpeakerState{}, ctx.Err()
	}
}

// answer works with Run's context, not with the caller's: a caller that goes
// away must not leave half an intent behind. But one that has gone already
// believes that nothing was done, so nothing is.
func (s *Speaker) answer(ctx context.Context, a ask) answer {
	if err := a.ctx.Err(); err != nil {
		return answer{err: err}
	}
	var failed error
	if a.intent != nil {
		failed = s.accept(ctx, *a.intent)
	}
	if errors.Is(failed, ErrInvalid) {
		return answer{err: failed}
	}
	return answer{s.state(), failed}
}

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
	if s.lease.expired {
		s.log.Info("lease renewed: announcing as told again", "expired_for", s.now().Sub(s.lease.end()).Round(time.Millisecond))
	}
	s.lease.renew(s.now(), in.Speaker.Lease)
	s.engine.wakeUp()
	stays, failed := s.withdraw(ctx, in.Withdraw)
	in.Announcements, in.Withdraw = slices.Concat(in.Announcements, stays), nil
	s.intent = &in
	s.judge()
	// Behind the withdrawals: a restart amid them announces too much rather
	// than too little.
	s.save()
	s.engine.trim(ctx, in.Speaker.Peers)
	err := s.apply(ctx)
	// Our own work is not edged's silence.
	s.lease.renew(s.now(), in.Speaker.Lease)
	return errors.Join(failed, err)
}

// untilWake is how long Run may sleep. It counts from what was, not from now:
// calls that come more often than it must not put it off for ever.
func (s *Speaker) untilWake() time.Duration {
	now, d := s.now(), time.Hour
	if s.lease.length > 0 && !s.lease.expired {
		d = s.lease.left(now)
	}
	if s.failed || s.engine.refused() {
		d = min(d, max(0, s.tried.Add(retryPause).Sub(now)))
	}
	return d
}

// tick is for what time brings about: the end of the lease, another attempt.
func (s *Speaker) tick(ctx context.Context) {
	if s.lease.expire(s.now()) {
		s.log.Warn("lease expired: degrading every announcement, withdrawing none", "lease", s.lease.length, "announcements", len(s.intent.Announcements))
	}
	s.engine.wakeUp()
	s.again(ctx)
}

// look is for what others have found: an idle server, other VRPs.
func (s *Speaker) look(ctx context.Context) {
	s.engine.revive(ctx)
	if s.judge(); s.verdict.news {
		s.save()
		s.again(ctx)
	}
}

func (s *Speaker) again(ctx context.Context) {
	if s.intent == nil {
		return
	}
	if err := s.apply(ctx); err != nil {
		s.log.Error("apply intent", "err", err)
	}
}

// kick makes Run look. It never blocks.
func (s *Speaker) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// apply brings about the intent as the lease lets it be announced. It removes
// nothing but what the settings of a peer do not send it any more.
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
	return &wish{
		speaker: s.intent.Speaker, key: keyOf(s.intent.Speaker), announcements: list,
		refused: s.verdict.refused, version: s.version,
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

// announcements are those of the intent, degraded if the lease has run out.
func (s *Speaker) announcements() []edge.Announcement {
	if s.intent == nil {
		return nil
	}
	if !s.lease.expired {
		return s.intent.Announcements
	}
	out := make([]edge.Announcement, len(s.intent.Announcements))
	for i, a := range s.intent.Announcements {
		a.Degrade, a.Reason = true, s.lease.reason(s.now())
		out[i] = a
	}
	return out
}
