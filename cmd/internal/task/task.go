// Package task runs the parts of a daemon together: the first error stops all
// of them, in order. It owns the errgroup and the signals of a process, and
// knows nothing of what the parts do. The three daemons use it.
package task

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// Task is a part of a daemon.
type Task interface {
	// Run works until ctx ends, then returns nil; any other return is an error
	// that ends the daemon.
	Run(ctx context.Context) error
	// Ready is closed when the task does its work. A nil channel is ready.
	Ready() <-chan struct{}
	// String names the task in logs and errors.
	String() string
}

// Serve runs the tasks until SIGTERM, SIGINT or the first error. Once every
// task is ready it tells the service manager so (sd_notify). After the first
// signal the handling stops, so that a second one ends the process at once.
func Serve(ctx context.Context, log *slog.Logger, tasks ...Task) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return serve(ctx, log, stop, tasks)
}

// Run is Serve for a daemon that sees to the signals itself: it ends with ctx.
func Run(ctx context.Context, log *slog.Logger, tasks ...Task) error {
	return serve(ctx, log, func() {}, tasks)
}

// serve calls ended as soon as the tasks are told to end.
func serve(ctx context.Context, log *slog.Logger, ended func(), tasks []Task) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, t := range tasks {
		g.Go(func() error { return run(ctx, t) })
	}
	g.Go(func() error {
		if !ready(ctx, tasks) {
			return nil
		}
		log.Info("ready", "tasks", len(tasks))
		return notify("READY=1")
	})
	g.Go(func() error {
		<-ctx.Done()
		ended()
		return nil
	})
	return g.Wait()
}

func run(ctx context.Context, t Task) error {
	if err := t.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", t, err)
	}
	if ctx.Err() == nil {
		return fmt.Errorf("%s: ended by itself", t)
	}
	return nil
}

func ready(ctx context.Context, tasks []Task) bool {
	for _, t := range tasks {
		if t.Ready() == nil {
			continue
		}
		select {
		case <-t.Ready():
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// notify speaks sd_notify(3): one datagram to the socket that the service
// manager named, if it did.
func notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	c, err := net.Dial("unixgram", path)
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}
