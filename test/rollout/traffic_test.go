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
				tr.ask(ctx, c, lab.Load{URL: story.URL, Way: way, Rate: askRate / 2, Timeout: 10 * time.Second})
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

// underTraffic runs f while clients ask, and judges: no request fails, and at no time do
// fewer sites announce than the floor.
func (f *fleet) underTraffic(ctx context.Context, t *testing.T, run func(context.Context) error) error {
	t.Helper()
	tr := f.startTraffic(ctx)
	runErr := run(ctx)
	samples, seen, err := tr.stop()
	if err := errors.Join(runErr, err); err != nil {
		return err
	}
	return f.judge(t, samples, seen)
}

// judge says what was seen, and whether that may be.
func (f *fleet) judge(t *testing.T, samples lab.Samples, seen []sighting) error {
	t.Helper()
	turns := f.turns(seen)
	unexcused := inTime(samples.Failed(), turns)
	least := f.least(seen)
	t.Logf("%s, of these %d without a turn of the routers; by box: %v", samples, len(unexcused), samples.Boxes())
	t.Logf("at least %d sites have announced; the routers turned %d times:\n%s", least, len(turns), describeSeen(seen))
	var errs []error
	if len(samples) == 0 {
		errs = append(errs, errors.New("nobody has asked"))
	}
	if len(unexcused) > 0 {
		one := unexcused[0]
		errs = append(errs, fmt.Errorf("%d requests failed while no router turned; the first at %s, after %.2f s: %w",
			len(unexcused), one.At.Format("15:04:05.000"), one.Took.Seconds(), one.Err))
	}
	if n, most := len(samples.Failed()), mostPerTurn*len(turns); n > most {
		errs = append(errs, fmt.Errorf("%d requests failed at %d turns of the routers, more than %d", n, len(turns), most))
	}
	if least < f.floor {
		errs = append(errs, fmt.Errorf("only %d sites have announced, the floor is %d", least, f.floor))
	}
	return errors.Join(errs...)
}

// mostPerTurn is how many requests may be lost when a router turns. A connection that is
// open then has its next packet at another site, which does not know it: no box can help
// that, and a client asks again. Each request is under way for a few of its 100 ms.
const mostPerTurn = 3

// inTime leaves out the requests that were under way when a router turned.
func inTime(failed lab.Samples, turns []time.Time) lab.Samples {
	return slices.DeleteFunc(slices.Clone(failed), func(s lab.Sample) bool {
		return slices.ContainsFunc(turns, func(turn time.Time) bool {
			return turn.After(s.At) && turn.Before(s.At.Add(s.Took+2*watchEvery))
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
