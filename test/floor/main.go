// Command floor tries, in the lab, to get a fleet below its floor: nine sites lose
// the same dependency within a second, half of the time while their gossip is cut,
// and the routers must never have fewer of them than the floor.
//
// It owns the faults, the watch at the routers and the judgement, and no lab of its
// own. Unlike the benchmarks it judges: one moment below the floor, one withdrawal
// that was not the site's to make, or a site that does not get to leave though it
// may, is a failure. make lab-floor runs it, as root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"

	"github.com/catchment-dev/edge/test/lab"
)

func main() {
	lab.Janitor()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var o options
	flag.StringVar(&o.bin, "bin", "out/bin", "`folder` that the commands are built into")
	flag.StringVar(&o.out, "out", "out/bench/floor.json", "`file` for the figures")
	flag.IntVar(&o.rounds, "rounds", 50, "how often all sites break")
	flag.IntVar(&o.singles, "singles", 10, "how often one does")
	flag.Uint64Var(&o.seed, "seed", rand.Uint64(), "what the rounds are drawn from")
	flag.Parse()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "\nfloor: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// options are what the command is called with.
type options struct {
	bin, out        string
	rounds, singles int
	seed            uint64
}

func run(ctx context.Context, o options) error {
	fmt.Println("Building edged, edgebgp, edgeproxy and edgectl")
	if err := lab.Build(ctx, o.bin, false); err != nil {
		return err
	}
	rep := &report{sites: len(topology(ordinary()).Sites)}
	fmt.Printf("Nine sites, floor %d, seed %d\n", floor, o.seed)
	half := o.rounds / 2
	failed := errors.Join(
		rep.measure(ctx, o, part{setup: ordinary(), singles: o.singles, to: half}),
		rep.measure(ctx, o, part{setup: hasty(), from: half, to: o.rounds}),
	)
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	fmt.Print(rep.table())
	if err := rep.write(o.out); err != nil {
		return err
	}
	return failed
}
