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
// intent runs out it degrades every announcement and withdraws none. Before the process
// ends it waits for leave (Leave). The process edgebgp runs it, and nothing else.
package bgp

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/netip"
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
	forwarding func() bool

	ready chan struct{}
	done  chan struct{}
	asks  chan ask
	wake  chan struct{} // something has changed that Run has to look at; size 1

	// The rest is touched by the goroutine of Run only; the servers are driven by the
	// workers of the engine, so no call of GoBGP keeps Run waiting.
	started  time.Time
	restored time.Time    // when the kept intent was restored; zero: it was not
	intent   *edge.Intent // nil: none yet
	// listed are the announcements of it, as the lease lets them be announced.
	listed   []edge.Announcement
	accepted uint64 // how many intents were accepted whole
	renewal  string // names the one in force, if it was
	lease    lease
	engine   *engine
	hub      *hub // nil: does not run
	aides    aides
	verdict  verdict
	sent     []edge.Announcement // what version is about
	version  uint64
	stopping time.Time // since when the process is to stop; zero: it is not
	failed   bool      // the hub could not be had
	tried    time.Time // when the intent was applied last
	keep     keep
	view     view
	looks    map[netip.Addr]*look // at the peers, the last ones
}

// ask is one call, handed to Run's goroutine.
type ask struct {
	ctx     context.Context // the caller's
	have    string          // the version of the state that the caller holds
	intent  *edge.Intent    // of Set
	renewal string          // of Renew
	leave   bool            // of Leave
	reply   chan answer
}

type answer struct {
	change edge.SpeakerChange
	err    error
	// held is what Leave waits for, expired that the lease is.
	held    []string
	expired bool
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
		log: o.Log, now: o.Now, keep: keep{path: o.StatePath}, view: view{name: rand.Text()}, forwarding: o.KeepsForwarding,
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
// drop our routes at once, and returns nil: see Leave. With a peer of graceful restart
// only the connection is closed: the router keeps them. It is called once. GoBGP's
// main loop cannot be ended: for each peer there has ever been at the same time
// two parked goroutines stay behind.
func (s *Speaker) Run(ctx context.Context) error {
	defer close(s.done)
	// Sessions and aides outlive ctx by what it takes to say goodbye.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	work, endWorkers := context.WithCancel(life)
	defer s.goodbye(life, endWorkers)
	s.aides.ctx = life
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
// prefix or would end the last session that carries one (ErrForgotten), that needs a port which is taken, or whose ctx ends
// before it is begun, changes nothing and renews nothing. Any other error means
// that a part about prefixes could not be brought about; the rest has been.
// Announcing is tried again each second. A prefix that could not be withdrawn
// goes on being announced as before: the leave to withdraw may have ended, so
// the order has to be given again. A peer that cannot be added or changed is no
// error: its PeerState says why, and it is tried again each second. A key file
// is read when its peer is added and with each new generation: another content
// is another session.
//
// What takes longer than 250 ms, such as a thousand prefixes to hundreds of peers,
// goes on behind the answer: PeerState.Pending counts it, what is held is not shown
// before it is, and an error comes with the next Set or Renew. Withdrawals are
// always waited for, but for one that is not done at all peers within 1.2 s: it
// is an error, and the prefix stays.
//
// The change is since the version have, or everything if that is none of this
// process. It leads to the state after the call, also beside an error; it is the
// zero one if the intent is not valid or ctx ended first. What was withdrawn is no
// longer held there, unless a router does not take it: that is waited for 250 ms.
func (s *Speaker) Set(ctx context.Context, in edge.Intent, have string) (edge.SpeakerChange, error) {
	if err := validate(in); err != nil {
		return edge.SpeakerChange{}, err
	}
	in = normal(in)
	onOwnClock(in.Withdraw, s.now(), sinceBoot())
	return s.ask(ctx, ask{have: have, intent: &in})
}

// Renew does what Set would do with the intent that the state has named renewal.
// An error that matches ErrNoRenewal means that another one is in force, or none,
// and that nothing was renewed; any other, that a part about prefixes could not be
// brought about.
func (s *Speaker) Renew(ctx context.Context, renewal, have string) (edge.SpeakerChange, error) {
	if renewal == "" {
		return edge.SpeakerChange{}, ErrNoRenewal
	}
	return s.ask(ctx, ask{have: have, renewal: renewal})
}

// State reads back what is: from what was written to the routers, not from the
// intent. What it leaves out is as it was in the version have, now.
func (s *Speaker) State(ctx context.Context, have string) (edge.SpeakerChange, error) {
	return s.ask(ctx, ask{have: have})
}

func (s *Speaker) ask(ctx context.Context, a ask) (edge.SpeakerChange, error) {
	r := s.hand(ctx, a)
	return r.change, r.err
}

// hand has Run's goroutine answer.
func (s *Speaker) hand(ctx context.Context, a ask) answer {
	a.ctx, a.reply = ctx, make(chan answer, 1)
	select {
	case s.asks <- a:
	case <-s.done:
		return answer{err: errStopped}
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	}
	select {
	case r := <-a.reply:
		return r
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	}
}

// answer works with Run's context, not with the caller's: a caller that goes
// away must not leave half an intent behind. But one that has gone already
// believes that nothing was done, so nothing is.
func (s *Speaker) answer(ctx context.Context, a ask) answer {
	if err := a.ctx.Err(); err != nil {
		return answer{err: err}
	}
	if a.leave {
		return s.toStop()
	}
	var failed error
	switch {
	case a.intent != nil:
		failed = s.accept(ctx, *a.intent)
	case a.renewal != "":
		failed = s.renew(ctx, a.renewal)
	}
	if errors.Is(failed, ErrInvalid) || errors.Is(failed, ErrNoRenewal) {
		return answer{err: failed}
	}
	s.view.show(s.state())
	for addr, l := range s.looks {
		if len(l.st.Held) > 0 { // one memory for what is the same
			l.st.Held = s.view.held(addr)
			l.live.Held = l.st.Held
		}
	}
	return answer{change: s.view.changes(a.have), err: failed}
}

// untilWake is how long Run may sleep. It counts from what was, not from now:
// calls that come more often than it must not put it off for ever.
func (s *Speaker) untilWake() time.Duration {
	now, d := s.now(), time.Hour
	if s.lease.length > 0 && !s.lease.expired {
		d = s.lease.left(now)
	}
	if s.failed || s.engine.retry() {
		d = min(d, max(0, s.tried.Add(retryPause).Sub(now)))
	}
	if s.keep.err != "" {
		d = min(d, max(0, s.keep.tried.Add(retryPause).Sub(now)))
	}
	return d
}

// tick is for what time brings about: the end of the lease, another attempt.
func (s *Speaker) tick(ctx context.Context) {
	if s.lease.expire(s.now()) {
		s.log.Warn("lease expired: degrading every announcement, withdrawing none", "lease", s.lease.length, "announcements", len(s.intent.Announcements))
		s.listed = nil
	}
	if s.keep.err != "" {
		s.save()
	}
	s.again(ctx)
}

// look is for what others have found: an idle server, trouble with a peer, other
// VRPs.
func (s *Speaker) look(ctx context.Context) {
	s.engine.revive(ctx)
	s.engine.reap()
	if s.judge(); s.verdict.news {
		s.save()
		s.again(ctx)
	}
}

// again applies the intent once more. What comes of it is not waited for: the
// workers log it.
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
