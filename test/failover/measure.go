package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/test/lab"
)

// result is one measurement.
type result struct {
	// took is the figure.
	took time.Duration
	// moved is from the fault until the router's kernel did not lead to the box
	// any more, left until its BGP had no path from it; 0: not looked at.
	moved, left time.Duration
	// lost counts the requests without a good answer, of asked.
	lost, asked int
	// cut are those of lost whose connection was reset because a route moved
	// beneath it: its next packet met a box that does not know it. Anycast cannot
	// move a route without that, however orderly a site leaves.
	cut int
	// first is the first of those that were lost, and when it started; empty:
	// none was.
	first string
	// back is from the mending until the kernel led to the box again.
	back time.Duration
}

// measure makes the fault and waits until the router's kernel does not lead to
// the box any more.
func measure(ctx context.Context, r *rig, s scenario) (result, error) {
	res, err := r.observe(ctx, s)
	res.took = res.moved
	return res, err
}

// measureLeaving is for a site that leaves in order: it counts until the
// router's BGP has no path from the box, long after the traffic has moved.
func measureLeaving(ctx context.Context, r *rig, s scenario) (result, error) {
	res, err := r.observe(ctx, s)
	res.took = res.left
	return res, err
}

// observe makes the fault under traffic, watches what comes of it, and mends it.
// After an error the lab is as it is: nobody uses it any more.
func (r *rig) observe(ctx context.Context, s scenario) (res result, err error) {
	w, err := r.router.Watch(lab.Prefix4)
	if err != nil {
		return result{}, err
	}
	defer w.Close()
	transit, err := r.lab.Routers["r-t"].Watch(lab.Prefix4)
	if err != nil {
		return result{}, err
	}
	defer transit.Close()
	t := r.ask(ctx)
	defer t.stop()
	if err := lab.Pause(ctx, warmUp); err != nil {
		return result{}, err
	}
	at := time.Now()
	if err := s.fault(ctx, r); err != nil {
		return result{}, fmt.Errorf("make the fault: %w", err)
	}
	if res.moved, err = r.since(ctx, w, at, false); err != nil {
		return result{}, err
	}
	if s.leaves {
		if res.left, err = r.held(ctx, at, false); err != nil {
			return result{}, err
		}
	}
	end := at.Add(max(res.moved, res.left) + r.after)
	// The last requests that count have their time to be answered.
	if err := lab.Pause(ctx, time.Until(end.Add(answerLimit+100*time.Millisecond))); err != nil {
		return result{}, err
	}
	samples, err := t.stop()
	if err == nil && s.also != nil {
		err = s.also(ctx, r)
	}
	mended := time.Now()
	if err := errors.Join(err, s.mend(ctx, r)); err != nil {
		return result{}, err
	}
	counted, err := affected(samples, at, end)
	if err != nil {
		return result{}, err
	}
	failed := counted.Failed()
	if res.cut, err = cut(failed, w, transit); err != nil {
		return result{}, err
	}
	if res.asked, res.lost = len(counted), len(failed); res.lost > 0 {
		res.first = fmt.Sprintf("%.3f s: %v", failed[0].At.Sub(at).Seconds(), failed[0].Err)
	}
	res.back, err = r.since(ctx, w, mended, true)
	return res, err
}

// affected are the requests that were under way at the fault or started after
// it, up to the end. One that has failed before means that the lab was not well.
func affected(all lab.Samples, at, end time.Time) (lab.Samples, error) {
	over := func(s lab.Sample) bool { return s.At.Add(s.Took).Before(at) }
	before := slices.DeleteFunc(slices.Clone(all), func(s lab.Sample) bool { return !over(s) })
	if len(before.Failed()) > 0 {
		return nil, fmt.Errorf("before the fault: %s", before)
	}
	counted := slices.DeleteFunc(all.Between(time.Time{}, end), over)
	if len(counted) == 0 {
		return nil, errors.New("no request was under way at the fault, or after it")
	}
	return counted, nil
}

// cut counts the requests that were reset and under way when a router on their
// path changed its route.
func cut(failed lab.Samples, routers ...*lab.RouteWatch) (int, error) {
	var moves []time.Time
	for _, w := range routers {
		events, err := w.Events()
		if err != nil {
			return 0, err
		}
		for _, e := range events {
			moves = append(moves, e.At)
		}
	}
	n := 0
	for _, s := range failed {
		during := func(move time.Time) bool { return !move.Before(s.At) && !move.After(s.At.Add(s.Took)) }
		if errors.Is(s.Err, unix.ECONNRESET) && slices.ContainsFunc(moves, during) {
			n++
		}
	}
	return n, nil
}

// since waits until the watch has seen the kernel lead to the box, or not, after
// a time, and returns how long after.
func (r *rig) since(ctx context.Context, w *lab.RouteWatch, at time.Time, to bool) (time.Duration, error) {
	var found time.Time
	err := until(ctx, fmt.Sprintf("%s leads to %s: %t", r.router.Name(), r.box.Name(), to), func() error {
		events, err := w.Events()
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.At.After(at) && slices.Contains(e.Via, r.box.Name()) == to {
				found = e.At
				return nil
			}
		}
		return errors.New("not seen yet")
	})
	return found.Sub(at), err
}

// held waits until the router's BGP has a path from the box, or none, and returns
// how long that was after a time.
func (r *rig) held(ctx context.Context, at time.Time, want bool) (time.Duration, error) {
	err := until(ctx, fmt.Sprintf("BGP of %s has a path from %s: %t", r.router.Name(), r.box.Name(), want), func() error {
		holds, err := r.router.Holds(ctx, lab.Prefix4, r.box.Name())
		if err == nil && holds != want {
			err = errors.New("it is not so")
		}
		return err
	})
	return time.Since(at), err
}

// measureBack has the router away for a while, as by a reboot, and counts from
// its return until its BGP has the path. Its kernel may prefer another: a site
// that was cut off from its regions announces degraded until it has been well
// for a while.
func measureBack(ctx context.Context, r *rig, _ scenario) (result, error) {
	r.router.Kill()
	if err := r.router.FlushRoutes(); err != nil {
		return result{}, err
	}
	if err := lab.Pause(ctx, away); err != nil {
		return result{}, err
	}
	at := time.Now()
	if err := r.router.Start(ctx); err != nil {
		return result{}, err
	}
	took, err := r.held(ctx, at, true)
	return result{took: took}, err
}

// traffic is the client's requests while something happens.
type traffic struct {
	cancel  context.CancelFunc
	done    chan struct{}
	samples lab.Samples
	err     error
}

// ask has the client ask for as long as it takes.
func (r *rig) ask(ctx context.Context) *traffic {
	ctx, cancel := context.WithCancel(ctx)
	t := &traffic{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.samples, t.err = r.client.Send(ctx, lab.Load{URL: url, Rate: rate, For: 5 * time.Minute, Timeout: answerLimit})
	}()
	return t
}

// stop ends the requests. It may be called again.
func (t *traffic) stop() (lab.Samples, error) {
	t.cancel()
	<-t.done
	return t.samples, t.err
}
