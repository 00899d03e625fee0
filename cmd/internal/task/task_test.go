package task

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// part is a task made of a function.
type part struct {
	run   func(context.Context) error
	ready chan struct{}
}

func (p part) Run(ctx context.Context) error { return p.run(ctx) }
func (p part) Ready() <-chan struct{}        { return p.ready }
func (p part) String() string                { return "part" }

func waits(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestServeTells: the service manager hears READY once every task is ready, and
// the end by a signal is no error.
func TestServeTells(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	slow := part{waits, make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- Serve(t.Context(), slog.New(slog.DiscardHandler), part{waits, nil}, slow) }()
	close(slow.ready)
	buf := make([]byte, 64)
	n, err := manager.Read(buf)
	if err != nil || string(buf[:n]) != "READY=1" {
		t.Errorf("the service manager heard %q, %v", buf[:n], err)
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("ended by SIGTERM: %v", err)
	}
}

// TestRunEndsWithContext: it takes no signals, and the end of ctx is no error.
func TestRunEndsWithContext(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGTERM)
	defer signal.Stop(caught)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, slog.New(slog.DiscardHandler), part{waits, nil}) }()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-caught
	select {
	case err := <-done:
		t.Fatalf("a signal has ended it: %v", err)
	default:
	}
	end()
	if err := <-done; err != nil {
		t.Errorf("the end of ctx: %v", err)
	}
}

// TestServeFails: the first error ends all and is returned with the task's
// name, and a task that ends by itself is an error too.
func TestServeFails(t *testing.T) {
	for want, run := range map[string]func(context.Context) error{
		"part: no disk":         func(context.Context) error { return errors.New("no disk") },
		"part: ended by itself": func(context.Context) error { return nil },
	} {
		err := Serve(t.Context(), slog.New(slog.DiscardHandler), part{run, nil}, part{waits, nil})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
