// Package follow runs what follows the configuration of a source, and another
// follower where a new configuration takes its place.
//
// It owns the order, in which the old follower has ended before the new one
// begins, and says which of them still counts. It never reads a source and holds
// nothing of what a follower finds: that stays with its owner, under the owner's
// lock. The process edgebgp runs it, for bgp/rpki and bgp/watch.
package follow

import (
	"context"
	"sync"
	"time"
)

// Loop runs one follower at a time. See New.
type Loop[C any] struct {
	lock   sync.Locker // the owner's; guards what follows
	cfg    C
	number *uint64 // of the term of cfg
	stop   context.CancelFunc
}

// New returns a Loop whose configuration is the zero C. The lock is that of the
// owner, which guards what followers find, too.
func New[C any](lock sync.Locker) *Loop[C] {
	return &Loop[C]{lock: lock, number: new(uint64), stop: func() {}}
}

// Config returns what is followed. The caller holds the lock.
func (l *Loop[C]) Config() C { return l.cfg }

// Replace makes cfg what is followed, whether or not Run runs. What the follower
// before it finds does not count from now on. The caller holds the lock.
func (l *Loop[C]) Replace(cfg C) {
	l.cfg = cfg
	*l.number++
	l.stop()
}

// Term returns the term of the configuration there is now. The caller holds the
// lock.
func (l *Loop[C]) Term() Term { return Term{l.lock, l.number, *l.number} }

// Run calls follow for one configuration after the other until ctx ends, never
// two at once, and returns when the last call has. The ctx of a call ends with
// its term; where follow returns before that, nothing is followed until the next
// configuration. One Run at a time.
func (l *Loop[C]) Run(ctx context.Context, follow func(ctx context.Context, cfg C, t Term)) {
	for ctx.Err() == nil {
		during, stop := context.WithCancel(ctx)
		l.lock.Lock()
		cfg, term := l.Config(), l.Term()
		l.stop = stop
		l.lock.Unlock()
		follow(during, cfg, term)
		<-during.Done()
		stop()
	}
}

// Term is the time in which one configuration is followed. Its methods may be
// called by several goroutines at once, without the lock.
type Term struct {
	lock   sync.Locker
	now    *uint64
	number uint64
}

// Do calls do with the owner's lock held, and says that it did; it does not if
// the term is over.
func (t Term) Do(do func()) bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	if t.number != *t.now {
		return false
	}
	do()
	return true
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
