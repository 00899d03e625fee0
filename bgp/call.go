package bgp

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// callLimit bounds each call of GoBGP. They all pass through one channel of
// its main loop and take milliseconds.
const callLimit = 5 * time.Second

// do is call without a result.
func do(ctx context.Context, what string, f func(context.Context) error) error {
	_, err := call(ctx, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

// call runs f, a call of GoBGP, in a goroutine of its own: GoBGP ignores the
// context while its main loop is busy, so the wait is bounded here. The result
// travels by channel, because a late f may still be writing it.
func call[T any](ctx context.Context, what string, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	type result struct {
		v   T
		err error
	}
	ch := make(chan result, 1)
	go func() {
		v, err := f(ctx)
		if err == nil {
			err = ctx.Err() // the lists end early and without an error then
		}
		ch <- result{v, err}
	}()
	var zero T
	select {
	case r := <-ch:
		if r.err != nil {
			return zero, fmt.Errorf("%s: %w", what, r.err)
		}
		return r.v, nil
	case <-ctx.Done():
		return zero, fmt.Errorf("%s: no answer from the BGP server: %w", what, ctx.Err())
	}
}

// hangs says that the server did not answer: each further call would only wait
// for its limit.
func hangs(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
