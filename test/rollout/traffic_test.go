package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// askRate is in requests per second, of each client.
const askRate = 10

// traffic is an open-loop load over the VIPs, from all clients, and a watch over the
// routers.
type traffic struct {
	cancel  context.CancelFunc
	asking  sync.WaitGroup
	watch   *announced
	unwatch context.CancelFunc

	mu      sync.Mutex
	samples lab.Samples
	err     error
}

// startTraffic begins; the caller stops it.
func (f *fleet) startTraffic(ctx context.Context) *traffic {
	watching, unwatch := context.WithCancel(ctx)
	ctx, cancel := context.WithCancel(ctx)
	tr := &traffic{cancel: cancel, watch: f.watch(watching), unwatch: unwatch}
	for name, c := range f.Clients {
		if name == operatorName {
			continue
		}
		for _, way := range []lab.Way{{}, {IPv6: true}} {
			tr.asking.Go(func() {
				tr.ask(ctx, c, lab.Load{URL: story.URL, Way: way, Rate: askRate / 2, Timeout: 10 * time.Second, Again: true})
			})
		}
	}
	return tr
}

// ask goes on until ctx ends: a load has an end, a rollout none that is known before.
func (tr *traffic) ask(ctx context.Context, c *lab.Client, load lab.Load) {
	load.For = 10 * time.Minute
	for ctx.Err() == nil {
		s, err := c.Send(ctx, load)
		tr.mu.Lock()
		tr.samples, tr.err = append(tr.samples, s...), errors.Join(tr.err, err)
		tr.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// stop ends it and returns what was seen. The watch outlives the load: a request fails
// before the turn of the routers is seen that it failed at.
func (tr *traffic) stop() (lab.Samples, []sighting, error) {
	tr.cancel()
	tr.asking.Wait()
	tr.unwatch()
	seen, err := tr.watch.wait()
	slices.SortFunc(tr.samples, func(a, b lab.Sample) int { return a.At.Compare(b.At) })
	return tr.samples, seen, errors.Join(tr.err, err)
}

// verdict is what clients and routers have seen.
type verdict struct {
	// broken are the requests that had to be asked once more, failed those that failed
	// even so.
	requests, broken, failed int
	// least is for how few sites a prefix was announced at any time.
	least int
	seen  []sighting
}

// underTraffic runs something while clients ask, and judges: no request fails,
// nothing is withdrawn that was not marked before, and at no time do fewer sites announce
// than the floor.
func (f *fleet) underTraffic(ctx context.Context, t *testing.T, run func(context.Context) error) error {
	t.Helper()
	_, err := f.observe(ctx, t, run)
	return err
}

// observe is underTraffic, and says what was seen.
func (f *fleet) observe(ctx context.Context, t *testing.T, run func(context.Context) error) (verdict, error) {
	t.Helper()
	tr := f.startTraffic(ctx)
	runErr := run(ctx)
	samples, seen, err := tr.stop()
	v := verdict{len(samples), len(samples.Broken()), len(samples.Failed()), f.least(seen), seen}
	return v, errors.Join(runErr, err, f.judge(t, v, samples))
}

// judge says what was seen, and whether that may be.
func (f *fleet) judge(t *testing.T, v verdict, samples lab.Samples) error {
	t.Helper()
	moves := f.moves(v.seen)
	t.Logf("%s, %d asked once more; by box: %v", samples, v.broken, samples.Boxes())
	for _, s := range samples.Broken() {
		t.Logf("  asked once more, from %s on, for %.2f s: %v", s.At.Format("15:04:05.000"), s.Took.Seconds(), s.Broke)
	}
	t.Logf("at least %d sites have announced; the traffic of a site moved %d times:\n%s", v.least, len(moves), describeSeen(v.seen))
	var errs []error
	if v.requests == 0 {
		errs = append(errs, errors.New("nobody has asked"))
	}
	if v.failed > 0 {
		one := samples.Failed()[0]
		errs = append(errs, fmt.Errorf("%d requests failed; the first at %s, after %.2f s: %w", v.failed, one.At.Format("15:04:05.000"), one.Took.Seconds(), one.Err))
	}
	if odd := outside(samples.Broken(), moves); len(odd) > 0 {
		errs = append(errs, fmt.Errorf("%d connections broke while the traffic of no site moved; the first after %s: %w", len(odd), odd[0].At.Format("15:04:05.000"), odd[0].Broke))
	}
	if most := mostPerMove * len(moves); v.broken > most {
		errs = append(errs, fmt.Errorf("%d connections broke in %d moves of a site's traffic, more than %d", v.broken, len(moves), most))
	}
	if _, unmarked := leaves(v.seen); len(unmarked) > 0 {
		errs = append(errs, fmt.Errorf("these were withdrawn and not marked with 65535:0 before: %v", unmarked))
	}
	if v.least < f.floor {
		errs = append(errs, fmt.Errorf("only %d sites have announced, the floor is %d", v.least, f.floor))
	}
	return errors.Join(errs...)
}

// mostPerMove is how many connections may break when the traffic of a whole site moves
// to another: one that is open has its next packet at a site that does not know it. No
// box can help that, and a client asks again. Between two boxes of a site none breaks.
// It is what the client of a site asks in half a second.
const mostPerMove = askRate/2 + 1

// outside are the requests that were not under way when a site's traffic moved.
func outside(broken lab.Samples, moves []time.Time) lab.Samples {
	return slices.DeleteFunc(slices.Clone(broken), func(s lab.Sample) bool {
		return slices.ContainsFunc(moves, func(move time.Time) bool {
			return move.After(s.At) && move.Before(s.At.Add(s.Took+2*watchEvery))
		})
	})
}

func describeSeen(seen []sighting) string {
	var b strings.Builder
	for _, s := range seen {
		fmt.Fprintln(&b, s)
	}
	return b.String()
}
