// Package bgp is the BGP speaker: it embeds GoBGP, announces what it is told
// under a lease, and reports what each peer really holds.
//
// It owns the sessions, the paths and the import policy (nothing is ever
// imported, no kernel route is ever touched). It never decides what to
// announce: it is handed the whole intent and works out the difference. It
// withdraws only what an intent orders by name, and before the permit of that
// order ends: not what is forgotten, and when the lease on the intent runs out
// it degrades every announcement and withdraws none. The process edgebgp runs
// it, and nothing else.
package bgp

import (
	"context"
	"errors"
	"log/slog"
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
}

// Speaker is the task of edgebgp. Set and State may be called by several
// goroutines at once; they wait until Run is ready.
type Speaker struct {
	log       *slog.Logger
	now       func() time.Time
	statePath string
	journal   *journal

	ready chan struct{}
	done  chan struct{}
	asks  chan ask

	// The rest is touched by the goroutine of Run only: GoBGP is driven by one
	// hand, so no lock is ever held across one of its calls.
	started time.Time
	intent  *edge.Intent // nil: none yet
	lease   lease
	engine  *engine   // nil: not started
	failed  bool      // a part of the intent has not been brought about
	tried   time.Time // when the intent was applied last
	saved   []byte    // what the state file holds
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
	return &Speaker{
		log: o.Log, now: o.Now, statePath: o.StatePath, journal: newJournal(o.Now),
		ready: make(chan struct{}), done: make(chan struct{}), asks: make(chan ask),
	}
}

// String implements task.Task.
func (s *Speaker) String() string { return "bgp speaker" }

// Ready is closed once the intent of the state file, if there is one, has been
// restored and Set and State are answered.
func (s *Speaker) Ready() <-chan struct{} { return s.ready }

// Run works until ctx ends, then closes every session, so that the routers
// drop our routes at once, and returns nil. It is called once. GoBGP's main
// loop cannot be ended: for each server that was started (the first intent,
// then each change of ASN, router id or listen port) one parked goroutine
// stays behind.
func (s *Speaker) Run(ctx context.Context) error {
	defer close(s.done)
	defer func() { s.stopEngine("the speaker stops") }()
	s.started = s.now()
	s.restore(ctx)
	close(s.ready)
	for {
		wake := time.NewTimer(s.untilWake())
		select {
		case <-ctx.Done():
			wake.Stop()
			return nil
		case a := <-s.asks:
			a.reply <- s.answer(ctx, a)
		case <-wake.C:
			s.tick(ctx)
		}
		wake.Stop()
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
// error: its PeerState says why, and it is tried again each second. A key is
// read when its peer is added; a new content of the same file is not noticed.
//
// The state is that after the call, also beside an error; it is the zero one if
// the intent is not valid or ctx ended first.
func (s *Speaker) Set(ctx context.Context, in edge.Intent) (edge.SpeakerState, error) {
	if err := validate(in); err != nil {
		return edge.SpeakerState{}, err
	}
	in = normal(in)
	return s.ask(ctx, &in)
}

// State reads back what is: from GoBGP, not from the intent.
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
	state, err := s.state(ctx)
	return answer{state, errors.Join(failed, err)}
}

// accept makes in the intent, with what it could not withdraw, and applies it.
func (s *Speaker) accept(ctx context.Context, in edge.Intent) error {
	if err := s.forgotten(in); err != nil {
		return err
	}
	key := keyOf(in.Speaker)
	if s.engine == nil || s.engine.key != key {
		// Tried before anything is stopped: a port that is taken must not cost
		// the sessions that run.
		if err := canListen(key, s.engine); err != nil {
			return err
		}
	}
	if s.lease.expired {
		s.log.Info("lease renewed: announcing as told again", "expired_for", s.now().Sub(s.lease.end()).Round(time.Millisecond))
	}
	s.lease.renew(s.now(), in.Speaker.Lease)
	stays, failed := s.withdraw(ctx, in.Withdraw)
	in.Announcements, in.Withdraw = slices.Concat(in.Announcements, stays), nil
	s.intent = &in
	// Behind the withdrawals: a restart amid them announces too much rather
	// than too little.
	s.save()
	if s.engine != nil && s.engine.key == key {
		s.engine.trimPeers(ctx, in.Speaker.Peers)
	}
	return errors.Join(failed, s.apply(ctx))
}

// untilWake is how long Run may sleep. It counts from what was, not from now:
// calls that come more often than it must not put it off for ever.
func (s *Speaker) untilWake() time.Duration {
	d := time.Hour
	if s.lease.length > 0 && !s.lease.expired {
		d = s.lease.left(s.now())
	}
	if s.failed || s.engine != nil && s.engine.refused() {
		d = min(d, max(0, s.tried.Add(retryPause).Sub(s.now())))
	}
	return d
}

// tick is for what time brings about: the end of the lease, another attempt.
func (s *Speaker) tick(ctx context.Context) {
	if s.lease.expire(s.now()) {
		s.log.Warn("lease expired: degrading every announcement, withdrawing none", "lease", s.lease.length, "announcements", len(s.intent.Announcements))
	}
	if s.intent == nil {
		return
	}
	if err := s.apply(ctx); err != nil {
		s.log.Error("apply intent", "err", err)
	}
}

// apply brings about the intent as the lease lets it be announced. It removes
// nothing.
func (s *Speaker) apply(ctx context.Context) error {
	s.failed, s.tried = true, s.now()
	key := keyOf(s.intent.Speaker)
	if s.engine != nil && s.engine.key != key {
		s.log.Warn("restarting the BGP server: every session is reset", "asn", key.asn, "router_id", key.routerID, "listen", key.listen)
		s.stopEngine("the speaker was restarted with another ASN, router id or port")
	}
	if s.engine == nil {
		e, err := startEngine(ctx, engineOptions{key: key, log: s.log, journal: s.journal})
		if err != nil {
			return err
		}
		s.engine = e
	}
	if err := s.engine.set(ctx, s.announcements(), s.intent.Speaker.Peers); err != nil {
		return err
	}
	s.failed = false
	return nil
}

func (s *Speaker) stopEngine(why string) {
	if s.engine == nil {
		return
	}
	if err := s.engine.stop(why); err != nil {
		s.log.Error("stop BGP server", "err", err)
	}
	s.engine = nil
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
