// Command demo brings the lab up, runs the story and prints each step with what
// was observed. It exits 0 if every step held, else 1. On a terminal, or with
// -keep, it leaves the lab up with its console on 127.0.0.1 until interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

func main() {
	lab.Janitor()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	keep := flag.Bool("keep", isTerminal(), "leave the lab up until interrupted")
	console := flag.String("console", "127.0.0.1:9180", "loopback `address` that a1's console is relayed to")
	bin := flag.String("bin", "out/bin", "`folder` that the commands are built into")
	flag.Parse()
	d := &demo{start: time.Now()}
	if err := d.run(ctx, *bin, *keep, *console); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// isTerminal says whether a person is looking.
func isTerminal() bool {
	_, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	return err == nil
}

// demo prints.
type demo struct {
	start time.Time
	mu    sync.Mutex
}

func (d *demo) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Printf("  %6.1f s  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) run(ctx context.Context, bin string, keep bool, console string) error {
	fmt.Println("Building edged, edgebgp, edgeproxy and edgectl")
	if err := lab.Build(ctx, bin, false); err != nil {
		return err
	}
	fmt.Println("Bringing up three sites (four boxes), three routers (BIRD, FRR, BIRD), three regions, three clients")
	l, err := lab.New(ctx, lab.Default())
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.Start(bin); err != nil {
		return err
	}
	t := &story.Teller{Lab: l, Say: d.say}
	if err := t.Settle(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, l.Logs(30))
	}
	d.say("every site announces %s and %s", lab.Prefix4, lab.Prefix6)
	failed := d.tell(ctx, t)
	if keep && ctx.Err() == nil {
		if err := d.hold(ctx, l, console); err != nil {
			return err
		}
	}
	return failed
}

// tell runs the steps; after one that does not hold, the rest would only show
// its consequences.
func (d *demo) tell(ctx context.Context, t *story.Teller) error {
	steps := story.Steps()
	for i, s := range steps {
		fmt.Printf("\n[%d/%d] %s\n", i+1, len(steps), s.Name)
		if err := s.Run(ctx, t); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted: %w", context.Cause(ctx))
			}
			d.say("DOES NOT HOLD: %v", err)
			return fmt.Errorf("step %d of %d does not hold: %w\n%s", i+1, len(steps), err, t.Lab.Logs(15))
		}
		d.say("holds")
	}
	fmt.Printf("\nAll %d steps hold, %s after the start.\n", len(steps), time.Since(d.start).Round(time.Second))
	return nil
}

// hold leaves the lab up until ctx ends.
func (d *demo) hold(ctx context.Context, l *lab.Lab, console string) error {
	ready := func(a net.Addr) {
		fmt.Printf("\nThe lab is up. Console of a1: http://%s/   Ctrl-C ends it.\n", a)
	}
	err := l.Boxes["a1"].RelayConsole(ctx, console, ready)
	if errors.Is(err, syscall.EADDRINUSE) {
		fmt.Printf("\n%s is in use; another port is taken.\n", console)
		err = l.Boxes["a1"].RelayConsole(ctx, "127.0.0.1:0", ready)
	}
	return err
}
