package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// waiting is a speaker that may leave when the test says so.
type waiting chan error

func (w waiting) Leave(ctx context.Context) error {
	select {
	case err := <-w:
		return err
	case <-ctx.Done():
		return errors.New("still announced: 192.0.2.0/24")
	}
}

// TestLeaver: the first signal waits for the speaker, the second for nobody.
func TestLeaver(t *testing.T) {
	for name, c := range map[string]struct {
		signals int
		leave   bool  // the speaker may
		err     error // of Leave
		ends    bool
		log     string
	}{
		"no signal":               {0, true, nil, false, ""},
		"may leave":               {1, true, nil, true, "told to stop"},
		"may not leave":           {1, false, nil, false, "told to stop"},
		"a second one":            {2, false, nil, true, "still announced: 192.0.2.0/24"},
		"the speaker has trouble": {1, true, errors.New("the speaker has stopped"), true, "told to stop"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out strings.Builder
				ctx, end := context.WithCancel(t.Context())
				w := make(waiting, 1)
				l := &leaver{log: slog.New(slog.NewTextHandler(&out, nil)), speaker: w, signals: make(chan os.Signal, 2), end: end}
				done := make(chan error, 1)
				go func() { done <- l.Run(ctx) }()
				if c.leave {
					w <- c.err
				}
				for range c.signals {
					l.signals <- syscall.SIGTERM
					time.Sleep(time.Hour)
				}
				synctest.Wait()
				if ended := ctx.Err() != nil || len(done) > 0; ended != c.ends {
					t.Errorf("ended: %t", ended)
				}
				end()
				if err := <-done; !errors.Is(err, c.err) {
					t.Errorf("it says %v", err)
				}
				if !strings.Contains(out.String(), c.log) {
					t.Errorf("log %q, want %q", out.String(), c.log)
				}
			})
		})
	}
}
