package image

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// leaveLimit is what a box has to leave: the 90 s of edgebgp's unit, and systemd.
const leaveLimit = 3 * time.Minute

// leaves orders the box to go down and looks at the order of things: the router is
// sent the path that nobody prefers (RFC 8326), then it is withdrawn with the guard's
// leave, and only then down is over.
func (b *box) leaves(ctx context.Context, t *testing.T, order string, down func(context.Context) error) error {
	ctx, cancel := within(ctx, leaveLimit)
	defer cancel()
	watch := newPathWatch(b.Routers[routerName], boxName, 100*time.Millisecond)
	defer watch.stop()
	start := time.Now()
	if _, err := b.guest.run(ctx, "logger -t image-test leave; "+order); err != nil && ctx.Err() != nil {
		return err // that the connection breaks is no error
	}
	if err := down(ctx); err != nil {
		return err
	}
	off := time.Now()
	seen := watch.stop()
	at := map[pathState]time.Time{}
	for _, s := range seen {
		if _, ok := at[s.state]; !ok {
			at[s.state] = s.at
		}
	}
	for _, s := range seen {
		t.Logf("%5.1f s  the path is %s", s.at.Sub(start).Seconds(), s.state)
	}
	t.Logf("%5.1f s  it is down", off.Sub(start).Seconds())
	if at[pathLast].IsZero() || at[pathGone].IsZero() || at[pathLast].After(at[pathGone]) || at[pathGone].After(off) {
		return fmt.Errorf("the path was not %s, then %s, and then the box down", pathLast, pathGone)
	}
	return nil
}

// pathState is how the router has the box's path.
type pathState string

const (
	pathFull pathState = "as usual"
	pathLast pathState = "marked with 65535:0"
	pathGone pathState = "withdrawn"
)

type seenPath struct {
	at    time.Time
	state pathState
}

// pathWatch asks a router again and again for a box's path of the IPv4 prefix.
type pathWatch struct {
	quit chan struct{}
	once sync.Once
	done chan []seenPath
	seen []seenPath
}

func newPathWatch(r *lab.Router, box string, every time.Duration) *pathWatch {
	w := &pathWatch{quit: make(chan struct{}), done: make(chan []seenPath, 1)}
	go func() {
		var seen []seenPath
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			if s, ok := pathOf(r, box); ok && (len(seen) == 0 || seen[len(seen)-1].state != s) {
				seen = append(seen, seenPath{time.Now(), s})
			}
			select {
			case <-tick.C:
			case <-w.quit:
				w.done <- seen
				return
			}
		}
	}()
	return w
}

// stop ends the watch and returns what was seen.
func (w *pathWatch) stop() []seenPath {
	w.once.Do(func() {
		close(w.quit)
		w.seen = <-w.done
	})
	return w.seen
}

func pathOf(r *lab.Router, box string) (pathState, bool) {
	ctx, cancel := within(context.Background(), 5*time.Second)
	defer cancel()
	out, err := r.Ask(ctx, fmt.Sprintf("show route %s all protocol 'box-%s'", lab.Prefix4, box))
	return parsePath(out, box, err)
}

// graceful is how BIRD writes the community of RFC 8326.
var graceful = regexp.MustCompile(`BGP\.community:.*\(65535,0\)`)

// parsePath reads BIRD's answer; false if it is none. BIRD's client takes a network
// that nobody has for a failure; one that others have is an answer without a path.
func parsePath(out, box string, err error) (pathState, bool) {
	switch {
	case strings.Contains(out, "Network not found"):
		return pathGone, true
	case err != nil || !strings.HasPrefix(out, "BIRD "):
		return "", false
	case !strings.Contains(out, "box-"+box):
		return pathGone, true
	case graceful.MatchString(out):
		return pathLast, true
	}
	return pathFull, true
}

// powerOff is the box that is switched off.
func powerOff(ctx context.Context, t *testing.T, l *lane) error {
	return l.withBox(ctx, func(b *box) error { return b.leaves(ctx, t, "systemctl poweroff", b.AwaitOff) })
}
