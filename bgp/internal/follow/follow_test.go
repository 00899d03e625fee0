package follow

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// owner has a Loop, and what its followers find.
type owner struct {
	mu    sync.Mutex
	loop  *Loop[string]
	found []string
}

func newOwner() *owner {
	o := &owner{}
	o.loop = New[string](&o.mu)
	return o
}

func (o *owner) replace(cfg string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.loop.Replace(cfg)
	o.found = nil
}

func (o *owner) config() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.loop.Config()
}

// finds runs a Loop of followers that find their configuration each second.
func (o *owner) finds(ctx context.Context) {
	o.loop.Run(ctx, func(ctx context.Context, cfg string, t Term) {
		for ctx.Err() == nil {
			t.Do(func() { o.found = append(o.found, cfg) })
			Pause(ctx, time.Second)
		}
	})
}

func (o *owner) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.found, want) {
		t.Fatalf("found %q, want %q", o.found, want)
	}
}

// TestReplace: each configuration is followed until the next, also one that was
// set before Run.
func TestReplace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		o.replace("a")
		o.want(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() { o.finds(ctx); close(done) }()
		o.want(t, "a")
		time.Sleep(time.Second)
		o.want(t, "a", "a")
		o.replace("b") // at once, not at the end of the pause
		o.want(t, "b")
		o.replace("c")
		o.replace("d")
		o.want(t, "d")
		o.replace("d") // an equal one is another one: it is the owner who compares
		o.want(t, "d")
		cancel()
		<-done
		if got := o.config(); got != "d" {
			t.Errorf("the configuration is %q", got)
		}
		o.replace("e") // nobody follows it
		time.Sleep(time.Hour)
		o.want(t)
		ctx, cancel = context.WithCancel(t.Context())
		go o.finds(ctx) // once more
		o.want(t, "e")
		cancel()
	})
}

// TestFollowerEnds: one that returns early is called again only for the next
// configuration.
func TestFollowerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		var calls atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		go o.loop.Run(ctx, func(context.Context, string, Term) { calls.Add(1) })
		time.Sleep(time.Hour)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls", n)
		}
		o.replace("x")
		time.Sleep(time.Hour)
		if n := calls.Load(); n != 2 {
			t.Errorf("%d calls", n)
		}
		cancel()
	})
}

// TestSlowFollower: the next one begins when the old one has ended; what the old
// one finds meanwhile does not count, and its context says so.
func TestSlowFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		var running, most atomic.Int32
		var counted atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() {
			defer close(done)
			o.loop.Run(ctx, func(ctx context.Context, cfg string, term Term) {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				<-ctx.Done()
				time.Sleep(time.Minute)
				if term.Do(func() {}) {
					counted.Add(1)
				}
			})
		}()
		for range 5 {
			time.Sleep(time.Second)
			o.replace("x")
		}
		time.Sleep(time.Hour)
		cancel()
		begin := time.Now()
		<-done
		if d := time.Since(begin); d != time.Minute {
			t.Errorf("Run has ended after %s, not with its follower", d)
		}
		if most.Load() != 1 || counted.Load() != 1 { // the last term is not over, only Run is
			t.Errorf("%d at once, %d counted", most.Load(), counted.Load())
		}
	})
}

// TestRace: with replacements at any moment, state that belongs to the followers
// needs no lock, and what counts is of the configuration there is.
func TestRace(t *testing.T) {
	var mu sync.Mutex
	l := New[int](&mu)
	kept, last := 0, 0 // kept is of the followers alone, without a lock; last is guarded
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		l.Run(ctx, func(ctx context.Context, cfg int, term Term) {
			for ctx.Err() == nil {
				kept++
				term.Do(func() {
					if cfg != l.Config() || cfg < last {
						t.Errorf("%d counts in the term of %d, after %d", cfg, l.Config(), last)
					}
					last = cfg
				})
			}
		})
	})
	rng := rand.New(rand.NewPCG(1, 2))
	for deadline, i := time.Now().Add(200*time.Millisecond), 1; !time.Now().After(deadline); i++ {
		mu.Lock()
		l.Replace(i)
		mu.Unlock()
		for range rng.IntN(1000) {
			runtime.Gosched() // the follower has its turn
		}
	}
	for deadline := time.Now().Add(time.Minute); ; {
		mu.Lock()
		done := last == l.Config()
		mu.Unlock()
		if done {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the last configuration is not followed")
		}
	}
	cancel()
	all.Wait()
	if kept == 0 {
		t.Error("nothing was followed")
	}
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		Pause(t.Context(), time.Hour)
		if d := time.Since(begin); d != time.Hour {
			t.Errorf("waited for %s", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		Pause(ctx, time.Hour)
		if d := time.Since(begin); d != time.Hour+time.Second {
			t.Errorf("waited for %s", d)
		}
	})
}
