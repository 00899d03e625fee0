package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// speaker is the part of bgp.Speaker that a leaver needs.
type speaker interface {
	Leave(context.Context) error
}

// leaver is the task that ends the process, by its signals: after the first one as
// soon as the speaker may leave, after a second one at once. A third one is left to the
// kernel.
type leaver struct {
	log     *slog.Logger
	speaker speaker
	signals chan os.Signal
	end     context.CancelFunc // ends all tasks
}

// newLeaver takes the signals from now on.
func newLeaver(log *slog.Logger, s speaker, end context.CancelFunc) *leaver {
	l := &leaver{log: log, speaker: s, signals: make(chan os.Signal, 2), end: end}
	signal.Notify(l.signals, syscall.SIGTERM, syscall.SIGINT)
	return l
}

// String implements task.Task.
func (l *leaver) String() string { return "signals" }

// Ready implements task.Task.
func (l *leaver) Ready() <-chan struct{} { return nil }

// Run waits for the signals. It ends with ctx, or ends it.
func (l *leaver) Run(ctx context.Context) error {
	defer signal.Stop(l.signals)
	select {
	case s := <-l.signals:
		l.log.Info("told to stop", "signal", s)
	case <-ctx.Done():
		return nil
	}
	wait, giveUp := context.WithCancel(ctx)
	defer giveUp()
	left := make(chan error, 1)
	go func() { left <- l.speaker.Leave(wait) }()
	select {
	case err := <-left:
		if err != nil && ctx.Err() == nil {
			return err
		}
	case s := <-l.signals:
		giveUp()
		l.log.Warn("told to stop at once, without leave: the routers drop what they hold", "signal", s, "err", <-left)
	}
	l.end()
	return nil
}
