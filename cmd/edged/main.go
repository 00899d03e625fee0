// Command edged decides what this node announces. It probes what the site
// needs to serve, asks the guard for leave before anything is withdrawn, fills
// the tables of the forwarder, and serves the console and the socket of
// edgectl.
//
// SIGTERM means restart: nothing is withdrawn, packets and requests go on, and
// edgebgp keeps the announcements for the length of their lease. To leave, use
// edgectl drain first.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/task"
	"github.com/catchment-dev/edge/cmd/internal/version"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "edged:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fs := flag.NewFlagSet("edged", flag.ContinueOnError)
	path := fs.String("config", "/etc/edge/edge.yaml", "configuration `file`")
	show := fs.Bool("version", false, "print the version and exit")
	var level slog.Level
	fs.TextVar(&level, "log-level", slog.LevelInfo, "lowest `level` logged: debug, info, warn or error")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *show {
		fmt.Println(version.String())
		return nil
	}
	cfg, err := edge.Load(*path)
	if err != nil {
		return fmt.Errorf("load configuration:\n%w", err)
	}
	// net/http's HTTP/2 writes there what a hostile target of a probe makes it
	// think, as often as it is asked; the probe says what matters.
	stdlog.SetOutput(io.Discard)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctx := context.Background()
	d, err := open(ctx, cfg, *path, log.With("node", cfg.Local.ID))
	if err != nil {
		return err
	}
	defer d.close()
	return task.Serve(ctx, log, d.tasks()...)
}
