package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge/image/setup"
	"github.com/catchment-dev/edge/image/setup/confirm"
)

// applianceConfirmCommand is what edge-confirm.service runs: a process of its
// own, so that neither a login that breaks nor a killed edgectl ends the watch.
func (o *options) applianceConfirmCommand(open func() (*configs, error)) *cobra.Command {
	return &cobra.Command{
		Use: "confirm", Short: "Take the pending change of configuration back unless it is confirmed in time", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cs, err := open()
			if err != nil {
				return problem{err}
			}
			text, err := cs.guard(c.Context())
			if err != nil {
				return problem{err}
			}
			return o.write(clean(text))
		},
	}
}

// guard waits for the end of the pending change, and takes it back if that is
// its end. It returns what has happened, for the log.
func (c *configs) guard(ctx context.Context) (string, error) {
	p, err := c.pending(ctx)
	if err != nil {
		return c.guardUnreadable(ctx, err)
	}
	if p == nil {
		return "no change waits to be confirmed\n", nil
	}
	reason := "the box was restarted before anybody had confirmed it"
	if p.BootID == c.bootID {
		d := confirm.Watch(ctx, c.rules(*p), func(ctx context.Context) confirm.Facts { return c.facts(ctx, *p) })
		switch d.Verdict {
		case confirm.Over:
			return fmt.Sprintf("the change to generation %d does not wait any more\n", p.To), nil
		case confirm.Wait:
			return "stopped: the change still waits to be confirmed\n", nil // edge-confirm.path starts the next one
		}
		reason = d.Reason
	}
	return c.guardBack(ctx, *p, reason)
}

// pending reads the change that waits. An error may be of the moment.
func (c *configs) pending(ctx context.Context) (*setup.Pending, error) {
	for try := 1; ; try++ {
		p, err := c.store.Pending()
		if err == nil || try == backTries || !pause(ctx, backEvery) {
			return p, err
		}
	}
}

// guardUnreadable is the way back from a change of which nothing is known any more,
// but that nobody can have confirmed it: to what this version was last good with.
func (c *configs) guardUnreadable(ctx context.Context, why error) (string, error) {
	if ctx.Err() != nil {
		return "", why // edge-confirm.path starts the next one
	}
	unlock, err := c.lockWithin(ctx, time.Minute)
	if err != nil {
		return "", err
	}
	defer unlock()
	if p, err := c.store.Pending(); err == nil {
		return "", fmt.Errorf("%w; it can be read again: %t", why, p != nil) // the next one goes by it
	}
	now, err := c.store.Current()
	if err != nil {
		return "", err
	}
	good := c.store.LastGood()
	if good == 0 || good == now {
		// There is nothing to go back to, or it is in force.
		return fmt.Sprintf("generation %d stays: %v, and there is no other that was good\n", now, why), c.store.SetPending(nil)
	}
	p := setup.Pending{From: good, To: now, BootID: c.bootID}
	return c.walkBack(ctx, p, fmt.Sprintf("nobody can confirm it: %v", why))
}

// rules are those of a change. A guard that was started again has what is left
// of the time; a clock that was set does not give it more than there was.
func (c *configs) rules(p setup.Pending) confirm.Rules {
	within := min(p.Within, max(0, p.Deadline.Sub(c.now())))
	return confirm.Rules{Within: within, Peers: p.Peers, Edged: p.Edged, SSH: p.SSH, Logins: p.Logins, Others: p.Others}
}

func (c *configs) facts(ctx context.Context, p setup.Pending) confirm.Facts {
	f := c.live.Look(ctx, confirm.Rules{SSH: p.SSH, Logins: p.Logins, Others: p.Others})
	now, err := c.store.Pending()
	// What cannot be read has not been confirmed.
	f.Pending = err != nil || now != nil && now.To == p.To
	return f
}

// How often the way back is tried by one process, and how long after each other.
// After that systemd starts the next process, without end (edge-confirm.service).
const (
	backTries = 12
	backEvery = 5 * time.Second
)

// guardBack takes the change back, unless somebody was faster. Whatever goes
// wrong on the way is tried again: nobody else does.
func (c *configs) guardBack(ctx context.Context, p setup.Pending, reason string) (string, error) {
	unlock, err := c.lockWithin(ctx, time.Minute)
	if err != nil {
		return "", err
	}
	defer unlock()
	// If it cannot be read any more, nobody has confirmed it.
	if now, err := c.store.Pending(); err == nil && (now == nil || now.To != p.To) {
		return fmt.Sprintf("the change to generation %d does not wait any more\n", p.To), nil
	}
	return c.walkBack(ctx, p, reason)
}

// walkBack tries for a minute; systemd starts the next process after that. The lock
// is held.
func (c *configs) walkBack(ctx context.Context, p setup.Pending, reason string) (out string, err error) {
	var done changed
	for try := 1; ; try++ {
		if done, err = c.takeBack(context.WithoutCancel(ctx), p, reason); err == nil {
			break
		}
		if try == backTries || !pause(ctx, backEvery) {
			return "", fmt.Errorf("take generation %d back (%s): %w", p.To, reason, err)
		}
	}
	return fmt.Sprintf("generation %d was taken back: %s\n%s", p.To, line(reason), done.text()), nil
}

// lockWithin waits for the lock: a command that applies something holds it.
func (c *configs) lockWithin(ctx context.Context, most time.Duration) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		unlock, err := c.store.Lock()
		if err == nil {
			return unlock, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-tick.C:
		}
	}
}
