package main

import (
	"context"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
)

// keepFor is how long the lease is renewed for a control loop that is busy. A
// table of thousands of backends takes seconds; a loop that hangs must not look
// alive for ever.
const keepFor = 30 * time.Second

// leaseKeeper renews the lease at edgebgp while the control loop is at work on
// something else, with the intent that the loop has sent last. It says nothing
// of its own: what it repeats edgebgp has already done, and a permit to withdraw
// ends when it ends.
type leaseKeeper struct {
	announcer

	mu sync.Mutex // held during a call: an intent must not overtake a newer one
	// last is the intent that edgebgp has taken last, nil before the first one;
	// loopAt when the loop sent it, sentAt when anybody did.
	last           *edge.Intent
	loopAt, sentAt time.Time
}

// Set is what the loop calls.
func (k *leaseKeeper) Set(ctx context.Context, in edge.Intent) (edge.SpeakerState, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	st, err := k.announcer.Set(ctx, in)
	if err == nil {
		k.last, k.loopAt, k.sentAt = &in, now, now
	}
	return st, err
}

func (k *leaseKeeper) run(ctx context.Context) error {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			k.renew(ctx)
		}
	}
}

// renew sends the last intent again if a third of the lease has passed. An error
// is the loop's to see, at its next turn.
func (k *leaseKeeper) renew(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if k.last == nil || now.Sub(k.sentAt) < k.last.Speaker.Lease/3 || now.Sub(k.loopAt) > keepFor {
		return
	}
	if _, err := k.announcer.Set(ctx, *k.last); err == nil {
		k.sentAt = now
	}
}
