package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Load is a constant stream of requests that does not wait for the answers.
type Load struct {
	URL string
	Way Way
	// Rate is in requests per second, 1 to 1,000.
	Rate int
	// For is how long, at most 10 minutes; no request starts after it.
	For time.Duration
	// Timeout bounds a request; 0 is 10 s.
	Timeout time.Duration
	// Again asks once more, over a new connection, if one breaks or is refused before the
	// answer is there: what a client may do with a GET by itself (RFC 9110, 9.2.2).
	Again bool
}

// Sample is one request of a load.
type Sample struct {
	// At is when it started, Took how long it was under way.
	At   time.Time
	Took time.Duration
	// Answer is who served it, if Err is nil.
	Answer Answer
	Err    error
	// Broke is why it was asked once more.
	Broke error
}

// Samples are the requests of a load, in the order they started in.
type Samples []Sample

// Send sends the load and returns when the last answer is there. Requests start
// at the times that the rate says, whatever the answers do. When ctx ends it
// starts no more; those under way are cut off and not recorded.
func (c *Client) Send(ctx context.Context, l Load) (Samples, error) {
	if l.Rate < 1 || l.Rate > 1000 || l.For <= 0 || l.For > 10*time.Minute {
		return nil, fmt.Errorf("send load: rate %d is not 1 to 1000, or duration %s not up to 10m", l.Rate, l.For)
	}
	t := c.Transport(l.Way)
	defer t.CloseIdleConnections()
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		samples Samples
	)
	start := time.Now()
	for i := 0; ; i++ {
		after := time.Duration(i) * time.Second / time.Duration(l.Rate)
		if after >= l.For || !pauseUntil(ctx, start.Add(after)) {
			break
		}
		wg.Go(func() {
			s := sample(ctx, l, func(ctx context.Context) (Answer, error) { return get(ctx, t, l.URL) })
			if ctx.Err() != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			samples = append(samples, s)
		})
	}
	wg.Wait()
	slices.SortFunc(samples, func(a, b Sample) int { return a.At.Compare(b.At) })
	return samples, nil
}

// pauseUntil waits for the time; false if ctx has ended.
func pauseUntil(ctx context.Context, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func sample(ctx context.Context, l Load, ask func(context.Context) (Answer, error)) Sample {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(l.Timeout, 10*time.Second))
	defer cancel()
	s := Sample{At: time.Now()}
	if s.Answer, s.Err = ask(ctx); l.Again && broke(s.Err) {
		s.Broke = s.Err
		s.Answer, s.Err = ask(ctx)
	}
	s.Took = time.Since(s.At)
	return s
}

// broke says that a connection has broken or was refused, rather than that nothing came
// in time, or not what was asked for.
func broke(err error) bool {
	for _, by := range []error{syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, by) {
			return true
		}
	}
	return false
}

// Broken are the requests that had to be asked once more.
func (s Samples) Broken() Samples {
	return slices.DeleteFunc(slices.Clone(s), func(one Sample) bool { return one.Broke == nil })
}

// Failed are the requests without a good answer.
func (s Samples) Failed() Samples {
	return slices.DeleteFunc(slices.Clone(s), func(one Sample) bool { return one.Err == nil })
}

// Between are the requests that started in [from, to).
func (s Samples) Between(from, to time.Time) Samples {
	return slices.DeleteFunc(slices.Clone(s), func(one Sample) bool {
		return one.At.Before(from) || !one.At.Before(to)
	})
}

// Regions counts the good answers by the region that gave them.
func (s Samples) Regions() map[string]int {
	return s.by(func(a Answer) string { return a.Region })
}

// Sites counts the good answers by the site that they came through.
func (s Samples) Sites() map[string]int { return s.by(func(a Answer) string { return a.Site }) }

// Boxes counts the good answers by the box that they came through.
func (s Samples) Boxes() map[string]int { return s.by(func(a Answer) string { return a.Box }) }

func (s Samples) by(key func(Answer) string) map[string]int {
	counts := map[string]int{}
	for _, one := range s {
		if one.Err == nil {
			counts[key(one.Answer)]++
		}
	}
	return counts
}

// String is one line: how many, and the first failure.
func (s Samples) String() string {
	failed := s.Failed()
	text := fmt.Sprintf("%d requests, %d failed", len(s), len(failed))
	if len(failed) > 0 {
		text += fmt.Sprintf(", the first at %s: %v", failed[0].At.Format("15:04:05.000"), failed[0].Err)
	}
	return text
}
