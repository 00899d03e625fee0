// Command edgeproxy is the L7 process of a node: it terminates TLS and HTTP on
// the VIPs and has each request answered by the nearest region with room.
//
// It owns the proxy, the choice of regions and their unix socket, which answers
// until the drain after SIGTERM is over: no second process can start before. It
// never touches routes, interfaces or BPF, and needs no privilege once it has
// its sockets: started as root with node.proxy_user set it becomes that user.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/backbone"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/cmd/internal/task"
	"github.com/catchment-dev/edge/cmd/internal/version"
	"github.com/catchment-dev/edge/health"
	"github.com/catchment-dev/edge/proxy"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	flags := flag.NewFlagSet("edgeproxy", flag.ContinueOnError)
	flags.SetOutput(stderr)
	config := flags.String("config", "/etc/edge/edge.yaml", "configuration file")
	fallback := flags.String("fallback", "/var/lib/edge/applied.yaml", "configuration `file` that edged applied last, used where the other is refused")
	path := flags.String("socket", "", "unix socket for edged (default RUN_DIR/edgeproxy.sock)")
	show := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *show {
		fmt.Fprintln(stdout, version.String())
		return 0
	}
	d := daemon{log: log, stdout: stdout, config: *config, fallback: *fallback, socket: *path}
	if err := d.start(); err != nil {
		fmt.Fprintln(stderr, "edgeproxy:", err)
		return 1
	}
	return 0
}

// daemon is one run of the process.
type daemon struct {
	log                      *slog.Logger
	stdout                   io.Writer
	config, fallback, socket string
	cfg                      *edge.Config
}

func (d *daemon) start() error {
	var err error
	if d.cfg, err = d.load(); err != nil {
		return err
	}
	if d.socket == "" {
		d.socket = filepath.Join(d.cfg.Local.RunDir, "edgeproxy.sock")
	}
	s, err := inheritSockets(d.log)
	if err != nil {
		return err
	}
	if err := s.open(d.cfg, d.socket); err != nil {
		return err
	}
	pid := pidFile(filepath.Join(d.cfg.Local.RunDir, "edgeproxy.pid"))
	if err := pid.write(); err != nil {
		return err
	}
	defer pid.remove()
	who, err := lookUp(d.cfg.Local.ProxyUser)
	if err != nil {
		return err
	}
	if who != nil && os.Geteuid() == 0 {
		return d.become(who, s, pid) // returns only an error
	}
	d.log.Info("starting", "version", version.String(), "config", d.cfg.Hash)
	return d.serve(s)
}

// load reads the configuration. One that is refused, which edged has refused as
// well, must not keep a proxy that has crashed from serving what edged goes on
// announcing: then that which edged applied last is used.
func (d *daemon) load() (*edge.Config, error) {
	cfg, err := edge.Load(d.config)
	if err == nil {
		return cfg, nil
	}
	last, lastErr := edge.Load(d.fallback)
	if lastErr != nil {
		return nil, err
	}
	d.log.Error("the configuration is refused; using the one that edged applied last", "err", err, "file", d.fallback)
	return last, nil
}

func (d *daemon) serve(s *sockets) error {
	selector := backbone.New(backbone.Options{
		Node: d.cfg.Local.ID, Regions: d.cfg.Fleet.Regions, Probe: health.HTTP{}.Probe, Log: d.log,
	})
	server, err := proxy.New(proxy.Options{
		Config: d.cfg, Picker: picker{selector}, Log: d.log, Listeners: s.tcp, Stdout: d.stdout,
	})
	if err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(server.Collector(), selector.Collector(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	api := newAPI(d, server, selector, metrics)
	drained := make(chan struct{})
	return task.Serve(context.Background(), d.log, proxyTask{server, drained},
		untilDrained{selector, drained}, untilDrained{&apiTask{api: api, ln: s.control}, drained})
}

// proxyTask is the proxy; it closes drained when it has let go of its last
// connection.
type proxyTask struct {
	*proxy.Server
	drained chan struct{}
}

// Run implements task.Task.
func (t proxyTask) Run(ctx context.Context) error {
	defer close(t.drained)
	return t.Server.Run(ctx)
}

// untilDrained lets a task outlive the signal to end by the proxy's drain: as
// long as there are requests, regions are measured and edged can ask.
type untilDrained struct {
	task.Task
	drained <-chan struct{}
}

// Run implements task.Task.
func (t untilDrained) Run(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		<-t.drained // the same end of ctx begins the drain
		end()
	})()
	return t.Task.Run(life)
}

// apiTask serves the unix socket.
type apiTask struct {
	api *api
	ln  net.Listener
}

// Run implements task.Task.
func (t *apiTask) Run(ctx context.Context) error { return socket.Serve(ctx, t.ln, t.api.handler()) }

// Ready implements task.Task.
func (t *apiTask) Ready() <-chan struct{} { return nil }

// String implements task.Task.
func (t *apiTask) String() string { return "api" }
