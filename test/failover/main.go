// Command failover measures in the lab how soon a site that fails is out of its
// router's table, how many requests are lost meanwhile, and how soon a route is
// back.
//
// It owns the faults, the measuring and the table that it prints, and no lab of
// its own; it judges nothing: a time that misses its aim is printed so, and only
// what could not be measured is a failure. make bench-failover runs it, as root.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/catchment-dev/edge/test/lab"
)

func main() {
	lab.Janitor()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var o options
	flag.StringVar(&o.bin, "bin", "out/bin", "`folder` that the commands are built into")
	flag.StringVar(&o.out, "out", "out/bench/failover.json", "`file` for the figures")
	flag.StringVar(&o.more, "append", "", "`file` that test/bench has made of BenchmarkSpeaker, to add")
	flag.IntVar(&o.runs, "runs", 3, "how often each fault is measured; slow ones once")
	only := flag.String("only", "", "comma separated `names`; empty: all")
	kinds := flag.String("routers", "bird,frr", "comma separated `kinds` of the site's router")
	flag.Parse()
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	for kind := range strings.SplitSeq(*kinds, ",") {
		o.kinds = append(o.kinds, lab.RouterKind(kind))
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "\nfailover: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// options are what the command is called with.
type options struct {
	bin, out, more string
	runs           int
	only           []string
	kinds          []lab.RouterKind
}

func run(ctx context.Context, o options) error {
	scenarios, err := choose(scenarios(), o.only)
	if err != nil {
		return err
	}
	fmt.Println("Building edged, edgebgp, edgeproxy and edgectl")
	if err := lab.Build(ctx, o.bin, false); err != nil {
		return err
	}
	r := &report{}
	failed := r.measure(ctx, o, scenarios)
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	if o.more != "" {
		if err := r.add(o.more); err != nil {
			return err
		}
	}
	fmt.Print(r.table())
	if err := r.write(o.out); err != nil {
		return err
	}
	return failed
}
