package boot

import (
	"context"
	"fmt"
	"time"

	"github.com/catchment-dev/edge/image/slot"
)

// Check is one thing that a good boot has. Run returns why not; nil: it has. It
// ends with its context.
type Check struct {
	Name string // a word: it becomes a label of a metric
	Run  func(context.Context) error
	// Limit bounds one run; 0: 10 s.
	Limit time.Duration
}

// Pace is how checks are repeated.
type Pace struct {
	Within time.Duration // until when all must have passed
	Every  time.Duration // between two rounds
}

const checkLimit = 10 * time.Second

// Watch repeats checks until all have passed, in one round in the end, and returns
// nil; else those that had not passed when the time was over, in the order of
// checks. A check that has passed is repeated only in the last round, as some cost
// the box something; if the time is over just before it, there is none.
func Watch(ctx context.Context, checks []Check, p Pace) []slot.Failure {
	ctx, cancel := context.WithTimeout(ctx, p.Within)
	defer cancel()
	why := make([]error, len(checks)) // of the last run that ended by itself
	passed := make([]bool, len(checks))
	for {
		fresh, all := true, true
		for i, c := range checks {
			if passed[i] {
				fresh = false
				continue
			}
			passed[i] = try(ctx, c, &why[i])
			all = all && passed[i]
		}
		switch {
		case all && fresh:
			return nil
		case all && ctx.Err() != nil:
			return nil
		case all: // once more, all of them
			clear(passed)
			continue
		}
		t := time.NewTimer(p.Every)
		select {
		case <-ctx.Done():
			t.Stop()
			return failures(checks, passed, why, p.Within)
		case <-t.C:
		}
	}
}

// Once runs each check once.
func Once(ctx context.Context, checks []Check) []slot.Failure {
	why, passed := make([]error, len(checks)), make([]bool, len(checks))
	for i, c := range checks {
		passed[i] = try(ctx, c, &why[i])
	}
	return failures(checks, passed, why, checkLimit)
}

// try runs a check. If the whole watch ends meanwhile, what it said before is the
// better reason.
func try(ctx context.Context, c Check, why *error) bool {
	limit := c.Limit
	if limit <= 0 {
		limit = checkLimit
	}
	own, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := c.Run(own)
	if err != nil && ctx.Err() == nil && own.Err() != nil {
		err = fmt.Errorf("no answer within %s: %w", limit, err)
	}
	if ctx.Err() == nil || *why == nil {
		*why = err
	}
	return err == nil
}

func failures(checks []Check, passed []bool, why []error, within time.Duration) []slot.Failure {
	var out []slot.Failure
	for i, c := range checks {
		if passed[i] {
			continue
		}
		reason := fmt.Sprintf("not done within %s", within)
		if why[i] != nil {
			reason = oneLine(why[i].Error())
		}
		out = append(out, slot.Failure{Check: c.Name, Reason: reason})
	}
	return out
}
