package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
)

// leaseName is the file in state_dir with the longest lease for which this node may
// have promised to stay. A process that starts knows none of the promises of the one
// before, so it asks for no leave as long as any of them may count; the configuration
// alone would not tell it, as it may have been shortened.
const leaseName = "promise-lease.json"

// leases remembers that lease, on disk before the first promise for it. All may be
// called from any goroutine.
type leases struct {
	keeper *keeper

	mu   sync.Mutex
	kept time.Duration // what the file says, or is about to
	// shorter is since when the lease in force is shorter than kept; zero: it is not.
	shorter time.Time
	// owed is the write of a longer lease that this process has started with and could
	// not keep; nil: there is none.
	owed *receipt
}

// keptLease is the content of the file.
type keptLease struct {
	Lease duration `json:"lease"`
}

// duration is written as a person writes it.
type duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err == nil && (v < 0 || v > edge.MaxPromiseLease) {
		err = fmt.Errorf("%s is no lease", v)
	}
	*d = duration(v)
	return err
}

// openLeases reads what earlier processes left, and has it cover inForce. It returns
// too what they may have promised for; of a file that cannot be read that is the
// longest there is. An error is no reason not to start.
func openLeases(k *keeper, inForce time.Duration, now time.Time) (*leases, time.Duration, error) {
	var was keptLease
	err := readState(k.dir, leaseName, "the longest promise", &was)
	if err != nil {
		was.Lease = duration(edge.MaxPromiseLease)
	}
	before := time.Duration(was.Lease)
	l := &leases{keeper: k, kept: before}
	if inForce > before || err != nil {
		l.kept = max(inForce, before)
		s := asJSON(leaseName, leaseWhat, keptLease{duration(l.kept)})
		if b, werr := s.content(); werr != nil {
			err = errors.Join(err, werr)
		} else if werr := k.replace(filepath.Join(k.dir, leaseName), b); werr != nil {
			if err == nil {
				l.kept = before // promises count no longer, until this is written
				l.owe(inForce)
			} else {
				k.put(s) // tries again, and alarms
			}
			err = errors.Join(err, fmt.Errorf("keep %s: %w", leaseWhat, werr))
		}
	}
	l.follow(inForce, now)
	return l, before, err
}

// owe hands over a lease that is not on disk yet. The caller holds mu, or is alone.
func (l *leases) owe(inForce time.Duration) {
	if l.owed == nil && inForce > l.kept {
		l.owed = l.keeper.order(leaseName, leaseWhat, keptLease{duration(inForce)})
	}
}

// paid takes in what has become of a lease that was owed, and says whether it is on
// disk since this call.
func (l *leases) paid(inForce time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owed == nil || !l.owed.over() {
		return false
	}
	failed := l.owed.err != nil
	l.owed = nil
	if failed {
		l.owe(inForce)
		return false
	}
	l.kept = max(l.kept, inForce)
	return true
}

// bound is the policy to promise by: for no longer than the process after this one
// will know of. There is no lease below shortestLease, so that one it knows anyway.
func (l *leases) bound(p edge.Guard) edge.Guard {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.PromiseLease = min(p.PromiseLease, max(l.kept, shortestLease))
	p.AskTimeout = min(p.AskTimeout, p.PromiseLease/2)
	return p
}

// shortestLease is the shortest promise_lease of a configuration.
const shortestLease = time.Second

const leaseWhat = "how long promises bind"

// cover has a lease that is about to come into force on disk. An error means that it
// must not.
func (l *leases) cover(ctx context.Context, next time.Duration) error {
	l.mu.Lock()
	if next <= l.kept {
		l.mu.Unlock()
		return nil
	}
	was := l.kept
	l.kept, l.shorter = next, time.Time{}
	r := l.keeper.order(leaseName, leaseWhat, keptLease{duration(next)})
	l.mu.Unlock()
	if err := r.wait(ctx); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.kept = min(l.kept, was) // the file may say more, which does no harm
		return fmt.Errorf("fleet.guard.promise_lease: %w; nothing was applied", err)
	}
	return nil
}

// covers says whether promises for that lease may be given.
func (l *leases) covers(lease time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return lease <= l.kept
}

// follow forgets a longer lease once the last promise for it is over: the lease in
// force has been shorter, in this process, for as long as that. The clock is one that
// is never set.
func (l *leases) follow(inForce time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case inForce >= l.kept:
		l.shorter = time.Time{}
	case l.shorter.IsZero():
		l.shorter = now
	case now.Sub(l.shorter) >= l.kept:
		l.kept, l.shorter = inForce, time.Time{}
		l.keeper.keep(leaseName, leaseWhat, keptLease{duration(inForce)})
	}
}
